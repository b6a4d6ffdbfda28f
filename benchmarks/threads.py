"""The kit's thread pool: a token's products by other pools; and a token on a part of a machine compared with llama.cpp.

On a part of a machine, time and CPU time (seconds of all cores) of a decode of SmolLM2, in turn: who spins while others have
work takes more of the second.
"""

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numba import njit, prange

from benchmarks import decode
from benchmarks._files import fetch
from benchmarks._turns import alternately, running, serve, times
from kit import system
from kit.cpu import threads
from kit.cpu.linear import Activations
from kit.cpu.simd.atomics import call_task
from kit.cpu.threads import Program
from kit.lab.engines import llama_cpp
from kit.lab.exactness import random_blocks

SHAPES = ((2048, 2048), (256, 2048), (256, 2048), (2048, 2048), (5632, 2048), (5632, 2048), (2048, 5632))  # of a layer
LAYERS, FORMAT = 22, "Q4_K"


MODEL, TOGETHER = "smollm2-135m", 4  # threads a core, where there are more than cores
PARTS = {  # of a machine -> how the process is limited, see ``_limit``
    "all cores": {},
    "1 core": {"cores": 1},
    f"{TOGETHER} threads a core": {"threads": TOGETHER * system.usable_cores()},
    "half a core's time": {"quota": 0.5},
    "one core busy": {"busy": True},
}
SIDES = "fused", "fused-int8", decode.PEER


def run(only: str = "", samples: int = 15) -> pd.DataFrame:
    """Rows of ``_pools`` and ``_parts``; ``only``: the parts of a machine so named, and no pools."""
    return pd.DataFrame([*([] if only else _pools(samples)), *_parts(only, samples)]).set_index("what")


def _pools(samples):
    """One row for each way to distribute the same compiled tasks: milliseconds for the products of a tinyllama-1.1b token,
    and the time of the kit's program over that (above 1: faster than the kit's), with its 95 % interval."""
    with running({way: (("-m", "benchmarks.threads", way), {}) for way in WAYS}) as sides:
        seconds = alternately(sides, samples)
    own = next(iter(seconds.values()))
    return [{"what": way, "ms": 1e3 * np.median(taken), **times(own, taken)} for way, taken in seconds.items()]


def _parts(only, samples):
    """Two rows a part and way: milliseconds of a token, and of a core's time; the median of llama.cpp's over them in turn."""
    path = str(fetch(MODEL))
    for part in (part for part in PARTS if only in part):
        with ExitStack() as stack:
            try:
                group = stack.enter_context(_surroundings(**PARTS[part]))
            except OSError as error:
                yield {"what": part, "missed": f"no control group can be made: {error}"}
                continue
            command = "-m", "benchmarks.threads"
            each = {way: ((*command, way, path, part, group), _environment(way)) for way in SIDES}
            sides = stack.enter_context(running(each))
            taken = alternately(sides, samples, lambda side: (side.sample(), side.cpu))
        for place, what in enumerate(("a token", "its CPU time")):
            for way in SIDES:
                seconds, theirs = taken[way][:, place], taken[decode.PEER][:, place]
                row = {"what": f"{what}, {part}, {way}", "ms": 1e3 * np.median(seconds), **times(theirs, seconds)}
                yield row | ({"least": 1.0} if way != decode.PEER else {})


def _environment(way) -> dict[str, str]:
    return llama_cpp.ENVIRONMENT if way == decode.PEER else {}


@contextmanager
def _surroundings(quota=None, busy=False, **_):
    """What a part of a machine needs besides the processes: the folder of a control group with so much of a core's time ("":
    none), and a process that keeps the first of the cores busy."""
    one = "import os\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", one]) if busy else None
    first = Path("/sys/fs/cgroup/cpu").is_dir()  # version 1
    group = Path(f"/sys/fs/cgroup/{'cpu/' * first}kit-{os.getpid()}") if quota else None
    try:
        if group:
            group.mkdir()
            name, told = ("cpu.cfs_quota_us", "{}") if first else ("cpu.max", "{} 100000")
            (group / name).write_text(told.format(int(quota * 100_000)))  # of each 100 ms
        yield str(group or "")
    finally:
        if other:
            other.kill()
            other.wait()
        if group and group.exists():
            group.rmdir()


def _limit(group, cores=None, threads=None, **_):
    """Limit this process to a control group and to so many cores, or give it so many threads."""
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    if cores:
        system.pin(cores)
    if threads:
        os.environ["KIT_THREADS"] = str(threads)
        llama_cpp.usable_cores = lambda: threads


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
        call_task(function, task, words)


@njit(nogil=True)
def _some(function, words, first, last):
    for task in range(first, last):
        call_task(function, task, words)


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


def side(way, path="", part="", group=""):
    """What a process of this benchmark runs: the products of a token, or all of one."""
    if path:
        _limit(group, **PARTS[part])
        return decode.side(json.dumps([way, path, "decode"]))
    program, held = _token()
    steps, one = [(int(step[0]), step[3:].copy(), int(step[1])) for step in program.steps], WAYS[way]

    def run(memory=held):
        program.run() if one is None else [one(*step) for step in steps]

    return run


if __name__ == "__main__":
    serve(side(*sys.argv[1:]))
