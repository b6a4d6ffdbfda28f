"""Several runs as one: their folders side by side under one front page, and one run as one file to send."""

import shutil
import zipfile
from pathlib import Path

from kit.errors import ReportError
from kit.lab.claims import book, records
from kit.lab.claims.runs import aligned
from kit.lab.report import html, index, theme
from kit.lab.report.run import STATE, load
from kit.system.files import check_output, replacing


def runs_in(folder: Path) -> list[Path]:
    """``folder`` when it is a run, else the runs right under it (a merged folder); ReportError when there is none."""
    folder = Path(folder)
    folders = [folder] if (folder / STATE).exists() else sorted(path.parent for path in folder.glob(f"*/{STATE}"))
    if not folders:
        raise ReportError(f"{folder} has no run: expected {STATE} in it or in a folder directly below it")
    return folders


def merge(folders: list[Path], target: Path) -> Path:
    """Copy the runs in ``folders`` under ``target`` and write its index; the path of the index.

    ReportError when ``target`` exists and holds anything, or two runs have one name and are not one run.
    """
    sources = list(dict.fromkeys(run.resolve() for folder in folders for run in runs_in(folder)))
    if target.exists() and any(target.iterdir()):
        raise ReportError(f"{target} is not empty: name a new folder for the merged report with --out")
    check_output(target, sources, ReportError)
    names = [source.name for source in sources]
    labels = [name if names.count(name) == 1 else f"{name}-{load(source).machine_id}"
              for name, source in zip(names, sources, strict=True)]  # fmt: skip
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ReportError(f"two runs are named {twice}: rename the folder of one")
    for source, label in zip(sources, labels, strict=True):
        shutil.copytree(source, target / label, ignore=shutil.ignore_patterns(".*"))
    return write_index(target)


def write_index(folder: Path) -> Path:
    """Render the front page of a merged folder: machines, claims and measurements, a column a run."""
    runs = [load(path) for path in runs_in(folder)]
    rows = aligned([records.of_run(run.folder) for run in runs], settings=False)
    return theme.write(
        folder / "index.html",
        "merged.html.j2",
        folder=folder.resolve().name,
        runs=[(run, html.environment(run.folder)) for run in runs],
        busy={run.folder: index.busy(records.of_run(run.folder)) for run in runs},
        claims=[(entries[0].claim, [[part.record for part in entry.parts] for entry in entries])
                for entries in zip(*(book.read(run.folder) for run in runs), strict=True)],
        measurements=[(next(filter(None, row)), [one and one.median for one in row])
                      for row in rows if sum(one is not None and one.median is not None for one in row) > 1],
        failed=[(run, name, row) for run in runs for name, row in run.failed.items()],
    )  # fmt: skip


def render(folder: Path) -> Path:
    """Render all pages of a run, or of a merged folder with its runs, again; the path of the index.

    ReportError for any other folder, also one that holds runs: nothing is written there.
    """
    if not (folder / STATE).exists() and not (folder / "index.html").exists():
        names = ", ".join(path.name for path in runs_in(folder)[:3])
        raise ReportError(f"{folder} is neither a run nor a merged report: name one of its runs ({names}, ...), or join them "
                          "by kit report merge")  # fmt: skip
    for path in runs_in(folder):
        run = load(path)
        for name in run.notebooks:
            html.write(run, name)
        front = index.write(run)
    return front if (folder / STATE).exists() else write_index(folder)


def pack(folder: Path, target: Path) -> Path:
    """One zip of a run or a merged folder, unpacking to a folder of the same name; ReportError when it cannot be written."""
    runs_in(folder)
    check_output(target, [folder], ReportError)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    with replacing(target, error=ReportError, remedy="name another file by --out") as out:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, Path(folder.resolve().name) / path.relative_to(folder))
    return target
