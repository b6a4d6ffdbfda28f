"""Kimi delta attention (Moonshot AI 2025): a delta net whose matrix decays by each element of the key, not as a whole."""

import math

from numba import types

from kit.cpu.elementwise import exp_of_negative, sigmoid, softplus
from kit.cpu.norm import float64_bits
from kit.cpu.recurrent import SEGMENT, normed_and_gated, recall, unit
from kit.cpu.shapes import BLOCK, LARGEST
from kit.cpu.simd.memory import load, some, stack, store
from kit.cpu.simd.sums import fma
from kit.cpu.simd.vectors import bitcast, broadcast, extract, f32x16, inner
from kit.cpu.tasks import Step, task
from kit.errors import KitError

f32, f64 = types.float32, types.float64
_keys, _known, _queries, _values, _decays, _mixed = (stack(4 * LARGEST * SEGMENT) for _ in range(6))
_shares = stack(4 * SEGMENT)


def step(q, k, v, f, beta, z, dt, a, state, weight, bound: float, eps: float, least: float, out) -> Step:
    """Kimi delta attention of some tokens, into ``out`` (tokens, heads, size); the ``state`` is carried on.

    q, k, v, f, z: (tokens, heads * size), q, k and v after their convolutions; beta: (tokens, heads); dt: (heads * size,); a:
    (heads,); weight: (size,). In a head, with q and k divided by sqrt(their squares' sum + least), q also by sqrt(size), and
    t = f + dt:

        M *= exp(g) for each row i of M, g[i] = -|a| softplus(t[i]), or with a ``bound`` (below 0) bound * sigmoid(|a| t[i])
        M += k (sigmoid(beta) (v - k^T M))^T;  y = RMSNorm(q^T M) * weight * sigmoid(z)
    """
    tokens, heads, size = out.shape
    if size > LARGEST:
        raise KitError(f"a delta net with heads of {size} elements is not supported: the kernel takes at most {LARGEST}")
    tensors = dict(q=q, k=k, v=v, f=f, dt=dt, a=a, beta=beta, state=state, z=z, weight=weight, out=out)
    numbers = dict(tokens=tokens, size=size, heads=heads)
    numbers |= {name: float64_bits(number) for name, number in (("bound", bound), ("eps", eps), ("least", least))}
    return _kda(), tensors | numbers, heads


@task
def _kda():
    """The task of a head."""
    return _of_head


def _of_head(head, q, k, v, f, dt, a, beta, state, z, weight, out, tokens, size, heads, bound, eps, least):
    blocks = (size + BLOCK - 1) // BLOCK
    width, row, own = 4 * BLOCK * blocks, 4 * size * heads, 4 * size * head  # bytes
    keys, known, queries, values = _keys(), _known(), _queries(), _values()
    decays, mixed, shares = _decays(), _mixed(), _shares()
    bound, eps, least = f32(bitcast(f64, bound)), bitcast(f64, eps), bitcast(f64, least)
    rate = load(f32, a + 4 * head)
    rate = rate if rate > 0 else -rate
    state += size * width * head
    for first in range(0, tokens, SEGMENT):
        count = min(SEGMENT, tokens - first)
        for n in range(count):
            x, at = row * (first + n) + own, width * n
            unit(q + x, size, f32(1 / math.sqrt(size)), least, queries + at)
            unit(k + x, size, f32(1), least, keys + at)
            for e in range(0, width, 64):
                left = size - e // 4
                store(values + at + e, some(v + x + e, left))
                if left > 0:
                    decay = _decay(some(f + x + e, left) + some(dt + own + e, left), rate, bound)
                    store(decays + at + e, decay)
                    store(known + at + e, load(f32x16, keys + at + e) * decay)
            share = sigmoid(broadcast(f32x16, load(f32, beta + 4 * (heads * (first + n) + head))))
            store(shares + 4 * n, extract(share, 0))
        for block in range(blocks):
            matrix = state + 4 * size * BLOCK * block
            for n in range(count):
                at, share = width * n + 4 * BLOCK * block, load(f32, shares + 4 * n)
                has, others = recall(matrix, size, known + width * n)
                new = (load(f32x16, values + at) - has) * share
                other = (load(f32x16, values + at + 64) - others) * share
                new, other = _learn(matrix, size, keys + width * n, decays + width * n, queries + width * n, new, other)
                store(mixed + at, new)
                store(mixed + at + 64, other)
        for n in range(count):
            place = row * (first + n) + own
            normed_and_gated(mixed + width * n, width, weight, z + place, out + place, size, eps, 1)


@inner
def _decay(time, rate, bound):
    """exp(bound sigmoid(rate time)), or without a bound exp(-rate softplus(time))."""
    return exp_of_negative(sigmoid(time * rate) * bound if bound < 0 else softplus(time) * -rate)


@inner
def _learn(matrix, keys, k, decays, q, new, other):
    """M = decay M + k d^T for d = (new, other), with a decay for each key; q^T M."""
    a = b = broadcast(f32x16, 0)
    for _ in range(keys):
        x, z, decay = broadcast(f32x16, load(f32, k)), broadcast(f32x16, load(f32, q)), broadcast(f32x16, load(f32, decays))
        e, f = fma(new, x, load(f32x16, matrix) * decay), fma(other, x, load(f32x16, matrix + 64) * decay)
        store(matrix, e)
        store(matrix + 64, f)
        a, b = fma(e, z, a), fma(f, z, b)
        k += 4
        q += 4
        decays += 4
        matrix += 128
    return a, b
