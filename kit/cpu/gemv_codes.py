"""Rows of blocks times 8-bit digits of activations, for one or a few tokens: products of codes, bytes times bytes.

A step takes a super-block of 256 weights. int8 activations have one digit, int16 two, float32 three: three dot products
of 64 codes take less time than sixteen conversions and multiplications in float32.

Scales that are integers in the block (K-quants) are multiplied as integers, so a super-block's sums stay integers. Other scales
multiply float32 sums of four products. With AVX2's multiply-add and in 128-bit vectors, they multiply the sums of all codes
that share a scale.
"""

from numba import types
from numba.extending import intrinsic

from kit.cpu.activations import DIGITS, RECORD, SCALE, SUMS, address, even, minima_by_sums, record_bytes, sums_of_32
from kit.cpu.simd.dots import dots_by_scales, dots_by_steps
from kit.cpu.simd.emit import emits_number
from kit.cpu.simd.isa import dot4, opaque_on_arm
from kit.cpu.simd.memory import copy, load, prefetch, stack, store
from kit.cpu.simd.pairs import pairs_by_scales, pairs_by_steps
from kit.cpu.simd.sums import fma, reduce_add4
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
from kit.cpu.superblocks import (
    SUPERBLOCK,
    codes,
    codes_of,
    lane_scales,
    largest_code,
    scales,
    signed_codes,
    steps,
    superblock_bytes,
    whole,
)
from kit.cpu.tasks import task
from kit.cpu.tuned import tuned

f32 = types.float32
TOKENS = 32  # multiplied at once, whose sums fit the first-level cache

AHEAD, _WIDE = tuned().ahead, tuned().wide

_scratch = stack(128 + 512)  # a super-block's scales and minima, and the super-block itself where it is copied
_sums = stack(2 * 64 * TOKENS)


