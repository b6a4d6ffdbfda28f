"""The kit installed in an empty environment, as a wheel and as an editable checkout: what is in it, where it is found."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

from kit.system.paths import ROOT

SOURCES = ("kit", "notebooks", "data", "pyproject.toml", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def checkout(folder):
    """A copy of the checkout as `git clone` makes it."""
    folder.mkdir(parents=True)
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__", "models"))
        else:
            shutil.copy(path, folder)
    return folder


def environment(home, what):
    """An environment with `what` installed by pip."""
    venv.create(home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    subprocess.run([*PIP, "--python", home / "bin" / "python", "install", "--no-deps", *what], check=True, capture_output=True)
    # The dependencies are this environment's; a .pth file in there is not read, so its editable kit stays unseen.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return home / "bin" / "python"


def outside():
    """The variables of a shell that knows nothing of this checkout."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "KIT_"))}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """``run("inspect", ...)``: the wheel's `kit` in a folder of its own -> (exit code, stdout, stderr)."""
    base = tmp_path_factory.mktemp("wheel")
    source = checkout(base / "source")
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", base, source], check=True, capture_output=True)
    python = environment(base / "environment", [next(base.glob("gguf_kit-*.whl"))])
    work = base / "elsewhere"
    work.mkdir()

    def command(*arguments):
        done = subprocess.run(
            [python, "-c", "from kit.lab.commands.cli import main; main()", *map(str, arguments)],
            cwd=work, env=outside() | {"KIT_MODELS": str(base / "models")}, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    command.work = work
    return command


@pytest.mark.slow
def test_files_are_made_and_inspected(run):
    model = run.work / "model.gguf"
    assert run("synth", "tiny-llama", "-o", model)[0] == 0
    code, out, _ = run("inspect", model)
    assert code == 0 and "llama" in out
    code, out, error = run("explain", model, "--room", "1MiB")
    assert code == 0 and "token" in out, error


@pytest.mark.slow
def test_every_notebook_is_in_it_and_one_runs(run):
    code, out, _ = run("reproduce", "--list")
    assert code == 0 and sum(line[:1].isdigit() for line in out.splitlines()) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    code, out, error = run("reproduce", "--profile", "smoke", "--only", "00")
    assert code == 0, error
    assert "kit-results" in out and (run.work / out.strip()).exists()


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """(python, the folder that holds the clone): `git clone ... kit`, then `pip install --editable kit`."""
    parent = tmp_path_factory.mktemp("parent")
    python = environment(tmp_path_factory.mktemp("home") / "environment", ["--editable", checkout(parent / "kit")])
    return python, parent


@pytest.mark.parametrize("where", ["beside the clone", "in the clone", "with another kit", "elsewhere"])
def test_an_editable_kit_is_found_from_every_folder(clone, tmp_path, where):
    """A folder named kit where one works, the clone or one's own, is not taken for the package."""
    python, parent = clone
    folder = {"beside the clone": parent, "in the clone": parent / "kit"}.get(where, tmp_path)
    if where == "with another kit":
        (tmp_path / "kit" / "data").mkdir(parents=True)
        (tmp_path / "kit" / "notes.txt").write_text("mine")
    script = folder / "script.py"
    script.write_text("import kit, kit.system.paths as paths; kit.open; print(kit.__file__, paths.IN_CHECKOUT)")
    for ask in (["-c", script.read_text()], [script]):
        done = subprocess.run([python, *ask], cwd=folder, env=outside(), capture_output=True, text=True)
        assert done.stdout.split() == [str(parent / "kit" / "kit" / "__init__.py"), "True"], done.stderr
    script.unlink()


def test_a_plain_kernel_beside_the_clone_finds_the_kit(clone):
    """Papermill and JupyterLab start a kernel in the folder of the notebook."""
    python, parent = clone
    ask = "import nbclient, nbformat as n; b = n.v4.new_notebook(cells=[n.v4.new_code_cell('import kit; kit.open')]);"
    ask += "nbclient.NotebookClient(b, resources={'metadata': {'path': '.'}}).execute(); print('ran')"
    done = subprocess.run([python, "-c", ask], cwd=parent, env=outside(), capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ran", done.stderr
