"""The timing protocol: candidates are timed alternately, in rounds, until their ratio is decided.

Every function takes a clock; the default is torch.utils.benchmark's, perf_counter after synchronizing with a CUDA device.
The first call of a candidate is a warm-up, which is reported apart.
"""

import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch.utils.benchmark.utils.timer import timer as timer_with_sync

from kit.lab.measuring import drift, kept
from kit.lab.measuring.intervals import of_median
from kit.lab.measuring.state import State, probe_state
from kit.system.note import doing

Clock = Callable[[], float]
_BATCH = 5  # rounds between two probes of the machine's state
_NARROW = 1.05  # an interval whose ends have this ratio is final: the machine does not repeat itself better


@dataclass(frozen=True)
class Measurement:
    """``samples``: seconds of a call, in the order taken. ``first``: seconds of the warm-up call."""

    samples: tuple[float, ...]
    first: float

    @property
    def median(self) -> float:
        """Median seconds a call."""
        return float(np.median(self.samples))


@doing("measuring")
def time(
    function: Callable[[], object], samples: int = 7, min_sample: float = 0.01, clock: Clock = timer_with_sync, of: str = ""
) -> Measurement:
    """Time ``function()``: one warm-up call, then ``samples`` samples of at least ``min_sample`` seconds each. ``of`` as of
    ``rounds``."""

    def measured():
        sample, first = sampler(function, min_sample, clock)
        return Measurement(tuple(sample() for _ in range(samples)), first)

    return kept.take(f"time of {of}", (samples, min_sample), measured) if of else measured()


def sampler(
    function: Callable[[], object], min_sample: float = 0.01, clock: Clock = timer_with_sync
) -> tuple[Callable[[], float], float]:
    """(sample, first): a function that takes one sample of at least ``min_sample`` seconds and returns the seconds of a
    call, and the seconds of the warm-up call."""
    kept.unkept(f"a time of {getattr(function, '__qualname__', function)}")
    timer = timeit.Timer(function, timer=clock)  # it also disables the garbage collector
    first = timer.timeit(1)
    number = max(1, round(min_sample / max(timer.timeit(1), 1e-9))) if min_sample else 1
    return lambda: timer.timeit(number) / number, first


@dataclass(frozen=True)
class Rounds:
    """Seconds of candidates that were timed alternately: sample i of each is from the same round.

    ``state``: the machine's state in all rounds, None when it was never stable. ``left_out``: number of rounds in other
    states, whose samples are dropped.
    """

    seconds: Mapping[str, tuple[float, ...]]
    state: State | None = None
    left_out: int = 0

    def ratios(self, slow: str = "b", fast: str = "a") -> np.ndarray:
        """(rounds,) time of ``slow`` over time of ``fast`` in each round: above 1, ``fast`` is that many times faster."""
        return np.array(self.seconds[slow]) / np.array(self.seconds[fast])

    @property
    def ratio(self) -> float:
        """Median time of "b" over "a", of ``compare``."""
        return float(np.median(self.ratios()))

    def median(self, way: str) -> float:
        """Median seconds of a candidate."""
        return float(np.median(self.seconds[way]))


def rounds(
    ways: Mapping[str, Callable[[], float]], least: int = 10, budget: float = 10.0,
    enough: Callable[[Rounds], bool] = lambda so_far: True, clock: Clock = timer_with_sync,
    look: Callable[[], State] = probe_state, of: str = "",
) -> Rounds:  # fmt: skip
    """Sample every candidate once a round, in reverse order every other round.

    ways: candidate -> function that returns its seconds (see sampler). At least ``least`` rounds are taken, then more until
    ``enough(rounds so far)`` or ``budget`` seconds. The machine's state is probed every few rounds: rounds in which it
    changed are dropped, and only those in the most frequent state are kept, so up to three times ``least`` are taken.
    ``of``: what is measured, a name of its own in the notebook; a page that is rendered again finds the rounds by it and by
    the candidates (kit.lab.measuring.kept). Without one they are taken again.
    """
    if of:
        return kept.take(
            f"rounds of {of}", (tuple(ways), least, budget), lambda: _rounds(ways, least, budget, enough, clock, look)
        )
    return _rounds(ways, least, budget, enough, clock, look)


