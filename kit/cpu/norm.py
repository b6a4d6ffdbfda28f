"""RMSNorm, y = x / sqrt(mean of x^2 + eps) * weight, and LayerNorm, which subtracts the mean first, over the last axis."""

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
from numba import types

from kit.cpu import threads
from kit.cpu.buffers import ARENA
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.sums import reduce_add
from kit.cpu.simd.vectors import bitcast, broadcast, f32x16, inner
from kit.cpu.tasks import Static, Step, address_of, function, task

f32, f64, u32 = types.float32, types.float64, types.uint32
SMALL_NORM = 2**15  # numbers up to which one thread is done before others have begun
_LANES = 16


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """x (..., n) and weight (n,) float32 -> (..., n): one compiled loop for few numbers, all threads for many. ``offset`` is
    added to the weight. x (..., groups, n) may have one weight per group, (groups, n)."""
    n = weight.shape[-1]
    if n % _LANES or not x.is_contiguous() or not x.dtype is weight.dtype is torch.float32:
        return F.rms_norm(x, (n,), None, eps) * (weight.float() + offset)
    y = ARENA.results.empty(x.shape, x.dtype)
    row, arguments, count = step(x, y, eps, weight, offset=offset)
    if x.numel() > SMALL_NORM:
        threads.run(row, arguments, count)
    else:
        _few()(count, *map(address_of, arguments.values()))
    return y


def step(x: torch.Tensor, y: torch.Tensor, eps: float, weight: torch.Tensor, bias=None, offset: float = 0.0) -> Step:
    """The norm of x (..., n) into y: RMSNorm, or LayerNorm if there is a bias (n,)."""
    n, last = x.shape[-1], {} if bias is None else {"bias": bias}
    arguments = dict(x=x, weight=weight, y=y, n=n)
    arguments |= constants(eps, offset, weight.numel() // n)
    return rows("rms" if bias is None else "layer"), arguments | last, x.numel() // n


@functools.cache
def _few():
    return function(rows("few rms"), 8)


@functools.cache
def constants(eps: float, offset: float = 0.0, groups: int = 1) -> dict[str, int]:
    """Arguments of ``rows``: the bits of a float64 and of a float32, and after how many rows the weights repeat."""
    return dict(eps=float64_bits(eps), offset=int(np.float32(offset).view(np.uint32)), groups=groups)


def float64_bits(number: float) -> int:
    """The bits of a float64 as an integer, as a task takes it."""
    return int(np.float64(number).view(np.int64))


@task
def rows(kind: Static):
    """The task of one row, "rms" or "layer"; or that of several rows, as many as its number says, "few rms"."""
    return {"rms": _rms_row, "layer": _layer_row, "few rms": _rms_rows}[kind.value]


def _rms_row(row, x, weight, y, n, eps, offset, groups):
    weight += 4 * n * (row % groups)
    _rms_norm(x + 4 * n * row, weight, y + 4 * n * row, n, 1, 1, bitcast(f64, eps), bitcast(f32, u32(offset)))


def _rms_rows(count, x, weight, y, n, eps, offset, groups):
    _rms_norm(x, weight, y, n, count, groups, bitcast(f64, eps), bitcast(f32, u32(offset)))


def _layer_row(row, x, weight, bias, y, n, eps, offset, groups):
    weight += 4 * n * (row % groups)
    bias += 4 * n * (row % groups)
    x, y, total, squares = x + 4 * n * row, y + 4 * n * row, broadcast(f32x16, 0), broadcast(f32x16, 0)
    for at in range(0, 4 * n, 64):
        total = total + load(f32x16, x + at)
    mean = reduce_add(total) / f32(n)
    for at in range(0, 4 * n, 64):
        v = load(f32x16, x + at) - mean
        squares = squares + v * v
    scale, offset = f32(1 / math.sqrt(reduce_add(squares) / n + bitcast(f64, eps))), bitcast(f32, u32(offset))
    for at in range(0, 4 * n, 64):
        factor = scale * (load(f32x16, weight + at) + offset)
        store(y + at, (load(f32x16, x + at) - mean) * factor + load(f32x16, bias + at))


@inner
def _rms_norm(x, weights, y, n, rows, groups, eps, offset):
    offset = np.float32(offset)
    for row in range(rows):
        weight = weights + 4 * n * (row % groups)
        a = b = broadcast(f32x16, 0)
        for at in range(0, 4 * (n & -32), 128):
            v, w = load(f32x16, x + at), load(f32x16, x + at + 64)
            a, b = a + v * v, b + w * w
        if n & 16:
            v = load(f32x16, x + 4 * (n - 16))
            a = a + v * v
        scale = np.float32(1 / math.sqrt(reduce_add(a + b) / n + eps))
        for at in range(0, 4 * n, 64):
            store(y + at, load(f32x16, x + at) * scale * (load(f32x16, weight + at) + offset))
        x += 4 * n
        y += 4 * n
