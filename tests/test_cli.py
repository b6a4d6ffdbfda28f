"""The kit command as a whole: help is quick and teaches; expected errors are one line."""

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from kit.errors import KitError
from kit.lab.commands import cli
from kit.system.paths import ROOT


def test_help_imports_nothing_heavy():
    code = "import sys, kit.lab.commands.cli; sys.exit(bool({'numpy', 'torch', 'numba', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def every_command(group=cli.main, path=()):
    for name, command in group.commands.items():
        yield (*path, name), command
        yield from every_command(command, (*path, name)) if isinstance(command, click.Group) else ()


@pytest.mark.parametrize(("path", "command"), [pytest.param(*found, id=" ".join(found[0])) for found in every_command()])
def test_every_command_has_help_with_an_example_and_its_exit_codes(path, command):
    text = CliRunner().invoke(cli.main, [*path, "--help"]).output
    assert re.search(rf"^\s+kit {' '.join(path)}\b", text, re.MULTILINE), "no example"
    assert isinstance(command, click.Group) or re.search(r"Exit code: 0 .+, \d", text.replace("\n", " ")), "no exit codes"
    short = command.get_short_help_str(limit=55)
    assert short.endswith(".") and not short.endswith("..."), f"a list of commands would cut it: {short}"
    for option in command.params:
        assert isinstance(option, click.Argument) or option.help, f"{option.opts[0]} has no help"


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
    from kit.lab import doctor

    rows = [doctor.Check("GPU", "note", "none", "buy one"), doctor.Check("disk", "bad", "full", "free some")]
    monkeypatch.setattr(doctor, "checks", lambda tier, measure: rows)
    result = CliRunner().invoke(cli.main, ["doctor"])
    assert result.exit_code == 1
    assert "-> buy one" in result.output and "BAD   disk" in result.output


def test_doctor_checks_this_machine():
    from kit.cpu import simd
    from kit.lab import doctor

    states = {row.subject: row.state for row in doctor.checks(simd.describe())}
    assert states["Python"] == states["torch"] == "ok"
    tour = re.findall(r"^ {4}(?:ok|note|BAD)  +(.+?)  ", (ROOT / "docs" / "tour.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert tour == list(states)
