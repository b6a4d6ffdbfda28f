"""Units of 256 weights for dot products in bytes: what a format's blocks look like to them, one row a format.

    weight = step * code - low        with a step and a low for each 16 weights, and codes of 0 to 255

holds for every block format, once signed codes have been raised by a bias. A unit's codes lie in four vectors of 64, in
the order in which they come out of the block cheaply; its steps and lows lie in the order of the weights.
"""

from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from kit.cpu.codes import offset
from kit.cpu.kernels import KERNELS
from kit.cpu.scales import MINIMA
from kit.cpu.simd.isa import half_to_float
from kit.cpu.simd.memory import load
from kit.cpu.simd.vectors import Vector, bitcast, convert, interleave, join, u8x16, u8x32, u8x64
from kit.gguf.formats import FORMATS

UNIT = 256
u16, u64, f32, u16x4 = types.uint16, types.uint64, types.float32, Vector(types.uint16, 4)


class Codes(NamedTuple):
    """``read(tier, unit) -> four u8x64``; ``bias``: what it adds to a code; ``order``: the 16 weights 16 n ... that come
    first, second ... in the vectors."""

    read: Callable
    bias: int
    order: tuple[int, ...] = tuple(range(16))


# ---- the codes of a unit


def _packed_q4_k():
    qs = offset("Q4_K", "qs")
    return njit(lambda unit: (load(u8x64, unit + qs), load(u8x64, unit + qs + 64)), forceinline=True)


def _packed_q4_0():
    qs, size = offset("Q4_0", "qs"), FORMATS["Q4_0"].block_bytes

    @njit(forceinline=True)
    def four(block):
        return join(
            join(load(u8x16, block + qs), load(u8x16, block + size + qs)),
            join(load(u8x16, block + 2 * size + qs), load(u8x16, block + 3 * size + qs)),
        )

    return njit(lambda unit: (four(unit), four(unit + 4 * size)), forceinline=True)


# Two codes a byte, unit -> two u8x64: the low four bits of the first are the first vector of codes, the high ones the second.
PACKED = {"Q4_K": _packed_q4_k(), "Q4_0": _packed_q4_0()}


def _nibbles(format: str):
    read_packed = PACKED[format]

    @njit(forceinline=True)
    def read(tier, unit):
        a, b = read_packed(unit)
        return a & 15, a >> 4, b & 15, b >> 4

    return read


def _q5_k():
    qs, qh = offset("Q5_K", "qs"), offset("Q5_K", "qh")

    @njit(forceinline=True)
    def read(tier, unit):
        a, b = load(u8x64, unit + qs), load(u8x64, unit + qs + 64)
        fifth = load(u8x32, unit + qh)
        low, high = join(fifth << 4, fifth << 2), join(fifth, fifth >> 2)
        return (
            (a & 15) | (low & 16),
            (a >> 4) | ((low >> 1) & 16),
            (b & 15) | (high & 16),
            (b >> 4) | ((high >> 1) & 16),
        )

    return read


def _q6_k():
    ql, qh = offset("Q6_K", "ql"), offset("Q6_K", "qh")

    @njit(forceinline=True)
    def half(low, high):
        first, second = join(high << 4, high << 2), join(high, high >> 2)
        return (low & 15) | (first & 48), (low >> 4) | (second & 48)

    @njit(forceinline=True)
    def read(tier, unit):
        a, b = half(load(u8x64, unit + ql), load(u8x32, unit + qh))
        c, d = half(load(u8x64, unit + ql + 64), load(u8x32, unit + qh + 32))
        return a, b, c, d

    return read


def _q8_0():
    qs, size = offset("Q8_0", "qs"), FORMATS["Q8_0"].block_bytes

    @njit(forceinline=True)
    def pair(block):
        return join(load(u8x32, block + qs), load(u8x32, block + size + qs)) ^ 128

    @njit(forceinline=True)
    def read(tier, unit):
        return pair(unit), pair(unit + 2 * size), pair(unit + 4 * size), pair(unit + 6 * size)

    return read


