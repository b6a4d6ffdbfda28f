"""The operating system's page cache: drop a file from it, read ahead into it, and find out how much of a file is in it."""

import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kit import system
from kit.gguf.sources import part_paths
from kit.system import advise, resident

__all__ = ["advise", "drop", "read_ahead", "resident", "resident_fraction"]
_PART = 2**22  # bytes that are read ahead at once


def drop(path: Path) -> bool:
    """Ask the system to drop the cached pages of a model's files (no rights needed); True when at most 1 % remain.

    Pages that a process has mapped remain, so close the file first. False where the system does not drop them.
    """
    for part in part_paths(Path(path)):
        with open(part, "rb") as file:
            if not system.forget(file):
                return False
    return resident_fraction(path) <= 0.01


def resident_fraction(path: Path) -> float:
    """Share of the pages of a model's files that are in memory; 1.0 where the system cannot tell."""
    held = total = 0
    for part in part_paths(Path(path)):
        if size := os.path.getsize(part):  # an empty file has no map
            with open(part, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                data = np.frombuffer(view, np.uint8)
                held, total = held + size * resident(data), total + size
                del data  # a map cannot be closed while an array refers to it
    return held / total if total else 1.0


def read_ahead(arrays: Sequence[np.ndarray], ended: threading.Event) -> None:
    """Bring the missing pages of arrays over mapped files into memory, in this order, by madvise(2) (Linux 5.14, macOS).

    This reads at the disk's speed; page faults of a kernel's threads read more slowly. It stops when ``ended`` is set.
    """
    for data in arrays:
        for part in (data[at : at + _PART] for at in range(0, data.nbytes, _PART)):
            if ended.is_set() or (resident(part) < 1 and not advise(part, "ahead")):
                return  # madvise fails on a system that does not know it, and for a file that has become shorter
