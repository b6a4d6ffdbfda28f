"""Files appear whole or not at all, and a folder of a run has one writer at a time, however a writer ends."""

import errno
import os
import signal
import stat
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kit.errors import GGUFError, KitError, ReportError
from kit.lab.commands.cli import main
from kit.lab.predicting.oracle import read_trace
from kit.lab.predicting.routes import read_routes
from kit.system import files, paths
from kit.system.files import helps, replacing, sole_writer

WRITER = """\
import sys, time, pathlib
from kit.system.files import replacing, sole_writer
out = pathlib.Path(sys.argv[1])
with sole_writer(out), replacing(out / "model.gguf") as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    """A named pipe, of which the kit waits for a writer a fifth of a second."""
    monkeypatch.setattr(files, "PATIENCE", 0.2)
    os.mkfifo(tmp_path / "pipe.csv")
    return tmp_path / "pipe.csv"


@pytest.mark.parametrize("read", [files.read_bytes, files.read_text, lambda path, error: files.read_yaml(path),
                                  lambda path, error: read_routes(path), lambda path, error: read_trace(path)])  # fmt: skip
def test_a_pipe_that_nobody_writes_to_is_an_error(pipe, read):
    """It was waited for without an end."""
    with pytest.raises(KitError, match=r"pipe\.csv: is (a pipe that nobody writes to|no file)"):
        read(pipe, ReportError)


@pytest.mark.parametrize("after", [0.0, 0.5])
def test_a_writer_may_take_its_time(pipe, after, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 20)
    with subprocess.Popen(["sh", "-c", f'exec > "$0"; sleep {after}; echo text', str(pipe)]):
        assert files.read_text(pipe, ReportError) == "text\n"


@pytest.fixture
def writer(tmp_path):
    """A process that writes model.gguf in tmp_path / "run", and has the folder for itself."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "run")], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def test_a_folder_has_one_writer_and_a_killed_one_leaves_no_lock(writer, tmp_path):
    with pytest.raises(ReportError, match="another kit process is writing to this folder"), sole_writer(tmp_path / "run"):
        pytest.fail("two writers")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    with sole_writer(tmp_path / "run"):
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
    with sole_writer(tmp_path), sole_writer(tmp_path), replacing(tmp_path / "model.gguf") as file:
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
    with sole_writer(out):
        done = CliRunner().invoke(main, ["reproduce", "--profile", "smoke", "--only", "08", "--out", str(out)])
    assert done.exit_code == 2 and "another kit process is writing to this folder" in done.stderr, done.output
    assert done.stderr.count("\n") == 1 and not list(out.iterdir())


@pytest.mark.parametrize("path, words, says", [
    ("thesis.tex", "reproduce --profile smoke --only 08 --out", "has other files (thesis.tex): name a new folder with --out"),
    ("first/run.json", "report html", "is neither a run nor a merged report: name one of its runs (first"),
])  # fmt: skip
def test_a_folder_that_is_no_run_stays_as_it_is(tmp_path, path, words, says):
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("{}")
    done = CliRunner().invoke(main, [*words.split(), str(tmp_path)])
    assert done.exit_code == 2 and says in done.stderr and os.listdir(tmp_path) == [Path(path).parts[0]]


def test_a_full_disk_says_what_helps_the_one_who_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=1000))
    for arguments, says in (
        (["fetch", "smollm2-135m"], "free some space, or name another folder by KIT_MODELS"),
        (["synth", "tiny-llama", "-o", str(tmp_path / "tiny.gguf")], "ask for fewer layers or write elsewhere"),
    ):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 2 and done.stderr.endswith(f"has 1000 B free; {says}\n"), done.output


def test_a_folder_that_may_not_be_written_is_said_before_any_work(tmp_path, monkeypatch, tiny_file):
    """`kit quants` worked for eight seconds and said "models/tmp3o9y8mb9: Permission denied"; `kit fetch` to free space."""
    monkeypatch.setenv("KIT_MODELS", str(tmp_path))
    monkeypatch.setattr("kit.lab.engines.requantize.targets", lambda: ["Q4_0"])
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path) == tmp_path and access(path, mode))
    page = ["reproduce", "--profile", "smoke", "--only", "02", "--out", str(tmp_path / "run")]  # it failed in its 28th cell
    for words in (["quants", str(tiny_file.path)], ["fetch", "smollm2-135m"], page):
        done = CliRunner().invoke(main, words)
        said = done.stderr.splitlines()[-1]
        assert done.exit_code == 2 and done.stdout == ""
        assert said == f"kit: error: {tmp_path}: cannot be written: Permission denied; name another folder by KIT_MODELS"
    for number, text in ((errno.EACCES, "name another"), (errno.EROFS, "name another"),
                         (errno.ENOSPC, "free some space, or name another")):  # fmt: skip
        assert helps(OSError(number, "why"), "name another") == f"; {text}" and helps(OSError(number, "why"), "") == ""


