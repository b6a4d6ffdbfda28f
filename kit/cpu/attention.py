"""Attention of one query on the thread pool: keys and values as the cache holds them, a chunk of positions a task.

The history stays in float32, float16 or q8_0: a tile of it becomes float32 in the first-level cache, once for all query heads
that share it. A task leaves its largest score, the sum of its weights and the weighted values; ``combine`` joins the chunks.
"""

import math

import numpy as np
import torch
from numba import types

from kit.cpu import threads
from kit.cpu.activations import ROUNDER, ROUNDER_BITS
from kit.cpu.history import LANES, TILE, History, as_floats, greatest_of, tile_positions
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.sums import fma, reduce_add, reduce_add4
from kit.cpu.simd.tiers import tier
from kit.cpu.simd.vectors import Static, bitcast, broadcast, extract, f32x16, i32x16, inner, select
from kit.cpu.tasks import task

f32, u32 = types.float32, types.uint32
CHUNK, GROUP = 256, 64  # positions of a task; query heads that may share a key/value head
_scores, _tile = stack(4 * CHUNK * GROUP), stack(TILE)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int = 0, cap: float = 0.0) -> torch.Tensor:
    """As every variant of kit.model.attention, for one query whose head has a multiple of 16 elements: q (heads, 1, head_dim),
    k and v (kv_heads, positions, head_dim) float32, the elements of a position side by side -> (heads, 1, head_dim)."""
    keys, values = (History("float32", x.data_ptr(), 4 * x.stride(0), 4 * x.stride(1)) for x in (k, v))
    return attend_history(q, keys, values, len(k), k.shape[1], scale, window, cap)