def _any(format: str, bias: int):
    """By the reader of the dequantizer, sixteen at a time: as general as it is slow."""
    read_codes, size = KERNELS[format].codes, FORMATS[format].block_bytes
    sixteens = FORMATS[format].block_elements // 16

    @njit(forceinline=True)
    def sixteen(tier, unit, n):
        return convert(u8x16, read_codes(tier, unit + n // sixteens * size, n % sixteens) + bias)

    @njit(forceinline=True)
    def vector(tier, unit, n):
        return join(
            join(sixteen(tier, unit, n), sixteen(tier, unit, n + 1)),
            join(sixteen(tier, unit, n + 2), sixteen(tier, unit, n + 3)),
        )

    @njit(forceinline=True)
    def read(tier, unit):
        return vector(tier, unit, 0), vector(tier, unit, 4), vector(tier, unit, 8), vector(tier, unit, 12)

    return read


_PAIRS = (0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15)  # low nibbles of 64 bytes, then their high ones
_EVEN_ODD = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
# The least code of the formats that have no reader of their own is minus this; 128 does for any.
_BIASES = {"Q4_1": 0, "Q5_1": 0, "Q2_K": 0, "Q5_0": 16, "Q3_K": 4, "TQ1_0": 1, "TQ2_0": 1, "MXFP4": 12, "NVFP4": 12}
CODES = {format: Codes(_any(format, _BIASES.get(format, 128)), _BIASES.get(format, 128)) for format in KERNELS} | {
    "Q4_K": Codes(_nibbles("Q4_K"), 0, _PAIRS),
    "Q5_K": Codes(_q5_k(), 0, _PAIRS),
    "Q6_K": Codes(_q6_k(), 32),
    "Q8_0": Codes(_q8_0(), 128),
    "Q4_0": Codes(_nibbles("Q4_0"), 8, _EVEN_ODD),
}


def unit_bytes(format: str) -> int:
    """Bytes of the blocks of 256 weights."""
    return FORMATS[format].nbytes(UNIT)


# ---- what kernels call; format and tier are Static


def unit_size(format):
    """unit_bytes, for a Static."""


def codes(format, tier, unit):
    """The codes of the unit at an address: four vectors u8x64."""


def steps(format, tier, unit, scratch):
    """The steps and the lows of a unit's weights, two vectors f32x16; scratch: the address of 128 bytes."""


@overload(unit_size)
def _(format):
    size = unit_bytes(format.value)
    return lambda format: size


@overload(codes, jit_options={"forceinline": True})
def _(format, tier, unit):
    read = CODES[format.value].read
    return lambda format, tier, unit: read(tier, unit)


@overload(steps, jit_options={"forceinline": True})
def _(format, tier, unit, scratch):
    (sign, bias), halves = (KERNELS[format.value].minimum, CODES[format.value].bias), _in_halves(format.value)
    read, read_low = (halves("d"), halves("m")) if halves else _in_scratch(format.value)

    def read_steps(format, tier, unit, scratch):
        step = read(tier, unit, scratch)
        if sign == 0:
            return step, step * bias
        low = read_low(tier, unit, scratch) * -sign
        return step, (step * bias + low if bias else low)

    return read_steps


def _in_scratch(format: str):
    """Readers of the steps and then the lows, by way of the dequantizer's reader and the scratch."""
    read, group = KERNELS[format].scales, KERNELS[format].group
    elements, size = FORMATS[format].block_elements, FORMATS[format].block_bytes
    blocks, groups, sixteen = UNIT // elements, elements // group, _widened(UNIT // group)

    @njit(forceinline=True)
    def steps(tier, unit, scratch):
        for block in range(blocks):  # the scales of all blocks one after another
            read(tier, unit + block * size, scratch + 4 * groups * block)
        return sixteen(scratch)

    return steps, njit(lambda tier, unit, scratch: sixteen(scratch + MINIMA), forceinline=True)


def _widened(count: int):
    """A reader of ``count`` numbers (1, 2, 4, 8 or 16) at an address as sixteen, neighbors sharing one."""
    numbers = Vector(f32, count)
    read = njit(lambda address: load(numbers, address), forceinline=True)
    while count < 16:
        read, count = _doubled(read), 2 * count
    return read


def _doubled(read):
    @njit(forceinline=True)
    def twice(address):
        vector = read(address)
        return interleave(vector, vector)

    return twice


def _in_halves(format: str):
    """For blocks of 32 with a scale (and minimum) in half precision: a maker of readers of that field, else None.

    Eight numbers written to the scratch one at a time and read as a vector would wait for each other.
    """
    fields, size = FORMATS[format].layout.names, FORMATS[format].block_bytes
    if FORMATS[format].block_elements != 32 or "d" not in fields:
        return None

    def reader(field: str):
        at = offset(format, field) if field in fields else 0

        @njit(forceinline=True)
        def four(block):
            a, b = load(u16, block), load(u16, block + size)
            c, d = load(u16, block + 2 * size), load(u16, block + 3 * size)
            return bitcast(u16x4, u64(a) | (u64(b) << u64(16)) | (u64(c) << u64(32)) | (u64(d) << u64(48)))

        @njit(forceinline=True)
        def eight(tier, unit, scratch):
            vector = half_to_float(tier, join(four(unit + at), four(unit + at + 4 * size)))
            return interleave(vector, vector)

        return eight

    return reader


@intrinsic(prefer_literal=True)
def spread(_, format, part, vector):
    """spread(format, 0, steps): the step of each four codes in the first (second ...) vector of a unit."""
    order, first = CODES[format.value].order, 4 * part.literal_value

    def emit(context, builder, signature, args):
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), 16), [order[first + lane // 4] for lane in range(16)])
        return builder.shuffle_vector(args[2], args[2], lanes)

    return vector(format, part, vector), emit
