"""Vectors in Numba kernels: types, lanes, conversions, arithmetic. All of it is plain LLVM, which runs on any CPU."""

import functools
import operator
from pathlib import Path

from llvmlite import ir
from numba import njit, types
from numba.core.imputils import lower_constant
from numba.extending import NativeValue, intrinsic, models, overload, register_model, typeof_impl, unbox

from kit.cpu.numba_private import Inner, set_source_stamp
from kit.cpu.tasks import Static, features, source_stamp


def jit(function):
    """numba.njit for kernels: no GIL, C arithmetic, compiled once a machine (a cache on disk, where one can be had).

    A change in kit/cpu, in kit/gguf/formats.py or in the function's own folder makes the cached code stale: it contains the
    code of every primitive that the function calls. Numba itself looks at the function's file alone.
    """
    options = dict(nogil=True, error_model="numpy")
    try:
        dispatcher = njit(function, cache=True, **options)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written to: compile in each process
        return njit(function, **options)
    set_source_stamp(dispatcher, source_stamp(Path(function.__code__.co_filename).parent))
    return dispatcher


def inner(function=None, forceinline=False):
    """numba.njit for what kernels call."""
    if function is None:
        return functools.partial(inner, forceinline=forceinline)
    options = dict(nopython=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=forceinline)
    return Inner(function, targetoptions=options)


def generated(function=None, prefer_literal=False, **options):
    """A function that kernels call and whose body depends on the types of its arguments: ``function`` gets these types, a
    Static as one with its ``value``, and returns what runs, with the same parameters. ``options``: as in ``inner``."""
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


def llvm_type(number: types.Type) -> ir.Type:
    if isinstance(number, types.Float):
        return ir.FloatType() if number.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(1 if number == types.boolean else number.bitwidth)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        super().__init__(manager, vector, vector.llvm)


u8x8, u8x16, u8x32, u8x64 = (Vector(types.uint8, lanes) for lanes in (8, 16, 32, 64))
i8x16, i8x32, i8x64 = (Vector(types.int8, lanes) for lanes in (16, 32, 64))
u16x8, u16x16, u16x32 = (Vector(types.uint16, lanes) for lanes in (8, 16, 32))
i16x16, i32x8, i32x16 = Vector(types.int16, 16), Vector(types.int32, 8), Vector(types.int32, 16)
u32x16 = Vector(types.uint32, 16)
f32x4, f32x8, f32x16 = (Vector(types.float32, lanes) for lanes in (4, 8, 16))
mask16, mask32, mask64 = (Vector(types.boolean, lanes) for lanes in (16, 32, 64))


# ---- lanes


def emit_broadcast(builder, value, vector: Vector):
    first = builder.insert_element(ir.Constant(vector.llvm, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    every = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), [0] * vector.lanes)
    return builder.shuffle_vector(first, ir.Constant(vector.llvm, ir.Undefined), every)


@intrinsic
def broadcast(_, kind, number):
    """broadcast(f32x16, x): x in every lane."""
    vector = kind.instance_type

    def emit(context, builder, signature, args):
        return emit_broadcast(builder, context.cast(builder, args[1], signature.args[1], vector.element), vector)

    return vector(kind, number), emit


def _shuffled(vector: Vector, lanes: list[int]):
    """The result type and the code that picks ``lanes`` of two vectors laid end to end."""
    result = Vector(vector.element, len(lanes))

    def emit(context, builder, signature, args):
        indices = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        return builder.shuffle_vector(args[0], args[-1], indices)

    return result, emit


@intrinsic
def join(_, a, b):
    """join(a, b): a's lanes, then b's."""
    result, emit = _shuffled(a, list(range(2 * a.lanes)))
    return result(a, b), emit


@intrinsic
def interleave(_, a, b):
    """interleave(a, b): a0 b0 a1 b1 ..."""
    result, emit = _shuffled(a, [lane + half for lane in range(a.lanes) for half in (0, a.lanes)])
    return result(a, b), emit


