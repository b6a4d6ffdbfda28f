"""Super-blocks of 256 weights for dot products in bytes: what a format's blocks look like to them.

    weight = scale * code - minimum        with a scale and a minimum for each 16 weights, and codes of 0 to 255

holds for every block format, once signed codes have been raised by the format's bias. The codes lie in four vectors of 64,
in the order in which they come out of the blocks cheaply; scales and minima lie in the order of the weights.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.codes import integers as integers_of
from kit.cpu.codes import listed
from kit.cpu.kernels import parts_of
from kit.cpu.simd import emit
from kit.cpu.simd.emit import emits
from kit.cpu.simd.isa import half_to_float, opaque, opaque_on_arm
from kit.cpu.simd.memory import copy, load, store
from kit.cpu.simd.vectors import (
    Static,
    bitcast,
    broadcast,
    constant,
    convert,
    f32x16,
    generated,
    i16x16,
    inner,
    join,
    mask16,
    mask64,
    pick,
    select,
    u8x16,
    u8x32,
    u8x64,
    u16x32,
    u32x4,
)
from kit.cpu.superblock_scales import SUPERBLOCK, halves, readers
from kit.cpu.tasks import features
from kit.gguf.formats import Format

u16, u32 = types.uint16, types.uint32
NEON, _SHIFTED = Static("neon"), u8x64 if "neon" in features() else u16x32  # x86 shifts no bytes


class Codes(NamedTuple):
    """``read(tier, start) -> four u8x64``; ``order``: the n of the 16 weights 16 n ... that come first, second ...;
    ``in_vectors``: whether 64 are unpacked at once."""

    read: Callable
    order: tuple[int, ...]
    in_vectors: bool


def _in_vectors(format: Format) -> bool:
    """Whether vectors of 64 codes can be unpacked at once: each 16 codes lie in 16 consecutive bytes, but for planes of one
    bit a code, of which 16 may lie in 2 bytes."""
    if not format.codes or not format.codes.planes or format.codes.values:
        return False
    low, *more = format.codes.planes
    in_bytes = all(plane.step == 1 and (plane.run >= 16 or plane.bits == 8) for plane in (low, *more))
    return in_bytes or (low.run >= 16 and low.step == 1 and all(plane.run == plane.bits == plane.step == 1 for plane in more))


@functools.cache
def codes_of(format: Format, signed: bool = False) -> Codes:
    """The reader of the codes of a format's super-blocks; if ``signed``, int8 codes are not raised by the bias."""
    if not _in_vectors(format):
        return Codes(_any(format), tuple(range(16)), False)
    byte, shift, *_ = format.bit_fields(format.codes, 16 * np.arange(16))[0]
    chunks = sorted(set(byte))  # 64 bytes of the low plane at a time, and in them bit after bit
    order = tuple(sorted(range(16), key=lambda n: (chunks.index(byte[n]) // 4, shift[n], byte[n])))
    a, b, c, d = (_vector(format, order[i : i + 4], flipped(format) and not signed) for i in (0, 4, 8, 12))
    read = inner(lambda tier, start: (a(start), b(start), c(start), d(start)), forceinline=True)
    return Codes(read, order, True)


def flipped(format: Format) -> bool:
    """Whether codes are int8 with the highest bit flipped."""
    return any(map(format.signed, format.codes.planes))


def has_steps(format: Format) -> bool:
    """Whether scales are integers times one number per super-block."""
    steps = format.scales.steps
    whole = bool(steps and not steps.function and not steps.values and steps.less == int(steps.less) and steps.times == 1)
    return format.block_elements == SUPERBLOCK and whole


def largest_code(format: Format) -> int:
    """An upper limit of the codes of the super-blocks: a power of two minus one."""
    return 2**format.codes.bits - 1 if format.codes.planes and not format.codes.values else 255


def _vector(format: Format, part, flip: bool):
    """A reader of the codes of four times 16 weights; if ``flip``, with the highest bit flipped."""
    planes = list(zip(format.codes.planes, format.bit_fields(format.codes, 16 * np.array(part)), strict=True))
    in_lanes = [(places, below) for plane, (places, *_, below) in planes if plane.run == plane.bits == 1]
    read = _in_bits([fields for plane, fields in planes if not plane.run == plane.bits == 1], 128 * flip)
    for places, below in in_lanes:
        read = _with_lanes(read, part, places, below)
    return read


def _with_lanes(read, part, places, below: int):
    """The codes of ``read`` with the bits of a plane that has one for each lane."""
    bits, bit, (a, b, c, d) = halves(places), 1 << below, places

    @inner(forceinline=True)
    def more(start):
        codes = read(start)
        return select(bitcast(mask64, bits(start)), codes + bit, codes)

    @inner(forceinline=True)
    def sixteen(at):
        return select(bitcast(mask16, load(u16, at)), broadcast(u8x16, 255), broadcast(u8x16, 0))

    @inner(forceinline=True)
    def more_on_arm(start):  # ``opaque_on_arm`` hides from LLVM which bits are set: so it emits tbl, cmtst, and, bsl
        set_ = join(join(sixteen(start + a), sixteen(start + b)), join(sixteen(start + c), sixteen(start + d)))
        return read(start) | (opaque_on_arm(NEON, opaque_on_arm(NEON, set_) & bit) & (256 - bit))

    # AVX2 has no masks. A half word for each sixteen of a block: the block's 32 bits serve two vectors of codes.
    own, firsts = constant(u8x32, *(1 << lane % 8 for lane in range(32))), [2 * (n % 2) for n in part]
    spread = [pick(*(lane // 16 * 16 + firsts[i + lane // 16] + lane % 16 // 8 for lane in range(32))) for i in (0, 2)]
    (first, second), e, f, g, h = spread, *(place - first for place, first in zip(places, firsts, strict=True))

    @inner(forceinline=True)
    def words(at, other):
        return opaque(join(broadcast(u32x4, load(u32, at)), broadcast(u32x4, load(u32, other))))

    @inner(forceinline=True)
    def set_of(bytes_):
        return select(bytes_ & own() == own(), broadcast(u8x32, bit), broadcast(u8x32, 0))

    @inner(forceinline=True)
    def more_without_masks(start):
        low = set_of(first(bitcast(u8x32, words(start + e, start + f))))
        high = set_of(second(bitcast(u8x32, words(start + g, start + h))))
        return read(start) | join(low, high)

    if "neon" in features():
        return more_on_arm
    return more_without_masks if "avx2" in features() and "avx512bw" not in features() else more


def _in_bits(planes, flip: int):
    """A reader of the codes from planes of bits, each (places, shifts, mask, the bits below); ``flip``: bits to be changed."""

    def bits(builder, start, places, shifts, mask: int, below: int):
        shifts = [shift - below for shift in shifts for _ in range(16 * _SHIFTED.lanes // 64)]
        down, up = (ir.Constant(_SHIFTED.llvm, [max(0, sign * shift) for shift in shifts]) for sign in (1, -1))
        moved = builder.lshr(builder.bitcast(_bytes_at(builder, start, places), _SHIFTED.llvm), down)
        moved = builder.bitcast(builder.shl(moved, up), u8x64.llvm)
        return builder.and_(moved, emit.every(moved.type, mask << below & 255))  # of another byte what comes in is masked off

    def code(builder, start):
        codes = emit.every(u8x64.llvm, flip)
        for fields in planes:
            codes = builder.xor(codes, bits(builder, start, *fields))
        return codes

    return intrinsic(lambda _, start: emits(u8x64(types.int64), code))


def _bytes_at(builder, start, places):
    """The 64 bytes that lie 16 at each of four places, in as few loads as can be."""

    def at(place: int, count: int):
        return builder.load(emit.pointer(builder, start, ir.VectorType(emit.I8, count), place), align=1)

    def both(low, high):
        return emit.shuffle(builder, low, high, range(2 * low.type.count))

    a, b, c, d = map(int, places)
    if (b, c, d) == (a + 16, a + 32, a + 48):
        return at(a, 64)
    if (b, d) == (a + 16, c + 16):
        return both(at(a, 32), at(c, 32))
    return both(both(at(a, 16), at(b, 16)), both(at(c, 16), at(d, 16)))


def _any(format: Format):
    """Codes from the dequantizer's reader, sixteen at a time: slower, but for every format."""
    read_codes, size, bias = parts_of(format).codes, format.block_bytes, format.bias
    sixteens = format.block_elements // 16

    @inner(forceinline=True)
    def sixteen(tier, start, n):
        return convert(u8x16, read_codes(tier, start + n // sixteens * size, n % sixteens) + bias)

    @inner(forceinline=True)
    def vector(tier, start, n):
        return join(
            join(sixteen(tier, start, n), sixteen(tier, start, n + 1)),
            join(sixteen(tier, start, n + 2), sixteen(tier, start, n + 3)),
        )

    @inner(forceinline=True)
    def read(tier, start):
        return (vector(tier, start, 0), vector(tier, start, 4), vector(tier, start, 8), vector(tier, start, 12))

    return read


# ---- what kernels call; format and tier are Static


@generated
def superblock_bytes(format):  # a function, not ``emits_number``: unrolled earlier, _one_token of Q5_0 becomes two loops
    """Bytes of the blocks of 256 weights."""
    size = format.value.nbytes(SUPERBLOCK)
    return lambda format: size


@generated(forceinline=True)
def codes(format, tier, start):
    """The codes of the super-block at an address: four vectors u8x64."""
    read = codes_of(format.value).read
    return lambda format, tier, start: read(tier, start)


@generated(forceinline=True)
def signed_codes(format, tier, start):
    """``codes`` of a format with int8 codes, without the bias."""
    read = codes_of(format.value, signed=True).read
    return lambda format, tier, start: read(tier, start)


@generated(forceinline=True)
def scales(format, tier, start, sixteens, scratch):
    """The scales and the minima of a super-block's weights, two vectors f32x16, zeros but for the first ``sixteens`` times 16
    weights; scratch: the address of 128 bytes."""
    sign, bias, cut = format.value.scales.sign, format.value.bias, format.value.block_elements < SUPERBLOCK
    read, read_minima = readers(format.value, tier.value)

    @inner(forceinline=True)
    def first(sixteens, numbers):  # the next row's may be NaN
        mask = bitcast(mask16, u16((1 << min(16, sixteens)) - 1))
        return select(mask, numbers, broadcast(f32x16, 0)) if cut else numbers

    def read_scales(format, tier, start, sixteens, scratch):
        scale = first(sixteens, read(tier, start, scratch))
        if sign == 0:
            return scale, scale * bias
        minimum = first(sixteens, read_minima(tier, start, scratch)) * -sign
        return scale, (scale * bias + minimum if bias else minimum)

    return read_scales


@generated(forceinline=True)
def steps(format, tier, start):
    """The scales of a super-block as integers of each 16 weights (i16x16) and their unit, a float32; the minima likewise."""
    format, sign, bias = format.value, format.value.scales.sign, np.float32(format.value.bias)
    d = format.at(format.scales.d)
    dmin = format.at(format.scales.dmin or format.scales.d)
    less, share = int(format.scales.steps.less), [n * format.groups // 16 for n in range(16)]
    if format.scales.steps.listed:
        both = listed(format, format.scales.steps)
        of_scales, of_minima = (pick(*(first + n for n in share)) for first in (0, format.groups if sign else 0))
        read = inner(lambda start: convert(i16x16, of_scales(both(start))) - less, forceinline=True)
        read_minima = inner(lambda start: convert(i16x16, of_minima(both(start))) - less, forceinline=True)
    else:
        each = pick(*share)
        integers = integers_of(format, format.scales.steps, format.groups, types.int16)
        read = inner(lambda start: each(integers(start, 0)) - less, forceinline=True)
        read_minima = inner(lambda start: each(integers(start, 1)) - less, forceinline=True)

    def without_minima(format, tier, start):
        numbers, unit = read(start), half_to_float(tier, load(u16, start + d))
        return numbers, unit, numbers, unit * bias

    def with_minima(format, tier, start):
        unit, minimum = half_to_float(tier, load(u16, start + d)), half_to_float(tier, load(u16, start + dmin))
        return read(start), unit, read_minima(start), minimum * -sign

    return with_minima if sign else without_minima


@generated(forceinline=True)
def whole(format, start, end, scratch):
    """The address of a super-block, or of its copy in the scratch (512 bytes) where it would reach beyond the matrix's end."""
    size = format.value.nbytes(SUPERBLOCK)
    if format.value.block_elements == SUPERBLOCK:
        return lambda format, start, end, scratch: start

    def copied(format, start, end, scratch):
        if start + size <= end:
            return start
        for i in range(0, size, 64):
            store(scratch + i, broadcast(f32x16, 0))
        copy(start, end - start, scratch)
        return scratch

    return copied


@generated(forceinline=True)
def lane_scales(format, scales):
    """The scale of each four codes in the four vectors of a super-block."""
    order = codes_of(format.value).order
    a, b, c, d = (pick(*(order[4 * part + lane // 4] for lane in range(16))) for part in range(4))
    return lambda format, scales: (a(scales), b(scales), c(scales), d(scales))
