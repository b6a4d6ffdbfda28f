"""The machine's state, which changes within minutes: its memory bandwidth now, and the load by other processes."""

import math
import os
import time
import timeit
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
import psutil

from kit import system
from kit.errors import ReportError

NEAR = 1.25  # states whose bandwidths differ by less than this factor count as the same
_PROBE_BYTES = 96 << 20
BUSY = 0.25  # cores used by others from which a measurement counts as disturbed
_SAMPLE_SECONDS = 0.1
_LEAST = 3  # rounds: the interval of two samples is three times as wide as that of three


class Bandwidths:
    """The least times at ``read_gbps`` and ``write_gbps``, 10^9 bytes per second, and at ``map_gbps`` of a file's map,
    where that is known (kit.lab.measuring.pages)."""

    map_gbps: float | None = None

    def seconds_to_read(self, nbytes: float) -> float:
        """The least time to read ``nbytes`` of memory once."""
        return nbytes / (self.read_gbps * 1e9)

    def seconds_to_read_map(self, nbytes: float) -> float:
        """The least time to read ``nbytes`` of a mapped file once."""
        return nbytes / ((self.map_gbps or self.read_gbps) * 1e9)

    def seconds_to_write(self, nbytes: float) -> float:
        """The least time to write ``nbytes`` of memory once."""
        return nbytes / (self.write_gbps * 1e9)


@dataclass(frozen=True)
class State:
    """GB/s of reading and of filling memory: each the best of three passes over 96 MiB."""

    read_gbps: float
    fill_gbps: float

    def near(self, other: "State") -> bool:
        """Whether the two states count as the same, so that their samples may be combined."""
        ratios = self.read_gbps / other.read_gbps, self.fill_gbps / other.fill_gbps
        return all(1 / NEAR < ratio < NEAR for ratio in ratios)

    def to_dict(self) -> dict[str, float]:
        """The fields with three significant digits, for a record."""
        return {name: float(f"{value:.3g}") for name, value in asdict(self).items()}


def probe_state() -> State:
    """The state now, in about 30 ms."""
    source, target = _buffers()
    seconds = (min(timeit.repeat(work, number=1, repeat=3)) for work in (source.sum, target.zero_))
    return State(*(source.nbytes / taken / 1e9 for taken in seconds))


def in_caches() -> bool:
    """Whether the CPU's caches hold what ``probe_state`` reads, so that it says nothing of memory."""
    return 2 * system.last_level_cache() > _PROBE_BYTES


@cache
def _buffers():
    return numbers(_PROBE_BYTES // 4).fill_(1), numbers(_PROBE_BYTES // 4).zero_()


def numbers(count: int):
    """So many float32 zeros, which a first write allocates by pages of 2 MiB: memory reads faster than by small ones, and a
    limit is what it can give."""
    import torch

    room = np.frombuffer(system.reserve(4 * count), np.float32)
    system.advise(room, "large")
    return torch.from_numpy(room)


def watched(work: Callable[[], object], with_: Iterable[psutil.Process] = ()) -> tuple[object, float, bool]:
    """(``work()``, cores that other processes used meanwhile, whether that disturbed it). ``with_``: processes whose work is
    part of it, beside this one."""
    own = [psutil.Process(), *with_]
    start, before = time.perf_counter(), seconds_of_others(own)
    done = work()
    end, after = time.perf_counter(), seconds_of_others(own)
    others = max(0.0, (after - before) / max(end - start, 1e-9))
    return done, others, others > BUSY and end - start >= _SAMPLE_SECONDS  # CPU times have a resolution of 10 ms


def quietest(
    take: Callable[[int], object], rounds: int, with_: Iterable[psutil.Process] = (), share: float = math.inf
) -> tuple[list[tuple[float, object]], int]:
    """((cores of others that disturbed it, ``take(number)``) of the quietest ``rounds`` in their order, how many were taken):
    until so many are quiet, at most twice as many, and _LEAST at most once ``share`` seconds are over. ``with_`` as of
    ``watched``."""
    taken, ends = [], time.monotonic() + share
    while len(taken) < 2 * rounds and sum(others <= BUSY for others, _ in taken) < rounds:
        if len(taken) >= _LEAST and time.monotonic() > ends:
            break
        done, others, disturbed = watched(lambda: take(len(taken)), with_)
        taken.append((others if disturbed else 0.0, done))
    first = sorted(range(len(taken)), key=lambda number: taken[number][0])[:rounds]
    return [taken[number] for number in sorted(first)], len(taken)


def seconds_of_all() -> float:
    """Seconds of cores that all processes have used so far."""
    total = psutil.cpu_times()
    return sum(total) - total.idle - getattr(total, "iowait", 0.0) - getattr(total, "guest", 0.0)


def seconds_of_others(own: Iterable[psutil.Process]) -> float:
    """Seconds of cores that all processes but ``own`` have used so far."""
    return seconds_of_all() - sum(times.user + times.system for times in (process.cpu_times() for process in own))


def undisturbed(take: Callable[[], object], tries: int) -> tuple[object, float]:
    """(``take()``, cores of others that disturbed it, 0 where none did), repeated at most ``tries`` times until none do."""
    for _ in range(tries):
        taken, others, disturbed = watched(take)
        if not disturbed:
            break
    return taken, others if disturbed else 0.0


def cores_used_by_others() -> float:
    """Cores that other processes use during the next 0.1 s."""
    return watched(lambda: time.sleep(_SAMPLE_SECONDS))[1]


def patience(seconds: float = 10.0) -> float:
    """Seconds to wait for other processes: KIT_PATIENCE, or else so many. ReportError where the variable is no number."""
    asked = os.environ.get("KIT_PATIENCE", "").strip()
    try:
        value = float(asked or seconds)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ReportError(f"KIT_PATIENCE={asked}: give seconds to wait for other processes, or unset it")
    return value


class Disturbed(str):
    """A warning in words; ``others``: the cores that other processes use."""

    others = 0.0


def settle(patience: float, used: Callable[[], float] | None = None, sleep: Callable = time.sleep) -> str:
    """Wait up to ``patience`` seconds until other processes leave the cores; returns "" then, else a Disturbed."""
    waited, used = 0.0, used or cores_used_by_others
    while (others := used()) > BUSY:
        if waited >= patience:
            warning = Disturbed(f"other processes use {others:.1f} cores: they disturb times that are measured now")
            warning.others = others
            return warning
        wait = min(2.0, patience - waited)
        sleep(wait)
        waited += wait
    return ""
