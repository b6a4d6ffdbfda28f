"""Memory in Numba kernels. An address is an int64 (array.ctypes.data). It needs no alignment unless the primitive says so."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import emits
from kit.cpu.simd.vectors import broadcast, extract, f32x16, inner, llvm_type


@intrinsic
def load(_, kind, address):
    """load(u8x16, address), load(float32, address): the vector or number at an address."""
    result = kind.instance_type
    llvm = llvm_type(result)
    return emits(result(kind, types.int64), lambda builder, _, at: builder.load(emit.pointer(builder, at, llvm), align=1))


@intrinsic
def store(_, address, value):
    """store(address, v): a vector or a number."""

    def code(builder, address, value):
        builder.store(value, emit.pointer(builder, address, value.type), align=1)

    return emits(types.void(types.int64, value), code)


@intrinsic
def stream(_, address, vector):
    """stream(address, v): a non-temporal store, past the caches. The address is a multiple of the vector's bytes."""
    nbytes = vector.lanes * vector.element.bitwidth // 8

    def code(builder, address, value):
        stored = builder.store(value, emit.pointer(builder, address, value.type), align=nbytes)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(emit.I32, 1)]))

    return emits(types.void(types.int64, vector), code)


def _prefetch(locality: int, written: bool = False):
    def code(builder, address):
        how, near, data = (ir.Constant(emit.I32, number) for number in (int(written), locality, 1))
        emit.call(builder, "llvm.prefetch.p0", emit.VOID, emit.pointer(builder, address, emit.I8), how, near, data)

    return emits(types.void(types.int64), code)


@intrinsic
def prefetch(_, address):
    """prefetch(address): start to load the cache line at any address."""
    return _prefetch(3)


@intrinsic
def prefetch_far(_, address):
    """prefetch_far(address): the same, to the second-level cache alone."""
    return _prefetch(2)


@intrinsic
def prefetch_written(_, address):
    """prefetch_written(address): the same for a line that is going to be written."""
    return _prefetch(2, written=True)


@intrinsic
def fence(_):
    """fence(): streamed stores become visible to other threads before any later store."""
    return emits(types.void(), lambda builder: builder.fence("seq_cst"))


def stack(nbytes: int):
    """A primitive: the address of ``nbytes`` that exist until the calling function returns; a multiple of 64."""

    @intrinsic
    def address(_):
        def code(builder):
            with builder.goto_entry_block():  # a loop around the call must not take more at every turn
                memory = builder.alloca(ir.ArrayType(emit.I8, nbytes))
            memory.align = 64
            return builder.ptrtoint(memory, emit.I64)

        return emits(types.int64(), code)

    return address


@inner
def copy(source, nbytes, target):
    """Copy a few bytes."""
    for i in range(nbytes):
        store(target + i, load(types.uint8, source + i))


_sixteen = stack(64)


@inner
def _few(address, count):
    scratch = _sixteen()
    store(scratch, broadcast(f32x16, 0))
    for i in range(count):
        store(scratch + 4 * i, load(types.float32, address + 4 * i))
    return load(f32x16, scratch)


@inner(forceinline=True)
def some(address, count):
    """Sixteen float32 at an address; those from ``count`` on are zero and are not read."""
    return load(f32x16, address) if count >= 16 else _few(address, count)


@inner(forceinline=True)
def put(address, vector, count):
    """Store the first ``count`` of sixteen float32; all of them if ``count`` is larger."""
    if count >= 16:
        store(address, vector)
    else:
        for i in range(count):
            store(address + 4 * i, extract(vector, i))
