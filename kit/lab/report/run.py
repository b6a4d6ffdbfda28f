"""A run: one folder, its notebooks one after another, and a state that survives Ctrl-C, a crash and a full disk.

``<folder>/run.json`` says what was asked and how each notebook ended; it is replaced in one step after every notebook.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import nbformat

import kit
from kit.errors import ReportError
from kit.gguf.summary import check_blocks, check_language_model
from kit.lab import machine, measurements
from kit.lab.claims import gates, records
from kit.lab.claims.book import STATE, anchored
from kit.lab.report import parameters, sources
from kit.lab.report.runner import Outcome, execute
from kit.model.hyperparameters import read_config
from kit.system.files import replacing, sole_writer

RESERVED = ("profile", "model", "out", "device")  # options of `kit reproduce`, so not to be set by -p


@dataclass(frozen=True)
class Request:
    """What the user asked for: two runs of the same request on one machine are the same experiment."""

    profile: str = "quick"
    model: str = ""
    only: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # the -p name=value, as written
    device: str = "cpu"


@dataclass(frozen=True)
class NotebookOutcome(Outcome):
    """How and when one notebook ended. ``digest`` is that of all that it follows from (kit.lab.report.sources): when that has
    changed, it is run again. ``kept``: the name of the run that it was copied from. ``read_gbps``: the run's limit then."""

    finished: str
    digest: str
    kept: str = ""
    read_gbps: float | None = None


@dataclass
class Run:
    """The state of a results folder, as in its run.json."""

    folder: Path
    request: Request
    machine_id: str
    kit_version: str
    commit: str
    started: str
    notebooks: dict[str, NotebookOutcome] = field(default_factory=dict)
    planned: list[str] = field(default_factory=list)
    busy_before: list[str] = field(default_factory=list, repr=False)  # what `reuse` left out; of this command alone

    @property
    def failed(self) -> dict[str, NotebookOutcome]:
        """The notebooks that ended with a failure."""
        return {name: row for name, row in self.notebooks.items() if row.status != "ok"}

    @property
    def read_gbps(self) -> float | None:
        """The best that memory was read at in this run so far; None before it was measured."""
        path = self.folder / "environment.json"
        return machine.read(path).read_gbps if path.exists() else None

    @property
    def outdated(self) -> set[str]:
        """The notebooks whose bounds rest on a lower limit than the run saw later: one limit has one value in a run."""
        best = self.read_gbps or 0
        return {name for name, row in self.notebooks.items() if row.read_gbps and best > row.read_gbps}

    @property
    def again(self) -> set[str]:
        """The outdated that this run measured, so that they are rendered again at little cost. A page kept from an earlier run
        would be measured anew: it stays, and a warning says that its bounds are older."""
        return {name for name in self.outdated if not self.notebooks[name].kept}

    def records_of(self, name: str) -> list[tuple[records.Record, str]]:
        """The records of a notebook, each with the anchor on its page of the cell that wrote it (``#cell-7``)."""
        path = self.folder / f"{name}.jsonl"
        row = self.notebooks.get(name)
        return anchored(path, row and asdict(row)) if path.exists() else []

    def warnings_of(self, name: str) -> list[tuple[str, str]]:
        """What is wrong on a notebook's page by its records: the anchor of the cell, and what."""
        rows = self.records_of(name)
        return [(rows[number][1], text) for number, text in gates.warnings(row for row, _ in rows)]

    def was_busy(self, name: str) -> bool:
        """Whether other processes disturbed a measurement of a notebook."""
        return any(row.state.get("busy") for row, _ in self.records_of(name))

    def plan(self, jobs: "list[Job]") -> None:
        """Note that the jobs are to run."""
        self.planned = sorted({*self.planned, *(job.name for job in jobs)})
        self.save()

    def save(self) -> None:
        """Replace run.json; ReportError when the folder cannot be written (no rights, full disk)."""
        state = {key: value for key, value in asdict(self).items() if key not in ("folder", "busy_before")}
        write_atomically(self.folder / STATE, json.dumps({"schema_version": 1, **state}, indent=1) + "\n")


def load(folder: Path) -> Run:
    """The run in ``folder``; ReportError when there is none or its state cannot be read."""
    path = Path(folder) / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        del state["schema_version"]
        request = state.pop("request")
        lists = {name: tuple(request[name]) for name in ("only", "texts")}
        state["request"] = Request(**request | lists)  # a run from before there was a device has none
        state["notebooks"] = {name: NotebookOutcome(**row) for name, row in state["notebooks"].items()}
        return Run(folder=Path(folder), **state)
    except FileNotFoundError:
        raise ReportError(f"{folder} holds no run: {STATE} is missing") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReportError(f"{path} is not the state of a run ({error}): start a new one in another folder") from None


