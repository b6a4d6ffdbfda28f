"""The integer codes of the ggml formats: for each way of packing them, a function that makes readers of sixteen.

A reader is ``codes(tier, block, j) -> i32x16``: the weights 16 j ... 16 j + 15 of the block at an address, before scaling.
"""

import gguf
import numpy as np
from numba import njit, types

from kit.cpu.simd.isa import lookup
from kit.cpu.simd.memory import load
from kit.cpu.simd.vectors import bitcast, broadcast, convert, i8x16, i32x16, join, mask16, select, u8x8, u8x16, u16x16
from kit.gguf.formats import FORMATS

u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64


def offset(format: str, field: str) -> int:
    """Where a field lies in the block of a format, in bytes."""
    return FORMATS[format].layout.fields[field][1]


# ---- planes of bits


def _plane(at: int, run: int, bits: int):
    """A plane of ``bits`` a weight: ``run`` bytes hold the lowest bits of ``run`` weights, then the next of as many more."""
    runs, fields, mask = run.bit_length() - 1, (8 // bits).bit_length() - 1, (1 << bits) - 1

    @njit
    def plane(block, j):
        i = 16 * j
        byte = (i >> (runs + fields) << runs) + (i & (run - 1))
        return (convert(i32x16, load(u8x16, block + at + byte)) >> (((i >> runs) & (8 // bits - 1)) * bits)) & mask

    return plane


def planes(format: str, low: tuple, high: tuple | None = None, bias: int = 0):
    """One plane, or a low and a high one: (field, run, bits) each; less ``bias``."""
    field, run, bits = low
    lower = _plane(offset(format, field), run, bits)
    if high is None:
        return njit(lambda tier, block, j: lower(block, j) - bias)
    upper = _plane(offset(format, high[0]), *high[1:])
    return njit(lambda tier, block, j: (lower(block, j) | (upper(block, j) << bits)) - bias)


def nibbles_and_bits(format: str, bias: int):
    """Five bits: nibbles in ``qs``, the fifth bits one after another in ``qh``."""
    nibbles, bits = _plane(offset(format, "qs"), 16, 4), offset(format, "qh")

    @njit
    def codes(tier, block, j):
        fifth = bitcast(mask16, load(u16, block + bits + 2 * j))
        return nibbles(block, j) + select(fifth, broadcast(i32x16, 16 - bias), broadcast(i32x16, -bias))

    return codes


def signed_bytes(format: str):
    """A byte a weight."""
    at = offset(format, "qs")
    return njit(lambda tier, block, j: convert(i32x16, load(i8x16, block + at + 16 * j)))


# ---- tables of sixteen values


def values(format: str, table: tuple):
    """Nibbles that index a table of sixteen values; of sixteen bytes, the low nibbles first."""
    at, numbers = offset(format, "qs"), np.array(table, np.int8)

    @njit
    def codes(tier, block, j):
        nibbles = (convert(u16x16, load(u8x16, block + at + 16 * (j >> 1))) >> (4 * (j & 1))) & 15
        return convert(i32x16, convert(i8x16, lookup(tier, load(u8x16, numbers.ctypes.data), convert(u8x16, nibbles))))

    return codes


def short_values(format: str, table: tuple):
    """The same where a sixteen is eight bytes (NVFP4): the low nibbles, then the high ones."""
    at, numbers = offset(format, "qs"), np.array(table, np.int8)

    @njit
    def codes(tier, block, j):
        packed = load(u8x8, block + at + 8 * j)
        return convert(
            i32x16, convert(i8x16, lookup(tier, load(u8x16, numbers.ctypes.data), join(packed & 15, packed >> 4)))
        )

    return codes


# ---- ternary digits


def trits(format: str):
    """TQ1_0: five trits a byte as a fraction of 256, then four; times 3^n brings trit n to the top."""
    at, powers = offset(format, "qs"), np.array([1, 3, 9, 27, 81], np.uint16)
    last = np.repeat(powers[:4], 4)

    @njit
    def codes(tier, block, j):
        if j < 10:  # five trits of each of 32 bytes
            fraction = convert(u16x16, load(u8x16, block + at + 16 * (j & 1))) * powers[j >> 1]
        elif j < 15:  # five trits of each of 16 bytes
            fraction = convert(u16x16, load(u8x16, block + at + 32)) * powers[j - 10]
        else:  # four trits of each of 4 bytes
            four = load(u32, block + at + 48)
            two = u64(four) | (u64(four) << u64(32))
            fraction = convert(u16x16, join(bitcast(u8x8, two), bitcast(u8x8, two))) * load(u16x16, last.ctypes.data)
        return convert(i32x16, ((fraction & 255) * 3) >> 8) - 1

    return codes


# ---- grids: an index names a row of four or eight weights; signs come apart


def _grid(format: str, scale: int = 1) -> np.ndarray:
    """gguf-py's grid of a format, a row as one integer of its bytes: (rows,) uint64 or uint32."""
    quant = gguf.quants._type_traits[gguf.GGMLQuantizationType[format]]
    quant.init_grid()
    rows, lanes = quant.grid_shape
    grid = (quant.grid.reshape(rows, lanes) * scale).astype(np.int8)
    return np.ascontiguousarray(grid).view(f"u{lanes}").reshape(rows)


_SIGNS = np.frombuffer(gguf.quants.IQ2_XXS.ksigns, np.uint8).astype(np.uint16)  # seven signs and their parity


@njit
def _sixteen(a, b):
    """Two rows of eight."""
    return convert(i32x16, convert(i8x16, join(bitcast(u8x8, a), bitcast(u8x8, b))))


@njit
def _fours(a, b, c, d):
    """Four rows of four."""
    return _sixteen(u64(a) | (u64(b) << u64(32)), u64(c) | (u64(d) << u64(32)))


@njit
def _signed(codes, signs):
    """Negative where a bit of ``signs`` is set."""
    return select(bitcast(mask16, u16(signs)), 0 - codes, codes)


@njit
def _two_signs(packed):
    """Sixteen signs from twice seven bits."""
    return _SIGNS[packed & 127] | (_SIGNS[(packed >> 7) & 127] << 8)


def iq2_xxs():
    at, grid = offset("IQ2_XXS", "qs"), _grid("IQ2_XXS")

    @njit
    def codes(tier, block, j):
        pair = block + at + 8 * (j >> 1)
        rows = pair + 2 * (j & 1)
        signs = np.int64(load(u32, pair + 4)) >> (14 * (j & 1))
        return _signed(_sixteen(grid[load(u8, rows)], grid[load(u8, rows + 1)]), _two_signs(signs))

    return codes


def iq2_xs():
    at, grid = offset("IQ2_XS", "qs"), _grid("IQ2_XS")

    @njit
    def codes(tier, block, j):
        a, b = load(u16, block + at + 4 * j), load(u16, block + at + 4 * j + 2)
        return _signed(_sixteen(grid[a & 511], grid[b & 511]), _SIGNS[a >> 9] | (_SIGNS[b >> 9] << 8))

    return codes


def iq2_s():
    qs, qh, signs, grid = *(offset("IQ2_S", field) for field in ("qs", "qh", "signs")), _grid("IQ2_S")

    @njit
    def codes(tier, block, j):
        high = np.int64(load(u8, block + qh + (j >> 1))) >> (4 * (j & 1))
        a = load(u8, block + qs + 2 * j) | ((high & 3) << 8)
        b = load(u8, block + qs + 2 * j + 1) | ((high & 12) << 6)
        return _signed(_sixteen(grid[a], grid[b]), load(u16, block + signs + 2 * j))

    return codes


def iq3_xxs():
    qs, words, grid = offset("IQ3_XXS", "qs"), offset("IQ3_XXS", "signs"), _grid("IQ3_XXS")

    @njit
    def codes(tier, block, j):
        at = block + qs + 4 * j
        signs = np.int64(load(u32, block + words + 4 * (j >> 1))) >> (14 * (j & 1))
        rows = _fours(grid[load(u8, at)], grid[load(u8, at + 1)], grid[load(u8, at + 2)], grid[load(u8, at + 3)])
        return _signed(rows, _two_signs(signs))

    return codes


def iq3_s():
    qs, qh, signs, grid = *(offset("IQ3_S", field) for field in ("qs", "qh", "signs")), _grid("IQ3_S")

    @njit
    def codes(tier, block, j):
        at, ninth = block + qs + 4 * j, np.int64(load(u8, block + qh + (j >> 1))) >> (4 * (j & 1))
        a = load(u8, at) | ((ninth & 1) << 8)
        b = load(u8, at + 1) | ((ninth & 2) << 7)
        c = load(u8, at + 2) | ((ninth & 4) << 6)
        d = load(u8, at + 3) | ((ninth & 8) << 5)
        return _signed(_fours(grid[a], grid[b], grid[c], grid[d]), load(u16, block + signs + 2 * j))

    return codes


@njit
def _shifted(codes, first, second):
    """Eight times a grid of -1, 0, 1, and one eighth less for each eight weights whose bit is set: +1 or -1."""
    return codes + select(
        bitcast(mask16, u16(first * 0x00FF | second * 0xFF00)), broadcast(i32x16, -1), broadcast(i32x16, 1)
    )


def iq1_s():
    qs, qh, grid = offset("IQ1_S", "qs"), offset("IQ1_S", "qh"), _grid("IQ1_S", scale=8)

    @njit
    def codes(tier, block, j):
        word = np.int64(load(u16, block + qh + 2 * (j >> 1)))
        high, minus = word >> (6 * (j & 1)), word >> 15
        a = load(u8, block + qs + 2 * j) | ((high & 7) << 8)
        b = load(u8, block + qs + 2 * j + 1) | ((high & 56) << 5)
        return _shifted(_sixteen(grid[a], grid[b]), minus, minus)

    return codes


def iq1_m():
    qs, qh, grid = offset("IQ1_M", "qs"), offset("IQ1_M", "qh"), _grid("IQ1_M", scale=8)

    @njit
    def codes(tier, block, j):
        high = np.int64(load(u8, block + qh + j))
        a = load(u8, block + qs + 2 * j) | ((high & 7) << 8)
        b = load(u8, block + qs + 2 * j + 1) | ((high & 112) << 4)
        return _shifted(_sixteen(grid[a], grid[b]), (high >> 3) & 1, high >> 7)

    return codes
