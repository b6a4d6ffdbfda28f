"""The arithmetic of four alternating streams of a residual (Baykal et al. 2023, AltUp; Gemma 3n), and of gates that are mostly
zero."""

import math

import torch
from numba import types

from kit.cpu.elementwise import as_bits
from kit.cpu.simd.memory import load, put, some, store
from kit.cpu.simd.sums import reduce_add
from kit.cpu.simd.vectors import bitcast, broadcast, f32x16, inner, select
from kit.cpu.tasks import Static, Step, task

f32, u32 = types.float32, types.uint32
_LEAST = 1e-5  # mean square by which a vector is divided


def predict_step(x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Step:
    """out = x, (tokens, 4, n), plus in stream i the streams of x times rows 4 i to 4 i + 3 of the weight (16, 4) times
    tanh(logits), logits (tokens, 4); n a multiple of 16."""
    return compiled("predict"), dict(x=x, logits=logits, weight=weight, out=out, n=x.shape[2]), len(x)


def correct_step(predicted, y: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Step:
    """out (tokens, 4, n) = predicted + (y - predicted[0]) (1 + weight tanh(logits)), y (tokens, n) and weight (4, 4)."""
    arguments = dict(predicted=predicted, y=y, logits=logits, weight=weight, out=out, n=y.shape[1])
    return compiled("correct"), arguments, len(y)


def first_step(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Step:
    """out (tokens, n) = the first stream of x (tokens, 4, n) times weight (n,)."""
    return compiled("first"), dict(x=x, weight=weight, out=out, n=x.shape[2]), len(x)


def others_step(x: torch.Tensor, y: torch.Tensor) -> Step:
    """x (tokens, 4, n) += y (tokens, n), but for the first stream."""
    return compiled("others"), dict(x=x, y=y, n=x.shape[2]), len(x)


def sized_step(x: torch.Tensor, like: torch.Tensor, out: torch.Tensor) -> Step:
    """out = x, (tokens, n), in the size of like."""
    return compiled("sized"), dict(x=x, like=like, out=out, n=x.shape[1]), len(x)


def cut_step(x: torch.Tensor, deviations: float) -> Step:
    """x (tokens, n) = max(0, x - (mean + deviations * standard deviation of a token's numbers))."""
    return compiled("cut"), dict(x=x, n=x.shape[1], factor=as_bits(deviations)), len(x)


@task
def compiled(name: Static):
    """The task of a token."""
    return {"predict": _predict, "correct": _correct, "first": _first, "others": _others, "sized": _sized, "cut": _cut}[
        name.value
    ]


@inner
def _share(logits, weights):
    """Four weights times tanh of four logits."""
    total = f32(0)
    for at in range(0, 16, 4):
        e = f32(math.exp(load(f32, logits + at) * f32(2)))
        total += load(f32, weights + at) * (f32(1) - f32(2) / (f32(1) + e))
    return total


def _predict(token, x, logits, weight, out, n):
    x, logits, out = x + 16 * n * token, logits + 16 * token, out + 16 * n * token
    for stream in range(4):
        row, own = weight + 64 * stream, 4 * n * stream
        a, b = _share(logits, row), _share(logits, row + 16)
        c, d = _share(logits, row + 32), _share(logits, row + 48)
        for at in range(x, x + 4 * n, 64):
            others = load(f32x16, at) * a + load(f32x16, at + 4 * n) * b
            others = others + load(f32x16, at + 8 * n) * c + load(f32x16, at + 12 * n) * d
            store(out + own + at - x, load(f32x16, at + own) + others)


def _correct(token, predicted, y, logits, weight, out, n):
    predicted, y, logits, out = predicted + 16 * n * token, y + 4 * n * token, logits + 16 * token, out + 16 * n * token
    for stream in range(4):
        share, own = f32(1) + _share(logits, weight + 16 * stream), 4 * n * stream
        for at in range(0, 4 * n, 64):
            new = load(f32x16, y + at) - load(f32x16, predicted + at)
            store(out + own + at, load(f32x16, predicted + own + at) + new * share)


def _first(token, x, weight, out, n):
    for at in range(0, 4 * n, 64):
        store(out + 4 * n * token + at, load(f32x16, x + 16 * n * token + at) * load(f32x16, weight + at))


def _others(token, x, y, n):
    x, y = x + 16 * n * token, y + 4 * n * token
    for stream in range(4 * n, 16 * n, 4 * n):
        for at in range(0, 4 * n, 64):
            store(x + stream + at, load(f32x16, x + stream + at) + load(f32x16, y + at))


@inner
def _squares(x, n):
    total = broadcast(f32x16, 0)
    for at in range(x, x + 4 * n, 64):
        total = total + load(f32x16, at) * load(f32x16, at)
    return reduce_add(total) / f32(n)


def _sized(token, x, like, out, n):
    x, like, out = x + 4 * n * token, like + 4 * n * token, out + 4 * n * token
    factor = f32(math.sqrt(_squares(like, n) / max(_squares(x, n), f32(_LEAST))))
    for at in range(0, 4 * n, 64):
        store(out + at, load(f32x16, x + at) * factor)


def _cut(token, x, n, factor):
    x += 4 * n * token
    total = broadcast(f32x16, 0)
    for at in range(0, 4 * n, 64):
        total = total + some(x + at, n - at // 4)
    mean = reduce_add(total) / f32(n)
    total = broadcast(f32x16, 0)
    for at in range(0, 4 * n, 64):
        apart = some(x + at, n - at // 4) - mean
        total = total + apart * apart
    squares = reduce_add(total) - f32(-n % 16) * mean * mean  # of the lanes after the last number
    least = mean + f32(math.sqrt(max(squares, f32(0)) / f32(n))) * bitcast(f32, u32(factor))
    for at in range(0, 4 * n, 64):
        v = some(x + at, n - at // 4) - least
        put(x + at, select(v > 0, v, broadcast(f32x16, 0)), n - at // 4)
