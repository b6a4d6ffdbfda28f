"""The kit's thread pool beside Numba's own threads and a plain pool, on the products of one decoded token."""

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import torch
from numba import njit, prange

from kit.cpu import threads
from kit.cpu.linear import Activations
from kit.cpu.simd.atomics import call
from kit.cpu.threads import Program
from kit.lab import measure
from kit.quants.exactness import random_blocks

SHAPES = ((2048, 2048), (256, 2048), (256, 2048), (2048, 2048), (5632, 2048), (5632, 2048), (2048, 5632))  # of a layer
LAYERS, FORMAT = 22, "Q4_K"


def run(samples: int = 9) -> pd.DataFrame:
    """One row a way to share the same compiled tasks out: milliseconds for a tinyllama-1.1b token's products, and the time of
    the kit's program over it in samples taken in turn (above 1: the way is faster than the kit's)."""
    program, held = _token()
    steps = [(int(step[0]), step[3:].copy(), int(step[1])) for step in program.steps]
    ways = {
        "program of the kit's pool": program.run,
        "the kit's pool, a step at a time": lambda: [threads.run(function, words, tasks) for function, words, tasks in steps],
        "Numba's prange": lambda: [_shared(function, words.ctypes.data, tasks) for function, words, tasks in steps],
        "ThreadPoolExecutor": functools.partial(_plain, ThreadPoolExecutor(threads.count()), steps),
    }
    rows = []
    for name, way in ways.items():
        pair = measure.compare(program.run, way, samples)
        rows.append({"what": name, "ms": pair.b.median * 1e3, "ratio": 1 / pair.ratio})
    del held
    return pd.DataFrame(rows).set_index("what")


def _token():
    """A program of the products of a token, and the memory that it reads: every layer has matrices of its own."""
    program, held = Program(), []
    pool = random_blocks(FORMAT, 4096)
    for _ in range(LAYERS):
        for rows, columns in SHAPES:
            blocks = np.resize(pool, (rows * columns // 256, pool.shape[1])).reshape(rows, -1).copy()
            held += [blocks, Activations(torch.randn(1, columns)), torch.empty(1, rows)]
            for step in held[-2].product(blocks, FORMAT, held[-1], "int8"):
                program.add(*step)
    return program, held


@njit(parallel=True, nogil=True)
def _shared(function, words, tasks):
    for task in prange(tasks):
        call(function, task, words)


@njit(nogil=True)
def _some(function, words, first, last):
    for task in range(first, last):
        call(function, task, words)


def _plain(pool, steps):
    """Each step's tasks in as many equal parts as there are threads."""
    count = threads.count()
    for function, words, tasks in steps:
        ends = [tasks * part // count for part in range(count + 1)]
        some = functools.partial(_some, function, words.ctypes.data)
        list(pool.map(some, ends[:-1], ends[1:]))
