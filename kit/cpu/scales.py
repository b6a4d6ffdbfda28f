"""The scales of a block: readers made from their description, and by hand those that lie in no planes.

A reader is ``scales(tier, block, scratch)``: it writes the scales of the block at an address to the scratch as float32, and
its minima MINIMA bytes after them. The order of operations is gguf-py's: it decides the last bit.
"""

import numpy as np
from numba import types

from kit.cpu.codes import integers, listed
from kit.cpu.simd.isa import half_to_float
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import Vector, convert, f32x16, high, inner, low, pick
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
    if are_together(format):
        return _together(format)
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


def are_together(format: Format) -> bool:
    """Whether eight scales and eight minima are read as one vector: their steps in listed places, d and dmin side by side."""
    scales, steps = format.scales, format.scales.steps
    together = bool(steps and steps.listed and scales.dmin) and format.at(scales.dmin) == format.at(scales.d) + 2
    return together and format.groups == 8 and steps.less == 0 and steps.times == 1


def together(format: Format):
    """A reader of the eight scales and then the eight minima of the block at an address, f32x16, if they ``are_together``."""
    halves, each, numbers = format.at(format.scales.d), pick(*[0] * 8, *[1] * 8), listed(format, format.scales.steps)

    @inner(forceinline=True)
    def both(tier, block):
        return convert(f32x16, numbers(block)) * each(half_to_float(tier, load(u16x2, block + halves)))

    return both


def _together(format: Format):
    both = together(format)

    @inner
    def scales(tier, block, scratch):
        numbers = both(tier, block)
        store(scratch, low(numbers))
        store(scratch + MINIMA, high(numbers))

    return scales


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


FUNCTIONS = {"iq1_m": iq1_m}
