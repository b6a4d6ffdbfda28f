"""Sums of products in float32 vectors: multiply-add in one step, and the sum of a vector's lanes."""

from llvmlite import ir
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import emits
from kit.cpu.simd.vectors import f32x4


@intrinsic
def fma(_, a, b, c):
    """fma(a, b, c): a * b + c, rounded once if the CPU has such an instruction."""
    return emits(a(a, b, c), emit.fma)


def _halves(builder, x):
    """The sums of the lanes of both halves."""
    count = x.type.count // 2
    return builder.fadd(emit.shuffle(builder, x, x, range(count)), emit.shuffle(builder, x, x, range(count, 2 * count)))


@intrinsic
def reduce_add(_, vector):
    """reduce_add(v): the sum of the lanes, by halves, so that every CPU gives the same bits."""

    def code(builder, total):
        while total.type.count > 1:
            total = _halves(builder, total)
        return builder.extract_element(total, ir.Constant(emit.I32, 0))

    return emits(vector.element(vector), code)


@intrinsic
def reduce_add4(_, a, b, c, d):
    """reduce_add4(a, b, c, d): the sums of the lanes of four f32x16 as f32x4; half the steps of four ``reduce_add``."""

    def code(builder, a, b, c, d):
        def by_quarters(x, y, low, high):  # the same lanes of each quarter, of x (0 to 3) and of y (16 to 19)
            lanes = ([quarter + lane for quarter in range(0, 16, 4) for lane in half] for half in (low, high))
            return builder.fadd(*(emit.shuffle(builder, x, y, half) for half in lanes))

        ab, cd = (by_quarters(x, y, (0, 16, 1, 17), (2, 18, 3, 19)) for x, y in ((a, b), (c, d)))
        return _halves(builder, _halves(builder, by_quarters(ab, cd, (0, 1, 16, 17), (2, 3, 18, 19))))

    return emits(f32x4(a, b, c, d), code)


def _reduced(vector, name: str):
    name = f"llvm.vector.reduce.{name}.v{vector.lanes}i32"
    return emits(vector.element(vector), lambda builder, value: emit.call(builder, name, emit.I32, value))


@intrinsic
def greatest(_, vector):
    """greatest(v): the largest of unsigned 32-bit lanes."""
    return _reduced(vector, "umax")


@intrinsic
def add_up(_, vector):
    """add_up(v): the sum of 32-bit lanes."""
    return _reduced(vector, "add")
