"""The LLVM code of primitives: what llvmlite's builder lacks, and how an ``intrinsic`` gives its code to Numba."""

from llvmlite import ir
from numba import types
from numba.core import cgutils

VOID, I8, I16, I32, I64 = ir.VoidType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT16, FLOAT32 = ir.HalfType(), ir.FloatType()


def emits(signature, code):
    """The return value of an ``intrinsic``: its signature, and the code, which ``code(builder, *arguments)`` builds and
    returns."""

    def emit(context, builder, _, arguments):
        value = code(builder, *arguments)
        return context.get_dummy_value() if signature.return_type == types.void else value

    return signature, emit


def emits_number(number: int | bool, *kinds):
    """``emits`` of a number that follows from the types ``kinds`` alone: a constant, which takes no function of its own."""
    kind, bits = (types.boolean, 1) if isinstance(number, bool) else (types.int64, 64)
    return emits(kind(*kinds), lambda *_: ir.Constant(ir.IntType(bits), int(number)))


def call(builder, name: str, result: ir.Type, *args):
    """A call of the LLVM intrinsic ``name``."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def every(kind: ir.Type, number) -> ir.Constant:
    """A constant: the number in every lane of a vector, or the number itself."""
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def like(kind: ir.Type, element: ir.Type) -> ir.Type:
    """A vector type of ``element`` with as many lanes as ``kind``; ``element`` itself if ``kind`` is not a vector."""
    return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element


def pointer(builder, address, kind: ir.Type, offset: int = 0):
    """A pointer to an address, or to so many bytes after it."""
    address = builder.add(address, ir.Constant(address.type, offset)) if offset else address
    return builder.inttoptr(address, kind.as_pointer())


def strided(builder, address, stride, number: int):
    """The address that is ``number`` strides after another one."""
    return builder.add(address, builder.mul(stride, ir.Constant(stride.type, number)))


def shuffle(builder, a, b, lanes):
    """The lanes with these numbers from the concatenation of two vectors."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def broadcast(builder, number, kind: ir.VectorType):
    """A number in every lane."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), every(like(kind, I32), 0))


def fma(builder, a, b, c):
    """a * b + c for vectors of float32, rounded once if the CPU has such an instruction."""
    return call(builder, f"llvm.fmuladd.v{a.type.count}f32", a.type, a, b, c)


def opaque(builder, value, in_order=False):
    """The same vector or integer, through a barrier that LLVM's optimizer cannot look through, ``in_order`` with other such."""
    register = "=x,0" if isinstance(value.type, ir.VectorType) else "=r,0"
    return builder.asm(ir.FunctionType(value.type, [value.type]), "", register, [value], side_effect=in_order)
