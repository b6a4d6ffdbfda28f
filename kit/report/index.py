"""The front page of a run: the machine, the notebooks, every claim with its verdict, and what was not run."""

import base64
import io
from collections import Counter
from pathlib import Path

from kit.claims import table as claims
from kit.claims.records import Record
from kit.report import html, theme
from kit.report.checklist import checklist
from kit.report.run import Run, write_atomically

NO_RECORD = "no record"
THUMBNAIL = (640, 360)  # pixels: twice what a card shows


def write(run: Run) -> Path:
    """Render ``<run>/index.html`` from the run's state, records, pages and environment."""
    logs = [path for name in run.planned if (path := run.folder / f"{name}.jsonl").exists()]
    rows = [pair for name in run.planned for pair in run.records_of(name)]
    cells = {name: html.cells_of(path) for name in run.planned if (path := run.folder / f"{name}.ipynb").exists()}
    book = ledger(run, rows)
    words = Counter(row.verdict for entry in book for row, _ in entry["rows"])
    words[NO_RECORD] = sum(not entry["rows"] for entry in book)
    page = theme.render(
        "index.html.j2",
        run=run,
        environment=html.environment(run.folder),
        cards=[card(run, name, cells.get(name, []), rows) for name in run.planned],
        pages={name for name in run.planned if (run.folder / f"{name}.html").exists()},
        failed=run.failed,
        unfinished=[name for name in run.planned if name not in run.notebooks],
        ledger=book,
        tally=[(word, words[word]) for word in [*claims.VERDICTS, NO_RECORD] if words[word]],
        measurements=_by_notebook(row for row, _ in rows if not row.verdict),
        records_uri=theme.data_uri(b"".join(log.read_bytes() for log in logs), "application/x-ndjson")
        if logs
        else None,
        checklist=checklist(run, [row for row, _ in rows], run.planned),
    )
    target = run.folder / "index.html"
    write_atomically(target, page)
    return target


def ledger(run: Run, rows: list[tuple[Record, str]]) -> list[dict]:
    """Every claim of data/claims.yaml with its records (and their anchors) that carry a verdict, or what is missing for one."""
    return [
        {
            "claim": claim,
            "rows": [(row, anchor) for row, anchor in rows if row.claim == claim.id and row.verdict],
            "missing": missing(run, claim),
        }
        for claim in claims.load().values()
    ]


def missing(run: Run, claim: claims.Claim) -> str:
    """Why a claim has no verdict in this run."""
    state = run.notebooks.get(claim.notebook)
    if state is None:
        return f"{claim.notebook} was not run"
    if state.status != "ok":
        return f"{claim.notebook} failed before it came to this claim"
    return f"{claim.notebook} ran and wrote no verdict for it"


def card(run: Run, name: str, cells: list[dict], rows: list[tuple[Record, str]]) -> dict:
    """What the front page shows of one notebook."""
    state = run.notebooks.get(name)
    headings = [text for cell in cells for _, _, text in cell["headings"]]
    figures = [output["body"] for cell in cells for output in cell["outputs"] if output["kind"] == "image"]
    return {
        "name": name,
        "title": headings[0] if headings else name,
        "summary": html.summary(cells),
        "status": state.status if state else "not run",
        "seconds": state.seconds if state else None,
        "figures": len(figures),
        "records": sum(row.notebook == name for row, _ in rows),
        "thumbnail": thumbnail(figures[0]) if figures else None,
    }


def thumbnail(uri: str) -> str:
    """A small PNG of an embedded picture; an SVG is small as it is."""
    if not uri.startswith("data:image/png"):
        return uri
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        image.thumbnail(THUMBNAIL)
        buffer = io.BytesIO()
        image.convert("RGB").quantize(64).save(buffer, "PNG", optimize=True)
    return theme.data_uri(buffer.getvalue(), "image/png")


def _by_notebook(rows) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for row in rows:
        groups.setdefault(row.notebook, []).append(row)
    return groups
