"""Memory in Numba kernels. An address is an int64 (array.ctypes.data), and need not be aligned unless the primitive says so."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kit.cpu.simd.vectors import Vector, inner, llvm_type


@intrinsic
def load(_, kind, address):
    """load(u8x16, address), load(float32, address): the vector or number at an address."""
    result = kind.instance_type

    def emit(context, builder, signature, args):
        llvm = result.llvm if isinstance(result, Vector) else llvm_type(result)
        value = builder.load(builder.inttoptr(args[1], llvm.as_pointer()))
        value.align = 1
        return value

    return result(kind, types.int64), emit


@intrinsic
def store(_, address, value):
    """store(address, v): a vector or a number."""

    def emit(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], args[1].type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, value), emit


@intrinsic
def stream(_, address, vector):
    """stream(address, v): a non-temporal store, past the caches. The address is a multiple of the vector's bytes."""
    nbytes = vector.lanes * vector.element.bitwidth // 8

    def emit(context, builder, signature, args):
        stored = builder.store(args[1], builder.inttoptr(args[0], args[1].type.as_pointer()), align=nbytes)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, vector), emit


@intrinsic
def prefetch(_, address):
    """prefetch(address): start to bring the line at an address, which may be any, near the CPU."""

    def emit(context, builder, signature, args):
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, near, data = (ir.Constant(word, number) for number in (0, 3, 1))
        builder.call(function, [builder.inttoptr(args[0], pointer), to_read, near, data])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def fence(_):
    """fence(): streamed stores become visible to other threads before anything after it."""

    def emit(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), emit


def stack(nbytes: int):
    """A primitive: the address of ``nbytes`` that live until the calling function returns, a multiple of 64."""

    @intrinsic
    def address(_):
        def emit(context, builder, signature, args):
            with builder.goto_entry_block():  # a loop around the call must not take more at every turn
                memory = builder.alloca(ir.ArrayType(ir.IntType(8), nbytes))
            memory.align = 64
            return builder.ptrtoint(memory, ir.IntType(64))

        return types.int64(), emit

    return address


@inner
def copy(source, nbytes, target):
    """Copy a few bytes."""
    for i in range(nbytes):
        store(target + i, load(types.uint8, source + i))
