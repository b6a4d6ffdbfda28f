"""One token times float32 activations: 64 codes are taken apart at a time, and the products of a group share a step.

What is done to whole vectors of codes, and what is done once for a group's sum and not once for a weight, is what makes this
faster than the kernel for any format and any number of tokens (kit.cpu.gemv_float).
"""

import functools

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload

from kit.cpu.simd.isa import gather, nibbles_less
from kit.cpu.simd.memory import copy, load, prefetch, stack, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import Static, bitcast, broadcast, convert, f32x16, i8x16, i32x16, u32x16
from kit.cpu.superblocks import UNIT, codes, codes_of, spread, steps, unit_size, whole
from kit.cpu.tasks import task
from kit.gguf.formats import Format

f32 = types.float32
_AHEAD = 2048  # bytes: a row ends before the CPU itself has seen far enough ahead
_scratch = stack(128 + 64 + 512)  # for the reader of the steps, the steps, and a unit that is copied
_padded = stack(4 * UNIT)


# ---- the activations


def preparing(x: torch.Tensor, layout: "Layout") -> tuple[int, tuple[int, ...], tuple[torch.Tensor, torch.Tensor]]:
    """A task and its arguments, and what it makes of x (1, columns): x as the kernel takes it, filled up with zeros to whole
    units (units, 256), and the sums of each sixteen of it (units, 16), with which minima are taken off."""
    units, (places, factors) = -(-x.shape[1] // UNIT), _tables(*layout)
    ordered, sums = torch.empty(units, UNIT), torch.empty(units, 16)
    addresses = places.ctypes.data, factors.ctypes.data, ordered.data_ptr(), sums.data_ptr()
    return _task(), (x.data_ptr(), x.shape[1], *addresses), (ordered, sums)


Layout = tuple[tuple[int, ...], str]  # the order of a unit's sixteens, and how their codes become numbers


def layout_of(format: Format) -> Layout:
    """How ``preparing`` lays out activations for a format: as its codes come out of "words", sixteen at a time, each perhaps
    still in its "byte" of them; or as they are, where codes are "numbers" already."""
    low, *more = format.codes.planes
    if format.signed(low) and not more and format.scales.group >= 32:
        return tuple(range(16)), "numbers"
    return codes_of(format).order, "words" if codes_of(format).packed else "bytes"


@functools.cache
def _tables(order, kind) -> tuple[np.ndarray, np.ndarray]:
    """The place in a unit from which each activation comes (int32), and the number by which it is multiplied."""
    places = 16 * np.array(order)[:, None] + np.arange(16)
    if kind != "numbers":  # byte k of the sixteen words of a vector meets sixteen activations in a row
        places = places.reshape(4, 4, 4, 4).transpose(0, 3, 1, 2)
    factors = np.repeat(256.0 ** -np.arange(4.0) if kind == "bytes" else np.ones(4), 16)
    return places.astype(np.int32).ravel(), np.tile(factors, 4).astype(np.float32)


@task
def _task():
    return _prepare


def _prepare(task, x, columns, places, factors, ordered, sums):
    padded = _padded()
    for first in range(0, columns, UNIT):
        unit = x + 4 * first
        if columns - first < UNIT:
            for at in range(0, 4 * UNIT, 64):
                store(padded + at, broadcast(f32x16, 0))
            copy(unit, 4 * (columns - first), padded)
            unit = padded
        for at in range(0, 4 * UNIT, 64):
            store(sums + at // 16, reduce_add(load(f32x16, unit + at)))
            numbers = gather(f32x16, unit, load(i32x16, places + at))
            store(ordered + at, numbers * load(f32x16, factors + at))
        ordered += 4 * UNIT
        sums += 64


# ---- a row


@njit
def one_row(format, tier, row, sixteens, end, x, sums, scratch):
    """The product of a row of 16 * ``sixteens`` weights and the activations of ``preparing``; ``end``: of the matrix."""
    size, lows = unit_size(format), has_lows(format)
    a = b = c = broadcast(f32x16, 0)
    for left in range(sixteens, 0, -16):
        for line in range(0, size, 64):
            prefetch(row + _AHEAD + line)
        unit = whole(format, row, end, scratch + 192)
        step, low = steps(format, tier, unit, left, scratch)
        a, b = add_unit(format, tier, unit, left, step, x, scratch + 128, a, b)
        if lows:
            c = fma(low, load(f32x16, sums), c)
        sums += 64
        row += size
        x += 4 * UNIT
    return reduce_add((a + b) - c)


def has_lows(format):
    """Whether the numbers that codes become lie above the weights, by a minimum or by the bias of codes in bytes."""


def add_unit(format, tier, unit, sixteens, step, x, scratch, a, b):
    """a and b, together the products so far, + those of a unit of which the first ``sixteens`` times 16 weights count;
    scratch: 64 bytes."""


@overload(has_lows)
def _(format):
    lows = format.value.scales.sign != 0 or (layout_of(format.value)[1] == "bytes" and format.value.bias != 0)
    return lambda format: lows


@overload(add_unit, jit_options={"forceinline": True})
def _(format, tier, unit, sixteens, step, x, scratch, a, b):
    cut = format.value.block_elements < UNIT and max(layout_of(format.value)[0][:8]) < 8

    def of_numbers(format, tier, unit, sixteens, step, x, scratch, a, b):
        store(scratch, step)
        for n in range(0, 8 if sixteens <= 8 else 16, 4):
            a = fma(dot_of_numbers(format, n, unit, x), broadcast(f32x16, load(f32, scratch + 4 * n)), a)
            b = fma(dot_of_numbers(format, n + 2, unit, x), broadcast(f32x16, load(f32, scratch + 4 * n + 8)), b)
        return a, b

    def of_words(format, tier, unit, sixteens, step, x, scratch, a, b):
        v = words(format, tier, unit)
        a = fma(dot(format, tier, v[0], x), spread(format, 0, step), a)
        b = fma(dot(format, tier, v[1], x + 256), spread(format, 1, step), b)
        if cut and sixteens <= 8:
            return a, b
        a = fma(dot(format, tier, v[2], x + 512), spread(format, 2, step), a)
        b = fma(dot(format, tier, v[3], x + 768), spread(format, 3, step), b)
        return a, b

    return of_numbers if layout_of(format.value)[1] == "numbers" else of_words


# ---- codes in words: four in each, of half a byte at the lower end or of a byte


def words(format, tier, unit):
    """The codes of a unit: four vectors u32x16."""


@overload(words, jit_options={"forceinline": True})
def _(format, tier, unit):
    packed = codes_of(format.value).packed

    def of_halves(format, tier, unit):
        first, second = packed(unit)
        v, w = bitcast(u32x16, first), bitcast(u32x16, second)
        return v, v >> 4, w, w >> 4

    def of_bytes(format, tier, unit):
        a, b, c, d = codes(format, tier, unit)
        return bitcast(u32x16, a), bitcast(u32x16, b), bitcast(u32x16, c), bitcast(u32x16, d)

    return of_halves if packed else of_bytes


@njit(forceinline=True)
def dot(format, tier, words, x):
    """The products of 64 codes and the activations at x, in sixteen lanes."""
    total = number(format, tier, words, 0) * load(f32x16, x)
    total = fma(number(format, tier, words, 1), load(f32x16, x + 64), total)
    total = fma(number(format, tier, words, 2), load(f32x16, x + 128), total)
    return fma(number(format, tier, words, 3), load(f32x16, x + 192), total)


def number(format, tier, words, byte):
    """The codes in the first (second ...) byte of each word as float32: less their bias if they take half of it; else in
    their place, 256 ** byte times as large."""


@overload(number, jit_options={"forceinline": True}, prefer_literal=True)
def _(format, tier, words, byte):
    shift, planes = 8 * byte.literal_value, format.value.codes.planes
    if codes_of(format.value).packed:
        look_up = nibbles_less(format.value.bias)
        return lambda format, tier, words, byte: look_up(tier, words >> shift)
    mask, kind = 255 << shift, u32x16 if format.value.codes.below(len(planes)) == 8 else i32x16
    return lambda format, tier, words, byte: convert(f32x16, bitcast(kind, words & mask))


# ---- codes that are numbers


def dot_of_numbers(format, n, unit, x):
    """The products of sixteens n and n + 1 of a unit, which share a step, in sixteen lanes."""


@overload(dot_of_numbers, jit_options={"forceinline": True})
def _(format, n, unit, x):
    block, size, (plane,) = format.value.block_elements, format.value.block_bytes, format.value.codes.planes
    first = format.value.at(plane.field) + plane.start

    def dot(format, n, unit, x):
        at = unit + 16 * n // block * size + first + 16 * n % block
        product = convert(f32x16, load(i8x16, at)) * load(f32x16, x + 64 * n)
        return fma(convert(f32x16, load(i8x16, at + 16)), load(f32x16, x + 64 * n + 64), product)

    return dot


@task
def kernel(format: Static, tier: Static):
    """The task that kit.cpu.linear describes, for one token; ``x`` and ``sums`` as ``preparing`` makes them."""

    def single(task, blocks, row_bytes, rows, columns, x, y, stride, step, tokens, share, sums):
        sixteens, end, scratch = columns // 16, blocks + rows * row_bytes, _scratch()
        for row in range(task * share, min(rows, (task + 1) * share)):
            store(y + 4 * row, one_row(format, tier, blocks + row * row_bytes, sixteens, end, x, sums, scratch))

    return single
