"""A sweep: its cells on the workers of a Dask cluster, each in a run folder of its own, kept at once when it has finished."""

import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import dask
from distributed import Client, KilledWorker, LocalCluster, WorkerPlugin, as_completed, get_worker
from distributed.comm import get_address_host_port

import kit
from kit.errors import ReportError
from kit.lab.measuring import machine
from kit.lab.report import planning, sources
from kit.lab.report import run as runs
from kit.lab.report.sweep.spec import Cell
from kit.lab.synthetic.write import cached_model
from kit.system.files import helps, sole_writer
from kit.system.paths import models_folder
from kit.units import from_json

STATE = "cell.json"  # in the folder of a cell; put there last, so a cell that has one is whole
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


def run_cell(cell: Cell, timeout: float | None = None) -> Answer:
    """Run a cell's notebook here with everything that `kit reproduce` writes; a model is generated if need be."""
    with tempfile.TemporaryDirectory(prefix="kit-sweep-") as base:
        notebooks, folder = Path(base) / "notebooks", Path(base) / cell.name
        notebooks.mkdir()
        (notebooks / f"{cell.notebook}.ipynb").write_text(cell.source, encoding="utf-8")
        settings = {"device": "cpu"} | cell.settings
        device = settings.pop("device")
        texts = tuple(f"{name}={value}" for name, value in settings.items())
        source, *generated = astuple(cell.model)
        if cell.model.geometry:
            source = str(cached_model(*generated, models_folder()))
        request = runs.Request(cell.profile, source, (cell.notebook,), texts, device)
        jobs = planning.plan(request, notebooks)
        run = runs.start(folder, request)
        environment = folder / "environment.json"
        if _environment:
            environment.write_bytes(_environment["json"])
        started = time.monotonic()
        planning.perform(run, jobs, timeout, on_cell=_cancellation())
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


def _reach(scheduler: str, wait: float) -> None:
    """Wait until somebody listens at the address; OSError when nobody does. Ctrl-C ends it at once, unlike a Client's wait."""
    end = time.monotonic() + wait
    while True:
        try:
            return socket.create_connection(get_address_host_port(scheduler), timeout=max(0.1, end - time.monotonic())).close()
        except OSError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


@contextmanager
def connect(scheduler: str = "", workers: int = 1, wait: float = 60, say: Callable = lambda line: None) -> Iterator[Client]:
    """A client whose workers are ready for cells: of the ``scheduler`` at that address, else of a LocalCluster. ``say`` gets a
    line before each wait for others.

    ReportError when there is no scheduler, no worker within ``wait`` seconds, or one with another version of the kit.
    """
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.nanny.pre-spawn-environ": {}}))  # a notebook may use all threads
        if not scheduler:
            cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, memory_limit=0, dashboard_address="127.0.0.1:0",
                local_directory=stack.enter_context(tempfile.TemporaryDirectory(prefix="kit-dask-")), silence_logs=50,
            )  # fmt: skip
            scheduler = stack.enter_context(cluster).scheduler_address
        else:
            say(f"looking for the scheduler at {scheduler}, {wait:g} s at most")
        try:
            _reach(scheduler, wait)
            client = stack.enter_context(Client(scheduler, timeout=wait, set_as_default=False))
        except (OSError, ValueError) as error:
            raise ReportError(f"--scheduler {scheduler}: {error}") from None
        if not client.scheduler_info()["workers"]:
            say(f"waiting for a worker of {scheduler}, {wait:g} s at most")
        try:
            client.wait_for_workers(1, timeout=wait)
        except TimeoutError:
            raise ReportError(f"{scheduler}: no worker within {wait:g} s; start one: dask worker {scheduler}") from None
        try:
            client.register_plugin(Prepare())
        except Exception as error:  # whatever the worker raised: most likely it has no kit
            raise ReportError(f"a worker of {scheduler} cannot run the kit: {error}") from error
        yield client


def kinds(client: Client) -> list[str]:
    """The kinds of machine that the workers run on; ReportError for a worker with another version or other code of the kit."""
    workers = client.run(lambda: (kit.__version__, machine.machine_id()))
    for address, (version, _) in workers.items():
        if version != kit.__version__:
            raise ReportError(f"the worker {address} has kit {version}, this is {kit.__version__}: install the same there")
    for address, code in client.run(sources.of_package).items():  # after the versions: an older one has no such function
        if code != sources.of_package():
            raise ReportError(
                f"the worker {address} has different code of kit {kit.__version__}: install the same checkout there"
            )
    return sorted({kind for _, kind in workers.values()})


def cell_state(out: Path, cell: Cell) -> dict | None:
    """What cell.json says of a cell that ran, None when it did not."""
    try:
        state = from_json((out / cell.name / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and state.get("key") == cell.key else None


def pending_cells(out: Path, cells: list[Cell]) -> list[Cell]:
    """The cells that have not ended well."""
    return [cell for cell in cells if (cell_state(out, cell) or {}).get("status") != "ok"]


def perform_cells(
    client: Client,
    cells: list[Cell],
    out: Path,
    timeout: float | None = None,
    on_end: Callable[[Cell, Answer], None] = lambda cell, answer: None,
) -> None:
    """Run ``cells`` and keep each in ``out`` when it ends. Dask gives a lost worker's cells to another one.

    A cell that fails, or whose worker dies three times, is a failed cell with its reason; the rest goes on. ReportError
    when another sweep writes to ``out``.
    """
    batch, futures = uuid.uuid4().hex[:8], {}  # a failed cell that runs again must not get its old answer
    with sole_writer(out):
        try:
            for cell in cells:
                key, takes = f"{cell.name}-{batch}", {resource(cell.kind): 1}
                futures[client.submit(run_cell, cell, timeout, key=key, pure=False, resources=takes)] = cell
            for future in as_completed(list(futures), loop=client.loop):
                cell = futures[future]
                answer = _answer(future, cell.kind)
                keep_cell(out, cell, answer)
                on_end(cell, answer)
                future.release()
        finally:
            client.cancel(list(futures), force=True)


def _answer(future, kind: str) -> Answer:
    try:
        return future.result()
    except KilledWorker:
        reason = "it took three workers with it, one after another (out of memory?)"
    except Exception as error:  # whatever stopped it on the worker is this cell's failure, not the sweep's
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return Answer("failed", reason, 0.0, kind, "", {})


def keep_cell(out: Path, cell: Cell, answer: Answer) -> None:
    """Put a cell's files and its state in place in one step; ReportError when they cannot be written."""
    target, partial = out / cell.name, out / f".{cell.name}.partial"
    facts = asdict(answer) | {"cell": asdict(cell), "key": cell.key}
    del facts["files"], facts["cell"]["source"]
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in answer.files.items():
            (partial / name).write_bytes(content)
        (partial / STATE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
    except OSError as error:
        told = helps(error, "name another folder with --out")
        raise ReportError(f"cannot write {target}: {error.strerror}{told}") from None
