"""THE verdict engine: from the region that a claim accepts, what is possible at all, and samples, to a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kit.errors import ReportError
from kit.lab.claims.records import Record
from kit.lab.measuring import drift
from kit.lab.measuring.measure import Rounds, interval_of
from kit.units import format_quantity

Bound = tuple[float, str]  # a value that the quantity cannot pass, and where it comes from
Region = tuple[float | None, float | None]  # None: open to that side
Interval = tuple[float, float]

OWN, SOURCE = "by its own figures", "by the source"
HOW = {  # how the samples came about (only measured ones differ from run to run) -> what would decide what they leave open
    "measured": "more than {} samples, or several runs (`kit verify`),",
    "counted": "other data, such as more captures,",
    "computed": "a measurement",
    OWN: "one figure in place of a range",
    SOURCE: "a log that shows it",
}
CONTRADICTS = "contradicts its own figures"


@dataclass(frozen=True)
class Ratio:
    """A ratio of two quantities that were not measured in turn: the samples of each, in one unit."""

    over: Sequence[float]
    under: Sequence[float]
    unit: str = "s"

    @property
    def samples(self) -> list[float]:
        """Round by round where there are as many of both, else every sample of the longer over the median of the other."""
        most = max(len(self.over), len(self.under))
        over, under = (np.array(side) if len(side) == most else np.median(side) for side in (self.over, self.under))
        return (over / under).tolist()

    @property
    def interval(self) -> Interval:
        """The ends' intervals divided; an end that was measured once may be off by the most that runs ever differed by."""
        (low, high), (least, most) = self._end(self.over), self._end(self.under)
        return low / most, high / least

    def _end(self, values: Sequence[float]) -> Interval:
        if len(values) > 1:
            return interval_of(values)
        return values[0] / drift.most(self.unit), values[0] * drift.most(self.unit)


def judge(
    claim: str, quantity: str, unit: str, samples: Sequence[float] | Rounds | Ratio = (), *, accept: Region,
    text: str, at_least: Bound | None = None, at_most: Bound | None = None, how: str = "measured",
    in_ratio: bool = False, cure: str = "", tolerance: str = "", missing: str = "",
) -> Record:  # fmt: skip
    """The record of the verdict on one quantity of a claim; a session that records it adds whose run it is.

    ``samples``: raw, in ``unit``; what measuring.measure.compare returned: one ratio a pair; or a Ratio of two quantities.
    ``accept``: (low, high), where the claim holds; None leaves a side open. A claim that is a number has both sides.
    ``at_least``, ``at_most``: (value, source), what the quantity can be at all.
    ``how``: "measured" (what runs differ by is allowed for; Rounds and a Ratio always are), "counted" (the same on every run,
    so never a time or a speed), "computed" (arithmetic alone; without samples the bounds stand for them, and only forbid), OWN
    (arithmetic on the claim's own figures: the least and the most that they give) or SOURCE (what the claim's program or log
    says, which was read and not run).
    ``in_ratio``: the effect at another size or on another machine. ``cure``: what cured it here, when the report names
    another cure. ``tolerance``: why the region is as it is, in words. ``missing``: what is not here, so nothing was measured.
    ``text``: the reason, one sentence.

    - impossible: no accepted value is possible, and none was seen
    - contradicts its own figures: none that they give is accepted, whichever way the error goes
    - reproduced (in ratio): the whole interval is accepted; not reproduced: none of it is
    - undecided here: the interval touches the edge or lies beyond the bounds, a sample contradicts the bound that would
      forbid it, or there are too few samples
    """
    if how not in HOW:
        raise ReportError(f"{claim}: how={how!r} is not one of {', '.join(HOW)}")
    if how in (OWN, SOURCE) and (at_least or at_most):
        raise ReportError(f"{claim}: {quantity!r} {how} has samples and no limit: a limit is measured or sourced")
    timed = isinstance(samples, (Rounds, Ratio)) or (how == "counted" and drift.kind_of_unit(unit) in ("time", "rate"))
    if timed and how != "measured":
        raise ReportError(
            f"{claim}: {quantity!r} in {unit} is a time and varies between runs: give how='measured', not {how!r}"
        )
    state, interval = None, None
    if isinstance(samples, Rounds):
        samples, state = samples.ratios(), samples.state
    if isinstance(samples, Ratio):
        samples, interval = samples.samples, widened(samples.interval, unit)
    values = [] if missing else [float(value) for value in samples]
    if not values and how != "computed" and not missing:
        raise ReportError(f"{claim}: {quantity!r} has no samples: give samples=, or missing=")
    if values and interval is None:
        interval = spread_of(values, how, unit)
    lower, upper = (at_least and float(at_least[0])), (at_most and float(at_most[0]))
    verdict, why, noise = "not measurable here", "", ""
    if not missing:
        verdict, why = decide(values, interval, accept, (lower, upper), unit, how)
        verdict += " in ratio" * (in_ratio and verdict == "reproduced")
        if how == "measured" and interval and verdict != "undecided here":
            noise = _noise(float(np.median(values)), lower, upper, unit)
    if not values and not missing:
        values = [bound for bound in (lower, upper) if bound is not None]
    reasons = "; ".join(filter(None, (missing or text, why, noise, cure and f"here cured by {cure}")))
    reason = reasons.replace(".; ", "; ")  # a text of a sentence goes on
    return Record(
        claim=claim, quantity=quantity, unit=unit, verdict=verdict, reason=reason, how=how, cure=cure,
        tolerance=f"{region(accept, unit)}{f': {tolerance}' if tolerance else ''}", samples=values,
        interval=list(interval) if interval else None,
        accept=list(accept), lower=lower, lower_source=at_least[1] if at_least else "",
        upper=upper, upper_source=at_most[1] if at_most else "",
        state=state.to_dict() if state else {}, status="skipped" if missing else "ok",
    )  # fmt: skip


