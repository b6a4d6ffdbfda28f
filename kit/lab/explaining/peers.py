"""The engines next to each other on one file: the same tokens, in turn, and what each loses to float32."""

import json
import math
import os
import tempfile
import time
import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

import kit
from kit.errors import KitError, KitWarning
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.engines.processes import ENGINES, Process
from kit.lab.engines.table import BUSY_TOLD, COMPARED, EXACT, OURS, PEER, ROUNDED
from kit.lab.explaining import together
from kit.lab.measuring import measurements, minutes, state
from kit.lab.measuring.conditions import build
from kit.lab.measuring.kept import once_a_run
from kit.lab.measuring.machine import library_version, machine_id
from kit.lab.measuring.measurements import Reading
from kit.lab.measuring.minutes import PAGES
from kit.lab.measuring.pages import views
from kit.lab.predicting import quality
from kit.lab.predicting.divergence import tokens_for
from kit.lab.predicting.losses import format_kl
from kit.lab.progress import lines, steps
from kit.model.tokenizer import tokenizer_of
from kit.system.files import write_whole
from kit.units import format_bytes, format_rate, format_seconds

_COLUMNS = (
    "imports|load|first|prefill|speed|tokens|samples|gbps|others|resident|beyond imports|mapped|agree|kl|kl_error|same|"
    "together|reason"
).split("|")
_PROMPT = "A large language model that runs on a small computer answers slowly, because"
_ROUNDS = 5  # of all engines in turn
TOKENS = "tokens"  # of each sample, as a row of readings has it
_READ = 4e11  # bytes that all tokens of a run's comparison read, give or take: seconds, not minutes
_PRECISION = {row.name: row.precision for row in ROUNDED}
_SEE = "see "  # the reason of a way of an engine that has its own
_EXACT_POSITIONS = 128  # scored of the exact engine, which is exact at each
TIMES, KL, SAME = "of llama.cpp", "KL to float32, nats", "same token"
FORMATS = {  # of the table of a run
    "load": format_seconds, "first": format_seconds, TIMES: "{:.2f}", SAME: "{:.1%}", "resident": format_bytes,
}  # fmt: skip


def installed() -> list[str]:
    """The names in ENGINES that can run here."""
    return [name for name, engine in ENGINES.items() if not engine.missing()]


