"""The scales of the ggml formats: for each way of packing them, a function that makes readers of a block's.

A reader is ``scales(tier, block, scratch)``: it writes the scales of the block at an address to the scratch as float32, and
its minima MINIMA bytes after them. The order of operations is gguf-py's: it decides the last bit.
"""

import gguf
import numpy as np
from numba import njit, types

from kit.cpu.codes import offset
from kit.cpu.simd.isa import half_to_float
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import bitcast, convert, f32x8, f32x16, i8x16, interleave, join, u8x8, u8x16

u8, u16, u32, u64, f32 = types.uint8, types.uint16, types.uint32, types.uint64, types.float32
MINIMA = 64  # sixteen scales come first


def half(format: str, scale: str = "d", minimum: str | None = None):
    """One scale in half precision, perhaps a minimum."""
    at = offset(format, scale)

    @njit
    def scales(tier, block, scratch):
        store(scratch, half_to_float(tier, load(u16, block + at)))

    if minimum is None:
        return scales
    below = offset(format, minimum)

    @njit
    def scales_and_minima(tier, block, scratch):
        scales(tier, block, scratch)
        store(scratch + MINIMA, half_to_float(tier, load(u16, block + below)))

    return scales_and_minima


def table(format: str, field: str, numbers: np.ndarray):
    """A byte each, which indexes a table of 256 numbers."""
    at, count = offset(format, field), 4 if format == "NVFP4" else 1

    @njit
    def scales(tier, block, scratch):
        for i in range(count):
            store(scratch + 4 * i, numbers[load(u8, block + at + i)])

    return scales


E8M0 = gguf.quants.MXFP4.e8m0_to_fp32_half(np.arange(256, dtype=np.uint8))
UE4M3 = gguf.quants.NVFP4.ue4m3_to_fp32(np.arange(256, dtype=np.uint8)).astype(np.float32)


def q4_k(format: str):
    """Q4_K, Q5_K: eight scales and eight minima of six bits in twelve bytes, in units of d and dmin."""
    d, dmin, packed = (offset(format, field) for field in ("d", "dmin", "scales"))

    @njit
    def scales(tier, block, scratch):
        first = u64(load(u32, block + packed))
        second = u64(load(u32, block + packed + 4))
        third = u64(load(u32, block + packed + 8))
        nibble, six, two = u64(0x0F0F0F0F), u64(0x3F3F3F3F), u64(0x30303030)
        steps = (first & six) | (((third & nibble) | ((first >> u64(2)) & two)) << u64(32))
        lows = (second & six) | ((((third >> u64(4)) & nibble) | ((second >> u64(2)) & two)) << u64(32))
        store(scratch, convert(f32x8, bitcast(u8x8, steps)) * half_to_float(tier, load(u16, block + d)))
        store(scratch + MINIMA, convert(f32x8, bitcast(u8x8, lows)) * half_to_float(tier, load(u16, block + dmin)))

    return scales


def q2_k():
    """Sixteen scales in the low nibbles, sixteen minima in the high ones, in units of d and dmin."""
    d, dmin, packed = (offset("Q2_K", field) for field in ("d", "dmin", "scales"))

    @njit
    def scales(tier, block, scratch):
        both = load(u8x16, block + packed)
        store(scratch, convert(f32x16, both & 15) * half_to_float(tier, load(u16, block + d)))
        store(scratch + MINIMA, convert(f32x16, both >> 4) * half_to_float(tier, load(u16, block + dmin)))

    return scales


def q3_k():
    """Sixteen scales of six bits less 32: eight bytes of low nibbles, four of the upper two bits."""
    d, packed = offset("Q3_K", "d"), offset("Q3_K", "scales")

    @njit
    def scales(tier, block, scratch):
        low, high = load(u64, block + packed), u64(load(u32, block + packed + 8))
        nibbles, twos = u64(0x0F0F0F0F0F0F0F0F), u64(0x3030303030303030)
        first = (low & nibbles) | ((high << u64(4) | (high << u64(34))) & twos)
        second = ((low >> u64(4)) & nibbles) | ((high | (high << u64(30))) & twos)
        steps = convert(i8x16, join(bitcast(u8x8, first), bitcast(u8x8, second))) - 32
        store(scratch, convert(f32x16, steps) * half_to_float(tier, load(u16, block + d)))

    return scales


