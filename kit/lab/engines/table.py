"""The table of engines: which module opens what the user typed after --engine."""

import importlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kit.errors import EngineError
from kit.lab.engines.base import Runner


class EngineKind(NamedTuple):
    """A row. ``name``: of the program. ``typed``: what a user types, for help and errors. ``takes(first)``: whether it is the
    row for this first word. ``open(label, words, model, threads)``: the engine; ``words``: all that was typed, split as a shell
    does; ``model``: the file, None where a server has its own; ``threads``: in place of those in ``words`` (None: those).
    EngineError says in one line what is wrong and what to do. ``starts``: whether kit starts it, so that it takes ``threads``.
    """

    name: str
    typed: str
    takes: Callable[[str], bool]
    open: Callable[[str, list[str], Path | None, int | None], Runner]
    starts: bool = True


MODULES = (  # each has KINDS, its rows; the first row that takes a word has it
    "kit.lab.engines.inside",
    "kit.lab.engines.llama_bench",
    "kit.lab.engines.serving",
)


def kinds() -> list[EngineKind]:
    """All rows."""
    return [kind for module in MODULES for kind in importlib.import_module(module).KINDS]


def kind_of(text: str) -> tuple[EngineKind, list[str]]:
    """(its row, its words) of what was typed after --engine; EngineError where no row takes it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise EngineError(f"--engine {text}: {str(error).lower()}: quote it as for a shell") from None
    rows = kinds()
    kind = next((row for row in rows if words and row.takes(words[0])), None)
    if kind is None:
        raise EngineError(f"--engine {text or repr(text)}: not an engine; give one of {'; '.join(row.typed for row in rows)}")
    return kind, words


def opened(text: str, model: Path | None = None, threads: int | None = None, label: str = "") -> Runner:
    """The engine that a user typed, with this model. ``threads``: for decode and prompts, in place of its own; EngineError
    where kit does not start it. ``label``: its name in tables; "": the text, with the threads."""
    kind, words = kind_of(text)
    if threads is not None and not kind.starts:
        raise EngineError(f"--engine {text}: runs already, and its threads are set when it starts; name a binary to sweep them")
    return kind.open(label or (text if threads is None else f"{text} -t {threads}"), words, model, threads)
