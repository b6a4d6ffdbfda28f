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


@pytest.mark.parametrize(("told", "code", "reason"), [
    ([{"cell": 1, "records": 0}, {}, {"cell": 2, "records": 3}], 0, ""),
    ([{"cell": 1, "records": 0}, {"failed": "why"}], 0, "why"),
    ([], 3, "its process ended with exit code 3: last words"),
])  # fmt: skip
@pytest.mark.parametrize("timeout", [None, 100.0])
def test_how_a_notebook_ended_follows_from_its_events_and_its_process(tmp_path, monkeypatch, told, code, reason, timeout):
    """Its log stays where it failed; what papermill had not finished goes; what it measures has a folder."""
    asked, now = [], [64.0]

    class Child:
        timed_out, process = False, SimpleNamespace(returncode=code)

        def __init__(self, job, folder, log, variables):
            asked.append((job, variables))
            log.write(b"last words\n")
            if told:
                (tmp_path / ".01.partial.ipynb").write_text("{")
            (tmp_path / f"{folder}/doing").write_text("measuring")

        __enter__, __exit__ = (lambda self: self), (lambda *_: None)

        def events(self, deadline, every):
            asked.append((deadline, every))
            now[0] += 1.23456
            yield from told

    monkeypatch.setattr(runner, "_Child", Child)
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cells, heard, taken = [], [], tmp_path / "a" / "taken"
    source, output = tmp_path / "01_source.ipynb", tmp_path / "01.ipynb"
    for _ in range(2):
        on_second = heard.append if {} in told else None
        done = runner.execute(source, output, {"seed": 1}, timeout, cells.append, on_second, taken, tmp_path / "draws")
    began = [each["cell"] for each in told if "cell" in each]
    assert (done.status, done.reason, done.seconds) == ("failed" if reason else "ok", reason, 1.235)
    assert (done.cell, done.records_before) == (len(began), [each["records"] for each in told if "cell" in each])
    assert cells == began * 2 and heard == ["measuring"] * 2 * ({} in told) and taken.is_dir()
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == ({"01.log"} if reason else set())
    assert asked[1] == (timeout and 64.0 + timeout, 1.0 if {} in told else None)
    (job, variables) = asked[0]
    assert variables == {runner.FOLDER: str(taken), runner.DRAWS: str(tmp_path / "draws")}
    assert (job["source"], job["cwd"], job["records"]) == (str(source), str(tmp_path), str(tmp_path / "01.jsonl"))
    runner.execute(source, output, {}, on_second=heard.append)
    assert asked[-2][1] == {runner.FOLDER: "", runner.DRAWS: ""}


def test_whoever_loses_its_parent_ends_all_that_it_started_and_what_that_starts_meanwhile(monkeypatch):
    class Process(str):
        def suspend(self):
            done.append(("stop", self))
            started.add(Process("later"))

        def kill(self):
            done.append(("kill", self))

    done, started = [], {Process("first")}
    monkeypatch.setattr(child.sys, "stdin", io.StringIO(""))
    given = []
    children = lambda recursive: given.append(recursive) or {*started}  # noqa: E731
    monkeypatch.setattr(child.psutil, "Process", lambda: SimpleNamespace(children=children))
    monkeypatch.setattr(child.os, "_exit", lambda code: done.append(("exit", code)))
    child._die_with_parent()
    assert [word for word, _ in done] == ["stop", "stop", "kill", "kill", "exit"] and all(given)
    assert done[-1][1] != 0 and {one for word, one in done if word == "kill"} == {"first", "later"}


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
        os.set_blocking(ours, False)
        given["at once"] = os.read(ours, 1000).decode()  # nobody waits for the end to see a cell begin
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
        events = [json.loads(line) for line in [*given["at once"].splitlines(), *told]]
    assert events[:2] == [{"cell": 1, "records": 0}, {"cell": 2, "records": 2}]
    assert given["source"] == f"{tmp_path}/{{{{run}}}}/01.ipynb" and given["parameters"] == {"seed": 1}
    if reason is None:
        assert len(events) == 2
    else:
        assert reason in events[2]["failed"] and not events[2]["failed"].endswith(": ") and len(events) == 3
    if not noted:
        assert given["sockets"] == ({"transport": "ipc", "ip": f"{os.path.dirname(reading)}/kernel"} if place == 90 else {})
