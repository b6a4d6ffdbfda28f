"""How fast the disk reads: past the page cache, so that no figure of a disk is one of memory."""

import mmap
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kit.lab.measuring.kept import once_a_run
from kit.model.readers import random_gbps
from kit.system import STEP, open_past
from kit.units import format_bytes

__all__ = ["Disk", "in_turns", "random_gbps", "read_gbps", "speed"]
MOST, PASSES = 512 << 20, 3


@dataclass(frozen=True)
class Disk:
    """``gbps``: 10^9 bytes a second, the best of ``samples``, a pass each; None where it is not known. ``how``: words."""

    gbps: float | None
    how: str
    samples: tuple[float, ...] = ()

    def __str__(self):
        return f"{self.gbps:.2g} GB/s from disk ({self.how})" if self.gbps else f"the disk's speed is not known: {self.how}"


def read_gbps(path: Path) -> float | None:
    """GB/s of reading a file from its disk; None where that cannot be told from reading memory."""
    return speed(path).gbps


@once_a_run
def in_turns(path: Path, readers: Iterable[int], nbytes: int, seconds: float, turns: int = 5) -> dict[int, list[float]]:
    """Number of readers -> GB/s of ``random_gbps`` with so many, ``turns`` times."""
    return {n: [random_gbps(path, n, nbytes, seconds=seconds, seed=turn) for turn in range(turns)] for n in readers}


@once_a_run
def speed(path: Path, passes: int = PASSES) -> Disk:
    """Read up to MOST bytes of a file ``passes`` times, past the page cache. A disk of a virtual machine may still be its
    host's memory."""
    path = Path(path)
    rates = [gbps for _ in range(passes) if (gbps := _pass(path))]
    if not rates:
        return Disk(None, "this file system gives no way past the page cache")
    size = format_bytes(min(path.stat().st_size, MOST))
    return Disk(max(rates), f"past the page cache, best of {len(rates)} passes over {size}", tuple(rates))


def _pass(path: Path) -> float | None:
    """GB/s of one pass; None where the system or the file's place does not go past the page cache."""
    done, count = 0, 1
    try:
        with (
            os.fdopen(open_past(path), "rb", buffering=0) as file,
            mmap.mmap(-1, STEP) as room,  # starts at a page, as reading past the page cache asks
        ):
            start = time.perf_counter()
            while done < MOST and count:
                count = file.readinto(room)
                done += count
            taken = time.perf_counter() - start
    except OSError:
        return None
    return done / taken / 1e9 if done else None
