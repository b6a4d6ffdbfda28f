"""Rows of blocks times activations in digits of eight bits, for one or a few tokens: dot products of bytes.

A super-block of 256 weights at a time, four codes in an int32 lane. Activations of one digit are int8; float32 ones have three:
their three dot products for 64 codes take less time than sixteen conversions and multiplications in float32.
"""

from numba import njit, types
from numba.extending import overload

from kit.cpu.activations import DIGITS, RECORD, SCALE, SUMS, record_bytes
from kit.cpu.simd.isa import dot4
from kit.cpu.simd.memory import load, prefetch, stack, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import Static, broadcast, convert, f32x16, i8x64, i32x16
from kit.cpu.superblocks import SUPERBLOCK, codes, lane_scales, scales, superblock_bytes, whole
from kit.cpu.tasks import task

f32 = types.float32
_AHEAD = 2048  # bytes: the hardware prefetcher restarts at every row
ROWS, TOKENS = 8, 32  # a tile: its activations of one super-block and its sums fit the first-level cache

_scratch = stack(128 + 512)  # a super-block's scales and minima, and the super-block itself where it is copied
_sums = stack(64 * ROWS * TOKENS)


def _dots(format, tier, activations, codes, digit):
    """The sums of four codes times four activations, in units of the last digit, in 16 lanes; digit: the address of the
    first digits of 64 activations."""


@overload(_dots, jit_options={"forceinline": True})
def _(format, tier, activations, codes, digit):
    def of_one(format, tier, activations, codes, digit):
        return convert(f32x16, dot4(tier, broadcast(i32x16, 0), codes, load(i8x64, digit)))

    def of_three(format, tier, activations, codes, digit):
        first = dot4(tier, broadcast(i32x16, 0), codes, load(i8x64, digit))
        if small:
            second = dot4(tier, first << 8, codes, load(i8x64, digit + RECORD))
            return convert(f32x16, dot4(tier, second << 8, codes, load(i8x64, digit + RECORD + SUPERBLOCK)))
        second = dot4(tier, broadcast(i32x16, 0), codes, load(i8x64, digit + RECORD))
        rest = dot4(tier, second << 8, codes, load(i8x64, digit + RECORD + SUPERBLOCK))
        return fma(convert(f32x16, first), broadcast(f32x16, 65536), convert(f32x16, rest))

    numbers = format.value.codes
    small = numbers.planes and not numbers.values and numbers.bits <= 6  # 4 * 63 * 2^23 < 2^31
    return {"int8": of_one, "float32": of_three}[activations.value]


@njit(forceinline=True)
def _products(format, tier, activations, codes, scales, record):
    """The sums of scale * code * activation, before the activations' scale, in 16 lanes."""
    a, b = _dots(format, tier, activations, codes[0], record), _dots(format, tier, activations, codes[1], record + 64)
    c, d = _dots(format, tier, activations, codes[2], record + 128), _dots(format, tier, activations, codes[3], record + 192)
    return fma(a, scales[0], b * scales[1]) + fma(c, scales[2], d * scales[3])


def _record_bytes(activations):
    """Bytes of a record of activations."""


@overload(_record_bytes)
def _(activations):
    size = record_bytes(DIGITS[activations.value])
    return lambda activations: size


@njit(forceinline=True)
def _unpack(format, tier, start, sixteens, end, scratch):
    """A super-block's codes, the scales of their lanes, and the minima."""
    at = whole(format, start, end, scratch + 128)
    per_weight, minima = scales(format, tier, at, sixteens, scratch)
    a, b = lane_scales(format, 0, per_weight), lane_scales(format, 1, per_weight)
    c, d = lane_scales(format, 2, per_weight), lane_scales(format, 3, per_weight)
    return codes(format, tier, at), (a, b, c, d), minima


@njit
def _one_token(format, tier, activations, row, sixteens, end, record, scratch):
    """The product of a row of 16 * ``sixteens`` weights and the only token; ``end``: of the matrix."""
    a = b = broadcast(f32x16, 0)
    for left in range(sixteens, 0, -16):
        for line in range(0, superblock_bytes(format), 64):
            prefetch(row + _AHEAD + line)
        codes, scales, minima = _unpack(format, tier, row, left, end, scratch)
        a = fma(_products(format, tier, activations, codes, scales, record), load(f32x16, record + SCALE), a)
        b = fma(minima, load(f32x16, record + SUMS), b)
        row += superblock_bytes(format)
        record += _record_bytes(activations)
    return reduce_add(a + b)


@njit
def _tile(format, tier, activations, blocks, row_bytes, rows, sixteens, end, records, tokens, count, sums, scratch):
    """The products of ``rows`` rows and ``count`` of the tokens to ``sums``: (rows, count) vectors, lanes to be added."""
    for i in range(rows * count):
        store(sums + 64 * i, broadcast(f32x16, 0))
    for left in range(sixteens, 0, -16):
        for row in range(rows):
            codes, scales, minima = _unpack(format, tier, blocks + row * row_bytes, left, end, scratch)
            record, at = records, sums + 64 * row * count
            for _ in range(count):
                y = fma(minima, load(f32x16, record + SUMS), load(f32x16, at))
                y = fma(_products(format, tier, activations, codes, scales, record), load(f32x16, record + SCALE), y)
                store(at, y)
                record += _record_bytes(activations)
                at += 64
        blocks += superblock_bytes(format)
        records += tokens * _record_bytes(activations)


@task
def kernel(format: Static, tier: Static, activations: Static):
    """The task that kit.cpu.linear describes; ``x`` is the address of the activations' records."""

    def integer(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        sixteens, end, scratch, sums = columns // 16, blocks + rows * row_bytes, _scratch(), _sums()
        first, last = task * share, min(rows, (task + 1) * share)
        if tokens == 1:
            for row in range(first, last):
                store(y + 4 * row, _one_token(format, tier, activations, blocks + row * row_bytes, sixteens, end, x, scratch))
            return
        for row in range(first, last, ROWS):
            height = min(ROWS, last - row)
            for token in range(0, tokens, TOKENS):
                count = min(TOKENS, tokens - token)
                _tile(
                    format, tier, activations, blocks + row * row_bytes, row_bytes, height, sixteens, end,
                    x + token * _record_bytes(activations), tokens, count, sums, scratch,
                )  # fmt: skip
                for t in range(count):
                    for r in range(height):
                        at = sums + 64 * (r * count + t)
                        store(y + (token + t) * y_stride + 4 * (row + r), reduce_add(load(f32x16, at)))

    return integer
