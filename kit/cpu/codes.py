"""The integer codes of a block: readers made from the description of their planes or grid, and by hand that of digits.

A reader is ``codes(tier, block, j) -> i32x16``: the weights 16 j ... 16 j + 15 of the block at an address, before scaling.
"""

import functools
from collections import defaultdict

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
from kit.gguf.formats import Bits, Format, Numbers, Plane, place

u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64


def reader(format: Format):
    """The reader of a format's codes."""
    codes, less = format.codes, format.codes.less
    if codes.function:
        return FUNCTIONS[codes.function](format)
    if codes.grid:
        return _rows(format)
    if not codes.values:
        read = integers(format, codes, 16)
        return inner(lambda tier, block, j: read(block, j) - less)
    read, table = integers(format, codes, 16, u16), constant(i8x16, *codes.values, *[0] * (16 - len(codes.values)))
    return inner(lambda tier, block, j: convert(i32x16, lookup(tier, table(), convert(u8x16, read(block, j)))))


def integers(format: Format, numbers: Numbers, lanes: int, element=types.int32):
    """read(block, j): integers lanes * j ... of these planes, a vector; lanes is a power of two."""
    if numbers.listed:
        return _part_of_listed(format, numbers, lanes, element)
    low, *more = format.bit_fields(numbers, np.arange(lanes))
    read = _plane(format, numbers.planes[0], *low[:3], element)
    for plane, (*bits, below) in zip(numbers.planes[1:], more, strict=True):
        read = _with_higher(read, _plane(format, plane, *bits, element), below)
    return read


def _with_higher(low, high, bits):
    return inner(lambda block, j: low(block, j) | (high(block, j) << bits))


