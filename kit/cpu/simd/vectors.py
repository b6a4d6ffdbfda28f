"""Vectors in Numba kernels: types, lanes, conversions, arithmetic. All of it is plain LLVM, which runs on any CPU."""

import functools
import operator
from pathlib import Path

from llvmlite import ir
from numba import njit, types
from numba.core.imputils import lower_constant
from numba.extending import NativeValue, intrinsic, models, overload, register_model, typeof_impl, unbox

from kit.cpu.numba_private import Inner, set_source_stamp
from kit.cpu.simd import emit
from kit.cpu.simd.emit import emits
from kit.cpu.tasks import Static, features, source_stamp


def jit(function):
    """numba.njit for kernels: without the GIL, with C arithmetic, compiled once per machine (with a cache on disk if possible).

    A change in kit/cpu, in kit/gguf/formats.py or in the function's own folder makes cached code stale, because it contains the
    code of every primitive that the function calls. Numba itself checks only the function's own file.
    """
    options = dict(nogil=True, error_model="numpy")
    try:
        dispatcher = njit(function, cache=True, **options)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written to: compile in each process
        return njit(function, **options)
    set_source_stamp(dispatcher, source_stamp(Path(function.__code__.co_filename).parent))
    return dispatcher


def inner(function=None, forceinline=False):
    """numba.njit for functions that kernels call."""
    if function is None:
        return functools.partial(inner, forceinline=forceinline)
    options = dict(nopython=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=forceinline)
    return Inner(function, targetoptions=options)


def generated(function=None, prefer_literal=False, **options):
    """A function for kernels whose body depends on the types of its arguments: ``function`` gets these types (a Static as a
    type with its ``value``) and returns the implementation, with the same parameters. ``options``: as in ``inner``."""
    if function is None:
        return functools.partial(generated, prefer_literal=prefer_literal, **options)
    return overload(function, jit_options=options, prefer_literal=prefer_literal)(function)


class StaticType(types.Type):
    """The Numba type of ``Static(value)``."""

    def __init__(self, value):
        self.value = value
        super().__init__(f"Static({getattr(value, 'name', value)})")

    @property
    def key(self):
        return self.value


typeof_impl.register(Static)(lambda static, _context: StaticType(static.value))
register_model(StaticType)(models.OpaqueModel)
unbox(StaticType)(lambda _type, _object, c: NativeValue(c.context.get_dummy_value()))
lower_constant(StaticType)(lambda context, *_: context.get_dummy_value())


