"""Processes that are timed alternately; the others are stopped (SIGSTOP), so that their threads do not spin meanwhile.

This module imports nothing of the kit, because a process may run an older checkout.
"""

import os
import signal
import subprocess
import sys
import time

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
