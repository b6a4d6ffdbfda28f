"""The thread pool: runs compiled tasks, which counters hand out without the interpreter; one step, or a program of steps.

An ordinary pool wakes a thread in tens of microseconds, as long as a small matrix takes. Here threads wait inside compiled
code: on a counter for a fraction of a millisecond, and only then in the operating system. A waiting thread yields its core
every 20 us, because there may be more threads than cores. Each thread first does its own run of tasks, so that it reads memory
in one direction, and then helps with the runs of the others.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np

from kit import system
from kit.cpu.tasks import (
    ARGUMENTS,
    AWAKE,
    DONE_AT,
    LINE,
    RUNS,
    TASKS,
    WORDS,
    Argument,
    Arguments,
    Each,
    Static,
    Step,
    Task,
    address_of,
    function,
    task,
)
from kit.system import usable_cores
from kit.system.cores import threads_asked

_PATIENCE = 2**14  # looks at the work queue before a thread goes to sleep: about 0.3 ms


@task
def _of_queue(name: Static):
    """A function of kit.cpu.work_queue."""
    from kit.cpu import work_queue  # and Numba

    return getattr(work_queue, name.value)


class Program:
    """Steps that the threads do one after another without returning to Python. Each step sees what the steps before it wrote.

    ``add`` appends a step; ``set`` changes arguments, and ``steps[i, TASKS]`` the number of tasks, between runs. Memory that is
    an argument lives as long as the program, or until ``set`` puts another in its place.
    """

    TASKS = TASKS

    def __init__(self):
        self.steps, self._tasks = np.zeros((0, ARGUMENTS + WORDS), np.int64), []
        self._held: dict[tuple, object] = {}  # (steps, argument or None for all) -> what their addresses point to

    def add(self, task: Task, arguments: Arguments, tasks: int = 1) -> int:
        """Append a step: call ``task`` (of kit.cpu.tasks) with each number below ``tasks``. Returns the step's index.

        A step with one task, or with -``tasks``, runs on the calling thread and costs no more than the calls.
        """
        self.steps = np.concatenate([self.steps, _rows([(task, arguments, tasks)])])
        self._tasks.append(task)
        self._held[len(self.steps) - 1, None] = arguments
        return len(self.steps) - 1

    def add_together(self, steps: Sequence[Step]) -> int:
        """Append the step ``together`` of these. Returns its index."""
        step = self.add(*together(steps))
        self._held[step, "steps"] = steps
        return step

    def set(self, steps: Sequence[int], **arguments: Argument) -> None:
        """Set these arguments in some steps of one task, for all later runs."""
        for name, argument in arguments.items():
            self.steps[steps, ARGUMENTS + self._tasks[steps[0]].parameters.index(name)] = address_of(argument)
            if not isinstance(argument, int):
                self._held[tuple(steps), name] = argument

    def address(self, step: int, argument: str) -> int:
        """The address of a step's argument, for a task that sets it; valid until another step is added."""
        place = ARGUMENTS + self._tasks[step].parameters.index(argument)
        return self.steps.ctypes.data + self.steps.strides[0] * step + self.steps.strides[1] * place

    def run(self) -> None:
        """Call ``task`` with each number from 0 to ``tasks`` - 1 and the arguments, on all threads; return when all are done.

        arguments: by name, or up to WORDS in order. If another thread is inside ``run``, the calling thread does all
        the work itself. There are as many threads as the process has cores, or KIT_THREADS.
        """
        self.begin()
        self.run_some(slice(None))

    def run_some(self, steps: slice | list[int]) -> None:
        """Do these steps in this order. ``begin`` must come before the first of them; the last of them must include the last
        step of all."""
        rows, started = self.steps[steps], time.perf_counter_ns()
        tick = _pool().run(rows)
        if not self._began:
            self._started, self._first_tick = started, tick
        if isinstance(steps, slice):
            self._began.append((range(len(self.steps))[steps], tick))
        else:  # rows are copies
            self.steps[steps, DONE_AT] = rows[:, DONE_AT]
            self._began.append((steps, tick))
        self._ended = time.perf_counter_ns()

    def begin(self) -> None:
        """Begin a run that consists of several ``run_some``."""
        self._began = []

    def times(self) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """A function that returns (begin, end) of each step of the last run, in nanoseconds of ``time.perf_counter_ns``. A step
        begins with its part of the run, or when the step before it ends."""
        ticks, first, parts = self.steps[:, DONE_AT].copy(), self._first_tick, self._began
        started, took = self._started, self._ended - self._started

        def measured():
            begun = np.empty_like(ticks)
            for steps, tick in parts:
                begun[steps] = [tick, *ticks[steps[:-1]]] if len(steps) else []
            return tuple(started + (at - first) * took // max(1, int(ticks[-1]) - first) for at in (begun, ticks))

        return measured


def run(task: Task, arguments: Arguments, tasks: int) -> None:
    """Call ``task`` with the numbers 0 to ``tasks`` and the arguments, on all threads; return when all are done.

    arguments: by name, or up to WORDS in order. While another thread is inside ``run``,
    the work is done on the caller's thread alone. There are as many threads as the process has cores, or KIT_THREADS.
    """
    run_all([(task, arguments, tasks)])


def run_all(steps: Sequence[Step]) -> None:
    """``run`` for several steps, one after another."""
    _pool().run(_rows(steps))


def together(steps: Sequence[Step]) -> Step:
    """One step that does several steps, none of which needs another's result and whose memory the caller keeps. One with
    ``Each`` among its arguments is as many steps; its number of tasks may be one of these too."""
    rows = np.concatenate([_rows_of_each(*step) for step in steps])
    return _of_queue("one_of"), dict(steps=rows), int(rows[:, TASKS].sum())


def _rows_of_each(task, arguments, tasks):
    """The rows of a step, one but for ``Each``."""
    given = task.in_order(arguments) if isinstance(arguments, dict) else arguments
    each = {
        place: argument.numbers for place, argument in enumerate([tasks, *given], ARGUMENTS - 1) if isinstance(argument, Each)
    }
    each[TASKS] = each.pop(ARGUMENTS - 1, tasks)
    row = _rows([(task, [0 if isinstance(argument, Each) else argument for argument in given], 0)])
    rows = row.repeat(max((len(numbers) for place, numbers in each.items() if place != TASKS), default=1), 0)
    for place, numbers in each.items():
        rows[:, place] = numbers
    return rows


def _rows(steps):
    """The rows of a program."""
    rows = np.zeros((len(steps), ARGUMENTS + WORDS), np.int64)
    for number, (each, arguments, tasks) in enumerate(steps):
        arguments = each.in_order(arguments) if isinstance(arguments, dict) else arguments
        words = [each, tasks, 0, *map(address_of, arguments)]  # FUNCTION, TASKS, DONE_AT, ARGUMENTS
        rows[number, : len(words)] = words
    return rows


@functools.cache
def count() -> int:
    """Number of threads of kit's kernels: ``KIT_THREADS``, else one per core. KitError if the variable is not a number of
    threads."""
    return threads_asked() or usable_cores()


_torch = threading.local()  # ``count``: torch's threads outside of ``torch_alone``


@contextmanager
def torch_alone(alone: bool = True) -> Iterator[None]:
    """Within the ``with``, torch uses only the calling thread, because its others spin on the cores of ours when they are done:
    a prompt of 128 took a quarter longer. Not ``alone``: as many as outside of these, for a product of torch's."""
    import torch

    before, outer = torch.get_num_threads(), getattr(_torch, "count", 0)
    _torch.count = outer or before
    torch.set_num_threads(1 if alone else _torch.count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _torch.count = outer


@functools.cache
def _pool() -> "_Pool":
    return _Pool(count())


system.after_fork(_pool.cache_clear)


class _Pool:
    """The threads besides the caller's, and the work queue that they share."""

    def __init__(self, threads: int):
        words = LINE // 8
        room = np.zeros(words * (2 + threads + 1), np.int64)
        self._queue = room[-(room.ctypes.data // 8) % words :]  # from the start of a line on
        self._queue[RUNS // 8] = threads
        self._address = self._queue.ctypes.data
        self._helpers = threads - 1
        self._bell, self._busy = SimpleQueue(), threading.Lock()
        self._yields = system.yields()
        parameters = {"lead": 4, "serve": 4, "alone": 2, "now": 0}  # compiled here, once, and not by all threads at a time
        self._lead, self._serve, self._alone, self._now = (function(_of_queue(name), n) for name, n in parameters.items())
        for number in range(1, threads):
            threading.Thread(target=self._work, args=(number,), name=f"kit-{number}", daemon=True).start()

    def _work(self, number):
        while True:
            self._serve(self._address, number, _PATIENCE, self._yields)
            self._bell.get()

    def run(self, steps) -> int:
        """Do the steps; the clock at the start."""
        first, count, started = steps.ctypes.data, len(steps), self._now()
        if not self._busy.acquire(blocking=False):
            self._alone(first, count)
            return started
        try:
            if count > 1 or steps[0, TASKS] > 1:
                for _ in range(self._helpers - int(self._queue[AWAKE // 8])):
                    self._bell.put(None)
            self._lead(self._address, first, count, self._yields)
            return started
        finally:
            self._busy.release()
