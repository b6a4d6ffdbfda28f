"""What changed between two runs beyond the noise: paired records, medians, a bootstrap interval on the raw samples."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kit.claims.records import Record
from kit.claims.runs import aligned

STATES = {  # in the order of a report
    "changed": "the interval of the difference of medians excludes 0",
    "too few samples": "the medians differ, and so few samples could differ by chance",
    "only in A": "B has no such record",
    "only in B": "A has no such record",
    "same": "equal, or the interval of the difference includes 0",
}


@dataclass(frozen=True)
class Change:
    """One quantity in two runs. ``low`` and ``high`` bound B's median minus A's, in ``unit``; None without samples."""

    notebook: str
    claim: str
    quantity: str
    unit: str
    state: str
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict_a: str
    verdict_b: str

    @property
    def matters(self) -> bool:
        """Changed beyond the noise, or judged otherwise."""
        both = not self.state.startswith("only")
        return self.state == "changed" or (both and self.verdict_a != self.verdict_b)


def compare(a: Iterable[Record], b: Iterable[Record], confidence=0.99, resamples=4000, seed=0) -> list[Change]:
    """Every quantity of two runs, those that changed first.

    Records pair as ``kit.claims.runs.aligned`` says, with their parameters.
    """
    generator = np.random.default_rng(seed)
    changes = [_change(one, other, confidence, resamples, generator) for one, other in aligned([a, b])]
    order = list(STATES)
    return sorted(changes, key=lambda change: (not change.matters, order.index(change.state)))


def _change(a: Record | None, b: Record | None, confidence: float, resamples: int, generator) -> Change:
    row = a or b
    interval = a and b and median_difference(a.samples, b.samples, confidence, resamples, generator)
    if a is None or b is None:
        state = "only in B" if a is None else "only in A"
    elif interval is None or a.median == b.median:
        state = "same" if bool(a.samples) == bool(b.samples) else "changed"
    elif 2 / math.comb(len(a.samples) + len(b.samples), len(a.samples)) > 1 - confidence + 1e-12:
        state = "too few samples"  # by chance alone they separate in 2 of (a + b over a) orders
    else:
        state = "same" if interval[0] <= 0 <= interval[1] else "changed"
    low, high = interval or (None, None)
    ratio = b.median / a.median if a and b and a.median and b.median else None
    return Change(
        row.notebook, row.claim, row.quantity, row.unit, state, a and a.median, b and b.median, ratio, low, high,
        a.verdict if a else "", b.verdict if b else "",
    )  # fmt: skip


def median_difference(a, b, confidence: float, resamples: int, generator) -> tuple[float, float] | None:
    """Percentile bootstrap interval of median(b) - median(a); None when either has no samples (Efron 1979)."""
    if not len(a) or not len(b):
        return None
    medians = [np.median(generator.choice(np.asarray(side, float), (resamples, len(side))), axis=1) for side in (a, b)]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(medians[1] - medians[0], (tail, 100 - tail))
    return float(low), float(high)
