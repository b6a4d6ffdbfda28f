"""What a user would pick instead: llama.cpp on the same file, each engine in a process of its own, in turn."""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import psutil
from tqdm import tqdm

import kit
from kit import system
from kit.errors import KitError, ReportError
from kit.lab import llama_cpp
from kit.lab.kept import once_a_run
from kit.units import format_bytes, format_seconds


class Engine(NamedTuple):
    """``start(path, context, **options)`` loads the model and returns ``logits(ids, state, wanted)``, which evaluates these
    tokens after those of ``state`` (None: none) and returns the logits after the last ``wanted`` of them, an array (wanted,
    vocabulary) of float32, and the state after them.

    ``imports``: modules that its process imports before loading is timed. ``missing()``: why it cannot run here, "" if it can.
    ``home``: the module that adds it to ENGINES.
    """

    start: Callable
    imports: tuple[str, ...] = ()
    missing: Callable[[], str] = str
    home: str = __name__


def kit_engine(path, context, linear, kv="float32"):
    """The kit's own pass."""
    model = kit.Transformer(kit.Weights(kit.open(path)), linear=linear, kv_dtype=kv, max_context=context)

    def logits(ids, cache, wanted):
        cache = model.new_cache() if cache is None else cache
        return model.logits(ids, -wanted, cache).numpy(), cache

    return logits


def llama_engine(path, context, make=llama_cpp.Llama, kv="float16", exact=False):
    """A class of llama.cpp's interface."""
    model = make(path, context, kv, exact)

    def logits(ids, held, wanted):
        held = held or 0
        return model.logits(ids, held, wanted), held + len(ids)

    return logits


PEER = "llama.cpp, mmap"
_OURS = "kit.model.transformer", "kit.cpu.linear"
ENGINES = {
    "kit": Engine(partial(kit_engine, linear="fused"), _OURS),
    "kit, int8 activations": Engine(partial(kit_engine, linear="fused-int8"), _OURS),
    PEER: Engine(llama_engine, ("xllamacpp",), lambda: "" if llama_cpp.available() else "not installed: pip install xllamacpp"),
}
_COLUMNS = "imports|load|first|prefill|speed|samples|resident|beyond imports|mapped|agree|kl|kl_error|same|reason".split("|")
_POSITIONS, _WORK = 257, 1e11  # of a text for the quality, and fewer where weights times tokens are more: seconds, not minutes
TIMES, KL, SAME = "of llama.cpp", "KL to float32, nats", "same token"
FORMATS = {  # of the table of a run
    "load": format_seconds, "first": format_seconds, TIMES: "{:.2f}", KL: "{:.2g}", SAME: "{:.1%}", "resident": format_bytes,
}  # fmt: skip


def installed() -> list[str]:
    """The names in ENGINES that can run here."""
    return [name for name, engine in ENGINES.items() if not engine.missing()]


@once_a_run
def compare(path: Path, engines, prompt, tokens=32, rounds=5, progress=False, positions=0, environment=None) -> pd.DataFrame:
    """One row an engine (names of ENGINES): the same greedy tokens from the same file, ``rounds`` times in turn.

    Only one process runs at a time, the others are stopped. ``prompt``: token ids. Columns:
    imports, load, first: seconds until the engine's libraries are imported, then until the file is open, then until the first
    token, in a new process with the file in the page cache. prefill: tokens a second of the prompt, the median. speed: tokens
    a second after it, the median of ``samples``. resident: bytes of the process at the end; mapped: those of them that are
    the file's; beyond imports: those that came after the imports. agree: leading tokens that are the first engine's. kl,
    kl_error, same (of kit.lab.costs.quality, from the same weights in float32): by ``positions`` of an English text, token
    by token as it was timed. reason: why the rest of the row is empty. ``environment``: as of Process.
    """
    context, running, rows = len(prompt) + tokens, {}, {}
    try:
        for name in tqdm(engines, "peers", disable=None if progress else True):
            if rows.get(family := name.partition(",")[0], {}).get("reason"):
                rows[name] = {"reason": f"see {family}"}  # another way of an engine that cannot open the file
                continue
            try:
                running[name] = Process(name, path, context, environment)
                load, first = running[name].ask(load=True)[0], running[name].ask(begin=prompt)[0]
                rows[name] = {"imports": running[name].imports, "load": load, "first": first, "reason": ""}
                rows[name] |= {"prefill": [], "samples": []}
            except KitError as error:
                rows[name] = {"reason": str(error).replace(str(path), path.name)}
                if name in running:
                    running.pop(name).close()
        said = {}
        for _ in range(rounds):
            for name, engine in running.items():
                rows[name]["prefill"].append(len(prompt) / engine.ask(begin=prompt)[0])
                seconds, said[name] = engine.ask(steps=tokens - 1)
                rows[name]["samples"].append((tokens - 1) / seconds)
        for name, engine in running.items():
            row, resident = rows[name], engine.memory()
            row |= {"prefill": float(np.median(row["prefill"])), "speed": float(np.median(row["samples"]))}
            row |= {"resident": resident, "mapped": engine.mapped(path), "beyond imports": resident - engine.base}
            row["agree"] = int(np.equal(said[name], next(iter(said.values()))).cumprod().sum())
    finally:
        for engine in running.values():
            engine.close()
    if positions:
        from kit.lab.costs.quality import truth_of  # here, because the engines' processes import this module and no torch

        with kit.open(path) as file:
            truth = truth_of(file, positions)
        for name in running:
            rows[name] |= truth.beside(logits_of(name, path, truth.window, alone=True, environment=environment))
    return pd.DataFrame.from_dict(rows, "index").reindex(columns=_COLUMNS).rename_axis("engine")


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


