"""The claims of the field reports (data/claims.yaml) and the verdicts that a record may give them."""

from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path

from kit.errors import ReportError
from kit.lab.files import read_yaml
from kit.lab.paths import data_file

VERDICTS = {  # FINDINGS: what each word means
    "reproduced": "measured here within the stated tolerance",
    "reproduced in ratio": "the effect, at another size or on another machine, within the tolerance of the ratio",
    "undecided here": "the interval touches the threshold, or repeated runs disagree; the reason says what would decide it",
    "not reproduced": "measured, and it is otherwise",
    "impossible": "a stated bound forbids it; the bound is measured or sourced",
    "not measurable here": "something is missing: a GPU, memory, a file",
}

COLORS = {  # one color a verdict, on pages and in figures; readable on white
    "reproduced": "#00795a",
    "reproduced in ratio": "#1d6fa5",
    "undecided here": "#6a4fa3",
    "not reproduced": "#a15c00",
    "impossible": "#a4332b",
    "not measurable here": "#6b747d",
    "no record": "#7d6e63",
}


@dataclass(frozen=True)
class Claim:
    """One row of claims.yaml. ``before`` and ``after`` are the report's figures in ``unit``, where it gives any."""

    id: str
    report: str
    claim: str
    reported: str
    notebook: str
    before: float | None = None
    after: float | None = None
    unit: str = ""
    ratio: tuple[float, float] | None = None


_NEEDED = [field.name for field in fields(Claim) if field.default is MISSING]


def _is_number(value) -> bool:
    return isinstance(value, (int, float))


def _is_range(value) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


_CHECKS = {field.name: lambda value: isinstance(value, str) for field in fields(Claim)} | {
    "before": _is_number, "after": _is_number, "ratio": _is_range,
}  # fmt: skip


@cache
def load() -> dict[str, Claim]:
    """All claims by id, in the order of the file."""
    return read(data_file("claims.yaml"))


def read(path: Path) -> dict[str, Claim]:
    """The claims of a YAML file by id. ReportError names the file, the row and its key."""
    rows = read_yaml(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ReportError(f"{path}: a list of claims is needed, each with: {', '.join(_CHECKS)}")
    claims: dict[str, Claim] = {}
    for number, row in enumerate(rows, 1):
        wrong = [repr(key) for key, value in row.items() if key not in _CHECKS or not _CHECKS[key](value)]
        missing = [key for key in _NEEDED if key not in row]
        if wrong or missing:
            raise ReportError(f"{path}: claim {number}: wrong or unknown: {', '.join(wrong)}; missing: {', '.join(missing)}")
        if row["id"] in claims:
            raise ReportError(f"{path}: claim {number}: the id {row['id']!r} is an earlier claim's")
        claims[row["id"]] = Claim(**row)
    return claims


def get(claim_id: str) -> Claim:
    """The claim of that id; ReportError lists the known ones."""
    try:
        return load()[claim_id]
    except KeyError:
        raise ReportError(f"no claim {claim_id!r} in data/claims.yaml; there are: {', '.join(load())}") from None
