"""Activations rounded to eight bits: one scale for 256 numbers, as ggml's Q8_K, laid out for one format's codes."""

import functools

import numpy as np
import torch
from numba import types

from kit.cpu import threads
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.sums import add_up, greatest
from kit.cpu.simd.vectors import bitcast, broadcast, convert, f32x16, i8x16, i32x16, jit, select, swap_neighbors, u32x16
from kit.cpu.superblocks import UNIT, codes_of
from kit.cpu.tasks import task
from kit.gguf.formats import Format

f32, i64 = types.float32, types.int64

# A record holds 256 activations: their codes in the order of the format's codes; for each 16 of them, in their own order,
# minus their sum; and the scale, in each of 16 lanes. The records of one unit lie together, a token after another.
SUMS, SCALE, RECORD = UNIT, UNIT + 64, UNIT + 128
_SMALLEST = np.float32(1e-36)  # below it, activations are zeros: 127 / x would overflow


def quantize(x: torch.Tensor, order: np.ndarray, group: int = 16) -> torch.Tensor:
    """The records of x (tokens, columns) float32: (units, tokens, RECORD) uint8, 64-byte aligned; order: see ``order_of``.

    code = round(x / scale) to nearest even, scale = largest |x| / 127. Columns are filled up to units with zeros. Where
    ``group`` is 32, each sum is that of two neighbors.
    """
    tokens, columns = x.shape
    units = -(-columns // UNIT)
    records = torch.empty(units, tokens, RECORD, dtype=torch.uint8)  # torch aligns to 64 bytes
    threads.run(quantizing(), (x.data_ptr(), columns, tokens, records.data_ptr(), order.ctypes.data, group), tokens)
    return records


def rounded(x: torch.Tensor) -> torch.Tensor:
    """The numbers that the codes of ``quantize`` stand for: x (tokens, columns) float32, and so the result."""
    tokens, columns = x.shape
    x, y = x.contiguous(), torch.empty(tokens, columns)
    threads.run(_rounding(), (x.data_ptr(), columns, y.data_ptr(), NATURAL.ctypes.data), tokens)
    return y


NATURAL = np.arange(16)  # the order of the weights


@functools.cache
def order_of(format: Format) -> np.ndarray:
    """The order of the format's codes, int64, at an address that stays."""
    return np.array(codes_of(format).order, np.int64)


@task
def quantizing():
    """The task of ``quantize``."""
    return _quantize_token


def _quantize_token(token, x, columns, tokens, records, order, group):
    x += 4 * columns * token
    for unit in range((columns + 255) // 256):
        record = records + (unit * tokens + token) * RECORD
        _quantize_unit(x + 1024 * unit, min(16, columns // 16 - 16 * unit), record, order)
        if group == 32:
            sums = load(f32x16, record + SUMS)
            store(record + SUMS, sums + swap_neighbors(sums))


@task
def _rounding():
    """The task of ``rounded``."""

    def round_token(token, x, columns, y, order):
        record = _record()
        for at in range(4 * columns * token, 4 * columns * (token + 1), 4 * UNIT):
            sixteens = min(16, (4 * columns * (token + 1) - at) // 64)
            _quantize_unit(x + at, sixteens, record, order)
            for n in range(sixteens):
                store(y + at + 64 * n, convert(f32x16, load(i8x16, record + 16 * n)) * load(f32x16, record + SCALE))

    return round_token


_record = stack(RECORD)


@jit
def _quantize_unit(x, sixteens, record, order):
    """One record from ``sixteens`` times 16 numbers at x."""
    magnitudes = broadcast(u32x16, 0)
    for n in range(sixteens):  # of positive floats, NaN included, the bits are in the order of the numbers
        magnitude = bitcast(u32x16, load(f32x16, x + 64 * n)) & 0x7FFFFFFF
        magnitudes = select(magnitude > magnitudes, magnitude, magnitudes)
    largest = bitcast(f32, greatest(magnitudes))
    scale, inverse = largest / f32(127), f32(127) / largest
    if largest < _SMALLEST:
        scale = inverse = f32(0)
    store(record + SCALE, broadcast(f32x16, scale))
    for place in range(16):
        n = load(i64, order + 8 * place)
        if n < sixteens:
            rounded = load(f32x16, x + 64 * n) * inverse + ROUNDER
            codes = bitcast(i32x16, rounded) - ROUNDER_BITS
            store(record + 16 * place, convert(i8x16, codes))
            store(record + SUMS + 4 * n, f32(-add_up(codes)) * scale)
        else:
            store(record + 16 * place, broadcast(i8x16, 0))
            store(record + SUMS + 4 * n, f32(0))


# Added to a number below 2^22, 1.5 * 2^23 leaves its nearest integer in the low bits.
ROUNDER, ROUNDER_BITS = np.float32(12582912), 0x4B400000
