"""The choice of a token's experts from its router's scores, as a task that sets arguments of the steps after it."""

import math

import numpy as np
import torch
from numba import types

from kit.cpu.elementwise import as_bits, exp_of_negative, sigmoid, softplus
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import bitcast, broadcast, f32x16, inner, select
from kit.cpu.tasks import Step, task
from kit.gguf.keys import NEAR, ROOTED, SIGMOID, SOFTMAX, SPARSEMIXER

f32, i64, u8, u32 = types.float32, types.int64, types.uint8, types.uint32
_LEAST = np.float32(2**-14)  # by which shares are divided
_GONE = np.float32(-3e38)  # the rank of what is chosen, where others are compared with the best that is left


def step(scores: torch.Tensor, chosen, shares, routing, bias=None, scales=None, given: bool = False) -> Step:
    """``choose`` from scores (tokens, experts), whose rows can be read up to a multiple of 16, by ``routing`` of a config.
    chosen: (tokens, used) int64 and shares: (tokens, used) float32, contiguous; bias and scales: (experts,). ``given``:
    chosen has them already. There are no ``words`` yet: in a program those are set when all steps are there."""
    tokens, experts = scores.shape
    scratch = torch.empty(tokens, 4 * (experts + -experts % 16), dtype=torch.float32, device="cpu")
    arguments = dict(
        scores=scores, row=4 * scores.stride(0), bias=bias, scales=scales, experts=experts, used=routing.used,
        gating=routing.gating, normed=routing.normed, scale=as_bits(routing.scale), groups=routing.groups,
        groups_used=routing.groups_used, chosen=chosen, shares=shares, scratch=scratch, words=None, count=0, given=given,
    )  # fmt: skip
    return choose(), arguments, tokens


@task
def choose():
    """The task of a token, in a prompt and in a recorded pass: the best experts by scores, as kit.model.best_experts.

    Among equals the lowest number comes first, of experts and of groups. scores: float32, ``row`` bytes from a token to the
    next, readable up to a multiple of 16; bias, and scales of the shares: float32, or 0; chosen (``used``, int64, rising) and
    shares (float32) are written. words: ``count`` rows of int64, (address of an argument, place, base, bytes): the argument
    becomes base + bytes * chosen[place], or for no bytes the bits of shares[place].
    """
    return _choose


def _choose(
    token,
    scores,
    row,
    bias,
    scales,
    experts,
    used,
    gating,
    normed,
    scale,
    groups,
    groups_used,
    chosen,
    shares,
    scratch,
    words,
    count,
    given,
):
    width = 4 * (experts + -experts % 16)
    scores += row * token
    chosen += 8 * used * token
    shares += 4 * used * token
    scratch += 4 * width * token
    share, rank, taken, best = scratch, scratch + width, scratch + 2 * width, scratch + 3 * width
    _shares(scores, experts, gating, share)
    for n in range(experts):
        store(rank + 4 * n, load(f32, share + 4 * n) + (load(f32, bias + 4 * n) if bias else f32(0)))
        store(taken + n, u8(0))
    if groups > 1:
        _leave_out(rank, experts // groups, groups, groups_used, taken, best)
    for place in range(used if given else 0):
        store(taken + load(i64, chosen + 8 * place), u8(2))
    for _ in range(0 if given else used):
        first, largest = -1, f32(-math.inf)
        for n in range(experts):
            if not load(u8, taken + n) and (first < 0 or load(f32, rank + 4 * n) > largest):
                first, largest = n, load(f32, rank + 4 * n)
        store(taken + first, u8(2))
        if gating == SPARSEMIXER:
            store(share + 4 * first, _among_near(rank, experts, largest, best))
            store(rank + 4 * first, _GONE)
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
def _shares(scores, experts, gating, share):
    """The softmax of the scores, their sigmoids, the roots of their softplus, or the scores."""
    largest, total = f32(-math.inf), f32(0)
    for n in range(experts):
        largest = max(largest, load(f32, scores + 4 * n))
    for at in range(0, 4 * experts, 64):
        x = load(f32x16, scores + at)
        if gating == ROOTED:
            store(share + at, softplus(x))
        elif gating == SPARSEMIXER:
            store(share + at, x)
        else:
            store(share + at, sigmoid(x) if gating == SIGMOID else exp_of_negative(x - largest))
    for n in range(experts):
        if gating == ROOTED:
            store(share + 4 * n, f32(math.sqrt(load(f32, share + 4 * n))))
        total += load(f32, share + 4 * n)
    for at in range(0, 4 * experts if gating == SOFTMAX else 0, 64):
        store(share + at, load(f32x16, share + at) / total)


@inner
def _among_near(rank, experts, largest, scratch):
    """The softmax of the largest score among those near it."""
    total, best = f32(0), broadcast(f32x16, largest)
    for at in range(0, 4 * experts, 64):
        x = load(f32x16, rank + at)
        size = select(x > 0, x, 0 - x)
        size = select(size > best, size, best)
        store(scratch + at, select(best - x > size * f32(NEAR), broadcast(f32x16, 0), exp_of_negative(x - best)))
    for n in range(experts):
        total += load(f32, scratch + 4 * n)
    return f32(1) / total


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
            if load(f32, best + 4 * group) <= load(f32, best + 4 * worst):
                worst = group
        store(best + 4 * worst, f32(math.inf))
        for n in range(worst * size, (worst + 1) * size):
            store(taken + n, u8(1))
