"""Runs one notebook in its own process, reads its progress, and leaves nothing running behind it."""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

import nbformat
import psutil

import kit
from kit.errors import ReportError
from kit.lab import interrupts
from kit.lab.measuring.kept import DRAWS, FOLDER
from kit.system import memory_available, note, python, usable_cores
from kit.units import format_bytes

# Bytes that a notebook takes at least besides the command: papermill, the kernel with a model, a process that measures.
LEAST = {"00_start_here": 1600 << 20, "07_memory_frontier": 1100 << 20}
_OTHERS = 900 << 20


def check_memory(names: Iterable[str]) -> None:
    """ReportError where so little memory is free that the kernel of one of these notebooks would be killed."""
    least, name = max(((LEAST.get(name, _OTHERS), name) for name in names), default=(0, ""))
    if (free := memory_available()) < least:
        raise ReportError(
            f"{format_bytes(free)} of memory are free, and {name} takes {format_bytes(least)} at least: close other programs, "
            "raise the limit (a container's or a job's), or name other notebooks (--only)"
        )


def at_once(names: Iterable[str], device: str = "cpu") -> int:
    """How many of these notebooks may run at a time where nothing is measured: one a core, as far as memory goes. One on a GPU,
    whose cells time again."""
    if device != "cpu":
        return 1
    least = max((LEAST.get(name, _OTHERS) for name in names), default=_OTHERS)
    return max(1, min(usable_cores(), memory_available() // least))


@dataclass(frozen=True)
class Outcome:
    """How a notebook ended: ``status`` is "ok" or "failed"; ``cell`` the last one that started, from 1 (0: none did).

    ``records_before[n]`` is the number of records that had been written when cell n + 1 started.
    """

    status: str
    reason: str
    cell: int
    seconds: float
    records_before: list[int]


def execute(
    source: Path,
    output: Path,
    parameters: dict,
    timeout: float | None = None,
    on_cell: Callable[[int], None] = lambda cell: None,
    on_second: Callable[[str], None] | None = None,
    taken: Path | None = None,
    draws: Path | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run ``source`` with papermill in the folder of ``output``, which appears only when the run is over.

    Whatever happens to the notebook is an Outcome; its process log stays beside the output when it failed. The
    processes that it started are killed when it ends, after ``timeout`` seconds, and on any exception here (Ctrl-C).
    ``on_second`` is told once a second what the notebook is doing: "compiling", "measuring", or nothing known. What it
    measures is kept in the folder ``taken``, from where the same notebook run again takes it (kit.lab.measuring.kept).
    ``draws``: after the last probe of the run, a file for the names of what it measures all the same. ``stop``: set, it ends
    this as Ctrl-C does, which reaches the main thread alone.
    """
    output = output.absolute()  # the child works in that folder
    partial, log = output.with_name(f".{output.stem}.partial.ipynb"), output.with_suffix(".log")
    job = {
        "source": str(source.absolute()), "output": str(partial), "records": str(output.with_suffix(".jsonl")),
        "parameters": parameters, "cwd": str(output.parent),
    }  # fmt: skip
    started, reason, records_before = time.monotonic(), "", []
    if taken:
        taken.mkdir(parents=True, exist_ok=True)
    try:
        with (
            tempfile.TemporaryDirectory(dir=_short_folder()) as ipython_folder,
            open(log, "wb") as log_file,
            _Child(job, ipython_folder, log_file, {FOLDER: str(taken or ""), DRAWS: str(draws or "")}) as child,
        ):
            for event in child.events(None if timeout is None else started + timeout, 1.0 if on_second or stop else None):
                interrupts.check()
                if stop and stop.is_set():
                    raise KeyboardInterrupt
                if not event and on_second:
                    on_second(note.read(Path(ipython_folder, "doing")))
                if "cell" in event:
                    records_before.append(event["records"])
                    on_cell(event["cell"])
                reason = event.get("failed", reason)
            log_file.flush()
        reason = reason or _unexplained(child, timeout, log)
        _keep(partial, output, source.name)
    finally:
        partial.unlink(missing_ok=True)
        if not reason:
            log.unlink(missing_ok=True)
    seconds = round(time.monotonic() - started, 3)
    return Outcome("failed" if reason else "ok", reason, len(records_before), seconds, records_before)


def _short_folder() -> str | None:
    """Where temporary files go, or /tmp where that folder's name leaves no room for a socket's; None: neither is short."""
    folders = (folder for folder in (tempfile.gettempdir(), "/tmp") if len(os.fsencode(folder)) <= 70)
    return next((folder for folder in folders if os.access(folder, os.W_OK)), None)


class _Child:
    """The process of kit.lab.report.child and everything that it starts. The end of the ``with`` is the end of them all."""

    def __init__(self, job: dict, ipython_folder: str, log_file, variables: dict[str, str]):
        self._pipe, child_end = os.pipe()
        self.process = subprocess.Popen(
            python.running("kit.lab.report.child", str(child_end)),
            stdin=subprocess.PIPE, stdout=log_file, stderr=subprocess.STDOUT, pass_fds=[child_end],
            start_new_session=True,  # Ctrl-C on the terminal is for the parent alone
            env=kit.TORCH_VARIABLES | os.environ | {
                "MPLBACKEND": "module://matplotlib_inline.backend_inline",
                "KIT_READING": os.path.join(ipython_folder, "reading"),
                "KIT_DOING": os.path.join(ipython_folder, "doing"),
                "IPYTHONDIR": ipython_folder,  # the user's start-up files must not change a measurement
            } | variables,
        )  # fmt: skip
        os.close(child_end)
        self._seen = {psutil.Process(self.process.pid)}
        self.timed_out = False
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def events(self, deadline: float | None, every: float | None = None) -> Iterator[dict]:
        """The child's events until it closes its end or ``time.monotonic()`` is at the deadline, and {} ``every`` so often."""
        pending = b""
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait = min((limit for limit in (left, every) if limit is not None), default=None)
            if not connection.wait([self._pipe], wait):
                if wait == left:
                    self.timed_out = True
                    return
                yield {}
                continue
            data = os.read(self._pipe, 65536)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            self._look()  # at every cell, not on a clock: a notebook that measures is not disturbed
            yield from map(json.loads, lines)

    def _look(self) -> None:
        for process in list(self._seen):
            with suppress(psutil.NoSuchProcess):
                self._seen.update(process.children(recursive=True))

    def __enter__(self):
        return self

    def __exit__(self, error_type, *_):
        try:
            if error_type is None and not self.timed_out:
                self.process.wait()
        finally:
            self._look()
            for process in self._seen:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait()
            self.process.stdin.close()
            os.close(self._pipe)


def _unexplained(child: _Child, timeout: float | None, log: Path) -> str:
    """Why a child that reported no failure failed all the same; empty when it did not."""
    if child.timed_out:
        return f"stopped: it ran longer than {timeout:g} s (--timeout)"
    code = child.process.returncode
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name} (out of memory?)"
    said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"its process ended with exit code {code}{f': {said[-1][-300:]}' if said else ''}" if code else ""


def _keep(partial: Path, output: Path, source: str) -> None:
    """Put what papermill wrote in its place, without this machine's paths; a file cut off in the middle goes."""
    try:
        notebook = nbformat.read(partial, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError):
        return
    notebook.metadata.get("papermill", {}).update(input_path=source, output_path=output.name)
    nbformat.write(notebook, partial)
    partial.replace(output)
