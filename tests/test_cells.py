"""Notebooks that show their work: words follow the data, a changed number runs through every cell, cells stay short."""

import ast
import re
import symtable
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace

import cells
import numpy as np
import pandas as pd
import pytest
import torch
from invented import ENGINES, MACHINE, server
from test_first_token import SLOW, SPEEDS, curve, dequantized
from traces import mixture_of_experts

import kit
from kit.lab.claims import book, gates, records
from kit.lab.explaining import together
from kit.lab.explaining.elsewhere import GUESS
from kit.lab.explaining.roofline import Point
from kit.lab.findings import dequantizers, own_engine, pressed, pressure
from kit.lab.measuring import disk, measurements, minutes, state
from kit.lab.predicting import routing
from kit.lab.predicting.measured import Cost
from kit.lab.predicting.ways import BLOCK_WAYS, BLOCKS
from kit.lab.synthetic.write import cached_model
from kit.model.drafts import Timed
from kit.system.paths import ROOT, models_folder


@dataclass(frozen=True)
class Case:
    """How a notebook is put to the test. ``number``: one number that a reader may change. ``opposite``: replacements (name ->
    value or function of the value) that turn its findings round; ``empty``: others, without data, up to the cell ``until``.
    01, 03, 05, 06 and 10 have none: their data are the package's, the file's matrices and timings, none of which may be without
    a value, and what may be (no share of short memory, no way that runs) is an error before the first word, tested there.
    ``small``: replacements in every run, for less to compute. ``warns``: what the page's gates then say, and do not say as it
    stands. ``steady``: sentences that rightly stay whatever the data says, with the reason. ``sometimes``: those of them that
    only some machines' times bring."""

    number: dict
    opposite: dict
    small: dict = field(default_factory=dict)
    empty: dict = field(default_factory=dict)
    until: str | None = None
    warns: str = ""
    steady: dict = field(default_factory=dict)
    sometimes: tuple = ()


def dearer(cost: Cost) -> Cost:
    """Opposite data for notebook 07: weights in float are cheap, blocks are dear."""
    return Cost({k: v / 50 for k, v in cost.load.items()}, {k: v / 9 for k, v in cost.multiply.items()},
                {k: 60 * v for k, v in cost.fused.items()})  # fmt: skip


FROM_DISK = {}  # path -> what a process of its own measured


def measured_once(path, *how, measure=pressed.measure):
    return FROM_DISK.setdefault(path, measure(path, *how))


def committed():
    """The folder of the committed runs of one machine."""
    return next(iter(sorted((ROOT / "results" / "reference").glob("intel-xeon*"))))


def even(found):
    """A record without skew and return, of which the phone held nothing."""
    drawn = routing.draw(found, 0.0, 0.0, round(found.used), len(found.decoded))
    return replace(drawn, resident=np.zeros(len(drawn.token)))


QUICK = SLOW | {"kept": (0.05, 0.02, 0.02)}  # memory that is short costs nothing


def int8_wins(study):
    """With a measured time of int8 that no other way reaches: the advice is one thing, whatever the machine does."""
    study.measured[BLOCK_WAYS[-1]] = measurements.Reading(BLOCK_WAYS[-1].label, "", (1e-6,), result=torch.zeros(1))
    return study


ROOMY = (f"With more memory, {BLOCKS.told} takes T (measured) in 804.2 KiB.",)  # where float32 is no faster

POINTS = [Point("kit, exact", "1 token", 2.0, 2e10), Point("kit, exact", "512 tokens together", 900.0, 1.5e11)]

