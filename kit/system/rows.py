"""How each operating system is asked: a row of SYSTEMS for Linux, macOS and any other; kit.system asks by it.

No Mac has run macOS's row yet: fakes of its calls have.
"""

import ctypes
import functools
import mmap
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from kit.system import groups, processes
from kit.system.groups import text_of
from kit.units import parse_bytes

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PAGE = mmap.PAGESIZE  # past the page cache: whole pages of the file, to whole pages of memory


@functools.cache
def libc() -> ctypes.CDLL:
    """The functions of this process: the C library's, and of what it has loaded."""
    return ctypes.CDLL(None)


def whole_pages(data: np.ndarray) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    """Address and bytes of the whole pages in which a contiguous array lies."""
    first = data.ctypes.data // PAGE * PAGE
    return ctypes.c_void_p(first), ctypes.c_size_t(-(-(data.ctypes.data + data.nbytes - first) // PAGE) * PAGE)


# ---- Linux: files under /proc and /sys, posix_fadvise, O_DIRECT, control groups


def _proc_name() -> str:
    match = re.search(r"^model name\s*:(.*)", text_of("/proc/cpuinfo"), re.M)
    return " ".join(match[1].split()) if match else ""


def _proc_peak() -> int:
    match = re.search(r"^VmHWM:\s*(\d+) kB", text_of("/proc/self/status"), re.M)
    return int(match[1]) << 10 if match else 0


def _proc_facts() -> dict[str, str]:
    names = {"cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU revision"}  # x86; Arm
    lines = (line.partition(":") for line in text_of("/proc/cpuinfo").split("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, _, value in lines if name.strip() in names}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (text_of(index / name).strip() for name in ("level", "type", "size"))
        facts |= {f"L{level} {kind.lower()}": size} if size else {}  # a container may hide it
    return facts


def _allowed_cores() -> int:
    """Those that the process may run on, or as many as its control groups give time to: more threads only wait."""
    return min([len(os.sched_getaffinity(0)), *groups.cores()])


def _sys_caches() -> int:
    sizes = {}
    for folder in (Path(f"/sys/devices/system/cpu/cpu{core}/cache") for core in os.sched_getaffinity(0)):
        with suppress(OSError, ValueError):  # a container that hides them
            last = max(folder.glob("index*"), key=lambda path: int((path / "level").read_text()))
            sizes[(last / "shared_cpu_list").read_text()] = parse_bytes((last / "size").read_text().strip() + "iB")
    return sum(sizes.values())


def _smaps(address: int) -> tuple[int, int]:
    own = next((each for each in processes.maps("self") if each.start == address), None)
    return (own.resident, own.large) if own else (0, 0)


# ---- macOS: sysctl, F_NOCACHE, msync, proc_pid_rusage


def _sysctl(name: str) -> str | int:
    """A value of sysctlbyname(3), a text for what ends in "string"; 0 or "" where this Mac has none."""
    size, text = ctypes.c_size_t(0), name.endswith("string")
    if libc().sysctlbyname(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return "" if text else 0
    value = ctypes.create_string_buffer(size.value)
    libc().sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return value.value.decode() if text else int.from_bytes(value.raw, sys.byteorder)


_SYSCTLS = {  # level 0: performance cores, 1: efficiency cores
    "performance cores": "hw.perflevel0.logicalcpu", "efficiency cores": "hw.perflevel1.logicalcpu",
    "L1 data": "hw.perflevel0.l1dcachesize", "L2 unified": "hw.perflevel0.l2cachesize", "L3 unified": "hw.l3cachesize",
}  # fmt: skip


def _mac_facts() -> dict[str, str]:
    facts = {fact: str(value) for fact, name in _SYSCTLS.items() if (value := _sysctl(name))}
    return facts | ({"memory": "unified"} if _sysctl("hw.optional.arm64") else {})


def _mac_cores() -> int:
    return _sysctl("hw.perflevel0.logicalcpu") or os.cpu_count() or 1


def _mac_caches() -> int:
    shared = _sysctl("hw.perflevel0.cpusperl2") or 1
    return _sysctl("hw.l3cachesize") or _sysctl("hw.perflevel0.l2cachesize") * -(-_mac_cores() // shared)


def _uncached(path, flags: int) -> int:
    """F_NOCACHE still takes what the cache holds (axboe/fio, issue 48), so that goes first."""
    descriptor = os.open(path, flags)
    with open(path, "rb") as file:
        _invalidate(file)
    fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
    return descriptor


def _invalidate(file) -> None:
    """msync(MS_INVALIDATE) of a shared map discards a file's pages, as axboe/fio 41880b9 does it."""
    if size := os.fstat(file.fileno()).st_size:
        with mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            data = np.frombuffer(view, np.uint8)
            libc().msync(*whole_pages(data), 2)
            del data  # a map cannot be closed while an array refers to it


def _rusage_read() -> int:
    """ri_diskio_bytesread of struct rusage_info_v2 (sys/resource.h), its nineteenth word; psutil does not tell it."""
    words = (ctypes.c_uint64 * 20)()
    libc().proc_pid_rusage(os.getpid(), 2, ctypes.byref(words))
    return words[18]


# ---- the rows


class System(NamedTuple):
    """How a system is asked; the defaults know nothing.

    ``cpu``: its name. ``facts``: what else tells two CPUs of that name apart. ``cores``: to compute on. ``caches``: bytes of
    the last-level caches of these. ``groups``: where groups of processes are made, and the file with their memory limit.
    ``limits``: (bytes allowed, bytes free of them) of each group of this process that has a limit.
    ``peak``: the largest resident size of this process, 0 where it is not told. ``peak_unit``: bytes of ru_maxrss. ``past``:
    opens a file past the page cache, or OSError. ``forget``: asks that an open file's pages go. ``pages``: whether mincore and
    mlock are there. ``advice``: word -> argument of madvise.
    ``page_sizes``: of the map that begins at an address, bytes in the page tables, and those by 2 MiB pages.
    ``read``: bytes that this process has read from disks. ``library``: the file of a shared library."""

    cpu: Callable[[], str] = str
    facts: Callable[[], dict[str, str]] = dict
    cores: Callable[[], int] = lambda: os.cpu_count() or 1
    caches: Callable[[], int] = int
    groups: dict[str, str] = {}  # noqa: RUF012
    limits: Callable[[], list[tuple[int, int]]] = list
    peak: Callable[[], int] = int
    peak_unit: int = 1024
    past: Callable[[Path, int], int] | None = None
    forget: Callable | None = None
    pages: bool = False
    advice: dict[str, int] = {}  # noqa: RUF012
    page_sizes: Callable[[int], tuple[int, int]] = lambda address: (0, 0)
    read: Callable[[], int] = int
    library: str = "lib{}.so"


CGROUP_V1, CGROUP_V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
SYSTEMS = {
    "linux": System(
        cpu=_proc_name, facts=_proc_facts, peak=_proc_peak, cores=_allowed_cores, caches=_sys_caches, pages=True,
        past=lambda path, flags: os.open(path, flags | os.O_DIRECT),
        forget=lambda file, start, nbytes: os.posix_fadvise(file.fileno(), start, nbytes, os.POSIX_FADV_DONTNEED),
        advice={"random": 1, "willneed": 3, "unmap": 4, "large": 14, "populate": 22, "ahead": 22}, page_sizes=_smaps,
        read=lambda: psutil.Process().io_counters().read_bytes,
        groups={CGROUP_V1: "memory.limit_in_bytes", CGROUP_V2: "memory.max"}, limits=groups.memory,
    ),
    "darwin": System(
        cpu=lambda: _sysctl("machdep.cpu.brand_string"), facts=_mac_facts, cores=_mac_cores, caches=_mac_caches, pages=True,
        past=_uncached, forget=lambda file, *_: _invalidate(file), advice={"random": 1, "willneed": 3, "ahead": 3},
        read=_rusage_read, peak_unit=1, library="lib{}.dylib",
    ),
    "win32": System(library="{}.dll"),
}  # fmt: skip
HERE = SYSTEMS.get(sys.platform, System())