def layout(format, tier: str, activations: str) -> dict[str, int]:
    """What kit.cpu.activations.quantize needs to know for the records that ``kernel`` takes."""
    count = digits(format, tier, activations)
    group = format.activations if count == 1 else SUPERBLOCK
    return dict(order=address(codes_of(format).order), digits=count, group=group, sums=16, in_units=0, times=0)


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
    if in_four_lanes(tier):
        kind, widened = f32x4, _quarter
        each, bias = pick(*range(0, 16, group // 16)), format.bias if signed else 0
        in_lanes = dots_by_scales(Static(tier), order[: 4 * vectors], places, group, largest, bias)
        multiply = inner(lambda codes, record, integers, scratch: in_lanes(codes, record, each(integers)), forceinline=True)
    elif tier == "avx512":
        kind, widened, multiply = f32x16, _whole, dots_by_steps(order, places)
    elif way == "steps":
        kind, widened, multiply = f32x8, _half, pairs_by_steps(order, places, group)
    else:
        places = (RECORD, RECORD + 2 * SUPERBLOCK) if way == "words" else places
        multiply = pairs_by_scales(order[: 4 * vectors], places, group, largest, signed, way == "words")

    if way == "steps":
        none = inner(lambda tier, integers, unit, record: broadcast(kind, 0), forceinline=True)
        minima = none if signed else minima_by_sums(kind.lanes, group)

        def by_steps(format, tier, activations, codes, scales, record, scratch, quarters):
            integers, unit, lows, minimum = scales
            scale = broadcast(kind, unit * load(f32, record + SCALE))
            return widened(fma(multiply(codes, record, integers, scratch), scale, minima(tier, lows, minimum, record)))

        return by_steps
    if in_four_lanes(tier):

        def four_by_scales(format, tier, activations, codes, scales, record, scratch, quarters):
            return _quarter(in_lanes(codes, record, each(scales) * each(opaque_on_arm(tier, load(f32x16, record + SCALE)))))

        return four_by_scales

    def by_scales(format, tier, activations, codes, scales, record, scratch, quarters):
        return _half(multiply(codes, record, scales * load(f32x16, record + SCALE), scratch))

    return by_scales


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


@inner(forceinline=True)
def fetch(format, row, ahead):
    if AHEAD:  # by 0 bytes it is for nothing and costs nothing that was measured; a branch would divide the loop
        for line in range(0, superblock_bytes(format), 64):
            prefetch(row + ahead + line)


@generated
def _ahead(format, tier, activations, sixteens):
    """Bytes ahead of a row of so many times 16 weights, for one token."""
    most = _narrow(activations.value, record_bytes(digits(format.value, tier.value, activations.value)))
    return lambda format, tier, activations, sixteens: AHEAD if sixteens <= most else 0


def _narrow(activations: str, size: int) -> int:
    """The most times 16 weights of a row whose lines are fetched ahead. ``size``: bytes of a record of 256 activations."""
    return 16 * (_WIDE // size) if _WIDE and DIGITS[activations] == 1 else 1 << 40


@inner(forceinline=True)
def _add_superblock(format, tier, activations, at, sixteens, record, scratch, a, b, quarters):
    """a plus the products of a super-block's codes and the only token, and b plus the products of its minima."""
    codes, scales, minima = unpacked(format, tier, activations, at, sixteens, scratch)
    a = a + products(format, tier, activations, codes, scales, record, scratch, quarters)
    if has_minima(format, tier, activations):
        b = add_minima(format, tier, minima, record, b)
    return a, b


@generated(forceinline=True)
def _one_token(format, tier, activations, row, sixteens, end, record, scratch):
    """The product of a row of 16 * ``sixteens`` weights and the only token, as lanes to be added up; ``end``: end of the
    matrix."""
    has_rest = format.value.block_elements < SUPERBLOCK  # what it rules out is not compiled

    def row_of(format, tier, activations, row, sixteens, end, record, scratch):
        a = b = broadcast(f32x16, 0)
        ahead = _ahead(format, tier, activations, sixteens)
        for _ in range(sixteens // 16):
            fetch(format, row, ahead)
            a, b = _add_superblock(format, tier, activations, row, 16, record, scratch, a, b, 4)
            row += superblock_bytes(format)
            record += bytes_per_record(format, tier, activations)
        if has_rest and sixteens % 16:
            at, rest = whole(format, row, end, scratch + 128), sixteens % 16
            if rest > 8:
                a, b = _add_superblock(format, tier, activations, at, rest, record, scratch, a, b, 4)
            elif rest > 4:
                a, b = _add_superblock(format, tier, activations, at, rest, record, scratch, a, b, 2)
            else:
                a, b = _add_superblock(format, tier, activations, at, rest, record, scratch, a, b, 1)
        return a + b

    return row_of


@inner
def _some_tokens(format, tier, activations, row, sixteens, end, records, tokens, count, sums, scratch):
    """Write the products of a row and ``count`` tokens to ``sums``: one vector each, as lanes to be added up. Each has the bits
    of ``_one_token``."""
    for i in range(count):
        store(sums + 64 * i, broadcast(f32x16, 0))
        store(sums + 64 * (TOKENS + i), broadcast(f32x16, 0))
    for left in range(sixteens, 0, -16):
        fetch(format, row, AHEAD)
        start = whole(format, row, end, scratch + 128)
        codes, scales, minima = unpacked(format, tier, activations, start, left, scratch)
        record = records
        for at in range(sums, sums + 64 * count, 64):
            store(at, load(f32x16, at) + products(format, tier, activations, codes, scales, record, scratch, 4))
            if has_minima(format, tier, activations):
                other = at + 64 * TOKENS
                store(other, add_minima(format, tier, minima, record, load(f32x16, other)))
            record += bytes_per_record(format, tier, activations)
        row += superblock_bytes(format)
        records += tokens * bytes_per_record(format, tier, activations)
    for at in range(sums, sums + 64 * count, 64):
        store(at, load(f32x16, at) + load(f32x16, at + 64 * TOKENS))


@task
def kernel(format: Static, tier: Static, activations: Static):
    """The task described in kit.cpu.linear; ``x`` is the address of the activations' records."""

    def integer(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        sixteens, end, scratch, sums = columns // 16, blocks + rows * row_bytes, _scratch(), _sums()
        first, last = task * share, min(rows, (task + 1) * share)
        if tokens == 1:
            for row in range(first, last, 4):
                height = min(4, last - row)
                for r in range(height):
                    at = blocks + (row + r) * row_bytes
                    store(sums + 64 * r, _one_token(format, tier, activations, at, sixteens, end, x, scratch))
                a, b, c, d = load(f32x16, sums), load(f32x16, sums + 64), load(f32x16, sums + 128), load(f32x16, sums + 192)
                if height == 4:
                    store(y + 4 * row, reduce_add4(a, b, c, d))
                else:
                    store(sums, reduce_add4(a, b, c, d))
                    copy(sums, 4 * height, y + 4 * row)
            return
        for row in range(first, last):  # one after another: memory gives more to who reads in order
            for token in range(0, tokens, TOKENS):
                count = min(TOKENS, tokens - token)
                _some_tokens(
                    format, tier, activations, blocks + row * row_bytes, sixteens, end,
                    x + token * bytes_per_record(format, tier, activations), tokens, count, sums, scratch,
                )  # fmt: skip
                for t in range(0, count, 4):
                    at = sums + 64 * t
                    a, b, c, d = load(f32x16, at), load(f32x16, at + 64), load(f32x16, at + 128), load(f32x16, at + 192)
                    store(at, reduce_add4(a, b, c, d))
                    for n in range(min(4, count - t)):
                        store(y + (token + t + n) * y_stride + 4 * row, load(f32, at + 4 * n))

    return integer
