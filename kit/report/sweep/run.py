"""A sweep: its cells on the workers of a Dask cluster, each finished one kept at once in a run folder of its own."""

import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import dask
from distributed import Client, KilledWorker, LocalCluster, as_completed

import kit
from kit.errors import ReportError
from kit.report.sweep.spec import Cell, Grid
from kit.report.sweep.worker import Answer, Prepare, identity, resource, run_cell

STATE = "cell.json"  # in the folder of a cell; put there last, so a cell that has one is whole


@contextmanager
def connect(scheduler: str = "", workers: int = 1, wait: float = 60) -> Iterator[Client]:
    """A client whose workers are ready for cells: of the ``scheduler`` at that address, else of a LocalCluster.

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
        try:
            client = stack.enter_context(Client(scheduler, timeout=wait, set_as_default=False))
        except (OSError, ValueError) as error:
            raise ReportError(f"--scheduler {scheduler}: {error}") from None
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
    """The kinds of machine that the workers run on; ReportError for a worker with another version of the kit."""
    found = client.run(identity)
    for address, (version, _) in found.items():
        if version != kit.__version__:
            raise ReportError(f"the worker {address} has kit {version}, this is {kit.__version__}: install the same there")
    return sorted({kind for _, kind in found.values()})


def state_of(out: Path, cell: Cell) -> dict | None:
    """What cell.json says of a cell that ran, None when it did not."""
    try:
        state = json.loads((out / cell.name / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if state.get("key") == cell.key else None


def pending(out: Path, cells: list[Cell]) -> list[Cell]:
    """The cells that have not ended well."""
    return [cell for cell in cells if (state_of(out, cell) or {}).get("status") != "ok"]


def perform(
    client: Client,
    grid: Grid,
    cells: list[Cell],
    out: Path,
    timeout: float | None = None,
    on_end: Callable[[Cell, Answer], None] = lambda cell, answer: None,
) -> None:
    """Run ``cells`` and keep each in ``out`` when it ends. Dask gives a lost worker's cells to another one.

    A cell that fails, or that takes three workers with it, is a failed cell with its reason; the rest goes on.
    """
    batch = uuid.uuid4().hex[:8]  # a failed cell that runs again must not get its old answer
    futures = {
        client.submit(
            run_cell, cell, grid.sources[cell.notebook], timeout, key=f"{cell.name}-{batch}", pure=False,
            resources={resource(cell.kind): 1},
        ): cell
        for cell in cells
    }  # fmt: skip
    try:
        for future in as_completed(list(futures), loop=client.loop):
            cell = futures[future]
            answer = _answer(future, cell.kind)
            keep(out, cell, answer)
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


def keep(out: Path, cell: Cell, answer: Answer) -> None:
    """Put a cell's files and its state in place in one step; ReportError when they cannot be written."""
    target, partial = out / cell.name, out / f".{cell.name}.partial"
    facts = asdict(answer) | {"cell": asdict(cell), "key": cell.key}
    del facts["files"]
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in answer.files.items():
            (partial / name).write_bytes(content)
        (partial / STATE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
    except OSError as error:
        raise ReportError(f"cannot write {target}: {error.strerror}; free some space or name another --out") from None