@intrinsic
def low(_, vector):
    """low(v): the first half of the lanes."""
    result, emit = _shuffled(vector, list(range(vector.lanes // 2)))
    return result(vector), emit


@intrinsic
def high(_, vector):
    """high(v): the second half of the lanes."""
    result, emit = _shuffled(vector, list(range(vector.lanes // 2, vector.lanes)))
    return result(vector), emit


def pick(*lanes: int):
    """A primitive: pick(3, 3, 5)(v) is the vector of v's lanes 3, 3 and 5."""

    @intrinsic
    def picked(_, vector):
        result, emit = _shuffled(vector, list(lanes))
        return result(vector), emit

    return picked


def constant(vector: Vector, *numbers):
    """A primitive without arguments: the vector of these numbers."""

    @intrinsic
    def constants(_):
        return vector(), lambda *_: ir.Constant(vector.llvm, list(numbers))

    return constants


@intrinsic
def swap_neighbors(_, vector):
    """swap_neighbors(v): v1 v0 v3 v2 ..."""
    result, emit = _shuffled(vector, [lane ^ 1 for lane in range(vector.lanes)])
    return result(vector), emit


@intrinsic(prefer_literal=True)
def move_up(_, vector, count):
    """move_up(v, n): each lane holds what lay n lanes (a constant) below it, the first n zero."""

    def emit(context, builder, signature, args):
        first = vector.lanes - count.literal_value
        below = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), list(range(first, first + vector.lanes)))
        return builder.shuffle_vector(ir.Constant(args[0].type, None), args[0], below)

    return vector(vector, count), emit


@intrinsic
def extract(_, vector, lane):
    """extract(v, i): the number in lane i."""

    def emit(context, builder, signature, args):
        return builder.extract_element(args[0], args[1])

    return vector.element(vector, types.int64), emit


@intrinsic
def select(_, mask, a, b):
    """select(mask, a, b): a where the mask is set, else b (vectors of one type)."""

    def emit(context, builder, signature, args):
        return builder.select(*args)

    return a(mask, a, b), emit


# ---- conversions


@intrinsic
def convert(_, kind, vector):
    """convert(f32x16, v): the same numbers in another type; integers that do not fit wrap, floats are rounded to nearest.

    A float becomes the integer towards zero; one that does not fit is undefined.
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

    def emit(context, builder, signature, args):
        return getattr(builder, name)(args[1], result.llvm)

    return result(kind, vector), emit


@intrinsic
def bitcast(_, kind, value):
    """bitcast(u32x16, v): the same bits; also between a vector and an integer (bits of a uint16 -> mask16)."""
    result = kind.instance_type
    mask = isinstance(result, Vector) and result.element == types.boolean

    def emit(context, builder, signature, args):
        if mask and "neon" in features():
            return _lanes_set(builder, args[1], result.lanes)
        return builder.bitcast(args[1], result.llvm if isinstance(result, Vector) else llvm_type(result))

    return result(kind, value), emit


def _lanes_set(builder, bits, lanes: int):
    """The mask whose bits an integer holds, by a look-up and a test (tbl, cmtst): LLVM's takes each lane by itself on Arm."""
    bytes_, vector = (ir.VectorType(ir.IntType(8), count) for count in (lanes // 8, lanes))
    each = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [lane // 8 for lane in range(lanes)])
    bits = builder.bitcast(bits, bytes_)
    own = builder.and_(builder.shuffle_vector(bits, bits, each), ir.Constant(vector, [1 << lane % 8 for lane in range(lanes)]))
    return builder.icmp_unsigned("!=", own, ir.Constant(vector, None))


# ---- arithmetic: a vector and a vector, or a vector and a number that is converted to the vector's type


def _instruction(name: str):
    """The builder method for integers signed or not, and floats: "lshr ashr -", "cmp <"."""
    unsigned, signed, floating, *comparison = name.split()

    def emit(builder, element, a, b):
        method = floating if isinstance(element, types.Float) else signed if element.signed else unsigned
        return getattr(builder, method)(*comparison, a, b)

    return emit


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


def _define(function, instruction):
    combine = _instruction(instruction)
    compares = "cmp" in instruction

    @intrinsic
    def primitive(_, a, b):
        vector = a if isinstance(a, Vector) else b

        def emit(context, builder, signature, args):
            operands = (
                arg
                if isinstance(kind, Vector)
                else emit_broadcast(builder, context.cast(builder, arg, kind, vector.element), vector)
                for arg, kind in zip(args, signature.args, strict=True)
            )
            return combine(builder, vector.element, *operands)

        return Vector(types.boolean, vector.lanes)(a, b) if compares else vector(a, b), emit

    @overload(function)
    def _(a, b):
        if isinstance(a, Vector) or isinstance(b, Vector):
            return lambda a, b: primitive(a, b)


for _function, _name in _OPERATORS.items():
    _define(_function, _name)
