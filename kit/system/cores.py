"""The cores of this machine told apart: CPUs, physical cores, performance cores, and the time that a control group gives.

Linux's /sys/devices/system/cpu (Documentation/ABI/testing/sysfs-devices-system-cpu); a hybrid CPU of Intel lists its kinds
under /sys/devices/cpu_core and cpu_atom, an Arm one has cpu_capacity.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

import psutil

from kit.errors import KitError
from kit.system import groups

MOST_THREADS = 1024  # more than any machine that this was made for has cores


def threads_asked() -> int:
    """KIT_THREADS, 0 where it is not set. KitError if it is not a number of threads."""
    asked = os.environ.get("KIT_THREADS") or "0"
    if not asked.isdecimal() or len(asked) > 9 or int(asked) > MOST_THREADS:
        raise KitError(f"KIT_THREADS={asked[:40]}: give a number of threads up to {MOST_THREADS:,}, or unset it")
    return int(asked)


class Cores(NamedTuple):
    """Of the CPUs that this process may run on: ``logical`` and ``physical`` counts, the physical ones of them that are
    ``performance`` cores (all, where there is one kind), and ``quota``, how many cores' time its control groups give it (None:
    no limit)."""

    logical: int
    physical: int
    performance: int
    quota: float | None

    @property
    def useful(self) -> int:
        """Threads that each get a core of the fast kind for themselves."""
        few = self.performance if self.quota is None else min(self.performance, groups.whole(self.quota))
        return max(1, few)

    def counts(self) -> list[int]:
        """Counts of threads that are worth trying: powers of two, and each of the numbers above."""
        whole = {self.logical, self.physical, self.performance, self.useful}
        return sorted(whole | {1 << power for power in range(self.logical.bit_length()) if 1 << power <= self.logical})

    @property
    def told(self) -> str:
        """In words."""
        text = f"{self.logical} CPU{'s' * (self.logical != 1)} on {self.physical} physical core{'s' * (self.physical != 1)}"
        if self.performance < self.physical:
            text += f", {self.performance} of them performance cores"
        return text + (f"; its control group gives it the time of {self.quota:g}" if self.quota is not None else "")


def cores(root: Path = Path("/sys/devices")) -> Cores:
    """Those of this process."""
    quota = min(groups.quotas(), default=None)
    if not hasattr(os, "sched_getaffinity"):  # a Mac
        logical, physical = os.cpu_count() or 1, psutil.cpu_count(logical=False) or 1
        from kit.system import usable_cores

        return Cores(logical, physical, min(physical, usable_cores()), quota)
    allowed = sorted(os.sched_getaffinity(0))
    place = {cpu: _place(root, cpu) for cpu in allowed}
    fast = {place[cpu] for cpu in _fast(root, allowed)}
    return Cores(len(allowed), len({*place.values()}), len(fast), quota)


def _place(root: Path, cpu: int) -> tuple[str, str]:
    """(package, core) of a CPU; a CPU whose place is hidden counts as a core."""
    folder = root / "system" / "cpu" / f"cpu{cpu}" / "topology"
    package, core = (groups.text_of(folder / name).strip() for name in ("physical_package_id", "core_id"))
    return (package, core) if core else ("", f"cpu{cpu}")


def _fast(root: Path, allowed: list[int]) -> list[int]:
    """The CPUs of the fastest kind."""
    if listed := numbers(groups.text_of(root / "cpu_core" / "cpus")):  # Intel; cpu_atom has the others
        return [cpu for cpu in allowed if cpu in listed] or allowed
    folder = root / "system" / "cpu"
    capacity = {cpu: groups.text_of(folder / f"cpu{cpu}" / "cpu_capacity").strip() for cpu in allowed}
    if not all(text.isdigit() for text in capacity.values()):
        return allowed
    most = max(map(int, capacity.values()))
    return [cpu for cpu, text in capacity.items() if int(text) > 0.8 * most]


def numbers(text: str) -> set[int]:
    """The numbers of a list such as "0-3,8"."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found
