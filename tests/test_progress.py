"""What shows that a command goes on where standard error is no terminal: a line when some seconds have passed."""

import itertools

import pytest

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


def test_what_is_short_prints_no_line(capsys):
    assert list(steps(range(3), "quality")) == [0, 1, 2] and capsys.readouterr().err == ""


def test_a_terminal_has_the_bar_alone(capsys, monkeypatch, slow):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    list(steps(range(3), "quality"))
    assert "quality: step" not in capsys.readouterr().err
