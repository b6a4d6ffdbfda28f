"""Dot products of bytes. ``dots_by_scales``: integer sum per scale, in 128-bit vectors. ``dots_by_steps``: K-quants on
AVX-512."""

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import I16, I32, emits, every
from kit.cpu.simd.isa import emit_dot4, emit_opaque_on_arm
from kit.cpu.simd.vectors import Static, f32x4, f32x16

_FOUR, _AVX512 = ir.VectorType(I32, 4), Static("avx512")


def dots_by_scales(tier, order: tuple[int, ...], places: tuple[int, ...], group: int, largest: int, bias: int):
    """A primitive: (codes, x, scales) -> the sums of scale * (code - bias) * digits as f32x4, lanes to be added up.

    codes: four u8x64 of at most ``largest``; ``bias`` makes int8 of them. x: the address of a super-block's first digits; the
    next digits are ``places`` bytes further. order: position i holds the n of the 16 weights 16 n ... that are i-th in codes
    and x. scales: float32 or int16, one per ``group`` weights.
    """
    alike: dict[int, list[int]] = {}  # sixteens of one scale
    for i, n in enumerate(order):
        alike.setdefault(16 * n // group, []).append(i)
    at_once = len(places) < 3 or 4 * max(map(len, alike.values())) * largest < 2**8  # all digits times codes fit in 32 bits

    @intrinsic
    def primitive(_, codes, x, scales):
        steps = scales.element == types.int16

        def code(builder, codes, x, scales):
            codes = unpack_tuple(builder, codes)

            def shuffled(vector, lanes):
                return emit.shuffle(builder, vector, vector, lanes)

            def add_dots(total, sixteens, place):
                for i in sixteens:
                    code = shuffled(codes[i // 4], range(16 * (i % 4), 16 * (i % 4 + 1)))
                    code = builder.sub(code, every(code.type, bias))
                    digits = builder.load(emit.pointer(builder, x, code.type, place + 16 * i), align=1)
                    total = emit_dot4(builder, tier, total, code, digits, largest, bias > 0)
                return total

            def floats(number):
                return builder.sitofp(number, f32x4.llvm)

            def fma(*numbers):
                return emit.fma(builder, *numbers)

            def times(number, power):
                return floats(number), every(f32x4.llvm, float(power))

            zero = ir.Constant(_FOUR, None)
            if steps:
                # of four groups sums go on, D2 = d1 + d2 ...: s1 d1 + s2 d2 + ... = (s1 - s2) D1 + (s2 - s3) D2 + ... + s4 D4
                count = scales.type.count
                word = ir.VectorType(ir.IntType(64), count // 4)
                following = builder.lshr(builder.bitcast(scales, word), every(word, 16))
                changes = builder.sub(scales, builder.bitcast(following, scales.type))
                changes = emit_opaque_on_arm(builder, tier, builder.sext(changes, ir.VectorType(I32, count)))
                sums = running = none = [zero] * len(places)
                for n in sorted(alike):
                    running = running if n % 4 else none
                    running = [add_dots(total, alike[n], place) for total, place in zip(running, places, strict=True)]
                    scaled = [builder.mul(total, shuffled(changes, [n] * 4)) for total in running]
                    sums = [builder.add(*two) for two in zip(sums, scaled, strict=True)]
                total = floats(sums[-1])
                for power, number in enumerate(reversed(sums[:-1]), 1):
                    total = fma(*times(number, 256**power), total)
                return total
            total = None
            for n, sixteens in alike.items():
                high, number = None, add_dots(zero, sixteens, places[0])
                for place in places[1:]:
                    if place == places[1] and not at_once:
                        high, number = number, zero
                    number = add_dots(builder.shl(number, every(_FOUR, 8)), sixteens, place)
                number, scale = floats(number), shuffled(scales, [n] * 4)
                number = fma(*times(high, 2**16), number) if high else number
                total = fma(number, scale, total) if total else builder.fmul(number, scale)
            return total

        return emits(f32x4(codes, types.int64, scales), code)

    return primitive


def dots_by_steps(order: tuple[int, ...], places: tuple[int, ...]):
    """A primitive like ``dots_by_scales`` for four vectors with one int16 scale per 16 weights, in 512-bit vectors, f32x16:
    sums of four products are packed to 16 bits, which codes of at most 63 allow, and dot products of pairs multiply them by
    the scales."""
    wide, words = ir.VectorType(I32, 16), ir.VectorType(I16, 32)

    @intrinsic
    def primitive(_, codes, x, scales, _scratch):
        def code(builder, codes, x, scales, _scratch):
            codes, zero, sums = unpack_tuple(builder, codes), ir.Constant(wide, None), []
            # the packed words of each 128 bits are four of the first vector and four of the second
            lanes = [[n for lane in range(4) for v in two for n in [order[4 * v + lane]] * 4] for two in ((0, 1), (2, 3))]
            scales = emit.opaque(builder, scales)  # or LLVM spreads the bytes they come from, and then each half
            low, high = (emit.shuffle(builder, scales, scales, some) for some in lanes)

            def avx512(name, result, *args):
                return emit.call(builder, f"llvm.x86.avx512.{name}.512", result, *args)

            def fours(i, place):
                digits = builder.load(emit.pointer(builder, x, codes[i].type, place + 64 * i), align=1)
                return emit_dot4(builder, _AVX512, zero, codes[i], digits)

            for place in places:
                first, second = (avx512("packssdw", words, fours(i, place), fours(i + 1, place)) for i in (0, 2))
                sums.append(builder.add(avx512("pmaddw.d", wide, first, low), avx512("pmaddw.d", wide, second, high)))
            total = builder.sitofp(sums[-1], f32x16.llvm)
            for power, number in enumerate(reversed(sums[:-1]), 1):
                total = emit.fma(builder, builder.sitofp(number, f32x16.llvm), every(f32x16.llvm, 256.0**power), total)
            return total

        return emits(f32x16(codes, types.int64, scales, types.int64), code)

    return primitive