def beside_others(record: Record, busy: str) -> Record:
    """The record of a machine that is ``busy`` (why, in words; empty: it is not): times, rates and ratios that other processes
    disturbed decide nothing. Bytes and shares do, and what a limit forbids stays forbidden."""
    disturbed = record.how == "measured" and drift.kind_of_unit(record.unit) is not None
    if not busy or not disturbed or record.verdict in ("", "impossible") or record.status != "ok":
        return record
    return replace(record, verdict="undecided here", reason=f"busy machine: {busy}; a quiet one would decide it")


def pooled(rows: Sequence[Record]) -> tuple[str, str]:
    """(verdict, reason) on one quantity from its records in several runs of one kind of machine.

    Three runs and more: the medians of the runs are the samples, so what runs differ by is measured and not allowed for. Of
    two the samples are put together. A bound of the pool is the weakest of the runs'.
    """
    rows = [row for row in rows if row.verdict and row.status == "ok"]
    if not rows:
        return "not measurable here", "no run measured it"
    if len(rows) == 1:
        return rows[0].verdict, rows[0].reason
    if len({(row.how, row.unit, tuple(np.round(_numbers(row.accept), 9))) for row in rows}) > 1:
        return "undecided here", "the runs do not accept the same region"
    first, lowers, uppers = rows[0], [row.lower for row in rows], [row.upper for row in rows]
    seen = [row for row in rows if row.interval or row.how == "measured"]  # the others hold bounds in place of samples
    values = [value for row in seen for value in row.samples]
    medians, interval = [row.median for row in seen], None
    if first.how == "measured" and len(medians) > 2:
        interval = interval_of(medians)
    elif values:
        interval = spread_of(values, first.how, first.unit, first.machine_id)
    bounds = (None if None in lowers else min(lowers)), (None if None in uppers else max(uppers))
    word, why = decide(values, interval, tuple(first.accept), bounds, first.unit, first.how, f"more than {len(medians)} runs")
    word += " in ratio" * (word == "reproduced" and any(row.verdict == "reproduced in ratio" for row in rows))
    return word, why or f"{_span(interval, first.unit)[0]} of {len(medians)} runs" if interval else why


def spread_of(values: Sequence[float], how: str, unit: str, machine: str = "") -> Interval | None:
    """The interval of the median, wider by what runs of a ``machine`` (empty: this one) differ by; of counted or computed
    values, their range. None: too few."""
    if how != "measured":
        return min(values), max(values)
    return widened(interval_of(values), unit, machine) if len(values) > 1 else None


def widened(interval: Interval, unit: str, machine: str = "") -> Interval:
    """The interval, wider on both sides by the factor that runs differ by in such a unit (kit.lab.measuring.drift)."""
    (low, high), by = interval, drift.factor(unit, machine)
    return (low / by if low > 0 else low * by), (high * by if high > 0 else high / by)


def decide(
    values: Sequence[float], interval: Interval | None, accept: Region, possible: Region, unit: str, how: str = "measured",
    more: str = "",
) -> tuple[str, str]:  # fmt: skip
    """(verdict, what the engine adds to the reason). Samples outrank stated bounds. ``more``: what would decide what the
    samples leave open, if it is not what HOW says."""
    accepted, bounds = _numbers(accept), _numbers(possible)
    if interval and (interval[0] > bounds[1] or interval[1] < bounds[0]):
        told, bound = _span(interval, unit, bounds[1] if interval[0] > bounds[1] else bounds[0])
        return "undecided here", f"{told} is beyond its own limit of {bound}: one of the two is wrong"
    if max(bounds[0], accepted[0]) > min(bounds[1], accepted[1]):
        bound = bounds[1] if bounds[1] < accepted[0] else bounds[0]
        if inside := sum(accepted[0] <= value <= accepted[1] for value in values):
            what = f"a limit contradicted: {inside} of {len(values)} samples are where"
            return "undecided here", f"{what} the limit of {format_quantity(bound, unit)} forbids"
        if not len(values) or (np.median(values) <= bound if bound == bounds[1] else np.median(values) >= bound):
            return "impossible", ""  # else the bound is no surer than the samples, which decide
    if interval is None:
        needed = "a measurement: no limit forbids it" if not len(values) else "more samples: one has no interval"
        return "undecided here", f"what would decide it: {needed}"
    if accepted[0] <= interval[0] and interval[1] <= accepted[1]:
        return "reproduced", ""
    if interval[1] < accepted[0] or interval[0] > accepted[1]:
        return (CONTRADICTS if how == OWN else "not reproduced"), ""
    edge = next(edge for edge in accepted if interval[0] <= edge <= interval[1])
    told = " contains the threshold ".join(_span(interval, unit, edge))
    more = more or HOW[how].format(len(values))
    return "undecided here", f"{told}; {more} would decide it"


def _numbers(span: Region) -> Interval:
    return (-np.inf if span[0] is None else span[0]), (np.inf if span[1] is None else span[1])


def _noise(middle: float, lower: float | None, upper: float | None, unit: str) -> str:
    low, high = _numbers((lower, upper))
    if low <= middle <= high:
        return ""
    bound = format_quantity(low if middle < low else high, unit)
    return f"the median is beyond its limit of {bound}: noise, the interval meets it"


def _span(interval: Interval, unit: str, *more: float) -> list[str]:
    """The interval and ``more`` numbers as text: of three digits, or of four where three would make two of them one."""
    short, long = ([format_quantity(value, unit, digits) for value in (*interval, *more)] for digits in (3, 4))
    low, high, *told = short if len({*short}) == len({*long}) else long
    return [f"the interval {low} to {high}", *told]


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
