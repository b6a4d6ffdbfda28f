"""A process under a limit of memory, and what a process takes: commands, files and bytes, with nothing that is started."""

from types import SimpleNamespace

import pytest

from kit.errors import ReportError
from kit.lab.measuring import child, group, measurements, process
from kit.lab.measuring.group import Group, missing_rights


@pytest.mark.parametrize("root, controller, tools, swap, lacks", [
    (0, True, True, True, 0), (1, True, True, True, 1), (0, False, True, True, 1), (0, True, False, True, 1),
    (0, True, False, False, 0),
    (1, False, False, True, 3),
])  # fmt: skip
def test_a_limit_needs_root_a_controller_and_for_swap_its_commands(monkeypatch, root, controller, tools, swap, lacks):
    monkeypatch.setattr(group.os, "geteuid", lambda: root)
    monkeypatch.setattr(group, "group_root", lambda: controller or None)
    monkeypatch.setattr(group.shutil, "which", lambda tool: tools or tool != "mkswap")
    assert len(missing_rights(swap)) == lacks


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What a group starts, in order; the guard says what ``says`` holds."""
    seen = SimpleNamespace(commands=[], says="ready\n", limit="memory.max", lacks=[])

    def popen(command, **how):
        seen.commands.append(command)
        assert how["text"] and how["start_new_session"], "Ctrl-C ends the command, and the guard clears up"
        out = SimpleNamespace(readline=lambda: seen.says)
        return SimpleNamespace(stdout=out, communicate=lambda: ("", "x" * 400 + "\n"))

    monkeypatch.setattr(group.subprocess, "Popen", popen)
    monkeypatch.setattr(group.subprocess, "run", lambda command, **how: seen.commands.append(command) or how)
    monkeypatch.setattr(group, "missing_rights", lambda swap: seen.lacks if swap else [])
    monkeypatch.setattr(group, "group_root", lambda: (tmp_path, seen.limit))
    return seen


@pytest.mark.parametrize("name, limit, written", [
    ("memory.max", 1 << 20, str(1 << 20)), ("memory.max", None, "max"), ("memory.limit_in_bytes", None, "-1"),
    ("memory.limit_in_bytes", 7, "7"),
])  # fmt: skip
def test_a_command_joins_the_group_before_it_runs(started, tmp_path, name, limit, written):
    started.limit = name
    with Group(tmp_path / "swap", 64) as made:
        made._folder.mkdir()
        assert made.run(["true", "x"], limit, timeout=9.0, text=True) == {"timeout": 9.0, "text": True}
        assert (made._folder / name).read_text() == written
    guard, joined = started.commands
    assert guard[-2:] == ["64", name] and guard[5] == str(made._folder)
    assert joined[3:] == [str(made._folder / "cgroup.procs"), "true", "x"] and "$$" in joined[2] and "exec" in joined[2]


def test_what_a_group_lacks_is_said_and_a_way_does_not_take_forever(started, tmp_path, monkeypatch):
    started.lacks = ["root"]
    assert Group(tmp_path, 0)
    with pytest.raises(ReportError, match="root"):
        Group(tmp_path, 1)
    started.lacks, started.says = [], ""
    with pytest.raises(ReportError, match=r": x{300};"):
        Group(tmp_path, 1).__enter__()

    def hangs(command, **how):
        raise group.subprocess.TimeoutExpired(command, how["timeout"])

    monkeypatch.setattr(group.subprocess, "run", hangs)
    made = Group(tmp_path, 1)
    made._folder.mkdir()
    with pytest.raises(ReportError, match="300 s under a limit of 5 bytes"):
        made.run(["true"], 5)


def test_a_process_is_measured_once_and_its_plan_grows_with_the_file(measured_process, monkeypatch):
    asked = []

    def call(function, timeout):
        asked.append(timeout)
        return 100

    monkeypatch.setattr(child, "call", call)
    monkeypatch.setattr(process, "added_by", lambda file: 7)
    whole = 100 + process.LIBRARIES + process.RUNNING
    assert [process.process_bytes(), process.process_bytes("file")] == [whole, whole + 7] and len(asked) == 1
    [kept] = measurements.shared()
    assert (kept.way, kept.unit, kept.samples, kept.file) == (process.LOADED, "B", (100.0,), "")
