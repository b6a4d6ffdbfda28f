"""kit's own engine, and llama.cpp from the wheel, as rows of the table: each in a process that kit starts and pins."""

from contextlib import suppress
from pathlib import Path

import psutil

import kit
from kit.errors import EngineError, KitError
from kit.lab.engines.base import Cpu, EngineFacts, Pass
from kit.lab.engines.options import cores_of, taken
from kit.lab.engines.processes import ENGINES, Process
from kit.lab.engines.table import EXACT, OURS, PEER, EngineKind
from kit.lab.measuring.machine import library_version
from kit.system import usable_cores

_KV = {"f32": "float32", "f16": "float16", "q8_0": "q8_0"}  # as llama.cpp names them -> as kit does
_SENTENCE = "A large language model that runs on a small computer answers slowly, because a token reads all of its weights. "
_STEP = 512  # a context grows by so many positions, so that a longer test does not start a new process each time


class Inside:
    """A row of kit.lab.engines.processes with a file. It is started again where a test needs a longer context."""

    def __init__(self, label: str, engine: str, model: Path, options: dict, facts: EngineFacts):
        self.label, self.facts = label, facts
        self._engine, self._model, self._options = engine, model, options
        self._process, self._context, self._ended, self._ids = None, 0, Cpu(0.0, 0.0), []
        if reason := ENGINES[engine].missing():
            raise EngineError(f"--engine {label}: {reason}")

    def decode(self, tokens: int, depth: int = 0) -> Pass:
        """Greedy tokens after a text of ``depth`` positions, of one where that is 0."""
        self._ready(max(1, depth) + tokens + 1)
        self._ask(begin=self._text(max(1, depth)))
        seconds, said = self._ask(steps=tokens)
        return Pass(seconds, len(said), tokens, depth)

    def prompt(self, tokens: int, depth: int = 0) -> Pass:
        """A text of so many tokens, in one piece."""
        self._ready(depth + tokens)
        text = self._text(depth + tokens)
        if depth:
            self._ask(begin=text[:depth])
        seconds, _ = self._ask(**{"follow" if depth else "begin": text[depth:]})
        return Pass(seconds, tokens, tokens, depth)

    def cpu_times(self) -> Cpu:
        """Of its process, and of those before it."""
        now = Cpu(0.0, 0.0)
        if self._process:
            with suppress(psutil.NoSuchProcess):  # one that died says why itself
                now = self._process.process.cpu_times()
        return Cpu(self._ended.user + now.user, self._ended.system + now.system)

    def close(self) -> None:
        """End its process."""
        self._ended = self.cpu_times()
        process, self._process = self._process, None
        if process:
            process.close()

    def _ready(self, positions: int) -> None:
        if self._process and positions <= self._context:
            return
        self.close()
        self._context = -(-positions // _STEP) * _STEP
        try:
            self._process = Process(self._engine, self._model, self._context, **self._options)
        except KitError as error:
            raise EngineError(f"--engine {self.label}: {error}") from None
        self._ask(load=True)
        self._ask(begin=self._text(8))
        self._ask(steps=2)  # the warm-up: kernels are compiled, pages read

    def _ask(self, **question):
        try:
            return self._process.ask(**question)
        except KitError as error:
            raise EngineError(f"--engine {self.label}: {error}") from None

    def _text(self, tokens: int) -> list[int]:
        """A sentence again and again, cut to so many tokens; four ids again and again of a file without a tokenizer for kit."""
        from kit.model.tokenizer import tokenizer_of

        if not self._ids:
            with kit.open(self._model) as file:
                try:
                    self._ids = tokenizer_of(file).encode(_SENTENCE)
                except KitError:
                    self._ids = [1, 5, 9, 2]
        return (self._ids * (tokens // len(self._ids) + 1))[:tokens]


def _open_kit(label: str, words: list[str], model: Path, threads: int | None = None) -> Inside:
    """kit [-t N] [--linear VARIANT] [-ctk TYPE]; a variant of kit.products."""
    given = taken(label, words[1:], {"-t": "cores", "--threads": "cores", "--linear": "linear", "-ctk": "kv", "--kv": "kv"})
    linear = given.get("linear", EXACT.product.linear)
    names = {row.product.linear: name for name, row in OURS.items()}
    if linear not in names:
        raise EngineError(f"--engine {label}: --linear {linear}: choose one of {', '.join(names)}")
    cores, options = _cores(label, given, threads)
    if "kv" in given:
        from kit.model.kvcache import KV_TYPES

        options["kv"] = _KV.get(given["kv"], given["kv"])
        if options["kv"] not in KV_TYPES:
            raise EngineError(f"--engine {label}: -ctk {given['kv']}: choose one of {', '.join(KV_TYPES)}")
    kv = options.get("kv", "float32")
    return Inside(
        label, names[linear], model, options, EngineFacts("kit", kit.__version__, cores, given, model, None, (kv, kv))
    )


def _open_wheel(label: str, words: list[str], model: Path, threads: int | None = None) -> Inside:
    """llama.cpp [-t N] [-ctk TYPE]."""
    given = taken(label, words[1:], {"-t": "cores", "--threads": "cores", "-ctk": "kv"})
    cores, options = _cores(label, given, threads)
    if "kv" in given:
        if given["kv"] not in _KV:
            raise EngineError(f"--engine {label}: -ctk {given['kv']}: choose one of {', '.join(_KV)}")
        options["kv"] = _KV[given["kv"]]
    kv = given.get("kv", "f16")
    version = library_version("xllamacpp") or ""
    return Inside(label, PEER, model, options, EngineFacts("llama.cpp", version, cores, given, model, None, (kv, kv)))


def _cores(label: str, given: dict, threads: int | None) -> tuple[int, dict]:
    """(threads, options of the process): it is pinned to so many cores, where the user gave a number."""
    if threads is None and "cores" not in given:
        return usable_cores(), {}
    cores = cores_of(label, "-t", str(threads) if threads is not None else given["cores"])
    return cores, {"cores": cores}


KINDS = [
    EngineKind("kit", "kit ('kit --linear fused-int8 -t 2')", lambda first: first == "kit", _open_kit),
    EngineKind(
        "llama.cpp", "llama.cpp, of the wheel xllamacpp ('llama.cpp -t 2')", lambda first: first == "llama.cpp", _open_wheel
    ),
]
