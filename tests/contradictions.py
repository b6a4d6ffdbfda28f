"""Do two values of one quantity in a run contradict each other? Used by the tests of the ledger and of the smoke run."""

from itertools import combinations
from pathlib import Path

from kit.claims import records
from kit.claims.judge import spread_of
from kit.claims.records import Record
from kit.lab import drift
from kit.units import format_quantity


def contradictions(folder: Path) -> list[str]:
    """Quantities that a run measured more than once, of which two values cannot both be true: a line each.

    The same quantity has the same name, unit and device wherever it stands; values agree when their intervals meet. Times
    below a millisecond are left out: of tiny models, beside other tests, they tell who else was on the cores.
    """
    found: dict[tuple, list[Record]] = {}
    for record in records.read(sorted(Path(folder).glob("*.jsonl"))):
        if record.samples and not (record.unit == "s" and record.median < 0.001):
            key = record.quantity, record.unit, str(record.parameters.get("device", "cpu"))
            found.setdefault(key, []).append(record)
    lines = []
    for (quantity, unit, _), rows in found.items():
        for one, other in combinations(rows, 2):
            if one.notebook == other.notebook and one.claim != other.claim:
                continue  # of two subjects
            (low, high), (least, most) = _range(one), _range(other)
            if high < least or most < low:
                told = " and ".join(f"{format_quantity(row.median, unit)} in {row.notebook}" for row in (one, other))
                lines.append(f"{quantity}: {told}")
    return lines


def _range(record: Record) -> tuple[float, float]:
    value, by = record.median, drift.factor("x")  # within one run, whatever the unit, no more is allowed than for ratios
    return spread_of(record.samples, record.how, "x") or tuple(sorted((value / by, value * by)))
