"""Rows of tokens that some experts take, and what these give, added to the tokens."""

import torch
from numba import types

from kit.cpu.simd.memory import load, put, some
from kit.cpu.simd.vectors import broadcast, f32x16
from kit.cpu.tasks import Static, Step, task

f32, i64 = types.float32, types.int64
_ROWS, _COLUMNS = 16, 512  # of a task


def take_step(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> Step:
    """out (rows, n) = x[index], x (tokens, n), contiguous; index: (rows,) int64."""
    arguments = dict(x=x, index=index, out=out, rows=len(index), n=x.shape[1])
    return compiled("take"), arguments, -(-len(index) // _ROWS)


def mix_step(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, shares: torch.Tensor) -> Step:
    """x[index] += shares * y, row by row: x (tokens, n) and y (rows, n), contiguous; index (rows,) int64, shares (rows,)."""
    arguments = dict(x=x, y=y, index=index, shares=shares, rows=len(index), n=x.shape[1])
    return compiled("mix"), arguments, -(-x.shape[1] // _COLUMNS)


@task
def compiled(name: Static):
    """The task of some rows, or of some columns."""
    return {"take": _take, "mix": _mix}[name.value]


def _take(task, x, index, out, rows, n):
    for row in range(_ROWS * task, min(rows, _ROWS * (task + 1))):
        own, to = x + 4 * n * load(i64, index + 8 * row), out + 4 * n * row
        for at in range(0, 4 * n, 64):
            put(to + at, some(own + at, n - at // 4), n - at // 4)


def _mix(task, x, y, index, shares, rows, n):
    for row in range(rows):
        to, own = x + 4 * n * load(i64, index + 8 * row), y + 4 * n * row
        share = broadcast(f32x16, load(f32, shares + 4 * row))
        for at in range(4 * _COLUMNS * task, 4 * min(n, _COLUMNS * (task + 1)), 64):
            left = n - at // 4
            put(to + at, some(to + at, left) + some(own + at, left) * share, left)