@once_a_run
def compare(
    path: Path, engines, prompt, tokens=32, rounds=5, progress=False, text=0, environment=None, share=math.inf, also=(),
    precisions=(),
) -> pd.DataFrame:  # fmt: skip
    """One row an engine (names of ENGINES): the same greedy tokens from the same file, ``rounds`` times in turn; a round that
    other processes disturbed is taken again, as many times at most.

    Only one process runs at a time, the others are stopped. ``prompt``: token ids. Columns:
    imports, load, first: seconds until the engine's libraries are imported, then until the file is open, then until the first
    token, in a new process with the file in the page cache. prefill: tokens of the prompt per second, the median. speed: tokens
    per second after it, the median of ``samples``, each of so many ``tokens``. others: cores that other processes used
    meanwhile; a row with more than state.BUSY is not compared. gbps: how fast the file's pages were read in the same rounds
    (measuring.minutes), [] where that is not known. resident: bytes of the process at the end; mapped: those of them that are
    the file's; beyond imports: those that came after the imports. agree: leading tokens that are the first engine's. kl,
    kl_error, same: of predicting.quality, by ``text`` tokens (0: none), computed with those of ``precisions``. together: number
    of tokens -> seconds per token of each pass over so many (explaining.together), for each of ``also``. reason: why the rest
    of the row is empty. ``environment``: as in Process. ``share``: seconds after which no further engine starts but the first,
    and no further round but the third.
    """
    context, running, rows, stack = max((len(prompt) + tokens, *also)), {}, {}, ExitStack()
    ends, hidden = time.monotonic() + share, None if progress else True
    try:
        for name in steps(engines, "engines", progress, "engine"):
            if running and time.monotonic() > ends:
                rows[name] = {"reason": f"the {share:.0f} s for engines were over; `--thorough` waits for all"}
                continue
            if rows.get(family := name.partition(",")[0], {}).get("reason"):
                rows[name] = {"reason": f"{_SEE}{family}"}  # another way of an engine that cannot open the file
                continue
            try:
                running[name] = Process(name, path, context, environment)
                load, first = running[name].ask(load=True)[0], running[name].ask(begin=prompt)[0]
                rows[name] = {"imports": running[name].imports, "load": load, "first": first, "reason": ""}
            except KitError as error:
                rows[name] = {"reason": str(error).replace(str(path), path.name)}
                if name in running:
                    running.pop(name).close()
        said = {}
        file = stack.enter_context(kit.open(path))
        stack.callback(file.unmap_pages)
        read = minutes.reader(file) if running else None

        def once(number):
            bar.update()
            again(number)
            seconds = {PAGES: read()} if read else {}
            for name, engine in running.items():
                seconds[name] = [engine.ask(begin=prompt)[0]]
                took, said[name] = engine.ask(steps=tokens - 1)
                seconds[name].append(took)
            return seconds

        # (cores of others, seconds of the prompt and of the tokens by engine) of each round
        again = lines("speeds", "round", rounds, progress)
        bar = stack.enter_context(tqdm(total=rounds, desc="speeds", unit="round", disable=hidden))
        left, processes = max(0.0, ends - time.monotonic()), [engine.process for engine in running.values()]
        taken = state.quietest(once, rounds, processes, left)[0] if running else []
        for name, engine in running.items():
            row, resident = rows[name], engine.memory()
            prefills, samples = zip(*(seconds[name] for _, seconds in taken), strict=True)
            row["gbps"] = [seconds[PAGES] for _, seconds in taken] if read else []
            row["samples"] = [(tokens - 1) / seconds for seconds in samples]
            row |= {"prefill": len(prompt) / float(np.median(prefills)), "speed": float(np.median(row["samples"]))}
            row[TOKENS] = tokens - 1
            row |= {"resident": resident, "mapped": engine.mapped(path), "beyond imports": resident - engine.base}
            row["agree"] = int(np.equal(said[name], next(iter(said.values()))).cumprod().sum())
            row["others"] = max(others for others, _ in taken)
        if also and running:
            for name, seconds in together.passes(running, prompt, also).items():
                rows[name]["together"] = seconds
    finally:
        stack.close()
        for engine in running.values():
            engine.close()
    if text:
        for name, losses in _lost(path, [*running], text, environment, precisions).items():
            rows[name] |= losses
    return pd.DataFrame.from_dict(rows, "index").reindex(columns=_COLUMNS).rename_axis("engine")


def _lost(path, names, tokens: int, environment, also=()) -> dict[str, dict[str, float]]:
    """The columns of kit.lab.predicting.quality for each engine, whose logits of a text of so many ``tokens`` are compared.
    ``also``: precisions that are asked for later, because the exact logits of the text take longest."""
    with kit.open(path) as file, ExitStack() as stack:
        others = {}
        for name in (name for name in names if name not in _PRECISION):
            if name == EXACT.name:
                others[name] = quality.from_blocks(file, tokens)._replace(most=_EXACT_POSITIONS)
                continue
            # on one core: threads that wait for each other by spinning take minutes on a busy machine, and change no result
            engine = Process(name, path, tokens, environment, cores=1)
            stack.callback(engine.close)
            others[f"{name} {version(name)}"] = quality.LogitSource(engine.read)
        ours = [_PRECISION[name] for name in names if name in _PRECISION]
        table = quality.quality(file, dict.fromkeys([*ours, *also]), tokens, others=others)
    engine = {kind: name for name, kind in _PRECISION.items()} | {f"{name} {version(name)}": name for name in names}
    losses = table.rename(engine).loc[[*names]]
    return losses[["kl", "kl_error", "same"]].to_dict("index")


def version(name: str) -> str:
    """Which build of llama.cpp an engine is: the wheel's version, or the library that the environment names and its build."""
    named = os.environ.get("LLAMA_CPP")
    return f"{named}, build {build(Path(named))}" if named else library_version("xllamacpp") or ""


def build_told() -> str:
    """The build of llama.cpp in words: the wheel with its version, or the named library with its build."""
    return version(PEER) if os.environ.get("LLAMA_CPP") else f"the package xllamacpp {version(PEER)}"


