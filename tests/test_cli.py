"""The kit command as a whole: help is quick and teaches; expected errors are one line."""

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kit import cli
from kit.errors import KitError


def test_help_imports_nothing_heavy():
    code = "import sys, kit.cli; sys.exit(bool({'numpy', 'torch', 'numba', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_command_has_help_with_an_example():
    for name, command in cli.main.commands.items():
        text = CliRunner().invoke(cli.main, [name, "--help"]).output
        assert re.search(rf"^\s+kit {name}\b", text, re.MULTILINE), f"no example in the help of {name}"
        assert command.get_short_help_str(), name


@pytest.mark.parametrize(
    ("error", "said"),
    [(KitError("a.gguf: bad"), "kit: error: a.gguf: bad\n"), (PermissionError(13, "Permission denied", "/x"), "/x")],
)
def test_an_expected_error_is_one_line_and_exit_code_2(error, said):
    @cli.main.command("raises")
    def raises():
        raise error

    try:
        result = CliRunner().invoke(cli.main, ["raises"])
    finally:
        del cli.main.commands["raises"]
    assert result.exit_code == 2
    assert said in result.output and result.output.count("\n") == 1


def test_a_bug_keeps_its_traceback():
    @cli.main.command("bug")
    def bug():
        raise ZeroDivisionError

    try:
        result = CliRunner().invoke(cli.main, ["bug"])
    finally:
        del cli.main.commands["bug"]
    assert isinstance(result.exception, ZeroDivisionError)


def test_doctor_says_what_to_do(monkeypatch):
    from kit import doctor

    rows = [doctor.Check("GPU", "note", "none", "buy one"), doctor.Check("disk", "bad", "full", "free some")]
    monkeypatch.setattr(doctor, "checks", lambda measure: rows)
    result = CliRunner().invoke(cli.main, ["doctor"])
    assert result.exit_code == 1
    assert "-> buy one" in result.output and "BAD   disk" in result.output


def test_doctor_checks_this_machine():
    from kit import doctor

    states = {row.subject: row.state for row in doctor.checks()}
    assert states["Python"] == states["torch"] == "ok"
