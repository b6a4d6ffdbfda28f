"""The machine's state, which changes within minutes where its hardware stays: what memory gives now, and who else works."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache

import psutil

NEAR = 1.25  # two states whose bandwidths differ by less than this factor are one
_PROBE_BYTES = 96 << 20
_BUSY = 0.25  # cores that others keep busy before a measurement is disturbed
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class State:
    """GB/s of reading memory and of filling it, by the best of three short passes over 96 MiB each."""

    read_gbps: float
    fill_gbps: float

    def near(self, other: "State") -> bool:
        """Whether samples taken in the two states may stand in one list."""
        ratios = self.read_gbps / other.read_gbps, self.fill_gbps / other.fill_gbps
        return all(1 / NEAR < ratio < NEAR for ratio in ratios)

    def to_dict(self) -> dict[str, float]:
        """For a record, three digits."""
        return {name: float(f"{value:.3g}") for name, value in asdict(self).items()}


def probe(clock: Callable[[], float] = time.perf_counter) -> State:
    """The state now, in about 30 ms."""
    source, target = _buffers()
    return State(
        *(max(source.nbytes / _seconds(work, clock) for _ in range(3)) / 1e9 for work in (source.sum, target.zero_))
    )


def _seconds(work, clock) -> float:
    start = clock()
    work()
    return clock() - start


@cache
def _buffers():
    import torch

    return torch.ones(_PROBE_BYTES // 4), torch.zeros(_PROBE_BYTES // 4)


def cores_used_by_others(seconds: float = _SAMPLE_SECONDS) -> float:
    """Cores that other processes kept busy over the next moment."""
    own = psutil.Process()
    marks = []
    for pause in (0, seconds):
        time.sleep(pause)
        total, mine = psutil.cpu_times(), own.cpu_times()
        idle = total.idle + getattr(total, "iowait", 0.0)
        marks.append((time.perf_counter(), sum(total) - idle - mine.user - mine.system))
    (start, before), (end, after) = marks
    return max(0.0, (after - before) / (end - start))


def settle(patience: float, used: Callable[[], float] = cores_used_by_others, sleep: Callable = time.sleep) -> str:
    """Wait up to ``patience`` seconds for other processes to leave the cores alone; "" when they do, else what to know."""
    waited = 0.0
    while (others := used()) > _BUSY:
        if waited >= patience:
            return f"other processes use {others:.1f} cores: times measured now are theirs, too"
        sleep(min(2.0, patience - waited))
        waited += min(2.0, patience - waited)
    return ""
