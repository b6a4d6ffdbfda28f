"""The built wheel, installed in an empty environment outside the checkout: commands, data and notebooks are in it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

from kit.lab.paths import ROOT

SOURCES = ("kit", "notebooks", "data", "pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """``run("inspect", ...)``: the wheel's `kit` in a folder of its own -> (exit code, stdout, stderr)."""
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__", "models"))
        else:
            shutil.copy(path, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", base, source], check=True, capture_output=True)
    home = base / "environment"
    venv.create(home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    wheel = next(base.glob("gguf_kit-*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", packages, wheel], check=True, capture_output=True)
    # The dependencies are this environment's; a .pth file in there is not read, so its editable kit stays unseen.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    work = base / "elsewhere"
    work.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "KIT_"))}
    environment |= {"KIT_MODELS": str(base / "models")}

    def command(*arguments):
        done = subprocess.run(
            [home / "bin" / "python", "-c", "from kit.commands.cli import main; main()", *map(str, arguments)],
            cwd=work, env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    command.work = work
    return command


def test_files_are_made_and_inspected(run):
    model = run.work / "model.gguf"
    assert run("synth", "tiny-llama", "-o", model)[0] == 0
    code, out, _ = run("inspect", model)
    assert code == 0 and "llama" in out
    code, out, error = run("explain", model, "--memory", "1MiB")
    assert code == 0 and "token" in out, error


def test_every_notebook_is_in_it_and_one_runs(run):
    code, out, _ = run("reproduce", "--list")
    assert code == 0 and sum(line[:1].isdigit() for line in out.splitlines()) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    code, out, error = run("reproduce", "--profile", "smoke", "--only", "00")
    assert code == 0, error
    assert "kit-results" in out and (run.work / out.strip()).exists()
