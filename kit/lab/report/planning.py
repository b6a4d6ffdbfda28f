"""The jobs of a run: which notebooks, what is left of them to do, what an earlier run has already, and performing them."""

import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import kit
from kit.errors import ReportError
from kit.gguf import remote
from kit.gguf.foreign import check_blocks, check_language_model
from kit.lab.claims import records
from kit.lab.measuring import machine
from kit.lab.measuring.conditions import computing
from kit.lab.measuring.measurements import digest_of
from kit.lab.report import parameters, sources
from kit.lab.report.run import OF_RUN, NotebookOutcome, Request, Run, newest, now, read_notebook
from kit.lab.report.runner import Outcome, execute
from kit.model.hyperparameters import read_config
from kit.system.files import sole_writer

RESERVED = ("profile", "model", "out", "device")  # options of `kit reproduce`, so not to be set by -p
READ_ALL = ("08",)  # the claims: their verdicts come from the records of every notebook
READS = {"08": ("",), "09": ("07",)}  # notebook -> those whose measurements it shows: it runs again when one of them does
KEPT = ("ipynb", "jsonl", "png")  # its page is rendered again and says where it comes from
RUN_NO_MODEL = ("08", "09")  # the claims, and what needs no forward pass


@dataclass(frozen=True)
class Job:
    """A notebook that is to run: its source, what it is given, its number of cells, the heading above each, and what it
    ``declares`` to open and to compile (kit.lab.report.ahead)."""

    name: str
    source: Path
    parameters: dict
    cells: int
    digest: str
    headings: tuple[str, ...] = ()
    declares: dict = field(default_factory=dict)


def plan(request: Request, notebooks: Path, tables: Iterable[Path] = ()) -> list[Job]:
    """The jobs of a request, with every parameter checked: in the order of their names, last those that read all records.
    ``tables``: files that its parameters name."""
    for text in request.texts:
        if (option := text.partition("=")[0]) in RESERVED:
            raise ReportError(f"-p {text}: use --{option}")
    places = {name: notebooks / f"{name}.ipynb" for name in parameters.notebook_names(notebooks, request.only)}
    read = {name: read_notebook(path) for name, path in places.items()}
    cells = {name: notebook.cells for name, notebook in read.items()}
    known = {name: parameters.read(cells[name], path.name) for name, path in places.items()}
    values = parameters.assign(known, request.texts)
    given = {"profile": request.profile, "model": request.model, "out": ".", "device": request.device}
    model, jobs, inside = [*_stamp(request.model), *sorted(computing().items())], [], [table.read_bytes() for table in tables]
    for name, path in places.items():
        injected = {key: value for key, value in given.items() if key in known[name]} | values[name]
        code = [cell.source for cell in cells[name] if cell.cell_type == "code"]
        digest = sources.digest(code, [cell.source for cell in cells[name]], injected, model, inside if values[name] else [])
        total = len(cells[name]) + bool(injected)  # papermill puts them into a cell of their own
        headings = tuple(_headings(cells[name]))
        jobs.append(Job(name, path.resolve(), injected, total, digest, headings, read[name].metadata.get("kit", {})))
    return sorted(jobs, key=lambda job: job.name.startswith(READ_ALL))


