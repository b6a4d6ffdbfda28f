"""The limit that belongs to its minutes: how fast the file's pages were read in the very rounds in which ways were timed.

A virtual machine's memory gives 30 GB/s in one minute and 60 in another, so a bandwidth of another day bounds a way and says
nothing about it. Each round reads the pages and runs every way. The interval of a way's share is that of the ratios within the
rounds; the share itself is the quotient of the two medians that are printed. Where a way reads faster than the pass over the
pages did, that is the round's bandwidth: nothing passes the limit.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kit.lab.measuring.kept import once_a_run
from kit.lab.measuring.measure import interval_of

PAGES = "reading the file's pages, in turn with the engines"  # GB/s: its way in the store of measurements
_PASSES = 2  # over the pages in a round, the better counts: one may be interrupted


class Share(NamedTuple):
    """Of the limit of the same minutes, 1 at most: the limit's time over the way's, and the 95 % interval by rounds."""

    median: float
    low: float
    high: float

    @property
    def told(self) -> str:
        """``72% of it``; an interval that is wide is shown: ``72% of it (60% to 85%)``."""
        wide = f" ({self.low:.0%} to {self.high:.0%})" * (self.high - self.low >= 0.1)
        return f"{self.median:.0%} of it{wide}"

    def around(self, middle: float) -> "Share":
        """The same interval, widened where it does not hold ``middle``, around that."""
        return Share(middle, min(self.low, middle), max(self.high, middle))


@dataclass(frozen=True)
class Minutes:
    """``nbytes`` of a token; ``pages``: GB/s of the passes, ``seconds``: of a token by each way, both round by round."""

    nbytes: float
    pages: tuple[float, ...]
    seconds: Mapping[str, tuple[float, ...]]

    @property
    def gbps(self) -> np.ndarray:
        """(rounds,) what memory gave: the pass's, or that of a way which read faster."""
        ways = [self.nbytes / np.array(each) / 1e9 for each in self.seconds.values()]
        return np.max([np.array(self.pages), *ways], axis=0)

    @property
    def read_gbps(self) -> float:
        """The speed at which ``least`` is read."""
        return self.nbytes / self.least / 1e9

    @property
    def least(self) -> float:
        """Seconds of a token that reads its bytes once: the median of the rounds. (A median of seconds, as a way's is: of an
        even number of rounds that of speeds is another.)"""
        return float(np.median(self.nbytes / (self.gbps * 1e9)))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of ``least``."""
        low, high = interval_of(self.nbytes / (self.gbps * 1e9))
        return min(low, self.least), max(high, self.least)

    def share(self, way: str) -> Share:
        """What a way reached of the limit: ``least`` over its median, with the interval of the ratios round by round."""
        ratios = self.nbytes / np.array(self.seconds[way]) / 1e9 / self.gbps
        low, high = interval_of(ratios)
        return Share(float(np.median(ratios)), low, min(high, 1.0)).around(self.least / float(np.median(self.seconds[way])))


def in_rounds(nbytes: float, series: Mapping) -> Minutes | None:
    """The limit of the rounds of kit.lab.engines.turns.in_turn, label -> Series; None where memory was not read in each of
    them, or where a pass was no speed."""
    pages = next((each.gbps for each in series.values()), ())
    seconds = {label: tuple(each.per_token) for label, each in series.items() if each.per_token}
    whole = pages and seconds and all(len(each) == len(pages) for each in seconds.values())
    return Minutes(nbytes, tuple(pages), seconds) if whole else None


def reader(file) -> Callable[[], float] | None:
    """A function that reads the largest tensors of an open file through its map once, on all cores, and returns GB/s; None
    where that says nothing of memory (measuring.pages.views)."""
    from kit.lab.measuring.pages import passes_of, views

    parts = views(file)
    if parts is None:
        return None
    once = passes_of(parts)
    once()  # maps the pages
    return lambda: max(once() for _ in range(_PASSES))


@once_a_run
def now_gbps(file) -> float:
    """GB/s at which an open file's pages are read now, in a tenth of a second; NaN where that says nothing of memory."""
    once = reader(file)
    return once() if once else math.nan


def error_of(factors: Mapping[str, float], below: str = "too fast", above: str = "too slow") -> str:
    """How far off predictions are, by the predicted over the measured seconds (way -> factor): "typically 12% too
    fast, at worst 45% too fast (all kept, float16)". ``below``, ``above``: what a factor below and above 1 means."""
    worst = max(factors, key=lambda way: abs(math.log(factors[way])))
    typical, most = _off(np.median([*factors.values()]), below, above), _off(factors[worst], below, above)
    return f"typically {typical}, at worst {most} ({worst})"


def _off(factor: float, below: str, above: str) -> str:
    return f"{abs(factor - 1):.0%} {below if factor < 1 else above}" if abs(factor - 1) >= 0.005 else "within 1%"


def error_of_memory(factors: Mapping[str, float], then, beside: Mapping) -> str:
    """Which part of the predicted over the measured seconds (way -> ``factors``) is the machine's, because memory read pages at
    ``then`` (GB/s, around the costs that predict) and at ``beside`` (way -> GB/s, around its measurement); "" where no way's
    minutes are known. A sentence about the error, which changes no prediction: that knows nothing of later minutes."""
    before = float(np.median(then))
    known = {way: float(np.median(beside[way])) for way in factors if len(beside.get(way, ()))}
    known = {way: gbps for way, gbps in known.items() if gbps > 0 and before > 0}  # NaN: a small file
    if not known:
        return ""
    moved = float(np.median([gbps / before for gbps in known.values()]))
    own = float(np.median([factors[way] * before / gbps for way, gbps in known.items()]))
    return (
        f"Memory read at {before:.3g} GB/s around the costs that predict, and at {np.median([*known.values()]):.3g} around the "
        f"ways: that alone makes a prediction {moved:.2f} times as long. At one speed of memory it would be "
        f"{_off(own, 'too fast', 'too slow')}."
    )


def compared(ratios, than: str, faster: str = "fast") -> str:
    """ "1.25 times as fast as ..." by ratios of several rounds; "as fast as ..." where their 95 % interval holds 1."""
    return as_fast(float(np.median(ratios)), *interval_of(ratios), than, faster)


def as_fast(times: float, low: float, high: float, than: str, faster: str = "fast") -> str:
    """The same by a ratio and its 95 % interval."""
    if low <= 1 <= high:
        return f"as {faster} as {than} ({low:.2f} to {high:.2f} times)"
    return f"{times:.2f} times as {faster} as {than}"
