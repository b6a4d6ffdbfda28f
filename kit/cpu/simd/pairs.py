"""Products of bytes in 256-bit vectors: AVX2's multiply-add (pairs to 16 bits, then to 32), or VNNI's dot product (four at
once).

The multiply-add saturates at 16 bits. Codes of at most seven bits fit (2 * 127 * 128), and so do magnitudes of at most 128
times digits of at most 127.
"""

from functools import reduce

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import emits, every
from kit.cpu.simd.isa import emit_dot4, has_vnni
from kit.cpu.simd.vectors import Static, f32x8, i32x8

_BYTES, _WORDS = (ir.VectorType(ir.IntType(bits), 256 // bits) for bits in (8, 16))
_MOST = 2**15 - 1  # of a pair
_AVX2 = Static("avx2")


class _Emitter:
    """The code of a super-block's products: codes are four vectors of 64 bytes, 16 consecutive weights at each place."""

    def __init__(self, builder, args, order, group, signed):
        self.builder, (codes, self.x, self.scales, copy), self.order, self.group = builder, args, order, group
        self.codes, self.signed = unpack_tuple(builder, codes), signed
        builder.store(self.scales, emit.pointer(builder, copy, self.scales.type), align=1)
        self.copy = emit.opaque(builder, copy)  # or LLVM would shuffle what was stored

    def shuffled(self, vector, lanes):
        """The vector of these lanes."""
        return emit.shuffle(self.builder, vector, vector, lanes)

    def scale(self, first: int, second: int):
        """The scales of these two sixteens of weights, f32x8: one load from memory if they are equal, else a shuffle."""
        if 16 * first // self.group == 16 * second // self.group:
            return self.everywhere(f32x8.llvm, 4 * first)
        return self.shuffled(self.scales, [n for n in (first, second) for _ in range(4)])

    def everywhere(self, kind, offset: int):
        """The 32 bits at this offset of the scales' copy, in every lane."""
        number = self.builder.load(emit.pointer(self.builder, self.copy, kind.element, offset), align=4)
        return emit.broadcast(self.builder, number, kind)

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


def pairs_by_steps(order: tuple[int, ...], places: tuple[int, ...], group: int):
    """A primitive: (codes, x, steps, copy) -> the sums of step * code * digits as f32x8, lanes to be added up.

    order: position i holds the n of the 16 weights 16 n ... that are i-th in codes and x. places: where a super-block's first,
    second ... digits are, in bytes from the address x. steps: i16x16, one integer per 16 weights in their own order; ``group``
    of them are equal. copy: the address of memory for them.
    """

    @intrinsic
    def primitive(_, codes, x, steps, copy):
        def emitted(builder, *args):
            code, sums = _Emitter(builder, args, order, group, False), [[None] * 2 for _ in places]
            steps = code.shuffled(args[2], [*order[0::2], *order[1::2]])
            twice = ([first + n // 2 for n in (*range(8), *range(16, 24))] for first in (0, 4))
            steps = [builder.bitcast(emit.opaque(builder, code.shuffled(steps, lanes)), i32x8.llvm) for lanes in twice]
            for i in range(8):
                step = code.shuffled(steps[i // 4], [i % 4] * 4 + [4 + i % 4] * 4)
                if order[2 * i] // 2 == order[2 * i + 1] // 2 and group >= 32:
                    step = code.everywhere(i32x8.llvm, 4 * (order[2 * i] // 2))
                step = builder.bitcast(step, _WORDS)
                for digit, place in enumerate(places):
                    four, two = code.fours(code.pairs(i, place), step), sums[digit]  # two sums, or each waits for the last
                    two[i % 2] = emit.opaque(builder, builder.add(two[i % 2], four)) if i > 1 else four
            return code.floats([builder.add(*two) for two in sums])

        return emits(f32x8(codes, types.int64, steps, types.int64), emitted)

    return primitive


def pairs_by_scales(
    order: tuple[int, ...], places: tuple[int, ...], group: int, largest: int, signed: bool, words: bool = False
):
    """A primitive like ``pairs_by_steps`` with scales f32x16 instead of steps. Codes are at most ``largest``, or int8 if
    ``signed``. With ``words``, codes are int8 and digits are words."""
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
        def emitted(builder, *args):
            code, total = _Emitter(builder, args, order, group, signed), None

            def fours(parts, place, times):
                if words:
                    return [code.words(i, place) for i in parts]
                pairs, times = [code.pairs(i, place) for i in parts], every(_WORDS, times)
                some = [reduce(builder.add, pairs[n : n + at_once]) for n in range(0, len(pairs), at_once)]
                return [code.fours(pair, times) for pair in some]

            def integers(parts, some):
                if has_vnni() and not words:
                    return code.dots(parts, [place for place, _ in some])
                return reduce(builder.add, [four for one in some for four in fours(parts, *one)])

            for parts in alike.values():
                sums = [integers(parts, some) for some in digits]
                first, second = order[wide * parts[0]], order[wide * (parts[0] + 1) - 1]
                scale, numbers = code.scale(first, second), code.floats(sums)
                total = code.fma(numbers, scale, total) if total else builder.fmul(numbers, scale)
            return total

        return emits(f32x8(codes, types.int64, scales, types.int64), emitted)

    return primitive
