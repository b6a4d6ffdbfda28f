"""All that the kit asks of the operating system: the CPU, memory, files and the page cache, libraries.

No other module asks (tests/test_system.py reads the sources for it); how a system answers is its row (kit.system.rows).
"""

import ctypes
import functools
import math
import mmap
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from kit.system import groups, rows

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None


# ---- the CPU


@functools.cache
def cpu_name() -> str:
    """The CPU's model name."""
    return rows.HERE.cpu() or platform.processor() or platform.machine()


@functools.cache
def cpu_facts() -> dict[str, str]:
    """Family, model, stepping, kinds of cores, sizes of caches, unified memory: those that the system tells."""
    return rows.HERE.facts()


def usable_cores() -> int:
    """Cores to compute on: those that this process may run on and has time for, of a Mac the performance cores (as llama.cpp
    does)."""
    return rows.HERE.cores()


def pin(cores: int) -> None:
    """Let this process run on the last ``cores`` of its cores alone, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])


@functools.cache
def last_level_cache() -> int:
    """Bytes of the last-level caches of the usable cores together; 64 MiB where the system does not tell."""
    return rows.HERE.caches() or 64 << 20


def permit_tiles() -> bool:
    """Ask for AMX's tiles for all threads of the process: arch_prctl(ARCH_REQ_XCOMP_PERM) of Linux on x86-64."""
    return rows.HERE is rows.SYSTEMS["linux"] and rows.libc().syscall(158, 0x1023, 18) == 0


@functools.cache
def yields() -> int:
    """The address of the system's function that lets another thread have the core of the one that calls it."""
    function = ctypes.CDLL("kernel32").SwitchToThread if sys.platform == "win32" else rows.libc().sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value


def wake_at_once() -> None:
    """Let the calling thread begin as soon as it wakes, in short turns. Else Linux (6.12 and later) lets threads that compute
    on all cores end their turns of a millisecond or more first. An older system and another one change nothing."""
    number = {"x86_64": 314, "aarch64": 274}.get(platform.machine())  # sched_setattr
    if number and rows.HERE is rows.SYSTEMS["linux"] and os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice, turn = os.getpriority(os.PRIO_PROCESS, 0), 100_000  # nanoseconds, the least that Linux takes
        rows.libc().syscall(number, 0, struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, turn, 0, 0), 0)


def end_with_parent() -> None:
    """Let the system end this process when the one that started it dies, even by a kill: prctl(PR_SET_PDEATHSIG) of Linux."""
    if rows.HERE is rows.SYSTEMS["linux"]:
        rows.libc().prctl(1, int(signal.SIGKILL), 0, 0, 0)


def after_fork(forget: Callable[[], None]) -> None:
    """Call ``forget`` in a forked child, whose threads are gone."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


# ---- memory


def memory_limit() -> int:
    """Bytes this process may use: the machine's memory, or the least limit of its control groups and of ulimit if lower."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def memory_available() -> int:
    """Bytes that can be allocated now without swapping: of the machine, and below each limit of this process."""
    return min([psutil.virtual_memory().available, *(free for _, free in _limits())])


def address_limit() -> float:
    """Bytes of addresses that this process may have (ulimit -v), infinite where nothing limits them."""
    if not hasattr(resource, "RLIMIT_AS"):
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _limits() -> list[tuple[int, int]]:
    """(bytes allowed, bytes free of them): of control groups, and of ulimit -v and -d, which count addresses."""
    used, limits = psutil.Process().memory_info(), rows.HERE.limits()
    for name, kind in (("RLIMIT_AS", "vms"), ("RLIMIT_DATA", "data")):
        with suppress(AttributeError):  # a system without such limits, or without the size of data
            limit = resource.getrlimit(getattr(resource, name))[0]
            if limit != resource.RLIM_INFINITY:
                limits.append((limit, max(0, limit - getattr(used, kind))))
    return limits


def peak_memory() -> int:
    """Largest resident size of this process so far, bytes; the present one where the system keeps no peak."""
    if resource is None:
        return psutil.Process().memory_info().rss
    if own := rows.HERE.peak():  # ru_maxrss begins with what the parent had when it started this process
        return own
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * rows.HERE.peak_unit


def own_memory() -> int:
    """Bytes of this process's memory that no file backs; all that is resident where the system does not tell them apart."""
    used = psutil.Process().memory_info()
    return used.rss - getattr(used, "shared", 0)


def counters() -> tuple[float, int, int, int]:
    """Of this process so far: seconds in the kernel, bytes read from disks, page faults that read, those that did not."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_stime, rows.HERE.read(), used.ru_majflt, used.ru_minflt


def limit_memory(nbytes: int) -> None:
    """Let this process allocate so much, mapped files not counted, where the system has such a limit (RLIMIT_DATA)."""
    with suppress(AttributeError, ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))


def allow_files(count: int) -> None:
    """Let this process hold ``count`` more open files, as far as the hard limit goes."""
    with suppress(AttributeError, ValueError, OSError):  # no such limits; macOS allows fewer than its hard limit says
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = count + 256  # beside those of Python, notebooks and libraries
        if 0 <= soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard < 0 else min(needed, hard), hard))


def group_root() -> tuple[Path, str] | None:
    """Where root may make a group of processes under a memory limit, and the file that takes it; None: nowhere."""
    controllers = rows.text_of(f"{rows.CGROUP_V2}/cgroup.controllers").split()
    has = {rows.CGROUP_V1: Path(rows.CGROUP_V1).is_dir(), rows.CGROUP_V2: "memory" in controllers}
    return next(((Path(folder), name) for folder, name in rows.HERE.groups.items() if has[folder]), None)


def join_group(nbytes: int) -> str:
    """Move this process into a new control group of so much memory; the group's folder, empty where that is not allowed."""
    own = dict(reversed(groups.own("memory") if rows.HERE.groups else []))  # of each version the group that holds it
    for version, folder in own.items():
        group = folder / f"kit-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / groups.MEMORY[version].limits[0]).write_text(str(nbytes))
                (group / "cgroup.procs").write_text(str(os.getpid()))
                return str(group)
            except OSError:
                group.rmdir()
    return ""


def reserve(nbytes: int) -> mmap.mmap:
    """Zeros whose memory is allocated page by page, at the first write. OSError when there are not so many addresses."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)}
    return mmap.mmap(-1, max(nbytes, 1), **private if hasattr(mmap, "MAP_PRIVATE") else {})


# ---- files and the page cache

STEP = 8 << 20  # bytes of one read past the page cache: enough for a disk's full speed


def open_past(path, flags: int = os.O_RDONLY) -> int:
    """A descriptor that reads and writes whole pages past the page cache; OSError where the system or the folder cannot."""
    if rows.HERE.past is None:
        raise OSError(f"{path}: this system has no direct reads (past the page cache)")
    return rows.HERE.past(path, flags)


def lock(handle, wait: bool = True) -> bool | None:
    """Lock an open file: whether it is ours now; None where files cannot be locked (some network file systems)."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (AttributeError, OSError):
        return None
    return True


def forget(file, start: int = 0, nbytes: int = 0) -> bool:
    """Ask the system to drop an open file's pages that no process maps, of ``nbytes`` from ``start`` (0: all, as on macOS);
    False where it is not known to do it."""
    os.fsync(file.fileno())  # dirty pages cannot be dropped
    return rows.HERE.forget is not None and rows.HERE.forget(file, start, nbytes) is None


def resident(data: np.ndarray) -> float:
    """Share of the pages of an array over a mapped file that are in memory, by mincore(2); 1.0 where it cannot be told."""
    address, nbytes = rows.whole_pages(data)
    flags = np.zeros(nbytes.value // rows.PAGE, np.uint8)
    known = rows.HERE.pages and rows.libc().mincore(address, nbytes, ctypes.c_void_p(flags.ctypes.data)) == 0
    return float(np.mean(flags & 1)) if known else 1.0


def page_sizes(data: np.ndarray) -> tuple[int, int]:
    """(bytes, bytes by pages of 2 MiB) that this process's page tables hold of the map that begins with an array; zeros
    where the system does not tell."""
    return rows.HERE.page_sizes(data.ctypes.data)


def advise(data: np.ndarray, how: str) -> bool:
    """Tell the system about an array over a mapped file: "random" (no read-ahead), "willneed" (read it now, do not wait),
    "populate" (read it and wait), "ahead" (populate, or willneed where there is none), "lock" (read it and keep it), "large"
    (by pages of 2 MiB), "unmap" (out of this process's page tables). False where the system refuses or has no such advice."""
    if how == "lock":
        return rows.HERE.pages and rows.libc().mlock(*rows.whole_pages(data)) == 0
    return how in rows.HERE.advice and rows.libc().madvise(*rows.whole_pages(data), rows.HERE.advice[how]) == 0


# ---- libraries


def library_file(name: str) -> str:
    """How the shared library ``name`` is called here: libllama.so, libllama.dylib, llama.dll."""
    return rows.HERE.library.format(name)
