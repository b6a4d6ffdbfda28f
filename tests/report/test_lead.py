"""What the front page opens with: one value a bar, its command, no comparison of a busy machine, no bound that is beaten."""

import json
import math
import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

import kit
from kit.lab.claims import gates, records
from kit.lab.claims.records import Record
from kit.lab.commands.cli import main
from kit.lab.engines.table import BUSY_TOLD
from kit.lab.measuring import measurements
from kit.lab.measuring.minutes import compared
from kit.lab.measuring.state import BUSY
from kit.lab.report import html, index, lead
from kit.lab.report import run as runs
from kit.lab.report.checklist import command_line
from kit.lab.synthetic.write import cached_model
from kit.system import usable_cores
from kit.units import format_seconds

ENGINES = {
    "kit": {"speed": 10.0, "samples": [9.0, 10.0, 11.0], "kl": 1e-9, "kl_error": 1e-10},
    "kit, int8 activations": {"speed": 20.0, "samples": [19.0, 20.0, 22.0], "kl": 0.0321, "kl_error": 0.002},
    "llama.cpp, mmap": {"speed": 25.0, "samples": [24.0, 25.0, 26.0], "kl": 0.05, "kl_error": 0.06},
    "another": {"speed": float("nan")},
}


COMMANDS = re.compile(r"<code>(kit [^<]*)</code>|`(kit [^`<]*)`")


def row_of(quantity, seconds, notebook="07_memory_frontier", **more):
    return Record(quantity=quantity, unit="s", samples=[seconds], notebook=notebook, **more)


def leads_of(folder, rows=(), model="", engines=None, **peers):
    """What the front page of a run with these records and engines opens with."""
    if engines:
        told = {"file": "my.gguf", "by": "07_memory_frontier", "engines": engines} | peers
        (folder / "peers.json").write_text(json.dumps(told))
    return lead.leads(runs.Run(folder, runs.Request(model=model), "m", "0", "c", "now"), [*rows])


def test_the_front_page_opens_with_llama_cpp_the_best_way_and_the_bound(tmp_path):
    """Each with one value, its spread and its command; the sentence takes the values of the bars."""
    assert not leads_of(tmp_path, [row_of("a token, LRU of 1.86 GiB, float32", 0.9)])
    way = row_of("a token, blocks as they lie", 0.06, lower=0.03)
    [own] = leads_of(tmp_path, [way])  # without llama.cpp
    assert [(bar.kind, bar.seconds) for bar in own.bars] == [("own", 0.06), ("bound", 0.03)] and own.times is None
    [found] = leads_of(tmp_path, [way], "/models of x/my.gguf", ENGINES)
    assert [(bar.kind, bar.seconds) for bar in found.bars] == [("own", 0.05), ("peer", 0.04), ("bound", 0.03)]
    assert found.file == "my.gguf" and found.times == pytest.approx(0.8) and found.best.spread and not found.bound.spread
    assert found.best.told == "KL to float32 0.032 ± 0.002 nats per token"
    assert found.peer.told == "KL to float32 less than 0.2 nats per token", "no value whose error rivals it"
    assert found.best.command == "kit generate '/models of x/my.gguf' -p 'The capital of France is' --linear fused-int8"
    records.append(tmp_path / "07_memory_frontier.jsonl", way)
    run = runs.Run(tmp_path, runs.Request(model="/models of x/my.gguf"), "m", "0", "c", "now", planned=["07_memory_frontier"])
    text = index.write(run).read_text().replace("&#39;", "'")
    assert all(told in text for told in (found.title, found.best.command, found.compared))
    assert "weights are generated" not in text and "Busy" not in text
    [section] = re.findall(r'<section class="decision".*?</section>', text, re.DOTALL)
    told = [bar.spread for bar in found.bars if bar.spread] + [found.title]
    values = {f"{1e3 * seconds:.1f} ms" for bar in found.bars for seconds in (bar.seconds, *bar.samples)}
    assert {*re.findall(r"[\d.]+ ms", section)} <= values and all(each in section for each in told)


