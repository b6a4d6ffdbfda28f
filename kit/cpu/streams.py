"""Several residual streams of a token: their gated mean, and a result added to each by a share of its own."""

import math

import torch
from numba import types

from kit.cpu.elementwise import as_bits, sigmoid
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import bitcast, broadcast, extract, f32x16, inner
from kit.cpu.tasks import Static, Step, task

f32, u32 = types.float32, types.uint32


def mix_step(x: torch.Tensor, gates: torch.Tensor, out: torch.Tensor) -> Step:
    """out (tokens, n) = the mean over the streams of x * sigmoid(gates), both (tokens, streams, n); n a multiple of 16."""
    tokens, streams, n = x.shape
    arguments = dict(x=x, gates=gates, out=out, streams=streams, n=n, factor=as_bits(1 / streams))
    return compiled("mix"), arguments, tokens


def spread_step(x: torch.Tensor, y: torch.Tensor, logits: torch.Tensor) -> Step:
    """x (tokens, streams, n) += 2 sigmoid(logits / streams) y, y (tokens, n) and logits (tokens, streams)."""
    tokens, streams, n = x.shape
    arguments = dict(x=x, y=y, logits=logits, streams=streams, n=n, factor=as_bits(1 / streams))
    return compiled("spread"), arguments, tokens


def gate_step(key: torch.Tensor, query: torch.Tensor, value: torch.Tensor, out: torch.Tensor) -> Step:
    """out (tokens, streams, n) = value (tokens, n) * sigmoid(sign(s) sqrt(max(|s|, 1e-6))), s = key . query / sqrt(n) of each
    stream; key and query are (tokens, streams, n)."""
    tokens, streams, n = key.shape
    return compiled("gate"), dict(key=key, query=query, value=value, out=out, streams=streams, n=n), tokens * streams


def pool_step(row: torch.Tensor, held: torch.Tensor, out: torch.Tensor) -> Step:
    """held[slot] = row (n,), and out (n,) = the mean of the rows of held (rows, n); ``slot`` is 0 until ``Recording.move_to``
    sets it for each token."""
    rows, n = held.shape
    return compiled("pool"), dict(row=row, held=held, out=out, slot=0, rows=rows, n=n, factor=as_bits(1 / rows)), 1


def shares_step(logits, scale, base, out, turns: int, epsilon: float, magnitude: float = 0.0) -> Step:
    """Numbers of four streams from logits (tokens, 24, 8 or 4): 4 by which they are summed, 4 by which a result is added, and
    the matrix (from, to) by which they are mixed, of which each row and column is divided by its sum ``turns`` times. With
    ``magnitude`` the second four are sigmoids times that and ``epsilon``, without it times 2."""
    arguments = dict(
        logits=logits, scale=scale, base=base, out=out, count=logits.shape[1], turns=turns, epsilon=as_bits(epsilon)
    )
    arguments |= dict(factor=as_bits(magnitude or 2.0), more=as_bits(epsilon if magnitude else 0.0))
    return compiled("shares"), arguments, len(logits)


def weigh_step(x: torch.Tensor, shares: torch.Tensor, out: torch.Tensor) -> Step:
    """out (tokens, n) = the sum over the streams of x (tokens, 4, n) times the first of their shares."""
    return compiled("weigh"), dict(x=x, shares=shares, out=out, count=shares.shape[1], n=x.shape[2]), len(x)


def balanced_step(x: torch.Tensor, y: torch.Tensor, shares: torch.Tensor) -> Step:
    """x (tokens, 4, n) = the streams mixed by their shares, and y (tokens, n) times the second of these."""
    return compiled("balanced"), dict(x=x, y=y, shares=shares, n=x.shape[2]), len(x)


def unmixed_step(x: torch.Tensor, y: torch.Tensor, shares: torch.Tensor) -> Step:
    """x (tokens, 4, n) += y (tokens, n) times the second of their shares (tokens, 8)."""
    return compiled("unmixed"), dict(x=x, y=y, shares=shares, n=x.shape[2]), len(x)


@task
def compiled(name: Static):
    """The task of a token."""
    return {
        "mix": _mix,
        "spread": _spread,
        "pool": _pool,
        "gate": _gate,
        "shares": _shares,
        "weigh": _weigh,
        "balanced": _balanced,
        "unmixed": _unmixed,
    }[name.value]


def _mix(token, x, gates, out, streams, n, factor):
    x, gates, out = x + 4 * n * streams * token, gates + 4 * n * streams * token, out + 4 * n * token
    for at in range(0, 4 * n, 64):
        total = broadcast(f32x16, 0)
        for stream in range(0, 4 * n * streams, 4 * n):
            total = total + load(f32x16, x + stream + at) * sigmoid(load(f32x16, gates + stream + at))
        store(out + at, total * bitcast(f32, u32(factor)))


