"""One notion of busy, for every command and page: did other processes use the cores before or while something was measured?

Where they did, its numbers stand and are no comparison: a command says so in its first line and gives no advice, no share and
no verdict, in words and in JSON. On any machine two speeds whose intervals overlap give no advice (``apart``).
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from kit.lab.measuring.state import BUSY, seconds_of_all
from kit.system import usable_cores

WORTH = 1.05  # times as fast: less is no reason to change anything
NO_ADVICE = "No advice: close what else runs, and ask again"
_LOOK = 0.3  # seconds of a look before anything is measured; CPU times have a resolution of 10 ms


@dataclass
class Busy:
    """``others``: the most cores that other processes used in any look so far."""

    others: float = 0.0

    def __bool__(self):
        return self.others > BUSY

    def seen(self, others: float) -> "Busy":
        """With one more look."""
        self.others = max(self.others, others)
        return self

    @property
    def line(self) -> str:
        """The first line of a command's text; "" on a quiet machine."""
        if not self:
            return ""
        cores = usable_cores()
        used = f"{self.others:.1f} of {cores} core{'s' * (cores != 1)}"
        return f"Busy machine: others used {used}; these numbers are no comparison."

    @property
    def facts(self) -> dict[str, bool | float]:
        """For JSON."""
        return {"busy": bool(self), "busy_others": round(self.others, 2)}


@contextmanager
def watching(busy: Busy | None = None, before: bool = True) -> Iterator[Busy]:
    """Look at other processes for a moment ``before``, and while the ``with`` runs; what this process has started is none of
    them."""
    busy = Busy() if busy is None else busy
    if before:
        busy.seen(look())
    start, used = time.perf_counter(), _of_others()
    try:
        yield busy
    finally:
        took = time.perf_counter() - start
        busy.seen(max(0.0, _of_others() - used) / took if took >= _LOOK / 3 else 0.0 if before else look(_LOOK / 3))


def look(seconds: float = _LOOK) -> float:
    """Cores that other processes use during so many seconds from now on."""
    start, before = time.perf_counter(), _of_others()
    time.sleep(seconds)
    return max(0.0, _of_others() - before) / (time.perf_counter() - start)


def apart(faster: Iterable[float] | None, slower: Iterable[float] | None) -> bool:
    """Whether a difference is one: no value is in both intervals (low, high) of seconds. What was not measured has none (None),
    and a prediction gives no advice against a measurement."""
    if faster is None or slower is None:
        return False
    return max(faster) < min(slower)


def _of_others() -> float:
    """CPU seconds that processes used since the machine started, but for this one and what it started."""
    used = seconds_of_all()
    own = psutil.Process()
    ours = [own]
    with suppress(psutil.Error):
        ours += own.children(recursive=True)
    for process in ours:
        with suppress(psutil.Error):
            used -= sum(process.cpu_times()[:4])  # user, system, and those of children that have ended
    return used
