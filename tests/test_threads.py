"""The threads that stay: every piece is done once, whoever asks, however often, from however many threads."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import types

from kit.cpu import threads
from kit.cpu.simd.memory import load, store

i64 = types.int64


def _count(arguments, piece):
    """Add one, and the piece's number, to a counter of the piece's own."""
    at = load(i64, arguments) + 8 * piece
    store(at, load(i64, at) + piece + load(i64, arguments + 8))


@pytest.fixture(scope="module")
def count():
    return threads.piecework(_count)


@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 64, 5000])
def test_every_piece_is_done_once(count, pieces):
    out = np.zeros(5001, np.int64)
    threads.run(count, (out.ctypes.data, 1), pieces)
    assert (out[:pieces] == np.arange(pieces) + 1).all() and not out[pieces:].any()


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