def latest(results: Path) -> Path:
    """The newest run under ``results``; ReportError when there is none."""
    states = sorted(Path(results).glob(f"*/{STATE}"), key=lambda path: path.stat().st_mtime)
    if not states:
        raise ReportError(f"nothing to resume: {results} holds no run")
    return states[-1].parent


def newest(results: Path) -> Iterator[Run]:
    """The runs under ``results`` whose state can be read, the newest first."""
    for state in sorted(results.glob(f"*/{STATE}"), key=lambda path: -path.stat().st_mtime):
        with suppress(ReportError):
            yield load(state.parent)


def start(folder: Path, request: Request) -> Run:
    """A new run in ``folder``, which is made; ReportError when it cannot be written, holds a run already, or other files."""
    with sole_writer(folder):
        if (folder / STATE).exists():
            raise ReportError(f"{folder} already has a run: add --resume to continue it, or name another folder with --out")
        if others := sorted(path.name for path in folder.iterdir() if path.name not in OF_RUN and path.name[0] != "."):
            raise ReportError(f"{folder} has other files ({others[0]}): name a new folder with --out")
        run = Run(folder, request, machine.machine_id(), kit.__version__, machine.git_commit(), now())
        run.save()
    return run


def resume(folder: Path, **asked) -> Run:
    """The run in ``folder`` to go on with. What was ``asked`` (fields of Request) must agree with it, as must the machine.

    ``only`` may differ: it selects among the notebooks of the same experiment.
    """
    run = load(folder)
    for name in ("profile", "model", "texts", "device"):
        before, wanted = getattr(run.request, name), asked.get(name)
        if wanted and wanted != before:
            option = {"texts": "-p"}.get(name, f"--{name}")
            raise ReportError(f"{folder} was run with {option} {before!r}, not {wanted!r}: leave it out or start a new run")
    if run.machine_id != machine.machine_id():
        raise ReportError(
            f"cannot resume {folder}: it was started on another machine ({run.machine_id}, this is {machine.machine_id()}); "
            "start a new run without --resume"
        )
    run.request = replace(run.request, only=asked.get("only") or run.request.only)
    return run


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


def plan(request: Request, notebooks: Path) -> list[Job]:
    """The jobs of a request, with every parameter checked: in the order of their names, last those that read all records."""
    for text in request.texts:
        if (option := text.partition("=")[0]) in RESERVED:
            raise ReportError(f"-p {text}: use --{option}")
    places = {name: notebooks / f"{name}.ipynb" for name in parameters.notebook_names(notebooks, request.only)}
    read = {name: read_notebook(path) for name, path in places.items()}
    cells = {name: notebook.cells for name, notebook in read.items()}
    known = {name: parameters.read(cells[name], path.name) for name, path in places.items()}
    values = parameters.assign(known, request.texts)
    given = {"profile": request.profile, "model": request.model, "out": ".", "device": request.device}
    model, jobs = _stamp(request.model), []
    for name, path in places.items():
        injected = {key: value for key, value in given.items() if key in known[name]} | values[name]
        code = [cell.source for cell in cells[name] if cell.cell_type == "code"]
        digest = sources.digest(code, [cell.source for cell in cells[name]], injected, model)
        total = len(cells[name]) + bool(injected)  # papermill puts them into a cell of their own
        headings = tuple(_headings(cells[name]))
        jobs.append(Job(name, path.resolve(), injected, total, digest, headings, read[name].metadata.get("kit", {})))
    return sorted(jobs, key=lambda job: job.name.startswith(READ_ALL))


