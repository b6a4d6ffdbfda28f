"""The cpu backend: the kernels, a chunk of blocks at a time, on all threads of the kit, straight into the result."""

import functools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from kit import threads
from kit.quants.formats import Format
from kit.quants.kernels import FORMATS, SINKS, decode
from kit.simd.tiers import tier
from kit.simd.vectors import Static, fence, jit

__all__ = ["DEVICE", "FORMATS", "run"]

DEVICE = "cpu"
_CHUNK = 2**19  # weights that a thread takes at a time; smaller tensors are not worth waking another thread
_DTYPES = {getattr(torch, name): Static(name) for name in SINKS}


def run(blocks: np.ndarray, format: Format, out: torch.Tensor) -> None:
    """Dequantise C-contiguous ``blocks`` into ``out``; several Python threads may do so at once."""
    count, step = out.numel() // format.block_elements, max(1, _CHUNK // format.block_elements)
    source, target = blocks.ctypes.data, out.data_ptr()
    streams = out.nbytes > _cache_bytes() and target % 64 == 0
    starts = iter(range(0, count, step))
    kernel = Static(format.name), _DTYPES[out.dtype], tier()

    def work():
        scratch = np.empty(64, np.float32)
        for start in starts:  # next() of a range is atomic: threads share it
            first = start * format.block_elements
            _decode(
                *kernel, streams, source + start * format.block_bytes, min(step, count - start),
                target + first * out.dtype.itemsize, scratch.ctypes.data,
            )  # fmt: skip

    helpers = min(threads.count(), -(-count // step)) - 1
    waiting = [_threads().submit(work) for _ in range(helpers)]
    work()
    for helper in waiting:
        if not helper.cancel():  # one that has not started has nothing left to do
            helper.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="dequantize")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads stay behind in the parent


@functools.cache
def _cache_bytes() -> int:
    """Bytes of the last-level cache, as Linux tells it; 32 MiB where it does not."""
    sizes = [path.read_text() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "": 1}
    found = [re.fullmatch(r"(\d+)([KM]?)\s*", size) for size in sizes]
    return max((int(match[1]) * units[match[2]] for match in found if match), default=2**25)


@jit
def _decode(format, dtype, tier, streams, blocks, count, out, scratch):
    decode(format, dtype, tier, streams, blocks, count, out, scratch)
    fence()
