"""The front page of a run: five answers, what to do, the notebooks, every claim with its verdict, and what was not run."""

from pathlib import Path

from kit.claims import book
from kit.claims.book import Entry
from kit.claims.records import WARNED, Record
from kit.report import content, html, theme
from kit.report.checklist import checklist
from kit.report.run import Run

ANSWERED = {  # the claims that a reader comes for, and what each asks
    "first-token-preload": "Does preloading bring the first token from minutes to an instant?",
    "variance-45-1100": "Can one build give 45 and 1100 tokens a second?",
    "hit-rate-85": "Do 20 entries for 155 layers hit 85%?",
    "tile-295-5": "Does a tile need 295 ms, and a GPU to be fast?",
    "five-tokens": "Can five tokens go from 8 hours to 35 seconds?",
}
TO_DO = "07_memory_frontier"  # its answer is what to do


def write(run: Run) -> Path:
    """Render ``<run>/index.html`` from the run's state, records, pages and environment."""
    rows = [row for name in run.planned for row, _ in run.records_of(name)]
    cells = {name: html.cells_of(run.folder / f"{name}.ipynb") for name in run.planned}
    entries = book.read(run.folder)
    return theme.write(
        run.folder / "index.html",
        "index.html.j2",
        run=run,
        environment=html.environment(run.folder),
        cards=[card(run, name, cells[name]) for name in run.planned],
        pages={name for name in run.planned if (run.folder / f"{name}.html").exists()},
        failed=run.failed,
        unfinished=[name for name in run.planned if name not in run.notebooks],
        ledger=entries,
        answers=answers(entries, rows),
        to_do=(TO_DO, html.answer(cells.get(TO_DO, []))),
        tally=[(word, count) for word, count in book.tally(entries).items() if count],
        warnings=[(name, anchor, text) for name in run.planned for anchor, text in run.warnings_of(name)],
        measurements=[row for row in rows if not row.verdict and row.status != WARNED],
        records_uri=html.records_uri(run, run.planned),
        checklist=checklist(run, rows, run.planned),
    )


def answers(entries: list[Entry], rows: list[Record]) -> list[dict]:
    """The questions of ANSWERED, each with its claim's verdict: what was claimed, measured and possible, and why.

    Measured: the slowest and the fastest record in the claim's unit. Possible: the bound of the record that decides, or of
    the fastest.
    """
    found, by_id = [], {entry.claim.id: entry for entry in entries}
    for name, question in ANSWERED.items():
        entry = by_id[name]
        claim, deciding = entry.claim, entry.decisive
        own = [row for row in rows if row.claim == name and row.unit == claim.unit and row.status == "ok"]
        real = [row for row in own if row.how != "computed"]
        real = real or [part.record for part in entry.parts if part.record.status == "ok"]
        if not deciding or not real:
            continue
        real = sorted((row for row in real if row.unit == real[0].unit), key=lambda row: row.median, reverse=claim.unit == "s")
        bounded = [row for row in (deciding.record, *own, *real) if row.lower is not None or row.upper is not None]
        bounded.sort(key=lambda row: row.unit != real[0].unit)
        found.append({
            "question": question, "claim": claim, "verdict": entry.verdict, "decides": deciding,
            "ends": real[:1] + real[-1:] * (real[0].median != real[-1].median), "bound": bounded[0] if bounded else None,
            "how": "Measured" if any(row.how != "computed" for row in real) else "Computed",
        })  # fmt: skip
    return found


def card(run: Run, name: str, cells: list[dict]) -> dict:
    """What the front page shows of one notebook; of a run without its .png files, the figure at its full size."""
    state = run.notebooks.get(name)
    headings = [text for cell in cells for _, _, text in cell["headings"]]
    picture = run.folder / f"{name}.png"
    return {
        "name": name,
        "title": headings[0] if headings else name,
        "summary": html.summary(cells),
        "status": state.status if state else "not run",
        "kept": state.kept if state else "",
        "thumbnail": content.data_uri(picture.read_bytes(), "image/png") if picture.exists() else html.picture(cells),
    }
