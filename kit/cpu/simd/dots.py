"""Products of bytes in vectors of 128 bits: what shares a scale is added up as integers, four lanes, before it is scaled."""

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import I32, emits, every
from kit.cpu.simd.isa import emit_dot4, emit_kept
from kit.cpu.simd.vectors import f32x4

_FOUR = ir.VectorType(I32, 4)


def by_scales(tier, order: tuple[int, ...], places: tuple[int, ...], group: int, largest: int, bias: int):
    """A primitive: (codes, x, scales) -> the sums of scale * (code - bias) * digits as f32x4, lanes to be added.

    codes: four u8x64 of at most ``largest``; with a bias, which makes int8 of them. x: the address of a super-block's first
    digits, the next ones ``places`` bytes on. order: the n of the 16 weights 16 n ... that come first, second ... in codes and
    x. scales: float32 or int16, one for each ``group`` weights.
    """
    alike: dict[int, list[int]] = {}  # sixteens of one scale
    for i, n in enumerate(order):
        alike.setdefault(16 * n // group, []).append(i)
    at_once = 4 * max(map(len, alike.values())) * largest < 2**8  # 24 bits of digits times codes fit in 32

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
                changes = emit_kept(builder, tier, builder.sext(changes, ir.VectorType(I32, count)))
                sums = running = none = [zero] * len(places)
                for n in sorted(alike):
                    running = running if n % 4 else none
                    running = [add_dots(total, alike[n], place) for total, place in zip(running, places, strict=True)]
                    found = [builder.mul(total, shuffled(changes, [n] * 4)) for total in running]
                    sums = [builder.add(*two) for two in zip(sums, found, strict=True)]
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
