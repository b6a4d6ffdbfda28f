"""Attention of many queries: a task takes a block of them, with query heads of one key/value head.

The rows of a block, queries times heads, are the lanes of vectors: keys are read number by number, as the history has them, all
rows at a position lie next to each other, and scores need no sum over lanes. What is multiplied, queries and keys or weights
and values, goes through one tile of sums in registers.
"""

import math
from typing import NamedTuple

from numba import types

from kit.cpu.elementwise import exp_of_negative
from kit.cpu.history import LANES, TILE, as_floats
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.registers import add_each, add_multiples, several_of, transpose
from kit.cpu.simd.vectors import Static, Vector, bitcast, broadcast, f32x16, f32x32, inner, select
from kit.cpu.tasks import task

f32, u32 = types.float32, types.uint32
CHUNK, ROWS, ROOM, DIM = 256, 64, 2**14, 1024  # positions at a time; rows, their floats, and elements of a head at most
_WIDTH = 32  # rows are filled up to a multiple of this
_TERMS = 64  # of a sum that are added one after the other, and then to those before them: less is rounded
_POSITIONS = 64  # that stay in the first-level cache as float32
_all = 4 * (ROOM + _WIDTH * DIM)
_columns, _mixed, _scores, _tile_room = stack(_all), stack(_all), stack(4 * CHUNK * ROWS), stack(TILE)
_own, _largest, _sums, _shrinks, _sixteen = (stack(size) for size in (4 * ROWS,) * 4 + (1024,))
load16, store16 = several_of(16)


class _Plan(NamedTuple):
    """A tile of sums in registers: so many vectors of a ``kind``."""

    kind: Vector
    count: int