def test_a_read_only_file_system_is_the_reason_that_is_said(tmp_path, monkeypatch):
    """It says "read-only" of deleting what was never made as well, and the name of a partial file was all that was told."""

    def refused(*_, **how):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    path = tmp_path / "made.gguf"
    with pytest.raises(GGUFError, match=f"{path}: cannot be written: Read-only file system; go"), replacing(path, remedy="go"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="folders with rights")
def test_matplotlib_says_nothing_of_its_folder(tmp_path):
    """Two lines of it stood before each answer where the home may not be written."""
    (tmp_path / "home").write_text("")
    given = os.environ | {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(paths.ROOT), "XDG_CONFIG_HOME": "",
        "MPLCONFIGDIR": ""}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", "import kit.lab.figures"], env=given, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_two_fetches_at_once_leave_one_whole_file(tmp_path):
    """From a package with a part that comes slowly; each writes a file of its own, and both put the same in place."""
    site = tmp_path / "site" / "slow_part"
    site.mkdir(parents=True)
    (site / "part").write_bytes(b"weights" * 1000)
    code = """\
import hashlib, sys, time
from pathlib import Path
from kit.gguf import trained
data = b"weights" * 1000
parts = trained.TRAINED["smollm2-135m"].parts[0]._replace(package="slow", path="slow_part/part")
row = trained.TRAINED["smollm2-135m"]._replace(file="slow.gguf", sha256=hashlib.sha256(data).hexdigest(), parts=(parts,))
trained.TRAINED["slow"] = row
read = Path.read_bytes
Path.read_bytes = lambda path: (time.sleep(1), read(path))[1]
print("ready", flush=True); sys.stdin.readline()
print(trained.fetch("slow", download=True))
"""
    environment = os.environ | {"KIT_MODELS": str(tmp_path / "models"), "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment, "text": True}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        for process in (first, second):
            assert process.stdout.readline() == "ready\n"
        told = [process.communicate("go\n")[0] for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert told == [f"{tmp_path / 'models' / 'slow.gguf'}\n"] * 2
    assert [path.read_bytes() for path in (tmp_path / "models").iterdir()] == [b"weights" * 1000]


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="a device without an end")
@pytest.mark.parametrize("words", [
    ["perplexity", "MODEL", "--text", "/dev/zero"], ["generate", "MODEL", "--prompt-file", "/dev/zero"], ["sweep", "/dev/zero"],
    ["experts", "/dev/zero", "MODEL", "--memory", "1GiB"], ["explain", "http://127.0.0.1:1", "--compare", "/dev/zero"],
], ids=" ".join)  # fmt: skip
def test_a_file_without_an_end_is_one_line(words, tiny_file, monkeypatch):
    """All memory went before a word was said."""
    monkeypatch.setattr("kit.system.files.MOST_READ", 1 << 16)
    done = CliRunner().invoke(main, [str(tiny_file.path) if word == "MODEL" else word for word in words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "kit: error: /dev/zero: has more than 64.00 KiB, or no end: name a smaller file\n"


def test_files_are_written_in_large_pieces(tmp_path):
    """By pieces of less than 1 MiB the page cache gets no pages of 2 MiB: what reaches the file moves by more."""
    ends = [0]
    with replacing(tmp_path / "whole") as handle:
        for size in [1_000_000] * 40 + [3, 12 << 20, 5]:
            handle.write(bytes(size))
            ends.append(handle.raw.tell())
    steps = np.diff([*dict.fromkeys(ends)])
    assert len(steps) and steps.min() >= 1 << 20
    assert (tmp_path / "whole").stat().st_size == 40_000_000 + 8 + (12 << 20)


@pytest.mark.parametrize("through", ["itself", "a link"])
@pytest.mark.parametrize("what", ["device", "pipe", "folder"])
def test_what_is_no_file_is_refused_and_stays(tmp_path, what, through):
    """`kit synth NAME --force -o /dev/null` as root made a file of the device, for every process of the machine."""
    place = tmp_path / what
    if what == "device":
        try:
            os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except OSError:
            pytest.skip("this user makes no device")
    else:
        {"pipe": os.mkfifo, "folder": os.mkdir}[what](place)
    before, asked = place.stat(), tmp_path / "out"
    asked.symlink_to(place) if through == "a link" else None
    said = f"{what}: cannot be written: it is a .*{what}"
    with pytest.raises(GGUFError, match=said), replacing(asked if through == "a link" else place) as file:
        file.write(b"x")
    assert place.stat() == before


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "data").write_bytes(b"old")
    (tmp_path / "link").symlink_to("data")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "data").read_bytes() == b"new"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(GGUFError, match="loop: cannot be written: it is a link that leads back"), replacing(tmp_path / "loop"):
        pass
