"""What Linux tells of another process: its threads, waits, faults, maps and cores. Another system tells nothing of these."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from kit.system import groups
from kit.system.groups import text_of


class Thread(NamedTuple):
    """Seconds that a thread ``ran``, seconds that it ``waited`` for a core, and its state: "R" may run, "S" sleeps, "D" waits
    for a disk. ``sleeps``: how often it gave its core away, to wait for something else than a core."""

    ran: float
    waited: float
    state: str
    sleeps: int = 0


class Map(NamedTuple):
    """Bytes of a map of a process: resident ones, those by pages of 2 MiB, those in swap, those that no file backs. ``path``:
    of its file, "" of none; ``deleted``: whether that file is no more; ``start``: its address."""

    path: str
    size: int
    resident: int
    large: int
    swapped: int
    own: int
    deleted: bool
    start: int = 0


class Work(NamedTuple):
    """Of a process so far: page faults that read a disk, those that did not, seconds in the kernel."""

    major: int
    minor: int
    kernel: float


def threads(process: int) -> dict[int, Thread]:
    """Thread id -> Thread; none of a process that is gone, or of another system."""
    listed = {}
    with suppress(OSError):
        for number in os.listdir(f"/proc/{process}/task"):
            times = text_of(f"/proc/{process}/task/{number}/schedstat").split()
            if len(times) == 3 and (words := _stat(f"{process}/task/{number}")):
                given = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text_of(f"/proc/{process}/task/{number}/status"), re.M)
                sleeps = int(given[1]) if given else 0
                listed[int(number)] = Thread(int(times[0]) / 1e9, int(times[1]) / 1e9, words[0], sleeps)
    return listed


def waits_for_disk(process: int) -> bool:
    """Whether one of its threads waits for a disk now."""
    with suppress(OSError):
        return any(_stat(f"{process}/task/{number}")[:1] == ["D"] for number in os.listdir(f"/proc/{process}/task"))
    return False


def work(process: int) -> Work:
    """Faults and kernel time; zeros where they are not told."""
    words = _stat(str(process))
    with suppress(psutil.Error):
        return Work(int(words[9]), int(words[7]), psutil.Process(process).cpu_times().system) if words else Work(0, 0, 0.0)
    return Work(0, 0, 0.0)


def _stat(place: str) -> list[str]:
    """The words of a stat file after the name, the state first (proc_pid_stat(5))."""
    return text_of(f"/proc/{place}/stat").rpartition(")")[2].split()


def maps(process: int | str) -> Iterator[Map]:
    """The maps of a process; none where they are not told, as of another user's process."""
    path, start, sizes = None, 0, {}
    for line in [*text_of(f"/proc/{process}/smaps").splitlines(), "0-0 end"]:
        name, _, rest = line.partition(" ")
        if name.endswith(":"):
            words = rest.split()
            sizes[name] = int(words[0]) << 10 if words and words[0].isdigit() else 0
            continue
        if path is not None:
            large = sizes.get("FilePmdMapped:", 0) + sizes.get("AnonHugePages:", 0) + sizes.get("ShmemPmdMapped:", 0)
            numbers = (sizes.get(f"{each}:", 0) for each in ("Swap", "Anonymous"))
            gone = path.endswith(" (deleted)")
            path = path.removesuffix(" (deleted)")
            yield Map(path, sizes.get("Size:", 0), sizes.get("Rss:", 0), large, *numbers, gone, start)
        path, start, sizes = " ".join(line.split(maxsplit=5)[5:]), int(name.partition("-")[0], 16), {}


def mapping(path: str) -> list[int]:
    """Processes that map a file of this name, as they see it."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
    return [number for number in numbers if f" {path}\n" in text_of(f"/proc/{number}/maps")]


def cores_of(process: int) -> tuple[int, float]:
    """(cores that a process may run on, the cores' worth of time that its groups give: infinite without a limit)."""
    cores = len(os.sched_getaffinity(process)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores, min(groups.quotas(process), default=float("inf"))


def memory_of(process: int) -> tuple[int, int] | None:
    """(limit, bytes free below it) of the narrowest group of a process; None without a limit."""
    return min(groups.memory(process), key=lambda each: each[1], default=None)


def reaches(process: int, path: str) -> Path:
    """A file as a process sees it: in a container it has another root."""
    inside = Path(f"/proc/{process}/root{path}")
    with suppress(OSError):
        if inside.exists():
            return Path(path) if Path(path).exists() and os.path.samefile(path, inside) else inside
    return Path(path)


def nodes(process: int, path: str) -> dict[int, int]:
    """NUMA node -> pages of a process's map of a file that it holds (numa_maps)."""
    pages: dict[int, int] = {}
    for line in text_of(f"/proc/{process}/numa_maps").splitlines():
        if f"file={path}" in line.replace("\\040", " "):
            for node, count in re.findall(r"\bN(\d+)=(\d+)", line):
                pages[int(node)] = pages.get(int(node), 0) + int(count)
    return pages
