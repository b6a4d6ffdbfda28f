"""The thread pool: every task is done once, whoever asks, however often, from however many threads."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import types

from kit.cpu import threads
from kit.cpu.simd.memory import load, store
from kit.cpu.tasks import task

i64 = types.int64


def _count(task, counters, more):
    """Add ``more`` and the task's number to a counter of the task's own."""
    at = counters + 8 * task
    store(at, load(i64, at) + task + more)


@pytest.fixture(scope="module")
def count():
    return task(lambda: _count)()


@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 64, 5000])
def test_every_task_is_done_once(count, tasks):
    out = np.zeros(5001, np.int64)
    threads.run(count, (out.ctypes.data, 1), tasks)
    assert (out[:tasks] == np.arange(tasks) + 1).all() and not out[tasks:].any()


def test_many_small_jobs_in_a_row(count):
    out = np.zeros(7, np.int64)
    for _ in range(20000):
        threads.run(count, (out.ctypes.data, 1), 7)
    assert (out == 20000 * (np.arange(7) + 1)).all()


def test_threads_that_went_to_sleep_come_back(count):
    out = np.zeros(100, np.int64)
    for _ in range(5):
        time.sleep(0.02)
        threads.run(count, (out.ctypes.data, 1), 100)
    assert (out == 5 * (np.arange(100) + 1)).all()


def test_several_callers_at_once(count):
    def caller(number):
        out = np.zeros(50, np.int64)
        for _ in range(500):
            threads.run(count, (out.ctypes.data, number), 50)
        return (out == 500 * (np.arange(50) + number)).all()

    with ThreadPoolExecutor(5) as pool:
        assert all(pool.map(caller, range(1, 6)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_makes_its_own(count):
    out = np.zeros(50, np.int64)
    threads.run(count, (out.ctypes.data, 1), 50)
    child = os.fork()
    if child == 0:
        try:
            threads.run(count, (out.ctypes.data, 1), 50)
            os._exit(0 if (out == 2 * (np.arange(50) + 1)).all() else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def _seventeen(task, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, out):
    store(out + 8 * task, a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k + 12 * l)
    store(out + 80, m + 2 * n + 3 * o + 4 * p)


def test_every_parameter_arrives():
    out = np.zeros(11, np.int64)
    threads.run(task(lambda: _seventeen)(), (*range(1, 17), out.ctypes.data), 2)
    assert (out[:2] == sum(n * n for n in range(1, 13))).all() and out[10] == 13 + 2 * 14 + 3 * 15 + 4 * 16


def test_more_parameters_than_a_step_holds_are_an_error():
    with pytest.raises(TypeError, match="its number and up to 17 more parameters, not 18"):
        task(lambda: lambda task, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r: None)()


def _double_the_last(task, numbers, count):
    """Append to each row of numbers the double of its last one plus one."""
    row = numbers + 64 * task
    store(row + 8 * count, 2 * load(i64, row + 8 * (count - 1)) + 1)


@pytest.mark.parametrize("tasks", [1, 2, 50])
def test_steps_that_need_nothing_of_one_another_are_one(count, tasks):
    out, program = np.zeros((3, 50), np.int64), threads.Program()
    program.add_together([(count, (row.ctypes.data, 10 * number), tasks) for number, row in enumerate(out)])
    program.add(count, (out.ctypes.data, 1000), 1)
    for times in (1, 2):
        program.run()
        right = np.arange(tasks) + 10 * np.arange(3)[:, None]
        right[0, 0] += 1000
        assert (out[:, :tasks] == times * right).all() and not out[:, tasks:].any()


def test_steps_of_a_program_see_what_those_before_them_wrote():
    numbers, program, double = np.zeros((100, 8), np.int64), threads.Program(), task(lambda: _double_the_last)()
    for count in range(1, 8):
        program.add(double, (numbers.ctypes.data, count), 1 if count == 4 else 100)
    program.run()
    right = 2 ** np.arange(8) - 1
    assert (numbers[0] == right).all() and (numbers[1:, :4] == right[:4]).all()
    assert (numbers[1:, 4:] == right[:4]).all()
    before = time.perf_counter_ns()
    for _ in range(2000):
        numbers[:] = 0
        program.run()
        assert numbers[:, 7].min() == 7
    ends = program.times()()[1]
    assert (np.diff(ends) >= 0).all() and before < ends[0] and ends[-1] <= time.perf_counter_ns()
