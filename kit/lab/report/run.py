"""A run: one folder, its notebooks one after another, and a state that survives Ctrl-C, a crash and a full disk.

``<folder>/run.json`` says what was asked and how each notebook ended; it is replaced in one step after every notebook.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import nbformat

import kit
from kit.errors import ReportError
from kit.lab.claims import gates, records
from kit.lab.claims.book import STATE, anchored
from kit.lab.claims.gates import NOISE
from kit.lab.measuring import limits, machine, measurements, sound
from kit.lab.report.runner import Outcome
from kit.system.files import sole_writer, write_whole
from kit.units import from_json

OF_RUN = (machine.ENVIRONMENT, measurements.PEERS, measurements.NAME)  # measured once, for all notebooks


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
    changed, it is run again. ``kept``: the name of the run that it was copied from. ``read_gbps``, ``write_gbps``: the run's
    limits when it began, on which its bounds rest; what it probes itself may raise them."""

    finished: str
    digest: str
    kept: str = ""
    read_gbps: float | None = None
    write_gbps: float | None = None


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
    def limits(self) -> dict[str, float]:
        """The best that memory was read and written at in this run so far; {} before it was measured."""
        known = machine.kept(self.folder)
        return {name: getattr(known, name) for name in limits.SEEN.values()} if known else {}

    @property
    def outdated(self) -> set[str]:
        """The notebooks whose bounds rest on a lower limit than the run saw later, by more than a bound's rounding: one limit
        has one value in a run."""
        best = self.limits
        rose = lambda row: any((old := getattr(row, name)) and now > NOISE * old for name, now in best.items())  # noqa: E731
        return {name for name, row in self.notebooks.items() if rose(row)}

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

    def plan(self, jobs: list) -> None:
        """Note that the jobs are to run."""
        self.planned = sorted({*self.planned, *(job.name for job in jobs)})
        self.save()

    def save(self) -> None:
        """Replace run.json; ReportError when the folder cannot be written (no rights, full disk)."""
        state = {key: value for key, value in asdict(self).items() if key not in ("folder", "busy_before")}
        write_whole(self.folder / STATE, json.dumps({"schema_version": 1, **state}, indent=1) + "\n")


def load(folder: Path) -> Run:
    """The run in ``folder``; ReportError when there is none or its state cannot be read."""
    path = Path(folder) / STATE
    try:
        state = from_json(path.read_text(encoding="utf-8"))
        del state["schema_version"]
        request = state.pop("request")
        state["request"] = sound.row_of(Request, request)  # a run from before there was a device has none
        state["notebooks"] = {name: sound.row_of(NotebookOutcome, row) for name, row in state["notebooks"].items()}
        rest = {name: value for name, value in state.items() if name not in ("request", "notebooks")}
        checked = sound.row_of(Run, rest | {"folder": str(folder), "request": state["request"]})
        return replace(checked, notebooks=state["notebooks"])
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


def read_notebook(path: Path):
    """The notebook at ``path`` (nbformat 4); ReportError when it is none."""
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError, AttributeError, RecursionError) as error:
        raise ReportError(f"{path}: not a notebook ({str(error).splitlines()[0]})") from None


def now() -> str:
    """UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
