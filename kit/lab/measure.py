"""One timing protocol for everything: warm up, take samples, report median and spread; ratios come from paired samples.

The clock is torch.utils.benchmark's: perf_counter, after a CUDA device (if there is one) has finished its work.
"""

import timeit
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.utils.benchmark.utils.timer import timer as timer_with_sync


@dataclass(frozen=True)
class Measurement:
    """Seconds a call, one number a sample, in the order taken. ``first`` is the warm-up call, reported apart."""

    samples: tuple[float, ...]
    first: float

    @property
    def median(self) -> float:
        """Median seconds a call."""
        return float(np.median(self.samples))

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile, seconds."""
        low, high = np.percentile(self.samples, (25, 75))
        return float(low), float(high)


def time(function: Callable[[], object], samples: int = 7, min_sample: float = 0.01) -> Measurement:
    """Time ``function()``: one warm-up call, then ``samples`` samples of at least ``min_sample`` seconds each."""
    timer, first = _warm(function)
    number = _repeats(timer, min_sample)
    return Measurement(tuple(_sample(timer, number) for _ in range(samples)), first)


@dataclass(frozen=True)
class Paired:
    """Two candidates timed in turn, A/B/A/B, so that what the machine does to one it does to the other."""

    a: Measurement
    b: Measurement

    @property
    def ratios(self) -> np.ndarray:
        """(samples,) time of B over time of A: above 1, A is that many times faster."""
        return np.array(self.b.samples) / np.array(self.a.samples)

    @property
    def ratio(self) -> float:
        """Median of the paired ratios."""
        return float(np.median(self.ratios))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of ``ratio`` (2,000 resamples, fixed seed)."""
        return bootstrap_median(self.ratios)


def compare(a: Callable[[], object], b: Callable[[], object], samples: int = 7, min_sample: float = 0.01) -> Paired:
    """Time A and B in turn; see Paired."""
    (timer_a, first_a), (timer_b, first_b) = _warm(a), _warm(b)
    number_a, number_b = _repeats(timer_a, min_sample), _repeats(timer_b, min_sample)
    pairs = [(_sample(timer_a, number_a), _sample(timer_b, number_b)) for _ in range(samples)]
    times_a, times_b = zip(*pairs, strict=True)
    return Paired(Measurement(times_a, first_a), Measurement(times_b, first_b))


def bootstrap_median(values, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the median of ``values`` by resampling with replacement."""
    values = np.asarray(values, dtype=float)
    draws = np.random.default_rng(seed).choice(values, (resamples, values.size))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return float(low), float(high)


_STUDENT_T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantiles by number of samples


def interval_of(values) -> tuple[float, float]:
    """95 % interval of the median of two samples or more: bootstrap; below six Student's t, of logarithms if positive."""
    values = np.asarray(values, dtype=float)
    if values.size not in _STUDENT_T:
        return bootstrap_median(values)
    positive = bool((values > 0).all())
    scaled = np.log(values) if positive else values
    half = _STUDENT_T[values.size] * scaled.std(ddof=1) / np.sqrt(values.size)
    low, high = scaled.mean() - half, scaled.mean() + half
    return (float(np.exp(low)), float(np.exp(high))) if positive else (float(low), float(high))


def _warm(function) -> tuple[timeit.Timer, float]:
    timer = timeit.Timer(function, timer=timer_with_sync)  # timeit also keeps the garbage collector out
    return timer, timer.timeit(1)


def _repeats(timer: timeit.Timer, min_sample: float) -> int:
    return max(1, round(min_sample / max(timer.timeit(1), 1e-9)))


def _sample(timer: timeit.Timer, number: int) -> float:
    return timer.timeit(number) / number
