"""The engines: what a run compares on a file, and which module opens what the user typed after --engine.

What is compared is kit with each way to multiply, and llama.cpp from the wheel. A row has all names that such a measurement has
anywhere. Names of committed runs stay as they are: a run of today is compared with them. A way of kit's is a row of
kit.products, and gets its row here by itself.
"""

import importlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kit.errors import EngineError
from kit.lab.engines.base import Runner
from kit.products import PRODUCTS, Multiplied


class ComparedWay(NamedTuple):
    """``name``: in tables and in peers.json. ``title``: of its bar on the front page. ``label``: its way in the store of
    measurements. ``quantity``: in records. ``precision``: its row of kit.lab.predicting.quality, "" for another program's own.
    ``short``: in the table of quantizations. ``product``: of kit's ways; None: another program."""

    name: str
    title: str
    label: str
    quantity: str
    precision: str = ""
    short: str = ""
    product: Multiplied | None = None


def rounding(product: Multiplied) -> str:
    """The precision of a product in words: a row of kit.lab.predicting.quality, also where blocks are not all in memory."""
    return "float32" if product.exact else f"{product.activations} activations"


def _of_kit(product: Multiplied) -> ComparedWay:
    precision = rounding(product)
    if product.exact:
        return ComparedWay(
            "kit", "kit, exact", "blocks, exact products", "a token, blocks as they lie", precision, "exact", product
        )
    label, title = f"blocks, {precision}", f"kit, {product.activations}"
    return ComparedWay(f"kit, {precision}", title, label, f"a token, {label}", precision, product.activations, product)


PEER = "llama.cpp, mmap"  # its default: the file mapped
PROGRAM = PEER.partition(",")[0]  # read or mapped, it computes the same
OURS = {row.name: row for row in map(_of_kit, PRODUCTS.values())}
COMPARED = OURS | {PEER: ComparedWay(PEER, "llama.cpp, the file mapped", PEER, f"a token, {PEER}")}
EXACT, *ROUNDED = OURS.values()
BUSY_TOLD = "busy, not a comparison"


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
