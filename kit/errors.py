"""Every error that a user can cause, by the room that raises it.

A message names the file, the tensor (or the option) and the remedy;
the command line prints it as one line and exits with 2.
"""

import difflib
import importlib
import re
import traceback
from collections.abc import Iterable
from operator import index


class KitError(Exception):
    """Base of every error that the kit raises on purpose. IPython shows the message and the line of the cell, no traceback."""

    def _render_traceback_(self, *_) -> list[str]:
        frames = traceback.extract_tb(self.__traceback__)
        cell = next((frame for frame in reversed(frames) if re.search("ipykernel_|<ipython", frame.filename)), None)
        at = [f"  cell line {cell.lineno}: {cell.line}"] if cell else []
        return [f"{type(self).__name__}: {self}", *at]


class KitWarning(UserWarning):
    """What works and is probably not what was meant, or slower than it could be; the command line prints it as one line."""


class GGUFError(KitError):
    """A file that is not a valid GGUF: names the file, the offset and what was expected there. ``offset``: of the byte that is
    wrong, where one is."""

    def __init__(self, *told: str, offset: int | None = None):
        super().__init__(*told)
        self.offset = offset


class QuantError(KitError):
    """A block format, dtype or backend that cannot be had, or data that is no whole number of blocks."""


class CacheError(KitError):
    """A cache that cannot be built, or a request that it cannot serve."""


class TraceError(KitError):
    """A trace that is not one."""


class ModelError(KitError):
    """A model that cannot be run: architecture, missing or misshapen tensor, bad prompt, NaN weights."""


class TokenizerError(KitError):
    """A tokenizer that cannot be made of the file's metadata, or a text that it cannot encode."""


class NoTokenizer(TokenizerError):
    """A file without a tokenizer, or with one of a kind that the kit does not know; token ids do without."""


class CodecError(KitError):
    """Compressed tiles that cannot be made or unpacked: names the tensor and the tile."""


class EngineError(KitError):
    """An engine that cannot be opened, or does not answer as one: names what was typed after --engine and the remedy."""


class ServerError(EngineError):
    """A running server that cannot be asked or explained: names its URL and the remedy."""


class ReportError(KitError):
    """A run that cannot start: unknown notebook, parameter or profile, an output folder without rights."""


_MOST = 12  # names in a message


def known(what: str, name, table: dict, error: type[KitError]):
    """``table[name]``; for another name ``error``, with the names of the table (of many those that contain it, else the first)
    and the one that was probably meant."""
    try:
        return table[name]
    except (KeyError, TypeError):
        meant = "".join(f"; did you mean {near}?" for near in nearest(name, table))
        raise error(f"{what} {name!r} is not known; choose one of {some_of(table, str(name))}{meant}") from None


def some_of(names: Iterable, like: str = "") -> str:
    """Names in a message, separated by commas: all if they are few; else those that contain ``like``, or the first, and
    how many there are."""
    texts = [str(name) for name in names]
    if len(texts) <= _MOST:
        return ", ".join(texts)
    near = [text for text in texts if like and like.lower() in text.lower()]
    shown = (near or texts)[:_MOST]
    return f"{', '.join(shown)} ({len(texts)} in all)"


def nearest(name, names: Iterable) -> list[str]:
    """The one of ``names`` that is spelled most like ``name``, in a list; an empty list where none is."""
    return difflib.get_close_matches(str(name).lower(), map(str, names), 1)


_NEED = {  # extra of gguf-kit -> what comes with it
    "notebooks": ("IPython", "ipywidgets", "markupsafe", "matplotlib", "nbclient", "nbconvert", "nbformat", "nh3", "pandas",
                  "papermill", "pyarrow"),
    "sweep": ("dask", "distributed"),
    "hf": ("transformers",),
}  # fmt: skip


class ExtraError(KitError, ModuleNotFoundError):
    """A library that does not come with the kit alone: names the extra that brings it."""


def install(extra: str) -> str:
    """The command that installs an extra. No release is on the index yet, so it is one for a checkout."""
    return f"pip install --editable '.[{extra}]'"


def extra_for(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error to raise for a library that is not installed: ExtraError where an extra brings it, else the same."""
    library = (error.name or "").partition(".")[0]
    extra = next((extra for extra, libraries in _NEED.items() if library in libraries), None)
    if extra is None or isinstance(error, ExtraError):
        return error
    return ExtraError(f"{library} is not installed; in your checkout of kit run: {install(extra)}", name=error.name)


def library(name: str):
    """The module of a library that an extra brings; ExtraError names the extra where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise extra_for(error) from None


def whole(value, what: str, error: type[KitError]) -> int:
    """The number that is ``value``; ``error`` for what is none, or not whole: int() cuts 1.5, and reads a text."""
    try:
        return index(value)
    except TypeError:
        raise error(f"{what} is {str(value)[:60]!r}, expected a whole number") from None
