"""What threads need of a CPU: words that several threads read and write, a clock, and the call of a task."""

import platform

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import I64, emits
from kit.cpu.tasks import WORDS

_X86, _ARM = (platform.machine().lower() in names for names in (("x86_64", "amd64"), ("aarch64", "arm64")))
_i64 = types.int64


def _word(builder, address):
    return emit.pointer(builder, address, I64)


@intrinsic
def read(_, address):
    """read(address): an int64 that other threads write; what they wrote before it is visible after."""
    return emits(_i64(_i64), lambda builder, address: builder.load_atomic(_word(builder, address), "acquire", 8))


@intrinsic
def write(_, address, value):
    """write(address, v): v becomes visible to other threads, and with it all that was written before."""

    def code(builder, address, value):
        builder.store_atomic(value, _word(builder, address), "release", 8)

    return emits(types.void(_i64, _i64), code)


@intrinsic
def add(_, address, value):
    """add(address, v): add v to an int64 in one step; its value before."""

    def code(builder, address, value):
        return builder.atomic_rmw("add", _word(builder, address), value, "acq_rel")

    return emits(_i64(_i64, _i64), code)


@intrinsic
def exchange(_, address, expected, value):
    """exchange(address, e, v): set an int64 to v if it is e, in one step; its value before."""

    def code(builder, address, expected, value):
        return builder.extract_value(builder.cmpxchg(_word(builder, address), expected, value, "acq_rel", "acquire"), 0)

    return emits(_i64(_i64, _i64, _i64), code)


@intrinsic
def pause(_):
    """pause(): tell the CPU that this thread waits for another."""
    name, *hint = ("llvm.x86.sse2.pause",) if _X86 else ("llvm.aarch64.hint", ir.Constant(emit.I32, 1))  # yield
    return emits(types.void(), lambda builder: emit.call(builder, name, emit.VOID, *hint) if _X86 or _ARM else None)


@intrinsic
def ticks(_):
    """ticks(): a counter of the CPU that goes up at a constant rate, the same on all cores."""
    return emits(_i64(), lambda builder: emit.call(builder, f"llvm.read{'cycle' if _X86 else 'steady'}counter", I64))


@intrinsic
def call_task(_, function, task, arguments):
    """call(function, task, address): call the compiled task with its number and the WORDS int64 at an address.

    A task that names fewer parameters does not see the others: in the C convention of every platform they lie where it does
    not look, and the caller takes them away.
    """

    def code(builder, function, task, arguments):
        kind, first = ir.FunctionType(emit.VOID, [I64] * (1 + WORDS)), _word(builder, arguments)
        words = [builder.load(builder.gep(first, [ir.Constant(I64, n)])) for n in range(WORDS)]
        builder.call(emit.pointer(builder, function, kind), [task, *words])

    return emits(types.void(_i64, _i64, _i64), code)