def logits_of(name, path, ids, alone: bool, environment=None, **options) -> np.ndarray:
    """An engine's logits after each of these tokens, (tokens, vocabulary) float32, as one prompt or ``alone``, token by token.
    ``environment``, ``options``: as of Process."""
    # on one core: threads that wait for each other by spinning take minutes on a busy machine, and change no result
    process = Process(name, path, len(ids), environment, cores=1, **options)
    try:
        process.ask(load=True)
        with tempfile.NamedTemporaryFile(suffix=".npy") as out:
            process.ask(logits=ids, alone=alone, out=out.name)
            return np.load(out.name)
    finally:
        process.close()


def of_run(lab, path, precisions=()) -> pd.DataFrame:
    """The engines of a run next to each other on one file, and what each loses to float32 where the weights are trained ones:
    measured by the first notebook that asks, and read from the run's peers.json by the others, so that their figures agree.
    Its key is that of the store of measurements: file, machine and settings. The speeds are added to the run's store.
    ``precisions``: whose quality is asked for after it."""
    with kit.open(path) as file:
        key = {"file": Path(path).name, "digest": measurements.digest_of(file), "settings": measurements.settings()}
    key["machine"] = machine_id()
    told = measurements.peers(lab.out)
    if not key.items() <= told.items() or told["by"] == lab.notebook:
        rows = compare_file(path, text=bool(lab.model), precisions=precisions).to_dict("index")
        with kit.open(path) as file:
            told = key | {"by": lab.notebook, "bytes": bytes_used(uses_of(file)), "engines": rows}
        write_whole(lab.out / measurements.PEERS, json.dumps(told, indent=1) + "\n")
        note(rows, key["digest"], lab.notebook, measurements.of_run(lab.out))
    return beside(pd.DataFrame.from_dict(told["engines"], "index"))


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``compare`` as a page shows them, with "of llama.cpp": times its speed, unless the machine was busy."""
    table = table.reindex(columns=_COLUMNS).rename_axis("engine").rename(columns={"speed": "tok/s", "kl": KL, "same": SAME})
    table[TIMES] = table["tok/s"] / table["tok/s"].get(PEER, np.nan)
    busy = table["others"].fillna(0) > state.BUSY
    table.loc[busy, TIMES], table["reason"] = np.nan, table["reason"].mask(busy, BUSY_TOLD)
    columns = ["load", "first", "tok/s", TIMES, KL, "kl_error", SAME, "agree", "resident", "others", "reason"]
    return table[columns].rename(columns={"kl_error": "± nats", "others": "cores of others"})


def compare_file(
    path, text: bool, engines=None, share: float = math.inf, also: bool = True, precisions=()
) -> pd.DataFrame:  # fmt: skip
    """``compare`` for ``engines`` (None: all that are installed), by as many tokens as a few seconds allow; ``text``: with
    quality; ``also``: passes over several tokens together. A ``share`` of seconds has a bar."""
    with kit.open(path) as file:
        weights, nbytes = (sum(getattr(info, what) for info in file.tensors.values()) for what in ("elements", "nbytes"))
        prompt, counts = prompt_of(file), together.lengths(file) if also else ()
    engines = engines or installed()
    tokens = min(33, max(9, int(_READ / (_ROUNDS * len(engines) * nbytes))))
    text = tokens_for(weights) if text else 0
    return compare(path, engines, prompt, tokens, _ROUNDS, progress=share < math.inf, text=text, share=share, also=counts,
                   precisions=tuple(precisions))  # fmt: skip


def prompt_of(file) -> list[int]:
    """Token ids of an English sentence's beginning, or four ids where the file has no tokenizer that the kit knows."""
    try:
        return tokenizer_of(file).encode(_PROMPT)
    except KitError:
        return [1, 5, 9, 2]


def note(rows: dict[str, dict], digest: str, by: str, store) -> None:
    """Add the speeds of ``compare`` to a store of measurements and the shared one, in seconds per token of the file with this
    ``digest``."""
    ran = {name: row for name, row in rows.items() if isinstance(row.get("samples"), list)}
    for name, reading in measurements.engines({"digest": digest, "engines": ran}).items():
        counted = {name: value for name, value in reading.row.items() if name == TOKENS}
        measurements.note(store, replace(reading, way=_label(name), by=by, row=counted))
    together.note(ran, digest, by, store)
    if paged := [row for row in ran.values() if isinstance(row.get("gbps"), list) and row["gbps"]]:  # the same in all
        found = paged[-1]
        measurements.note(store, Reading(PAGES, digest, tuple(found["gbps"]), "GB/s", others=found["others"], by=by))


