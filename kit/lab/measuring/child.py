"""A function in a process of its own, under other variables or a limit of memory."""

import importlib
import json
import subprocess
import sys

from kit import tune_torch
from kit.errors import KitError, ReportError
from kit.system import python


class Ended(ReportError):
    """A process without an answer: its exit ``code`` (of a signal that ended it: less than 0), and the last that it said."""

    def __init__(self, done: subprocess.CompletedProcess):
        self.code = done.returncode
        said = done.stderr.strip().splitlines() or ["killed" if self.code < 0 else "no answer"]
        super().__init__(f"ended with {self.code}: {said[-1][-300:]}")


def command(function, *arguments) -> list[str]:
    """The command of a process that prints what ``function(*arguments)`` returns, as ``call`` has it."""
    return python.running(__name__, function.__module__, function.__name__, json.dumps(arguments))


def call(function, *arguments, run=subprocess.run, **how):
    """What ``function(*arguments)`` returns, both plain data (JSON), from a new process that ``run`` starts as ``how`` says
    (arguments of subprocess.run). Ended where it fails, or its last line is no answer."""
    done = run(command(function, *arguments), capture_output=True, text=True, **how)
    if done.returncode:
        raise Ended(done)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):  # it left without a word, or something else spoke last
        raise Ended(done) from None


if __name__ == "__main__":
    tune_torch()
    try:
        module, name, arguments = sys.argv[1:]
        print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(arguments))))
    except (KitError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
