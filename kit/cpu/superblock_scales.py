"""The scales and minima of a super-block of 256 weights: readers made from the format's row."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.kernels import parts_of
from kit.cpu.scales import MINIMA, are_together, together
from kit.cpu.simd import emit
from kit.cpu.simd.emit import emits
from kit.cpu.simd.isa import half_to_float, opaque, opaque_on_arm
from kit.cpu.simd.memory import load
from kit.cpu.simd.vectors import Vector, bitcast, inner, interleave, join, pick, u16x16, u16x32, u32x8
from kit.gguf.formats import Format

SUPERBLOCK = 256
u16, u64, f32, u16x4 = types.uint16, types.uint64, types.float32, Vector(types.uint16, 4)


def halves(places):
    """A reader of the 64 bits that lie 16 at each of four places."""

    def code(builder, start):
        bits = ir.Constant(emit.I64, 0)
        for number, place in enumerate(map(int, places)):
            half = builder.zext(builder.load(emit.pointer(builder, start, emit.I16, place), align=1), emit.I64)
            bits = builder.or_(bits, builder.shl(half, ir.Constant(emit.I64, 16 * number)))
        return bits

    return intrinsic(lambda _, start: emits(u64(types.int64), code))


def readers(format: Format, tier: str):
    """Readers of the scales and then the minima."""
    if are_together(format):
        both = together(format)
        scales, minima = (pick(*(first + n // 2 for n in range(16))) for first in (0, 8))
        return (
            inner(lambda tier, start, scratch: scales(both(tier, start)), forceinline=True),
            inner(lambda tier, start, scratch: minima(both(tier, start)), forceinline=True),
        )
    scales = format.scales
    in_halves = format.block_elements == scales.group == 32 and not (scales.steps or scales.table or scales.function)
    return _in_halves(format, tier) if in_halves else _in_scratch(format)


def _in_scratch(format: Format):
    """Readers of the scales and then the minima by the dequantizer's reader, which writes to the scratch."""
    read, size, groups = parts_of(format).scales, format.block_bytes, format.groups
    blocks, sixteen = SUPERBLOCK // format.block_elements, _widened(SUPERBLOCK // format.scales.group)

    @inner(forceinline=True)
    def scales(tier, start, scratch):
        for block in range(blocks):  # the scales of all blocks one after another
            read(tier, start + block * size, scratch + 4 * groups * block)
        return sixteen(scratch)

    return scales, inner(lambda tier, start, scratch: sixteen(scratch + MINIMA), forceinline=True)


def _widened(count: int):
    """A reader of ``count`` numbers (1, 2, 4, 8 or 16) at an address as sixteen, neighbors sharing one."""
    numbers = Vector(f32, count)
    read = inner(lambda address: load(numbers, address), forceinline=True)
    while count < 16:
        read, count = _doubled(read), 2 * count
    return read


def _doubled(read):
    @inner(forceinline=True)
    def twice(address):
        vector = read(address)
        return interleave(vector, vector)

    return twice


def _in_halves(format: Format, tier: str):
    """For blocks of 32 with a scale (and minimum) in half precision: readers of the scales and then the minima.

    Eight numbers written to the scratch one at a time and read as a vector would wait for each other.
    """
    size = format.block_bytes

    def in_eight(field: str):  # put together as integers, and spread last: one lane each is enough for kit.cpu.simd.dots
        first, second = (halves([format.at(field) + size * block for block in some]) for some in (range(4), range(4, 8)))

        @inner(forceinline=True)
        def read(tier, start, scratch):
            eight = join(bitcast(u16x4, opaque(first(start))), bitcast(u16x4, opaque(second(start))))
            eight = opaque_on_arm(tier, half_to_float(tier, eight))
            return interleave(eight, eight)

        return read

    def reader(field: str):
        if tier in ("neon", "plain"):
            return in_eight(field)
        if tier == "avx2":
            return by_blends(format.at(field))
        places = [format.at(field) + size * block for block in range(8)]
        first, second = (_twice_each(places[at : at + 4], 8 * size) for at in (0, 4))
        return inner(lambda tier, start, scratch: half_to_float(tier, join(first(start), second(start))), forceinline=True)

    def by_blends(at: int):  # each in its lane of a vector from memory, and the lanes put together: no shuffles, one at the end
        first, odd = at - at % 4, at % 4 // 2
        twice = pick(*(2 * (n // 2) + odd for n in range(16)))
        by_1, by_2, by_4 = (pick(*(lane + 8 * (lane // n % 2) for lane in range(8))) for n in (1, 2, 4))

        @inner(forceinline=True)
        def two(start, n):
            blocks = start + first + (size - 4) * n
            return by_1(join(load(u32x8, blocks), load(u32x8, blocks + size - 4)))

        @inner(forceinline=True)
        def read(tier, start, scratch):
            v = by_4(join(by_2(join(two(start, 0), two(start, 2))), by_2(join(two(start, 4), two(start, 6)))))
            return half_to_float(tier, twice(bitcast(u16x16, v)))

        return read

    return reader(format.scales.d), reader(format.scales.dmin or format.scales.d)


def _twice_each(places: list[int], size: int):
    """A reader of the 16 bits at each of four places of a super-block of ``size`` bytes, as u16x8, each of them twice."""
    near, far = places[0] & ~1, min(places[0] + 64, size - 64)  # 64 bytes each, from which one instruction picks
    picked = pick(
        *((place - near) // 2 if place < near + 64 else 32 + (place - far) // 2 for place in places for _ in range(2))
    )
    return inner(lambda start: picked(join(load(u16x32, start + near), load(u16x32, start + far))), forceinline=True)