CASES = {  # a notebook joins by its row
    "01_first_token": Case(
        number={"factor": 1.01},
        opposite={
            "cold": lambda cold: not cold,
            "blocks": lambda blocks: 2 * blocks,
            "bound": lambda bound: dict.fromkeys(bound, 1e6),
            "off": dict.fromkeys(("lazily", "from blocks"), 3e-5),
            "taken": lambda taken: taken.assign(**{"time, s": [3.0, 2.0, 4.0]}),
            "measured": dequantized({name: (2.5, 1.5) for name in SPEEDS}),
            "curve": curve(QUICK),
            "made": lambda made: {name: [9.0, 9.0, 8.0] for name in made},
            "allocated": lambda allocated: 9 * allocated,
            "target": 1e-3,
            "direct": 1e3,
            "record": lambda record: record
            | {"client-received": 7, "dequantize-gbps": (5, 9)},
        },
        warns="first token: ",
        steady={
            "The next token takes T from kept float32, T from the blocks.": "every time is a T",
            "No: on their machine reading float32 takes at least T.": "every time is a T",
            "device = cpu: not measured; `kit reproduce --device cuda` adds the upload of the blocks, a second request and a "
            "token by a CUDA graph, with their limits": "no GPU in either run",
        },
    ),
    "04_attention": Case(
        number={"factor": 1.01},
        opposite={
            "depth": 9,
            "attention": lambda attention: 50 * attention if hasattr(attention, "loc") else attention,
            "variants": lambda variants: variants | {"loops": lambda *x: [variants["loops"](*x) for _ in range(99)].pop()},
            "off": {"another way": 5e-7},
            "taken": lambda taken: taken if isinstance(taken, dict) else taken.max(axis=None) - taken,
            "parts": lambda parts: parts.assign(attention=parts["projections"], projections=parts["attention"]),
            "gains": lambda gains: 40 / gains,
            "most": 3.0,
            "shares": lambda shares: shares / 2,
            "longer": lambda longer: {kind: 9 * ratio for kind, ratio in longer.items()},
            "types": lambda types: types.assign(**{"tok/s": range(len(types), 0, -1), "of the limit": 3.0, "bytes read": 1e12}),
            "latents": lambda latents: latents.iloc[::-1] * 3 if hasattr(latents, "iloc") else latents,
            "curve": curve(QUICK),
            "roomy": 0.4,
            "projected": lambda projected: projected + 7.0,
            "fused": 1e9,
        },
        empty={"curve": lambda curve: curve[curve["share"] >= 1]},  # nothing is known of memory that is short
        until="say-memory",
        warns="above the limit of memory: float32",
        steady={
            "The claim is 10 to 20.": "the claim",
            "device = cpu: not measured; `kit reproduce --device cuda` adds tokens per second from blocks in device memory by "
            "context and KV cache, and their roofline": "no GPU in either run",
        },
    ),
    "00_start_here": Case(
        number={"gib": 0.125},
        opposite={
            "machine": lambda machine: replace(machine, read_gbps=64.0, f32_gflops=8.0),
            "exact": lambda exact: exact.assign(**{"as it should be": False, "largest error": 1.0}),
            "counts": (1, 2),
            "speeds": ("blas-500",),
        },
        empty={"formats": [], "speeds": ()},  # a file of formats that gguf-py does not know; no claim to ask
        steady=dict.fromkeys((
            "cpu, 2 cores, 16.00 GiB of memory (m).",
            "tiny-granite-Q4_K_M-2layers-seed0-r2.gguf: 20 tensors, generated weights of true shape; profile smoke: tiny "
            "geometry: all notebooks in about two minutes, under 2 GB.",
            "Tokens that are processed together share the bytes.",
            "- Read fewer bytes: at the limit, float32 weights take 6.4 times as long as the blocks.",
        ), "what the file and the machine are"),
    ),
    "02_cache_mystery": Case(
        number={"limit": 2 << 30},
        opposite={
            "log": lambda log: log.assign(elements=log["elements"] // 5000 + 1, dequantize_ms=100.0),
            "changed": cells.Reentrant(),
            "missing": lambda missing: [replace(e, body=b"tokens") for e in missing],
            "reported_speeds": (4, 5, 6),
            "stopped": lambda stopped: dict.fromkeys(stopped, "none: it counts"),
            "table": lambda table: table.assign(**{"of the limit": 2.0}),
            "record": lambda record: record | {"token-kept": (3.0, 2.0, 1.0), "preload-mib": 31},
        },
        empty={"log": lambda log: log.iloc[:0]},
        until="histogram",
        warns=" times as fast as its limit allows",
    ),
    "08_claims": Case(
        number={"wanted": "no record"},
        opposite={
            "entries": lambda entries: book.read(committed() / "quick"),
            "name": "strong-count",
            "folders": lambda folders: folders[:2],
            "everywhere": lambda everywhere: [path for path in everywhere if "zen" in str(path)],
            "gemma": lambda gemma: None,
            "since": lambda since: [*since, "cache-lookup-speedup"],
            "disagree": lambda disagree: [*disagree, "a tile: 302 ms in 05 and 471 ms in 06"],
            "warned": [("02", "the ways differ")],
            "counts": lambda counts: counts + 1,
        },
        empty={"folders": [], "everywhere": [], "gemma": None, "name": "strong-count"},  # no committed run; none of 02
        warns=" verdicts for ",
        steady=dict.fromkeys(re.split(r"(?<=\.) ", book.RULE), "the rule"),
    ),
    "05_tile_decode": Case(
        number={"text": "abba"},
        opposite={
            "text": "cccc",
            "weights": lambda weights: weights.cumsum(1),
            "together": 99,
            "bound": 1e6,
            "taken": lambda taken: {rung: [(n + 1) * 1e-2] * 3 for n, rung in enumerate(taken)},
        },
        warns="a tile, vector instructions: ",
        steady=dict.fromkeys((
            "device = cpu: not measured; `kit reproduce --device cuda` adds one thread as report 004 has it, and the rung "
            "`triton`: one tile alone, and 1,024 and more at a time",
        ), "times, and what the file and the machine are"),
    ),
    "06_compressed_inference": Case(
        number={"entries": 40},
        opposite={
            "entries": 150,
            "fast_tile": 0.0005,
            "packed": lambda packed: packed // 2,
            "decoder_gbps": 77.0,
            "live": lambda live: live.assign(**{"token, s": 1 / live["token, s"], "bytes hit": -5.0}),  # the slowest is fastest
        },
        warns="bytes hit: -500.0%",
        steady=dict.fromkeys((
            "- Make the decoder fast: without a cache, T for five tokens here.",
            "15 generated matrices: no quality to measure.",
            "By report 004's best figures five tokens take at least T, not T.",
            "Here a decoder alone takes T.",
            "An LRU hits 0% of a cycle of 155 layers.",
            "Before the fix every tensor kept its own copy, so 100% hit.",
            "`blk.1.attn_v.weight`: 1 tiles, 97.6% of its INT8 size.",
            "device = cpu: not measured; `kit reproduce --device cuda` adds tokens from tiles in device memory, and tiles "
            "against plain INT8 over the bus",
        ), "times, counts of the source's own stores, and what the file and the machine are"),
    ),
    "07_memory_frontier": Case(
        number={"held": 0.25},
        opposite={
            "costs": lambda costs: {kind: dearer(cost) for kind, cost in costs.items()},
            "order": lambda order: replace(order, programs={}),  # a token from blocks costs its uses
            "drive": disk.Disk(7.7, "made up"),
            "gbps": 0.037,
            "held": 0.9,
            "shares": (0.3, 0.6),
            "dtypes": ("float32", "bfloat16"),
            "room": 16 << 30,
            "mac": "apple-m1-max-64gb",
            "equal": lambda equal: equal.assign(**{"as it should be": False, "from float32, of its spread": 2.0}),
            "off": lambda off: off * 3,
            "beside": lambda beside: beside.assign(**{"tok/s": beside["tok/s"].to_numpy()[::-1]}),
            "points": lambda points: points[:1],
        },
        empty={  # neither a group nor a page that can be dropped; no other engine
            "alone": lambda alone: dict.fromkeys(alone, "no group"),
            "beside": lambda beside: beside[:0],
        },
        warns="ways give other logits",
        steady=dict.fromkeys((
            "20 generated tensors: no quality to measure.",
            "Skip this page if your model fits (this one does).",
            "How its map reads memory is not known: it is too small.",
            "No quantizations were named, so none are compared.",
            # the next ones: this file fits into any Mac, and a guess is the same for all of them
            "The blocks (799.2 KiB) fit.",
            "Once they are in memory, every way takes the same time: T per token.",
            "- Multiply by the blocks: T (measured) per token from 804.2 KiB, T (measured) from 5.00 MiB of float32.",
            *ROOMY,
            "The system may drop mapped pages, unless they are locked.",
            "Float32 (5.00 MiB) also fits: T per token.",
            "- Page faults of a mapped file read 0.73 GB/s (a guess: what page faults of a map brought on an M3 Max, where "
            "reading gave 6.4 (llama.cpp, issue 9244))",
            "- The system compresses memory at 4 GB/s (a guess: what the compressor takes in and gives back on all cores)",
            "- The cores dequantize to float32 at 20 GB/s (a guess: float32 that the cores write; no Mac has run the kit)",
            "device = cpu: not measured; `kit reproduce --device cuda` adds seconds per token by blocks held in device "
            "memory, the rest over the bus",
        ), "times, and what the file and the machine are"),
        sometimes=ROOMY,
    ),
    "09_your_model": Case(
        number={"limit": 2 << 20},
        opposite={
            "file": lambda file: kit.open(cached_model("tiny-qwen3moe", "Q8_0", folder=models_folder())),
            "limit": 1 << 30,  # everything fits
            "used": lambda used: 3 * used,
            "study": int8_wins,
            "advice": lambda advice: advice.assign(faster=3 * advice["faster"]),
            "points": 3,
        },
        empty={"policies": ()},
        until="explore",
        steady={
            "The order of weight accesses was recorded from a decode of 5 tokens.": "how it was measured, no outcome",
            "| program | tokens/s | of the limit | same next token as exact |": "heads of the table",
            "| --- | ---: | ---: | ---: |": "its rule",
            "int8 and int16 round activations (what weights are multiplied with) to 8 and 16 bits, and no weight.": "so",
        },
    ),
    "11_your_engine": Case(
        number={"share": 0.123},
        opposite={
            "nbytes": lambda nbytes: 3 * nbytes,
            "slow": lambda slow: server(0.3, 0.5, 1.5, 6, least=0.2),
            "tried": own_engine.Tried((0.2, 0.21, 0.22), (0.4, 0.5, 0.4)),
        },
    ),
    "12_drafts": Case(
        number={"share": 0.123},
        opposite={
            "cost": lambda cost: cost._replace(verify=(cost.plain, *(30 * each for each in cost.verify[1:])), draft=1e-9),
            "runs": lambda runs: {
                key: replace(run, accepted=1, refused=3, timed=[Timed(1, 4, 1, True, 4.0, 5.0)] * 3)
                for key, run in runs.items()
            },
            "risen": lambda risen: -risen - 1,
            "copied": [90.5] * 3,
            "head": lambda head: 2 * head,
        },
    ),
    "10_experts": Case(
        number={"parts": (0.1, 0.3)},
        small={"parts": (0.18, 0.54), "tokens_of": (1.5, 4)},
        opposite={
            "captures": lambda captures: {name: even(found) for name, found in captures.items()},
            "runs": lambda runs: [
                replace(runs[0], way=way, seconds=[n * 5.0] * 12, returned=0.1 * n)
                for n, way in enumerate(("mapped", "slots past it, LFU"), 1)
            ],
            "guessed": lambda guessed: {name: dict.fromkeys(right, 5.0) for name, right in guessed.items()},
            "seen": lambda each: replace(each, hits=7, misses=3),
        },
        warns="live slots hit other experts",
        steady={
            "**Experts: reading 1.0 times (uncertain), caching 1.0 times (uncertain).": "no way is apart"
        },
    ),
    "03_cache_variants": Case(
        number={"capacity": 0.5},
        opposite={
            "dense": lambda dense: mixture_of_experts(layers=2, experts=8, used=2, tokens=12, skew=2.0),
            "looks": ("output.weight", "blk.0.ffn_up.weight"),
            "theirs": (1.1, 2.2),
            "points": lambda points: points.assign(**{"of the limit": 2.0}),
            "bars": pd.Series({"nothing read ahead": 0.7}),
            "spared": lambda spared: {way: 9 * ratio for way, ratio in spared.items()},
            "turned": lambda turned: 1 - turned if hasattr(turned, "loc") else turned,
            "windows": lambda windows: -windows - 1 if hasattr(windows, "loc") else windows,
            "costs": lambda costs: 1 / costs if hasattr(costs, "loc") else costs,
            "by_round": lambda by_round: 7 * by_round,  # two runs of tiny models may be as fast
            "taken": lambda taken: replace(
                taken, seconds={way: np.multiply(each, 7 if "miss" in way else 1) for way, each in taken.seconds.items()}
            ),
        },
        warns=" times as fast as its limit allows",
        steady={
            "device = cpu: not measured; `kit reproduce --device cuda` adds the policies over blocks in device memory, pinned "
            "host memory behind it, with prefetch": "no GPU in either run",
        },
    ),
}  # fmt: skip
NAMES = pytest.mark.parametrize("name", CASES)
# Of more than five seconds of CPU time: at each run of the notebook, and at its first.
LONG = (
    "00_start_here", "01_first_token", "02_cache_mystery", "03_cache_variants", "04_attention", "05_tile_decode",
    "06_compressed_inference", "07_memory_frontier", "10_experts", "12_drafts",
)  # fmt: skip
LONGEST = "05_tile_decode", "06_compressed_inference", "10_experts"
FIRST = pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONGEST)) for name in CASES])
AGAIN = pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in CASES])
HTML = "<IPython.core.display.HTML object>"  # a table behind a fold, which is no sentence
DENIED = "This run does not confirm: "
SYSTEM = "Not measured here: "  # what a system does not do is said whatever the data says
TIME = re.compile(r"[\d.,]+ (ns|us|ms|s)\b")  # differ from run to run anyway


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.machine.of_run", lambda folder: MACHINE)
    monkeypatch.setattr(
        "kit.lab.explaining.peers.of_run", lambda lab, path, names=(): ENGINES
    )  # each a process: tests/test_peers.py
    monkeypatch.setattr("kit.lab.explaining.peers.readings", lambda *_, **__: {})
    monkeypatch.setattr("kit.lab.findings.pressed.measure", lambda path, *how: FROM_DISK.get(path) or measured_once(path, *how))
    monkeypatch.setattr(dequantizers, "measure", lambda path: dequantized())
    monkeypatch.setattr(own_engine, "explain", lambda *_: server())  # a real one: tests/test_server_causes.py
    monkeypatch.setattr(own_engine, "in_turn", lambda *_: own_engine.Tried((0.1, 0.11, 0.1), (0.04, 0.05, 0.04)))
    monkeypatch.setattr(pressure, "of_run", lambda lab, shares=(), swap=False: curve())
    monkeypatch.setattr(together, "points", lambda *_: POINTS)  # tests/test_engines.py
    monkeypatch.setattr(together, "rates", lambda *_: {"float32": 2e11, "int16": 3e11, "int8": 9e11})


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """name -> the notebook as it stands, run once in the smoke profile."""

    @cache
    def once(name):
        folder = tmp_path_factory.mktemp(name)
        found = cells.run(name, out=folder, replace=CASES[name].small)
        found.warned = [text for _, text in gates.warnings(records.read([folder / f"{name}.jsonl"]))]
        return found

    return once