def of_run(lab, path) -> pd.DataFrame:
    """The engines of a run beside each other on one file, 8 tokens after a prompt of 4, and what each loses to float32 where
    the weights are trained ones: measured by the first notebook that asks, and read from the run's peers.json by the others, so
    that their figures agree."""
    kept = lab.out / "peers.json"
    told = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if told.get("file") != Path(path).name or told["by"] == lab.notebook:
        positions = 0
        if lab.model:
            with kit.open(path) as file:
                positions = min(_POSITIONS, max(33, int(_WORK / sum(info.elements for info in file.tensors.values()))))
        rows = compare(path, installed(), prompt=[1, 5, 9, 2], tokens=8, rounds=3, positions=positions).to_dict("index")
        told = {"file": Path(path).name, "by": lab.notebook, "engines": rows}
        kept.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    table = pd.DataFrame.from_dict(told["engines"], "index").rename_axis("engine")
    table = table.rename(columns={"speed": "tok/s", "kl": KL, "same": SAME})
    table[TIMES] = table["tok/s"] / table["tok/s"].get(PEER, np.nan)
    return table.reindex(columns=["load", "first", "tok/s", TIMES, KL, SAME, "agree", "resident", "reason"])


def told(beside: pd.DataFrame) -> str:
    """The table of ``of_run`` in words, the exact way first: no speed of a trained model without its quality."""
    ran = beside.dropna(subset="tok/s")
    each = [
        f"{name} {speed:.3g} tok/s" + f" (KL {kl:.2g} nats)" * (kl == kl) for name, speed, kl in ran[["tok/s", KL]].itertuples()
    ]
    none = "; these generated weights have no quality to lose" * bool(len(ran) and ran[KL].isna().all())
    return f"{len(ran)} engines ran this file{': ' * bool(each)}{', '.join(each)}{none}"


class Process:
    """An engine behind two pipes; stopped while nobody asks it anything. ``options``: of the engine, and ``cores``, how many it
    may use (all); ``environment``: variables beside those of this process. ReportError where the engine cannot run here."""

    def __init__(self, name, path, context, environment=None, **options):
        if reason := ENGINES[name].missing():
            raise ReportError(f"{name}: {reason}")
        self.name = name
        told = json.dumps([ENGINES[name].home, name, str(path), {"context": context} | options])
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({told!r})"]
        pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile("w+")  # a pipe that nobody reads would stop the engine
        given = os.environ | ({} if name.startswith("kit") else llama_cpp.ENVIRONMENT) | (environment or {})
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, text=True, env=given)
        self.imports = self._answer()[0]
        self.base = self.memory()

    def ask(self, **question) -> tuple[float, list[int]]:
        """(seconds, tokens) of one of the questions that ``serve`` answers."""
        self._child.send_signal(signal.SIGCONT)
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self._child.stdout.readline()
        if not line:
            self._child.wait()
            self._said.seek(0)
            said = self._said.read().strip().splitlines()
            reason = said[-1].removeprefix("kit.errors.") if said else f"ended with {self._child.returncode}"
            raise ReportError(f"{self.name}: {reason}")
        self._child.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def memory(self) -> int:
        """Bytes resident."""
        return psutil.Process(self._child.pid).memory_info().rss

    def mapped(self, path) -> int:
        """Bytes of the file that are resident as they are mapped; 0 where the system cannot tell."""
        maps = psutil.Process(self._child.pid).memory_maps() if hasattr(psutil.Process, "memory_maps") else ()
        return sum(part.rss for part in maps if part.path == os.path.realpath(path))

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.communicate()


def serve(told: str) -> None:
    """The engine's process. A line of standard input is {"load": true}, {"begin": ids} for a new prompt, {"steps": n} for n
    more tokens, or {"logits": ids, "alone": whether token by token, "out": file} for the logits after each of these, as numpy
    saves them; a line of standard output is [seconds, tokens], the first for importing."""
    home, name, path, options = json.loads(told)
    importlib.import_module(home)
    if cores := options.pop("cores", None):
        system.pin(cores)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    start = time.perf_counter()
    for module in ENGINES[name].imports:
        importlib.import_module(module)
    print(json.dumps([time.perf_counter() - start, []]), file=out)
    for line in sys.stdin:
        question, said = json.loads(line), []
        start = time.perf_counter()
        if "load" in question:
            logits = ENGINES[name].start(path, **options)
        if "begin" in question:
            state = None  # the last prompt's KV cache is freed first
            found, state = logits(question["begin"], state, 1)
            said.append(int(found.argmax()))
            token = said[-1]
        for _ in range(question.get("steps", 0)):
            found, state = logits([token], state, 1)
            token = int(found.argmax())
            said.append(token)
        if "logits" in question:
            state, ids = None, question["logits"]
            each = []
            for part in [[token] for token in ids] if question["alone"] else [ids]:
                found, state = logits(part, state, len(part))
                each.append(found)
            np.save(question["out"], np.concatenate(each))
        print(json.dumps([time.perf_counter() - start, said]), file=out)
