"""kill -9 at random instants: of `kit compress`, `kit fetch`, `kit reproduce` and `kit sweep`, and what is left then.

``python -m fuzz.kills --kills 1000 --record`` adds a line for each command to results/reference/<machine>/kills.jsonl.
A command runs in a child that is forked with the kit imported, so that the instants lie in its work, not in Python's imports.
After every kill: nothing that had finished is changed, no file has a final name and less than its content, and no process
is left. A command that is started again after a kill ends well (``ended``), as it would have without.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import psutil
from nbformat import v4

from kit.gguf import trained
from kit.lab.commands import cli
from kit.lab.measuring import machine
from kit.system.paths import ROOT

MARK = "KIT_KILLS"  # variable in the environment of everything that a killed command has started
GRACE = 120.0  # seconds that processes may take to notice
CELL = """\
import subprocess, time, pathlib
from kit.lab.claims import records
child = subprocess.Popen(["sleep", "300"])
for number in range(3):
    time.sleep(0.1)
    records.append(pathlib.Path(out, "{name}.jsonl"), records.Record(quantity="q", unit="s", samples=[1.0, number]))
"""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def visible(folder: Path) -> set[str]:
    """Names in a folder, without hidden ones (partial files)."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.exists() else set()


class OneFile:
    """A command that writes one file; each round removes it or leaves it, and what is there is whole."""

    def __init__(self, folder: Path):
        self.folder, self.rounds = folder, 0
        self.out.parent.mkdir(exist_ok=True)
        assert run(self.arguments) == 0
        self.right = digest(self.out)
        self.out.unlink()  # what is timed, so that kills fall into all of it, is the whole work

    def check(self) -> None:
        names = visible(self.out.parent)
        assert names <= {self.out.name}, names
        assert not names or digest(self.out) == self.right, "a file that is not whole has its final name"
        self.rounds += 1
        if self.rounds % 2:
            self.out.unlink(missing_ok=True)

    def after(self) -> None:
        self.check()
        left = {path.name for path in self.out.parent.iterdir()} - {self.out.name}
        assert not left, f"left beside it: {left}"


class Compress(OneFile):
    def __init__(self, folder: Path):

        source = folder / "model.gguf"
        assert run(["synth", "tiny-llama", "-o", str(source)]) == 0
        self.out = folder / "out" / "model.tiles.gguf"
        self.arguments = ["compress", str(source), "-o", str(self.out), "--force"]
        super().__init__(folder)


class Fetch(OneFile):
    """A model of 16 MiB in four packages."""

    def __init__(self, folder: Path):
        data = random.Random(0).randbytes(1 << 24)
        for number in range(4):
            package = folder / "site" / f"kills_part{number}"
            package.mkdir(parents=True)
            (package / "part").write_bytes(data[number << 22 : number + 1 << 22])
        sys.path.insert(0, str(folder / "site"))
        parts = tuple(trained.Wheel(f"kills-part{number}", f"kills_part{number}/part") for number in range(4))
        trained.TRAINED["kills"] = trained.Trained("kills.gguf", len(data), hashlib.sha256(data).hexdigest(), parts, "none")
        os.environ["KIT_MODELS"] = str(folder / "models")
        self.out, self.arguments = folder / "models" / "kills.gguf", ["fetch", "kills"]
        super().__init__(folder)


class Grid:
    """A command with several notebooks; what has finished once is the same after every later kill, until all have."""

    def __init__(self, folder: Path):
        self.folder, self.number = folder, 0
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        for name in ("01_one", "02_two"):
            cell = v4.new_code_cell("profile: str = 'quick'  # one\nout: str = ''  # folder\nseed: int = 0  # any",
                                    metadata={"tags": ["parameters"]})  # fmt: skip
            nbformat.write(
                v4.new_notebook(cells=[cell, v4.new_code_cell(CELL.format(name=name))]), self.notebooks / f"{name}.ipynb"
            )
        self.begin()

    def begin(self) -> None:
        """A folder of its own for the next run."""
        self.number += 1
        self.out, self.finished = self.folder / str(self.number) / "run", {}  # no other run beside it, to keep from

    def check(self) -> None:
        now = {path: digest(path) for path in self.files()}
        for path, before in self.finished.items():
            assert now.get(path) == before, f"{path} had finished and is another now"
        self.finished |= now

    def after(self) -> None:
        self.check()
        assert self.ended()
        self.begin()


class Reproduce(Grid):
    def __init__(self, folder: Path):
        import kit.lab.measuring.doctor
        import kit.lab.report.html
        import kit.lab.report.index
        import kit.lab.report.run  # noqa: F401

        super().__init__(folder)

    @property
    def arguments(self) -> list[str]:
        resume = ["--resume"] if (self.out / "run.json").exists() else ["--profile", "smoke"]
        return ["reproduce", "--notebooks", str(self.notebooks), "--out", str(self.out), "--no-progress", *resume]

    def _done(self) -> list[str]:
        state = self.out / "run.json"
        rows = json.loads(state.read_text())["notebooks"] if state.exists() else {}
        return [name for name, row in rows.items() if row["status"] == "ok"]

    def files(self) -> Iterator[Path]:
        for name in self._done():
            nbformat.read(self.out / f"{name}.ipynb", as_version=4)
            yield from (self.out / f"{name}.ipynb", self.out / f"{name}.jsonl")

    def ended(self) -> bool:
        return len(self._done()) == 2 and (self.out / "index.html").exists()