def sentences(told: dict) -> set[tuple[str, str]]:
    """(cell id and place, sentence) of everything that is told, without times."""
    pieces = {place: re.split(r"(?<=[.!?])\**\s+|\n+", TIME.sub("T", text)) for place, text in told.items()}
    return {
        (place, piece)
        for place, parts in pieces.items()
        for piece in parts
        if piece.strip("*-. ") not in ("", "Answer", HTML) and not piece.startswith(SYSTEM)
    }


@AGAIN
def test_words_follow_the_data(name, ran, tmp_path):
    """Every sentence and title is another one on opposite data, or on none: a word that stays is older than its data."""
    case, stays = CASES[name], sentences(ran(name).told)
    turned = case.small | case.number | case.opposite  # a reader's number runs through every cell, too
    opposite = sentences(cells.run(name, out=tmp_path / "opposite", replace=turned).told)
    told = {text.replace(DENIED, "") for _, text in stays | opposite}
    stays &= opposite
    if case.empty:
        empty = cells.run(name, case.until, out=tmp_path / "empty", replace=case.small | case.empty)
        stays -= {(place, text) for place, text in stays if place.partition(":")[0] in empty.words} - sentences(empty.told)
        assert not [text for text in empty.told.values() if re.search(r"\bnan\b", text)]
    # what is guessed of a Mac is the same for every file
    stays = {(place, text) for place, text in stays if GUESS not in text and text not in case.steady}
    if stays:  # a measured number of two digits is the same in two runs now and then, not in three
        stays &= sentences(cells.run(name, out=tmp_path / "again", replace=turned).told)
    assert not stays
    assert {text for text in case.steady if GUESS not in text} - told <= {*case.sometimes}, "no page says these any more"
    warned = "; ".join(text for _, text in gates.warnings(records.read([tmp_path / "opposite" / f"{name}.jsonl"])))
    assert case.warns in warned and not (case.warns and case.warns in "; ".join(ran(name).warned))


