"""What shows that a command goes on where standard error is no terminal: a line per step."""

from kit.lab.progress import steps


def test_a_line_for_each_tenth_where_no_terminal_shows_a_bar(capsys):
    assert list(steps(range(3), "quality")) == [0, 1, 2]
    assert capsys.readouterr().err.splitlines() == [f"quality: step {number} of 3" for number in (1, 2, 3)]
    assert len(list(steps(range(100), "compare", unit="format"))) == 100
    assert capsys.readouterr().err.splitlines()[:2] == ["compare: format 1 of 100", "compare: format 11 of 100"]
    assert list(steps(range(3), "quality", progress=False)) == [0, 1, 2] and capsys.readouterr().err == ""


def test_a_terminal_has_the_bar_alone(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    list(steps(range(3), "quality"))
    assert "quality: step" not in capsys.readouterr().err
