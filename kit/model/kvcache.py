"""The key/value cache on the CPU, in float32, float16 or q8_0 (ggml's blocks of 32 with one scale)."""

import math

import torch

from kit.cpu import threads
from kit.cpu.history import History, append
from kit.cpu.simd.tiers import tier
from kit.errors import ModelError, known
from kit.system import reserve
from kit.units import format_bytes

KV_TYPES = {"float32": 4.0, "float16": 2.0, "q8_0": 34 / 32}  # bytes of an element
_QK8_0 = 32


class Positions:
    """What key/value caches on all devices count: ``length`` positions held of ``context``, ``passes`` forward passes."""

    def __init__(self, context: int, dtype: str, bytes_per_position: int):
        self.context, self.dtype, self.bytes_per_position = context, dtype, bytes_per_position
        self.length = self.passes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the positions held."""
        return self.length * self.bytes_per_position

    def advance(self, tokens: int) -> None:
        """End a pass: ``tokens`` more positions are held."""
        self.length += tokens
        self.passes += 1

    def truncate(self, length: int) -> None:
        """Drop the positions from ``length`` on."""
        self.length = min(self.length, length)


class KVCache(Positions):
    """Keys and values of up to ``context`` positions in all layers.

    Address space for the whole context is reserved at once; the operating system provides memory as positions are written,
    so nothing is ever copied to grow. ``one``: keys are also the values (an absorbed latent), and stored once.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, context: int, dtype: str = "float32", one: bool = False):
        each = known("KV cache type", dtype, KV_TYPES, ModelError)
        if dtype == "q8_0" and head_dim % _QK8_0:
            raise ModelError(f"KV cache type 'q8_0' needs heads of a multiple of {_QK8_0} elements, not {head_dim}")
        super().__init__(context, dtype, int((2 - one) * layers * kv_heads * head_dim * each))
        made = [[_Store(kv_heads, context, head_dim, dtype) for _ in range(layers)] for _ in range(2 - one)]
        self._keys, self._values = made[0], made[-1]

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v (tokens, kv_heads, head_dim) of ``layer`` after the positions held; returns all keys and values of
        the layer, (kv_heads, positions, head_dim) float32. ``advance`` ends the pass, when every layer has written."""
        self.write(layer, k, v)
        stop = self.length + len(k)
        return self._keys[layer].read(stop), self._values[layer].read(stop)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the positions held, (kv_heads, positions, head_dim) float32."""
        return self._keys[layer].read(self.length), self._values[layer].read(self.length)

    def take(self, other: "KVCache") -> None:
        """Hold what ``other``, a cache of the same model and type, holds."""
        self.length, self.passes = other.length, other.passes
        for mine, theirs in zip(self._keys + self._values, other._keys + other._values, strict=True):
            mine.data[:, : self.length] = theirs.data[:, : self.length]

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v of ``layer`` as ``append`` does, without returning anything."""
        self._keys[layer].write(self.length, k)
        if self._values is not self._keys:
            self._values[layer].write(self.length, v)

    def histories(self, layer: int) -> tuple[History, History]:
        """Addresses and layout of a layer's keys and values, for kernels."""
        return self._keys[layer].history, self._values[layer].history


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
        self.history = History(kind, self.data.data_ptr(), self.data.stride(0), self.data.stride(1))

    def write(self, position, rows):
        """Store rows (tokens, kv_heads, head_dim) float32 at ``position`` and after."""
        rows = rows.contiguous()
        arguments = dict(
            source=rows.data_ptr(), token_bytes=4 * rows.stride(0), tokens=len(rows), dim=self.head_dim, position=position
        )
        threads.run(append(self.kind, tier()), arguments | self.history.arguments("target"), rows.shape[1])

    def read(self, stop):
        """The first ``stop`` positions, (kv_heads, stop, head_dim) float32; a view if float32 is stored."""
        data = self.data[:, :stop]
        if self.kind != "q8_0":
            return data.view(getattr(torch, self.kind)).float()
        blocks = data.unflatten(-1, (-1, 34))
        return (blocks[..., 2:].view(torch.int8) * blocks[..., :2].contiguous().view(torch.float16).float()).flatten(-2)