@FIRST
def test_titles_and_bold_sentences_hold_a_value_of_the_run(name, ran):
    assert cells.static_sentences(name) == []
    assert cells.unfilled(ran(name)) == []


@AGAIN
def test_a_reader_changes_a_number_and_reads_another_sentence(name, ran, tmp_path):
    """Up to the first one that only this run has: what comes after it runs on that number in the test above."""
    before, changes = sentences(ran(name).told), CASES[name].small | CASES[name].number
    changed = cells.run(name, lambda ran: sentences(ran.told) - before, changes, out=tmp_path)
    assert sentences(changed.told) - before


@pytest.fixture
def crowded(monkeypatch):
    """Others use 1.3 cores, as a page finds when it begins."""
    warning = state.Disturbed("others")
    warning.others = 1.3
    monkeypatch.setattr(state, "settle", lambda patience: warning)


def test_a_page_on_a_busy_machine_has_no_limit_no_share_and_no_advice(tmp_path, crowded):
    """Page 09 had its limit and shares above the warning that they are no comparison: it asked another busy than its table."""
    told = cells.run("09_your_model", out=tmp_path, replace=CASES["09_your_model"].small).words
    assert told["answer"].startswith("**Busy: ") and "1.3 cores" in told["answer"]
    assert "limit" not in told["the-table"] and told["to-do"].startswith("- Busy machine: ")


