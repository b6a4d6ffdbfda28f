"""Layers with one matrix of state per head instead of positions: the gated delta net and Mamba-2.

A head's matrix M (keys, values) is stored in blocks of BLOCK values, (values / BLOCK, keys, BLOCK) float32, padded with zeros.
A token multiplies M by a decay, adds k d^T, and reads q^T M. One thread does this for a head, block by block: a block of 128
keys has 16 KiB, so it is read from memory once and written back once. The tokens of a prompt are handled in segments while a
block is in the L1 cache. Each token's operations are the same in a prompt and alone, so the bits are the same.
"""

import math

from numba import types

from kit.cpu.elementwise import exp_of_negative, sigmoid, softplus
from kit.cpu.norm import float64_bits
from kit.cpu.shapes import BLOCK, LARGEST
from kit.cpu.simd.memory import load, put, some, stack, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import bitcast, broadcast, extract, f32x16, inner
from kit.cpu.tasks import Step, task
from kit.errors import KitError

f32, f64 = types.float32, types.float64
SEGMENT = 16  # tokens of a prompt that pass a block while it is in the first-level cache
_keys, _queries, _values, _mixed = (stack(4 * LARGEST * SEGMENT) for _ in range(4))
_shares = stack(8 * SEGMENT)


def delta_net_step(
    qkv, alpha, beta, z, a, dt, state, weight, key_heads: int, eps: float, out, sigmoids: bool = False
) -> Step:  # fmt: skip
    """Gated delta net (Yang et al. 2024) of some tokens, into ``out`` (tokens, heads, size); the ``state`` is carried on.

    qkv: (tokens, (2 key_heads + heads) * size), after the convolution; z: (tokens, heads, size). alpha and beta are (tokens,
    heads): of head h, which shares key head h % key_heads; or views (tokens, key_heads, heads / key_heads) of one tensor that
    has each key head's heads one after another: of head h, which shares key head h // (heads / key_heads). a and dt: (heads,);
    weight: (size,). In a head, with q and k
    divided by sqrt(their squares' sum + eps), and q by sqrt(size):

        M *= exp(a softplus(alpha + dt));  M += k (sigmoid(beta) (v - k^T M))^T;  y = RMSNorm(q^T M) * weight * silu(z)

    ``sigmoids``: sigmoid(z) in place of silu(z)."""
    tokens, heads, size = out.shape
    if size > LARGEST:
        raise KitError(f"a delta net with heads of {size} elements is not supported: the kernel takes at most {LARGEST}")
    arguments = dict(
        qkv=qkv, alpha=alpha, beta=beta, gates_bytes=4 * alpha.stride(0),
        group=alpha.shape[2] if alpha.dim() == 3 else 0, a=a, dt=dt, state=state,
        z=z, weight=weight, out=out, tokens=tokens, size=size, key_heads=key_heads,
        heads=heads, eps=float64_bits(eps), sigmoids=sigmoids,
    )  # fmt: skip
    return _delta_net(), arguments, heads


def mamba2_step(xbc, dt, z, a, dt_bias, d, state, groups: int, out) -> Step:
    """Mamba-2 (Dao & Gu 2024) of some tokens, before its norm, into ``out`` (tokens, heads, size); the ``state`` is carried on.

    xbc: (tokens, heads * size + 2 groups * keys), after the convolution; dt: (tokens, heads) and z: (tokens, heads, size) are
    contiguous, or views of one projection, with one stride from token to token. a, dt_bias, d: (heads,). In a head, with s =
    softplus(dt + dt_bias), and B (for k) and C (for q) of group h // (heads / groups):

        M = exp(a s) M + B (s x)^T;  y = (C^T M + d x) * silu(z)
    """
    tokens, heads, size = out.shape
    arguments = dict(
        xbc=xbc, dt=dt, dt_bytes=4 * dt.stride(0), a=a, dt_bias=dt_bias,
        d=d, state=state, z=z, z_bytes=4 * z.stride(0), out=out,
        tokens=tokens, size=size, keys=state.shape[2], groups=groups, heads=heads,
    )  # fmt: skip
    return _mamba2(), arguments, heads


