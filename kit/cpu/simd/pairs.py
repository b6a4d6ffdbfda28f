"""Products of bytes by AVX2's multiply-add, for CPUs without dot products of bytes: pairs are added to 16 bits, those to 32.

That of bytes saturates at 16 bits: codes of at most seven bits fit (2 * 127 * 128), and so do magnitudes of at most 128 times
digits of at most 127.
"""

from functools import reduce

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import F32, emits, every
from kit.cpu.simd.isa import VNNI
from kit.cpu.simd.vectors import f32x8, i32x8
from kit.cpu.tasks import features

_BYTES, _WORDS = (ir.VectorType(ir.IntType(bits), 256 // bits) for bits in (8, 16))
_MOST = 2**15 - 1  # of a pair


def best(tier: str) -> bool:
    """Whether the CPU multiplies bytes best by these primitives."""
    return tier == "avx2" and not any(needs <= features() for needs in VNNI)


class _Emitter:
    """The code of a super-block's products: codes are four vectors of 64 bytes, 16 consecutive weights at each place."""

    def __init__(self, builder, args, order, signed):
        self.builder, (codes, self.x, *_), self.order = builder, args, order
        self.codes, self.signed = unpack_tuple(builder, codes), signed

    def shuffled(self, vector, lanes):
        """The vector of these lanes."""
        return emit.shuffle(self.builder, vector, vector, lanes)

    def scales(self, first: int, second: int, group: int, scales, copy):
        """The scales of these two sixteens of weights, f32x8: from memory where they are the same number, which takes one
        load, else of the vector ``scales``, shuffled."""
        if 16 * first // group == 16 * second // group:
            number = self.builder.load(emit.pointer(self.builder, copy, F32, 4 * first), align=4)
            return emit.broadcast(self.builder, number, f32x8.llvm)
        return self.shuffled(scales, [n for n in (first, second) for _ in range(4)])

    def pairs(self, i: int, place: int):
        """Sums of two products, of half ``i`` and the digits ``place`` bytes behind the first ones, in 16 bits."""
        half = self.shuffled(self.codes[i // 2], range(32 * (i % 2), 32 * (i % 2) + 32))
        x = self.builder.load(emit.pointer(self.builder, self.x, _BYTES, place + 32 * i), align=1)
        if self.signed:
            x = emit.call(self.builder, "llvm.x86.avx2.psign.b", _BYTES, x, half)
            half = emit.call(self.builder, "llvm.abs.v32i8", _BYTES, half, ir.Constant(ir.IntType(1), 0))
        return emit.call(self.builder, "llvm.x86.avx2.pmadd.ub.sw", _WORDS, half, x)

    def words(self, i: int, place: int):
        """Sums of two products in 32 bits, of the ``i``-th 16 codes, int8, and the words ``place`` bytes behind the address."""
        codes = self.shuffled(self.codes[i // 4], range(16 * (i % 4), 16 * (i % 4) + 16))
        x = self.builder.load(emit.pointer(self.builder, self.x, _WORDS, place + 32 * i), align=1)
        return self.fours(self.builder.sext(codes, _WORDS), x)

    def fours(self, pairs, scales):
        """Sums of two pairs times their scales."""
        return emit.call(self.builder, "llvm.x86.avx2.pmadd.wd", i32x8.llvm, pairs, scales)

    def floats(self, digits):
        """The sums of all digits, in units of the last, as float32."""
        floats = [self.builder.sitofp(digit, f32x8.llvm) for digit in digits]
        total = floats[-1]
        for power, number in enumerate(reversed(floats[:-1]), 1):
            total = self.fma(number, every(f32x8.llvm, 256.0**power), total)
        return total

    def fma(self, *numbers):
        return emit.fma(self.builder, *numbers)


@intrinsic
def hidden(_, address):
    """hidden(address): the same number, of which LLVM knows nothing: LLVM loads from there what was stored, part by part."""
    return emits(types.int64(address), emit.opaque)


def by_steps(order: tuple[int, ...], places: tuple[int, ...]):
    """A primitive: (codes, x, steps) -> the sums of step * code * digits as f32x8, lanes to be added.

    order: the n of the 16 weights 16 n ... that come first, second ... in codes and x. places: of a super-block's first digits,
    second ... from the address x. steps: i16x16, an integer for each 16 weights in their own order.
    """

    @intrinsic
    def primitive(_, codes, x, steps):
        def emitted(builder, *args):
            code, sums = _Emitter(builder, args, order, False), [None] * len(places)
            steps = code.shuffled(args[2], [*order[0::2], *order[1::2]])
            twice = ([first + n // 2 for n in (*range(8), *range(16, 24))] for first in (0, 4))
            steps = [builder.bitcast(emit.opaque(builder, code.shuffled(steps, lanes)), i32x8.llvm) for lanes in twice]
            for i in range(8):
                step = builder.bitcast(code.shuffled(steps[i // 4], [i % 4] * 4 + [4 + i % 4] * 4), _WORDS)
                for digit, place in enumerate(places):
                    four = code.fours(code.pairs(i, place), step)
                    sums[digit] = emit.opaque(builder, builder.add(sums[digit], four)) if i else four
            return code.floats(sums)

        return emits(f32x8(codes, types.int64, steps), emitted)

    return primitive


def by_scales(order: tuple[int, ...], places: tuple[int, ...], group: int, largest: int, signed: bool, words: bool = False):
    """The same with scales f32x16 in place of steps, which ``copy`` holds as they are; codes are at most ``largest``, or with
    ``signed`` int8. If ``words``, codes are int8 so, and digits are words."""
    alike: dict[tuple[int, ...], list[int]] = {}  # halves (if ``words``, sixteens) whose lanes have the same scales
    wide = 1 if words else 2
    for i in range(len(order) // wide):
        alike.setdefault(tuple(16 * n // group for n in order[wide * i : wide * (i + 1)]), []).append(i)
    at_once = 1 if signed else max(1, _MOST // (2 * 128 * largest))
    digits = [((place, 1),) for place in places]
    if len(places) == 3:  # the second products add the first two digits up: 256 times a pair's sum fits
        digits = [((places[0], 256), (places[1], 1)), ((places[2], 1),)]

    @intrinsic
    def primitive(_, codes, x, scales, copy):
        def emitted(builder, *args):
            code, total = _Emitter(builder, args, order, signed), None

            def fours(parts, place, times):
                if words:
                    return [code.words(i, place) for i in parts]
                pairs, times = [code.pairs(i, place) for i in parts], every(_WORDS, times)
                some = [reduce(builder.add, pairs[n : n + at_once]) for n in range(0, len(pairs), at_once)]
                return [code.fours(pair, times) for pair in some]

            for parts in alike.values():
                sums = [reduce(builder.add, [four for one in some for four in fours(parts, *one)]) for some in digits]
                first, second = order[wide * parts[0]], order[wide * (parts[0] + 1) - 1]
                scale, numbers = code.scales(first, second, group, *args[2:]), code.floats(sums)
                total = code.fma(numbers, scale, total) if total else builder.fmul(numbers, scale)
            return total

        return emits(f32x8(codes, types.int64, scales, types.int64), emitted)

    return primitive
