"""A small picture of one verdict: what is possible, what was measured and what was reported, on one log axis."""

import math

from kit.claims.book import reported_in
from kit.claims.records import Record
from kit.claims.table import Claim

MARGIN = 0.06  # of the width, left free on both sides


def positions(row: Record, claim: Claim | None) -> dict | None:
    """Places from 0 to 1 along a log axis, or None where fewer than two positive numbers are known.

    ``possible``: (from, to), open ends reaching the edge, None without bounds; ``measured``: a place or None;
    ``reported``: places of the report's figure (two for a range), when it is in the record's unit.
    """
    reported = [value for value in dict.fromkeys((claim and reported_in(claim, row.unit)) or ()) if value is not None]
    numbers = [value for value in (row.lower, row.median, row.upper, *reported) if value is not None and value > 0]
    if len(set(numbers)) < 2:
        return None
    low, high = math.log(min(numbers)), math.log(max(numbers))

    def place(value: float | None) -> float | None:
        if value is None or value <= 0:
            return None
        return MARGIN + (1 - 2 * MARGIN) * (math.log(value) - low) / (high - low)

    lower, upper = place(row.lower), place(row.upper)
    return {
        "possible": None if lower is upper is None else (lower or 0.0, 1.0 if upper is None else upper),
        "measured": place(row.median),
        "reported": [place(value) for value in reported if value > 0],
    }
