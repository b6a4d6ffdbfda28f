"""The cpu backend: the kernels, a chunk of blocks at a time, on as many threads as torch uses, straight into the result."""

import functools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numba import njit

from kit.quants.formats import Format
from kit.quants.kernels import FORMATS, copy, decode  # noqa: F401
from kit.simd.special import float_to_bfloat, float_to_half
from kit.simd.tiers import tier
from kit.simd.vectors import Static, f32x16, fence, jit, load, store, stream

DEVICE = "cpu"
_CHUNK = 2**19  # weights that a thread takes at a time; smaller tensors are not worth waking another thread
_STRIP = 2**12  # weights decoded to the level-1 cache before they are converted, or streamed past the caches
_SCRATCH = 64  # floats before the strip, for the scales of a block
_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def run(blocks: np.ndarray, format: Format, out: torch.Tensor) -> None:
    """Dequantise C-contiguous ``blocks`` into ``out``; several Python threads may do so at once."""
    count, step = out.numel() // format.block_elements, max(1, _CHUNK // format.block_elements)
    source, target, width = blocks.ctypes.data, out.data_ptr(), out.dtype.itemsize
    streams = out.nbytes > _cache_bytes() and target % 64 == 0
    starts = iter(range(0, count, step))
    kernel, best = Static(format.name), tier()

    def work():
        scratch = np.empty(_SCRATCH + _STRIP + 16, np.float32)
        aligned = -(-scratch.ctypes.data // 64) * 64
        for start in starts:  # next() of a range is atomic: threads share it
            _decode_to(
                kernel, best, _KINDS[out.dtype], streams, format.block_bytes, format.block_elements,
                source + start * format.block_bytes, min(step, count - start),
                target + start * format.block_elements * width, aligned,
            )  # fmt: skip

    helpers = min(torch.get_num_threads(), -(-count // step)) - 1
    waiting = [_threads().submit(work) for _ in range(helpers)]
    work()
    for helper in waiting:
        helper.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="dequantize")


@functools.cache
def _cache_bytes() -> int:
    """Bytes of the last-level cache, as Linux tells it; 32 MiB where it does not."""
    sizes = [path.read_text() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "": 1}
    found = [re.fullmatch(r"(\d+)([KM]?)\s*", size) for size in sizes]
    return max((int(match[1]) * units[match[2]] for match in found if match), default=2**25)


@jit
def _decode_to(format, tier, kind, streams, block_bytes, block_elements, blocks, count, out, scratch):
    """Decode ``count`` blocks to ``out``: float32 (kind 0), half (1), bfloat16 (2), by way of a strip in the level-1 cache."""
    if kind == 0 and not streams:
        decode(format, tier, blocks, count, out, scratch)
        return
    strip, width = scratch + 4 * _SCRATCH, 4 if kind == 0 else 2
    while count > 0:
        some = min(count, _STRIP // block_elements)
        decode(format, tier, blocks, some, strip, scratch)
        _flush(tier, kind, streams, strip, some * block_elements, out, scratch)
        blocks += some * block_bytes
        out += some * block_elements * width
        count -= some
    if streams:
        fence()


@njit
def _flush(tier, kind, streams, strip, weights, out, scratch):
    """The strip's float32 to ``out``."""
    whole = weights & -16
    if kind == 0:
        for i in range(0, whole, 16):
            stream(out + 4 * i, load(f32x16, strip + 4 * i))
        copy(strip + 4 * whole, 4 * (weights - whole), out + 4 * whole)
        return
    for i in range(0, whole, 16):
        value = _narrow(tier, kind, strip + 4 * i)
        if streams:
            stream(out + 2 * i, value)
        else:
            store(out + 2 * i, value)
    if whole < weights:
        store(scratch, _narrow(tier, kind, strip + 4 * whole))
        copy(scratch, 2 * (weights - whole), out + 2 * whole)


@njit
def _narrow(tier, kind, address):
    value = load(f32x16, address)
    return float_to_half(tier, value) if kind == 1 else float_to_bfloat(value)
