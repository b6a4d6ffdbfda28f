"""Activations as signed 8-bit digits with one scale per group, in the order that one format's codes need.

    x = scale (first + second / 2^8 + third / 2^16)

With one digit this is int8 in the format's groups: codes and scales as in ggml's Q8_0, Q8_1 (32 numbers) or Q8_K (256), except
that scales and sums stay float32 (Q8_0 and Q8_1 round them to float16); a prompt's groups are of 32. Two digits are 16 bits
("int16"), three are 24: the accuracy of float32 relative to the largest of 256 numbers. WORDS are 24 bits for 16-bit products:
the first two digits are one word, the third is another.

A record holds 256 activations of one token: their first digits in the order of the format's codes; for each 16 of them, in
their own order, minus their sum, and the unit of their last digit; then, after these RECORD bytes, the other digits, 256 bytes
each. With WORDS it holds the words, 512 bytes each, and no first digits; with WORD, 16 bits, only the first of them. The
records of one super-block are consecutive, one per token.
"""

import functools

import numpy as np
import torch
from numba import types

from kit.cpu import threads
from kit.cpu.simd.isa import opaque_on_arm
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.sums import add_up, fma, greatest
from kit.cpu.simd.vectors import (
    bitcast,
    broadcast,
    convert,
    f32x8,
    f32x16,
    high,
    i8x16,
    i16x16,
    i32x16,
    inner,
    low,
    pick,
    select,
    swap_neighbors,
    u32x16,
)
from kit.cpu.superblocks import SUPERBLOCK
from kit.cpu.tasks import Static, Step, task
from kit.products import PRODUCTS

f32, i64 = types.float32, types.int64

SUMS, SCALE, RECORD = SUPERBLOCK, SUPERBLOCK + 64, SUPERBLOCK + 128
DIGITS, WORDS, WORD = {name: row.digits for name, row in PRODUCTS.items()}, 4, 5
# A group whose largest is below this is zeros: the unit of its last digit would be no normal number.
_SMALLEST = np.float32(1e-31)


