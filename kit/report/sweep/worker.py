"""What runs on a worker: one cell, in a folder of its own, and its files as the answer."""

import os
import socket
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import dask
from distributed import WorkerPlugin, get_worker

import kit
from kit.lab import machine
from kit.lab.paths import models_folder
from kit.report import run as runs
from kit.report.sweep.spec import Cell
from kit.synthetic.write import cached_model

_environment: dict[str, bytes] = {}  # this machine as measured for this process's first cell: its environment.json


@dataclass(frozen=True)
class Answer:
    """A cell that ran: how it ended (as runner.Outcome), where, and the files of its run folder."""

    status: str
    reason: str
    seconds: float
    kind: str
    host: str
    files: dict[str, bytes]


def resource(kind: str) -> str:
    """The Dask resource of which a worker has one unit: a cell takes it, so a worker runs one timed notebook at a time."""
    return f"kit notebook on {kind}"


class Prepare(WorkerPlugin):
    """Makes a worker ready for cells, now or whenever it joins: its resource, and all of the machine's threads."""

    name = "kit-sweep"

    async def setup(self, worker):
        """Declare the resource; undo what Dask's nanny set to keep libraries at one thread."""
        for name, value in dask.config.get("distributed.nanny.pre-spawn-environ", {}).items():
            if os.environ.get(name) == str(value):
                del os.environ[name]
        await worker.set_resources(**{resource(machine.machine_id()): 1})


def identity() -> tuple[str, str]:
    """(version of the kit, kind of machine) of the process that calls this."""
    return kit.__version__, machine.machine_id()


def run_cell(cell: Cell, text: str, timeout: float | None = None) -> Answer:
    """Run a cell's notebook (its text) here with everything that `kit reproduce` writes; a model is generated if need be."""
    with tempfile.TemporaryDirectory(prefix="kit-sweep-") as base:
        notebooks, folder = Path(base) / "notebooks", Path(base) / cell.name
        notebooks.mkdir()
        (notebooks / f"{cell.notebook}.ipynb").write_text(text, encoding="utf-8")
        settings = {"device": "cpu"} | cell.settings
        device = settings.pop("device")
        texts = tuple(f"{name}={value}" for name, value in settings.items())
        source, *generated = astuple(cell.model)
        if cell.model.geometry:
            source = str(cached_model(*generated, models_folder()))
        request = runs.Request(cell.profile, source, (cell.notebook,), texts, device)
        jobs = runs.plan(request, notebooks)
        run = runs.start(folder, request)
        environment = folder / "environment.json"
        if _environment:
            environment.write_bytes(_environment["json"])
        started = time.monotonic()
        runs.perform(run, jobs, timeout, on_cell=_cancellation())
        if not environment.exists():  # the notebook opened no session
            machine.of_run(folder)
        _environment["json"] = environment.read_bytes()
        row = run.notebooks[cell.notebook]
        reason = f"cell {row.cell}: {row.reason}" if row.reason else ""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return Answer(row.status, reason, time.monotonic() - started, run.machine_id, socket.gethostname(), files)


def _cancellation():
    """Called at every cell of the notebook: raises, which ends the notebook, once its sweep was interrupted."""
    worker = get_worker()
    key = worker.get_current_task()

    def check(job, cell):
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            raise InterruptedError(f"{job.name}: the sweep was interrupted")

    return check