NUMBER = re.compile(r"(?<![\w.,])(?<!report )\d[\d,.]*")  # not float32's, nor a report's


def test_a_change_that_may_be_as_fast_is_no_advice(monkeypatch):
    """Where the interval holds 1 it said how many times as fast, and to take it."""
    said = []
    lab = SimpleNamespace(say=said.append, profile=SimpleNamespace(samples=3), advise=lambda *lines: said.append(lines[0]))
    slow = SimpleNamespace(change="-t 2", kind="llama-server", seconds=0.1, least=0.01)
    held = {"np": np, "minutes": minutes, "own_engine": own_engine, "lab": lab, "slow": slow}
    held |= {
        "server": "",
        "before": "",
        "path": "",
        "format_seconds": str,
        "seen": SimpleNamespace(cores=2, workers=2),
        "surplus": 0,
    }
    monkeypatch.setattr(own_engine, "changed", lambda *_: "")
    for tried, words in (((0.1, 0.1, 0.12), "as fast as before (0."), ((0.01, 0.011, 0.012), "as fast as before (")):
        monkeypatch.setattr(own_engine, "in_turn", lambda *_, after=tried: own_engine.Tried((0.1, 0.11, 0.1), after))
        for part in ("change", "advice"):
            exec(next(cell.source for cell in cells.read("11_your_engine").cells if cell.id == part), held)
        assert words in said[-2] and said[-1][0] == (tried[0] < 0.1) == (" times as fast as before" in said[-2])


