"""What is wrong on a page, by the page's own records: a page that is wrong must look wrong."""

from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter

import numpy as np

from kit.lab.claims.records import WARNED, Record
from kit.units import format_quantity

NOISE = 1.02  # a bound is a bandwidth's, which is measured: so much is rounding, and more a contradiction
LEAST = "least of "
SIGNED = ("points", "nats", "")  # units in which a number below zero may be right


def warnings(rows: Iterable[Record]) -> list[tuple[int, str]]:
    """(number of the row, what is wrong) for all that a run says and cannot be: what `Session.gate` found, a number below zero,
    a difference of shares beyond 100 points, and what was measured beyond its own bound."""
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
    value = float(np.median(row.samples)) if row.how == "counted" else row.median
    if row.lower is not None and value * NOISE < row.lower:
        yield f"{told} is below its bound of {format_quantity(row.lower, row.unit)} ({row.lower_source})"
    if row.upper is not None and value > NOISE * row.upper:
        yield f"{told} is above its bound of {format_quantity(row.upper, row.unit)} ({row.upper_source})"


def across(rows: Iterable[Record]) -> list[tuple[str, str]]:
    """(text, how) of what the pages of one run say of one quantity and cannot both be true. Two bounds of it are "counted"; a
    bound on one page that a measurement on another beats is "measured". A notebook that only bounds a quantity records it as
    computed, LEAST before its name."""
    bounds, measured, warnings = defaultdict(dict), defaultdict(dict), []
    for row in (row for row in rows if row.status == "ok"):
        key = row.quantity.removeprefix(LEAST), row.unit, str(row.parameters.get("device")), str(row.parameters.get("model"))
        computed = row.quantity.startswith(LEAST)
        least = row.median if computed else row.lower
        if least is not None:
            bounds[key].setdefault(row.notebook, least)
        if not computed:
            measured[key].setdefault(row.notebook, row.median)
    for key, least in bounds.items():
        (one, low), (other, high) = (end(least.items(), key=itemgetter(1)) for end in (min, max))
        told_high = format_quantity(high, key[1])
        if high > NOISE * low:
            told_low = format_quantity(low, key[1])
            warnings.append((f"{key[0]} is at least {told_low} on {one} and {told_high} on {other}: two bounds", "counted"))
        for name, value in measured[key].items():
            if name != other and NOISE * value < high:
                told = f"takes {format_quantity(value, key[1])} on {name} and at least {told_high} on {other}"
                warnings.append((f"{key[0]} {told}: the bound is wrong", "measured"))
    return warnings
