"""The operating system's page cache: drop a file from it, read ahead into it, and find out how much of a file is in it."""

import ctypes
import functools
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def drop(path: Path) -> bool:
    """Ask the kernel to drop the file's cached pages (no rights needed); True when at most 1 % remain.

    Pages that a process has mapped remain, so close the file first. False on systems without posix_fadvise (macOS).
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # dirty pages cannot be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return resident_fraction(path) <= 0.01


def resident_fraction(path: Path) -> float:
    """Share of the file's pages that are in memory; 1.0 where the system cannot tell."""
    if not os.path.getsize(path):
        return 1.0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        data = np.frombuffer(view, np.uint8)
        share = resident(data)
        del data  # a map cannot be closed while an array refers to it
    return share


def resident(data: np.ndarray) -> float:
    """Share of the pages of an array over a mapped file that are in memory, by mincore(2); 1.0 where it cannot be told."""
    address, nbytes = _pages(data)
    found = np.zeros(nbytes.value // mmap.PAGESIZE, np.uint8)
    known = sys.platform.startswith("linux") and _libc().mincore(address, nbytes, ctypes.c_void_p(found.ctypes.data)) == 0
    return float(np.mean(found & 1)) if known else 1.0


def read_ahead(arrays: Sequence[np.ndarray], ended: threading.Event) -> None:
    """Bring the missing pages of arrays over mapped files into memory, in this order, by madvise(2) (Linux 5.14).

    This reads at the disk's speed; page faults of a kernel's threads read more slowly. It stops when ``ended`` is set.
    """
    for data in arrays:
        for part in (data[at : at + _PART] for at in range(0, data.nbytes, _PART)):
            if ended.is_set() or (resident(part) < 1 and _libc().madvise(*_pages(part), _POPULATE_READ)):
                return  # madvise fails on a system that does not know it, and for a file that has become shorter


def advise(data: np.ndarray, how: str) -> bool:
    """Tell the kernel about an array over a mapped file: "random" (no read-ahead), "willneed" (read it now, do not wait),
    "populate" (read it and wait), "lock" (read it and keep it). False where the system refuses."""
    function = _libc().mlock if how == "lock" else _libc().madvise
    return function(*_pages(data), *_ADVICE[how]) == 0


_PART, _POPULATE_READ = 2**22, 22
_ADVICE = {"random": (1,), "willneed": (3,), "populate": (_POPULATE_READ,), "lock": ()}


def _pages(data: np.ndarray) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    """Address and bytes of the whole pages in which a contiguous array lies."""
    first = data.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    pages = -(-(data.ctypes.data + data.nbytes - first) // mmap.PAGESIZE)
    return ctypes.c_void_p(first), ctypes.c_size_t(pages * mmap.PAGESIZE)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