def quantize(
    x: torch.Tensor,
    order: int,
    digits: int = 1,
    group: int = SUPERBLOCK,
    sums: int = 16,
    in_units: bool = False,
    times: int = 0,
) -> torch.Tensor:
    """The records of x (tokens, columns) float32: (super-blocks, tokens, bytes) uint8, aligned to 64 bytes.

    order: the ``address`` of the n of the 16 weights 16 n ... that come first, second ... digits: 1 to 3, WORDS or WORD. group:
    how many numbers share a scale, 32 or 256. scale = largest |x| / 127; the last digit of x / scale is rounded to nearest
    even. Columns are padded with zeros to whole super-blocks. sums: how many numbers a sum covers, 16 or 32 (then it is stored
    twice). in_units: sums are in units of the last digit, without the scale; ``times``: and int32, of so many times as much (0:
    float32).
    """
    tokens, columns = x.shape
    records = torch.empty(
        -(-columns // SUPERBLOCK), tokens, record_bytes(digits), dtype=torch.uint8, device="cpu"
    )  # torch aligns to 64 bytes
    layout = dict(order=order, digits=digits, group=group, sums=sums, in_units=in_units, times=times)
    threads.run(*quantize_step(x, columns, tokens, records, layout))
    return records


def quantize_step(x, columns: int, tokens: int, records, layout: dict[str, int]) -> Step:
    """``quantize`` of x to records, in memory that is there."""
    digits, group = (layout[name] for name in ("digits", "group"))
    others = {name: value for name, value in layout.items() if name not in ("digits", "group")}
    arguments = dict(x=x, columns=columns, tokens=tokens, records=records) | others
    return quantizing(str(digits), str(group)), arguments, tokens


def record_bytes(digits: int) -> int:
    """Bytes of a record."""
    return RECORD + SUPERBLOCK * (digits - 1 if digits < WORDS else 4 if digits == WORDS else 2)


def rounded(x: torch.Tensor, group: int) -> torch.Tensor:
    """x (tokens, columns) float32 after rounding to int8 and back: the numbers that the int8 way multiplies."""
    tokens, columns = x.shape
    x, y = x.contiguous(), torch.empty(tokens, columns, dtype=torch.float32, device="cpu")
    threads.run(_rounding(str(group)), dict(x=x, columns=columns, y=y, order=address(NATURAL)), tokens)
    return y


NATURAL = tuple(range(16))  # the order of the weights


def address(order: tuple[int, ...]) -> int:
    """The address of an order as int64; the array is never freed."""
    return _array(order).ctypes.data


@functools.cache
def _array(order) -> np.ndarray:
    return np.array(order, np.int64)


@task
def quantizing(digits: Static, group: Static):
    """The task of ``quantize``."""
    digits, group = int(digits.value), int(group.value)
    size, quantize_superblock = record_bytes(digits), _superblock_of(digits, group // 16)

    def _quantize_token(token, x, columns, tokens, records, order, sums, in_units, times):
        x += 4 * columns * token
        for n in range((columns + 255) // 256):
            record = records + (n * tokens + token) * size
            quantize_superblock(x + 1024 * n, min(16, columns // 16 - 16 * n), record, order, in_units)
            if sums == 32:
                both = load(f32x16, record + SUMS)
                store(record + SUMS, both + swap_neighbors(both))
            if times:
                store(record + SUMS, convert(i32x16, load(f32x16, record + SUMS)) * times)

    return _quantize_token


@task
def _rounding(group: Static):
    """The task of ``rounded``."""
    quantize_superblock = _superblock_of(1, int(group.value) // 16)

    def round_token(token, x, columns, y, order):
        record = _record()
        for at in range(4 * columns * token, 4 * columns * (token + 1), 4 * SUPERBLOCK):
            sixteens = min(16, (4 * columns * (token + 1) - at) // 64)
            quantize_superblock(x + at, sixteens, record, order, 0)
            for n in range(sixteens):
                scale = load(f32, record + SCALE + 4 * n)
                store(y + at + 64 * n, convert(f32x16, load(i8x16, record + 16 * n)) * scale)

    return round_token


_record, _inverses = stack(RECORD), stack(64)


def _superblock_of(digits: int, group: int):
    """quantize_superblock(x, sixteens, record, order, in_units): write one record from ``sixteens`` x 16 numbers at x, of which
    ``group`` x 16 share a scale. A function for each layout: one for all took twice as long."""
    below = 8 if digits == WORD else 8 * (min(digits, 3) - 1)  # bits after the first digit
    fine, ahead = np.float32(1 << below), 16 - below
    unit = np.float32(2.0**-16) * fine

    @inner(forceinline=True)
    def codes(number):
        """The number in digits, the first from bit 16 on."""
        nearest = number + ROUNDER
        first = bitcast(i32x16, nearest) - ROUNDER_BITS
        if below == 0:
            return first << 16
        rest = (number - (nearest - ROUNDER)) * fine + ROUNDER  # the difference is exact
        return (first << 16) + ((bitcast(i32x16, rest) - ROUNDER_BITS) << ahead)

    @inner
    def quantize_superblock(x, sixteens, record, order, in_units):
        inverses = _inverses()
        for start in range(0, 16, group):
            magnitudes = broadcast(u32x16, 0)
            for n in range(start, min(sixteens, start + group)):
                # of positive floats, NaN included, the bits are in the order of the numbers
                magnitude = bitcast(u32x16, load(f32x16, x + 64 * n)) & 0x7FFFFFFF
                magnitudes = select(magnitude > magnitudes, magnitude, magnitudes)
            largest = bitcast(f32, greatest(magnitudes))
            scale, inverse = largest / f32(127), f32(127) / largest
            if group == 16:
                scale = f32(1) / inverse  # as ggml's Q8_K
            if largest < _SMALLEST:
                scale = inverse = f32(0)
            for n in range(start, start + group):
                store(inverses + 4 * n, inverse)
                store(record + SCALE + 4 * n, scale / fine)
        for place in range(16):
            n, at = load(i64, order + 8 * place), record + 16 * place
            code = broadcast(i32x16, 0)
            if n < sixteens:
                code = codes(load(f32x16, x + 64 * n) * load(f32, inverses + 4 * n))
            scale = f32(1) if in_units else load(f32, record + SCALE + 4 * n)
            store(record + SUMS + 4 * n, f32(-add_up(code)) * (unit * scale))
            second = (code + 128) >> 8  # a digit is the low byte, signed; what is above it is the number without the digit
            if digits >= WORDS:
                store(record + RECORD + 32 * place, convert(i16x16, second))
                if digits == WORDS:
                    store(record + RECORD + 2 * SUPERBLOCK + 32 * place, convert(i16x16, code - (second << 8)))
            else:
                store(at, convert(i8x16, (second + 128) >> 8))
                if digits > 1:
                    store(at + RECORD, convert(i8x16, second))
                if digits > 2:
                    store(at + RECORD + SUPERBLOCK, convert(i8x16, code))

    return quantize_superblock


# Added to a number below 2^22, 1.5 * 2^23 leaves its nearest integer in the low bits.
ROUNDER, ROUNDER_BITS = np.float32(12582912), 0x4B400000


# ---- the minima of a super-block (``integers`` times ``unit``) times a record's sums


def minima_by_sums(lanes: int, group: int):
    """A function of (tier, integers, unit, record) that returns minima times sums in 4, 8 or 16 lanes, to be added up.
    ``group``: how many weights share a minimum, on tiers with 4 and 16 lanes."""
    shared = {4: _in_four_of_32, 16: _in_pairs}
    return shared[lanes] if group >= 32 and lanes in shared else {4: _in_four, 8: _in_eight, 16: _each}[lanes]


@inner(forceinline=True)
def _in_eight(tier, integers, unit, record):
    lows, sums = convert(f32x16, integers), load(f32x16, record + SUMS)
    return fma(low(lows), low(sums), high(lows) * high(sums)) * unit


@inner(forceinline=True)
def _in_four(tier, integers, unit, record):
    both = _in_eight(tier, integers, unit, record)
    return low(both) + high(both)


even, _odd = (pick(*range(first, 16, 2)) for first in (0, 1))
_twice_each = pick(*(n // 2 for n in range(16)))


@inner(forceinline=True)
def sums_of_32(tier, record):
    """A record's sums of each 32 numbers, f32x8."""
    sums = opaque_on_arm(tier, load(f32x16, record + SUMS))
    return even(sums) + _odd(sums)


@inner(forceinline=True)
def _in_four_of_32(tier, integers, unit, record):
    lows, sums = convert(f32x8, even(integers)), sums_of_32(tier, record)
    return fma(low(lows), low(sums), high(lows) * high(sums)) * unit


@inner(forceinline=True)
def _each(tier, integers, unit, record):
    return convert(f32x16, integers) * unit * load(f32x16, record + SUMS)


@inner(forceinline=True)
def _in_pairs(tier, integers, unit, record):
    return _twice_each(convert(f32x8, even(integers)) * unit) * load(f32x16, record + SUMS)
