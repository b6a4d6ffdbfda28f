"""Files appear whole or not at all, and a folder of a run has one writer at a time, however a writer ends."""

import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kit.commands.cli import main
from kit.errors import GGUFError, ReportError
from kit.lab.files import alone, replacing

WRITER = """\
import sys, time, pathlib
from kit.lab.files import alone, replacing
out = pathlib.Path(sys.argv[1])
with alone(out), replacing(out / "model.gguf") as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that writes model.gguf in tmp_path / "run", and has the folder for itself."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "run")], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def test_a_folder_has_one_writer_and_a_killed_one_leaves_no_lock(writer, tmp_path):
    with pytest.raises(ReportError, match="another process of the kit is writing there"), alone(tmp_path / "run"):
        pytest.fail("two writers")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    with alone(tmp_path / "run"):
        assert [path.suffix for path in (tmp_path / "run").iterdir()] == [".partial"]  # the half of a file, no lock


def test_the_next_writer_deletes_what_a_killed_one_left_and_nothing_of_a_live_one(writer, tmp_path):
    path = tmp_path / "run" / "model.gguf"
    for content in (b"first", b"second"):
        with replacing(path) as file:
            file.write(content)
        assert sorted(path.parent.iterdir())[1:] == [path] and path.read_bytes() == content
        [partial] = path.parent.glob(".*")
        assert partial.read_bytes() == b"half"  # the other process goes on
    writer.kill()
    writer.wait()
    with replacing(path) as file:
        file.write(b"third")
    assert list(path.parent.iterdir()) == [path] and path.read_bytes() == b"third"


def test_a_system_without_locks_goes_on(tmp_path, monkeypatch):
    """Some network file systems lock nothing."""
    import fcntl

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / f".model.gguf.{os.getpid()}.partial").write_bytes(b"of somebody")
    with alone(tmp_path), alone(tmp_path), replacing(tmp_path / "model.gguf") as file:
        file.write(b"whole")
    assert (tmp_path / "model.gguf").read_bytes() == b"whole" and len(list(tmp_path.iterdir())) == 2


def test_a_system_whose_rename_does_not_replace_is_one_error(tmp_path, monkeypatch):
    """As some network file systems: the old file stays whole, and nothing is left beside it."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"old")

    def refuse(*_):
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(GGUFError, match=r"model\.gguf: cannot be written: File exists"), replacing(path) as file:
        file.write(b"new")
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"old"


def test_a_second_reproduce_in_the_folder_is_one_error(tmp_path):
    out = tmp_path / "run"
    with alone(out):
        done = CliRunner().invoke(main, ["reproduce", "--profile", "smoke", "--only", "08", "--out", str(out)])
    assert done.exit_code == 2 and "another process of the kit is writing there" in done.stderr, done.output
    assert done.stderr.count("\n") == 1 and not list(out.iterdir())
