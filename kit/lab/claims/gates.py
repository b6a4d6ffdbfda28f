"""What is wrong on a page, by the page's own records: a page that is wrong must look wrong."""

import re
from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter

from kit.lab.claims.records import WARNED, Record
from kit.lab.measuring.state import NEAR
from kit.units import format_quantity

NOISE = 1.02  # a bound is a bandwidth's, which is measured: so much is rounding, and more a contradiction
LEAST = "least of "
DEEP = re.compile(r"(.+), after ([\d,]+) positions")  # a token's quantity, and the positions before it where they are many
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
    if row.lower is not None and row.median * NOISE < row.lower:
        yield f"{told} is below its limit of {format_quantity(row.lower, row.unit)} ({row.lower_source})"
    if row.upper is not None and row.median > NOISE * row.upper:
        yield f"{told} is above its limit of {format_quantity(row.upper, row.unit)} ({row.upper_source})"


def across(rows: Iterable[Record]) -> list[tuple[str, str]]:
    """(text, how) of what the pages of one run say of one quantity and cannot both be true. Two bounds of it are "counted"; a
    bound on one page that a measurement on another beats is "measured", and so is a token that is faster after more positions.
    A notebook that only bounds a quantity records it as computed, LEAST before its name."""
    bounds, measured, deep, warnings = defaultdict(dict), defaultdict(dict), defaultdict(dict), []
    for row in (row for row in rows if row.status == "ok"):
        found = DEEP.fullmatch(row.quantity)
        name = found[1] if found else row.quantity.removeprefix(LEAST)
        key = name, row.unit, str(row.parameters.get("device")), str(row.parameters.get("model"))
        if found:
            deep[key][int(found[2].replace(",", ""))] = row
            continue
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
            warnings.append((f"{key[0]} is at least {told_low} on {one} and {told_high} on {other}: two limits", "counted"))
        for name, value in measured[key].items():
            if name != other and NOISE * value < high:
                told = f"takes {format_quantity(value, key[1])} on {name} and at least {told_high} on {other}"
                warnings.append((f"{key[0]} {told}: the limit is wrong", "measured"))
    return warnings + [(text, "measured") for key, rows in deep.items() for text in _falling(key, rows, measured[key])]


def _falling(key: tuple, deep: dict[int, Record], measured: dict[str, float]):
    """Of a token by its positions, and of the same on other pages, where they are few: more positions never take less time."""
    told = [(f"on {name}", value) for name, value in measured.items() if key[-1]]  # of generated models each page has its own
    for depth, row in sorted(deep.items()):
        there, longest = f"after {depth:,} positions on {row.notebook}", max(told, key=itemgetter(1), default=("", 0.0))
        if row.median * NEAR < longest[1]:
            took, longer = (format_quantity(value, key[1]) for value in (row.median, longest[1]))
            yield f"{key[0]} takes {took} {there} and {longer} {longest[0]}: more positions cannot take less"
        told.append((there, row.median))
