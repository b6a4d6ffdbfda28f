"""The matrix unit of an x86 CPU (AMX): products of tiles of bytes. ``tiers.matrix`` says whether kernels may use it."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.simd.isa import call_intrinsic
from kit.cpu.simd.memory import store
from kit.cpu.simd.vectors import broadcast, i32x16, inner

_VOID, _BYTE = ir.VoidType(), ir.IntType(8)
_LEFT, _RIGHT, _SUMS = (ir.Constant(_BYTE, tile) for tile in range(3))  # registers


def _pointer(builder, address):
    return builder.inttoptr(address, _BYTE.as_pointer())


@inner
def configure(width, scratch):
    """Give the tiles their shapes for ``multiply``; scratch: the address of 64 bytes."""
    store(scratch, broadcast(i32x16, 0))
    store(scratch, types.uint8(1))
    for tile, (rows, nbytes) in enumerate(((16, width), (width // 4, 64), (16, 64))):
        store(scratch + 16 + 2 * tile, types.uint8(nbytes))
        store(scratch + 48 + tile, types.uint8(rows))
    _configure(scratch)


@intrinsic
def _configure(_, address):
    def emit(context, builder, signature, args):
        call_intrinsic(builder, "llvm.x86.ldtilecfg", _VOID, [_pointer(builder, args[0])])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def release(_):
    """release(): the tiles hold nothing any more, so that nobody saves them."""

    def emit(context, builder, signature, args):
        call_intrinsic(builder, "llvm.x86.tilerelease", _VOID, [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def multiply(_, left, stride, right, sums):
    """multiply(left, stride, right, sums): sums[i, j] = sum over k of left[i, k] * right[k // 4, 4 * j + k % 4], for i and j
    below 16 and k below the width; int8 and int32 at addresses, rows of left ``stride`` bytes apart."""

    def emit(context, builder, signature, args):
        left, stride, right, sums = args
        line = ir.Constant(stride.type, 64)
        call_intrinsic(builder, "llvm.x86.tileloadd64", _VOID, [_LEFT, _pointer(builder, left), stride])
        call_intrinsic(builder, "llvm.x86.tileloadd64", _VOID, [_RIGHT, _pointer(builder, right), line])
        call_intrinsic(builder, "llvm.x86.tilezero", _VOID, [_SUMS])
        call_intrinsic(builder, "llvm.x86.tdpbssd", _VOID, [_SUMS, _LEFT, _RIGHT])
        call_intrinsic(builder, "llvm.x86.tilestored64", _VOID, [_SUMS, _pointer(builder, sums), line])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit
