"""Several residual streams of a token: their gated mean, and a result added to each by a share of its own."""

import math

import torch
from numba import types

from kit.cpu.elementwise import as_bits, sigmoid
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import bitcast, broadcast, extract, f32x16
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


def pool_step(row: torch.Tensor, held: torch.Tensor, out: torch.Tensor, slot: int = 0) -> Step:
    """held[slot] = row (n,), and out (n,) = the mean of the rows of held (rows, n)."""
    rows, n = held.shape
    return compiled("pool"), dict(row=row, held=held, out=out, slot=slot, rows=rows, n=n, factor=as_bits(1 / rows)), 1


@task
def compiled(name: Static):
    """The task of a token."""
    return {"mix": _mix, "spread": _spread, "pool": _pool, "gate": _gate}[name.value]


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
