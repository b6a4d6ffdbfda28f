"""How fast a mapped file reads: pages of 4 KiB in the page cache read more slowly than memory that kit made itself."""

import shlex
import timeit
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from kit.gguf.large_pages import FEW, LEAST
from kit.lab.measuring import state
from kit.lab.measuring.kept import once_a_run
from kit.lab.measuring.machine import Machine
from kit.lab.prompts import PROMPT
from kit.system import last_level_cache, memory_available
from kit.system.paths import shown
from kit.units import format_bytes, format_seconds

MOST, _PASSES = 512 << 20, 5
_CACHES = 4  # times the CPU's caches: what is larger is not in them
FINE = "The file's pages are read as fast as a copy in memory."
SMALL = 0.95  # of the speed of a copy: a map that reads more slowly is said to


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

    def cost(self, nbytes: float) -> float:
        """Seconds that reading so many bytes through the map takes longer than from a copy, 0 at least."""
        return max(0.0, nbytes * (1 / self.gbps - 1 / self.memory_gbps) / 1e9)

    def told(self) -> str:
        """In words, without GB/s: those of another minute contradict the limit."""
        pages = f" ({self.large:.0%} of them are 2 MiB pages)" if self.large is not None else ""
        return f"{self.ratio:.0%} of the speed of a copy in memory{pages}"


@once_a_run
def speed(file) -> MapSpeed | None:
    """Read the largest tensors of an open file, up to 512 MiB, through its map and from a copy in turn, the best of five passes
    each; None for a file of less than 64 MiB that the CPU's caches hold, for one that was copied, or where memory is short.

    The map's pages leave the page tables afterwards, so that another process can have the file read again (large_pages).
    """
    if (parts := views(file)) is None:
        return None
    measured = MapSpeed(*map(max, zip(*passes(parts), strict=True)), file.large_share())
    file.unmap_pages()
    return measured


def views(file) -> list[torch.Tensor] | None:
    """The largest tensors of an open file, up to 512 MiB, through its map; None where a pass says nothing of memory."""
    room, found = 0 if file.pages == "copied" else min(MOST, memory_available() // 4), []
    for name in sorted(file.tensors, key=lambda name: -file.tensors[name].nbytes):
        info = file.tensors[name]
        if info.is_known and 0 < info.nbytes <= room:
            room -= info.nbytes
            with warnings.catch_warnings():  # torch: the array is not writable
                warnings.simplefilter("ignore")
                found.append(torch.from_numpy(file.raw(name)[: info.nbytes // 4 * 4]).view(torch.float32))
    return None if sum(view.nbytes for view in found) < min(LEAST, _CACHES * last_level_cache()) else found


def passes_of(parts: list[torch.Tensor]) -> Callable[[], float]:
    """A function that reads tensors once and returns GB/s."""
    nbytes = sum(part.nbytes for part in parts)
    return lambda: nbytes / timeit.timeit(lambda: [part.sum() for part in parts], number=1) / 1e9


def passes(views: list[torch.Tensor], count: int = _PASSES) -> list[tuple[float, float]]:
    """GB/s of ``count`` passes over tensors and over a copy of them, in turn; a pass before them maps the pages."""
    copies = [state.numbers(view.numel()).view(view.shape).copy_(view) for view in views]
    both = [passes_of(side) for side in (views, copies)]
    return [tuple(once() for once in both) for _ in range(count + 1)][1:]


def told(before: MapSpeed, now: MapSpeed, nbytes: float, command: str = "") -> str:
    """How fast a file's map was ``before`` and is ``now``, what that costs a token that reads so many bytes, and the one
    command where it costs something ("": none is known)."""
    if before.ratio >= SMALL:
        return FINE
    cost, command = format_seconds(before.cost(nbytes)), command or "kit generate FILE"
    text = f"The file's pages were read at {before.told()}, which costs {cost} per token. "
    if before.large is not None and before.large >= FEW:
        return f"{text}They are large already, so reading the file again gains nothing."
    if now.ratio >= SMALL or now.ratio > before.ratio / SMALL:
        return f"{text}`{command}` reads the file again, once; after that they are read at {now.told()}."
    if now.large is not None and now.large > before.large:
        return f"{text}The file was read again in larger pages, without a gain: at {now.told()}."
    return (
        f"{text}Larger pages are not available here; `{command} --pages copied` takes {format_bytes(nbytes)} of memory instead."
    )


def settled(machine: Machine, file, before: MapSpeed | None, nbytes: float) -> tuple[Machine, str]:
    """(the machine with the bandwidth that the map of an open file has now, what ``told`` says of it), once the file is read
    again where it is; ``before``: its speed before."""
    if file.reading_again:
        file.reading_again.join()
    now = before and (before if before.ratio >= SMALL else speed(file))
    command = f"kit generate {shlex.quote(shown(file.path))} -p {shlex.quote(PROMPT)}"
    text = told(before, now, nbytes, command) if now else "How its map reads memory is not known: it is too small."
    return with_map(machine, now), text


def with_map(machine: Machine, before: MapSpeed | None) -> Machine:
    """The machine with the bandwidth of a file's map: that share of its own that was measured, whatever the minute gives."""
    return replace(machine, map_gbps=before.ratio * machine.read_gbps) if before else machine
