"""Threads that stay: a compiled kernel over numbered pieces of work, handed out by counters, without the interpreter.

An ordinary pool wakes a thread in tens of microseconds, as long as a small matrix takes. Here the threads wait for work
inside compiled code: for a fraction of a millisecond on a counter, and only then in the operating system. Each thread
works through a run of pieces of its own, so that it reads memory in one direction, and then helps with the others' runs.
"""

import functools
import os
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from kit.cpu.simd.vectors import jit, source_stamp
from kit.lab.machine import usable_cores

# The board, in bytes: a line of 64 for all, one for the pieces done, and then one for each thread's run of pieces.
_RUNS, _FUNCTION, _ARGUMENTS, _PUT_UP, _AWAKE, _DONE = 0, 8, 16, 24, 32, 64
_RUN, _LINE = 128, 64
_NEXT, _LIMIT, _BASE = 0, 8, 16  # in a run's line
_PATIENCE = 2**14  # looks at the board before a thread goes to sleep: about 0.3 ms
_I64 = ir.IntType(64)


def piecework(function):
    """Compile ``function(arguments, piece)``, two integers, to an address that ``run`` takes; it must not raise."""
    compiled = CFunc(function, (_PIECEWORK.args, _PIECEWORK.return_type), {}, {"error_model": "numpy"})
    try:
        compiled.enable_caching()
        compiled._cache._cache_file._source_stamp = source_stamp(Path(function.__code__.co_filename).parent)
    except RuntimeError:  # nowhere to write to: compile in each process
        pass
    compiled.compile()
    _kept.append(compiled)
    return compiled.address


_PIECEWORK = types.void(types.int64, types.int64)
_kept = []  # machine code lives as long as what compiled it


def run(function: int, arguments: Sequence[int], pieces: int) -> None:
    """Call ``function(address of the arguments, piece)`` once for each piece, on all threads; return when all are done.

    function: an address from ``piecework``; arguments: up to 16 integers, which it finds as int64 in a row. While another
    thread is inside ``run``, the work is done on the caller's thread alone. There are as many threads as the process has
    cores, or KIT_THREADS.
    """
    _crew().run(function, arguments, pieces)


@functools.cache
def count() -> int:
    """Threads of the kit's kernels: ``KIT_THREADS``, else one a core."""
    return int(os.environ.get("KIT_THREADS", 0)) or usable_cores()


@contextmanager
def torch_alone() -> Iterator[None]:
    """The body with torch on the caller's thread only: its other threads wait by spinning, on the cores that ours want."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _crew() -> "_Crew":
    return _Crew(count())


os.register_at_fork(after_in_child=_crew.cache_clear)


class _Crew:
    """The threads besides the caller's, and the board on which they find their work."""

    def __init__(self, threads: int):
        words = _LINE // 8
        room = np.zeros(words * (2 + threads + 1), np.int64)
        self._board = room[-(room.ctypes.data // 8) % words :]  # from the start of a line on
        self._board[_RUNS // 8] = threads
        self._address = self._board.ctypes.data
        self._arguments = np.zeros(16, np.int64)
        self._arguments_address = self._arguments.ctypes.data
        self._helpers = threads - 1
        self._bell, self._busy = SimpleQueue(), threading.Lock()
        _serve(self._address, 0, 0)  # compiled here, once, and not by all threads at a time
        for number in range(1, threads):
            threading.Thread(target=self._work, args=(number,), name=f"kit-{number}", daemon=True).start()

    def _work(self, number):
        while True:
            _serve(self._address, number, _PATIENCE)
            self._bell.get()

    def run(self, function, arguments, pieces):
        if not self._busy.acquire(blocking=False):
            own = np.array(arguments, np.int64)
            _alone(function, own.ctypes.data, pieces)
            return
        try:
            self._arguments[: len(arguments)] = arguments
            if pieces > 1:
                for _ in range(self._helpers - int(self._board[_AWAKE // 8])):
                    self._bell.put(None)
            _lead(self._address, function, self._arguments_address, pieces)
            while not _all_done(self._address, _PATIENCE):
                os.sched_yield()  # a helper in the middle of a piece has lost its core to another process
        finally:
            self._busy.release()


# ---- the board. A run's pieces have tickets that count up for ever: a piece is taken by moving NEXT on, which succeeds
# only below LIMIT; LIMIT moves after all else that the work needs, PUT_UP after every LIMIT, and the work's arguments change
# only after DONE has reached PUT_UP.


@jit
def _lead(board, function, arguments, pieces):
    """Put work up and take part in it until all pieces are taken."""
    write(board + _FUNCTION, function)
    write(board + _ARGUMENTS, arguments)
    runs = read(board + _RUNS)
    for number in range(runs):
        run = board + _RUN + _LINE * number
        first, last = pieces * number // runs, pieces * (number + 1) // runs
        limit = read(run + _LIMIT)
        write(run + _BASE, limit - first)
        write(run + _LIMIT, limit + last - first)
    write(board + _PUT_UP, read(board + _PUT_UP) + pieces)
    _take_all(board, 0)


@jit
def _all_done(board, patience):
    """Wait for the pieces that others took; False after ``patience`` looks."""
    for _ in range(patience):
        if read(board + _DONE) == read(board + _PUT_UP):
            return True
        pause()
    return False


@jit
def _serve(board, number, patience):
    """Work for as long as there is any, and until ``patience`` looks in a row have found none."""
    add(board + _AWAKE, 1)
    looks, seen = 0, -1
    while looks < patience:
        put_up = read(board + _PUT_UP)
        if put_up != seen:  # one word, however many threads and runs there are
            seen = put_up
            _take_all(board, number)
            looks = 0
        else:
            looks += 1
            pause()
    add(board + _AWAKE, -1)


@jit
def _take_all(board, number):
    """Do all of the thread's own pieces and those that the others have not taken yet."""
    runs = read(board + _RUNS)
    for turn in range(number, number + runs):
        run, pieces = board + _RUN + _LINE * (turn % runs), 0
        while _take(board, run):
            pieces += 1
        if pieces:
            add(board + _DONE, pieces)


@jit
def _take(board, run):
    """Take one piece and do it; False when there is none."""
    ticket = read(run + _NEXT)
    while ticket < read(run + _LIMIT):
        seen = exchange(run + _NEXT, ticket, ticket + 1)
        if seen == ticket:
            call(read(board + _FUNCTION), read(board + _ARGUMENTS), ticket - read(run + _BASE))
            return True
        ticket = seen
    return False


@jit
def _alone(function, arguments, pieces):
    for piece in range(pieces):
        call(function, arguments, piece)


# ---- what threads need of a CPU


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
        if platform.machine().lower() in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def call(_, function, arguments, piece):
    """call(function, arguments, piece): the function of ``piecework`` at an address."""

    def emit(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit
