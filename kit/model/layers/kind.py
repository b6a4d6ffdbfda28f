"""What all kinds of layers share: how they name tensors, and what they remember of a sequence, in numbers.

A kind is a frozen dataclass that holds the numbers of one layer. It has

    tensors() -> Iterator[Tensor]                     its tensors in order of use; the only place that names them
    widths() -> Iterator[int]                         sizes that the CPU's recorded pass takes in vectors of sixteen, if any
    run(ops, layer, x, input, after) -> None          adds its result to x, by the operations of kit.model.forward.Ops

and it declares, as attributes of its class (see LayerKind), what else of it other modules need to know. A mixer, which sees the
tokens before, has also

    memory: Memory                                    what it remembers of a sequence
    shapes: {name: shape}                             of a fixed state, if it has one (kit.model.kvcache.state_of)
    problems() -> Iterator[(bool, str)]               what must hold, if anything, and what an error says if not
"""

import math
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from kit.cpu.shapes import Choice
from kit.model.layers.rope import RopeConfig

KV_TYPES = {"float32": 4.0, "float16": 2.0, "q8_0": 34 / 32}  # bytes of an element of keys and values


class Tensor(NamedTuple):
    """A tensor of a layer: ``name`` without the prefix ``blk.N.``, shape with the rows first."""

    name: str
    shape: tuple[int, ...]
    required: bool = True
    read: bool = True  # False: a file may have it, and no token reads it


def matrix(part: str, *shape: int) -> Iterator[Tensor]:
    """The weight ``part``, (out, in) or a stack of such, and the bias that a file may have for it."""
    yield Tensor(f"{part}.weight", shape)
    yield Tensor(f"{part}.bias", shape[:-1], required=False)


def vector(part: str, size: int) -> Iterator[Tensor]:
    """The weight ``part`` of one axis."""
    yield Tensor(f"{part}.weight", (size,))


def weight_name(norm: str) -> str:
    """The name of a norm's tensor: a name that ends in "." is whole, but for that."""
    return norm.removesuffix(".") if norm.endswith(".") else f"{norm}.weight"


def heads_problems(kind) -> Iterator[tuple[bool, str]]:
    """What must hold of a kind that attends."""
    dims = kind.rope.dims if kind.rope else 0
    yield kind.kv_heads > 0 and kind.heads % kind.kv_heads == 0, f"{kind.heads} heads, {kind.kv_heads} KV heads"
    yield dims % 2 == 0 and dims <= kind.head_dim, f"RoPE over {dims} elements"


def gated(ops, gate: str, name: str, input, mixed, heads: int):
    """What attention gives (tokens, heads * n), times the sigmoid of a product of ``name`` with its input, by "head" or by
    "element", as an input."""
    if not gate:
        return ops.input(mixed)
    gates = ops.linear(name, input)
    if gate == "element":
        return ops.activate("sigmoid", gates, mixed)
    mixed = mixed.unflatten(1, (heads, -1))
    return ops.input(ops.make("gate heads", mixed, gates, shape=mixed.shape, span="gate").flatten(1))


def heads_said(kind) -> str:
    """The heads of a kind that attends: "32 (8 of keys and values)"."""
    return f"{kind.heads} ({kind.kv_heads} of keys and values)"