@FIRST
def test_an_answer_is_short(name, ran):
    """The result in bold, which is the page's title; then at most 40 words and six numbers."""
    if name == "09_your_model":
        return  # a table
    title, _, text = ran(name).words["answer"].removeprefix("**").partition("**")
    assert title and len(title.split()) <= 14
    assert len(text.split()) <= 40 and len(NUMBER.findall(text)) <= 6, text


def test_the_first_page_names_every_page_and_those_that_predict():
    """It said that all predict; 01, 02, 05 and 06 say the least that can be."""
    first = {cell.id: cell.source for cell in cells.read("00_start_here").cells}
    named = set(re.findall(r"Pages ([\d, and]+) also \*predict\*", first["question"])[0].replace(" and ", ", ").split(", "))
    told = {name: "\n".join(c.source for c in cells.read(name).cells if c.cell_type == "markdown") for name in CASES}
    predict = {name[:2] for name, text in told.items() if re.search(r"\b[Pp]redict(s|ed|ions?)?\b", text)}
    meanwhile = {name[:2] for name, text in told.items() if "they are no forecast" in text}
    assert named == predict - {"00"} - meanwhile and meanwhile == {"10"}, "its disk is that of the minute that it predicts"
    assert {*re.findall(r"^\| \[(\w+)\]\(\1\.ipynb\) \|", first["claims-text"], re.M)} == {*CASES} - {"00_start_here"}


