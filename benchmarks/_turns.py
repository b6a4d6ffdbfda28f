"""Processes that are timed alternately; the others are stopped (SIGSTOP), so that their threads do not spin meanwhile.

To import this module imports nothing of the kit, because a process may run an older checkout.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

LEAST = 0.3  # seconds of a sample


class Side:
    """A process that runs ``serve``, as command and environment say; it is stopped while it is not asked. ``cpu``: seconds of
    all its threads for a pass of the last sample."""

    def __init__(self, *command, **environment):
        self._process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
        )
        self._answer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def _answer(self) -> float:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        self._process.send_signal(signal.SIGSTOP)
        seconds, self.cpu = map(float, line.split())
        return seconds

    def sample(self) -> float:
        """Seconds a pass."""
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()


@contextmanager
def running(commands: dict[str, tuple[tuple, dict]]) -> Iterator[dict[str, Side]]:
    """Name -> Side of its command and environment, until the ``with`` ends."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Side(*words, **environment)) for name, (words, environment) in commands.items()}


def alternately(sides: dict[str, Side], rounds: int, take: Callable = lambda side: side.sample()) -> dict[str, np.ndarray]:
    """Name -> what ``take`` returns of its side in each round; every other round is backwards, because who comes first after
    another engine is slower."""
    taken = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            taken[name].append(take(sides[name]))
    return {name: np.array(each) for name, each in taken.items()}


def times(theirs: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    """How many times as fast as theirs ours are, by their rounds (above 1: faster): the median and its 95 % interval."""
    from kit.lab.measuring.measure import interval_of

    low, high = interval_of(theirs / ours)
    return {"ratio": float(np.median(theirs / ours)), "low": low, "high": high}


def serve(one):
    """Answer each line of the input with the seconds of ``one()``; the first answer comes when all is warm."""
    one()
    started = time.perf_counter()
    one()
    passes = max(1, round(LEAST / (time.perf_counter() - started)))
    print(0.0, 0.0, flush=True)
    for _ in sys.stdin:
        if passes > 1:
            one()  # the threads wake up, and what the others put in the caches is replaced
        started, used = time.perf_counter(), time.process_time()
        for _ in range(passes):
            one()
        print((time.perf_counter() - started) / passes, (time.process_time() - used) / passes, flush=True)
