"""Attention of one query on the kit's threads: scores, softmax and values of a key/value head in one piece of work."""

import functools
import math

import numpy as np
import torch
from numba import njit, types

from kit.cpu import threads
from kit.cpu.activations import ROUNDER, ROUNDER_BITS
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.sums import fma, reduce_add, reduce_add4
from kit.cpu.simd.vectors import bitcast, broadcast, extract, f32x16, i32x16, select

f32, i64 = types.float32, types.int64
LANES = 16


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int = 0) -> torch.Tensor:
    """As every variant of kit.attention, for one query whose head has a multiple of 16 elements: q (heads, 1, head_dim), k and
    v (kv_heads, positions, head_dim) float32, the elements of a position side by side -> (heads, 1, head_dim)."""
    (heads, _, dim), (kv_heads, positions, _) = q.shape, k.shape
    first = max(0, positions - window) if window else 0
    q, out = (q * scale).contiguous(), torch.empty(heads, 1, dim)
    width = -(-(positions - first) // LANES) * LANES
    weights = torch.empty(heads, width)
    strides = (4 * stride for tensor in (k, v) for stride in tensor.stride()[:2])
    shape = heads // kv_heads, dim // LANES, first, positions, width
    places = (tensor.data_ptr() for tensor in (q, k, v, out, weights))
    threads.run(_kernel(), (*places, *strides, *shape), kv_heads)
    return out


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether ``attend`` can take these."""
    return (
        q.shape[1] == 1
        and q.shape[2] % LANES == 0
        and all(t.dtype == torch.float32 and t.stride(2) == 1 for t in (q, k, v))
    )


@functools.cache
def _kernel() -> int:
    return threads.piecework(_heads_of_a_group)


def _heads_of_a_group(arguments, head):
    """All query heads that share one key/value head; the arguments in the order in which ``attend`` gives them."""
    group, vectors, first = load(i64, arguments + 72), load(i64, arguments + 80), load(i64, arguments + 88)
    stop, width = load(i64, arguments + 96), load(i64, arguments + 104)
    k_step, v_step = load(i64, arguments + 48), load(i64, arguments + 64)
    k = load(i64, arguments + 8) + head * load(i64, arguments + 40) + first * k_step
    v = load(i64, arguments + 16) + head * load(i64, arguments + 56) + first * v_step
    q, out = load(i64, arguments) + 64 * vectors * group * head, load(i64, arguments + 24) + 64 * vectors * group * head
    weights = load(i64, arguments + 32) + 4 * width * group * head
    for n in range(0, group, 2):
        other = min(n + 1, group - 1)  # the last of an odd number of heads is its own neighbor
        mine, theirs = weights + 4 * width * n, weights + 4 * width * other
        to, other_to = out + 64 * vectors * n, out + 64 * vectors * other
        _scores(q + 64 * vectors * n, q + 64 * vectors * other, k, k_step, vectors, stop - first, mine, theirs)
        _softmax(mine, stop - first, width)
        if other > n:
            _softmax(theirs, stop - first, width)
        fours = vectors & -4
        for at in range(0, 64 * fours, 256):
            _four_values(mine, theirs, v + at, v_step, stop - first, to + at, other_to + at)
        for at in range(64 * fours, 64 * vectors, 64):
            _values(mine, theirs, v + at, v_step, stop - first, to + at, other_to + at)


@njit
def _scores(q, other, k, step, vectors, positions, scores, other_scores):
    """q . k of each position for two heads, four positions at a time."""
    whole = positions & -4
    for position in range(0, whole, 4):
        a = b = c = d = e = f = g = h = broadcast(f32x16, 0)
        key = k + position * step
        for at in range(0, 64 * vectors, 64):
            x, y, z = load(f32x16, q + at), load(f32x16, other + at), load(f32x16, key + at)
            a, b = fma(x, z, a), fma(y, z, b)
            z = load(f32x16, key + step + at)
            c, d = fma(x, z, c), fma(y, z, d)
            z = load(f32x16, key + 2 * step + at)
            e, f = fma(x, z, e), fma(y, z, f)
            z = load(f32x16, key + 3 * step + at)
            g, h = fma(x, z, g), fma(y, z, h)
        store(scores + 4 * position, reduce_add4(a, c, e, g))
        store(other_scores + 4 * position, reduce_add4(b, d, f, h))
    for position in range(whole, positions):
        a = b = broadcast(f32x16, 0)
        for at in range(0, 64 * vectors, 64):
            z = load(f32x16, k + position * step + at)
            a, b = fma(load(f32x16, q + at), z, a), fma(load(f32x16, other + at), z, b)
        store(scores + 4 * position, reduce_add(a))
        store(other_scores + 4 * position, reduce_add(b))


@njit
def _softmax(scores, positions, width):
    """Scores to weights in place; those up to ``width`` become zero but for 1e-38."""
    for position in range(positions, width):
        store(scores + 4 * position, f32(-math.inf))
    most = broadcast(f32x16, -math.inf)
    for at in range(0, 4 * width, 64):
        x = load(f32x16, scores + at)
        most = select(x > most, x, most)
    largest = greatest_of(most)
    sums = broadcast(f32x16, 0)
    for at in range(0, 4 * width, 64):
        weight = exp_of_negative(load(f32x16, scores + at) - largest)
        store(scores + at, weight)
        sums = sums + weight
    share = f32(1) / reduce_add(sums)
    for at in range(0, 4 * width, 64):
        store(scores + at, load(f32x16, scores + at) * share)


@njit
def _four_values(weights, others, v, step, positions, out, other_out):
    """64 elements of the values, weighted, for two heads."""
    a = b = c = d = e = f = g = h = broadcast(f32x16, 0)
    for position in range(positions):
        x, y = broadcast(f32x16, load(f32, weights + 4 * position)), broadcast(f32x16, load(f32, others + 4 * position))
        value = v + position * step
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


@njit
def _values(weights, others, v, step, positions, out, other_out):
    """Sixteen elements of the values, weighted, for two heads."""
    a = b = broadcast(f32x16, 0)
    for position in range(positions):
        value = load(f32x16, v + position * step)
        a = fma(value, broadcast(f32x16, load(f32, weights + 4 * position)), a)
        b = fma(value, broadcast(f32x16, load(f32, others + 4 * position)), b)
    store(out, a)
    store(other_out, b)


@njit(forceinline=True)
def greatest_of(vector):
    """The largest lane."""
    largest = f32(-math.inf)
    for lane in range(LANES):
        value = extract(vector, lane)
        if value > largest:
            largest = value
    return largest


_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
# exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2, from the highest power down (Moshier's Cephes, expf)
_POLYNOMIAL = tuple(
    map(np.float32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 0.16666665459, 0.5))
)


@njit(forceinline=True)
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
