"""What a sweep leaves to read: the page over all cells, one long table, and one row a cell."""

from pathlib import Path

import pandas as pd

from kit.claims import records
from kit.report import html, index, theme
from kit.report.run import STATE, load, write_atomically
from kit.report.sweep.run import state_of
from kit.report.sweep.spec import Cell

NOT_RUN = {"status": "not run", "seconds": None, "reason": ""}


def write(out: Path, cells: list[Cell]) -> Path | None:
    """Pages of the cells that ran, table.csv, and index.html over them all: its path, None when none ran."""
    ran = [cell for cell in cells if (out / cell.name / STATE).exists()]
    for cell in ran:
        if not (out / cell.name / "index.html").exists():
            run = load(out / cell.name)
            html.write(run, cell.notebook)
            index.write(run)
    if not ran:
        return None
    rows = {cell: _records(out, cell) for cell in cells}
    measurements(rows).to_csv(out / "table.csv", index=False)
    states = {cell: state_of(out, cell) or NOT_RUN for cell in cells}
    page = theme.render(
        "sweep.html.j2",
        folder=out.resolve().name,
        cells=len(cells),
        failed=[(cell, state) for cell, state in states.items() if state["status"] == "failed"],
        machines=list({cell.kind: html.environment(out / cell.name) for cell in ran}.items()),
        groups=[
            _group(notebook, {cell: rows[cell] for cell in cells if cell.notebook == notebook}, states, ran)
            for notebook in dict.fromkeys(cell.notebook for cell in cells)
        ],
        verdicts=[(cell, row) for cell, found in rows.items() for row in found if row.verdict],
    )
    write_atomically(out / "index.html", page)
    return out / "index.html"


def _group(notebook: str, rows: dict[Cell, list[records.Record]], states: dict[Cell, dict], ran: list[Cell]) -> dict:
    """One notebook's table: a row a cell, a column for each setting and each plain measurement."""
    measured = {
        cell: {(row.quantity, row.unit): row.median for row in found if not row.verdict and row.status == "ok"}
        for cell, found in rows.items()
    }
    settings = {name: None for cell in rows for name in facts(cell)}
    return {
        "notebook": notebook,
        "axes": list(settings),
        "quantities": list(dict.fromkeys(key for found in measured.values() for key in found)),
        "rows": [
            {"facts": [facts(cell).get(name, "") for name in settings], "page": cell.name if cell in ran else "",
             "status": states[cell]["status"], "seconds": states[cell]["seconds"], "measured": measured[cell]}
            for cell in rows
        ],
    }  # fmt: skip


def facts(cell: Cell) -> dict[str, str]:
    """What distinguishes a cell from the others of its notebook."""
    return {"model": cell.model.label or f"of the profile {cell.profile}"} | cell.settings | {"machine": cell.kind}


def _records(out: Path, cell: Cell) -> list[records.Record]:
    return records.read(sorted((out / cell.name).glob("*.jsonl")))


def measurements(rows: dict[Cell, list[records.Record]]) -> pd.DataFrame:
    """One row a record: notebook and facts of its cell, then claim, quantity, unit, median, bounds and verdict."""
    names = ("claim", "quantity", "unit", "median", "lower", "upper", "verdict")
    return pd.DataFrame(
        {"notebook": cell.notebook} | facts(cell) | {name: getattr(row, name) for name in names}
        for cell, found in rows.items()
        for row in found
    )


def table(out: Path, cells: list[Cell]) -> pd.DataFrame:
    """One row a cell: what it is, how it ended, its seconds, the medians of its plain measurements, and the reason."""
    rows = []
    for cell in cells:
        state = state_of(out, cell) or NOT_RUN
        row = {"notebook": cell.notebook, **facts(cell), "status": state["status"], "seconds": state["seconds"]}
        row |= {r.quantity: r.median for r in _records(out, cell) if not r.verdict and r.status == "ok"}
        rows.append(row | {"reason": state["reason"]})
    return pd.DataFrame(rows)
