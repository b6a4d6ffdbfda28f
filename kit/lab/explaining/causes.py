"""Where the time of a running server goes: causes in seconds that add up to the time of a token, or of a request.

What was seen is divided by rules that a reader can check (``split``): waits are measured, the time for bytes is their number
over the bandwidth, and what nothing explains is a cause of its own name, "unexplained".
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kit.lab.engines.watch import Seen
from kit.lab.measuring.measure import interval_of

NAMES = ("memory", "disk", "threads", "quota", "busy", "depth", "load", "pages", "swap", "reprocess", "overhead", "unexplained")
PROMPT = "prompt"  # of a request: the positions that it had to compute, no fault
WANTED = ("memory", PROMPT, "unexplained")  # what is no fault
_WAITS = 0.05  # of the time: threads that waited for a core for less did not wait for cores
SMALL = 0.1  # of the time: a fault of less is none to act on
DECODE, DEEP, FIRST, TURN = "decode", "decode at depth", "first request", "second turn"  # what causes are of


class Window(NamedTuple):
    """Tokens in a row: ``tokens`` intervals of ``seconds`` each on average, what was ``seen`` meanwhile, and the server's own
    seconds of a token (None: it does not say)."""

    tokens: int
    seconds: float
    seen: Seen
    reported: float | None = None


@dataclass(frozen=True)
class Cause:
    """``seconds``: of a token or a request (``of``); ``low``, ``high``: its 95 % interval. ``evidence``, ``remedy``: words;
    ``flags``: those of the engine that the remedy gives, if it does."""

    name: str
    seconds: float
    low: float
    high: float
    evidence: str = ""
    remedy: str = ""
    of: str = DECODE
    flags: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether it is something to remove, and not what the answer needs."""
        return self.name not in WANTED


def split(window: Window, memory: float, pages: float = 0.0) -> dict[str, float]:
    """Seconds of a token by cause; they add up to the window's. ``memory``: the least seconds for its bytes, ``pages``: how
    much longer they take by small pages.

    - disk, swap: the share of the window in which a thread waited for a disk, and the kernel's work on what it read; swap by
      bytes. The kernel's work is divided between pages that were read and the waking of threads in the ratio of their numbers.
    - quota: seconds that the group was held back, over half of the cores that it computes on (a thread that waits for one that
      is held sleeps, and is not counted), and no more than its threads did not run.
    - busy, threads: waiting for a core beyond that; for others no longer than these ran. Threads above the cores wait for each
      other, in the ratio of their number to the cores of other processes; the rest is others. A token waits when any of its
      threads does, and whenever none of them runs: one that sleeps waits for one that waits.
    - threads, too: the time of its cores that they do not use because they sleep until another one has done its part, and the
      kernel's work of waking them. Threads that spin instead have none.
    - overhead: the client's time beyond the server's own.
    """
    seen, token = window.seen, window.seconds
    if not seen.known:
        seen = Seen(window.seconds)
    wall = max(seen.seconds, 1e-9)
    halves = max(1.0, min(seen.workers, seen.cores) / 2)
    held = min(seen.throttled / wall / halves, 1 - max(seen.ran, default=0.0))
    waits = [max(0.0, share - held) for share in seen.waited]
    mean, excess = (float(np.mean(waits)) if waits else 0.0), max(0, seen.workers - seen.cores)
    reads = seen.faults + seen.read + seen.swapped > 0
    kernel = seen.kernel / wall / max(1, seen.paged_in + seen.woken)
    disk = min(1.0, seen.disk + kernel * seen.paged_in) if reads else 0.0
    paged = seen.swapped / max(seen.read, seen.swapped) if seen.swapped else 0.0
    over = max(0.0, token - window.reported) / token if window.reported else 0.0
    none_ran = 1 - sum(seen.ran) - disk - held - over if mean > _WAITS else 0.0
    others = 0.0 if excess else min(seen.others, max(none_ran, 1 - math.prod(1 - share for share in waits)))
    parts = {
        "memory": memory, "disk": token * disk * (1 - paged), "quota": token * held,
        "busy": token * min(1.0, others + seen.stolen / max(1, seen.cores)), "pages": pages, "swap": token * disk * paged,
        "overhead": token * over, "threads": token * _asleep(seen, disk + held + over, others, kernel),
    }  # fmt: skip
    if (total := sum(parts.values())) > token:  # what overlaps is counted in proportion
        parts = {name: seconds * token / total for name, seconds in parts.items()}
    if excess:
        waiting, own = mean * (token - sum(parts.values())), excess / (excess + seen.others)
        parts["threads"] += own * waiting
        parts["busy"] += (1 - own) * waiting
    parts["unexplained"] = max(0.0, token - sum(parts.values()))
    return parts


def _asleep(seen: Seen, known: float, others: float, kernel: float) -> float:
    """The share of a window that threads lose because they sleep between the parts of a token. ``known``: the share that other
    causes have, ``others``: other processes; ``kernel``: of a sleep."""
    if not seen.woken:
        return 0.0
    cores = min(seen.workers, seen.cores)
    taken = others if seen.workers <= seen.cores else seen.others / seen.cores
    return max(0.0, 1 - sum(seen.ran) / cores - known - taken) + kernel * seen.woken


def account(rows: Sequence[dict[str, float]], of: str = DECODE) -> list[Cause]:
    """Causes of several windows: the mean of each, so that they add up to the mean time, with the interval of the windows."""
    causes = []
    for name in (PROMPT, *NAMES):
        values = [row.get(name, 0.0) for row in rows]
        if not any(values) and name != "unexplained":
            continue
        low, high = interval_of(values)
        mean = float(np.mean(values))
        causes.append(Cause(name, mean, max(0.0, min(low, mean)), max(high, mean), of=of))
    return causes


def with_depth(deep: Sequence[dict[str, float]], near: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Rows at depth, in which what a token takes longer than near the beginning, all else equal, is the depth's."""
    usual = float(np.mean([row["unexplained"] for row in near]))
    rows = []
    for row in deep:
        longer = max(0.0, row["unexplained"] - usual)
        rows.append(row | {"depth": longer, "unexplained": row["unexplained"] - longer})
    return rows


def largest(causes: Iterable[Cause]) -> Cause | None:
    """The fault with the largest share of what it is of; None where no fault has a tenth."""
    causes = [*causes]
    totals: dict[str, float] = {}
    for cause in causes:
        totals[cause.of] = totals.get(cause.of, 0.0) + cause.seconds
    faults = [cause for cause in causes if cause.is_fault and cause.seconds > SMALL * totals[cause.of]]
    return max(faults, key=lambda cause: cause.seconds / totals[cause.of], default=None)