class Vector(types.Type):
    """``lanes`` numbers of one Numba type in registers; of types.boolean, a mask."""

    def __init__(self, element: types.Type, lanes: int):
        self.element, self.lanes = element, lanes
        super().__init__(f"{element}x{lanes}")

    @property
    def key(self):
        return self.element, self.lanes

    @property
    def llvm(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(llvm_type(self.element), self.lanes)


def llvm_type(kind: types.Type) -> ir.Type:
    """The LLVM type of a vector or number."""
    if isinstance(kind, Vector):
        return kind.llvm
    if isinstance(kind, types.Float):
        return emit.FLOAT32 if kind.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(1 if kind == types.boolean else kind.bitwidth)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        super().__init__(manager, vector, vector.llvm)


u8x8, u8x16, u8x32, u8x64 = (Vector(types.uint8, lanes) for lanes in (8, 16, 32, 64))
i8x16, i8x32, i8x64 = (Vector(types.int8, lanes) for lanes in (16, 32, 64))
u16x8, u16x16, u16x32 = (Vector(types.uint16, lanes) for lanes in (8, 16, 32))
i16x16, i16x32 = Vector(types.int16, 16), Vector(types.int16, 32)
i32x8, i32x16 = Vector(types.int32, 8), Vector(types.int32, 16)
u32x4, u32x8, u32x16 = (Vector(types.uint32, lanes) for lanes in (4, 8, 16))
f32x4, f32x8, f32x16, f32x32 = (Vector(types.float32, lanes) for lanes in (4, 8, 16, 32))
mask16, mask32, mask64 = (Vector(types.boolean, lanes) for lanes in (16, 32, 64))


# ---- lanes


@intrinsic
def broadcast(_, kind, number):
    """broadcast(f32x16, x): x in every lane."""
    vector = kind.instance_type

    def code(context, builder, signature, args):
        return emit.broadcast(builder, context.cast(builder, args[1], signature.args[1], vector.element), vector.llvm)

    return vector(kind, number), code


def _picked(lanes, *vectors: Vector):
    """The return value of an intrinsic that gives these lanes of a vector, or of two concatenated vectors."""
    result = Vector(vectors[0].element, len(lanes))
    return emits(result(*vectors), lambda builder, *values: emit.shuffle(builder, values[0], values[-1], lanes))


@intrinsic
def join(_, a, b):
    """join(a, b): a's lanes, then b's."""
    return _picked(range(2 * a.lanes), a, b)


@intrinsic
def interleave(_, a, b):
    """interleave(a, b): a0 b0 a1 b1 ..."""
    return _picked([lane + half for lane in range(a.lanes) for half in (0, a.lanes)], a, b)


@intrinsic
def low(_, vector):
    """low(v): the first half of the lanes."""
    return _picked(range(vector.lanes // 2), vector)


@intrinsic
def high(_, vector):
    """high(v): the second half of the lanes."""
    return _picked(range(vector.lanes // 2, vector.lanes), vector)


def pick(*lanes: int):
    """A primitive: pick(3, 3, 5)(v) is the vector of v's lanes 3, 3 and 5."""
    return intrinsic(lambda _, vector: _picked(lanes, vector))


def constant(vector: Vector, *numbers):
    """A primitive without arguments: the vector of these numbers."""
    return intrinsic(lambda _: emits(vector(), lambda builder: ir.Constant(vector.llvm, list(numbers))))


@intrinsic
def swap_neighbors(_, vector):
    """swap_neighbors(v): v1 v0 v3 v2 ..."""
    return _picked([lane ^ 1 for lane in range(vector.lanes)], vector)


@intrinsic(prefer_literal=True)
def move_up(_, vector, count):
    """move_up(v, n): each lane gets the value of the lane n (a constant) below; the first n lanes are zero."""
    first = vector.lanes - count.literal_value

    def code(builder, value, _):
        return emit.shuffle(builder, ir.Constant(value.type, None), value, range(first, first + vector.lanes))

    return emits(vector(vector, count), code)


@intrinsic
def extract(_, vector, lane):
    """extract(v, i): the number in lane i."""
    return emits(vector.element(vector, types.int64), lambda builder, value, lane: builder.extract_element(value, lane))


@intrinsic
def select(_, mask, a, b):
    """select(mask, a, b): a where the mask is set, else b (vectors of one type)."""
    return emits(a(mask, a, b), lambda builder, *args: builder.select(*args))


# ---- conversions


@intrinsic
def convert(_, kind, vector):
    """convert(f32x16, v): the same numbers in another type. Integers that do not fit wrap; floats are rounded to nearest.

    A float becomes an integer by rounding towards zero; one that does not fit is undefined.
    """
    result, source = kind.instance_type, vector.element
    to_float, from_float = isinstance(result.element, types.Float), isinstance(source, types.Float)
    signed = getattr(result.element if from_float else source, "signed", False)
    if from_float:
        name = "fptosi" if signed else "fptoui"
    elif to_float:
        name = "sitofp" if signed else "uitofp"
    elif result.element.bitwidth > source.bitwidth:
        name = "sext" if signed else "zext"
    else:
        name = "trunc" if result.element.bitwidth < source.bitwidth else "bitcast"
    return emits(result(kind, vector), lambda builder, _, value: getattr(builder, name)(value, result.llvm))


@intrinsic
def bitcast(_, kind, value):
    """bitcast(u32x16, v): the same bits; also between a vector and an integer (bits of a uint16 -> mask16)."""
    result = kind.instance_type
    mask = isinstance(result, Vector) and result.element == types.boolean

    def code(builder, _, value):
        if mask and "neon" in features():
            return _lanes_set(builder, value, result.lanes)
        return builder.bitcast(value, llvm_type(result))

    return emits(result(kind, value), code)


def _lanes_set(builder, bits, lanes: int):
    """The mask whose bits an integer holds, with a table look-up and a test (tbl, cmtst); on Arm, LLVM would handle each lane
    alone."""
    bytes_, vector = (ir.VectorType(emit.I8, count) for count in (lanes // 8, lanes))
    bits = builder.bitcast(bits, bytes_)
    each = emit.shuffle(builder, bits, bits, [lane // 8 for lane in range(lanes)])
    own = builder.and_(each, ir.Constant(vector, [1 << lane % 8 for lane in range(lanes)]))
    return builder.icmp_unsigned("!=", own, ir.Constant(vector, None))


# ---- arithmetic: a vector and a vector, or a vector and a number that is converted to the vector's type


# the builder's methods for unsigned integers, signed ones and floats, and the comparison
_OPERATORS = {
    operator.add: "add add fadd",
    operator.sub: "sub sub fsub",
    operator.mul: "mul mul fmul",
    operator.truediv: "- - fdiv",
    operator.and_: "and_ and_ -",
    operator.or_: "or_ or_ -",
    operator.xor: "xor xor -",
    operator.lshift: "shl shl -",
    operator.rshift: "lshr ashr -",
} | {
    function: f"icmp_unsigned icmp_signed fcmp_ordered {sign}"
    for function, sign in (
        (operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">="), (operator.eq, "=="),
    )
} | {operator.ne: "icmp_unsigned icmp_signed fcmp_unordered !="}  # fmt: skip


def _define(function, methods):
    unsigned, signed, floating, *comparison = methods.split()

    @intrinsic
    def primitive(_, a, b):
        vector = a if isinstance(a, Vector) else b
        element, result = vector.element, Vector(types.boolean, vector.lanes) if comparison else vector
        method = floating if isinstance(element, types.Float) else signed if element.signed else unsigned

        def code(context, builder, signature, args):
            def spread(kind, arg):
                if isinstance(kind, Vector):
                    return arg
                return emit.broadcast(builder, context.cast(builder, arg, kind, element), vector.llvm)

            return getattr(builder, method)(*comparison, *map(spread, signature.args, args))

        return result(a, b), code

    @overload(function)
    def _(a, b):
        if isinstance(a, Vector) or isinstance(b, Vector):
            return lambda a, b: primitive(a, b)


for _function, _methods in _OPERATORS.items():
    _define(_function, _methods)
