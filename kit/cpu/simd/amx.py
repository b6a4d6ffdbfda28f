"""The matrix unit of an x86 CPU (AMX): products of tiles of bytes. ``tiers.matrix`` says whether kernels may use it."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import I8, emits
from kit.cpu.simd.memory import store
from kit.cpu.simd.vectors import broadcast, i32x16, inner

_LEFT, _RIGHT, _SUMS = (ir.Constant(I8, tile) for tile in range(3))  # registers


def _call(builder, name, *args):
    emit.call(builder, f"llvm.x86.{name}", emit.VOID, *args)


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
    return emits(types.void(types.int64), lambda builder, at: _call(builder, "ldtilecfg", emit.pointer(builder, at, I8)))


@intrinsic
def release(_):
    """release(): the tiles hold nothing any more, so that nobody saves them."""
    return emits(types.void(), lambda builder: _call(builder, "tilerelease"))


@intrinsic
def multiply(_, left, stride, right, sums):
    """multiply(left, stride, right, sums): sums[i, j] = sum over k of left[i, k] * right[k // 4, 4 * j + k % 4], for i and j
    below 16 and k below the width; int8 and int32 at addresses, rows of left ``stride`` bytes apart."""

    def code(builder, left, stride, right, sums):
        line = ir.Constant(stride.type, 64)
        _call(builder, "tileloadd64", _LEFT, emit.pointer(builder, left, I8), stride)
        _call(builder, "tileloadd64", _RIGHT, emit.pointer(builder, right, I8), line)
        _call(builder, "tilezero", _SUMS)
        _call(builder, "tdpbssd", _SUMS, _LEFT, _RIGHT)
        _call(builder, "tilestored64", _SUMS, emit.pointer(builder, sums, I8), line)

    return emits(types.void(*[types.int64] * 4), code)