@pytest.mark.parametrize("how", ["others", "records"])
def test_a_busy_machine_gives_no_comparison(tmp_path, how):
    """llama.cpp's threads spin: on a busy machine the kit was "22.15 times as fast"."""
    engines = {name: row | ({"others": 1.9} if how == "others" else {}) for name, row in ENGINES.items()}
    state = {} if how == "others" else {"busy": "other processes use 2.0 cores"}
    way = row_of("a token, blocks as they lie", 0.06, state=state)
    [found] = leads_of(tmp_path, [way], "my.gguf", engines)
    assert found.times is None and found.busy.startswith(BUSY_TOLD) and "llama.cpp" not in found.title
    records.append(tmp_path / "07_memory_frontier.jsonl", way)
    run = runs.Run(tmp_path, runs.Request(model="my.gguf"), "m", "0", "c", "now", planned=["07_memory_frontier"])
    text = index.write(run).read_text()
    assert BUSY_TOLD in text.lower() and not found.compared
    assert ("so no speed on them is a comparison: 07_memory_frontier" in text) == (how == "records")


def test_a_bound_that_a_way_beats_is_a_warning(tmp_path):
    way = row_of("a token, blocks as they lie", 0.06, lower=0.045)
    [found] = leads_of(tmp_path, [way], "my.gguf", ENGINES)
    assert f"{found.peer.name}: {format_seconds(min(found.peer.samples))}" in found.beaten
    records.append(tmp_path / "07_memory_frontier.jsonl", way)
    run = runs.Run(tmp_path, runs.Request(model="my.gguf"), "m", "0", "c", "now", planned=["07_memory_frontier"])
    assert found.beaten in index.write(run).read_text()
    assert not leads_of(tmp_path, [row_of("a token, blocks as they lie", 0.06, lower=0.03)], "my.gguf", ENGINES)[0].beaten


def test_a_mixture_that_memory_does_not_hold_has_bars_of_its_own(tmp_path):
    ways = {"mapped": 0.8, "slots past it, 2 readers": 0.09, "llama.cpp, mapped": 2.1}
    given = {"mixture": "m.gguf", "limit": "under a limit of 1.16 GiB"}
    rows = [row_of(f"a token, {way}", took, "10_experts", lower=0.05, parameters=given) for way, took in ways.items()]
    rows[1] = replace(rows[1], samples=[0.08, 0.1])  # 59.1 ms here and 57.4 ms on the page, of six tokens
    [found] = leads_of(tmp_path, rows)
    assert [(bar.kind, bar.seconds) for bar in found.bars] == [("peer", 2.1), ("own", 0.09), ("bound", 0.05)]
    assert {bar.command.partition(" --")[0] for bar in found.bars} == {"kit reproduce"}
    assert found.file == "m.gguf, under a limit of 1.16 GiB" and found.title.startswith(found.file)
    assert found.times == pytest.approx(2.1 / 0.09) and "random weights (1 token" in found.compared


@pytest.mark.parametrize("model, shown", [("", True), ("/models/m.gguf", True), ("qwen2.5-coder-1.5b", False)])
def test_the_front_page_of_a_model_has_no_bars_of_a_mixture_that_page_10_generated(tmp_path, model, shown):
    """ "35.1 times as fast" was of eight layers of random weights, which nobody had introduced, and said "on this file"."""
    run = runs.Run(tmp_path, runs.Request(model=model), "m", "0", "c", "now", planned=["10_experts"])
    ways = {"slots past it, 2 readers": 0.09, "llama.cpp, mapped": 2.1}
    rows = [row_of(f"a token, {way}", took, "10_experts", parameters={"mixture": "m.gguf"}) for way, took in ways.items()]
    [found] = lead.leads(run, rows)
    assert found.generated == (model != "/models/m.gguf")
    for row in rows:
        records.append(tmp_path / "10_experts.jsonl", row)
    assert ("<h2>m.gguf: 90.0 ms per token with kit" in index.write(run).read_text()) == shown


def test_what_a_page_tells_of_two_pages_is_one_warning(tmp_path):
    """The front page had it in two boxes: page 08's gate, and its own."""
    deep = row_of("a token, x, after 64 positions", 0.0228, "04_attention", parameters={"model": "m"})
    rows = [deep, row_of("a token, x", 0.0299, parameters={"model": "m"})]
    [(told, _)] = gates.across(rows)
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now", planned=["08_claims"])
    assert index.wrong(run, rows) == [("", "", told)]
    gate = Record(quantity="gate", unit="", notebook="08_claims", status=records.WARNED, reason=f"two pages: {told}")
    records.append(tmp_path / "08_claims.jsonl", gate)
    assert [text for *_, text in index.wrong(run, [*rows, gate])] == [gate.reason]


