"""The thread pool: compiled tasks, numbered, handed out by counters without the interpreter; one step, or a program of steps.

An ordinary pool wakes a thread in tens of microseconds, as long as a small matrix takes. Here the threads wait for work
inside compiled code: for a fraction of a millisecond on a counter, and only then in the operating system. Each thread
works through a run of tasks of its own, so that it reads memory in one direction, and then helps with the others' runs.
"""

import functools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np
from numba.types import int64

from kit.cpu.simd.atomics import WORDS, add, call, exchange, pause, read, ticks, write
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import jit
from kit.lab.machine import usable_cores

# The board, in bytes: a line of 64 for all, one for the tasks done, and then one for each thread's run of tasks.
_RUNS, _STEP, _PUT_UP, _AWAKE, _DONE = 0, 8, 24, 32, 64
_RUN, _LINE = 128, 64
_NEXT, _LIMIT, _BASE = 0, 8, 16  # in a run's line
_PATIENCE = 2**14  # looks at the board before a thread goes to sleep: about 0.3 ms

# A step, in words: what to call, for how many tasks, the clock when they were done, and the arguments.
_FUNCTION, _TASKS, _DONE_AT, _ARGUMENTS = 0, 1, 2, 3
_STEP_BYTES = 8 * (_ARGUMENTS + WORDS)


class Program:
    """Steps that the threads do one after another without coming back to Python: each step sees what those before it wrote.

    ``add`` appends a step; ``steps[i, ARGUMENT + n]`` and ``steps[i, TASKS]`` may be changed between runs.
    """

    TASKS, ARGUMENT = _TASKS, _ARGUMENTS

    def __init__(self):
        self.steps = np.zeros((0, _ARGUMENTS + WORDS), np.int64)

    def add(self, function: int, arguments: Sequence[int], tasks: int = 1) -> int:
        """Call ``function`` (an address from kit.cpu.tasks) with each number below ``tasks``; the step's index.

        One task, or -``tasks`` of them, run on the caller's thread and cost no more than the calls.
        """
        self.steps = np.concatenate([self.steps, _step(function, arguments, tasks)])
        return len(self.steps) - 1

    def run(self) -> None:
        """Do all steps."""
        self.started = time.perf_counter_ns()
        self._first_tick = _pool().run(self.steps)
        self._ended = time.perf_counter_ns()

    def ends(self) -> np.ndarray:
        """When each step of the last run was done, nanoseconds of ``time.perf_counter_ns``; it began at ``started``."""
        passed = self.steps[:, _DONE_AT] - self._first_tick
        return self.started + passed * (self._ended - self.started) // max(1, int(passed[-1]))


def run(function: int, arguments: Sequence[int], tasks: int) -> None:
    """Call ``function(task, *arguments)`` once for each task, on all threads; return when all are done.

    function: an address from ``kit.cpu.tasks``; arguments: up to WORDS integers. While another thread is inside ``run``,
    the work is done on the caller's thread alone. There are as many threads as the process has cores, or KIT_THREADS.
    """
    _pool().run(_step(function, arguments, tasks))


def _step(function, arguments, tasks):
    """One row of a program's steps."""
    step = np.zeros((1, _ARGUMENTS + WORDS), np.int64)
    step[0, _FUNCTION], step[0, _TASKS] = function, tasks
    step[0, _ARGUMENTS : _ARGUMENTS + len(arguments)] = arguments
    return step


@functools.cache
def count() -> int:
    """Threads of the kit's kernels: ``KIT_THREADS``, else one a core."""
    return int(os.environ.get("KIT_THREADS", 0)) or usable_cores()


