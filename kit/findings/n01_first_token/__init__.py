"""First token (reports 000 and 001): what preloading removes, what it moves, and what no cache can do."""

from kit.findings.n01_first_token.figures import bars, gantt, needed_figure
from kit.findings.n01_first_token.tables import (
    disk_gbps,
    elements_of,
    equality,
    explained,
    needed,
    predict,
    steps,
    summary,
    table,
)
from kit.findings.n01_first_token.verdicts import judge
from kit.findings.n01_first_token.ways import PHASES, WAYS, Run, measure, phases, warm_up, ways_that_fit, working_set

__all__ = [
    "PHASES",
    "WAYS",
    "Run",
    "bars",
    "disk_gbps",
    "elements_of",
    "equality",
    "explained",
    "gantt",
    "judge",
    "measure",
    "needed",
    "needed_figure",
    "phases",
    "predict",
    "steps",
    "summary",
    "table",
    "warm_up", "ways_that_fit",
    "working_set",
]  # fmt: skip