def _spread(token, x, y, logits, streams, n, factor):
    x, y, logits = x + 4 * n * streams * token, y + 4 * n * token, logits + 4 * streams * token
    for stream in range(streams):
        logit = load(f32, logits + 4 * stream) * bitcast(f32, u32(factor))
        share = extract(sigmoid(broadcast(f32x16, logit)), 0) * f32(2)
        for at in range(4 * n * stream, 4 * n * (stream + 1), 64):
            store(x + at, load(f32x16, x + at) + load(f32x16, y + at - 4 * n * stream) * share)


def _gate(row, key, query, value, out, streams, n):
    key, query, out, value = key + 4 * n * row, query + 4 * n * row, out + 4 * n * row, value + 4 * n * (row // streams)
    total = broadcast(f32x16, 0)
    for at in range(0, 4 * n, 64):
        total = fma(load(f32x16, key + at), load(f32x16, query + at), total)
    score = reduce_add(total) / f32(math.sqrt(n))
    root = f32(math.sqrt(max(abs(score), f32(1e-6))))
    share = extract(sigmoid(broadcast(f32x16, root if score > 0 else -root if score < 0 else f32(0))), 0)
    for at in range(0, 4 * n, 64):
        store(out + at, load(f32x16, value + at) * share)


def _pool(task, row, held, out, slot, rows, n, factor):
    for at in range(0, 4 * n, 64):
        store(held + 4 * n * slot + at, load(f32x16, row + at))
        total = broadcast(f32x16, 0)
        for place in range(0, 4 * n * rows, 4 * n):
            total = total + load(f32x16, held + place + at)
        store(out + at, total * bitcast(f32, u32(factor)))


def _shares(token, logits, scale, base, out, count, turns, epsilon, factor, more):
    logits, out, least = logits + 4 * count * token, out + 4 * count * token, bitcast(f32, u32(epsilon))
    factor, more = bitcast(f32, u32(factor)), bitcast(f32, u32(more))
    for n in range(count):
        x = load(f32, logits + 4 * n) * load(f32, scale + 4 * min(n // 4, 2)) + load(f32, base + 4 * n)
        share = f32(1) / (f32(1) + f32(math.exp(-x)))
        store(out + 4 * n, share + least if n < 4 else share * factor + more if n < 8 else x)
    if count < 24:
        return
    matrix = out + 32
    for row in range(matrix, matrix + 64, 16):
        largest = max(max(load(f32, row), load(f32, row + 4)), max(load(f32, row + 8), load(f32, row + 12)))
        for at in range(row, row + 16, 4):
            store(at, f32(math.exp(load(f32, at) - largest)))
        total = _total(row, 4)
        for at in range(row, row + 16, 4):
            store(at, load(f32, at) / total + least)
    for turn in range(2 * turns - 1):
        apart, along = (16, 4) if turn % 2 == 0 else (4, 16)  # the columns come first
        for first in range(matrix, matrix + 4 * along, along):
            total = _total(first, apart) + least
            for at in range(first, first + 4 * apart, apart):
                store(at, load(f32, at) / total)


@inner
def _total(first, apart):
    return load(f32, first) + load(f32, first + apart) + load(f32, first + 2 * apart) + load(f32, first + 3 * apart)


def _weigh(token, x, shares, out, count, n):
    x, shares, out = x + 16 * n * token, shares + 4 * count * token, out + 4 * n * token
    for at in range(0, 4 * n, 64):
        total = broadcast(f32x16, 0)
        for stream in range(4):
            total = total + load(f32x16, x + 4 * n * stream + at) * load(f32, shares + 4 * stream)
        store(out + at, total)


def _balanced(token, x, y, shares, n):
    x, y, shares = x + 16 * n * token, y + 4 * n * token, shares + 96 * token
    for at in range(x, x + 4 * n, 64):
        a, b = load(f32x16, at), load(f32x16, at + 4 * n)
        c, d, new = load(f32x16, at + 8 * n), load(f32x16, at + 12 * n), load(f32x16, y + at - x)
        for stream in range(4):
            to = shares + 32 + 4 * stream
            mixed = a * load(f32, to) + b * load(f32, to + 16) + c * load(f32, to + 32) + d * load(f32, to + 48)
            store(at + 4 * n * stream, mixed + new * load(f32, shares + 16 + 4 * stream))


def _unmixed(token, x, y, shares, n):
    x, y, shares = x + 16 * n * token, y + 4 * n * token, shares + 32 * token + 16
    for stream in range(4):
        for at in range(0, 4 * n, 64):
            place = x + 4 * n * stream + at
            store(place, load(f32x16, place) + load(f32x16, y + at) * load(f32, shares + 4 * stream))
