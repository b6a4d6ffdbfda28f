"""Products of bytes in 256-bit vectors: AVX2's multiply-add (pairs to 16 bits, then to 32), or VNNI's dot product (four at
once).

The multiply-add saturates at 16 bits. Codes of at most seven bits fit (2 * 127 * 128), and so do magnitudes of at most 128
times digits of at most 127.
"""

import itertools
from functools import reduce

from llvmlite import ir
from numba import types
from numba.core.cgutils import pack_array, unpack_tuple
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import emits, every
from kit.cpu.simd.isa import emit_dot4, has_vnni
from kit.cpu.simd.vectors import Static, f32x8, f32x16, i32x8

_BYTES, _WORDS = (ir.VectorType(ir.IntType(bits), 256 // bits) for bits in (8, 16))
_MOST = 2**15 - 1  # of a pair
_AVX2 = Static("avx2")
_SUMS = 12  # that AVX2's registers hold beside codes, scales and products


class _Scales:
    """A vector of scales, of which one is wanted in every lane: a load from its copy at an address."""

    def __init__(self, builder, scales, copy):
        self.builder, self.scales = builder, scales
        builder.store(scales, emit.pointer(builder, copy, scales.type), align=1)
        self.copy = emit.opaque(builder, copy)  # or LLVM would shuffle what was stored

    def everywhere(self, kind, offset: int):
        """The 32 bits at this offset, in every lane."""
        number = self.builder.load(emit.pointer(self.builder, self.copy, kind.element, offset), align=4)
        return emit.broadcast(self.builder, number, kind)

    def of(self, first: int, second: int, group: int):
        """Those of these two sixteens of weights, f32x8: one load if they are equal, else a shuffle."""
        if 16 * first // group == 16 * second // group:
            return self.everywhere(f32x8.llvm, 4 * first)
        return emit.shuffle(self.builder, self.scales, self.scales, [n for n in (first, second) for _ in range(4)])


class _Emitter:
    """The code of a super-block's products: codes are four vectors of 64 bytes, 16 consecutive weights at each place."""

    def __init__(self, builder, codes, x, signed):
        self.builder, self.codes, self.x, self.signed = builder, unpack_tuple(builder, codes), x, signed

    def shuffled(self, vector, lanes):
        """The vector of these lanes."""
        return emit.shuffle(self.builder, vector, vector, lanes)

    def bytes(self, i: int, place: int):
        """The two factors: half ``i`` as unsigned bytes, and the digits ``place`` bytes after the first ones with its signs."""
        half = self.shuffled(self.codes[i // 2], range(32 * (i % 2), 32 * (i % 2) + 32))
        x = self.builder.load(emit.pointer(self.builder, self.x, _BYTES, place + 32 * i), align=1)
        if self.signed:
            x = emit.call(self.builder, "llvm.x86.avx2.psign.b", _BYTES, x, half)
            half = emit.call(self.builder, "llvm.abs.v32i8", _BYTES, half, ir.Constant(ir.IntType(1), 0))
        return half, x

    def pairs(self, i: int, place: int):
        """Sums of two products of these factors, in 16 bits."""
        return emit.call(self.builder, "llvm.x86.avx2.pmadd.ub.sw", _WORDS, *self.bytes(i, place))

    def dots(self, parts, places):
        """Sums of four products in 32 bits with VNNI, of these halves; with two digits, the first counts 256 times."""
        total = every(i32x8.llvm, 0)
        for place in places:
            total = self.builder.shl(total, every(total.type, 8)) if place != places[0] else total
            for i in parts:
                total = emit_dot4(self.builder, _AVX2, total, *self.bytes(i, place))
        return total

    def words(self, i: int, place: int):
        """Sums of two products in 32 bits: the ``i``-th 16 codes as int8, and the words ``place`` bytes after the address."""
        codes = self.shuffled(self.codes[i // 4], range(16 * (i % 4), 16 * (i % 4) + 16))
        x = self.builder.load(emit.pointer(self.builder, self.x, _WORDS, place + 32 * i), align=1)
        return self.fours(self.builder.sext(codes, _WORDS), x)

    def fours(self, pairs, scales):
        """Sums of two pairs times their scales."""
        return emit.call(self.builder, "llvm.x86.avx2.pmadd.wd", i32x8.llvm, pairs, scales)

    def floats(self, digits):
        """The sums over all digits as float32, in units of the last digit."""
        floats = [self.builder.sitofp(digit, f32x8.llvm) for digit in digits]
        total = floats[-1]
        for power, number in enumerate(reversed(floats[:-1]), 1):
            total = self.fma(number, every(f32x8.llvm, 256.0**power), total)
        return total

    def fma(self, *numbers):
        return emit.fma(self.builder, *numbers)


def pairs_by_steps(order: tuple[int, ...], places: tuple[int, ...], group: int, records: tuple[int, ...] = (0,)):
    """A primitive: (codes, x, steps, copy) -> the sums of step * code * digits as f32x8, lanes to be added up, of each token.

    order: position i holds the n of the 16 weights 16 n ... that are i-th in codes and x. places: where a super-block's first,
    second ... digits are, in bytes from a token's record, and ``records`` where these are from the address x. steps: i16x16,
    one integer per 16 weights in their own order; ``group`` of them are equal. copy: the address of memory for them.
    """
    chains = 2 if len(records) == 1 else 1  # sums of a digit: of one token each would wait for the last
    together = max(1, _SUMS // len(places))  # tokens

    @intrinsic
    def primitive(_, codes, x, steps, copy):
        def emitted(builder, codes, x, steps, copy):
            code, scales = _Emitter(builder, codes, x, False), _Scales(builder, steps, copy)
            sums = [[[None] * chains for _ in places] for _ in records]
            steps = code.shuffled(steps, [*order[0::2], *order[1::2]])
            twice = ([first + n // 2 for n in (*range(8), *range(16, 24))] for first in (0, 4))
            steps = [builder.bitcast(emit.opaque(builder, code.shuffled(steps, lanes)), i32x8.llvm) for lanes in twice]

            for first, i in itertools.product(range(0, len(records), together), range(8)):
                step = code.shuffled(steps[i // 4], [i % 4] * 4 + [4 + i % 4] * 4)
                if order[2 * i] // 2 == order[2 * i + 1] // 2 and group >= 32:
                    step = scales.everywhere(i32x8.llvm, 4 * (order[2 * i] // 2))
                step, some = builder.bitcast(step, _WORDS), slice(first, first + together)
                for record, digits in zip(records[some], sums[some], strict=True):
                    for chain, place in zip(digits, places, strict=True):
                        four, old = code.fours(code.pairs(i, record + place), step), chain[i % chains]
                        chain[i % chains] = emit.opaque(builder, builder.add(old, four), chains == 1) if old else four
            added = ([reduce(builder.add, some) for some in digits] for digits in sums)
            return pack_array(builder, [code.floats(digits) for digits in added])

        return emits(types.UniTuple(f32x8, len(records))(codes, types.int64, steps, types.int64), emitted)

    return primitive


def pairs_by_scales(
    order: tuple[int, ...],
    places: tuple[int, ...],
    group: int,
    largest: int,
    signed: bool,
    words: bool,
    own: int,
    records: tuple[int, ...] = (0,),
):
    """A primitive like ``pairs_by_steps`` with scales f32x16 instead of steps, times those that lie ``own`` bytes from a
    token's record. Codes are at most ``largest``, or int8 if ``signed``. With ``words``, codes are int8 and digits are words.
    copy: the address of 64 bytes for each token."""
    alike: dict[tuple[int, ...], list[int]] = {}  # halves (if ``words``, sixteens) whose lanes have the same scales
    wide = 1 if words else 2
    for i in range(len(order) // wide):
        alike.setdefault(tuple(16 * n // group for n in order[wide * i : wide * (i + 1)]), []).append(i)
    at_once = 1 if signed else max(1, _MOST // (2 * 128 * largest))
    digits = [((place, 1),) for place in places]
    if places[1:] and not words:  # the second products add the first two digits up: 256 times a pair's sum fits
        digits = [((places[0], 256), (places[1], 1)), *[((place, 1),) for place in places[2:]]]

    @intrinsic
    def primitive(_, codes, x, scales, copy):
        def emitted(builder, codes, x, scales, copy):
            code = _Emitter(builder, codes, x, signed)

            def scaled(token, record):
                mine = builder.load(emit.pointer(builder, x, f32x16.llvm, record + own), align=4)
                return _Scales(builder, builder.fmul(scales, mine), builder.add(copy, ir.Constant(copy.type, 64 * token)))

            def fours(parts, record, place, times):
                if words:
                    return [code.words(i, record + place) for i in parts]
                pairs, times = [code.pairs(i, record + place) for i in parts], every(_WORDS, times)
                some = [reduce(builder.add, pairs[n : n + at_once]) for n in range(0, len(pairs), at_once)]
                return [code.fours(pair, times) for pair in some]

            def integers(parts, record, some):
                if has_vnni() and not words:
                    return code.dots(parts, [record + place for place, _ in some])
                return reduce(builder.add, [four for one in some for four in fours(parts, record, *one)])

            each, totals = [scaled(*one) for one in enumerate(records)], [None] * len(records)
            for parts in alike.values():
                first, second = order[wide * parts[0]], order[wide * (parts[0] + 1) - 1]
                for token, record in enumerate(records):
                    numbers = code.floats([integers(parts, record, some) for some in digits])
                    scale, total = each[token].of(first, second, group), totals[token]
                    total = code.fma(numbers, scale, total) if total else builder.fmul(numbers, scale)
                    totals[token] = emit.opaque(builder, total, True) if records[1:] else total
            return pack_array(builder, totals)

        return emits(types.UniTuple(f32x8, len(records))(codes, types.int64, scales, types.int64), emitted)

    return primitive
