"""Control groups of Linux: the groups of this process, from its own up to the root, and what they leave it of memory and time.

Both versions, also mounted side by side, as the kernel's documents admin-guide/cgroup-v1 and cgroup-v2 describe them. A
container may see its own group as the root, or the host's path of it; /proc/self/mountinfo tells which.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Files(NamedTuple):
    """Names in a group's folder: its ``limits`` of bytes, the bytes in ``use``, and of memory.stat the rows of file pages."""

    limits: tuple[str, ...]
    use: str
    pages: tuple[str, ...]


MEMORY = {  # version -> files. Beyond memory.high the kernel stops a process until it has reclaimed: it limits as well.
    1: Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    2: Files(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file")),
}


def text_of(path) -> str:
    """A file's text; "" where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def own(controller: str, process: int | str = "self") -> list[tuple[int, Path]]:
    """(version, folder) of each group that holds a process, for a controller such as "memory": its own first, the root last.

    A version that is not mounted has none.
    """
    groups = [line.split(":", 2)[1:] for line in text_of(f"/proc/{process}/cgroup").splitlines()]
    folders = []
    for version, root, mount in _mounts(controller):
        names = "" if version == 2 else controller
        group = next((path for listed, path in groups if names in listed.split(",")), "/")
        inside = Path(group).relative_to(root) if Path(group).is_relative_to(root) else Path()
        inside = Path() if ".." in inside.parts else inside  # of a process outside the namespace that the mount shows
        folders += [(version, mount / part) for part in (inside, *inside.parents)]
    return list(dict.fromkeys(folders))


def _mounts(controller: str) -> Iterator[tuple[int, str, Path]]:
    """(version, the group that it shows, folder) of each mounted hierarchy of a controller, from /proc/self/mountinfo."""
    for line in text_of("/proc/self/mountinfo").splitlines():
        with suppress(ValueError):
            before, after = line.split(" - ", 1)
            root, mount = (re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), word) for word in before.split()[3:5])
            kind, _, options = after.split(" ", 2)
            if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
                yield (2 if kind == "cgroup2" else 1), root, Path(mount)


def memory(process: int | str = "self") -> list[tuple[int, int]]:
    """(limit, bytes free below it) of each group of a process that has a limit of memory.

    Free is what is not in use, and the pages of files, which the kernel drops before it kills: a mapped model that was read
    twice is active, and is dropped as well.
    """
    return [(limit, max(0, limit - max(0, used - pages))) for limit, used, pages in _limited(process)]


def use(process: int | str = "self") -> tuple[int, int, int] | None:
    """(limit, bytes in use, those of them that are pages of files) of the narrowest group of a process; None without a limit.

    All pages of files may be dropped, also the active ones: they are read again when they are needed.
    """
    return min(_limited(process), default=None)


def _limited(process: int | str) -> Iterator[tuple[int, int, int]]:
    """(limit, bytes in use, those of them that are pages of files) of each group of a process that has a limit of memory."""
    for version, folder in own("memory", process):
        files = MEMORY[version]
        limit = min(_numbers(text_of(folder / name) for name in files.limits), default=None)
        if limit is not None:
            stat = dict(line.split()[:2] for line in text_of(folder / "memory.stat").splitlines() if " " in line)
            pages = sum(_numbers(stat.get(row, "") for row in files.pages))
            yield limit, sum(_numbers([text_of(folder / files.use)])), pages


def cores(process: int | str = "self") -> list[int]:
    """The cores' worth of time, as whole cores, that each group of a process with such a limit gives."""
    return [whole(share) for share in quotas(process)]


def whole(share: float) -> int:
    """Threads for so many cores' worth of time: at least one, and the nearest number, because a second thread that gets a fifth
    of a core holds up the first (1.2 cores: 8% more time per token)."""
    return max(1, int(share + 0.5))


def quotas(process: int | str = "self") -> list[float]:
    """The cores' worth of time that each group of a process with such a limit gives."""
    found = []
    for version, folder in own("cpu", process):
        words = text_of(folder / "cpu.max").split() if version == 2 else [
            text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        ]  # fmt: skip
        numbers = _numbers(words)
        if len(numbers) == 2 and min(numbers) > 0:  # a quota of "max", or of -1: no limit
            found.append(numbers[0] / numbers[1])
    return found


def throttled(process: int | str = "self") -> float:
    """Seconds, added over cores, that the groups of a process have held it back because their time was used up."""
    seconds = 0.0
    for _, folder in own("cpu", process):
        stat = dict(line.split()[:2] for line in text_of(folder / "cpu.stat").splitlines() if " " in line)
        for name, unit in (("throttled_usec", 1e6), ("throttled_time", 1e9)):  # version 2, version 1
            seconds += sum(_numbers([stat.get(name, "")])) / unit
    return seconds


def _numbers(texts) -> list[int]:
    return [int(text) for text in texts if re.fullmatch(r"\s*-?\d+\s*", text)]
