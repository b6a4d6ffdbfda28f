"""The products of a super-block of 256 codes and the 8-bit digits of a token's activations, as lanes to be added up.

int8 activations have one digit, int16 two, float32 three: three dot products of 64 codes take less time than sixteen
conversions and multiplications in float32.

Scales that are integers in the block (K-quants) are multiplied as integers, so a super-block's sums stay integers. Other scales
multiply float32 sums of four products. With AVX2's multiply-add and in 128-bit vectors, they multiply the sums of all codes
that share a scale.
"""

from numba import types
from numba.extending import intrinsic

from kit.cpu.activations import DIGITS, RECORD, SCALE, SUMS, even, minima_by_sums, record_bytes, sums_of_32
from kit.cpu.simd.dots import dots_by_scales, dots_by_steps
from kit.cpu.simd.emit import emits_number
from kit.cpu.simd.isa import dot4, opaque_on_arm
from kit.cpu.simd.memory import load
from kit.cpu.simd.pairs import pairs_by_scales, pairs_by_steps
from kit.cpu.simd.sums import fma
from kit.cpu.simd.vectors import (
    Static,
    broadcast,
    convert,
    f32x4,
    f32x8,
    f32x16,
    generated,
    high,
    i8x64,
    i32x16,
    inner,
    join,
    low,
    pick,
)
from kit.cpu.strategies import digits, in_four_lanes, is_signed, strategy
from kit.cpu.superblocks import SUPERBLOCK, codes, codes_of, lane_scales, largest_code, scales, signed_codes, steps

f32 = types.float32


@inner(forceinline=True)
def _half(vector):
    """f32x8 as the first half of an f32x16; the other half is -0.0, which changes no sum."""
    return join(vector, broadcast(f32x8, f32(-0.0)))


_whole = inner(lambda vector: vector, forceinline=True)


@inner(forceinline=True)
def _quarter(vector):
    return _half(join(vector, broadcast(f32x4, f32(-0.0))))


@generated(forceinline=True)
def unpacked(format, tier, activations, at, sixteens, scratch):
    """(codes of a super-block, scales as ``products`` takes them, minima of each 16 weights); those after the first
    ``sixteens`` x 16 weights are multiplied by zero."""

    as_they_are = tier.value == "avx2" and is_signed(format.value, tier.value, activations.value)
    read = signed_codes if as_they_are else codes

    def unpack(format, tier, activations, at, sixteens, scratch):
        per_weight, minima = scales(format, tier, at, sixteens, scratch)
        return read(format, tier, at), per_weight, minima

    def unpack_lanes(format, tier, activations, at, sixteens, scratch):
        per_weight, minima = scales(format, tier, at, sixteens, scratch)
        return codes(format, tier, at), lane_scales(format, per_weight), minima

    def unpack_steps(format, tier, activations, at, sixteens, scratch):
        return codes(format, tier, at), steps(format, tier, at), broadcast(f32x16, 0)

    way = strategy(format.value, tier.value, activations.value)
    by_group = DIGITS[activations.value] == 1 and format.value.activations < SUPERBLOCK
    return unpack_steps if way == "steps" else unpack if way != "dots" or by_group else unpack_lanes