def _plane(format: Format, plane: Plane, bytes_: np.ndarray, shifts: np.ndarray, mask: int, element):
    """read(block, j) of one plane: where the lanes of j = 0 lie, and how far on those of the others do."""
    lanes, run, bits, step = len(bytes_), plane.run, plane.bits, plane.step
    wide, first = Vector(element, lanes), format.at(plane.field) + (plane.start if step == 1 else 0)  # else all of the field
    if run == bits == step == 1 and lanes in (16, 32):  # a bit a lane is a mask
        one, zero = constant(wide, *[1] * lanes), constant(wide, *[0] * lanes)
        mask, word = (mask16, u16) if lanes == 16 else (mask32, u32)
        return inner(lambda block, j: select(bitcast(mask, load(word, block + first + lanes // 8 * j)), one(), zero()))

    picked, shifted, at = pick(*bytes_ - first), constant(wide, *shifts), inner(place)
    some = Vector(types.int8 if mask < 0 else u8, int(bytes_.max()) - first + 1)

    @inner
    def integers(block, j):
        byte, shift = at(lanes * j, run, bits)
        numbers = convert(wide, picked(load(some, block + first + byte * step)))
        return numbers if bits == 8 else (numbers >> shifted() >> shift) & mask

    return integers


# ---- planes that list their places


def _part_of_listed(format: Format, numbers: Numbers, lanes: int, element):
    """``integers`` for j of 0 or 1."""
    read, wide = listed(format, numbers), Vector(element, lanes)
    if _count(numbers) == lanes:
        return inner(lambda block, j: convert(wide, read(block)))
    first, second = pick(*range(lanes)), pick(*range(lanes, 2 * lanes))
    return inner(lambda block, j: convert(wide, second(read(block)) if j else first(read(block))))


def listed(format: Format, numbers: Numbers):
    """read(block): all integers, a vector of uint8. Words of four bytes are shifted and masked, which takes fewer instructions
    than vectors would."""
    fields = format.bit_fields(numbers, np.arange(0, _count(numbers), 4))
    places = sorted({int(at) for byte, *_ in fields for at in byte})
    words = _words(places)
    fours = [
        _four([(places.index(byte[n]), int(shift[n]) - below, mask << below) for byte, shift, mask, below in fields])
        for n in range(len(fields[0][0]))
    ]
    vector = _vector([_eight(low, high) for low, high in zip(fours[::2], fours[1::2], strict=True)])
    return inner(lambda block: vector(words(block)), forceinline=True)


def _count(numbers: Numbers) -> int:
    return numbers.planes[0].run * len(numbers.planes[0].places)


def _words(places: list[int]):
    """A reader of the four bytes at each place of a block, a tuple of u64."""
    *others, last = places
    if not others:
        return inner(lambda block: (u64(load(u32, block + last)),), forceinline=True)
    before = _words(others)
    return inner(lambda block: (*before(block), u64(load(u32, block + last))), forceinline=True)


def _four(parts):
    """Four integers in the bytes of a u64, of parts (number of a word, bits to shift down by, or up if negative, mask)."""
    masks = defaultdict(int)  # parts of a word that are shifted alike are one
    for word, down, mask in parts:
        masks[word, down] |= mask
    first, *more = (_moved(word, down, u64(0x01010101 * mask)) for (word, down), mask in masks.items())
    return functools.reduce(_either, more, first)


def _moved(n: int, down: int, mask):
    by = u64(abs(down))
    if down < 0:
        return inner(lambda words: (words[n] << by) & mask, forceinline=True)
    return inner(lambda words: (words[n] >> by) & mask, forceinline=True)


def _either(first, second):
    return inner(lambda words: first(words) | second(words), forceinline=True)


def _eight(low, high):
    return inner(lambda words: low(words) | (high(words) << u64(32)), forceinline=True)


@inner(forceinline=True)
def _both(low, high):
    return join(bitcast(u8x8, low), bitcast(u8x8, high))


def _vector(eights: list):
    """Integers by eight as one vector."""
    if len(eights) > 2:
        half = len(eights) // 2
        low, high = _vector(eights[:half]), _vector(eights[half:])
        return inner(lambda words: join(low(words), high(words)), forceinline=True)
    first, *rest = eights
    if not rest:
        return inner(lambda words: bitcast(u8x8, first(words)), forceinline=True)
    (second,) = rest

    @inner(forceinline=True)
    def sixteen(words):
        return _both(first(words), second(words))

    return sixteen


# ---- ternary digits


def tq1_0(format: Format):
    """Five trits per byte as a fraction of 256, then four; a multiplication by 3^n brings trit n to the top."""
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
    """gguf-py's grid of a format, each row as one integer of its bytes: (rows,) uint64 or uint32."""
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
    """The values, negated where a bit of ``signs`` is set."""
    return select(bitcast(mask16, u16(signs)), 0 - codes, codes)


@inner
def _shifted(codes, first, second):
    """Eight times a grid of -1, 0, 1, and one eighth less for each eight weights whose bit is set: +1 or -1."""
    return codes + select(bitcast(mask16, u16(first * 0x00FF | second * 0xFF00)), broadcast(i32x16, -1), broadcast(i32x16, 1))


def _rows(format: Format):
    """The reader of a grid's rows with their signs, or shifted up or down by an eighth."""
    grid = format.codes.grid
    numbers, index = _grid(format, scale=8 if grid.minus else 1), _bits(format, *grid.index)
    read, signs = _bits(format, grid.signs or grid.minus), grid.signs.bits if grid.signs else 0
    at = format.at((grid.signs or grid.minus).field)

    row = inner(lambda block, i, k: numbers[u64(index(block, i, k))])  # unsigned: Numba adds no test for negatives
    if grid.lanes == 8:
        rows = inner(lambda block, j: _sixteen(row(block, 2 * j, 0), row(block, 2 * j, 1)))
    else:

        @inner
        def rows(block, j):
            return _fours(row(block, 4 * j, 0), row(block, 4 * j, 1), row(block, 4 * j, 2), row(block, 4 * j, 3))

    @inner
    def codes(tier, block, j):
        if signs == 8:
            return _signed(rows(block, j), load(u16, block + at + 2 * j))
        first, second = read(block, 2 * j, 0), read(block, 2 * j, 1)
        if signs == 7:
            return _signed(rows(block, j), _SIGNS[u64(first)] | (_SIGNS[u64(second)] << 8))
        return _shifted(rows(block, j), first, second)

    return codes


def _bits(format: Format, bits: Bits, *higher: Bits):
    """read(block, i, k): integer i + k of some Bits, and above its bits those of ``higher``; i: a multiple of 4, or of 2 where
    k is 0 or 1, so that integers of one word take one shift by i."""
    at, word, step, most = format.at(bits.field) + bits.start, {1: u8, 2: u16, 4: u32}[bits.word], bits.step, bits.count - 1
    words, shift, apart, mask = most.bit_length(), bits.shift, bits.apart, (1 << bits.bits) - 1
    same, whole_bytes = min(most, 3), bits.bits == bits.apart == 8  # same: of k, what does not change the word

    @inner
    def read(block, i, k):
        i += k & ~same
        if whole_bytes:
            return np.int64(load(u8, block + at + step * (i >> words) + (i & most) + (k & same)))
        return (
            np.int64(load(word, block + at + step * (i >> words))) >> (shift + apart * (i & most)) >> (apart * (k & same))
        ) & mask

    if not higher:
        return read
    more, below = _bits(format, *higher), bits.bits
    return inner(lambda block, i, k: read(block, i, k) | (more(block, i, k) << below))


FUNCTIONS = {"tq1_0": tq1_0}
