"""Products of bytes in vectors of 128 bits: what shares a scale is added up as integers, four lanes, before it is scaled."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kit.cpu.simd.isa import emit_dot4
from kit.cpu.simd.vectors import f32x4

_INT = ir.IntType(32)
_FOUR = ir.VectorType(_INT, 4)


def by_scales(tier, order: tuple[int, ...], places: tuple[int, ...], group: int, largest: int, bias: int):
    """A primitive: (codes, x, scales) -> the sums of scale * (code - bias) * digits as f32x4, lanes to be added.

    codes: four u8x64 of at most ``largest``; with a bias, which makes int8 of them. x: the address of a super-block's first
    digits, the next ones ``places`` bytes on. order: the n of the 16 weights 16 n ... that come first, second ... in codes and
    x. scales: f32x16 or i32x16, one for each 16 weights in their own order, equal for each ``group`` weights.
    """
    alike: dict[int, list[int]] = {}  # sixteens of one scale
    for i, n in enumerate(order):
        alike.setdefault(16 * n // group, []).append(i)
    at_once = 4 * max(map(len, alike.values())) * largest < 2**8  # 24 bits of digits times codes fit in 32

    @intrinsic
    def primitive(_, codes, x, scales):
        steps = scales.element == types.int32

        def emit(context, builder, signature, args):
            codes, x, scales = args
            codes = cgutils.unpack_tuple(builder, codes)

            def shuffled(vector, lanes):
                return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_INT, len(lanes)), list(lanes)))

            def add_dots(total, sixteens, place):
                for i in sixteens:
                    code = shuffled(codes[i // 4], range(16 * (i % 4), 16 * (i % 4 + 1)))
                    code = builder.sub(code, ir.Constant(code.type, [bias] * 16))
                    address = builder.inttoptr(builder.add(x, ir.Constant(x.type, place + 16 * i)), code.type.as_pointer())
                    total = emit_dot4(builder, tier, total, code, builder.load(address, align=1), largest, bias > 0)
                return total

            def floats(number):
                return builder.sitofp(number, f32x4.llvm)

            def fma(*numbers):
                kind = ir.FunctionType(f32x4.llvm, [f32x4.llvm] * 3)
                return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v4f32"), numbers)

            def times(number, power):
                return floats(number), ir.Constant(f32x4.llvm, [float(power)] * 4)

            total, sums, zero = None, [ir.Constant(_FOUR, None)] * len(places), ir.Constant(_FOUR, None)
            for scale, sixteens in alike.items():
                scale = shuffled(scales, [scale * max(1, group // 16)] * 4)
                if steps:
                    found = [builder.mul(add_dots(zero, sixteens, place), scale) for place in places]
                    sums = [builder.add(*two) for two in zip(sums, found, strict=True)]
                    continue
                high, number = None, add_dots(zero, sixteens, places[0])
                for place in places[1:]:
                    if place == places[1] and not at_once:
                        high, number = number, zero
                    number = add_dots(builder.shl(number, ir.Constant(_FOUR, [8] * 4)), sixteens, place)
                number = fma(*times(high, 2**16), floats(number)) if high else floats(number)
                total = fma(number, scale, total) if total else builder.fmul(number, scale)
            if steps:
                total = floats(sums[-1])
                for power, number in enumerate(reversed(sums[:-1]), 1):
                    total = fma(*times(number, 256**power), total)
            return total

        return f32x4(codes, types.int64, scales), emit

    return primitive