def _headings(cells) -> Iterator[str]:
    """The last heading up to each cell; twice for the parameters, after which papermill puts its own."""
    last = ""
    for cell in cells:
        found = re.search(r"^#+ +(.+)", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        last = found[1] if found else last
        yield from [last] * (2 if "parameters" in cell.metadata.get("tags", ()) else 1)


def _stamp(model: str) -> list[tuple]:
    """Size and time of the parts of a user's model: what is kept of a run holds for that file."""
    if not model:
        return []
    with kit.open(model) as file:
        return [(path.stat().st_size, path.stat().st_mtime_ns) for path in map(Path, file.paths) if path.exists()]


def pending(run: Run, jobs: list[Job]) -> list[Job]:
    """Those of the jobs that have not ended well, or of which something changed since; with any of them, what reads the
    records of all."""
    ended = {name: row.digest for name, row in run.notebooks.items() if row.status == "ok"}
    left = {job.name for job in jobs if ended.get(job.name) != job.digest} | run.outdated
    return [job for job in jobs if job.name in left or (left and job.name.startswith(READ_ALL))]


def reuse(run: Run, jobs: list[Job]) -> None:
    """Copy into a new run what the newest run of the same request on this kind of machine has of its jobs, where nothing
    changed that they follow from and no other process disturbed them; with them the machine as it was measured then."""
    for earlier in newest(run.folder.parent):
        asked = [(each.machine_id, replace(each.request, only=())) for each in (run, earlier)]
        if earlier.folder == run.folder or asked[0] != asked[1]:
            continue
        left = {job.name for job in pending(earlier, jobs)}
        run.busy_before = sorted(name for name in earlier.notebooks if name not in left and earlier.was_busy(name))
        left |= {*run.busy_before}
        whole = {job.name for job in jobs if (earlier.folder / f"{job.name}.ipynb").exists()}
        if kept := sorted(whole - left):
            files = [path for name in kept for kind in KEPT for path in earlier.folder.glob(f"{name}.{kind}")]
            for path in (*files, *filter(Path.exists, (earlier.folder / name for name in OF_RUN))):
                shutil.copy2(path, run.folder / path.name)
            for name in kept:
                row = earlier.notebooks[name]
                run.notebooks[name] = replace(row, kept=row.kept or earlier.folder.name)
            run.planned = sorted({*run.planned, *kept})
            run.save()
            return


READ_ALL = ("08",)  # the claims: their verdicts come from the records of every notebook
KEPT = ("ipynb", "jsonl", "png")  # its page is rendered again and says where it comes from
OF_RUN = ("environment.json", "peers.json", measurements.NAME)  # measured once, for all notebooks


def expected(profile: str, jobs: list[Job], results: Path) -> list[float]:
    """Seconds of each job in the newest run of the profile under ``results``; where there is none, their numbers of cells."""
    for earlier in newest(results):
        if earlier.request.profile == profile and all(job.name in earlier.notebooks for job in jobs):
            return [earlier.notebooks[job.name].seconds for job in jobs]
    return [float(job.cells) for job in jobs]


RUN_NO_MODEL = ("08", "09")  # the claims, and what needs no forward pass


def check_model(model: str, jobs: list[Job]) -> None:
    """Open the model, and where a job runs it look for what keeps it from running, before any notebook starts."""
    if model:
        with kit.open(model) as file:
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
) -> None:
    """Run the jobs one after another. A notebook that fails becomes a failed row and a failed record; the rest goes on.
    ``taken``: a folder for what they measure; a job that was performed with it before is rendered from that.

    ReportError when another process runs notebooks in the folder.
    """
    with sole_writer(run.folder):
        run.plan(jobs)
        for job in jobs:
            for kind in ("jsonl", "ipynb", "html", "png"):
                (run.folder / f"{job.name}.{kind}").unlink(missing_ok=True)
            run.notebooks.pop(job.name, None)
            run.save()
            target = run.folder / f"{job.name}.ipynb"
            kept = taken and taken / job.name
            outcome = execute(job.source, target, job.parameters, timeout, lambda n, job=job: on_cell(job, n), on_second, kept)
            then = {"finished": now(), "digest": job.digest, "read_gbps": run.read_gbps}
            run.notebooks[job.name] = NotebookOutcome(**asdict(outcome), **then)
            if outcome.status != "ok":
                failure = records.Record(
                    run_id=run.folder.name, notebook=job.name, quantity="notebook", unit="", status="failed",
                    reason=f"cell {outcome.cell}: {outcome.reason}", parameters=job.parameters,
                    machine_id=run.machine_id, commit=machine.git_commit(), kit_version=run.kit_version,
                )  # fmt: skip
                records.append(target.with_suffix(".jsonl"), failure)
            run.save()
            on_end(job, outcome)


def read_notebook(path: Path):
    """The notebook at ``path`` (nbformat 4); ReportError when it is none."""
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError, AttributeError) as error:
        raise ReportError(f"{path}: not a notebook ({str(error).splitlines()[0]})") from None


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` in one step, or leave it as it was; ReportError says why (no rights, full disk) and what to do."""
    with replacing(path, error=ReportError, remedy="; free some space or name another folder") as file:
        file.write(text.encode())


def now() -> str:
    """UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
