"""How fast a mapped file reads: pages of 4 KiB in the page cache read more slowly than memory that kit made itself."""

import timeit
import warnings
from dataclasses import replace
from typing import NamedTuple

import torch

from kit.lab.kept import once_a_run
from kit.lab.machine import Machine
from kit.system import last_level_cache, memory_available

_MOST, _PASSES = 512 << 20, 5
_LEAST = 4  # times the CPU's caches: less says nothing of memory


class MapSpeed(NamedTuple):
    """GB/s of reading a file through its map, and of a copy in memory that kit made, in turn. ``large``: share of the map by
    pages of 2 MiB; None: not known."""

    gbps: float
    memory_gbps: float
    large: float | None

    @property
    def ratio(self) -> float:
        """Of memory's speed, 1 at most."""
        return min(1.0, self.gbps / self.memory_gbps)

    def told(self) -> str:
        """In words."""
        pages = f", {self.large:.0%} of it by pages of 2 MiB" if self.large is not None else ""
        return f"its map reads at {self.gbps:.1f} GB/s{pages}, a copy in memory at {self.memory_gbps:.1f}"


@once_a_run
def speed(file) -> MapSpeed | None:
    """Read the largest tensors of an open file, up to 512 MiB, through its map and from a copy in turn, the best of five passes
    each; None for a file that the CPU's caches hold, or where memory is short."""
    room, views = min(_MOST, memory_available() // 4), []
    for name in sorted(file.tensors, key=lambda name: -file.tensors[name].nbytes):
        info = file.tensors[name]
        if info.is_known and 0 < info.nbytes <= room:
            room -= info.nbytes
            with warnings.catch_warnings():  # torch: the array is not writable
                warnings.simplefilter("ignore")
                views.append(torch.from_numpy(file.raw(name)[: info.nbytes // 4 * 4]).view(torch.float32))
    nbytes = sum(view.nbytes for view in views)
    if nbytes < _LEAST * last_level_cache():
        return None
    sides = views, [view.clone() for view in views]
    best = [float("inf"), float("inf")]
    for _ in range(_PASSES + 1):  # the first maps the pages
        for number, side in enumerate(sides):
            best[number] = min(best[number], timeit.timeit(lambda side=side: [part.sum() for part in side], number=1))
    return MapSpeed(nbytes / best[0] / 1e9, nbytes / best[1] / 1e9, file.large_share())


def with_map(machine: Machine, found: MapSpeed | None) -> Machine:
    """The machine with the bandwidth of a file's map: that share of its own that was measured, whatever the minute gives."""
    return replace(machine, map_gbps=found.ratio * machine.read_gbps) if found else machine
