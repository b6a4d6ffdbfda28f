"""The library alone: it opens, dequantizes, replays and generates without what notebooks and tables need."""

import json
import subprocess
import sys

import model_files
import pytest

REFUSED = ("jupyter", "jupyterlab", "notebook", "IPython", "nbformat", "nbclient", "papermill", "matplotlib", "pandas",
    "kit.lab")  # fmt: skip

WITHOUT = """
import sys
REFUSED = {refused!r}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *rest):
        refused = any(name == each or name.startswith(each + ".") for each in REFUSED)
        return None if refused else self.finder.find_spec(name, *rest)

sys.meta_path[:] = map(Without, sys.meta_path)
"""

MISSING = "pandas", "matplotlib.pyplot", "kit.lab.measuring.machine"
USES = {
    "open": "print(kit.open(path).tensors['output_norm.weight'].shape)",
    "dequantize": """
import numpy as np
blocks = np.random.default_rng(0).integers(0, 64, (3, 144), np.uint8)
for backend in ("cpu", "plain", "reference"):
    print(kit.dequantize(blocks, "Q4_K", np.float32, backend).shape)""",
    "replay": "from kit.cache.traces import popular; print(kit.replay(popular(20, 400), kit.LRU('1 KiB')).hit_rate)",
    "generate": "print(kit.generate(kit.Transformer(path), [1, 2, 3], 4))",
    "hf": "import kit.hf; print(type(kit.hf.load(path)[0]).__name__) if kit.hf.installed() else print('absent')",
}


RUNS = """
import contextlib, io, json, traceback
import kit
said = {{}}
for name, code in {codes!r}.items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(code, {{"kit": kit, "path": {path!r}}})
        except BaseException:
            out.write("failed: " + traceback.format_exc())
    said[name] = out.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each use, and each import of what is refused, prints in one process without the laboratory."""
    path = model_files.write(tmp_path_factory.mktemp("library"), "tiny-llama")
    codes = USES | {name: f"import {name}" for name in MISSING}
    code = WITHOUT.format(refused=REFUSED) + RUNS.format(codes=codes, path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("use", USES)
def test_the_library_runs_without_the_laboratory(use, said):
    assert said[use].strip() and not said[use].startswith("failed"), said[use][-2000:]


@pytest.mark.parametrize("name", MISSING)
def test_what_is_refused_cannot_be_imported(name, said):
    assert "ModuleNotFoundError" in said[name]
