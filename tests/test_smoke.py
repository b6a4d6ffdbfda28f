"""All notebooks twice in the smoke profile, as `kit reproduce` runs them: nothing fails, and no verdict flips."""

import os
import re
import subprocess
import sys

import nbformat
import pytest

from kit.lab.paths import ROOT

pytestmark = pytest.mark.slow
NAMES = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
KIT = [sys.executable, "-c", "from kit.commands.cli import main; main()"]


def kit(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([*KIT, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two folders, the same notebooks on the same machine one after the other."""
    folders = [tmp_path_factory.mktemp("smoke") / name for name in ("first", "second")]
    for folder in folders:
        done = kit("reproduce", "--profile", "smoke", "--out", folder, "--no-progress")
        assert done.returncode == 0, done.stderr[-3000:]
    return folders


@pytest.mark.timeout(900)
def test_every_notebook_runs_and_has_its_page(runs):
    for folder in runs:
        assert {path.stem for path in folder.glob("*.html")} == {"index", *NAMES}
        for name in NAMES:
            notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
            outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
            assert not [output for output in outputs if output.output_type == "error"], name
            told = "".join(output.text for output in outputs if output.get("name") == "stderr")
            assert not re.search(r"Warning:", told), f"{name}: {told[:400]}"


@pytest.mark.timeout(900)
def test_no_verdict_flips(runs):
    done = kit("verify", *runs)
    assert done.returncode == 0, done.stdout
