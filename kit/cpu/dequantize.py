"""The cpu backend: the kernels, a chunk of blocks at a time, on all threads of the kit, straight into the result."""

import functools
import re
from pathlib import Path

import numpy as np
import torch
from numba import types

from kit.cpu import threads
from kit.cpu.kernels import FORMATS, SINKS, decode
from kit.cpu.simd.memory import fence, load, stack
from kit.cpu.simd.tiers import tier
from kit.cpu.simd.vectors import Static
from kit.gguf.formats import Format

__all__ = ["DEVICE", "FORMATS", "run"]

DEVICE = "cpu"
_CHUNK = 2**17  # weights that a thread takes at a time
_DTYPES = {getattr(torch, name): name for name in SINKS}
_scratch = stack(256)
i64 = types.int64


def run(blocks: np.ndarray, format: Format, out: torch.Tensor) -> None:
    """Dequantize C-contiguous ``blocks`` into ``out``; several Python threads may do so at once."""
    count, step = out.numel() // format.block_elements, max(1, _CHUNK // format.block_elements)
    source, target = blocks.ctypes.data, out.data_ptr()
    strides = step * format.block_bytes, step * format.block_elements * out.itemsize
    streams = out.nbytes > _cache_bytes() and target % 64 == 0
    kernel = _kernel(format.name, _DTYPES[out.dtype], tier())
    threads.run(kernel, (source, target, *strides, count, step, streams), -(-count // step))


@functools.cache
def _cache_bytes() -> int:
    """Bytes of the last-level cache, as Linux tells it; 32 MiB where it does not."""
    sizes = [path.read_text() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "": 1}
    found = [re.fullmatch(r"(\d+)([KM]?)\s*", size) for size in sizes]
    return max((int(match[1]) * units[match[2]] for match in found if match), default=2**25)


@functools.cache
def _kernel(format: str, dtype: str, tier: Static) -> int:
    """Compiled at the first use of a format, or had from the cache on disk."""
    return _decode(Static(format), Static(dtype), tier)


def _decode(format: Static, dtype: Static, tier: Static) -> int:
    """Arguments, all int64: addresses of the blocks and of the result; bytes of a piece of each; blocks; blocks a piece;
    whether to store past the caches."""

    def chunk(arguments, piece):
        source = load(i64, arguments) + piece * load(i64, arguments + 16)
        target = load(i64, arguments + 8) + piece * load(i64, arguments + 24)
        count, step, streams = load(i64, arguments + 32), load(i64, arguments + 40), load(i64, arguments + 48)
        decode(format, dtype, tier, streams != 0, source, min(step, count - piece * step), target, _scratch())
        fence()

    return threads.piecework(chunk)