@generated(prefer_literal=True, forceinline=True)
def products(format, tier, activations, codes, scales, record, scratch, quarters):
    """The sums of scale * code * activation in 16 lanes, over the first 1, 2 or 4 quarters (a literal) of the super-block at
    least; scratch: the address of 64 bytes."""
    format, tier, activations = format.value, tier.value, activations.value
    places, order = tuple((0, RECORD, RECORD + SUPERBLOCK)[: DIGITS[activations]]), codes_of(format).order
    vectors = 1 + max(map(order.index, range(4 * quarters.literal_value))) // 4  # that hold these weights
    sum_of_dots = {1: _of_one, 2: _of_two, 4: _of_four}[vectors]
    way, group, largest = (
        strategy(format, tier, activations),
        max(16, min(format.scales.group, SUPERBLOCK)),
        largest_code(format),
    )
    signed = is_signed(format, tier, activations)
    if way == "dots":

        def by_group(format, tier, activations, codes, scales, record, scratch, quarters):
            scales = lane_scales(format, scales * load(f32x16, record + SCALE))
            return sum_of_dots(format, tier, activations, codes, scales, record)

        def by_superblock(format, tier, activations, codes, scales, record, scratch, quarters):
            return sum_of_dots(format, tier, activations, codes, scales, record) * load(f32x16, record + SCALE)

        return by_group if DIGITS[activations] == 1 and format.activations < SUPERBLOCK else by_superblock
    if tier == "avx2":
        multiply, finish = pairs_of(format, activations, vectors)

        def by_pairs(format, tier, activations, codes, scales, record, scratch, quarters):
            return finish(tier, multiply(codes, scales, record, scratch)[0], scales, record)

        return by_pairs
    if in_four_lanes(tier):
        kind, widened = f32x4, _quarter
        each, bias = pick(*range(0, 16, group // 16)), format.bias if signed else 0
        in_lanes = dots_by_scales(Static(tier), order[: 4 * vectors], places, group, largest, bias)
        multiply = inner(lambda codes, record, integers, scratch: in_lanes(codes, record, each(integers)), forceinline=True)
    else:
        kind, widened, multiply = f32x16, _whole, dots_by_steps(order, places)

    if way == "steps":
        scaled = _scaled_by_steps(kind, widened, None if signed else minima_by_sums(kind.lanes, group))

        def by_steps(format, tier, activations, codes, scales, record, scratch, quarters):
            return scaled(tier, multiply(codes, record, scales[0], scratch), scales, record)

        return by_steps

    def four_by_scales(format, tier, activations, codes, scales, record, scratch, quarters):
        return _quarter(in_lanes(codes, record, each(scales) * each(opaque_on_arm(tier, load(f32x16, record + SCALE)))))

    return four_by_scales


def _scaled_by_steps(kind, widened, minima):
    """A function of (tier, sums of a kind of vectors, ``steps``, a token's record) that scales them and adds the products of
    the minima, if there are ``minima``: see minima_by_sums."""
    of_minima = minima or inner(lambda tier, integers, unit, record: broadcast(kind, 0), forceinline=True)

    @inner(forceinline=True)
    def scaled(tier, sums, steps, record):
        _, unit, lows, minimum = steps
        return widened(fma(sums, broadcast(kind, unit * load(f32, record + SCALE)), of_minima(tier, lows, minimum, record)))

    return scaled


def pairs_of(format, activations: str, vectors: int = 4, tokens: int = 1):
    """How AVX2 multiplies: (multiply, finish). multiply(codes, scales, record, scratch): the sums of products of each token's
    record from this one on, a tuple; scratch: the address of 64 bytes for each. finish(tier, sums, scales, record): a token's
    sums in 16 lanes, as ``products`` returns them."""
    way, group, order = strategy(format, "avx2", activations), format.scales.group, codes_of(format).order
    group, signed = max(16, min(group, SUPERBLOCK)), is_signed(format, "avx2", activations)
    records = tuple(range(0, tokens * (size := record_bytes(digits(format, "avx2", activations))), size))
    places = (RECORD, RECORD + 2 * SUPERBLOCK) if way == "words" else (0, RECORD, RECORD + SUPERBLOCK)
    places = places[: DIGITS[activations]]
    if way == "steps":
        primitive = pairs_by_steps(order, places, group, records)
        multiply = inner(lambda codes, steps, record, scratch: primitive(codes, record, steps[0], scratch), forceinline=True)
        return multiply, _scaled_by_steps(f32x8, _half, None if signed else minima_by_sums(8, group))
    by = group, largest_code(format), signed, way == "words", SCALE, records
    primitive = pairs_by_scales(order[: 4 * vectors], places, *by)
    multiply = inner(lambda codes, scales, record, scratch: primitive(codes, record, scales, scratch), forceinline=True)
    return multiply, inner(lambda tier, sums, scales, record: _half(sums), forceinline=True)


@generated(forceinline=True)
def _dots(format, tier, activations, codes, digit):
    """The sums of four codes times four activations in 16 lanes, in units of the last digit. digit: the address of the first
    digits of 64 activations."""

    def of_one(format, tier, activations, codes, digit):
        return convert(f32x16, dot4(tier, broadcast(i32x16, 0), codes, load(i8x64, digit)))

    def of_three(format, tier, activations, codes, digit):
        first = dot4(tier, broadcast(i32x16, 0), codes, load(i8x64, digit))
        if small:
            second = dot4(tier, first << 8, codes, load(i8x64, digit + RECORD))
            return convert(f32x16, dot4(tier, second << 8, codes, load(i8x64, digit + RECORD + SUPERBLOCK)))
        second = dot4(tier, broadcast(i32x16, 0), codes, load(i8x64, digit + RECORD))
        rest = dot4(tier, second << 8, codes, load(i8x64, digit + RECORD + SUPERBLOCK))
        return fma(convert(f32x16, first), broadcast(f32x16, 65536), convert(f32x16, rest))

    def of_two(format, tier, activations, codes, digit):
        first = dot4(tier, broadcast(i32x16, 0), codes, load(i8x64, digit))
        return convert(f32x16, dot4(tier, first << 8, codes, load(i8x64, digit + RECORD)))

    numbers = format.value.codes
    small = numbers.planes and not numbers.values and numbers.bits <= 6  # 4 * 63 * 2^23 < 2^31
    return (of_one, of_two, of_three)[DIGITS[activations.value] - 1]


# ---- the sums of scale * code * activation, in units of the last digit, in 16 lanes, of so many vectors of codes


@inner(forceinline=True)
def _of_one(format, tier, activations, codes, scales, record):
    return _dots(format, tier, activations, codes[0], record) * scales[0]


@inner(forceinline=True)
def _of_two(format, tier, activations, codes, scales, record):
    second = _dots(format, tier, activations, codes[1], record + 64) * scales[1]
    return fma(_dots(format, tier, activations, codes[0], record), scales[0], second)


@inner(forceinline=True)
def _of_four(format, tier, activations, codes, scales, record):
    c, d = _dots(format, tier, activations, codes[2], record + 128), _dots(format, tier, activations, codes[3], record + 192)
    return _of_two(format, tier, activations, codes, scales, record) + fma(c, scales[2], d * scales[3])


@intrinsic
def bytes_per_record(_, format, tier, activations):
    """Bytes per record of activations."""
    return emits_number(record_bytes(digits(format.value, tier.value, activations.value)), format, tier, activations)


@intrinsic
def has_minima(_, format, tier, activations):
    """Whether minima must be added: not if signed codes are multiplied directly, or if the products include the minima."""
    way = format.value, tier.value, activations.value
    return emits_number(strategy(*way) != "steps" and not is_signed(*way), format, tier, activations)


@generated(forceinline=True)
def add_minima(format, tier, minima, record, total):
    """The total plus the products of the minima of each 16 weights and the sums of their activations."""

    def one_by_one(format, tier, minima, record, total):
        return fma(minima, load(f32x16, record + SUMS), total)

    def by_pairs(format, tier, minima, record, total):
        return join(fma(even(minima), sums_of_32(tier, record), low(total)), high(total))

    return by_pairs if in_four_lanes(tier.value) and format.value.scales.group >= 32 else one_by_one