def _headings(cells) -> Iterator[str]:
    """The last heading up to each cell; twice for the parameters, after which papermill puts its own."""
    last = ""
    for cell in cells:
        heading = re.search(r"^#+ +(.+)", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        last = heading[1] if heading else last
        yield from [last] * (2 if "parameters" in cell.metadata.get("tags", ()) else 1)


def _stamp(model: str) -> list[tuple]:
    """A digest of a user's model, with size and time of its parts: what is kept of a run holds for that file."""
    if not model:
        return []
    with kit.open(model) as file:
        parts = [(path.stat().st_size, path.stat().st_mtime_ns) for path in map(Path, file.paths) if path.exists()]
        return [*parts, (digest_of(file),)]


def pending(run: Run, jobs: list[Job]) -> list[Job]:
    """Those of the jobs that have not ended well, whose notebook is no longer there, or of which something changed since, and
    those that show what one of them measures (READS)."""
    well = {name: row for name, row in run.notebooks.items() if row.status == "ok"}
    ended = {name: row.digest for name, row in well.items() if (run.folder / f"{name}.ipynb").exists()}
    return _with_readers({job.name for job in jobs if ended.get(job.name) != job.digest} | run.outdated, jobs)


def _with_readers(left: set[str], jobs: list[Job]) -> list[Job]:
    reads = {job.name: READS.get(job.name[:2], ()) for job in jobs}
    return [job for job in jobs if job.name in left or any(name.startswith(reads[job.name]) for name in left)]


def reuse(run: Run, jobs: list[Job]) -> None:
    """Copy into a new run what the newest run of the same request on this kind of machine has of its jobs, where nothing
    changed that they follow from and no other process disturbed them; with them the machine as it was measured then."""
    for earlier in newest(run.folder.parent):
        asked = [(each.machine_id, replace(each.request, only=())) for each in (run, earlier)]
        if earlier.folder == run.folder or asked[0] != asked[1]:
            continue
        left = {job.name for job in pending(earlier, jobs)}
        run.busy_before = sorted(name for name in earlier.notebooks if name not in left and earlier.was_busy(name))
        left = {job.name for job in _with_readers(left | {*run.busy_before}, jobs)}
        if kept := sorted({job.name for job in jobs} - left):
            files = [path for name in kept for kind in KEPT for path in earlier.folder.glob(f"{name}.{kind}")]
            for path in (*files, *filter(Path.exists, (earlier.folder / name for name in OF_RUN))):
                shutil.copy2(path, run.folder / path.name)
            for name in kept:
                row = earlier.notebooks[name]
                run.notebooks[name] = replace(row, kept=row.kept or earlier.folder.name)
            run.planned = sorted({*run.planned, *kept})
            run.save()
            return


def expected(profile: str, jobs: list[Job], results: Path) -> list[float]:
    """Seconds of each job in the newest run of the profile under ``results``; where there is none, their numbers of cells."""
    for earlier in newest(results):
        if earlier.request.profile == profile and all(job.name in earlier.notebooks for job in jobs):
            return [earlier.notebooks[job.name].seconds for job in jobs]
    return [float(job.cells) for job in jobs]


def check_model(model: str, jobs: list[Job]) -> None:
    """Open the model, and where a job runs it look for what keeps it from running, before any notebook starts."""
    if model:
        with remote.opened(model) as file:
            check_blocks(file)
            check_language_model(file)
            if any(not job.name.startswith(RUN_NO_MODEL) for job in jobs):
                read_config(file)


def perform(
    run: Run,
    jobs: list[Job],
    timeout: float | None = None,
    on_cell: Callable[[Job, int], None] = lambda job, cell: None,
    on_end: Callable[[Job, Outcome], None] = lambda job, outcome: None,
    on_second: Callable[[str], None] | None = None,
    taken: Path | None = None,
    draws: Path | None = None,
    at_once: int = 1,
) -> None:
    """Run the jobs one after another. A notebook that fails becomes a failed row and a failed record; the rest goes on.
    ``taken``: a folder for what they measure; a job that was performed with it before takes it from there. ``draws``: after
    the last probe of the run, a file for the names of what such a job measures all the same; then ``at_once`` jobs may run at
    a time.

    ReportError when another process runs notebooks in the folder.
    """
    changes, stop = threading.RLock(), threading.Event() if at_once > 1 else None

    def one(job):
        target, kept = run.folder / f"{job.name}.ipynb", taken and taken / job.name
        with changes:
            for kind in ("jsonl", "ipynb", "html", "png"):
                (run.folder / f"{job.name}.{kind}").unlink(missing_ok=True)
            before = run.notebooks.pop(job.name, None)
            run.save()
            rests_on = dict(run.limits)

        def cell(number):
            rests_on.update({} if rests_on else run.limits)  # the first page measures them
            on_cell(job, number)

        outcome = execute(job.source, target, job.parameters, timeout, cell, on_second, kept, draws, stop)
        with changes:
            _ended(run, job, outcome, rests_on or run.limits, before if taken and draws else None)
            on_end(job, outcome)

    with sole_writer(run.folder):
        run.plan(jobs)
        if stop:
            _at_once(one, jobs, at_once, stop)
        else:
            for job in jobs:
                one(job)


def _at_once(one: Callable[[Job], None], jobs: list[Job], count: int, stop: threading.Event) -> None:
    """``one`` of each job, ``count`` at a time. Where one raises, or Ctrl-C is pressed, ``stop`` ends them, and none begins."""

    def until_stopped(job):
        try:
            if not stop.is_set():
                one(job)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(count) as pool:
        try:
            for done in [pool.submit(until_stopped, job) for job in jobs]:
                done.result()
        except BaseException:
            stop.set()
            raise


def _ended(run: Run, job: Job, outcome: Outcome, limits: dict, measured: NotebookOutcome | None) -> None:
    """Note how a job ended. ``measured``: how it had when it measured what it now shows again, whose seconds are its own."""
    seconds = measured.seconds if measured else outcome.seconds
    then = {"finished": now(), "digest": job.digest, "seconds": seconds} | limits
    run.notebooks[job.name] = NotebookOutcome(**asdict(outcome) | then)
    if outcome.status != "ok":
        failure = records.Record(
            run_id=run.folder.name, notebook=job.name, quantity="notebook", unit="", status="failed",
            reason=f"cell {outcome.cell}: {outcome.reason}", parameters=job.parameters,
            machine_id=run.machine_id, commit=machine.git_commit(), kit_version=run.kit_version,
        )  # fmt: skip
        records.append(run.folder / f"{job.name}.jsonl", failure)
    run.save()
