"""THE verdict engine: from the region that a claim accepts, what is possible at all, and samples, to a verdict."""

from collections.abc import Sequence

import numpy as np

from kit.claims.records import Record
from kit.errors import ReportError
from kit.lab.measure import DRIFT, Rounds, interval_of
from kit.units import format_quantity

Bound = tuple[float, str]  # a value that the quantity cannot pass, and where it comes from
Region = tuple[float | None, float | None]  # None: open to that side

HOW = ("measured", "counted", "computed")  # how the samples came about; only measured ones differ from run to run


def judge(
    claim: str, quantity: str, unit: str, samples: Sequence[float] | Rounds = (), *, accept: Region,
    text: str, at_least: Bound | None = None, at_most: Bound | None = None, how: str = "measured",
    in_ratio: bool = False, cure: str = "", tolerance: str = "", missing: str = "",
) -> Record:  # fmt: skip
    """The record of the verdict on one quantity of a claim; a session that records it adds whose run it is.

    ``samples``: raw, in ``unit``; or what kit.lab.measure.compare returned: one ratio a pair.
    ``accept``: (low, high), where the claim holds; None leaves a side open. A claim that is a number has both sides.
    ``at_least``, ``at_most``: (value, source), what the quantity can be at all.
    ``how``: "measured" (noise between runs is allowed for), "counted" (the same on every run) or "computed" (arithmetic
    alone; without samples the bounds stand for them, and they can only forbid).
    ``in_ratio``: the effect at another size or on another machine. ``cure``: what cured it here, when the report names
    another cure. ``tolerance``: why the region is as it is, in words. ``missing``: what is not here, so nothing was measured.
    ``text``: the reason, one sentence.

    - impossible: no accepted value is possible
    - reproduced (in ratio): the whole interval is accepted; not reproduced: none of it is
    - undecided here: the interval touches the edge, lies beyond the bounds, or there are too few samples for one
    """
    if how not in HOW:
        raise ReportError(f"{claim}: how={how!r} is none of: {', '.join(HOW)}")
    state = None
    if isinstance(samples, Rounds):
        samples, state = samples.ratios(), samples.state
    values = [] if missing else [float(value) for value in samples]
    low, high = (float(at_least[0]) if at_least else -np.inf), (float(at_most[0]) if at_most else np.inf)
    least, most = (-np.inf if accept[0] is None else accept[0]), (np.inf if accept[1] is None else accept[1])
    if not values and how != "computed" and not missing:
        raise ReportError(f"{claim}: {quantity!r} has no samples: give them, or what is missing")
    interval = spread_of(values, how) if values else None
    verdict, why = "not measurable here", ""
    if not missing:
        verdict, why = _decide(interval, (least, most), (low, high), unit, len(values))
        verdict += " in ratio" * (in_ratio and verdict == "reproduced")
    middle, noise = float(np.median(values)) if values else None, ""
    if how == "measured" and interval and "beyond" not in why and not low <= middle <= high:
        bound = format_quantity(low if middle < low else high, unit)
        noise = f"the median lies beyond its bound of {bound}: noise, the interval meets it"
    if not values and not missing:
        values = [float(bound[0]) for bound in (at_least, at_most) if bound]
    reason = "; ".join(filter(None, (missing or text, why, noise, cure and f"here cured by {cure}")))
    return Record(
        claim=claim, quantity=quantity, unit=unit, verdict=verdict, reason=reason, how=how, cure=cure,
        tolerance=f"{region(accept, unit)}{f': {tolerance}' if tolerance else ''}", samples=values,
        interval=list(interval) if interval else None,
        accept=list(accept), lower=at_least and float(at_least[0]), lower_source=at_least[1] if at_least else "",
        upper=at_most and float(at_most[0]), upper_source=at_most[1] if at_most else "",
        state=state.to_dict() if state else {}, status="skipped" if missing else "ok",
    )  # fmt: skip


def spread_of(values: Sequence[float], how: str) -> tuple[float, float] | None:
    """The interval of the median, wider by DRIFT for what runs differ by; of counted or computed values, their range."""
    if how != "measured":
        return min(values), max(values)
    if len(values) < 2:
        return None
    low, high = interval_of(values)
    return (low / DRIFT if low > 0 else low * DRIFT), (high * DRIFT if high > 0 else high / DRIFT)


def _decide(interval, accepted, possible, unit, count) -> tuple[str, str]:
    """(verdict, what the engine adds to the reason)."""
    if interval and (interval[0] > possible[1] or interval[1] < possible[0]):
        bound = format_quantity(possible[1] if interval[0] > possible[1] else possible[0], unit)
        return ("undecided here", f"{_span(interval, unit)} lies beyond its own bound of {bound}: one of the two is wrong")
    if max(possible[0], accepted[0]) > min(possible[1], accepted[1]):
        return "impossible", ""
    if interval is None:
        needed = "a measurement: no bound forbids it" if not count else "more samples: one has no interval"
        return "undecided here", f"what would decide it: {needed}"
    if accepted[0] <= interval[0] and interval[1] <= accepted[1]:
        return "reproduced", ""
    if interval[1] < accepted[0] or interval[0] > accepted[1]:
        return "not reproduced", ""
    edge = next(edge for edge in accepted if interval[0] <= edge <= interval[1])
    told = f"{_span(interval, unit)} holds the edge {format_quantity(edge, unit)}"
    return "undecided here", f"{told}; more than {count} samples, or a quieter machine would decide it"


def _span(interval, unit: str) -> str:
    return f"the interval {format_quantity(interval[0], unit)} to {format_quantity(interval[1], unit)}"


def region(accept: Region, unit: str) -> str:
    """``"at least 100x"``, ``"5x to 10x"``, ``"exactly 364"``: an accepted region in words."""
    low, high = accept
    if low is None and high is None:
        raise ReportError("a claim that accepts everything cannot fail: give accept at least one edge")
    if low == high:
        return f"exactly {format_quantity(low, unit)}"
    if low is None or high is None:
        return f"at {'least' if high is None else 'most'} {format_quantity(low if high is None else high, unit)}"
    return f"{format_quantity(low, unit)} to {format_quantity(high, unit)}"


def times(value: float, factor: float) -> Region:
    """The region within a factor of ``value``, on both sides."""
    return value / factor, value * factor
