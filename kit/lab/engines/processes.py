"""Engines that run a GGUF file, each in its own process: kit, and what a user would choose instead."""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

import kit
from kit import system
from kit.errors import ReportError
from kit.gguf.sources import part_paths
from kit.lab.engines import llama_cpp
from kit.lab.engines.table import OURS, PEER
from kit.system import python


class Engine(NamedTuple):
    """``start(path, context, **options)`` loads the model and returns ``logits(ids, state, wanted)``. That function evaluates
    these tokens after those of ``state`` (None: none); it returns the logits after the last ``wanted`` of them, an array
    (wanted, vocabulary) of float32, and the new state.

    ``imports``: modules that its process imports before loading is timed. ``missing()``: why it cannot run here, "" if it can.
    ``home``: the module that adds it to ENGINES.
    """

    start: Callable
    imports: tuple[str, ...] = ()
    missing: Callable[[], str] = str
    home: str = __name__


def kit_engine(path, context, linear, kv="float32"):
    """kit's own forward pass."""
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


_IMPORTS = "kit.model.transformer", "kit.cpu.linear"
ENGINES = {
    **{name: Engine(partial(kit_engine, linear=row.product.linear), _IMPORTS) for name, row in OURS.items()},
    PEER: Engine(llama_engine, ("xllamacpp",), lambda: "" if llama_cpp.available() else "not installed: pip install xllamacpp"),
}


class Process:
    """An engine in its own process, connected by two pipes and stopped while nobody uses it. ``options``: of the engine, and
    ``cores``, how many it may use (all). ``environment``: variables in addition to those of this process. ReportError if the
    engine cannot run here."""

    def __init__(self, name, path, context, environment=None, **options):
        if reason := ENGINES[name].missing():
            raise ReportError(f"{name}: {reason}")
        self.name, path = name, part_paths(Path(path))[0]  # llama.cpp takes no other part of a split model
        told = json.dumps([ENGINES[name].home, name, str(path), {"context": context} | options])
        command = python.executing(f"from {__name__} import serve; serve({told!r})")
        pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile("w+")  # a pipe that nobody reads would stop the engine
        given = os.environ | ({} if name.startswith("kit") else llama_cpp.ENVIRONMENT) | (environment or {})
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, text=True, env=given)
        self.process = psutil.Process(self._child.pid)
        self.imports = self._answer()[0]
        self.base, self._opened = self.memory(), False

    def ask(self, **question) -> tuple[float, list[int]]:
        """(seconds, tokens) for one of the questions that ``serve`` answers."""
        self._child.send_signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # of one that was ended: it gives no answer either, which is said
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
        return self._answer()

    def read(self, ids: list[int]) -> np.ndarray:
        """Logits (len(ids), vocabulary) float32 after each of the next tokens of one text."""
        if not self._opened:
            self.ask(load=True)
        with tempfile.NamedTemporaryFile(suffix=".npy") as out:
            self.ask(logits=ids, alone=False, more=self._opened, out=out.name)
            self._opened = True
            return np.load(out.name)

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
        return self.process.memory_info().rss

    def mapped(self, path) -> int:
        """Resident bytes of the file, or of all parts, through its map; 0 if the system does not report them."""
        files = {os.path.realpath(part) for part in part_paths(Path(path))}
        maps = self.process.memory_maps() if hasattr(psutil.Process, "memory_maps") else ()
        return sum(part.rss for part in maps if part.path in files)

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.communicate()


def serve(told: str) -> None:
    """The engine's process. A line of standard input is {"load": true}, {"begin": ids} for a new prompt, {"follow": ids} for
    one that follows it, {"steps": n} for n more tokens, or {"logits": ids, "alone": whether token by token, "more": whether
    they follow the last ones, "out": file} for the logits after each of these, as numpy saves them. A line of standard output
    is [seconds, tokens], first for imports."""
    system.end_with_parent()  # which stops it most of the time: it would stay behind
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
            scores, state = logits(question["begin"], state, 1)
            said.append(int(scores.argmax()))
            token = said[-1]
        if "follow" in question:
            scores, state = logits(question["follow"], state, 1)
        for _ in range(question.get("steps", 0)):
            scores, state = logits([token], state, 1)
            token = int(scores.argmax())
            said.append(token)
        if "logits" in question:
            state, ids = state if question.get("more") else None, question["logits"]
            each = []
            for part in [[token] for token in ids] if question["alone"] else [ids]:
                scores, state = logits(part, state, len(part))
                each.append(scores)
            np.save(question["out"], np.concatenate(each))
        print(json.dumps([time.perf_counter() - start, said]), file=out)
