"""The scales of a block: readers made from their description, and by hand those that lie in no planes.

A reader is ``scales(tier, block, scratch)``: it writes the scales of the block at an address to the scratch as float32, and
its minima MINIMA bytes after them. The order of operations is gguf-py's: it decides the last bit.
"""

import numpy as np
from numba import types

from kit.cpu.codes import integers
from kit.cpu.simd.isa import half_to_float
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import Vector, bitcast, convert, f32x16, high, inner, join, low, pick, u8x8
from kit.gguf.formats import TABLES, Format

u8, u16, u32, u64, f32 = types.uint8, types.uint16, types.uint32, types.uint64, types.float32
u16x2 = Vector(u16, 2)
MINIMA = 64  # sixteen scales come first


def reader(format: Format):
    """The reader of a format's scales and, if it has them, minima."""
    scales = format.scales
    if scales.function:
        return FUNCTIONS[scales.function](format)
    if scales.table:
        return _table(format.at(scales.d), format.groups, TABLES[scales.table])
    read = _times(format, scales.d, 0)
    if not scales.dmin:
        return read
    read_minima = _times(format, scales.dmin, 1)

    @inner
    def scales_and_minima(tier, block, scratch):
        read(tier, block, scratch)
        read_minima(tier, block, scratch + MINIMA)

    return scales_and_minima


def _times(format: Format, field: str, part: int):
    """A half in a field, or its products with the first or second of the steps for the groups."""
    at, steps = format.at(field), format.scales.steps
    if steps is None:
        return inner(lambda tier, block, scratch: store(scratch, half_to_float(tier, load(u16, block + at))))
    read, kind = integers(format, steps, format.groups), Vector(f32, format.groups)
    less, times = np.float32(steps.less), np.float32(steps.times)

    @inner
    def products(tier, block, scratch):
        numbers = (convert(kind, read(block, part)) - less) * times
        store(scratch, numbers * half_to_float(tier, load(u16, block + at)))

    return products


def _table(at: int, groups: int, numbers: np.ndarray):
    @inner
    def scales(tier, block, scratch):
        for i in range(groups):
            store(scratch + 4 * i, numbers[load(u8, block + at + i)])

    return scales


def six_bits(format: Format):
    """Q4_K, Q5_K: eight scales and eight minima of six bits in twelve bytes, in units of d and dmin."""
    both = scales_and_minima(format)

    @inner
    def scales(tier, block, scratch):
        numbers = both(tier, block)
        store(scratch, low(numbers))
        store(scratch + MINIMA, high(numbers))

    return scales


def scales_and_minima(format: Format):
    """Q4_K, Q5_K: a reader of the eight scales and then the eight minima of the block at an address, f32x16."""
    halves, each, numbers = format.at("d"), pick(*[0] * 8, *[1] * 8), six_bit_numbers(format)  # d, and dmin behind it

    @inner(forceinline=True)
    def both(tier, block):
        return convert(f32x16, numbers(block)) * each(half_to_float(tier, load(u16x2, block + halves)))

    return both


def six_bit_numbers(format: Format):
    """The same as integers, u8x16, before they are multiplied by d and dmin."""
    packed = format.at("scales")

    @inner(forceinline=True)
    def both(block):
        first = u64(load(u32, block + packed))
        second = u64(load(u32, block + packed + 4))
        third = u64(load(u32, block + packed + 8))
        nibble, six, two = u64(0x0F0F0F0F), u64(0x3F3F3F3F), u64(0x30303030)
        scales = (first & six) | (((third & nibble) | ((first >> u64(2)) & two)) << u64(32))
        minima = (second & six) | ((((third >> u64(4)) & nibble) | ((second >> u64(2)) & two)) << u64(32))
        return join(bitcast(u8x8, scales), bitcast(u8x8, minima))

    return both


def iq1_m(format: Format):
    """Sixteen scales d (2 n + 1) / 8, n of three bits, four in each 16-bit word; the words' top nibbles are d."""
    words, eighth = format.at("scales"), np.float32(0.125)

    @inner
    def scales(tier, block, scratch):
        d = 0
        for i in range(4):
            d |= (np.int64(load(u16, block + words + 2 * i)) >> 12) << (4 * i)
        unit = half_to_float(tier, u16(d)) * eighth
        for i in range(16):
            step = 2 * ((np.int64(load(u16, block + words + 2 * (i >> 2))) >> (3 * (i & 3))) & 7) + 1
            store(scratch + 4 * i, unit * f32(step))

    return scales


FUNCTIONS = {f.__name__: f for f in (six_bits, iq1_m)}
