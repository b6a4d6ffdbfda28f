"""Several vectors at once: the tile of sums that a matrix product keeps in registers."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kit.cpu.simd.isa import emit_dot4
from kit.cpu.simd.vectors import Vector, emit_broadcast, f32x16, i32x16, u8x64


def several_of(count: int):
    """Two primitives for tuples of ``count`` vectors: load(address, stride), of f32x16, and store(address, stride, tuple)."""
    several = types.UniTuple(f32x16, count)

    def pointers(builder, address, stride):
        places = (builder.add(address, builder.mul(stride, ir.Constant(stride.type, i))) for i in range(count))
        return [builder.inttoptr(place, f32x16.llvm.as_pointer()) for place in places]

    @intrinsic
    def load_several(_, address, stride):
        def emit(context, builder, signature, args):
            vectors = [builder.load(pointer) for pointer in pointers(builder, *args)]
            for vector in vectors:
                vector.align = 4
            return context.make_tuple(builder, several, vectors)

        return several(types.int64, types.int64), emit

    @intrinsic
    def store_several(_, address, stride, vectors):
        def emit(context, builder, signature, args):
            for pointer, vector in zip(pointers(builder, *args[:2]), cgutils.unpack_tuple(builder, args[2]), strict=True):
                builder.store(vector, pointer, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, several), emit

    return load_several, store_several


@intrinsic
def add_products(_, sums, rows, tokens):
    """add_products(s, w, x): to each of the sums of a tile, row after row, a row's vector times a token's."""

    def emit(context, builder, signature, args):
        s, w, x = (cgutils.unpack_tuple(builder, arg) for arg in args)
        kind = ir.FunctionType(f32x16.llvm, [f32x16.llvm] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v16f32")
        pairs = [(row, token) for row in w for token in x]
        results = [builder.call(fma, (*pair, c)) for pair, c in zip(pairs, s, strict=True)]
        return context.make_tuple(builder, signature.return_type, results)

    return sums(sums, rows, tokens), emit


def add_dots_of(depth: int, largest: int, units: int, digits: tuple[int, ...] = (0,)):
    """A primitive: add_dots(tier, totals, x, stride, weights, apart, scales, minima, sums).

    Returns totals + scales * dots + minima * sums; where ``units`` is not 0, dots are times a number each token has, which lies
    so many bytes behind its sum. totals: a tile of f32x16, each sixteen rows' tokens one after another. dots:
    of ``depth`` u8x64 at ``weights``, four weights of sixteen rows each, the next sixteen rows ``apart`` bytes on, and 4 *
    ``depth`` numbers of one digit or three, int8 at ``x`` + each of ``digits``, the next token's ``stride`` bytes on. scales,
    minima: an f32x16 for each sixteen rows. sums: the address of a float32, the next token's as for x.
    """

    @intrinsic
    def add_dots(_, tier, totals, x, stride, weights, apart, scales, minima, sums):
        def emit(context, builder, signature, args):
            _, old, x, stride, weights, apart, scales, minima, sums = args
            old, scales, minima = (cgutils.unpack_tuple(builder, vectors) for vectors in (old, scales, minima))
            tokens, kind = len(old) // len(scales), ir.FunctionType(f32x16.llvm, [f32x16.llvm] * 3)
            fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v16f32")

            def loaded(kind, address, stride, number, offset=0):
                place = builder.add(address, builder.mul(stride, ir.Constant(stride.type, number)))
                place = builder.add(place, ir.Constant(stride.type, offset))
                return builder.load(builder.inttoptr(place, kind.as_pointer()), align=4)

            def add(dots, digit):
                """dots with the products of a digit."""
                for k in range(depth):
                    rows = [loaded(u8x64.llvm, weights, apart, row, 64 * k) for row in range(len(scales))]
                    for token in range(tokens):
                        four = emit_broadcast(builder, loaded(ir.IntType(32), x, stride, token, digit + 4 * k), i32x16)
                        four = builder.bitcast(four, u8x64.llvm)
                        for row, codes in enumerate(rows):
                            at = row * tokens + token
                            dots[at] = emit_dot4(builder, tier, dots[at], codes, four, largest)
                return dots

            def floats(dots):
                return [builder.sitofp(dot, f32x16.llvm) for dot in dots]

            none, eight = ([ir.Constant(i32x16.llvm, [number] * 16)] * len(old) for number in (0, 8))
            lower = []
            if digits[1:]:  # the lower two together fit 32 bits, all three do not
                second, third = digits[1:]
                lower = add([builder.shl(*pair) for pair in zip(add([*none], second), eight, strict=True)], third)
                lower = floats(lower)
            dots = floats(add([*none], digits[0]))
            if lower:
                place = ir.Constant(f32x16.llvm, [2.0**16] * 16)
                dots = [builder.call(fma, [dot, place, rest]) for dot, rest in zip(dots, lower, strict=True)]
            for at, dot in enumerate(dots):
                row, token = divmod(at, tokens)
                if units:
                    unit = loaded(ir.FloatType(), sums, stride, token, units)
                    dot = builder.fmul(dot, emit_broadcast(builder, unit, f32x16))
                total = builder.call(fma, [dot, scales[row], old[at]])
                number = emit_broadcast(builder, loaded(ir.FloatType(), sums, stride, token), f32x16)
                old[at] = builder.call(fma, [number, minima[row], total])
            return context.make_tuple(builder, totals, old)

        return totals(tier, totals, *[types.int64] * 4, scales, minima, types.int64), emit

    return add_dots


@intrinsic
def sum_of_products(_, kind, vectors, address, stride, total):
    """sum_of_products(i32x16, v, address, stride, c): c + v[0] * a + v[1] * b + ..., with what lies ``stride`` bytes apart from
    the address on: vectors, or numbers (of types.float32) for all lanes."""
    of = kind.instance_type

    def emit(context, builder, signature, args):
        kind = ir.FunctionType(total.llvm, [total.llvm] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v16f32")
        result, element = args[4], of.llvm if isinstance(of, Vector) else ir.FloatType()
        for i, vector in enumerate(cgutils.unpack_tuple(builder, args[1])):
            place = builder.add(args[2], builder.mul(args[3], ir.Constant(args[3].type, i)))
            loaded = builder.load(builder.inttoptr(place, element.as_pointer()))
            loaded.align = 4
            loaded = builder.sitofp(loaded, total.llvm) if isinstance(of, Vector) else emit_broadcast(builder, loaded, total)
            result = builder.call(fma, [vector, loaded, result])
        return result

    return total(kind, vectors, types.int64, types.int64, total), emit


@intrinsic
def times_numbers(_, vectors, address, stride):
    """times_numbers(v, address, stride): v[0] * a, v[1] * b ... with float32 numbers that lie ``stride`` bytes apart."""

    def emit(context, builder, signature, args):
        found = []
        for i, vector in enumerate(cgutils.unpack_tuple(builder, args[0])):
            place = builder.add(args[1], builder.mul(args[2], ir.Constant(args[2].type, i)))
            number = builder.load(builder.inttoptr(place, ir.FloatType().as_pointer()), align=4)
            found.append(builder.fmul(vector, emit_broadcast(builder, number, f32x16)))
        return context.make_tuple(builder, vectors, found)

    return vectors(vectors, types.int64, types.int64), emit


@intrinsic
def transpose(_, vectors):
    """transpose(v): 16 vectors of lane 0 of all 16, lane 1 of all ..."""

    def emit(context, builder, signature, args):
        rows = cgutils.unpack_tuple(builder, args[0])
        halves = [[lane + other for lane in range(start, start + 8) for other in (0, 16)] for start in (0, 8)]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), 16), half) for half in halves]
        for _ in range(4):  # each riffles the vectors as a pack of cards
            rows = [builder.shuffle_vector(rows[i], rows[i + 8], mask) for i in range(8) for mask in masks]
        return context.make_tuple(builder, vectors, rows)

    return vectors(vectors), emit