class Sweep(Grid):
    def __init__(self, folder: Path):
        import kit.lab.report.sweep.page
        import kit.lab.report.sweep.run
        import kit.lab.report.sweep.spec  # noqa: F401

        super().__init__(folder)
        self.spec = folder / "grid.yaml"
        self.spec.write_text('profile: smoke\nnotebooks: ["01"]\nparameters: {seed: [1, 2]}\n')

    @property
    def arguments(self) -> list[str]:
        return ["sweep", str(self.spec), "--notebooks", str(self.notebooks), "--out", str(self.out), "--no-progress"]

    def _cells(self) -> list[Path]:
        return [state.parent for state in self.out.glob("[!.]*/cell.json") if json.loads(state.read_text())["status"] == "ok"]

    def files(self) -> Iterator[Path]:
        for cell in self._cells():
            nbformat.read(next(cell.glob("*.ipynb")), as_version=4)
            yield from (*cell.glob("*.ipynb"), *cell.glob("*.jsonl"), cell / "run.json")

    def ended(self) -> bool:
        return len(self._cells()) == 2 and (self.out / "index.html").exists()


COMMANDS: dict[str, tuple[Callable, int]] = {  # name -> (what runs it, its share of a hundred kills)
    "compress": (Compress, 35), "fetch": (Fetch, 45), "reproduce": (Reproduce, 10), "sweep": (Sweep, 10),
}  # fmt: skip


def start(arguments: list[str]) -> int:
    """The process of the command, forked from this one."""
    pid = os.fork()
    if pid:
        return pid
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(null, number)
        log = os.open(os.environ["KIT_KILLS_LOG"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 2)
        cli.main(arguments, standalone_mode=False)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        code = 99
    sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of the command, undisturbed."""
    return os.waitstatus_to_exitcode(os.waitpid(start(arguments), 0)[1])


def marked() -> list[psutil.Process]:
    """The processes that were started under the mark, this one apart."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.pid != os.getpid() and process.environ().get(MARK) == os.environ[MARK]:
                found.append(process)
    return found


def nothing_left() -> None:
    """AssertionError when a process is still there after GRACE."""
    end = time.monotonic() + GRACE
    while left := marked():
        assert time.monotonic() < end, f"left running: {[process.cmdline() for process in left]}"
        time.sleep(0.05)


def soak(name: str, kills: int, folder: Path, seed: int) -> dict:
    """Kill the command ``kills`` times; what was counted. AssertionError names what a kill broke."""
    draw, swap, started = random.Random(seed), psutil.swap_memory().total, time.monotonic()
    command = COMMANDS[name][0](folder)
    before = time.monotonic()
    assert run(command.arguments) == 0, Path(os.environ["KIT_KILLS_LOG"]).read_text()
    whole = time.monotonic() - before
    command.after()
    counts = {"killed": 0, "too late": 0, "ended": 0}
    while counts["killed"] < kills:
        pid = start(command.arguments)
        time.sleep(draw.uniform(0, 1.1 * whole))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        counts["killed" if killed else "too late"] += 1
        nothing_left()
        command.check()
        if draw.random() < 0.1:
            code = run(command.arguments)
            assert code == 0, f"started again it ended with {code}: {Path(os.environ['KIT_KILLS_LOG']).read_text()}"
            command.after()
            counts["ended"] += 1
    assert psutil.swap_memory().total == swap, "swap was left"
    return {
        "command": name,
        "seed": seed,
        "seconds": round(time.monotonic() - started, 1),
        "whole_seconds": round(whole, 2),
    } | counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.kills", description=__doc__)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), help=f"some of: {', '.join(COMMANDS)}  [default: all]")
    parser.add_argument("--kills", type=int, default=100, help="of all commands together  [default: 100]")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--record", action="store_true", help="keep the counts under results/reference")
    options = parser.parse_args()
    os.environ |= {"KIT_PATIENCE": "0", MARK: str(os.getpid())}
    shares = sum(COMMANDS[name][1] for name in options.commands)
    for name in options.commands:
        with tempfile.TemporaryDirectory(prefix="kit-kills-") as base:
            os.environ["KIT_KILLS_LOG"] = os.path.join(base, "log")
            counts = soak(name, -(-options.kills * COMMANDS[name][1] // shares), Path(base), options.seed)
        row = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": machine.git_commit()} | counts
        print(json.dumps(row), flush=True)
        if options.record:
            with open(ROOT / "results" / "reference" / machine.machine_id() / "kills.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
