"""What a layer remembers of a sequence on the CPU, keys and values of all positions or a fixed state, and all layers together.

Keys and values are float32, float16 or q8_0 (ggml's blocks of 32 with one scale).
"""

import math
from collections.abc import Sequence

import torch

from kit.cpu.history import History
from kit.cpu.operations import run
from kit.cpu.threads import torch_alone
from kit.errors import ModelError, known
from kit.model.layers.kind import KV_TYPES, Ring
from kit.system import reserve
from kit.units import format_bytes

_QK8_0 = 32


class Positions:
    """What caches on all devices count: ``length`` positions held of ``context``, ``passes`` forward passes; ``fixed_bytes``
    are held from the start."""

    def __init__(self, context: int, dtype: str, bytes_per_position: int, fixed_bytes: int = 0):
        self.context, self.dtype, self.bytes_per_position, self.fixed_bytes = context, dtype, bytes_per_position, fixed_bytes
        self.length = self.passes = 0
        self.kept: torch.Tensor | None = (
            None  # of each position the state before it, for an MTP head: (context + 1, hidden size)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the positions held, and of fixed states."""
        return self.length * self.bytes_per_position + self.fixed_bytes

    def advance(self, tokens: int) -> None:
        """End a pass: ``tokens`` more positions are held."""
        self.length += tokens
        self.passes += 1

    def truncate(self, length: int) -> None:
        """Drop the positions from ``length`` on."""
        self.length = min(self.length, length)


class SequenceCache(Positions):
    """What the layers of a model remember of one sequence: ``states``, one a layer, of up to ``context`` positions.

    A state that several layers share is listed for each of them, and held once.
    """

    def __init__(self, states: Sequence, context: int, dtype: str):
        self.states, self._own = list(states), list(dict.fromkeys(states))
        super().__init__(
            context,
            dtype,
            math.ceil(sum(state.bytes_per_position for state in self._own)),
            sum(state.fixed_bytes for state in self._own),
        )

    @property
    def can_be_cut(self) -> bool:
        """Whether ``truncate`` can drop the last positions: no layer has a fixed state."""
        return not self.fixed_bytes

    def keep_states(self, size: int) -> None:
        """Keep the ``size`` numbers of each position from now on that an MTP head reads at the next. ModelError where some of
        the positions held were not kept."""
        if self.kept is None and self.length:
            raise ModelError(
                "an MTP head needs the state of every position, and this cache holds some that were read without it: begin "
                "with a new cache"
            )
        if self.kept is None:
            self.kept = _reserve(self.context + 1, 4 * size).view(torch.float32)

    def before(self, tokens: int) -> torch.Tensor:
        """What was kept of the position before each of so many tokens after those held, (tokens, size)."""
        return self.kept[self.length :][:tokens]

    def keep(self, state: torch.Tensor, tokens: int) -> None:
        """Keep the states of the last of so many ``tokens`` after the positions held."""
        end = self.length + tokens + 1
        self.kept[end - len(state) : end] = state

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v (tokens, kv_heads, head_dim) of a layer after the positions held; ``advance`` ends the pass, when every
        layer has written."""
        self.states[layer].write(self.length, k, v)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the positions held, (kv_heads, positions, head_dim) float32."""
        return self.states[layer].read(self.length)

    def truncate(self, length: int) -> None:
        """Drop the positions from ``length`` on. ModelError where a layer has a fixed state, of which no position can be taken
        away, unless all are dropped: take a ``mark`` before and go ``back_to`` it."""
        if length >= self.length:
            return
        if length and not self.can_be_cut:
            raise ModelError(
                f"a model with recurrent layers cannot go back from {self.length} to {length} positions: its state is that of "
                "the last position; call mark() at that position and back_to() with the mark, or begin again"
            )
        if not length:
            for state in self._own:
                state.clear()
        super().truncate(length)

    def mark(self) -> tuple:
        """Where the sequence is now, with a copy of the fixed states, for ``back_to``."""
        with torch_alone():  # where others have the cores, torch's threads wait for each other
            return self.length, [state.copied() for state in self._own]

    def back_to(self, mark: tuple) -> None:
        """Drop what came after a mark of this cache."""
        self.length = mark[0]
        with torch_alone():
            for state, copied in zip(self._own, mark[1], strict=True):
                state.restore(copied)

    def take(self, other: "SequenceCache") -> None:
        """Hold what ``other``, a cache of the same model and type, holds."""
        self.length, self.passes, self.kept = other.length, other.passes, None
        for mine, theirs in zip(self._own, other._own, strict=True):
            mine.take(theirs, self.length)


class KVCache:
    """Keys and values of one layer, of up to ``context`` positions.

    Address space for the whole context is reserved at once; the operating system provides memory as positions are written,
    so nothing is ever copied to grow. ``one``: keys are also the values (an absorbed latent), and stored once. ``index``: the
    elements of a further key for every so many positions, from which those are chosen to which a query attends.
    """

    fixed_bytes = 0

    def __init__(
        self, kv_heads: int, head_dim: int, context: int, dtype: str = "float32", one: bool = False, index: tuple = (0, 1)
    ):
        each = known("KV cache type", dtype, KV_TYPES, ModelError)
        size, self._unit = index
        wrong = next((n for n in (head_dim, size) if dtype == "q8_0" and n % _QK8_0), 0)
        if wrong:
            raise ModelError(f"KV cache type 'q8_0' needs heads of a multiple of {_QK8_0} elements, not {wrong}")
        self.bytes_attended = int((2 - one) * kv_heads * head_dim * each)  # of a position
        self.bytes_indexed = int(size * each)  # of a unit
        self.bytes_per_position = self.bytes_attended + self.bytes_indexed // self._unit
        self._stores = [_Store(kv_heads, context, head_dim, dtype) for _ in range(2 - one)]
        self.index = _Store(1, context // self._unit + 1, size, dtype) if size else None

    def write(self, position: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store k and v (tokens, kv_heads, head_dim) float32 at ``position`` and after."""
        for store, rows in zip(self._stores, (k, v), strict=False):
            store.write(position, rows)

    def read(self, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the first ``stop`` positions, (kv_heads, stop, head_dim) float32."""
        return self._stores[0].read(stop), self._stores[-1].read(stop)

    def histories(self) -> tuple[History, History]:
        """Addresses and layout of keys and values, for kernels."""
        return self._stores[0].history, self._stores[-1].history

    def clear(self) -> None:
        """Nothing to do: what is beyond the positions held is never read."""

    def copied(self) -> None:
        """None: what a mark cuts stays in its place until it is written again."""

    def restore(self, copied: None) -> None:
        """Nothing to do."""

    def take(self, other: "KVCache", length: int) -> None:
        """Hold the first ``length`` positions of another layer's cache of the same type."""
        for mine, theirs in zip(self._stores, other._stores, strict=True):
            mine.data[:, :length] = theirs.data[:, :length]
        if self.index:
            units = length // self._unit
            self.index.data[:, :units] = other.index.data[:, :units]


class FixedState:
    """Float32 numbers that every token reads and writes, by name; zero before the first token. They stay at their addresses."""

    bytes_per_position = 0

    def __init__(self, **shapes: tuple[int, ...]):
        with torch.inference_mode(False):  # a cache outlives the mode in which it is made
            self.parts = {name: torch.zeros(shape, dtype=torch.float32, device="cpu") for name, shape in shapes.items()}
        self.fixed_bytes = sum(part.nbytes for part in self.parts.values())

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.parts[name]

    def clear(self) -> None:
        """As before the first token."""
        for part in self.parts.values():
            part.zero_()

    def copied(self) -> list[torch.Tensor]:
        """A copy, for ``restore``."""
        return [part.clone() for part in self.parts.values()]

    def restore(self, copied: list[torch.Tensor]) -> None:
        """Hold what a copy holds."""
        for part, old in zip(self.parts.values(), copied, strict=True):
            part.copy_(old)

    def take(self, other: "FixedState", length: int) -> None:
        """Hold what another state of the same shapes holds."""
        self.restore(list(other.parts.values()))


class KVCacheAndState(FixedState, KVCache):
    """Both, of one layer: its keys and values, of as many positions as those of KVCache, and what every token writes."""

    def __init__(
        self, kv_heads: int, head_dim: int, context: int, dtype: str, one: bool = False, index: tuple = (0, 1), **shapes
    ):
        KVCache.__init__(self, kv_heads, head_dim, context, dtype, one, index)
        FixedState.__init__(self, **shapes)

    def take(self, other: "KVCacheAndState", length: int) -> None:
        """Hold the first ``length`` positions of another layer's, and its numbers."""
        KVCache.take(self, other, length)
        FixedState.take(self, other, length)


class CompressedCache(FixedState):
    """Keys, which are also values, of one layer that attends to ``rows``: those of the last positions in a ring, then one row
    for every so many positions; and numbers that every token writes. ``index``: elements of a key of each row."""

    def __init__(self, rows: Ring, size: int, context: int, dtype: str, index: int = 0, **shapes):
        super().__init__(**shapes)
        each, count = known("KV cache type", dtype, KV_TYPES, ModelError), context // rows.every + 1
        if wrong := next((n for n in (size, index) if dtype == "q8_0" and n % _QK8_0), 0):
            raise ModelError(f"KV cache type 'q8_0' needs heads of a multiple of {_QK8_0} elements, not {wrong}")
        self.rows, self.bytes_attended, self.bytes_indexed = rows, int(size * each), int(index * each)
        self.bytes_per_position = (self.bytes_attended + self.bytes_indexed) / rows.every
        self.fixed_bytes += rows.window * self.bytes_attended
        self._store = _Store(1, rows.window + count, size, dtype)
        self.index = _Store(1, count, index, dtype) if index else None
        self._ring = self._store.data[:, : rows.window]

    def write(self, position: int, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Hold k (tokens, 1, size) at ``position`` and after, the last of them in the ring: (tokens, size), as stored."""
        own, last = _Store(1, len(k), self._store.head_dim, self._store.kind), min(len(k), self.rows.window)
        own.write(0, k)
        slots = [self.rows.slot(position + token) for token in range(len(k) - last, len(k))]
        self._ring[:, slots] = own.data[:, len(k) - last :]
        return own.read(len(k))[0]

    def write_rows(self, first: int, rows: torch.Tensor, index: bool = False) -> None:
        """Hold rows (n, 1, size), the first of which has that number, or their keys in the index."""
        store, at = (self.index, first) if index else (self._store, self.rows.window + first)
        store.write(at, rows)

    def read_ring(self, positions: Sequence[int]) -> torch.Tensor:
        """The keys of some of the last positions, (n, size) float32."""
        return self._store.read(self.rows.window)[0][[self.rows.slot(position) for position in positions]]

    def read_rows(self, count: int) -> torch.Tensor:
        """The first rows, (count, size) float32."""
        return self._store.read(self.rows.window + count)[0][self.rows.window :]

    def ring_and_rows(self) -> tuple[History, History]:
        """Addresses and layout of all, and of the rows after the ring, for kernels."""
        return self._store.history, History.of(self._store.data[:, self.rows.window :], self._store.kind)

    def copied(self) -> list[torch.Tensor]:
        return [*super().copied(), self._ring.clone()]

    def restore(self, copied: list[torch.Tensor]) -> None:
        *parts, ring = copied
        super().restore(parts)
        self._ring.copy_(ring)

    def take(self, other: "CompressedCache", length: int) -> None:
        """Hold the first ``length`` positions, which are all, of another layer's."""
        self.restore(other.copied())
        count = length // self.rows.every
        self._store.data[:, self.rows.window :][:, :count] = other._store.data[:, self.rows.window :][:, :count]
        if self.index:
            self.index.data[:, :count] = other.index.data[:, :count]


def state_of(mixer, context: int, dtype: str) -> KVCache | FixedState | CompressedCache:
    """Where a layer with this mixer remembers an empty sequence; a fixed state is float32 for any ``dtype``."""
    shapes = getattr(mixer, "shapes", {})
    if not mixer.memory.position:
        return FixedState(**shapes)
    if mixer.memory.every:
        return CompressedCache(mixer.rows, mixer.size, context, dtype, mixer.index_size, **shapes)
    index = mixer.index_size, mixer.choice.each if mixer.choice else 1
    sizes = mixer.kv_heads, mixer.head_dim, context, dtype, getattr(mixer, "absorbed", False), index
    return KVCacheAndState(*sizes, **shapes) if shapes else KVCache(*sizes)


def _reserve(*shape: int) -> torch.Tensor:
    """Zeros, uint8, whose memory is allocated page by page, at the first write."""
    nbytes = math.prod(shape)
    try:
        memory = reserve(nbytes)
    except OSError as error:
        wanted = format_bytes(nbytes)
        raise ModelError(f"cannot reserve {wanted} for a KV cache: {error.strerror}; ask for less context") from None
    return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes).view(shape)


class _Store:
    """The keys, or the values, of a layer: ``data`` (kv_heads, context, bytes of a head)."""

    def __init__(self, kv_heads, context, head_dim, kind):
        self.head_dim, self.kind = head_dim, kind
        self.data = _reserve(kv_heads, context, int(head_dim * KV_TYPES[kind]))
        self.history = History.of(self.data, kind)

    def write(self, position, rows):
        """Store rows (tokens, kv_heads, head_dim) float32 at ``position`` and after."""
        run("append", rows.contiguous(), self.history, position)

    def read(self, stop):
        """The first ``stop`` positions, (kv_heads, stop, head_dim) float32; a view if float32 is stored."""
        data = self.data[:, :stop]
        if self.kind != "q8_0":
            return data.view(getattr(torch, self.kind)).float()
        blocks = data.unflatten(-1, (-1, 34))
        return (blocks[..., 2:].view(torch.int8) * blocks[..., :2].contiguous().view(torch.float16).float()).flatten(-2)
