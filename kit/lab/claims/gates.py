"""What is wrong on a page, by the page's own records: a page that is wrong must look wrong."""

from collections.abc import Iterable

import numpy as np

from kit.lab import drift
from kit.lab.claims.records import WARNED, Record
from kit.units import format_quantity

SIGNED = ("points", "nats", "")  # units in which a number below zero may be right


def warnings(rows: Iterable[Record]) -> list[tuple[int, str]]:
    """(number of the row, what is wrong) for all that a run says and cannot be: what `Session.gate` found, a number below zero,
    a difference of shares beyond 100 points, and what was measured beyond its own bound by more than a machine's bandwidth
    differs by."""
    return [(number, text) for number, row in enumerate(rows) for text in _of(row)]


def _of(row: Record):
    if row.status == WARNED:
        yield row.reason
    if row.status != "ok" or row.how == "computed":
        return
    told = f"{row.quantity}: {format_quantity(row.median, row.unit)}"
    if row.unit not in SIGNED and min(row.samples) < 0:
        yield f"{told}, and a sample is below zero"
    if row.unit == "points" and max(map(abs, row.samples)) > 100:
        yield f"{told}, and two shares of a whole differ by 100 at most"
    by = drift.factor("GB/s")  # bounds are bytes over a bandwidth, and the bandwidth of one machine differs by this
    low, high = row.interval or (row.median / by, row.median * by)
    if row.how == "counted":
        low = high = float(np.median(row.samples))
    if row.lower is not None and high < row.lower:
        yield f"{told} lies below its bound of {format_quantity(row.lower, row.unit)} ({row.lower_source})"
    if row.upper is not None and low > row.upper:
        yield f"{told} lies above its bound of {format_quantity(row.upper, row.unit)} ({row.upper_source})"
