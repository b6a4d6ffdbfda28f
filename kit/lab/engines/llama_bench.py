"""A llama-bench binary of any build (llama.cpp's, ik_llama.cpp's), by its JSON output."""

import os
import shutil
import subprocess
from pathlib import Path

import psutil

import kit
from kit.errors import EngineError
from kit.lab.engines.base import Cpu, EngineFacts, Pass
from kit.lab.engines.options import count_of
from kit.lab.engines.table import EngineKind
from kit.units import from_json

_OURS = {  # options that kit gives, as llama-bench has them -> how the user says the same
    **dict.fromkeys(("-m", "--model", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"), "the FILE of the command"),
    **dict.fromkeys(("-p", "--n-prompt", "-n", "--n-gen", "-pg", "-gp", "-d", "--n-depth", "-r", "--repetitions"),
                    "kit gives the lengths itself"),
    **dict.fromkeys(("-o", "--output", "-oe", "--output-err"), "kit reads the JSON output"),
}  # fmt: skip
_THREADS = ("-t", "--threads")
_SHOWN = tuple("n_batch n_ubatch flash_attn n_gpu_layers backends load_mode use_mmap repack cpu_mask poll".split())
_MINUTES = 30  # after which a run counts as hung


class LlamaBench:
    """One setting of a binary. Each pass is a process of its own, so two of them can alternate."""

    def __init__(self, label: str, words: list[str], model: Path, threads: int | None = None):
        self.label, self._model = label, model
        self._binary = _executable(label, words[0])
        self._options = _checked(label, words[1:], drop=_THREADS if threads else ())
        self._options += ["-t", str(threads)] if threads else []
        self._row: dict = {}
        self._cpu = Cpu(0.0, 0.0)

    @property
    def facts(self) -> EngineFacts:
        """By its last output; before the first, what the user typed."""
        row = self._row
        if not row:
            return EngineFacts(self._binary.name, flags={"options": " ".join(self._options)}, file=self._model)
        flags = {name: str(row[name]) for name in _SHOWN if name in row} | {"options": " ".join(self._options)}
        known = row.get("build_commit") not in (None, "", "unknown")  # a build outside a git checkout does not know
        version = f"b{row.get('build_number', 0)} ({row['build_commit']})" if known else ""
        kv = (str(row["type_k"]), str(row["type_v"])) if "type_k" in row else None
        return EngineFacts(self._binary.name, version, row.get("n_threads"), flags, self._model, None, kv)

    def decode(self, tokens: int, depth: int = 0) -> Pass:
        """Its test tg<tokens>, after ``depth`` positions: it generates after random tokens."""
        return self._test({"n_prompt": 0, "n_gen": tokens, "n_depth": depth})

    def prompt(self, tokens: int, depth: int = 0) -> Pass:
        """Its test pp<tokens>."""
        return self._test({"n_prompt": tokens, "n_gen": 0, "n_depth": depth})

    def cpu_times(self) -> Cpu:
        """Of the runs that have ended."""
        return self._cpu

    def close(self) -> None:
        """Nothing runs between two passes."""

    def _test(self, sizes: dict[str, int]) -> Pass:
        lengths = ["-p", str(sizes["n_prompt"]), "-n", str(sizes["n_gen"])]
        depth = ["-d", str(sizes["n_depth"])] if sizes["n_depth"] else []  # builds without depth have no such option
        command = [str(self._binary), *self._options, "-m", str(self._model), *lengths, *depth, "-r", "1", "-o", "json"]
        self._row = row = self._read(self._run(command), sizes)
        asked = sizes["n_prompt"] + sizes["n_gen"]
        seconds = row["samples_ns"][0] / 1e9
        return Pass(seconds, asked, asked, sizes["n_depth"], seconds)

    def _run(self, command: list[str]) -> subprocess.CompletedProcess:
        before = psutil.Process().cpu_times()
        try:
            how = {"capture_output": True, "text": True, "errors": "replace", "timeout": 60 * _MINUTES}
            done = subprocess.run(command, env=kit.environment_of_user(), **how)
        except OSError as error:
            raise EngineError(f"--engine {self.label}: {self._binary}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise EngineError(f"--engine {self.label}: gave no answer within {_MINUTES} minutes and was ended") from None
        after = psutil.Process().cpu_times()
        user, system = after.children_user - before.children_user, after.children_system - before.children_system
        self._cpu = Cpu(self._cpu.user + user, self._cpu.system + system)
        if done.returncode:
            said = _last(done.stderr) or _last(done.stdout) or "nothing"
            raise EngineError(f"--engine {self.label}: ended with {done.returncode}; it said: {said}")
        return done

    def _read(self, done: subprocess.CompletedProcess, sizes: dict[str, int]) -> dict:
        """The only row of its JSON; EngineError where there is none, or more, or it is of another test."""
        try:
            rows = from_json(done.stdout)
            wrong = [row for row in rows if not row["samples_ns"] or min(row["samples_ns"]) <= 0]
            other = [name for row in rows for name, size in sizes.items() if row.get(name, 0) != size]
        except (ValueError, TypeError, KeyError, AttributeError):
            said = _last(done.stderr) or _last(done.stdout) or "nothing"
            raise EngineError(f"--engine {self.label}: is no llama-bench with JSON output; it said: {said}") from None
        if len(rows) != 1:
            told = "an option has several values; give one --engine for each" if rows else f"said: {_last(done.stderr)}"
            raise EngineError(f"--engine {self.label}: answered with {len(rows)} tests in place of one: {told}")
        if wrong or other:
            raise EngineError(f"--engine {self.label}: its answer is of another test, or has no samples: {', '.join(other)}")
        return rows[0]


def _executable(label: str, typed: str) -> Path:
    """The binary, from a path or the PATH; EngineError for what cannot be run."""
    path = Path(os.path.expanduser(typed))
    found = path if path.exists() else shutil.which(typed)
    if not found:
        raise EngineError(f"--engine {label}: there is no file {typed}, and PATH has no such program")
    path = Path(found).resolve()
    if path.is_dir() or not os.access(path, os.X_OK):
        raise EngineError(f"--engine {label}: {path} {'is a folder' if path.is_dir() else 'is not executable: chmod +x it'}")
    return path


def _checked(label: str, words: list[str], drop: tuple[str, ...]) -> list[str]:
    """The options but those to ``drop`` (each with its value); EngineError for those that kit gives itself."""
    kept, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        name, _, joined = word.partition("=")
        if name in _OURS:
            raise EngineError(f"--engine {label}: leave out {name}: {_OURS[name]}")
        if name in _THREADS:
            value = joined or (rest.pop(0) if rest else "")
            count_of(label, name, value)
            kept += [] if name in drop else [name, value]
        else:
            kept.append(word)
    return kept


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


KINDS = [
    EngineKind(
        "llama-bench", "the path of a llama-bench binary with its options ('./llama-bench -t 4 -fa 1')",
        lambda first: Path(first).name.startswith("llama-bench"), LlamaBench,
    ),
]  # fmt: skip
