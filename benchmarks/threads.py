"""The kit's thread pool beside Numba's own threads and a plain pool, on the products of one decoded token."""

import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pandas as pd
import torch
from numba import njit, prange

from benchmarks._turns import Side, serve
from kit.cpu import threads
from kit.cpu.linear import Activations
from kit.cpu.simd.atomics import call
from kit.cpu.threads import Program
from kit.lab import measure
from kit.quants.exactness import random_blocks

SHAPES = ((2048, 2048), (256, 2048), (256, 2048), (2048, 2048), (5632, 2048), (5632, 2048), (2048, 5632))  # of a layer
LAYERS, FORMAT = 22, "Q4_K"


def run(samples: int = 15) -> pd.DataFrame:
    """One row for each way to distribute the same compiled tasks: milliseconds for the products of a tinyllama-1.1b token,
    and the time of the kit's program over that (above 1: faster than the kit's), with its 95 % interval."""
    with ExitStack() as stack:
        sides = {way: stack.enter_context(Side("-m", "benchmarks.threads", way)) for way in WAYS}
        seconds = pd.DataFrame([{way: side.sample() for way, side in sides.items()} for _ in range(samples)])
    rows = []
    for way in WAYS:
        ratios = seconds.iloc[:, 0] / seconds[way]
        low, high = measure.interval_of(ratios) if way != seconds.columns[0] else (1.0, 1.0)
        rows.append({"what": way, "ms": seconds[way].median() * 1e3, "ratio": ratios.median(), "low": low, "high": high})
    return pd.DataFrame(rows).set_index("what")


def _token():
    """(a program of the products of a token, the memory that it reads); every layer has its own matrices."""
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


def _plain(pool, function, words, tasks):
    """Run a step's tasks in equal parts, one for each thread."""
    count = threads.count()
    ends = [tasks * part // count for part in range(count + 1)]
    list(pool.map(functools.partial(_some, function, words.ctypes.data), ends[:-1], ends[1:]))


WAYS = {  # name -> how it does one step of the token; None: all steps as one program
    "program of the kit's pool": None,
    "the kit's pool, a step at a time": threads.run,
    "Numba's prange": lambda function, words, tasks: _shared(function, words.ctypes.data, tasks),
    "ThreadPoolExecutor": functools.partial(_plain, ThreadPoolExecutor(threads.count())),
}


def side(way):
    """What a process of this benchmark runs: the products of a token."""
    program, held = _token()
    steps, one = [(int(step[0]), step[3:].copy(), int(step[1])) for step in program.steps], WAYS[way]

    def run(memory=held):
        program.run() if one is None else [one(*step) for step in steps]

    return run


if __name__ == "__main__":
    serve(side(*sys.argv[1:]))
