"""The kit command as a whole: help is quick and teaches; expected errors are one line."""

import ast
import os
import re
import shutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import kit
from kit.errors import KitError, ReportError
from kit.lab.commands import cli
from kit.lab.synthetic.write import cached_model
from kit.system.files import read_text
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


def raising(error):
    """The result of a command that raises an error."""

    @cli.main.command("raises")
    def raises():
        raise error

    try:
        return CliRunner().invoke(cli.main, ["raises"])
    finally:
        del cli.main.commands["raises"]


@pytest.mark.parametrize(
    ("error", "said"),
    [(KitError("a.gguf: bad"), "kit: error: a.gguf: bad\n"), (PermissionError(13, "Permission denied", "/x"), "/x")],
)
def test_an_expected_error_is_one_line_and_exit_code_2(error, said):
    result = raising(error)
    assert result.exit_code == 2
    assert said in result.output and result.output.count("\n") == 1


@pytest.mark.parametrize("error", [
    MemoryError(), MemoryError("Unable to allocate 44.0 MiB for an array"), ImportError("libx.so: failed to map segment"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    OSError(12, "Cannot allocate memory"), RuntimeError("can't start new thread"),
], ids=str)  # fmt: skip
def test_memory_that_ran_out_is_one_line(error, monkeypatch):
    monkeypatch.setattr("kit.system.memory_available", lambda: 5 << 20)
    test_an_expected_error_is_one_line_and_exit_code_2(error, "; 5.00 MiB are free: close other programs, or raise the limit")


def test_no_error_is_more_than_a_line_or_moves_a_terminal_s_cursor():
    named = KitError("a.gguf: \x1b[2Jtensor\n 'x\r\0'\N{RIGHT-TO-LEFT OVERRIDE} " + "y" * 9_999)
    right = r"kit: error: a.gguf: \x1b[2Jtensor 'x\r\x00'\u202e " + "y" * 99
    test_an_expected_error_is_one_line_and_exit_code_2(named, right)


def test_a_word_without_an_end_hides_no_reason():
    """`--linear aaa...` (3,000 times) was 2,000 letters a, without the choices."""
    said = cli._line(f"linear {'a' * 3000!r}: pick exact or int8")
    assert len(said) < 260 and said.endswith("aa': pick exact or int8") and cli._line("b" * 299) == "b" * 299


def test_a_closed_standard_input_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(KitError, match="standard input is closed: name a file"):
        read_text("-", KitError)


def test_a_small_limit_of_addresses_is_seen_and_said(tmp_path):
    resource = pytest.importorskip("resource")

    def run(code, mib=250):
        limit = mib << 20, mib << 20
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))  # fmt: skip

    ran = run("from kit import system; assert system.memory_available() < system.memory_limit() == 250 << 20")
    assert ran.returncode == 0, ran.stderr
    model = cached_model("tiny-llama", "Q4_K_M")
    ran = run(f"from kit.lab.commands.cli import main; main(['generate', {str(model)!r}, '--tokens', '1'])")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1) and "kit: error: out of memory" in ran.stderr, ran.stderr
    ran = run("from kit.lab.commands.cli import main; main(['doctor'])", 690)  # torch ended with std::bad_alloc
    assert ran.returncode == 2 and re.fullmatch("kit: error: out of memory: .* need 800 MiB of address space; .*\n", ran.stderr)
    ran = run(f"from kit.lab.commands.cli import main; main(['inspect', {str(model)!r}])")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), RuntimeError("shapes"), ImportError("cannot import name 'x'")], ids=repr
)
def test_a_bug_keeps_its_traceback(error):
    assert raising(error).exception is error


def test_doctor_says_what_to_do(monkeypatch):
    from kit.lab.measuring import doctor

    rows = [doctor.Check("GPU", "note", "none", "buy one"), doctor.Check("disk", "bad", "full", "free some")]
    monkeypatch.setattr(doctor, "checks", lambda *_: rows)
    result = CliRunner().invoke(cli.main, ["doctor"])
    assert result.exit_code == 1
    assert "-> buy one" in result.output and "BAD   disk" in result.output


def test_doctor_checks_this_machine():
    from kit.cpu import simd
    from kit.cpu.strategies import strategies
    from kit.lab.measuring import doctor

    states = {row.subject: row.state for row in doctor.checks(simd.describe(), strategies())}
    assert states["Python"] == states["torch"] == "ok"
    tour = re.findall(r"^ {4}(?:ok|note|BAD)  +(.+?)  ", (ROOT / "docs" / "tour.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert tour == [subject for subject in states if subject in tour] and len(tour) > 5, "some of its lines, in its order"


def test_importing_kit_sets_no_variable_and_its_own_processes_do():
    """It set two for all code of the process that imported it."""
    bare = {name: value for name, value in os.environ.items() if name not in kit.TORCH_VARIABLES}
    told = f"print({{name: os.environ.get(name) for name in {[*kit.TORCH_VARIABLES]}}})"
    code = {
        "import os, kit, kit.model.weights; kit.LRU; " + told: None,
        "import os, kit; kit.tune_torch(); " + told: "set",
        "import os\nfrom kit.lab.commands.cli import main\ntry: main(['inspect', '--help'])\nexcept SystemExit: " + told: "set",
    }
    for source, expected in code.items():
        done = subprocess.run([sys.executable, "-c", source], env=bare, capture_output=True, text=True, check=True)
        values = {*ast.literal_eval(done.stdout.splitlines()[-1]).values()}
        assert values == ({None} if expected is None else {*kit.TORCH_VARIABLES.values()}), source
    mine = dict.fromkeys(kit.TORCH_VARIABLES, "mine")
    assert ("mine" in subprocess.run([sys.executable, "-c", "import os, kit; kit.tune_torch(); " + told], env=bare | mine,
        capture_output=True, text=True).stdout)  # fmt: skip


def test_a_size_that_is_none_is_refused_before_anything_runs(tmp_path):
    """`memory="lots"` failed after 89 s, where the page first used it."""
    for name, only in (("memory", "07"), ("room", "01"), ("memory", "09")):
        result = CliRunner().invoke(
            cli.main, ["reproduce", "--only", only, "-p", f"{name}=lots", "--out", str(tmp_path / "out")]
        )
        assert result.exit_code == 2 and f"parameter {name}: 'lots' is not a size" in result.stderr
        assert not (tmp_path / "out").exists()
        with pytest.raises(ReportError, match=f"parameter {name}: 'lots'"):
            kit.Session("07_memory_frontier", "smoke", out=str(tmp_path / "run"), **{name: "lots"})
        assert not (tmp_path / "run").exists()


def test_make_lab_needs_what_make_reproduce_installs_and_opens_copies():
    """It installed all of the tests' packages, refused root, and its autosave wrote into the notebooks of the repository."""
    make = shutil.which("make") or pytest.skip("no make on the PATH")
    says = [make, "--dry-run", "--always-make", "--assume-old=pyproject.toml"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}  # under `make test`
    told = {target: subprocess.run([*says, target], cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
            .stdout.splitlines() for target in ("lab", "reproduce")}  # fmt: skip
    assert [line for line in told["lab"] if "install" in line] == [line for line in told["reproduce"] if "install" in line]
    assert "--ServerApp.root_dir=results/lab" in told["lab"][-1] and "cp $each results/lab" in "".join(told["lab"])
    assert ("--allow-root" in told["lab"][-1]) == (os.geteuid() == 0)
