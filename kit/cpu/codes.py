"""The integer codes of a block: readers made from the description of their planes, and by hand those of grids and digits.

A reader is ``codes(tier, block, j) -> i32x16``: the weights 16 j ... 16 j + 15 of the block at an address, before scaling.
"""

import gguf
import numpy as np
from numba import types

from kit.cpu.simd.isa import lookup
from kit.cpu.simd.memory import load
from kit.cpu.simd.vectors import (
    Vector,
    bitcast,
    broadcast,
    constant,
    convert,
    i8x16,
    i32x16,
    inner,
    join,
    mask16,
    mask32,
    pick,
    select,
    u8x8,
    u8x16,
    u16x16,
)
from kit.gguf.formats import Format, Numbers, Plane

u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64


def reader(format: Format):
    """The reader of a format's codes."""
    codes, less = format.codes, format.codes.less
    if codes.function:
        return FUNCTIONS[codes.function](format)
    if not codes.values:
        read = integers(format, codes, 16)
        return inner(lambda tier, block, j: read(block, j) - less)
    read, table = integers(format, codes, 16, u16), constant(i8x16, *codes.values, *[0] * (16 - len(codes.values)))
    return inner(lambda tier, block, j: convert(i32x16, lookup(tier, table(), convert(u8x16, read(block, j)))))


def integers(format: Format, numbers: Numbers, lanes: int, element=types.int32):
    """read(block, j): integers lanes * j ... of these planes, a vector; lanes is a power of two."""
    read = _plane(format, numbers.planes[0], lanes, element)
    for i, plane in enumerate(numbers.planes[1:], 1):
        read = _with_higher(read, _plane(format, plane, lanes, element), numbers.below(i))
    return read


def _with_higher(low, high, bits):
    return inner(lambda block, j: low(block, j) | (high(block, j) << bits))


