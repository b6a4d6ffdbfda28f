"""The committed records that pages rest on."""

import json
from pathlib import Path

from kit.system.paths import ROOT

REFERENCE = ROOT / "results" / "reference"
RUN = REFERENCE / "amd-epyc-avx512-2c-24g-c082" / "quick"  # the run that docs/findings.md tells of
FULL = REFERENCE / "amd-epyc-avx512-2c-24g-8da4" / "full"  # and that of the mixture of 19 GB


def rows(notebook: str, run: Path = RUN) -> list[dict]:
    """The records of a notebook of a committed run."""
    return [json.loads(line) for line in (run / f"{notebook}.jsonl").read_text(encoding="utf-8").splitlines()]


def row(notebook: str, quantity: str, run: Path = RUN) -> dict:
    """The one record whose quantity is this, or else begins with it; ValueError where there is none, or several."""
    found = rows(notebook, run)
    exact = [row for row in found if row["quantity"] == quantity]
    (only,) = {row["quantity"]: row for row in exact or found if row["quantity"].startswith(quantity)}.values()
    return only
