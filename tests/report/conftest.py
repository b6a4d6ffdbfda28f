"""Small notebooks, and one finished run of them that the tests of pages share."""

import dataclasses
import json
import os
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from click.testing import CliRunner
from nbformat import v4

from kit.lab.commands.cli import main
from kit.lab.measuring import machine
from kit.system import lock

PARAMETERS = """\
profile: str = "quick"  # smoke, quick or full
model: str = ""  # a GGUF file; empty: a generated one
out: str = ""  # folder of the records
seed: int = 0  # of the weights
rate: float = 1  # any number
deep: bool = False  # yes or no
"""
SESSION = "import kit\nlab = kit.Session('{name}', profile=profile, model=model, out=out, seed=seed)"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


TAGS = {"lab.answer": "answer", "import pandas as pd\nhostile": "mechanism"}  # how a cell begins -> its tag


class Folder:
    """A folder of notebooks: ``add`` takes cells, those that start with ``#md`` being markdown."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir()

    def add(self, name: str, *cells: str, parameters: str = PARAMETERS) -> Path:
        made = [v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})]
        for cell in cells:
            tags = {"tags": [tag for start, tag in TAGS.items() if cell.startswith(start)]}
            made.append(v4.new_markdown_cell(cell[4:]) if cell.startswith("#md ") else v4.new_code_cell(cell, metadata=tags))
        path = self.path / f"{name}.ipynb"
        nbformat.write(v4.new_notebook(cells=made), path)
        return path


@pytest.fixture
def notebooks(tmp_path) -> Folder:
    return Folder(tmp_path / "notebooks")


def known_machine(out: Path) -> Path:
    """``out`` with an environment.json of invented speeds that no memory reaches, so that no test waits for a measurement."""
    out.mkdir(parents=True)
    speeds = dict.fromkeys(machine.LIMITS, 20_000.0)
    invented = machine.Machine(
        id=machine.machine_id(), cpu=f"Invented {HOSTILE}", cores=2, memory_bytes=2**34, memory_limit_bytes=2**34, **speeds,
        system={"os": "here", "python": "3", "libraries": {"kit": "0"}, "torch_threads": 2, "cpu_features": ["avx2"]},
    )  # fmt: skip
    (out / "environment.json").write_text(json.dumps(dataclasses.asdict(invented)))
    return out


def reproduce(folder: Path, out: Path, *options):
    """`kit reproduce` on a folder of notebooks, in this process."""
    return CliRunner().invoke(main, ["reproduce", "--notebooks", str(folder), "--out", str(out), *options])


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pids, seconds=15):
    """Fail unless all these processes end in time."""
    pids = list(pids)
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in pids if alive(pid)]


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A run of four notebooks, which all processes of the tests read: one that measures, with hostile names; one that fails;
    one killed; one after them."""
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished"
    base.mkdir(exist_ok=True)
    with (base / "lock").open("w") as handle:
        lock(handle)
        return base / "run" if (base / "run").exists() else _run_of_four(base)


def _run_of_four(base: Path) -> Path:
    folder, out = Folder(base / "notebooks"), known_machine(base / "run")
    folder.add(
        "01_first_token",
        f"#md # The first token\n\nHow long? {HOSTILE}\n\n## Predict\n\nSee [the failure](02_fails.ipynb).",
        SESSION.format(name="01_first_token"),
        f"import pandas as pd\nhostile = {HOSTILE!r}\n"
        "table = pd.DataFrame({'tensor': [hostile, 'blk.1', 'blk.2'], 'time': ['4.2 ms', '10 s', '2 s']})\n"
        "table.set_index('tensor').rename_axis(columns='part')",
        "#md ## Measure",
        "lab.answer('Nobody waits.', title='Seconds, not minutes')",
        "from IPython.display import HTML, Markdown, display\nimport matplotlib.pyplot as plt\n"
        "figure, axes = plt.subplots(); axes.plot([1, 2]); axes.set_title('one'); lab.picture(figure)\n"
        "plt.show(); print(hostile)\n"
        "display(HTML(f'<b>{hostile}</b>'), Markdown('![x](http://example.invalid/a.png) ' + hostile))\n"
        "from kit.lab import tables; display(tables.paste('Text to paste', f'| a |\\n{hostile}'))",
        "lab.record(claim='first-token-preload', quantity=hostile, unit='s', samples=[3.0, 1.0, 2.0, 2.5, 1.5], lower=0.5,\n"
        "    lower_source='bytes / bandwidth', tolerance='10 %', verdict='not reproduced',\n"
        "    reason=hostile + ' by `kit verify`')\n"
        "lab.record(quantity='open', unit='s', samples=[0.001, 0.002])\n"
        "lab.judge('cache-4gb-feasible', 'resident bytes', 'bytes', accept=(1, None), text='',\n"
        "    missing='needs 32 GiB of memory: see `kit doctor`');",
    )
    folder.add("02_fails", "#md # It fails", "1 / 0", "print('never')")
    folder.add("03_killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    folder.add("04_after", "#md # After them", "print(profile, seed, rate, deep)")
    result = reproduce(folder.path, out, "--profile", "smoke", "-p", "seed=7")
    assert result.exit_code == 1, result.output
    return out