def attend_history(q, keys: History, values: History, kv_heads: int, positions: int, scale: float, window: int = 0, cap=0.0):
    """The same for keys and values as a cache holds them."""
    heads, _, dim = q.shape
    q, out = q.contiguous(), torch.empty(heads, 1, dim)
    first = max(0, positions - window) if window else 0
    chunks = chunks_of(first, positions)
    parts = torch.empty(heads * chunks * part_bytes(dim) // 4)
    arguments = chunk_arguments(q.data_ptr(), keys, values, parts.data_ptr(), heads // kv_heads, dim, scale, cap)
    arguments |= dict(first=first, positions=positions, chunks=chunks)
    threads.run(attend_chunk(keys.kind, tier()), arguments, kv_heads * chunks)
    threads.run(combine(), dict(parts=parts.data_ptr(), out=out.data_ptr(), dim=dim, chunks=chunks), heads)
    return out


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether ``attend`` can take these."""
    fits = q.shape[1] == 1 and q.shape[2] % LANES == 0 and len(q) <= GROUP * len(k)
    return fits and all(t.dtype == torch.float32 and t.stride(2) == 1 for t in (q, k, v))


def chunks_of(first: int, positions: int) -> int:
    """Chunks of the positions from ``first`` on."""
    return -(-(positions - first) // CHUNK)


def part_bytes(dim: int) -> int:
    """What a task leaves for each query head: the weighted values, and a line with the largest score and the weights' sum."""
    return 4 * dim + 64


def chunk_arguments(q: int, keys: History, values: History, parts: int, group: int, dim: int, scale: float, cap: float) -> dict:
    """The arguments of ``attend_chunk``; the last three change from token to token."""
    fixed = keys.arguments("k") | values.arguments("v") | dict(q=q, parts=parts, group=group, dim=dim)
    bits = {name: int(np.float32(number).view(np.uint32)) for name, number in (("scale", scale), ("cap", cap))}
    return fixed | bits | dict(first=0, positions=0, chunks=0)


@task
def attend_chunk(kind: Static, tier: Static):
    """The task of a key/value head and a chunk of positions: the number of the one times ``chunks`` plus that of the other."""

    def attend_chunk(
        task, q, k, k_head, k_stride, v, v_head, v_stride, parts, group, dim, scale, cap, first, positions, chunks
    ):
        head, chunk, vectors = task // chunks, task % chunks, dim // LANES
        start = first + chunk * CHUNK
        count = min(CHUNK, positions - start)
        tile, weights, scratch = min(CHUNK, tile_positions(kind, vectors)), _scores(), _tile()
        factor = bitcast(f32, u32(scale))
        q += 4 * dim * group * head
        k += k_head * head + k_stride * start
        v += v_head * head + v_stride * start
        size, apart = 4 * dim + 64, (4 * dim + 64) * chunks  # from a part to the next chunk's, and to the next head's
        out = parts + apart * group * head + size * chunk
        for at in range(0, count, tile):
            some = min(tile, count - at)
            key, stride = as_floats(kind, tier, k + k_stride * at, k_stride, some, vectors, scratch)
            for n in range(0, group, 2):
                other = min(n + 1, group - 1)  # the last of an odd number of heads is its own neighbor
                mine, theirs = weights + 4 * (CHUNK * n + at), weights + 4 * (CHUNK * other + at)
                _dot_products(q + 4 * dim * n, q + 4 * dim * other, key, stride, vectors, some, mine, theirs, factor)
        for n in range(group):
            if cap:
                _cap(weights + 4 * CHUNK * n, count, bitcast(f32, u32(cap)))
            _weigh(weights + 4 * CHUNK * n, count, out + apart * n + 4 * dim)
            for at in range(0, 4 * dim, 64):
                store(out + apart * n + at, broadcast(f32x16, 0))
        for at in range(0, count, tile):
            some = min(tile, count - at)
            value, stride = as_floats(kind, tier, v + v_stride * at, v_stride, some, vectors, scratch)
            for n in range(0, group - 1, 2):
                mine, to, fours = weights + 4 * (CHUNK * n + at), out + apart * n, vectors & -4
                for e in range(0, 64 * fours, 256):
                    _add_four(mine, mine + 4 * CHUNK, value + e, stride, some, to + e, to + apart + e)
                for e in range(64 * fours, 64 * vectors, 64):
                    _add_values(mine, value + e, stride, some, to + e)
                    _add_values(mine + 4 * CHUNK, value + e, stride, some, to + apart + e)
            if group % 2:
                n = group - 1
                for e in range(0, 64 * vectors, 64):
                    _add_values(weights + 4 * (CHUNK * n + at), value + e, stride, some, out + apart * n + e)

    return attend_chunk


@task
def combine():
    """The task that joins the chunks of a query head."""
    return _combine


def _combine(head, parts, out, dim, chunks):
    size, largest, total = 4 * dim + 64, f32(-math.inf), f32(0)
    first = parts + head * chunks * size
    out += 4 * dim * head
    for chunk in range(chunks):
        most = load(f32, first + chunk * size + 4 * dim)
        largest = most if most > largest or most != most else largest
    for at in range(0, 4 * dim, 64):
        store(out + at, broadcast(f32x16, 0))
    for chunk in range(chunks):
        part = first + chunk * size
        share = extract(exp_of_negative(broadcast(f32x16, load(f32, part + 4 * dim) - largest)), 0)
        total += share * load(f32, part + 4 * dim + 4)
        for at in range(0, 4 * dim, 64):
            store(out + at, fma(load(f32x16, part + at), broadcast(f32x16, share), load(f32x16, out + at)))
    for at in range(0, 4 * dim, 64):
        store(out + at, load(f32x16, out + at) * (f32(1) / total))


# ---- the loops


@inner
def _dot_products(q, other, k, stride, vectors, positions, scores, other_scores, scale):
    """scale q . k of each position for two heads, four positions at a time."""
    whole = positions & -4
    for position in range(0, whole, 4):
        a = b = c = d = e = f = g = h = broadcast(f32x16, 0)
        key = k + position * stride
        for at in range(0, 64 * vectors, 64):
            x, y, z = load(f32x16, q + at), load(f32x16, other + at), load(f32x16, key + at)
            a, b = fma(x, z, a), fma(y, z, b)
            z = load(f32x16, key + stride + at)
            c, d = fma(x, z, c), fma(y, z, d)
            z = load(f32x16, key + 2 * stride + at)
            e, f = fma(x, z, e), fma(y, z, f)
            z = load(f32x16, key + 3 * stride + at)
            g, h = fma(x, z, g), fma(y, z, h)
        store(scores + 4 * position, reduce_add4(a, c, e, g) * scale)
        store(other_scores + 4 * position, reduce_add4(b, d, f, h) * scale)
    for position in range(whole, positions):
        a = b = broadcast(f32x16, 0)
        for at in range(0, 64 * vectors, 64):
            z = load(f32x16, k + position * stride + at)
            a, b = fma(load(f32x16, q + at), z, a), fma(load(f32x16, other + at), z, b)
        store(scores + 4 * position, reduce_add(a) * scale)
        store(other_scores + 4 * position, reduce_add(b) * scale)


@inner
def _cap(scores, positions, cap):
    """Scores s to cap * tanh(s / cap), in place."""
    for at in range(0, 4 * positions, 64):
        x = load(f32x16, scores + at) / cap
        e = exp_of_negative(select(x > 0, 0 - x, x) * f32(2))
        tanh = (1 - e) / (e + 1)  # of |x|
        store(scores + at, select(x > 0, tanh, 0 - tanh) * cap)


@inner
def _weigh(scores, positions, largest_and_sum):
    """Scores to weights in place, the largest 1; that largest score, and the sum of the weights."""
    width = (positions + LANES - 1) // LANES * LANES
    for position in range(positions, width):
        store(scores + 4 * position, f32(-math.inf))
    most = broadcast(f32x16, -math.inf)
    for at in range(0, 4 * width, 64):
        x = load(f32x16, scores + at)
        most = select(x > most, x, most)
    largest, sums = greatest_of(most, most), broadcast(f32x16, 0)
    for at in range(0, 4 * width, 64):
        weight = exp_of_negative(load(f32x16, scores + at) - largest)
        store(scores + at, weight)
        sums = sums + weight
    store(largest_and_sum, largest)
    store(largest_and_sum + 4, reduce_add(sums))


@inner
def _add_four(weights, others, v, stride, positions, out, other_out):
    """To two heads' results, 64 elements of the values, weighted."""
    a, c, e, g = load(f32x16, out), load(f32x16, out + 64), load(f32x16, out + 128), load(f32x16, out + 192)
    b, d = load(f32x16, other_out), load(f32x16, other_out + 64)
    f, h = load(f32x16, other_out + 128), load(f32x16, other_out + 192)
    for position in range(positions):
        x, y = broadcast(f32x16, load(f32, weights + 4 * position)), broadcast(f32x16, load(f32, others + 4 * position))
        value = v + position * stride
        z = load(f32x16, value)
        a, b = fma(z, x, a), fma(z, y, b)
        z = load(f32x16, value + 64)
        c, d = fma(z, x, c), fma(z, y, d)
        z = load(f32x16, value + 128)
        e, f = fma(z, x, e), fma(z, y, f)
        z = load(f32x16, value + 192)
        g, h = fma(z, x, g), fma(z, y, h)
    for at, (mine, theirs) in enumerate(((a, b), (c, d), (e, f), (g, h))):
        store(out + 64 * at, mine)
        store(other_out + 64 * at, theirs)


@inner
def _add_values(weights, v, stride, positions, out):
    """To a head's result, sixteen elements of the values, weighted."""
    a = load(f32x16, out)
    for position in range(positions):
        a = fma(load(f32x16, v + position * stride), broadcast(f32x16, load(f32, weights + 4 * position)), a)
    store(out, a)


_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
# exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2, from the highest power down (Moshier's Cephes, expf)
_POLYNOMIAL = tuple(map(np.float32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 0.16666665459, 0.5)))


@inner(forceinline=True)
def exp_of_negative(x):
    """exp of lanes (f32x16) of 0 and less to 2e-7 of it; less than -87 counts as -87, and NaN stays NaN."""
    x = select(x < broadcast(f32x16, -87), broadcast(f32x16, -87), x)
    shifted = x * _LOG2_E + ROUNDER
    n = shifted - ROUNDER
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = broadcast(f32x16, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = fma(p, r, broadcast(f32x16, coefficient))
    power = bitcast(f32x16, (bitcast(i32x16, shifted) - ROUNDER_BITS + 127) << 23)
    return (fma(p, r * r, r) + np.float32(1)) * power
