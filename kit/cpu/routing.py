"""The choice of a token's experts from its router's scores, as a task that sets arguments of the steps after it."""

import math

import numpy as np
from numba import types

from kit.cpu.elementwise import as_bits, exp_of_negative, sigmoid
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import bitcast, f32x16, inner
from kit.cpu.tasks import Step, task

f32, i64, u8, u32 = types.float32, types.int64, types.uint8, types.uint32
_LEAST = np.float32(2**-14)  # by which shares are divided


def scratch_floats(experts: int) -> int:
    """float32 of ``scratch`` of ``choose``."""
    return 4 * (experts + -experts % 16)


def step(scores, chosen: np.ndarray, shares, scratch, routing, bias=None, scales=None) -> Step:
    """``choose`` from scores (1, experts) by ``routing`` of a config, with no ``words`` yet: those are set when all steps
    are there. chosen: (used,) int64; shares: (used,) float32; bias and scales: (experts,)."""
    optional = {name: 0 if x is None else x.data_ptr() for name, x in (("bias", bias), ("scales", scales))}
    arguments = dict(
        scores=scores.data_ptr(), experts=scores.shape[1], used=routing.used, sigmoids=routing.sigmoid, normed=routing.normed,
        scale=as_bits(routing.scale), groups=routing.groups, groups_used=routing.groups_used, chosen=chosen.ctypes.data,
        shares=shares.data_ptr(), scratch=scratch.data_ptr(), words=0, count=0,
    )  # fmt: skip
    return choose(), arguments | optional, 1


@task
def choose():
    """The only task of kit.model.cpu_ops.best_experts for one token.

    scores: float32, readable up to a multiple of 16; bias, and scales of the shares: addresses of float32, or 0; chosen
    (``used``, int64, rising) and shares (float32) are written. words: ``count`` rows of int64, (address of an argument, place,
    base, bytes): the argument becomes base + bytes * chosen[place], or for no bytes the bits of shares[place].
    """
    return _choose


def _choose(
    task,
    scores,
    bias,
    scales,
    experts,
    used,
    sigmoids,
    normed,
    scale,
    groups,
    groups_used,
    chosen,
    shares,
    scratch,
    words,
    count,
):
    width = 4 * (experts + -experts % 16)
    share, rank, taken, best = scratch, scratch + width, scratch + 2 * width, scratch + 3 * width
    _shares(scores, experts, sigmoids, share)
    for n in range(experts):
        store(rank + 4 * n, load(f32, share + 4 * n) + (load(f32, bias + 4 * n) if bias else f32(0)))
        store(taken + n, u8(0))
    if groups > 1:
        _leave_out(rank, experts // groups, groups, groups_used, taken, best)
    for _ in range(used):
        first, largest = -1, f32(-math.inf)
        for n in range(experts):
            if not load(u8, taken + n) and (first < 0 or load(f32, rank + 4 * n) > largest):
                first, largest = n, load(f32, rank + 4 * n)
        store(taken + first, u8(2))
    place, total = 0, f32(0)
    for n in range(experts):
        if load(u8, taken + n) == 2:
            store(chosen + 8 * place, i64(n))
            store(shares + 4 * place, load(f32, share + 4 * n))
            total += load(f32, share + 4 * n)
            place += 1
    total = max(total, _LEAST) if normed else f32(1)
    for place in range(used):
        share = load(f32, shares + 4 * place) / total * bitcast(f32, u32(scale))
        store(shares + 4 * place, share * load(f32, scales + 4 * load(i64, chosen + 8 * place)) if scales else share)
    for word in range(words, words + 32 * count, 32):
        place, base, nbytes = load(i64, word + 8), load(i64, word + 16), load(i64, word + 24)
        value = base + nbytes * load(i64, chosen + 8 * place) if nbytes else i64(load(u32, shares + 4 * place))
        store(load(i64, word), value)


@inner
def _shares(scores, experts, sigmoids, share):
    """Sigmoids, or the softmax, of the scores."""
    largest, total = f32(-math.inf), f32(0)
    for n in range(experts):
        largest = max(largest, load(f32, scores + 4 * n))
    for at in range(0, 4 * experts, 64):
        x = load(f32x16, scores + at)
        store(share + at, sigmoid(x) if sigmoids else exp_of_negative(x - largest))
    for n in range(experts):
        total += load(f32, share + 4 * n)
    for at in range(0, 0 if sigmoids else 4 * experts, 64):
        store(share + at, load(f32x16, share + at) / total)


@inner
def _leave_out(rank, size, groups, groups_used, taken, best):
    """Mark the experts of all but the best groups, a group being as good as its two best experts together."""
    for group in range(groups):
        first = second = f32(-math.inf)
        for n in range(group * size, (group + 1) * size):
            x = load(f32, rank + 4 * n)
            first, second = max(first, x), max(second, min(first, x))
        store(best + 4 * group, first + second)
    for _ in range(groups - groups_used):
        worst = 0
        for group in range(groups):
            if load(f32, best + 4 * group) < load(f32, best + 4 * worst):
                worst = group
        store(best + 4 * worst, f32(math.inf))
        for n in range(worst * size, (worst + 1) * size):
            store(taken + n, u8(1))