@NAMES
def test_a_page_opens_the_code_of_mechanisms_alone(name):
    """Cells tagged ``mechanism``, which a page shows open: one idea in at most 12 lines. A page folds every other cell."""
    shown = [cell.source for cell in cells.read(name).cells if "mechanism" in cell.metadata.get("tags", [])]
    assert all(len(source.splitlines()) <= 12 for source in shown)
    assert shown or name in ("08_claims", "09_your_model"), "these two show results of other pages' mechanisms"


def names_of(source: str) -> tuple[set[str], set[str]]:
    """(what a cell assigns or imports at its top level, what it reads of these or of another cell's, in functions too)."""
    top = symtable.symtable(source, "cell", "exec")
    assigned = {name.get_name() for name in top.get_symbols() if name.is_assigned() or name.is_imported()}
    tables, read = [top], set()
    for table in tables:  # grows
        tables += table.get_children()
        read |= {n.get_name() for n in table.get_symbols() if n.is_referenced() and (table is top or n.is_global())}
    return assigned, read


def rebound(sources: dict[str, str], parameters: str = "") -> list[str]:
    """Names that one cell reads of another, while two cells assign them: which one it gets depends on what ran last.
    ``parameters``: the cell whose names another may complete."""
    made = {cell: names_of(source) for cell, source in sources.items()}
    told = []
    for name in sorted({name for assigned, _ in made.values() for name in assigned}):
        makers = [cell for cell, (assigned, _) in made.items() if name in assigned and cell != parameters]
        readers = [cell for cell, (assigned, read) in made.items() if name in read and name not in assigned]
        told += [f"{name}: of {', '.join(makers)}; read in {', '.join(readers)}"] if len(makers) > 1 and readers else []
    return told


@NAMES
def test_a_name_that_another_cell_reads_is_of_one_cell(name):
    """In page 02 a later cell called its own sentence ``told``, which the summary reads of an earlier one."""
    code = {cell.id: cell.source for cell in cells.read(name).cells if cell.cell_type == "code"}
    assert rebound(code, "parameters") == []


def test_a_rebound_name_is_seen():
    pages = {"a": "told = 1", "b": "for told in (2,):\n    pass", "c": "def say():\n    return told\n"}
    assert rebound(pages) == ["told: of a, b; read in c"] and rebound(pages, "a") == []
    assert rebound(pages | {"b": "[told for told in (2,)]"}) == rebound(pages | {"c": "told = 3\nprint(told)"}) == []


SHOWN = ("lab.say", "lab.answer", "lab.advise", "lab.verdicts", "shown", "tables.shown", "folded", "evidence.beside")
RETURNED = ("lab.gate", "lab.verdict", "lab.record", "lab.judge")  # what these return is no output


@NAMES
def test_a_cell_shows_what_it_says_and_nothing_else(name):
    """A sentence above a cell's last line is made and shown to nobody; a gate on the last line shows "True"."""
    for cell in (cell for cell in cells.read(name).cells if cell.cell_type == "code"):
        calls = [ast.unparse(line.value.func) if isinstance(getattr(line, "value", None), ast.Call) else ""
                 for line in ast.parse(cell.source).body]  # fmt: skip
        assert not {*calls[:-1]} & {*SHOWN}, cell.id
        assert calls[-1] not in RETURNED or cell.source.removesuffix("  # fmt: skip").endswith(";"), cell.id


