"""What shows that a command goes on where standard error is no terminal: a line when some seconds have passed."""

import itertools
import time

import pytest

from kit.lab import progress
from kit.lab.progress import steps


@pytest.fixture
def slow(monkeypatch):
    """Each look at the clock is two seconds after the last."""
    clock = itertools.count(step=2.0)
    monkeypatch.setattr("kit.lab.progress.time.monotonic", lambda: next(clock))


def test_lines_some_seconds_apart_where_no_terminal_shows_a_bar(capsys, slow):
    assert list(steps(range(7), "quality")) == list(range(7))
    assert capsys.readouterr().err.splitlines() == ["quality: step 3 of 7", "quality: step 6 of 7"]
    assert list(steps(range(7), "quality", progress=False)) == list(range(7)) and capsys.readouterr().err == ""


def test_rounds_beyond_those_asked_say_why(capsys, slow):
    """On a busy machine it said "round 8 of 5"."""
    tell = progress.lines("speeds", "round", 5)
    for number in range(8):
        tell(number)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "speeds: round 3 of 5"
    assert second == "speeds: round 6, because other processes disturbed some of 5"


def test_what_is_short_prints_no_line(capsys):
    assert list(steps(range(3), "quality")) == [0, 1, 2] and capsys.readouterr().err == ""


def test_a_terminal_has_the_bar_alone(capsys, monkeypatch, slow):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    list(steps(range(3), "quality"))
    assert "quality: step" not in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_waited_for_is_counted_on_a_terminal_and_then_gone(capsys, monkeypatch, terminal):
    """`kit generate` compiled for minutes without a word."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr(progress, "_DELAY", 0.01)
    told = ""
    with progress.waiting("compiling"):
        for _ in range(200 if terminal else 3):
            told += capsys.readouterr().err
            if told:
                break
            time.sleep(0.01)
    cleared = capsys.readouterr().err
    assert told.startswith("\rcompiling, 0 s") == terminal and bool(told + cleared) == terminal
    assert not terminal or (cleared.endswith("\r") and not cleared.rpartition("\r")[0].rpartition("\r")[2].strip())
