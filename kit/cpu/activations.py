"""Activations as signed digits of eight bits with one scale for 256 numbers, laid out for one format's codes.

    x = scale (first + second / 2^8 + third / 2^16)

One digit is int8, as ggml's Q8_K. Three are 24 bits, float32's accuracy beside the largest of the 256.
"""

import functools

import numpy as np
import torch
from numba import types

from kit.cpu import threads
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.sums import add_up, greatest
from kit.cpu.simd.vectors import bitcast, broadcast, convert, f32x16, i8x16, i32x16, jit, select, swap_neighbors, u32x16
from kit.cpu.superblocks import SUPERBLOCK, codes_of
from kit.cpu.tasks import task
from kit.gguf.formats import Format

f32, i64 = types.float32, types.int64

# A record holds 256 activations: their first digits in the order of the format's codes; for each 16 of them, in their own
# order, minus their sum; the unit of the last digit, in each of 16 lanes; and behind these RECORD bytes the other digits,
# 256 bytes each. The records of one super-block lie together, a token after another.
SUMS, SCALE, RECORD = SUPERBLOCK, SUPERBLOCK + 64, SUPERBLOCK + 128
DIGITS = {"int8": 1, "float32": 3}
_SMALLEST = np.float32(1e-31)  # of 256 the largest: below it all are zeros, for a last digit's unit would be no normal number


def quantize(x: torch.Tensor, order: int, digits: int = 1, group: int = 0) -> torch.Tensor:
    """The records of x (tokens, columns) float32: (super-blocks, tokens, bytes) uint8, aligned to 64 bytes.

    order: from ``order_of``. scale = largest |x| / 127, and x / scale is rounded to nearest even in its last digit. Columns are
    filled up to super-blocks with zeros. For kit.cpu.gemm_int8 ``group`` is 16 or 32: sums are in units of the scale, and with
    32 those of two neighbors.
    """
    tokens, columns = x.shape
    records = torch.empty(
        -(-columns // SUPERBLOCK), tokens, record_bytes(digits), dtype=torch.uint8
    )  # torch aligns to 64 bytes
    threads.run(quantizing(), (x.data_ptr(), columns, tokens, records.data_ptr(), order, digits, group), tokens)
    return records


def record_bytes(digits: int) -> int:
    """Bytes of a record."""
    return RECORD + SUPERBLOCK * (digits - 1)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """The numbers that int8 stands for: x (tokens, columns) float32, and so the result."""
    tokens, columns = x.shape
    x, y = x.contiguous(), torch.empty(tokens, columns)
    threads.run(_rounding(), (x.data_ptr(), columns, y.data_ptr(), address(NATURAL)), tokens)
    return y


NATURAL = tuple(range(16))  # the order of the weights


def order_of(format: Format) -> int:
    """The address of the order of the format's codes."""
    return address(codes_of(format).order)


def address(order: tuple[int, ...]) -> int:
    """The address of an order, int64; it stays."""
    return _array(order).ctypes.data


@functools.cache
def _array(order) -> np.ndarray:
    return np.array(order, np.int64)


@task
def quantizing():
    """The task of ``quantize``."""
    return _quantize_token


def _quantize_token(token, x, columns, tokens, records, order, digits, group):
    x += 4 * columns * token
    size = RECORD + SUPERBLOCK * (digits - 1)
    for n in range((columns + 255) // 256):
        record = records + (n * tokens + token) * size
        _quantize_superblock(x + 1024 * n, min(16, columns // 16 - 16 * n), record, order, digits, group > 0)
        if group == 32:
            sums = load(f32x16, record + SUMS)
            store(record + SUMS, sums + swap_neighbors(sums))


@task
def _rounding():
    """The task of ``rounded``."""

    def round_token(token, x, columns, y, order):
        record = _record()
        for at in range(4 * columns * token, 4 * columns * (token + 1), 4 * SUPERBLOCK):
            sixteens = min(16, (4 * columns * (token + 1) - at) // 64)
            _quantize_superblock(x + at, sixteens, record, order, 1, False)
            for n in range(sixteens):
                store(y + at + 64 * n, convert(f32x16, load(i8x16, record + 16 * n)) * load(f32x16, record + SCALE))

    return round_token


_record = stack(RECORD)


@jit
def _quantize_superblock(x, sixteens, record, order, digits, in_units):
    """One record from ``sixteens`` times 16 numbers at x."""
    magnitudes = broadcast(u32x16, 0)
    for n in range(sixteens):  # of positive floats, NaN included, the bits are in the order of the numbers
        magnitude = bitcast(u32x16, load(f32x16, x + 64 * n)) & 0x7FFFFFFF
        magnitudes = select(magnitude > magnitudes, magnitude, magnitudes)
    largest = bitcast(f32, greatest(magnitudes))
    scale, inverse = largest / f32(127), f32(127) / largest
    if largest < _SMALLEST:
        scale = inverse = f32(0)
    last, fine = scale * f32(2**-16), f32(2**16 if digits > 1 else 0)
    store(record + SCALE, broadcast(f32x16, last if digits > 1 else scale))
    for place in range(16):
        n, at = load(i64, order + 8 * place), record + 16 * place
        code = broadcast(i32x16, 0)
        if n < sixteens:
            number = load(f32x16, x + 64 * n) * inverse
            nearest = number + ROUNDER
            rest = (number - (nearest - ROUNDER)) * fine + ROUNDER  # the difference is exact
            code = ((bitcast(i32x16, nearest) - ROUNDER_BITS) << 16) + (bitcast(i32x16, rest) - ROUNDER_BITS)
        store(record + SUMS + 4 * n, f32(-add_up(code)) * (f32(2**-16) if in_units else last))
        second = (code + 128) >> 8  # a digit is the low byte, signed; what is above it is the number without the digit
        store(at, convert(i8x16, (second + 128) >> 8))
        if digits > 1:
            store(at + RECORD, convert(i8x16, second))
            store(at + RECORD + SUPERBLOCK, convert(i8x16, code))


# Added to a number below 2^22, 1.5 * 2^23 leaves its nearest integer in the low bits.
ROUNDER, ROUNDER_BITS = np.float32(12582912), 0x4B400000
