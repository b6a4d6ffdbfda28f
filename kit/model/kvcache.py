"""The key/value cache: grows in place, in float32, float16 or q8_0 (ggml's blocks of 32 with one scale)."""

import mmap

import numpy as np
import torch

from kit.errors import ModelError
from kit.units import format_bytes

KV_TYPES = {"float32": 4.0, "float16": 2.0, "q8_0": 34 / 32}  # bytes an element
_QK8_0 = 32


class KVCache:
    """Keys and values of up to ``context`` positions, all layers.

    Address space for the whole context is reserved and the operating system gives memory as positions are written, so
    growth never copies what is held. ``length`` positions are filled; ``passes`` counts forward passes.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, context: int, dtype: str = "float32"):
        if dtype not in KV_TYPES:
            raise ModelError(f"KV cache type {dtype!r} is not known; choose one of {', '.join(KV_TYPES)}")
        if dtype == "q8_0" and head_dim % _QK8_0:
            raise ModelError(f"KV cache type 'q8_0' needs heads of a multiple of {_QK8_0} elements, not {head_dim}")
        self.dtype, self.context, self.length, self.passes = dtype, context, 0, 0
        shape = (kv_heads, context, head_dim)
        store = _Quantized if dtype == "q8_0" else _Plain
        self._keys = [store(shape, dtype) for _ in range(layers)]
        self._values = [store(shape, dtype) for _ in range(layers)]
        self.bytes_per_position = int(2 * layers * kv_heads * head_dim * KV_TYPES[dtype])

    @property
    def nbytes(self) -> int:
        """Bytes of the positions held."""
        return self.length * self.bytes_per_position

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v (tokens, kv_heads, head_dim) of ``layer`` after the positions held; all of the layer's keys and
        values, float32 (kv_heads, positions, head_dim). ``advance`` makes them count, once every layer has written."""
        start, stop = self.length, self.length + k.shape[0]
        return self._keys[layer].write(start, stop, k), self._values[layer].write(start, stop, v)

    def advance(self, tokens: int) -> None:
        """Close a pass: ``tokens`` more positions are held."""
        self.length += tokens
        self.passes += 1

    def truncate(self, length: int) -> None:
        """Forget the positions from ``length`` on."""
        self.length = min(self.length, length)


def _reserve(shape, dtype) -> torch.Tensor:
    """Zeros that take memory page by page, at first touch."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, max(nbytes, 1), flags=flags)
    except OSError as error:
        wanted = format_bytes(nbytes)
        raise ModelError(f"cannot reserve {wanted} for a KV cache: {error.strerror}; ask for less context") from None
    return torch.from_numpy(np.frombuffer(memory, dtype, int(np.prod(shape))).reshape(shape))


class _Plain:
    """Elements as they are, in float32 or rounded to float16."""

    def __init__(self, shape, dtype):
        self.data = _reserve(shape, dtype)

    def write(self, start, stop, rows):
        self.data[:, start:stop] = rows.transpose(0, 1)
        return self.data[:, :stop].float()  # the view itself when it is float32


class _Quantized:
    """int8 in blocks of 32 along a head, each with the float16 scale max|x| / 127, as ggml's Q8_0."""

    def __init__(self, shape, dtype):
        heads, context, dim = shape
        self.quants = _reserve((heads, context, dim // _QK8_0, _QK8_0), np.int8)
        self.scales = _reserve((heads, context, dim // _QK8_0, 1), np.float16)

    def write(self, start, stop, rows):
        blocks = rows.transpose(0, 1).unflatten(-1, (-1, _QK8_0))
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        inverse = torch.where(scale > 0, 1 / scale, 0)
        self.quants[:, start:stop] = (blocks * inverse).round()
        self.scales[:, start:stop] = scale
        return (self.quants[:, :stop] * self.scales[:, :stop].float()).flatten(-2)