@doing("measuring")
def _rounds(ways, least, budget, enough, clock, look):
    start, taken, before = clock(), [], look()  # taken: (state or None, seconds by way) of each round
    while True:
        batch = []
        for number in range(len(taken), len(taken) + min(_BATCH, least)):
            order = list(ways) if number % 2 == 0 else list(ways)[::-1]
            seconds = {way: ways[way]() for way in order}
            batch.append({way: seconds[way] for way in ways})
        after = look()
        taken += [(before if before.near(after) else None, seconds) for seconds in batch]
        before = after
        result = _of_one_state(taken, tuple(ways))
        kept = len(taken) - result.left_out if result.state else 0
        if kept < least and len(taken) < 3 * least:
            continue
        if clock() - start >= budget or (result.state and enough(result)):
            return result


def _of_one_state(taken: list[tuple[State | None, dict[str, float]]], ways: Sequence[str]) -> Rounds:
    """The rounds in the most frequent state; all rounds when no state was stable."""
    groups: list[tuple[State, list]] = []
    for state, seconds in taken:
        if state is None:
            continue
        group = next((members for known, members in groups if known.near(state)), None)
        if group is None:
            groups.append((state, group := []))
        group.append(seconds)
    state, members = max(groups, key=lambda group: len(group[1]), default=(None, [seconds for _, seconds in taken]))
    seconds = {way: tuple(row[way] for row in members) for way in ways}
    return Rounds(seconds, state=state, left_out=len(taken) - len(members))


def alternately(
    ways: Mapping[str, Callable[[], object]], least: int = 10, budget: float = 10.0, of: str = "", min_sample: float = 0.0,
    sampled_by: Clock = timer_with_sync,
) -> Rounds:  # fmt: skip
    """``rounds`` of functions that are timed, each after its warm-up, which a page that is rendered again does without, too."""

    def measured():
        samples = {way: sampler(function, min_sample, sampled_by)[0] for way, function in ways.items()}
        return rounds(samples, least, budget)

    return kept.take(f"rounds of {of}", (tuple(ways), least, budget), measured)


def compare(
    a: Callable[[], object], b: Callable[[], object], samples: int = 10, min_sample: float = 0.01,
    edges: Sequence[float | None] = (), budget: float = 10.0, clock: Clock = timer_with_sync,
    look: Callable[[], State] = probe_state,
) -> Rounds:  # fmt: skip
    """Time "a" and "b" in pairs: at least ``samples``, then more until ``decided`` for all ``edges`` or ``budget`` seconds."""
    ways = {way: sampler(function, min_sample, clock)[0] for way, function in (("a", a), ("b", b))}
    return rounds(ways, samples, budget, lambda so_far: decided(so_far.ratios(), edges), clock, look)


def decided(ratios, edges: Sequence[float | None]) -> bool:
    """Whether the interval of ``ratios``, wider by what runs differ by, holds no edge, or is too narrow for more to matter."""
    (low, high), by = interval_of(ratios), drift.factor("x")
    clear = not any(edge is not None and low / by <= edge <= high * by for edge in edges)
    return clear or 0 < high <= low * _NARROW


_STUDENT_T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantiles by number of samples


def interval_of(values) -> tuple[float, float]:
    """95 % interval of the median of samples: by their order (intervals.of_median); of two to five Student's t (of logarithms
    if all are positive); of one nothing but that."""
    values = np.asarray(values, dtype=float)
    if values.size not in _STUDENT_T:
        return of_median(values)
    positive = bool((values > 0).all())
    scaled = np.log(values) if positive else values
    half = _STUDENT_T[values.size] * scaled.std(ddof=1) / np.sqrt(values.size)
    low, high = scaled.mean() - half, scaled.mean() + half
    return (float(np.exp(low)), float(np.exp(high))) if positive else (float(low), float(high))