@contextmanager
def torch_alone() -> Iterator[None]:
    """The body with torch on the caller's thread only: its other threads wait by spinning, on the cores that ours want."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _pool() -> "_Pool":
    return _Pool(count())


os.register_at_fork(after_in_child=_pool.cache_clear)


class _Pool:
    """The threads besides the caller's, and the board on which they find their work."""

    def __init__(self, threads: int):
        words = _LINE // 8
        room = np.zeros(words * (2 + threads + 1), np.int64)
        self._board = room[-(room.ctypes.data // 8) % words :]  # from the start of a line on
        self._board[_RUNS // 8] = threads
        self._address = self._board.ctypes.data
        self._helpers = threads - 1
        self._bell, self._busy = SimpleQueue(), threading.Lock()
        _serve(self._address, 0, 0)  # compiled here, once, and not by all threads at a time
        for number in range(1, threads):
            threading.Thread(target=self._work, args=(number,), name=f"kit-{number}", daemon=True).start()

    def _work(self, number):
        while True:
            _serve(self._address, number, _PATIENCE)
            self._bell.get()

    def run(self, steps) -> int:
        """Do the steps; the clock at the start."""
        first, count, started = steps.ctypes.data, len(steps), _now()
        if not self._busy.acquire(blocking=False):
            _alone(first, count)
            return started
        try:
            if count > 1 or steps[0, _TASKS] > 1:
                for _ in range(self._helpers - int(self._board[_AWAKE // 8])):
                    self._bell.put(None)
            at = _lead(self._address, first, 0, count, _PATIENCE)
            while at <= count:
                os.sched_yield()  # a helper in the middle of a task has lost its core to another process
                at = _lead(self._address, first, at, count, _PATIENCE)
            return started
        finally:
            self._busy.release()


# ---- the board. A run's tasks have tickets that count up for ever: a task is taken by moving NEXT on, which succeeds
# only below LIMIT; LIMIT moves after all else that the work needs, PUT_UP after every LIMIT, and STEP changes only after
# DONE has reached PUT_UP.


@jit
def _lead(board, steps, at, count, patience):
    """Go on with a program of which ``at`` steps have been put up: how many have been then, where the threads' tasks take
    longer than ``patience`` looks, and count + 1 when all is done."""
    while _all_done(board, patience):
        if at:
            store(steps + (at - 1) * _STEP_BYTES + 8 * _DONE_AT, ticks())
        while at < count and load(int64, steps + at * _STEP_BYTES + 8 * _TASKS) <= 1:
            _do_alone(steps + at * _STEP_BYTES)
            at += 1
        if at == count:
            return count + 1
        _put_up(board, steps + at * _STEP_BYTES)
        _take_all(board, 0)
        at += 1
    return at


@jit
def _put_up(board, step):
    """Give every run its share of a step's tasks."""
    write(board + _STEP, step)
    runs, tasks = read(board + _RUNS), load(int64, step + 8 * _TASKS)
    for number in range(runs):
        run = board + _RUN + _LINE * number
        first, last = tasks * number // runs, tasks * (number + 1) // runs
        limit = read(run + _LIMIT)
        write(run + _BASE, limit - first)
        write(run + _LIMIT, limit + last - first)
    write(board + _PUT_UP, read(board + _PUT_UP) + tasks)


@jit
def _all_done(board, patience):
    """Wait for the tasks that others took; False after ``patience`` looks."""
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
    """Do all of the thread's own tasks and those that the others have not taken yet."""
    runs = read(board + _RUNS)
    for turn in range(number, number + runs):
        run, tasks = board + _RUN + _LINE * (turn % runs), 0
        while _take(board, run):
            tasks += 1
        if tasks:
            add(board + _DONE, tasks)


@jit
def _take(board, run):
    """Take one task and do it; False when there is none."""
    ticket = read(run + _NEXT)
    while ticket < read(run + _LIMIT):
        seen = exchange(run + _NEXT, ticket, ticket + 1)
        if seen == ticket:
            step = read(board + _STEP)
            call(load(int64, step + 8 * _FUNCTION), ticket - read(run + _BASE), step + 8 * _ARGUMENTS)
            return True
        ticket = seen
    return False


@jit
def _do_alone(step):
    """All tasks of a step on this thread."""
    for number in range(abs(load(int64, step + 8 * _TASKS))):
        call(load(int64, step + 8 * _FUNCTION), number, step + 8 * _ARGUMENTS)
    store(step + 8 * _DONE_AT, ticks())


@jit
def _alone(steps, count):
    for step in range(count):
        _do_alone(steps + step * _STEP_BYTES)


@jit
def _now():
    return ticks()