def in_turn(file, store, engines: dict, nbytes: float) -> minutes.Minutes | None:
    """The limit of the minutes in which ``engines`` (of ``readings``) ran an open file of which a token reads ``nbytes``; None
    where its pages were not read in the same rounds."""
    pages = store.known(PAGES, measurements.digest_of(file), unit="GB/s", busy=True)
    seconds = {name: row.samples for name, row in engines.items() if pages and len(row.samples) == len(pages.samples)}
    return minutes.Minutes(nbytes, pages.samples, seconds) if seconds else None


def _label(engine: str) -> str:
    """Its way in the store of measurements; an engine that a benchmark added has its name there."""
    return COMPARED[engine].label if engine in COMPARED else engine


def readings(
    file, by: str, store, again: bool = False, share: float = math.inf, also: bool = True, busy: bool = False
) -> dict[str, Reading]:
    """Engine -> its Reading on an open file: those that ``store`` has of all engines, else measured now, added to it and to the
    shared store. ``again``: measured in any case. ``share``: seconds for them, as of ``compare``. ``also``: with passes over
    several tokens, for which a command, whose share ends, measures again where the store has none. ``busy``: what was disturbed
    is taken as well, as by the pages of a run, which has one value of a way."""
    digest, engines = measurements.digest_of(file), installed()

    def known(busy):
        asked = {name: store.known(_label(name), digest, busy=busy) for name in engines}
        return {name: row for name, row in asked.items() if row}

    paged = store.known(PAGES, digest, unit="GB/s", busy=True) or views(file) is None
    lacks = also and share < math.inf and together.lengths(file) and not together.readings(store, digest, together.FEW)
    if again or lacks or not paged or len(known(busy)) < len(engines) - 1:  # one may be unable to open the file
        if state.settle(state.patience()):  # a peer that spins starves: no comparison
            engines = [name for name in engines if name in OURS]
        rows = compare_file(file.path, text=False, engines=engines, share=share, also=also).to_dict("index")
        note(rows, digest, by, store)
        for name, row in rows.items():
            if row.get("reason") and not row["reason"].startswith(_SEE):
                warnings.warn(f"{name} did not run: {row['reason']}", KitWarning, stacklevel=2)
    return known(busy=True)


def short(beside: pd.DataFrame) -> pd.DataFrame:
    """The table of ``of_run`` in fewer columns: each divergence with its error, and no column that is empty; kit's exact way
    by name."""
    errors = map(format_kl, beside[KL], beside["± nats"])
    table = beside.assign(**{KL: [text if row == row else np.nan for text, row in zip(errors, beside[KL], strict=True)]})
    unknown = [name for name in ("cores of others", "reason") if not beside[name].any()]
    return table.drop(columns=["± nats", *unknown]).rename(index=called)


def called(name: str) -> str:
    """An engine's name in tables, figures and sentences: kit's ways by their one word."""
    return OURS[name].title if name in OURS else name


def told(beside: pd.DataFrame) -> str:
    """The table of ``of_run`` in words, the exact way first: no speed of a trained model without its quality, and no
    comparison of a busy machine."""
    ran = beside.dropna(subset="tok/s")
    if (ran["cores of others"].fillna(0) > state.BUSY).any():
        most = ran["cores of others"].max()
        said = f"{BUSY_TOLD[0].upper()}{BUSY_TOLD[1:]}"
        return f"{said}: other processes used {most:.1f} cores while {len(ran)} ways ran this file"
    each = [
        f"{called(row.name)} {format_rate(row['tok/s'])} tok/s"
        + f" (KL {format_kl(row[KL], row['± nats'])} nats)" * (row[KL] == row[KL])
        for _, row in ran.iterrows()
    ]
    none = "; these generated weights have no quality to lose" * bool(len(ran) and ran[KL].isna().all())
    return f"{len(ran)} ways of kit and llama.cpp ran this file{': ' * bool(each)}{', '.join(each)}{none}"
