"""All that the kit asks of the operating system: a row of SYSTEMS for Linux, macOS and any other.

No other module asks (tests/test_system.py reads the sources for it). No Mac has run macOS's row yet: fakes of its calls have.
"""

import ctypes
import functools
import mmap
import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from kit.units import parse_bytes

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None

PAGE = mmap.PAGESIZE  # past the page cache: whole pages of the file, to whole pages of memory


# ---- Linux: files under /proc and /sys, posix_fadvise, O_DIRECT, control groups


def _proc_name() -> str:
    found = re.search(r"^model name\s*:(.*)", _read("/proc/cpuinfo"), re.M)
    return " ".join(found[1].split()) if found else ""


def _proc_facts() -> dict[str, str]:
    names = {"cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU revision"}  # x86; Arm
    lines = (line.partition(":") for line in _read("/proc/cpuinfo").split("\n\n")[0].splitlines())
    found = {name.strip(): value.strip() for name, _, value in lines if name.strip() in names}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name).strip() for name in ("level", "type", "size"))
        found |= {f"L{level} {kind.lower()}": size} if size else {}  # a container may hide it
    return found


def _allowed_cores() -> int:
    """Those that the process may run on, or as many as its control groups give time to: more threads only wait."""
    cores = len(os.sched_getaffinity(0))
    for folder, group in ((f"{_V2}/cpu", _own_group("cpu")), (_V2, _own_group(""))):  # versions 1 and 2
        for place in {folder, folder + group}:
            words = _read(f"{place}/cpu.max") or f"{_read(f'{place}/cpu.cfs_quota_us')} {_read(f'{place}/cpu.cfs_period_us')}"
            with suppress(ValueError):  # no such files, or "max"
                quota, period = map(int, words.split())
                cores = min(cores, -(-quota // period)) if quota > 0 else cores
    return cores


def _own_group(controller: str) -> str:
    """This process's group of a controller, as a path from that one's root."""
    lines = (line.split(":", 2) for line in _read("/proc/self/cgroup").splitlines())
    return next((path for _, names, path in lines if controller in names.split(",")), "").rstrip("/")


def _sys_caches() -> int:
    sizes = {}
    for folder in (Path(f"/sys/devices/system/cpu/cpu{core}/cache") for core in os.sched_getaffinity(0)):
        with suppress(OSError, ValueError):  # a container that hides them
            last = max(folder.glob("index*"), key=lambda path: int((path / "level").read_text()))
            sizes[(last / "shared_cpu_list").read_text()] = parse_bytes((last / "size").read_text().strip() + "iB")
    return sum(sizes.values())


def _read(path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


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
    found = {fact: str(value) for fact, name in _SYSCTLS.items() if (value := _sysctl(name))}
    return found | ({"memory": "unified"} if _sysctl("hw.optional.arm64") else {})


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
            libc().msync(*_pages(data), 2)
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
    the last-level caches of these. ``groups``: where a process may be under a memory limit, and the file with it.
    ``peak_unit``: bytes of ru_maxrss. ``past``: opens a file past the page cache, or OSError. ``forget``: asks that an open
    file's pages go. ``pages``: whether mincore and mlock are there. ``advice``: word -> argument of madvise.
    ``read``: bytes that this process has read from disks. ``library``: the file of a shared library."""

    cpu: Callable[[], str] = str
    facts: Callable[[], dict[str, str]] = dict
    cores: Callable[[], int] = lambda: os.cpu_count() or 1
    caches: Callable[[], int] = int
    groups: dict[str, str] = {}  # noqa: RUF012
    peak_unit: int = 1024
    past: Callable[[Path, int], int] | None = None
    forget: Callable | None = None
    pages: bool = False
    advice: dict[str, int] = {}  # noqa: RUF012
    read: Callable[[], int] = int
    library: str = "lib{}.so"


_V1, _V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
SYSTEMS = {
    "linux": System(
        cpu=_proc_name, facts=_proc_facts, cores=_allowed_cores, caches=_sys_caches, pages=True,
        past=lambda path, flags: os.open(path, flags | os.O_DIRECT),
        forget=lambda file: os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED),
        advice={"random": 1, "willneed": 3, "populate": 22, "ahead": 22},
        read=lambda: psutil.Process().io_counters().read_bytes,
        groups={_V1: "memory.limit_in_bytes", _V2: "memory.max"},
    ),
    "darwin": System(
        cpu=lambda: _sysctl("machdep.cpu.brand_string"), facts=_mac_facts, cores=_mac_cores, caches=_mac_caches, pages=True,
        past=_uncached, forget=_invalidate, advice={"random": 1, "willneed": 3, "ahead": 3}, read=_rusage_read, peak_unit=1,
        library="lib{}.dylib",
    ),
    "win32": System(library="{}.dll"),
}  # fmt: skip
HERE = SYSTEMS.get(sys.platform, System())


# ---- the CPU


@functools.cache
def cpu_name() -> str:
    """The CPU's model name."""
    return HERE.cpu() or platform.processor() or platform.machine()


@functools.cache
def cpu_facts() -> dict[str, str]:
    """Family, model, stepping, kinds of cores, sizes of caches, unified memory: those that the system tells."""
    return HERE.facts()


def usable_cores() -> int:
    """Cores to compute on: those that this process may run on and has time for, of a Mac the performance cores (as llama.cpp
    does)."""
    return HERE.cores()


def pin(cores: int) -> None:
    """Let this process run on the last ``cores`` of its cores alone, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])


@functools.cache
def last_level_cache() -> int:
    """Bytes of the last-level caches of the usable cores together; 64 MiB where the system does not tell."""
    return HERE.caches() or 64 << 20


def permit_tiles() -> bool:
    """Ask for AMX's tiles for all threads of the process: arch_prctl(ARCH_REQ_XCOMP_PERM) of Linux on x86-64."""
    return HERE is SYSTEMS["linux"] and libc().syscall(158, 0x1023, 18) == 0


@functools.cache
def yields() -> int:
    """The address of the system's function that lets another thread have the core of the one that calls it."""
    function = ctypes.CDLL("kernel32").SwitchToThread if sys.platform == "win32" else libc().sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value


def after_fork(forget: Callable[[], None]) -> None:
    """Call ``forget`` in a forked child, whose threads are gone."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


# ---- memory


def memory_limit() -> int:
    """Bytes this process may use: the machine's memory, or the cgroup's limit if that is lower."""
    limits = [psutil.virtual_memory().total]
    for folder, name in HERE.groups.items():
        with suppress(ValueError):  # no such version of cgroup, or "max"
            limits.append(int(_read(f"{folder}/{name}")))
    return min(limits)


def memory_available() -> int:
    """Bytes that can be allocated now without swapping."""
    return min(psutil.virtual_memory().available, memory_limit())


def peak_memory() -> int:
    """Largest resident size of this process so far, bytes; the present one where the system keeps no peak."""
    if resource is None:
        return psutil.Process().memory_info().rss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * HERE.peak_unit


def own_memory() -> int:
    """Bytes of this process's memory that no file backs; all that is resident where the system does not tell them apart."""
    used = psutil.Process().memory_info()
    return used.rss - getattr(used, "shared", 0)


def counters() -> tuple[float, int, int, int]:
    """Of this process so far: seconds in the kernel, bytes read from disks, page faults that read, those that did not."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_stime, HERE.read(), used.ru_majflt, used.ru_minflt


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
    has = {_V1: Path(_V1).is_dir(), _V2: "memory" in _read(f"{_V2}/cgroup.controllers").split()}
    return next(((Path(folder), name) for folder, name in HERE.groups.items() if has[folder]), None)


def join_group(nbytes: int) -> str:
    """Move this process into a new control group of so much memory; the group's folder, empty where that is not allowed."""
    for (root, name), controller in zip(HERE.groups.items(), ("memory", ""), strict=False):
        group = Path(f"{root}{_own_group(controller)}") / f"kit-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / name).write_text(str(nbytes))
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


def open_past(path, flags: int = os.O_RDONLY) -> int:
    """A descriptor that reads and writes whole PAGEs past the page cache; OSError where the system or the folder cannot."""
    if HERE.past is None:
        raise OSError(f"{path}: this system has no way past its page cache")
    return HERE.past(path, flags)


def lock(handle, wait: bool = True) -> bool | None:
    """Lock an open file: whether it is ours now; None where files cannot be locked (some network file systems)."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (AttributeError, OSError):
        return None
    return True


def forget(file) -> bool:
    """Ask the system to drop an open file's pages that no process maps; False where it is not known to do it."""
    os.fsync(file.fileno())  # dirty pages cannot be dropped
    return HERE.forget is not None and HERE.forget(file) is None


def resident(data: np.ndarray) -> float:
    """Share of the pages of an array over a mapped file that are in memory, by mincore(2); 1.0 where it cannot be told."""
    address, nbytes = _pages(data)
    found = np.zeros(nbytes.value // PAGE, np.uint8)
    known = HERE.pages and libc().mincore(address, nbytes, ctypes.c_void_p(found.ctypes.data)) == 0
    return float(np.mean(found & 1)) if known else 1.0


def advise(data: np.ndarray, how: str) -> bool:
    """Tell the system about an array over a mapped file: "random" (no read-ahead), "willneed" (read it now, do not wait),
    "populate" (read it and wait), "ahead" (populate, or willneed where there is none), "lock" (read it and keep it). False
    where the system refuses or has no such advice."""
    if how == "lock":
        return HERE.pages and libc().mlock(*_pages(data)) == 0
    return how in HERE.advice and libc().madvise(*_pages(data), HERE.advice[how]) == 0


def _pages(data: np.ndarray) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    """Address and bytes of the whole pages in which a contiguous array lies."""
    first = data.ctypes.data // PAGE * PAGE
    return ctypes.c_void_p(first), ctypes.c_size_t(-(-(data.ctypes.data + data.nbytes - first) // PAGE) * PAGE)


# ---- libraries


@functools.cache
def libc() -> ctypes.CDLL:
    """The functions of this process: the C library's, and of what it has loaded."""
    return ctypes.CDLL(None)


def library_file(name: str) -> str:
    """How the shared library ``name`` is called here: libllama.so, libllama.dylib, llama.dll."""
    return HERE.library.format(name)