def test_every_command_of_the_front_page_runs_as_printed(tmp_path):
    """The path was dropped from `kit generate`, and it ended with 2."""
    model = cached_model("tiny-llama", folder=tmp_path / "a folder")
    way = row_of("a token, blocks as they lie", 0.06, lower=0.03)
    for run_on in (str(model), ""):
        commands = [bar.command for bar in leads_of(tmp_path, [way], run_on, ENGINES)[0].bars]
        run = runs.Run(tmp_path, runs.Request(model=run_on, only=("00",), texts=("seed=1",)), "m", "0", "c", "now")
        for command in {*filter(None, commands), command_line(run)}:
            name, *words = shlex.split(command)
            if name == "kit":
                few = {"generate": ["-n", "1"], "explain": ["--help"], "reproduce": ["--list"]}[words[0]]
                result = CliRunner().invoke(main, [*words, *few])
                assert result.exit_code == 0, (command, result.output)


def test_other_pages_and_engines_that_did_not_run_are_no_bars(tmp_path):
    way, other = (row_of("a token, blocks as they lie", took, of, lower=took / 2) for took, of in (
        (0.06, "09_your_model"), (0.01, "03_cache_variants")))  # fmt: skip
    [own] = leads_of(tmp_path, [other, way])
    assert [bar.seconds for bar in own.bars] == [0.06, 0.03] and own.notebook == "09_your_model"
    [found] = leads_of(tmp_path, [other, way], "m", ENGINES | {"kit": {"speed": 0.0}})
    assert [bar.seconds for bar in found.bars] == [0.05, 0.04, 0.03] and found.notebook == "07_memory_frontier"
    [slow] = leads_of(tmp_path, [way], "m", ENGINES | {"llama.cpp, mmap": {"speed": 0.5}})
    assert slow.peer.samples == (2.0,) and slow.share(slow.peer) == 1 and slow.share(slow.best) == 0.05 / 2


def of_samples(own, peer, notebook="07_memory_frontier", bound=lead.LIMIT, least=0.05, **more):
    """A Lead of a way of kit, of llama.cpp and of a limit, with these samples."""
    bars = [("kit", "own", own), ("llama.cpp", "peer", peer), (bound, "bound", (least,))]
    return lead.Lead("m.gguf", tuple(lead.Bar(name, "", kind, samples, "") for name, kind, samples in bars), notebook, **more)


def test_ways_that_ran_in_turn_are_compared_by_rounds_and_others_by_their_medians():
    assert of_samples((0.1, 0.1), (0.2, 0.2)).compared == compared([2.0, 2.0], "llama.cpp")
    for own, peer in (((0.1,), (0.2,)), ((0.1, 0.1, 0.1), (0.2, 0.2))):
        assert of_samples(own, peer).compared == "2 times as fast as llama.cpp"
    said = [of_samples((0.1, 0.1), peer, lead.EXPERTS, generated=made).compared
            for peer, made in (((0.2, 0.2), False), ((0.2,), True))]  # fmt: skip
    assert "on this file (2 tokens of llama.cpp" in said[0] and "random weights (1 token of llama.cpp" in said[1]
    assert [of_samples(own, (0.2,)).best.spread for own in ((0.1,), (0.1, 0.3))] == ["", "100 ms to 300 ms in 2 samples"]


def test_of_the_same_minutes_medians_are_held_against_the_limit_and_what_is_said_is_what_was_compared():
    once_faster = {"own": (0.04, 0.06, 0.07), "peer": (0.2,)}
    assert of_samples(**once_faster).beaten.startswith("kit: 40.0 ms per token beats the limit of 50.0 ms")
    assert not of_samples(**once_faster, bound=lead.MINUTES).beaten
    faster = of_samples((0.03, 0.04, 0.06), (0.2,), bound=lead.MINUTES)
    assert faster.beaten.startswith("kit: 40.0 ms per token beats the limit"), "it said 30.0 ms, which is no contradiction"


def test_only_seconds_of_a_token_that_ran_are_ways_of_a_mixture(tmp_path):
    way = row_of("a token, slots past it, 2 readers", 0.09, lead.EXPERTS)
    others = [replace(way, samples=[0.01], **change) for change in ({"quantity": "a prompt, slots"}, {"unit": "tok/s"},
              {"status": "failed", "reason": "it ended"})]  # fmt: skip
    assert [bar.seconds for bar in leads_of(tmp_path, [*others, way])[0].bars] == [0.09]
    assert not leads_of(tmp_path, others)
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now")
    assert lead.generate(run) == command_line(run, "07_memory_frontier") != command_line(run, "09_your_model")