def _plane(format: Format, plane: Plane, lanes: int, element):
    """read(block, j) of one plane."""
    wide, narrow = Vector(element, lanes), Vector(types.int8 if format.signed(plane) else u8, lanes)
    run, bits, step, mask = plane.run, plane.bits, plane.step, (1 << plane.bits) - 1
    first, fields = format.at(plane.field), 8 // bits - 1
    runs, period = run.bit_length() - 1, (run * 8 // bits).bit_length() - 1  # 2 to the power of these

    if bits == 8 and step == 1:
        first += plane.start
        return inner(lambda block, j: convert(wide, load(narrow, block + first + lanes * j)))

    if run >= lanes and step == 1:  # one shift for all lanes
        first += plane.start

        @inner
        def plane_of_runs(block, j):
            i = lanes * j
            byte, shift = (i >> period << runs) + (i & (run - 1)), (i >> runs & fields) * bits
            return (convert(wide, load(narrow, block + first + byte)) >> shift) & mask

        return plane_of_runs

    if run == bits == step == 1 and lanes in (16, 32):  # a bit a lane is a mask
        first, one, zero = first + plane.start, constant(wide, *[1] * lanes), constant(wide, *[0] * lanes)
        mask, word = (mask16, u16) if lanes == 16 else (mask32, u32)
        return inner(lambda block, j: select(bitcast(mask, load(word, block + first + lanes // 8 * j)), one(), zero()))

    bytes_, shifts = (part.tolist() for part in plane.place(np.arange(lanes)))
    if step == 1:
        first, bytes_ = first + plane.start, [byte - plane.start for byte in bytes_]
    some, picked, shifted = Vector(u8, max(bytes_) + 1), pick(*bytes_), constant(wide, *shifts)

    @inner
    def plane_of_lanes(block, j):
        i = lanes * j
        byte, shift = (i >> period << runs) * step, (i >> runs & fields) * bits
        return (convert(wide, picked(load(some, block + first + byte))) >> shifted() >> shift) & mask

    return plane_of_lanes


# ---- ternary digits


def tq1_0(format: Format):
    """Five trits a byte as a fraction of 256, then four; times 3^n brings trit n to the top."""
    at, powers = format.at("qs"), np.array([1, 3, 9, 27, 81], np.uint16)
    last = np.repeat(powers[:4], 4)

    @inner
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


def _grid(format: Format, scale: int = 1) -> np.ndarray:
    """gguf-py's grid of a format, a row as one integer of its bytes: (rows,) uint64 or uint32."""
    quant = getattr(gguf.quants, format.name)
    quant.init_grid()
    rows, lanes = quant.grid_shape
    grid = (quant.grid.reshape(rows, lanes) * scale).astype(np.int8)
    return np.ascontiguousarray(grid).view(f"u{lanes}").reshape(rows)


_SIGNS = np.frombuffer(gguf.quants.IQ2_XXS.ksigns, np.uint8).astype(np.uint16)  # seven signs and their parity


@inner
def _sixteen(a, b):
    """Two rows of eight."""
    return convert(i32x16, convert(i8x16, join(bitcast(u8x8, a), bitcast(u8x8, b))))


@inner
def _fours(a, b, c, d):
    """Four rows of four."""
    return _sixteen(u64(a) | (u64(b) << u64(32)), u64(c) | (u64(d) << u64(32)))


@inner
def _signed(codes, signs):
    """Negative where a bit of ``signs`` is set."""
    return select(bitcast(mask16, u16(signs)), 0 - codes, codes)


@inner
def _two_signs(packed):
    """Sixteen signs from twice seven bits."""
    return _SIGNS[packed & 127] | (_SIGNS[(packed >> 7) & 127] << 8)


def iq2_xxs(format: Format):
    at, grid = format.at("qs"), _grid(format)

    @inner
    def codes(tier, block, j):
        pair = block + at + 8 * (j >> 1)
        rows = pair + 2 * (j & 1)
        signs = np.int64(load(u32, pair + 4)) >> (14 * (j & 1))
        return _signed(_sixteen(grid[load(u8, rows)], grid[load(u8, rows + 1)]), _two_signs(signs))

    return codes


def iq2_xs(format: Format):
    at, grid = format.at("qs"), _grid(format)

    @inner
    def codes(tier, block, j):
        a, b = load(u16, block + at + 4 * j), load(u16, block + at + 4 * j + 2)
        return _signed(_sixteen(grid[a & 511], grid[b & 511]), _SIGNS[a >> 9] | (_SIGNS[b >> 9] << 8))

    return codes


def iq2_s(format: Format):
    qs, qh, signs, grid = *(format.at(field) for field in ("qs", "qh", "signs")), _grid(format)

    @inner
    def codes(tier, block, j):
        high = np.int64(load(u8, block + qh + (j >> 1))) >> (4 * (j & 1))
        a = load(u8, block + qs + 2 * j) | ((high & 3) << 8)
        b = load(u8, block + qs + 2 * j + 1) | ((high & 12) << 6)
        return _signed(_sixteen(grid[a], grid[b]), load(u16, block + signs + 2 * j))

    return codes


def iq3_xxs(format: Format):
    qs, words, grid = format.at("qs"), format.at("signs"), _grid(format)

    @inner
    def codes(tier, block, j):
        at = block + qs + 4 * j
        signs = np.int64(load(u32, block + words + 4 * (j >> 1))) >> (14 * (j & 1))
        rows = _fours(grid[load(u8, at)], grid[load(u8, at + 1)], grid[load(u8, at + 2)], grid[load(u8, at + 3)])
        return _signed(rows, _two_signs(signs))

    return codes


def iq3_s(format: Format):
    qs, qh, signs, grid = *(format.at(field) for field in ("qs", "qh", "signs")), _grid(format)

    @inner
    def codes(tier, block, j):
        at, ninth = block + qs + 4 * j, np.int64(load(u8, block + qh + (j >> 1))) >> (4 * (j & 1))
        a = load(u8, at) | ((ninth & 1) << 8)
        b = load(u8, at + 1) | ((ninth & 2) << 7)
        c = load(u8, at + 2) | ((ninth & 4) << 6)
        d = load(u8, at + 3) | ((ninth & 8) << 5)
        return _signed(_fours(grid[a], grid[b], grid[c], grid[d]), load(u16, block + signs + 2 * j))

    return codes


@inner
def _shifted(codes, first, second):
    """Eight times a grid of -1, 0, 1, and one eighth less for each eight weights whose bit is set: +1 or -1."""
    return codes + select(bitcast(mask16, u16(first * 0x00FF | second * 0xFF00)), broadcast(i32x16, -1), broadcast(i32x16, 1))


def iq1_s(format: Format):
    qs, qh, grid = format.at("qs"), format.at("qh"), _grid(format, scale=8)

    @inner
    def codes(tier, block, j):
        word = np.int64(load(u16, block + qh + 2 * (j >> 1)))
        high, minus = word >> (6 * (j & 1)), word >> 15
        a = load(u8, block + qs + 2 * j) | ((high & 7) << 8)
        b = load(u8, block + qs + 2 * j + 1) | ((high & 56) << 5)
        return _shifted(_sixteen(grid[a], grid[b]), minus, minus)

    return codes


def iq1_m(format: Format):
    qs, qh, grid = format.at("qs"), format.at("qh"), _grid(format, scale=8)

    @inner
    def codes(tier, block, j):
        high = np.int64(load(u8, block + qh + j))
        a = load(u8, block + qs + 2 * j) | ((high & 7) << 8)
        b = load(u8, block + qs + 2 * j + 1) | ((high & 112) << 4)
        return _shifted(_sixteen(grid[a], grid[b]), (high >> 3) & 1, high >> 7)

    return codes


FUNCTIONS = {f.__name__: f for f in (tq1_0, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq1_s, iq1_m)}