class Ring(NamedTuple):
    """A query attends to the last ``window`` positions, which lie in a ring of as many rows, the newest first, and to the rows
    after it, one for ``every`` positions: to all complete ones, or the best ``top`` (0: all)."""

    window: int
    every: int
    top: int = 0

    def slot(self, position: int) -> int:
        """Where the ring has a position."""
        return self.window - 1 - position % self.window

    def units(self, positions: int) -> int:
        """How many rows the last of so many positions attends to."""
        return min(positions // self.every, self.top or positions)

    def span(self, positions: int) -> tuple[int, int]:
        """(first row, stop) of what it attends to, if the chosen rows follow the ring."""
        return max(0, self.window - positions), self.window + self.units(positions)


class Chunks(NamedTuple):
    """A query attends to the positions up to its own from the last multiple of ``size``."""

    size: int

    def span(self, positions: int) -> tuple[int, int]:
        """(first, stop) of what the last of so many positions attends to."""
        return (positions - 1) // self.size * self.size, positions

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(first, stop) of what some positions see: those of each chunk together."""
        return [(first, min(stop, first + self.size)) for first in range(start // self.size * self.size, stop, self.size)]


class Before(NamedTuple):
    """A query attends to the positions before its own, of a window of ``size`` that ends with it (0: to all)."""

    size: int

    def span(self, positions: int) -> tuple[int, int]:
        """(first, stop) of what the last of so many positions attends to."""
        return max(0, positions - self.size) if self.size else 0, positions - 1

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(first, stop) of what one position, ``start``, sees."""
        return [self.span(stop)]


class Memory(NamedTuple):
    """What a layer remembers of a sequence, in numbers: some for each position (``position``), which are written once, read by
    every token within the ``window`` (0: all), and can be cut; and ``fixed`` float32 that every token reads and writes. What is
    ``shared`` another layer holds and writes. With a ``choice`` a token reads the positions that it chooses, and to choose it
    reads the ``index``, so many numbers of each unit; 0: another layer has chosen. With ``every`` only the window is held, and
    as many numbers as of a position for every so many positions: what a token chooses from, or reads all of. ``chunked``: the
    window begins at the last multiple of its size."""

    position: int = 0
    window: int = 0
    fixed: int = 0
    shared: bool = False
    index: int = 0
    choice: Choice | None = None
    every: int = 0
    chunked: bool = False

    def seen(self, positions: int) -> int:
        """How many of so many positions a token attends to, its own included, and rows of several."""
        if self.every:
            return min(positions, self.window) + Ring(self.window, self.every, self.choice.top if self.choice else 0).units(
                positions
            )
        if self.chunked:
            return (positions - 1) % self.window + 1
        return self.choice.count(positions) if self.choice else min(positions, self.window or positions)

    def indexed(self, positions: int) -> int:
        """Numbers of the index for so many positions."""
        return self.index * self.choice.units(positions) if self.index else 0

    def held(self, positions: int, width: float = 4) -> int:
        """Bytes after so many positions, ``width`` bytes for a number of a position."""
        rows = min(positions, self.window) + positions // self.every if self.every else positions
        return 0 if self.shared else int((self.position * rows + self.indexed(positions)) * width) + 4 * self.fixed

    def read(self, positions: int, width: float = 4) -> int:
        """Bytes that a token reads which attends to so many positions, its own included."""
        return int((self.position * self.seen(positions) + self.indexed(positions)) * width) + 4 * self.fixed

    def written(self, width: float = 4) -> int:
        """Bytes that a token writes."""
        return self.held(1, width)


class LayerKind:
    """What a kind declares for modules that run or describe all kinds alike.

    ``named``: its name in kit.model.architectures and in texts. ``metadata``: patterns of keys that only such kinds read:
    a file without such a layer may have them. ``spans``: what its operations are called in a trace, with the share of a span's
    bytes that is read (a state is read and written). ``floats``: names of its tensors that no file quantizes. ``drawn``: ending
    of a tensor's name -> mean and standard deviation of random weights of it. ``on_device``: whether a GPU runs it.
    """

    named: ClassVar[str] = ""
    metadata: ClassVar[tuple[str, ...]] = ()
    spans: ClassVar[dict[str, float]] = {}
    floats: ClassVar[tuple[str, ...]] = ()
    drawn: ClassVar[dict[str, tuple[float, float]]] = {}
    on_device: ClassVar[bool] = False
    choice: ClassVar[Choice | None] = None  # of the positions to which a query attends; None: to all, or a window
    chunks: ClassVar[Chunks | Before | None] = None  # within which a query attends
    index_rope: ClassVar[RopeConfig | None] = None  # of its queries and keys
    index_size: ClassVar[int] = 0  # numbers of a unit's key, of a layer that chooses
    back_rope: ClassVar[RopeConfig | None] = None  # of what attention gives

    def widths(self) -> Iterator[int]:
        return iter(())

    def problems(self) -> Iterator[tuple[bool, str]]:
        return iter(())


ATTENDING = (  # keys that only kinds which attend read
    r"attention\.((key|value)_length_mla|(q|kv)_lora_rank|clamp_kqv|scale|value_length(_swa)?)|attn_logit_softcapping",
)
STATE = 0.5  # the share that is read of the bytes of a state, all of which are written as well


class Recurrent(LayerKind):
    """A mixer that remembers a fixed state, of ``shapes`` by name, in place of positions."""

    rope = None

    @property
    def memory(self) -> Memory:
        """All of the state, which every token reads and writes."""
        return Memory(fixed=sum(map(math.prod, self.shapes.values())))
