"""The library alone: it opens, dequantizes, replays and generates without what notebooks and tables need."""

import subprocess
import sys

import model_files
import pytest

REFUSED = (
    "jupyter",
    "jupyterlab",
    "notebook",
    "IPython",
    "nbformat",
    "nbclient",
    "papermill",
    "matplotlib",
    "pandas",
    "kit.lab",
)

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


def run(code: str, path="") -> subprocess.CompletedProcess:
    code = WITHOUT.format(refused=REFUSED) + f"import kit\npath = {str(path)!r}\n" + code
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return model_files.write(tmp_path_factory.mktemp("library"), "tiny-llama")


@pytest.mark.parametrize("use", USES)
def test_the_library_runs_without_the_laboratory(use, path):
    done = run(USES[use], path)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr[-2000:]


@pytest.mark.parametrize("name", ["pandas", "matplotlib.pyplot", "kit.lab.machine"])
def test_what_is_refused_cannot_be_imported(name):
    assert "ModuleNotFoundError" in run(f"import {name}").stderr