def block_of(group: int, dim: int) -> tuple[int, int]:
    """(query heads of a key/value head, queries) of one block."""
    rows = min(ROWS, ROOM // dim)
    return min(group, rows), rows // min(group, rows)


def supports(rows: int, dim: int) -> bool:
    """Whether blocks of so many rows are worth lanes, and heads of ``dim`` elements fit."""
    return rows >= LANES and dim <= DIM


_block_of = inner(block_of)
_HALF = _Plan(f32x16, 4)  # sixteen registers of 32 bytes, or 32 of 16
_PLANS = {"avx512": _Plan(f32x32, 8), "avx2": _HALF, "neon": _HALF, "plain": _HALF}


def _tile_of(kind: Vector, count: int):
    """_tile(sums, apart, vector, further, numbers, stride, step, times): add to ``count`` sums, ``apart`` bytes from one to the
    next, so many products of a vector and a number of each sum. The vectors are ``further`` bytes apart, the numbers of one
    vector ``stride``, and those of one sum ``step``."""
    (load_sums, store_sums), room = several_of(count, kind), stack(4 * kind.lanes)

    @inner
    def _tile(sums, apart, vector, further, numbers, stride, step, times):
        none = room()
        store(none, broadcast(kind, 0))
        for start in range(0, times, _TERMS):
            total = load_sums(none, 0)
            for i in range(start, min(times, start + _TERMS)):
                total = add_multiples(total, load(kind, vector + i * further), numbers + i * step, stride)
            store_sums(sums, apart, add_each(load_sums(sums, apart), total))

    return _tile


@task
def attend_many(kind: Static, tier: Static):
    """The task of kit.cpu.attention.attend_block, for blocks that ``supports`` takes."""
    plan = _PLANS[tier.value]
    wide, count, lanes = plan.kind, plan.count, plan.kind.lanes
    tile, one, half = _tile_of(wide, count), _tile_of(wide, 1), _tile_of(f32x16, count)

    @inner
    def score(columns, width, dim, keys, stride, positions, scores):
        """Scores (positions, width) of keys in float32."""
        for position in range(0, positions, count):
            whole = positions >= count
            at, some = (min(position, positions - count), count) if whole else (0, positions)
            for lane in range(0, 4 * width, 4 * lanes):
                to, key = scores + 4 * width * at + lane, keys + stride * at
                for i in range(some):
                    store(to + 4 * width * i, broadcast(wide, 0))
                if whole:
                    tile(to, 4 * width, columns + lane, 4 * width, key, stride, 4, dim)
                else:
                    for i in range(some):
                        one(to + 4 * width * i, 0, columns + lane, 4 * width, key + stride * i, 0, 4, dim)

    @inner
    def mix(scores, width, rows, dim, values, stride, positions, mixed):
        """Add weighted values in float32 to each row's result."""
        whole = dim // lanes * lanes
        for element in range(0, 4 * whole, 4 * lanes):
            for row in range(0, rows, count):
                to, weights = mixed + 4 * dim * row + element, scores + 4 * row
                tile(to, 4 * dim, values + element, stride, weights, 4, 4 * width, positions)
        for element in range(4 * whole, 4 * dim, 64):
            for row in range(0, rows, count):
                to, weights = mixed + 4 * dim * row + element, scores + 4 * row
                half(to, 4 * dim, values + element, stride, weights, 4, 4 * width, positions)

    def attend_many(
        task, q, k, k_head, k_stride, v, v_head, v_stride, out, heads, group, dim, scale, cap, window, positions, tokens, sinks
    ):
        most, per = _block_of(group, dim)
        blocks, shares = (tokens + per - 1) // per, (group + most - 1) // most
        token, share, head = task % blocks * per, task // blocks % shares, task // blocks // shares
        some, at = min(most, group - share * most), group * head + share * most
        rows, query, token_bytes = min(per, tokens - token) * some, positions - tokens + token, 4 * dim * heads
        width, place = (rows + _WIDTH - 1) // _WIDTH * _WIDTH, token * token_bytes + 4 * dim * at
        stop, first = query + rows // some, max(0, query + 1 - window) if window else 0
        columns, mixed, scores, scratch = _columns(), _mixed(), _scores(), _tile_room()
        own, largest, sums, shrinks = _own(), _largest(), _sums(), _shrinks()
        _turn(q + place, token_bytes, rows, some, dim, bitcast(f32, u32(scale)), columns, width)
        for n in range(width):
            row = min(n, rows - 1)
            store(own + 4 * n, f32(query + row // some))
            store(largest + 4 * n, load(f32, sinks + 4 * (at + row % some)) if sinks else f32(-math.inf))
            store(sums + 4 * n, f32(1) if sinks else f32(0))
        filled = (rows + count - 1) // count * count
        for n in range(0, 4 * dim * filled, 64):
            store(mixed + n, broadcast(f32x16, 0))
        for start in range(first, stop, CHUNK):
            chunk = min(CHUNK, stop - start)
            key, value = k + k_head * head + k_stride * start, v + v_head * head + v_stride * start
            piece = min(_POSITIONS, TILE // (4 * dim))
            for part in range(0, chunk, piece):
                here = min(piece, chunk - part)
                floats, stride = as_floats(kind, tier, key + k_stride * part, k_stride, here, dim // LANES, scratch)
                score(columns, width, dim, floats, stride, here, scores + 4 * width * part)
            for lane in range(0, 4 * width, 64):
                _weigh(scores + lane, 4 * width, chunk, start, cap, window, stop, lane, own, largest, sums, shrinks)
            if start > first:
                for n in range(rows):
                    _multiply(mixed + 4 * dim * n, dim, load(f32, shrinks + 4 * n))
            for part in range(0, chunk, piece):
                here = min(piece, chunk - part)
                floats, stride = as_floats(kind, tier, value + v_stride * part, v_stride, here, dim // LANES, scratch)
                mix(scores + 4 * width * part, width, rows, dim, floats, stride, here, mixed)
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
def _turn(q, token_bytes, rows, group, dim, factor, columns, width):
    """Write the rows of q times a factor as columns, (dim, width); those above ``rows`` are the last one's."""
    sixteen = _sixteen()
    for first in range(0, width, LANES):
        for element in range(0, dim, LANES):
            for i in range(LANES):
                n = min(first + i, rows - 1)
                row = q + n // group * token_bytes + n % group * 4 * dim
                store(sixteen + 64 * i, load(f32x16, row + 4 * element) * factor)
            store16(columns + 4 * (width * element + first), 4 * width, transpose(load16(sixteen, 64)))


@inner
def _weigh(scores, apart, positions, start, cap, window, stop, lane, own, largest, sums, shrinks):
    """Replace the scores of sixteen rows by weights, of which the largest so far is 1, with what a row must not attend to left
    out; ``shrinks``: by what the weights of earlier chunks become smaller."""
    mine, before = load(f32x16, own + lane), load(f32x16, largest + lane)
    most, hidden = before, broadcast(f32x16, -math.inf)
    behind = mine - f32(window)
    for position in range(positions):
        at = scores + apart * position
        x, here = load(f32x16, at), broadcast(f32x16, f32(start + position))
        if cap:
            x = capped(x, bitcast(f32, u32(cap)))
        x = select(here > mine, hidden, x)
        if window:
            x = select(here > behind, x, hidden)
        store(at, x)
        most = select(x > most, x, most)
    shrink = exp_of_negative(before - most)
    total = load(f32x16, sums + lane) * shrink
    for position in range(positions):
        at = scores + apart * position
        weight = exp_of_negative(load(f32x16, at) - most)
        store(at, weight)
        total = total + weight
    store(largest + lane, most)
    store(sums + lane, total)
    store(shrinks + lane, shrink)


@inner
def _multiply(numbers, n, factor):
    """Multiply n numbers by a factor."""
    for at in range(0, 4 * n, 64):
        store(numbers + at, load(f32x16, numbers + at) * factor)
