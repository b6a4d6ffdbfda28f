"""A function in a process of its own: what comes back, and how each end of the process is told."""

import atexit
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.errors import ReportError
from kit.lab.measuring import child
from kit.system.paths import ROOT


def ask(function, *arguments, **how):
    """``child.call`` of a function of this module."""
    places = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    return child.call(function, *arguments, env=os.environ | {"PYTHONPATH": places} | how.pop("env", {}), **how)


def told(*arguments):
    print("what a library says\nin two lines")
    print("and warns of", file=sys.stderr)
    return {"process": os.getpid(), "arguments": arguments, "unknown": math.nan, "variable": os.environ.get("TOLD")}


def refused(text):
    raise ReportError(text)


def without_memory():
    raise MemoryError("so much")


def broken():
    return [][0]


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def left(code):
    os._exit(code)


def spoken_over():
    atexit.register(print, "bye")
    return 1


def no_plain_data():
    return {1, 2}


def test_arguments_and_answer_are_plain_data_of_another_process():
    found = ask(told, "a", [1, 2.5], {"b": None}, env={"TOLD": "yes"})
    assert found.pop("process") != os.getpid() and math.isnan(found.pop("unknown"))
    assert found == {"arguments": ["a", [1, 2.5], {"b": None}], "variable": "yes"}


def test_it_runs_as_it_is_told():
    asked = []

    def run(command, **how):
        asked.append((command[:3], how.pop("cwd")))
        return subprocess.run(command, **how)

    assert ask(told, run=run, cwd="/")["arguments"] == []
    assert asked == [([sys.executable, "-P", "-c"], "/")]
    with pytest.raises(subprocess.TimeoutExpired):
        ask(told, timeout=1e-3)


@pytest.mark.parametrize("function, arguments, code, says", [
    (refused, ("no rights",), 1, "ended with 1: ReportError: no rights"),
    (without_memory, (), 1, "ended with 1: MemoryError: so much"),
    (broken, (), 1, "ended with 1: IndexError: list index out of range"),
    (no_plain_data, (), 1, "ended with 1: TypeError: Object of type set is not JSON serializable"),
    (killed, (), -signal.SIGKILL, "ended with -9: killed"), (left, (7,), 7, "ended with 7: no answer"),
    (left, (0,), 0, "ended with 0: no answer"), (spoken_over, (), 0, "ended with 0: no answer"),
])  # fmt: skip
def test_every_other_end_is_one_error(function, arguments, code, says):
    with pytest.raises(child.Ended) as ended:
        ask(function, *arguments)
    assert ended.value.code == code and str(ended.value) == says and isinstance(ended.value, ReportError)