def test_what_an_engine_lost_and_took_and_who_was_busy_by_its_row():
    ran = lambda **rows: measurements.engines({"engines": {name: {"speed": 4.0} | row for name, row in rows.items()}})  # noqa: E731
    quality = lambda model="m", **row: lead._quality(ran(kit=row), "kit", model)  # noqa: E731
    assert quality("", kl=0.1, kl_error=0.01) == "" and quality(kl=0.1, kl_error=0.01).endswith(" 0.1 ± 0.01 nats per token")
    assert quality() == quality(kl=math.nan, kl_error=0.1) == "quality not measured in this run"
    assert quality(kl=0.1) == quality(kl=0.1, kl_error=math.nan) == "KL to float32 without its error"
    assert ran(kit={})["kit"].samples == ran(kit={"samples": []})["kit"].samples == (0.25,)
    assert ran(kit={"samples": [2.0, 5.0]})["kit"].samples == (0.5, 0.2) and not ran(kit={"speed": math.nan})
    rows = ran(kit={"others": BUSY}, peer={"others": None})
    assert lead._busy(rows, []) == "" and "used 1.2 cores" in lead._busy(rows | ran(third={"others": 1.2}), [])


@pytest.mark.parametrize(("changed", "known"), [
    ({}, True), ({"gbps": []}, False), ({"gbps": math.nan}, False), ({"gbps": [10.0]}, False), ({"samples": [1.0]}, False),
])  # fmt: skip
def test_the_limit_of_minutes_needs_a_speed_of_memory_in_each_round(changed, known):
    row = {"speed": 2.0, "samples": [2.0, 2.5], "gbps": [10.0, 11.0]} | changed
    assert (lead.in_turn({"bytes": 4e8, "engines": {"kit": row}}) is not None) == known
    assert lead.in_turn({"engines": {"kit": row}}) is None and lead.in_turn({}) is None


def test_the_limit_is_that_of_the_minutes_in_which_the_engines_ran(tmp_path):
    """A bound of another day, 30 ms, stood over ways of a minute in which memory gave half of that speed."""
    engines = {name: row | {"gbps": [10.0, 11.0, 10.5]} for name, row in ENGINES.items() if row["speed"] == row["speed"]}
    engines["kit, int8 activations"]["samples"] = [24.5, 24.0, 26.5]
    [found] = leads_of(tmp_path, [row_of("a token, blocks as they lie", 0.06, lower=0.003)], "m", engines, bytes=4e8)
    assert found.bound.name == lead.MINUTES and found.bound.seconds == pytest.approx(4e8 / 10.6e9)
    assert found.compared.startswith("as fast as llama.cpp (") and not found.beaten
    engines["kit"]["samples"] = [9.0, 10.0, 100.0]
    [faster] = leads_of(tmp_path, [], "m", engines, bytes=4e8)
    assert lead.in_turn({"bytes": 4e8, "engines": engines}).gbps[2] == pytest.approx(40.0), (
        "a way that reads faster is the limit"
    )
    assert faster.bound


@pytest.fixture
def burner(measured_load):
    """A function that starts a process on each core."""
    with ExitStack() as stack:

        def start():
            for _ in range(usable_cores()):
                one = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                stack.callback(one.kill)  # before it is waited for
            time.sleep(0.3)

        yield start


def test_a_burner_next_to_a_run_stamps_its_records_its_page_and_the_index(tmp_path, invented_machine, burner):
    lab = kit.Session("07_memory_frontier", "smoke", out=str(tmp_path))
    lab.busy = ""  # the burner comes when the notebook has begun
    burner()
    row = lab.record(quantity="a token, blocks as they lie", unit="s", samples=[0.06], lower=0.03)
    assert "other processes use" in row.state["busy"]
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now", planned=["07_memory_frontier"])
    page, front = html.write(run, "07_memory_frontier").read_text(), index.write(run).read_text()
    assert "Busy machine:" in page and "Busy, not a comparison" in front and "Busy machine." in front


def test_every_command_on_a_page_is_one_that_the_kit_takes(finished):
    """Parsed as printed, with the folder and the options that it names; `--out` had lost the folder's path."""
    told = set()
    for page in finished.glob("*.html"):
        text = page.read_text()
        told |= {unescape(each) for pair in COMMANDS.findall(text) for each in pair}
    told = {command for command in told if len(shlex.split(command)) > 2}  # of two words: a sentence names the command
    for command in told:
        name, *words = shlex.split(command)[1:]
        assert main.get_command(None, name).make_context(name, words), command
        assert "--out" not in words or Path(words[words.index("--out") + 1]) == finished, command
    assert len(told) > 3
