"""The results of a sweep: a page over all cells, a CSV with a row a record, a table with a row a cell."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from kit.lab.claims import records
from kit.lab.report import html, index, theme
from kit.lab.report.run import STATE, load
from kit.lab.report.sweep.run import cell_state
from kit.lab.report.sweep.spec import Cell
from kit.units import format_quantity

NOT_RUN = {"status": "not run", "seconds": None, "reason": ""}


class Result(NamedTuple):
    """A cell, its state (as in cell.json, or NOT_RUN) and its records."""

    cell: Cell
    state: dict
    records: list[records.Record]

    @property
    def measured(self) -> dict[tuple[str, str], float]:
        """(quantity, unit) -> median, of the records without a verdict."""
        return {(row.quantity, row.unit): row.median for row in self.records if not row.verdict and row.status == "ok"}

    @property
    def busy(self) -> bool:
        """Whether other processes disturbed it."""
        return bool(index.busy(self.records))


def results(out: Path, cells: list[Cell]) -> list[Result]:
    """The results of the cells in the folder of a sweep."""
    return [Result(cell, cell_state(out, cell) or NOT_RUN, records.of_run(out / cell.name)) for cell in cells]


def write(out: Path, cells: list[Cell]) -> Path | None:
    """Pages of the cells that ran, table.csv (a row a record), and index.html over them all: its path, None when none ran."""
    ran = [cell for cell in cells if (out / cell.name / STATE).exists()]
    for cell in ran:
        if not (out / cell.name / "index.html").exists():
            run = load(out / cell.name)
            html.write(run, cell.notebook)
            index.write(run)
    if not ran:
        return None
    outcomes = results(out, cells)
    names = ("claim", "quantity", "unit", "median", "lower", "upper", "verdict")
    rows = [
        {"notebook": cell.notebook} | cell.facts | {name: getattr(row, name) for name in names}
        for cell, _, measured in outcomes
        for row in measured
    ]
    pd.DataFrame(rows).to_csv(out / "table.csv", index=False)
    groups = {cell.notebook: [result for result in outcomes if result.cell.notebook == cell.notebook] for cell in cells}
    return theme.write(
        out / "index.html",
        "sweep.html.j2",
        folder=out.resolve().name,
        results=outcomes,
        pages={cell.name for cell in ran},
        machines=list({cell.kind: html.environment(out / cell.name) for cell in ran}.items()),
        groups=[(notebook, _names(r.cell.facts for r in group), _names(r.measured for r in group), group)
                for notebook, group in groups.items()],
        verdicts=[(result.cell, row) for result in outcomes for row in result.records if row.verdict],
    )  # fmt: skip


def table(out: Path, cells: list[Cell], as_text: bool = False) -> pd.DataFrame:
    """One row a cell: what it is, how it ended, its seconds, the medians of its plain measurements, and the reason. The
    medians are plain numbers in seconds and bytes, or text with their units."""
    rows = []
    for result in results(out, cells):
        cell, state = result.cell, result.state
        row = {"notebook": cell.notebook, **cell.facts, "status": state["status"], "seconds": state["seconds"]}
        medians = {quantity: format_quantity(median, unit) if as_text else round(median) if unit == "B" else median
                   for (quantity, unit), median in result.measured.items()}  # fmt: skip
        rows.append(row | medians | {"reason": state["reason"]})
    return pd.DataFrame(rows, dtype=None if as_text else object)  # a cell that lacks them would make bytes floats


def _names(rows: Iterable[dict]) -> list:
    return list({name: None for row in rows for name in row})