@task
def _delta_net():
    """The task of a value head."""
    return _delta_net_of_head


def _delta_net_of_head(
    head, qkv, alpha, beta, gates_bytes, group, a, dt, state, z, weight, out, tokens, size, key_heads, heads, eps, sigmoids
):
    key = head // group if group else head % key_heads
    gate = 4 * (head + key * group)  # of the head, where a key head's betas lie before its alphas
    blocks = (size + BLOCK - 1) // BLOCK
    width, row, own = 4 * BLOCK * blocks, 4 * size * (2 * key_heads + heads), 4 * size * heads  # bytes
    keys, queries, values, mixed, shares, eps = _keys(), _queries(), _values(), _mixed(), _shares(), bitcast(f64, eps)
    state += size * width * head
    for first in range(0, tokens, SEGMENT):
        count = min(SEGMENT, tokens - first)
        for n in range(count):
            x, at = qkv + row * (first + n), gate + gates_bytes * (first + n)
            unit(x + 4 * size * key, size, f32(1 / math.sqrt(size)), eps, queries + width * n)
            unit(x + 4 * size * (key_heads + key), size, f32(1), eps, keys + width * n)
            x += 4 * size * (2 * key_heads + head)
            for e in range(0, 4 * size, 64):
                store(values + width * n + e, some(x + e, size - e // 4))
            store(values + width * n + width - 64, some(x + width - 64, size - (width - 64) // 4))
            store(shares + 8 * n, _decay(load(f32, alpha + at) + load(f32, dt + 4 * head), load(f32, a + 4 * head)))
            store(shares + 8 * n + 4, extract(sigmoid(broadcast(f32x16, load(f32, beta + at))), 0))
        for block in range(blocks):
            matrix = state + 4 * size * BLOCK * block
            for n in range(count):
                at, decay, share = width * n + 4 * BLOCK * block, load(f32, shares + 8 * n), load(f32, shares + 8 * n + 4)
                known, others = recall(matrix, size, keys + width * n)
                new = (load(f32x16, values + at) - known * decay) * share
                other = (load(f32x16, values + at + 64) - others * decay) * share
                new, other = _learn(matrix, size, keys + width * n, queries + width * n, decay, new, other)
                store(mixed + at, new)
                store(mixed + at + 64, other)
        for n in range(count):
            place = own * (first + n) + 4 * size * head
            normed_and_gated(mixed + width * n, width, weight, z + place, out + place, size, eps, sigmoids)


@task
def _mamba2():
    """The task of a head."""
    return _mamba2_of_head


def _mamba2_of_head(head, xbc, dt, dt_bytes, a, dt_bias, d, state, z, z_bytes, out, tokens, size, keys, groups, heads):
    blocks, group, row = (size + BLOCK - 1) // BLOCK, head // (heads // groups), 4 * (size * heads + 2 * groups * keys)
    own, a, d, dt_bias = 4 * size * head, load(f32, a + 4 * head), load(f32, d + 4 * head), load(f32, dt_bias + 4 * head)
    state += 4 * keys * BLOCK * blocks * head
    for block in range(blocks):
        matrix, first = state + 4 * keys * BLOCK * block, own + 4 * BLOCK * block
        left = size - BLOCK * block  # values of this block and of those after it
        for n in range(tokens):
            x, k = xbc + row * n + first, xbc + row * n + 4 * (size * heads + keys * group)
            time = load(f32, dt + dt_bytes * n + 4 * head) + dt_bias
            step = extract(softplus(broadcast(f32x16, time)), 0)
            one, other = some(x, left), some(x + 64, left - 16)
            y, w = _learn(matrix, keys, k, k + 4 * keys * groups, _decay(time, a), one * step, other * step)
            at, to = z + z_bytes * n + first, out + 4 * size * heads * n + first
            put(to, _silu(some(at, left)) * (y + one * d), left)
            put(to + 64, _silu(some(at + 64, left - 16)) * (w + other * d), left - 16)


# ---- a block: 32 values of each key, two vectors


@inner
def recall(matrix, keys, k):
    """k^T M."""
    a = b = c = d = broadcast(f32x16, 0)
    for _ in range(keys >> 1):
        x, y = broadcast(f32x16, load(f32, k)), broadcast(f32x16, load(f32, k + 4))
        a, b = fma(load(f32x16, matrix), x, a), fma(load(f32x16, matrix + 64), x, b)
        c, d = fma(load(f32x16, matrix + 128), y, c), fma(load(f32x16, matrix + 192), y, d)
        k += 8
        matrix += 256
    if keys & 1:
        x = broadcast(f32x16, load(f32, k))
        a, b = fma(load(f32x16, matrix), x, a), fma(load(f32x16, matrix + 64), x, b)
    return a + c, b + d


@inner
def _learn(matrix, keys, k, q, decay, new, other):
    """M = decay M + k d^T for d = (new, other); q^T M."""
    a = b = c = d = broadcast(f32x16, 0)
    for _ in range(keys >> 1):
        x, y = broadcast(f32x16, load(f32, k)), broadcast(f32x16, load(f32, k + 4))
        z, w = broadcast(f32x16, load(f32, q)), broadcast(f32x16, load(f32, q + 4))
        e, f = fma(new, x, load(f32x16, matrix) * decay), fma(other, x, load(f32x16, matrix + 64) * decay)
        g, h = fma(new, y, load(f32x16, matrix + 128) * decay), fma(other, y, load(f32x16, matrix + 192) * decay)
        store(matrix, e)
        store(matrix + 64, f)
        store(matrix + 128, g)
        store(matrix + 192, h)
        a, b, c, d = fma(e, z, a), fma(f, z, b), fma(g, w, c), fma(h, w, d)
        k += 8
        q += 8
        matrix += 256
    if keys & 1:
        x, z = broadcast(f32x16, load(f32, k)), broadcast(f32x16, load(f32, q))
        e, f = fma(new, x, load(f32x16, matrix) * decay), fma(other, x, load(f32x16, matrix + 64) * decay)
        store(matrix, e)
        store(matrix + 64, f)
        a, b = fma(e, z, a), fma(f, z, b)
    return a + c, b + d


# ---- a head's vectors


@inner
def _decay(time, a):
    """exp(a softplus(time)) for a <= 0."""
    return extract(exp_of_negative(softplus(broadcast(f32x16, time)) * a), 0)


@inner
def _silu(x):
    return x * sigmoid(x)


@inner
def unit(x, n, scale, eps, out):
    """out = x / sqrt(x x + eps) * scale, n numbers."""
    squares = broadcast(f32x16, 0)
    for at in range(0, 4 * n, 64):
        v = some(x + at, n - at // 4)
        squares = squares + v * v
    scale = f32(scale / math.sqrt(reduce_add(squares) + eps))
    for at in range(0, 4 * n, 64):
        store(out + at, some(x + at, n - at // 4) * scale)


@inner
def normed_and_gated(x, width, weight, z, out, n, eps, sigmoids):
    """out = RMSNorm(x) * weight * silu(z), or sigmoid(z), n numbers; x has zeros up to ``width`` bytes."""
    squares = broadcast(f32x16, 0)
    for at in range(0, width, 64):
        v = load(f32x16, x + at)
        squares = squares + v * v
    scale = f32(1 / math.sqrt(reduce_add(squares) / n + eps))
    for at in range(0, 4 * n, 64):
        left = n - at // 4
        gate = some(z + at, left)
        gate = sigmoid(gate) if sigmoids else _silu(gate)
        put(out + at, load(f32x16, x + at) * scale * some(weight + at, left) * gate, left)
