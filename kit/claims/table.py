"""The claims of the field reports (data/claims.yaml) and the verdicts that a record may give them."""

from dataclasses import dataclass
from functools import cache

import yaml

from kit.errors import ReportError
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


@cache
def load() -> dict[str, Claim]:
    """All claims by id, in the order of the file."""
    rows = yaml.safe_load(data_file("claims.yaml").read_text(encoding="utf-8"))
    return {row["id"]: Claim(**row) for row in rows}


def get(claim_id: str) -> Claim:
    """The claim of that id; ReportError lists the known ones."""
    try:
        return load()[claim_id]
    except KeyError:
        raise ReportError(f"no claim {claim_id!r} in data/claims.yaml; there are: {', '.join(load())}") from None
