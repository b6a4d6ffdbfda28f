"""Attention of many queries: a task takes a block of them, with query heads of one key/value head.

The rows of a block, queries times heads, are the lanes of vectors: keys are read number by number, as the history has them, all
rows at a position lie next to each other, and scores need no sum over lanes. What is multiplied, queries and keys or weights
and values, goes through one tile of sums in registers. Scores are powers of 2, not of e: the factor is in the queries. What a
row may not see is neither multiplied nor compared, except near the ends of what its vector sees.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import types

from kit.cpu.activations import ROUNDER
from kit.cpu.elementwise import exp_of_negative
from kit.cpu.history import LANES, as_floats
from kit.cpu.simd.memory import load, prefetch_far, stack, store
from kit.cpu.simd.registers import add_each, add_multiples, several_of, transpose
from kit.cpu.simd.sums import fma
from kit.cpu.simd.vectors import Static, Vector, bitcast, broadcast, f32x16, f32x32, high, inner, join, low, select
from kit.cpu.tasks import task

f32, u32 = types.float32, types.uint32
CHUNK, ROWS, ROOM, DIM = 256, 128, 2**14, 1024  # positions of a task; rows, their floats, and elements of a head at most
_MANY = 256  # queries, from which blocks have all ROWS: with fewer, half as large ones leave tasks for more threads
_WIDTH = 32  # rows are filled up to a multiple of this
_TERMS = 64  # of a sum that are added one after the other, and then to those before them: less is rounded
_POSITIONS, _FLOATS = 128, 2**14  # positions at a time, and their numbers in float32, which stay in the second-level cache
_all = 4 * (ROOM + _WIDTH * DIM)
_columns, _mixed, _scores = stack(_all), stack(_all), stack(4 * _WIDTH * (_POSITIONS + 1))
_keys, _values = stack(4 * _FLOATS), stack(4 * _FLOATS)
_own, _largest, _sums, _shrinks = (stack(4 * (ROWS + _WIDTH)) for _ in range(4))
load16, store16 = several_of(16)
_LOG2_E, _LOWEST, _ONE = np.float32(1.44269504), np.finfo(np.float32).min, 0x3F800000
_RISE = np.float32(8)  # binary digits by which a weight may be above 1
# 2^r for |r| <= 1/2, from the highest power down, exact at 0: fitted to a relative error of 1e-7
_POWER_OF_2 = tuple(map(np.float32, (1.3264724e-3, 9.6715130e-3, 5.5507336e-2, 0.24022242, 0.69314700, 1)))


class _Plan(NamedTuple):
    """Tiles of sums in registers: vectors of a ``kind``, for so many positions or rows."""

    kind: Vector
    positions: int
    rows: int


def block_of(group: int, dim: int, tokens: int) -> tuple[int, int]:
    """(query heads of a key/value head, queries) of one block."""
    rows = min(ROWS if tokens >= _MANY else ROWS // 2, ROOM // dim)
    return min(group, rows), rows // min(group, rows)


def supports(rows: int, dim: int) -> bool:
    """Whether blocks of so many rows are worth lanes, and heads of ``dim`` elements fit."""
    return rows >= LANES and dim <= DIM


_block_of = inner(block_of)
_HALF = _Plan(f32x16, 4, 4)  # sixteen registers of 32 bytes, or 32 of 16
_PLANS = {"avx512": _Plan(f32x32, 8, 8), "avx2": _Plan(f32x16, 6, 6), "neon": _HALF, "plain": _HALF}


def _tile_of(kind: Vector, count: int):
    """_tile(sums, apart, vector, further, numbers, stride, step, times, fresh): add to ``count`` sums, ``apart`` bytes from one
    to the next, so many products of a vector and a number of each sum. The vectors are ``further`` bytes apart, the numbers of
    one vector ``stride``, and those of one sum ``step``. ``fresh``: the sums begin at 0."""
    (load_sums, store_sums), room = several_of(count, kind), stack(4 * kind.lanes)

    @inner
    def _tile(sums, apart, vector, further, numbers, stride, step, times, fresh):
        none = room()
        store(none, broadcast(kind, 0))
        for start in range(0, times, _TERMS):
            total = load_sums(none, 0)
            for i in range(start, min(times, start + _TERMS)):
                total = add_multiples(total, load(kind, vector + i * further), numbers + i * step, stride)
            if start or not fresh:
                total = add_each(load_sums(sums, apart), total)
            store_sums(sums, apart, total)

    return _tile


@task
def attend_many(kind: Static, tier: Static):
    """The task of kit.cpu.attention.attend_block, for blocks that ``supports`` takes."""
    plan = _PLANS[tier.value]
    wide, lanes, count, height = plan.kind, plan.kind.lanes, plan.positions, plan.rows
    pair, bits = Vector(f32, 2 * lanes), Vector(types.int32, 2 * lanes)
    across, one, tile, half = (_tile_of(*of) for of in ((wide, count), (wide, 1), (wide, height), (f32x16, height)))
    rest, half_rest = (_tile_of(of, lanes % height or height) for of in (wide, f32x16))  # of the last rows

    @inner
    def score(columns, dim, keys, stride, positions, scores):
        """Scores (positions, lanes) of keys in float32."""
        for position in range(0, positions, count):
            if positions >= count:
                at = min(position, positions - count)
                across(scores + 4 * lanes * at, 4 * lanes, columns, 4 * lanes, keys + stride * at, stride, 4, dim, True)
            else:
                for i in range(positions):
                    one(scores + 4 * lanes * i, 0, columns, 4 * lanes, keys + stride * i, 0, 4, dim, True)

    @inner
    def mix(scores, rows, dim, values, stride, positions, mixed):
        """Add weighted values in float32 to each row's result."""
        whole = dim // lanes * lanes
        for element in range(0, 4 * whole, 4 * lanes):
            for row in range(0, rows, height):
                to, weights = mixed + 4 * dim * row + element, scores + 4 * row
                if lanes - row >= height:
                    tile(to, 4 * dim, values + element, stride, weights, 4, 4 * lanes, positions, False)
                else:
                    rest(to, 4 * dim, values + element, stride, weights, 4, 4 * lanes, positions, False)
        for element in range(4 * whole, 4 * dim, 64):
            for row in range(0, rows, height):
                to, weights = mixed + 4 * dim * row + element, scores + 4 * row
                if lanes - row >= height:
                    half(to, 4 * dim, values + element, stride, weights, 4, 4 * lanes, positions, False)
                else:
                    half_rest(to, 4 * dim, values + element, stride, weights, 4, 4 * lanes, positions, False)

    @inner
    def mask(scores, first, positions, least, last, own, window):
        """Hide what lies after a row, or before its window, where rows from ``least`` to ``last`` differ in it."""
        for n in range(0, 4 * lanes, 64):
            mine = load(f32x16, own + n)
            for position in range(max(0, least + 1 - first), positions):
                _hide(scores + 4 * lanes * position + n, broadcast(f32x16, f32(first + position)) > mine)
            if window:
                for position in range(min(positions, last + 1 - window - first)):
                    _hide(scores + 4 * lanes * position + n, broadcast(f32x16, f32(first + position + window)) <= mine)

    def attend_many(
        task, q, k, k_head, k_stride, v, v_head, v_stride, out, heads, group, dim, scale, cap, window, positions, tokens, sinks
    ):
        most, per = _block_of(group, dim, tokens)
        blocks, shares = (tokens + per - 1) // per, (group + most - 1) // most
        token = (blocks - 1 - task % blocks) * per  # the longest first, so that threads end together
        share, head = task // blocks % shares, task // blocks // shares
        some, at = min(most, group - share * most), group * head + share * most
        rows, query, token_bytes = min(per, tokens - token) * some, positions - tokens + token, 4 * dim * heads
        width, place = (rows + lanes - 1) // lanes * lanes, token * token_bytes + 4 * dim * at
        stop, first = query + rows // some, max(0, query + 1 - window) if window else 0
        columns, mixed, scores, key_room, value_room = _columns(), _mixed(), _scores(), _keys(), _values()
        own, largest, sums, shrinks = _own(), _largest(), _sums(), _shrinks()
        _turn(q + place, token_bytes, rows, some, dim, bitcast(f32, u32(scale)) * _LOG2_E, columns, lanes, mixed)
        for line in range(0, 4 * dim * some, 64):  # of the next task
            for next_ in range(max(0, token - per), token):
                prefetch_far(q + next_ * token_bytes + 4 * dim * at + line)
        for n in range(width):
            row = min(n, rows - 1)
            store(own + 4 * n, f32(query + row // some))
            store(largest + 4 * n, load(f32, sinks + 4 * (at + row % some)) * _LOG2_E if sinks else _LOWEST)
            store(sums + 4 * n, f32(1) if sinks else f32(0))
        for n in range(0, 4 * dim * width, 64):
            store(mixed + n, broadcast(f32x16, 0))
        step = min(_POSITIONS, _FLOATS // dim)
        for start in range(first, stop, step):
            chunk = min(step, stop - start)
            key, value = k + k_head * head + k_stride * start, v + v_head * head + v_stride * start
            keys, key_stride = as_floats(kind, tier, key, k_stride, chunk, dim // LANES, key_room)
            values, value_stride = as_floats(kind, tier, value, v_stride, chunk, dim // LANES, value_room)
            for lane in range(0, width, lanes):
                least, last = query + lane // some, query + min(rows - 1, lane + lanes - 1) // some
                begin = max(0, least + 1 - window - start) if window else 0
                here, mine = min(chunk, last + 1 - start) - begin, mixed + 4 * dim * lane
                if here <= 0:
                    continue
                score(columns + 4 * dim * lane, dim, keys + key_stride * begin, key_stride, here, scores)
                if cap:
                    for n in range(scores, scores + 4 * lanes * here, 64):
                        store(n, capped(load(f32x16, n), bitcast(f32, u32(cap)) * _LOG2_E))
                mask(scores, start + begin, here, least, last, own + 4 * lane, window)
                _weigh(wide, pair, bits, scores, 4 * lanes, here, largest + 4 * lane, sums + 4 * lane, shrinks)
                for n in range(lanes):
                    if load(f32, shrinks + 4 * n) != 1:
                        _multiply(mine + 4 * dim * n, dim, load(f32, shrinks + 4 * n))
                mix(scores, min(lanes, rows - lane), dim, values + value_stride * begin, value_stride, here, mine)
        for n in range(rows):
            total, to = load(f32, sums + 4 * n), out + place + n // some * token_bytes + n % some * 4 * dim
            for element in range(0, 4 * dim, 64):
                store(to + element, load(f32x16, mixed + 4 * dim * n + element) * (f32(1) / total))

    return attend_many


@inner
def capped(score, cap):
    """cap * tanh(score / cap) of lanes (f32x16)."""
    x = score / cap
    e = exp_of_negative(select(x > 0, 0 - x, x) * f32(2))
    tanh = (1 - e) / (e + 1)  # of |x|
    return select(x > 0, tanh, 0 - tanh) * cap


@inner
def _turn(q, token_bytes, rows, group, dim, factor, columns, lanes, scratch):
    """Write the rows of q times a factor as columns, (blocks of lanes, dim, lanes); those above ``rows`` are the last one's."""
    width = (rows + lanes - 1) // lanes * lanes
    for n in range(width):
        row = q + min(n, rows - 1) // group * token_bytes + min(n, rows - 1) % group * 4 * dim
        for element in range(0, 4 * dim, 64):
            store(scratch + 4 * dim * n + element, load(f32x16, row + element) * factor)
    for first in range(0, width, LANES):
        to = columns + 4 * dim * (first // lanes * lanes) + 4 * (first % lanes)
        for element in range(0, dim, LANES):
            sixteen = load16(scratch + 4 * (dim * first + element), 4 * dim)
            store16(to + 4 * lanes * element, 4 * lanes, transpose(sixteen))


@inner
def _hide(at, hidden):
    """Hide the scores of sixteen rows of which a mask is set."""
    store(at, select(hidden, broadcast(f32x16, -math.inf), load(f32x16, at)))


@inner
def _weigh(kind, pair, bits, scores, apart, positions, largest, sums, shrinks):
    """Replace the scores of as many rows as a ``kind`` has lanes by weights; ``shrinks``: by what those of earlier chunks
    become smaller. A ``pair`` has two positions, ``bits`` as many int32. The score whose weight is 1 gives way only to one that
    is _RISE above it, so what was added before is seldom multiplied."""
    if positions % 2:
        store(scores + apart * positions, broadcast(kind, -math.inf))
    before, stop = load(kind, largest), scores + apart * positions
    both = join(before, before)
    for at in range(scores, stop, 2 * apart):
        x = load(pair, at)
        both = select(x > both, x, both)
    most = select(high(both) > low(both), high(both), low(both))
    most = select(most > before + _RISE, most, before)
    both, total = join(most, most), broadcast(pair, 0)
    for at in range(scores, stop, 2 * apart):
        weight = _power_of_2(pair, bits, load(pair, at) - both)
        store(at, weight)
        total = total + weight
    shrink = low(_power_of_2(pair, bits, join(before, before) - both))
    store(largest, most)
    store(sums, load(kind, sums) * shrink + (low(total) + high(total)))
    store(shrinks, shrink)


@inner(forceinline=True)
def _power_of_2(kind, bits, x):
    """2^x of lanes that are at most 100, to a relative error of 2e-7. Values below -126 count as -126; NaN stays NaN."""
    x = select(x < broadcast(kind, -126), broadcast(kind, -126), x)
    shifted = x + ROUNDER
    r = x - (shifted - ROUNDER)
    p = broadcast(kind, _POWER_OF_2[0])
    for coefficient in _POWER_OF_2[1:]:
        p = fma(p, r, broadcast(kind, coefficient))
    return p * bitcast(kind, (bitcast(bits, shifted) << 23) + _ONE)


@inner
def _multiply(numbers, n, factor):
    """Multiply n numbers by a factor."""
    for at in range(0, 4 * n, 64):
        store(numbers + at, load(f32x16, numbers + at) * factor)