def q6_k():
    """Sixteen scales of a signed byte in units of d."""
    d, steps = offset("Q6_K", "d"), offset("Q6_K", "scales")

    @njit
    def scales(tier, block, scratch):
        store(scratch, convert(f32x16, load(i8x16, block + steps)) * half_to_float(tier, load(u16, block + d)))

    return scales


def iq4_xs():
    """Eight scales of six bits less 32: nibbles in scales_l, the upper two bits in scales_h."""
    d, low, high = (offset("IQ4_XS", field) for field in ("d", "scales_l", "scales_h"))

    @njit
    def scales(tier, block, scratch):
        unit = half_to_float(tier, load(u16, block + d))
        nibbles, twos = np.int64(load(u32, block + low)), np.int64(load(u16, block + high))
        for i in range(8):
            step = ((nibbles >> (4 * i)) & 15 | ((twos >> (2 * i)) & 3) << 4) - 32
            store(scratch + 4 * i, unit * f32(step))

    return scales


def top_nibbles(format: str, field: str, stride: int, factor: float):
    """IQ2_XXS, IQ3_XXS: eight scales d (1/2 + n) times ``factor``, n in the top four bits of every ``stride`` bytes."""
    d, last = offset(format, "d"), offset(format, field) + stride - 4
    half, factor = np.float32(0.5), np.float32(factor)

    @njit
    def scales(tier, block, scratch):
        unit = half_to_float(tier, load(u16, block + d))
        for i in range(8):
            store(scratch + 4 * i, unit * (half + f32(load(u32, block + last + stride * i) >> 28)) * factor)

    return scales


def nibbles(format: str):
    """IQ2_XS, IQ2_S: sixteen scales d (1/2 + n) / 4, n in nibbles."""
    d, packed = offset(format, "d"), offset(format, "scales")
    half, quarter = np.float32(0.5), np.float32(0.25)

    @njit
    def scales(tier, block, scratch):
        both = load(u8x8, block + packed)
        steps = convert(f32x16, interleave(both & 15, both >> 4)) + half
        store(scratch, steps * half_to_float(tier, load(u16, block + d)) * quarter)

    return scales


def iq3_s():
    """Eight scales d (1 + 2 n), n in nibbles."""
    d, packed = offset("IQ3_S", "d"), offset("IQ3_S", "scales")

    @njit
    def scales(tier, block, scratch):
        both = bitcast(u8x8, u64(load(u32, block + packed)))
        steps = convert(f32x16, 1 + 2 * interleave(both & 15, both >> 4))
        store(scratch, steps * half_to_float(tier, load(u16, block + d)))

    return scales


_EIGHTH = np.float32(
    0.125
)  # the codes of IQ1 count eighths, so that a grid of -1, 0, 1 and its shift of 1/8 are integers


def iq1_s():
    """Eight scales d (2 n + 1), n in bits 12 to 14 of each word of qh."""
    d, words = offset("IQ1_S", "d"), offset("IQ1_S", "qh")

    @njit
    def scales(tier, block, scratch):
        unit = half_to_float(tier, load(u16, block + d)) * _EIGHTH
        for i in range(8):
            step = 2 * ((np.int64(load(u16, block + words + 2 * i)) >> 12) & 7) + 1
            store(scratch + 4 * i, unit * f32(step))

    return scales


def iq1_m():
    """Sixteen scales d (2 n + 1), n of three bits, four in each 16-bit word; the words' top nibbles are d."""
    words = offset("IQ1_M", "scales")

    @njit
    def scales(tier, block, scratch):
        d = 0
        for i in range(4):
            d |= (np.int64(load(u16, block + words + 2 * i)) >> 12) << (4 * i)
        unit = half_to_float(tier, u16(d)) * _EIGHTH
        for i in range(16):
            step = 2 * ((np.int64(load(u16, block + words + 2 * (i >> 2))) >> (3 * (i & 3))) & 7) + 1
            store(scratch + 4 * i, unit * f32(step))

    return scales
