"""The committed runs of results/reference: one rendered run per kind of machine, the newest; of the others their records."""

import re
import shutil
from pathlib import Path

from benchmarks import _records
from kit.lab.report.run import Run, load
from kit.system.paths import ROOT

RECORDS = ("*.jsonl", "run.json", "environment.json", "peers.json")  # what `kit verify` and the pages of docs read
PAGES = ("*.html", "*.ipynb", "*.png")  # what a reader opens


def add(run: Path) -> Path:
    """Copy a finished run to results/reference/<machine>/<model or profile>, where it replaces one of the same name; an older
    quick run is kept as records beside it, because `make pooled` pools them. ValueError: a run that is not whole."""
    state = load(run)
    _check(state)
    model = Path(state.request.model).name.removesuffix(".gguf")
    folder = _records.REFERENCE / state.machine_id / (model or state.request.profile)
    if folder.exists():
        before = folder.with_name(f"{folder.name}-{load(folder).commit[:7]}")
        shutil.rmtree(folder) if model or before.exists() else folder.rename(before)
    folder.mkdir(parents=True)
    for path in (path for kind in (*RECORDS, *PAGES) for path in run.glob(kind)):
        shutil.copy(path, folder)
    return folder


def _check(state: Run) -> None:
    """ValueError where a notebook failed, was left out, or ran while other processes used the machine."""
    names = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    wrong = {
        "has no": names - {*state.notebooks},
        "failed in": {*state.failed},
        "was disturbed in": {name for name in state.notebooks if state.was_busy(name)},
    }
    for what, found in wrong.items():
        if found:
            raise ValueError(f"{state.folder} {what} {', '.join(sorted(found))}: run it again on an idle machine")


def kind(machine: Path) -> str:
    """CPU, cores and memory of a machine by the name of its folder, which ends in four digits of a digest."""
    return re.sub("-[0-9a-f]{4}$", "", machine.name)


def tidy() -> list[Path]:
    """Remove the pages of every run but the newest rendered one of its kind of machine; the folders that lost pages."""
    newest = {kind(folder.parent): folder for folder in reversed(_records.rendered())}
    tidied = []
    for folder in {path.parent for kind in PAGES for path in _records.REFERENCE.glob(f"*/*/{kind}")} - {*newest.values()}:
        for path in (path for kind in PAGES for path in folder.glob(kind)):
            path.unlink()
        tidied.append(folder)
    return tidied
