"""Sums of products in float32 vectors: multiply and add in one step, and the lanes of a vector added up."""

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from kit.cpu.simd.vectors import f32x4


@intrinsic
def fma(_, a, b, c):
    """fma(a, b, c): a * b + c, rounded once where the CPU can do that in one step."""

    def emit(context, builder, signature, args):
        kind = ir.FunctionType(args[0].type, [args[0].type] * 3)
        name = f"llvm.fmuladd.v{a.lanes}f32"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    return a(a, b, c), emit


def _shuffled(builder, x, y, lanes):
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes)))


def _halves(builder, x):
    """The sums of the lanes of both halves."""
    count = x.type.count // 2
    return builder.fadd(_shuffled(builder, x, x, range(count)), _shuffled(builder, x, x, range(count, 2 * count)))


@intrinsic
def reduce_add(_, vector):
    """reduce_add(v): the sum of the lanes, by halves: the same bits on every CPU."""

    def emit(context, builder, signature, args):
        total = args[0]
        while total.type.count > 1:
            total = _halves(builder, total)
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return vector.element(vector), emit


@intrinsic
def reduce_add4(_, a, b, c, d):
    """reduce_add4(a, b, c, d): the sums of the lanes of four f32x16 as f32x4; half the steps of four ``reduce_add``."""

    def emit(context, builder, signature, args):
        def by_quarters(x, y, low, high):  # the same lanes of each quarter, of x (0 to 3) and of y (16 to 19)
            lanes = ([quarter + lane for quarter in range(0, 16, 4) for lane in half] for half in (low, high))
            return builder.fadd(*(_shuffled(builder, x, y, half) for half in lanes))

        ab, cd = (by_quarters(x, y, (0, 16, 1, 17), (2, 18, 3, 19)) for x, y in (args[:2], args[2:]))
        return _halves(builder, _halves(builder, by_quarters(ab, cd, (0, 1, 16, 17), (2, 3, 18, 19))))

    return f32x4(a, b, c, d), emit


def _reduction(name: str, doc: str):
    def primitive(_, vector):
        def emit(context, builder, signature, args):
            kind = ir.FunctionType(ir.IntType(32), [args[0].type])
            function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.{name}.v{vector.lanes}i32")
            return builder.call(function, args)

        return vector.element(vector), emit

    primitive.__doc__ = doc
    return intrinsic(primitive)


greatest = _reduction("umax", "greatest(v): the largest of unsigned 32-bit lanes.")
add_up = _reduction("add", "add_up(v): the sum of 32-bit lanes.")