READS = {  # notebook, up to this cell, reads a record of another: quantity -> where it stands then
    ("03_cache_variants", "live-table", "02_cache_mystery"): {
        "tokens a second, all float32 kept": lambda ran: ran["points"].loc["all kept", "tok/s"]
    }
}


@pytest.mark.parametrize("name, until, earlier", READS)
def test_a_quantity_that_an_earlier_notebook_measured_is_read_from_it(name, until, earlier, ran, tmp_path):
    """One quantity is measured once a run: the later page shows the earlier one's samples, even unlikely ones."""
    rows = records.read([ran(earlier)["lab"].out / f"{earlier}.jsonl"])
    given = {row.quantity: replace(row, samples=[1234.5], median=None) for row in rows}
    for quantity in READS[name, until, earlier]:
        records.append(tmp_path / f"{earlier}.jsonl", given[quantity])
    later = cells.run(name, until, out=tmp_path)
    assert {where(later) for where in READS[name, until, earlier].values()} == {1234.5}
    assert not {row.quantity for row in records.read([tmp_path / f"{name}.jsonl"])} & {*READS[name, until, earlier]}


def test_a_way_that_page_07_measured_is_read_from_the_store_of_the_run(ran, tmp_path):
    """Even unlikely samples, and page 09 measures none of these ways again."""
    store, taken = measurements.of_run(tmp_path), (BLOCKS, BLOCK_WAYS[-1])
    for row in measurements.of_run(ran("07_memory_frontier")["lab"].out):
        store.add(replace(row, samples=(1234.5,)))
    later = cells.run("09_your_model", "measure", out=tmp_path)
    assert {later["study"].measured[way].samples for way in taken} == {(1234.5,)}
    ways = {by: {row.way for row in store if row.by == by} for by in ("07_memory_frontier", "09_your_model")}
    assert not set.intersection(*ways.values()) and {*taken} <= {*later["taken"]}


# --- the harness itself ---------------------------------------------------------------------------------------------------


@pytest.fixture
def notebook(tmp_path):
    """A notebook with a title and a sentence that ignore its data, and one of each that do not."""
    from nbformat import v4, write

    codes = [
        'profile: str = "quick"\nout: str = ""',
        "values = [3, 1]\nwith open(__import__('os').devnull) as nothing:\n    least = min(values)\nleast",
        "import matplotlib.pyplot as plt\nfigure, (one, two) = plt.subplots(1, 2)\none.set_title('It falls')\n"
        "two.set_title(f'{least} at least')\nprint('It falls.', profile)",
    ]
    made = [v4.new_code_cell(code, id=f"c{number}", metadata={"tags": [tag]} if (tag := ["parameters", "", ""][number]) else {})
            for number, code in enumerate(codes)]  # fmt: skip
    path = tmp_path / "small.ipynb"
    write(v4.new_notebook(cells=[v4.new_markdown_cell("**Question.** What? **It falls.**", id="m"), *made]), path)
    return path


def test_the_harness_replaces_where_a_cell_assigns(notebook):
    assert cells.run(notebook, "c1").shown["c1"] == 1
    ran = cells.run(notebook, replace={"values": lambda values: [*values, 0]}, out="there")
    assert ran["least"] == 0 and ran["out"] == "there" and ran.words["c2"] == "It falls. smoke"
    assert cells.run(notebook, replace={"least": 7}).titles["c2"] == ["It falls", "7 at least"]
    assert "figure" not in cells.run(notebook, 2)


def test_the_harness_finds_words_without_values(notebook):
    assert cells.unfilled(cells.run(notebook)) == ["c2: It falls"]
    assert cells.static_sentences(notebook) == ["m: It falls", "c2: It falls"]


@pytest.mark.parametrize("wrong", [{"until": "nowhere"}, {"replace": {"nobody": 1}}, {"unknown": 1}])
def test_the_harness_refuses_what_does_not_occur(notebook, wrong):
    with pytest.raises(KeyError):
        cells.run(notebook, **wrong)
