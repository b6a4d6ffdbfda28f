"""The process of a notebook and its parent, by hand: no kernel starts."""

import io
import json
import os
import time
from types import SimpleNamespace

import nbformat
import pytest
from nbclient.exceptions import DeadKernelError
from nbformat import v4
from papermill import PapermillExecutionError

from kit.errors import ReportError
from kit.lab.report import child, runner


@pytest.mark.parametrize(("names", "least", "name"), [
    (("01_a",), 900 << 20, "01_a"), (("07_memory_frontier", "01_a"), 1100 << 20, "07_memory_frontier"),
    (("00_start_here", "07_memory_frontier"), 1600 << 20, "00_start_here"), ((), 0, ""),
])  # fmt: skip
def test_a_run_begins_where_its_hungriest_notebook_has_memory(monkeypatch, names, least, name):
    monkeypatch.setattr(runner, "memory_available", lambda: least)
    runner.check_memory(names)
    monkeypatch.setattr(runner, "memory_available", lambda: least - 1)
    with pytest.raises(ReportError, match=f"are free, and {name} takes"):
        runner.check_memory(names)


@pytest.mark.parametrize(("late", "code", "log", "reason"), [
    (True, -9, "", "stopped: it ran longer than 2.5 s (--timeout)"), (False, -9, "x", "its process was killed by SIGKILL"),
    (False, 0, "a warning", ""), (False, 3, " \n", "its process ended with exit code 3"),
    (False, 1, "first\n last \n\n", "its process ended with exit code 1: last"),
    (False, 1, "a" * 400, f"its process ended with exit code 1: {'a' * 300}"),
])  # fmt: skip
def test_why_a_process_that_reported_no_failure_failed(tmp_path, late, code, log, reason):
    (tmp_path / "log").write_text(log)
    ended = SimpleNamespace(timed_out=late, process=SimpleNamespace(returncode=code))
    told = runner._unexplained(ended, 2.5, tmp_path / "log")
    assert told.removesuffix(" (out of memory?)") == reason


@pytest.mark.parametrize(("length", "writable", "folder"), [(70, True, "own"), (71, True, "/tmp"), (71, False, None)])
def test_temporary_files_go_where_a_socket_s_path_has_room(monkeypatch, length, writable, folder):
    own = "/" + "a" * (length - 1)
    monkeypatch.setattr(runner.tempfile, "gettempdir", lambda: own)
    monkeypatch.setattr(runner.os, "access", lambda folder, how: writable)
    assert runner._short_folder() == (own if folder == "own" else folder)


def process(pipe):
    """A _Child of which only the events come."""
    made = object.__new__(runner._Child)
    made._pipe, made._seen, made.timed_out = pipe, set(), False
    return made


def test_events_come_whole_and_end_with_the_process_or_at_the_deadline():
    ours, theirs = os.pipe()
    made = process(ours)
    os.write(theirs, b'{"cell": 1}\n{"cell": 2}\n{"ce')
    events = made.events(time.monotonic() + 60, every=0.001)
    assert [next(events), next(events), next(events)] == [{"cell": 1}, {"cell": 2}, {}]
    os.write(theirs, b'll": 3}\n')
    assert next(events) == {"cell": 3} and next(events) == {}
    os.close(theirs)
    assert [*events] == [] and not made.timed_out
    os.close(ours)
    ours, theirs = os.pipe()
    late = process(ours)
    assert [*late.events(time.monotonic() - 1, every=9.0)] == [] and late.timed_out
    for each in (ours, theirs):
        os.close(each)


def test_a_notebook_that_ran_is_kept_without_this_machine_s_paths(tmp_path):
    partial, output = tmp_path / ".01.partial.ipynb", tmp_path / "01.ipynb"
    partial.write_text("{half")
    runner._keep(partial, output, "01.ipynb")
    assert not output.exists(), "cut off in the middle"
    paths = {"input_path": str(tmp_path), "output_path": str(partial), "duration": 2}
    with partial.open("w") as out:
        nbformat.write(v4.new_notebook(metadata={"papermill": paths}), out)
    runner._keep(partial, output, "01.ipynb")
    kept = nbformat.read(output, 4).metadata.papermill
    assert kept == {"input_path": "01.ipynb", "output_path": "01.ipynb", "duration": 2} and not partial.exists()


@pytest.mark.parametrize(("error", "noted", "reason"), [
    (None, "", None),
    (PapermillExecutionError(1, 1, "", "ValueError", "first\nno tensor", []), "", "ValueError: no tensor"),
    (PapermillExecutionError(1, 1, "", "KeyboardInterrupt", "", []), "", "KeyboardInterrupt"),
    (DeadKernelError("x"), "", "the kernel died"), (DeadKernelError("x"), "blk.0", "tensor that it read was blk.0"),
    (OSError("no room\nmore"), "", "OSError: no room"),
])  # fmt: skip
@pytest.mark.parametrize("place", [90, 91])
def test_a_process_tells_its_cells_and_its_failure(tmp_path, monkeypatch, error, noted, reason, place):
    folder, records = tmp_path / "{run}", tmp_path / "01.jsonl"
    reading = tmp_path / "reading" if not noted else folder
    if noted:
        reading.write_text(noted)
    else:
        reading = f"/{'a' * (place - len('//kernel'))}/reading"  # the sockets' path has so many bytes
    given, (ours, theirs) = {}, os.pipe()

    def execute_notebook(source, output, parameters, on_cell_start, config, **how):
        given.update(source=source, sockets=dict(config.ConnectionFileMixin), parameters=parameters)
        on_cell_start(None, 0)
        records.write_text("{}\n{}\n")
        on_cell_start(None, 1)
        if error:
            raise error

    monkeypatch.setenv("KIT_READING", str(reading))
    monkeypatch.setattr(child, "execute_notebook", execute_notebook)
    monkeypatch.setattr(child, "_die_with_parent", lambda: None)
    job = {"source": f"{folder}/01.ipynb", "output": "out", "records": str(records), "parameters": {"seed": 1}, "cwd": "."}
    monkeypatch.setattr(child.sys, "stdin", io.StringIO(json.dumps(job)))
    monkeypatch.setattr(child.sys, "argv", ["child", str(theirs)])
    child.main()
    with os.fdopen(ours) as told:
        events = [json.loads(line) for line in told]
    assert events[:2] == [{"cell": 1, "records": 0}, {"cell": 2, "records": 2}]
    assert given["source"] == f"{tmp_path}/{{{{run}}}}/01.ipynb" and given["parameters"] == {"seed": 1}
    if reason is None:
        assert len(events) == 2
    else:
        assert reason in events[2]["failed"] and not events[2]["failed"].endswith(": ") and len(events) == 3
    if not noted:
        assert given["sockets"] == ({"transport": "ipc", "ip": f"{os.path.dirname(reading)}/kernel"} if place == 90 else {})
