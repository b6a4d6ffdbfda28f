"""What threads need of a CPU: words that several threads read and write, a clock, and the call of a task."""

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kit.cpu.tasks import WORDS

_I64 = ir.IntType(64)
_X86, _ARM = (platform.machine().lower() in names for names in (("x86_64", "amd64"), ("aarch64", "arm64")))


def _word(builder, address):
    return builder.inttoptr(address, _I64.as_pointer())


@intrinsic
def read(_, address):
    """read(address): an int64 that other threads write; what they wrote before it is visible after."""

    def emit(context, builder, signature, args):
        return builder.load_atomic(_word(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def write(_, address, value):
    """write(address, v): v becomes visible to other threads, and with it all that was written before."""

    def emit(context, builder, signature, args):
        builder.store_atomic(args[1], _word(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def add(_, address, value):
    """add(address, v): add v to an int64 in one step; its value before."""

    def emit(context, builder, signature, args):
        return builder.atomic_rmw("add", _word(builder, args[0]), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def exchange(_, address, expected, value):
    """exchange(address, e, v): set an int64 to v if it is e, in one step; its value before."""

    def emit(context, builder, signature, args):
        pair = builder.cmpxchg(_word(builder, args[0]), args[1], args[2], "acq_rel", "acquire")
        return builder.extract_value(pair, 0)

    return types.int64(types.int64, types.int64, types.int64), emit


@intrinsic
def pause(_):
    """pause(): tell the CPU that this thread waits for another."""

    def emit(context, builder, signature, args):
        name, *hint = ("llvm.x86.sse2.pause",) if _X86 else ("llvm.aarch64.hint", ir.Constant(ir.IntType(32), 1))  # yield
        if _X86 or _ARM:
            kind = ir.FunctionType(ir.VoidType(), [number.type for number in hint])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), hint)
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def ticks(_):
    """ticks(): a counter of the CPU that goes up at a constant rate, the same on all cores."""

    def emit(context, builder, signature, args):
        name = "llvm.readcyclecounter" if _X86 else "llvm.readsteadycounter"
        return builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, []), name), [])

    return types.int64(), emit


@intrinsic
def call(_, function, task, arguments):
    """call(function, task, address): call the compiled task with its number and the WORDS int64 at an address.

    A task that names fewer parameters does not see the others: in the C convention of every platform they lie where it does
    not look, and the caller takes them away.
    """

    def emit(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64] * (1 + WORDS))
        first = _word(builder, args[2])
        words = [builder.load(builder.gep(first, [ir.Constant(_I64, n)])) for n in range(WORDS)]
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], *words])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit
