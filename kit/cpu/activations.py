"""Activations rounded to eight bits: one scale for 256 numbers, as ggml's Q8_K, laid out for one format's codes."""

import functools

import numpy as np
import torch
from numba import types

from kit.cpu import threads
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.sums import add_up, greatest
from kit.cpu.simd.vectors import bitcast, broadcast, convert, f32x16, i8x16, i32x16, jit, select, u32x16
from kit.cpu.superblocks import UNIT, codes_of
from kit.cpu.tasks import task
from kit.gguf.formats import Format

f32, i64 = types.float32, types.int64

# A record holds 256 activations: their codes in the order of the format's codes; for each 16 of them, in their own order,
# minus their sum; and the scale, in each of 16 lanes. The records of one unit lie together, a token after another.
SUMS, SCALE, RECORD = UNIT, UNIT + 64, UNIT + 128
_SMALLEST = np.float32(1e-36)  # below it, activations are zeros: 127 / x would overflow


def quantize(x: torch.Tensor, format: Format) -> torch.Tensor:
    """The records of x (tokens, columns) float32: (units, tokens, RECORD) uint8, 64-byte aligned.

    code = round(x / scale) to nearest even, scale = largest |x| / 127. Columns are filled up to units with zeros.
    """
    tokens, columns = x.shape
    units = -(-columns // UNIT)
    records = torch.empty(units, tokens, RECORD, dtype=torch.uint8)  # torch aligns to 64 bytes
    threads.run(quantizing(), (x.data_ptr(), columns, tokens, records.data_ptr(), order_of(format).ctypes.data), tokens)
    return records


def rounded(x: torch.Tensor) -> torch.Tensor:
    """The numbers that the codes of ``quantize`` stand for: x (tokens, columns) float32, and so the result."""
    units = torch.nn.functional.pad(x, (0, -x.shape[1] % UNIT)).view(len(x), -1, UNIT)
    low, high = units.aminmax(dim=-1, keepdim=True)
    largest = torch.maximum(high, -low)
    codes = (units * torch.where(largest < float(_SMALLEST), 0, 127 / largest)).round_()
    return codes.mul_(largest / 127).view(len(x), -1)[:, : x.shape[1]]


@functools.cache
def order_of(format: Format) -> np.ndarray:
    """The order of the format's codes, int64, at an address that stays."""
    return np.array(codes_of(format).order, np.int64)


@task
def quantizing():
    """The task of ``quantize``."""
    return _quantize_token


def _quantize_token(token, x, columns, tokens, records, order):
    x += 4 * columns * token
    for unit in range((columns + 255) // 256):
        _quantize_unit(x + 1024 * unit, min(16, columns // 16 - 16 * unit), records + (unit * tokens + token) * RECORD, order)


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
