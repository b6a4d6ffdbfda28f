"""One notebook in its own process: however it ends, the rest goes on and nothing is left running."""

import json
import os
import subprocess
import sys
import tempfile
import time
import types

import nbformat
import pytest

from kit.lab.report import runner
from kit.lab.report.runner import execute

from conftest import wait_until_gone  # isort: skip

PIDS = """\
import os, subprocess
helper = subprocess.Popen(["sleep", "300"])
open("pids", "w").write(f"{os.getpid()} {helper.pid}")
"""


@pytest.fixture
def output(tmp_path):
    (tmp_path / "run {a}").mkdir()  # papermill would take the braces for a parameter
    return tmp_path / "run {a}" / "01.ipynb"


def test_a_good_notebook_leaves_its_output_and_nothing_else(notebooks, output, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")  # the user's: figures must appear all the same
    plot, values = "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()", "print(rate, deep, model)"
    how = "import ipykernel\nprint(ipykernel.get_connection_info(unpack=True)['transport'])"  # by no port, which may be taken
    source = notebooks.add("01", plot, values, how)
    monkeypatch.chdir(output.parent.parent)
    cells = []
    given = {"rate": 2.5, "deep": True, "model": "007"}
    outcome = execute(source, output.relative_to(output.parent.parent), given, on_cell=cells.append)
    assert (outcome.status, outcome.reason, outcome.cell) == ("ok", "", 5)
    assert cells == [1, 2, 3, 4, 5]
    assert [path.name for path in output.parent.iterdir()] == ["01.ipynb"]
    figure, text, transport = nbformat.read(output, as_version=4).cells[-3:]
    assert any("image/png" in item.get("data", {}) for item in figure.outputs)
    assert (text.outputs[0].text, transport.outputs[0].text) == ("2.5 True 007\n", "ipc\n")


def test_the_run_hears_what_a_notebook_is_doing(notebooks, output):
    compiles = """\
import kit, time, numba
from numba.core import event
from kit.system import note
class Look(event.Listener):
    def on_start(self, event): print("in between", note._doing.text)
    def on_end(self, event): pass
note.tell_compilation(); event.register("numba:compile", Look())
with note.doing("measuring"): numba.njit(lambda x: x + 1)(1)
with note.doing("generating granite"): time.sleep(2.1)
print("then", repr(note._doing.text))"""
    source, heard = notebooks.add("01", compiles), []
    assert execute(source, output, {}, on_second=heard.append).reason == ""
    told = "".join(item.text for item in nbformat.read(output, as_version=4).cells[-1].outputs)
    assert set(told.splitlines()) == {"in between compiling", "then ''"}
    assert "generating granite" in heard


def test_a_failing_notebook_is_kept_with_its_reason(notebooks, output):
    source = notebooks.add("01", "pass", "raise ValueError('first\\nno tensor blk.0')", "open('never', 'w')")
    outcome = execute(source, output, {})
    assert (outcome.status, outcome.reason, outcome.cell) == ("failed", "ValueError: no tensor blk.0", 3)
    assert "no tensor blk.0" in output.read_text()
    assert not (output.parent / "never").exists()
    assert output.with_suffix(".log").exists()


def test_a_killed_kernel_is_a_failure_with_its_cell(notebooks, output):
    source = notebooks.add("01", "pass", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    outcome = execute(source, output, {})
    assert outcome.status == "failed"
    assert outcome.cell == 3
    assert "kernel died" in outcome.reason


def test_a_kernel_that_dies_before_it_reads_a_tensor_names_none(notebooks, output):
    """Its note is 4,096 NULs then: none of them comes into a reason, a record or a terminal."""
    source = notebooks.add("01", "import os, kit.gguf.mapped\nos._exit(1)")
    outcome = execute(source, output, {})
    assert outcome.reason.endswith("or a crash in native code") and "\0" not in outcome.reason


@pytest.mark.parametrize("writable, transport", [(os.W_OK, "ipc"), (None, "tcp")], ids=["/tmp", "ports"])
def test_a_long_folder_of_temporary_files_is_none_of_a_kernels(notebooks, output, tmp_path, monkeypatch, writable, transport):
    """The path of a socket has 107 bytes: the kernel's go to /tmp, or it takes ports where that is closed."""
    long = tmp_path / ("a" * 130)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(runner.os, "access", lambda folder, how: how == writable)
    source = notebooks.add("01", "import ipykernel\nprint(ipykernel.get_connection_info(unpack=True)['transport'])")
    assert execute(source, output, {}).reason == ""
    assert nbformat.read(output, as_version=4).cells[-1].outputs[0].text == f"{transport}\n"
    assert not list(long.iterdir())


def test_the_kernel_is_this_interpreter_whatever_is_called_python3(notebooks, output, tmp_path, monkeypatch):
    foreign = tmp_path / "jupyter" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    spec = {"argv": ["/nowhere/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Conda"}
    (foreign / "kernel.json").write_text(json.dumps(spec | {"language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    source = notebooks.add("01", "import sys\nprint(sys.executable)")
    assert execute(source, output, {}).reason == ""
    assert nbformat.read(output, as_version=4).cells[-1].outputs[0].text == f"{sys.executable}\n"


def test_a_killed_process_takes_its_kernel_along(notebooks, output):
    source = notebooks.add("01", PIDS, "import signal\nos.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass")
    outcome = execute(source, output, {})
    assert outcome.status == "failed"
    assert "SIGKILL" in outcome.reason
    wait_until_gone(map(int, (output.parent / "pids").read_text().split()))


def test_a_notebook_that_takes_too_long_is_stopped_with_all_it_started(notebooks, output, monkeypatch):
    source, passed = notebooks.add("01", PIDS, "import time\ntime.sleep(300)"), [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed))
    monkeypatch.setattr("kit.lab.report.runner.time", clock)
    # the hour is over when the last cell starts, however long a kernel takes to start here
    outcome = execute(source, output, {}, timeout=3600, on_cell=lambda cell: passed.append(3600.0 if cell == 3 else 0.0))
    assert outcome.status == "failed"
    assert "longer than 3600 s" in outcome.reason
    assert outcome.cell == 3 and outcome.seconds < 3600 + 300
    wait_until_gone(map(int, (output.parent / "pids").read_text().split()))


def test_nothing_outlives_a_killed_parent(notebooks, output):
    """Nor does what a cell had started in a session of its own."""
    pids = PIDS.replace('"300"]', '"300"], start_new_session=True').replace("{os.getpid()}", "{os.getpid()} {os.getppid()}")
    source = notebooks.add("01", pids, "import time\ntime.sleep(300)")
    code = (
        "import sys; from pathlib import Path; from kit.lab.report.runner import execute; execute(*map(Path, sys.argv[1:]), {})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, source, output])
    pids = output.parent / "pids"
    while not pids.exists() or not pids.read_text():
        assert parent.poll() is None
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    wait_until_gone(map(int, pids.read_text().split()))


def test_a_kernel_may_take_minutes_to_start(monkeypatch):
    """01's took more than papermill's one on an emulated aarch64."""
    monkeypatch.setenv("KIT_READING", "reading")
    code = "import papermill; papermill.execute_notebook = lambda *_, **how: print(how['start_timeout'], flush=True)\n"
    code += "from kit.lab.report import child; child.main()"
    job = json.dumps(dict(source="", output="", parameters={}, cwd="", records=""))
    with subprocess.Popen([sys.executable, "-c", code, "2"], stdin=-1, stdout=-1, text=True) as process:
        print(job, file=process.stdin, flush=True)
        assert int(process.stdout.readline()) >= 600


def test_a_notebook_that_cannot_start_is_a_failure(tmp_path, output):
    source = tmp_path / "01.ipynb"
    source.write_text("{}")
    outcome = execute(source, output, {})
    assert outcome.status == "failed"
    assert outcome.reason
    assert outcome.cell == 0
    assert not output.exists()
