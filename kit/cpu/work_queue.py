"""The compiled side of kit.cpu.threads: the work queue, from which threads take the tasks of a step, by work stealing.

The queue is a few words of memory that all threads share. A step's tasks are divided into as many runs as there are threads.
Each task of a run has a ticket, a number that is never used again. A thread takes the task NEXT of a run by adding one to NEXT,
which is allowed while NEXT is below LIMIT. BASE is what to subtract from a ticket for the task's number within its step.

The order of the writes keeps a thread from doing a task of a wrong step:

1. STEP, the address of the step, is written only when all tasks given out so far are done: DONE equals GIVEN.
2. Each run's BASE is written, and then its LIMIT, which makes the run's tasks free to be taken.
3. GIVEN, the number of all tasks given out so far, is written last; idle threads look for work when it has changed.
"""

from numba.types import int64

from kit.cpu.simd.atomics import add, call_task, exchange, pause, read, ticks, write
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import inner
from kit.cpu.tasks import ARGUMENTS, AWAKE, BASE, DONE, DONE_AT, FUNCTION, GIVEN, LIMIT, LINE, NEXT, RUNS, STEP, TASKS, WORDS

STEP_BYTES = 8 * (ARGUMENTS + WORDS)
YIELDS = 2**10  # looks between two times that a waiting thread lets others have its core: about 20 us


def lead(queue, steps, count, yields):
    """Do a program of ``count`` steps; of each step, do the tasks that the other threads do not take."""
    for step in range(steps, steps + count * STEP_BYTES, STEP_BYTES):
        if load(int64, step + 8 * TASKS) <= 1:
            _do_alone(step)
            continue
        _give_out(queue, step)
        _take_all(queue, 0)
        looks = 0
        while read(queue + DONE) != read(queue + GIVEN):  # what others took, one of whom may have lost its core
            looks += 1
            _wait(queue, looks, yields)
        store(step + 8 * DONE_AT, ticks())


@inner
def _wait(queue, looks, yields):
    """Between two looks: sometimes yield the core, because the thread for which all wait may need it."""
    if looks % YIELDS:
        pause()
    else:
        call_task(yields, 0, queue)


@inner
def _give_out(queue, step):
    """Give every run its share of a step's tasks."""
    write(queue + STEP, step)
    runs, tasks = read(queue + RUNS), load(int64, step + 8 * TASKS)
    for number in range(runs):
        run = queue + LINE * (2 + number)
        first, last = tasks * number // runs, tasks * (number + 1) // runs
        limit = read(run + LIMIT)
        write(run + BASE, limit - first)
        write(run + LIMIT, limit + last - first)
    write(queue + GIVEN, read(queue + GIVEN) + tasks)


def serve(queue, number, patience, yields):
    """Work while there is any, until ``patience`` looks in a row found none."""
    add(queue + AWAKE, 1)
    looks, seen = 0, -1
    while looks < patience:
        given = read(queue + GIVEN)
        if given != seen:  # one word, however many threads and runs there are
            seen = given
            _take_all(queue, number)
            looks = 0
        else:
            looks += 1
            _wait(queue, looks, yields)
    add(queue + AWAKE, -1)


@inner
def _take_all(queue, number):
    """Do all tasks of this thread's run, then those that other threads have not taken."""
    runs = read(queue + RUNS)
    for turn in range(number, number + runs):
        run, tasks = queue + LINE * (2 + turn % runs), 0
        while _take(queue, run):
            tasks += 1
        if tasks:
            add(queue + DONE, tasks)


@inner
def _take(queue, run):
    """Take one task and do it; False if there is none."""
    ticket = read(run + NEXT)
    while ticket < read(run + LIMIT):
        seen = exchange(run + NEXT, ticket, ticket + 1)
        if seen == ticket:
            step = read(queue + STEP)
            call_task(load(int64, step + 8 * FUNCTION), ticket - read(run + BASE), step + 8 * ARGUMENTS)
            return True
        ticket = seen
    return False


@inner
def _do_alone(step):
    """Do all tasks of a step on this thread."""
    for number in range(abs(load(int64, step + 8 * TASKS))):
        call_task(load(int64, step + 8 * FUNCTION), number, step + 8 * ARGUMENTS)
    store(step + 8 * DONE_AT, ticks())


def one_of(task, steps):
    """A task that is several steps; its number counts through the tasks of all of them."""
    step, tasks = steps, load(int64, steps + 8 * TASKS)
    while task >= tasks:
        task, step = task - tasks, step + STEP_BYTES
        tasks = load(int64, step + 8 * TASKS)
    call_task(load(int64, step + 8 * FUNCTION), task, step + 8 * ARGUMENTS)


def alone(steps, count):
    for step in range(count):
        _do_alone(steps + step * STEP_BYTES)


def now():
    return ticks()
