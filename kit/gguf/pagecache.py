"""The operating system's page cache: drop a file from it, and find out how much of a file is in it."""

import ctypes
import mmap
import os
import sys
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
    """Share of the file's pages in memory, by mincore(2); 1.0 on systems other than Linux."""
    size = os.path.getsize(path)
    if not size or not sys.platform.startswith("linux"):
        return 1.0
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        address = np.frombuffer(view, np.uint8)
        result = libc.mincore(ctypes.c_void_p(address.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data))
        del address  # a map cannot be closed while an array refers to it
    return float(np.mean(pages & 1)) if result == 0 else 1.0
