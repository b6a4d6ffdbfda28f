"""What a machine does while a server answers: a window of counters of the server's processes, its group and the machine."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import psutil

from kit.lab.engines.owner import Owner
from kit.lab.measuring import state
from kit.system import groups, processes
from kit.system.rows import PAGE

_EVERY = 0.02  # seconds between two looks at whether a thread waits for a disk
_WORKS = 0.3  # of the time that the most active thread ran: a thread that ran for more is one of those that compute
_OFTEN = 500  # times a second: a thread that sleeps more rarely loses less than a hundredth by being woken
_NAMED = 0.05  # cores: a process that uses more is named as busy


@dataclass(frozen=True)
class Seen:
    """A window. ``seconds``: its length. ``waited``: of each thread that computes, the share of the window that it waited for a
    core; ``ran``: that it ran. ``disk``: share in which a thread waited for a disk. ``sleeps``: how often these threads gave
    their cores away. Seconds: ``kernel`` that each of them spent in the kernel, ``throttled`` by a quota. ``faults``: pages
    that had to be read; ``read``, ``swapped``: bytes from disks, from swap.
    ``cores``: that the server may use, as threads and (``quota``) as time. ``others``, ``stolen``: cores that other processes
    used, that the host took. ``gone``: whether the process ended meanwhile. ``known``: whether anything could be watched."""

    seconds: float
    waited: tuple[float, ...] = ()
    ran: tuple[float, ...] = ()
    disk: float = 0.0
    kernel: float = 0.0
    throttled: float = 0.0
    faults: int = 0
    read: int = 0
    swapped: int = 0
    cores: int = 1
    quota: float = float("inf")
    others: float = 0.0
    stolen: float = 0.0
    busiest: tuple[str, ...] = ()
    gone: bool = False
    known: bool = True
    sleeps: int = 0

    @property
    def workers(self) -> int:
        """Threads that compute."""
        return len(self.waited)

    @property
    def paged_in(self) -> int:
        """Pages that were read, of which one fault may read hundreds ahead."""
        return max(self.faults, self.read // PAGE)

    @property
    def woken(self) -> int:
        """How often a thread was woken by another one: sleeps that no fault made; 0 where that is too rare to cost time."""
        by_others = max(0, self.sleeps - self.faults)
        return by_others if by_others > _OFTEN * self.seconds * self.workers else 0


class _Counts(NamedTuple):
    at: float
    threads: dict
    work: processes.Work
    read: int
    swapped: int
    throttled: float
    others: float
    stolen: float


class Watch:
    """Counters of a server, from ``start`` to ``stop``. ``owner``: without a process there is nothing to watch, but for other
    processes. All processes are listed as it is made: that takes tens of milliseconds, in which no client could read."""

    def __init__(self, owner: Owner):
        self.owner, self._before, self._ended = owner, None, threading.Event()
        self._listed = _list()
        self._looks = self._waits = 0
        self._sampler: threading.Thread | None = None

    def start(self) -> None:
        """Begin a window."""
        self._ended, self._looks, self._waits = threading.Event(), 0, 0
        if self.owner.process:
            self._sampler = threading.Thread(target=self._look, args=(self._ended,), daemon=True)
            self._sampler.start()
        self._before = self._count()

    def stop(self) -> Seen:
        """End the window."""
        self._ended.set()
        if self._sampler:
            self._sampler.join()
        if self._before is None:  # nothing came
            return Seen(0.0, known=False)
        return self._between(self._before, self._count())

    def _look(self, ended: threading.Event) -> None:
        while not ended.wait(_EVERY):
            self._looks += 1
            self._waits += processes.waits_for_disk(self.owner.process)

    def _count(self) -> _Counts:
        number, own, total = self.owner.process, _alive(self.owner.all), psutil.cpu_times()
        try:
            read = psutil.Process(number).io_counters().read_bytes if number else 0
        except (psutil.Error, AttributeError):
            read = 0
        return _Counts(
            time.perf_counter(), processes.threads(number) if number else {}, processes.work(number or 0), read,
            psutil.swap_memory().sin, groups.throttled(number) if number else 0.0,
            _others(own), getattr(total, "steal", 0.0),
        )  # fmt: skip

    def _between(self, before: _Counts, after: _Counts) -> Seen:
        seconds = max(after.at - before.at, 1e-9)
        ran, waited, slept = {}, {}, {}
        for number, thread in after.threads.items():
            first = before.threads.get(number, processes.Thread(0.0, 0.0, ""))
            ran[number], waited[number] = thread.ran - first.ran, thread.waited - first.waited
            slept[number] = thread.sleeps - first.sleeps
        most = max(ran.values(), default=0.0)
        workers = [number for number in ran if ran[number] > _WORKS * most]
        work = processes.Work(*(b - a for a, b in zip(before.work, after.work, strict=True)))
        number = self.owner.process
        cores, quota = processes.cores_of(number) if number and not self._gone() else (psutil.cpu_count() or 1, float("inf"))
        swapped = max(0, after.swapped - before.swapped)
        return Seen(
            seconds, tuple(min(1.0, waited[each] / seconds) for each in workers),
            tuple(min(1.0, ran[each] / seconds) for each in workers), self._waits / self._looks if self._looks else 0.0,
            work.kernel / max(1, len(workers)), max(0.0, after.throttled - before.throttled), work.major,
            max(0, after.read - before.read), swapped, cores, quota,
            max(0.0, (after.others - before.others) / seconds), max(0.0, (after.stolen - before.stolen) / seconds),
            _busiest(self._listed, _list(), {*self.owner.all, psutil.Process().pid}), self._gone(),
            bool(number and workers), 0 if self.owner.gpu else sum(slept[each] for each in workers),
        )  # fmt: skip

    def _gone(self) -> bool:
        return bool(self.owner.process) and not psutil.pid_exists(self.owner.process)


def _others(own: list[psutil.Process]) -> float:
    try:
        return state.seconds_of_others([psutil.Process(), *own])
    except psutil.Error:  # one has ended since
        return state.seconds_of_others([psutil.Process(), *_alive(process.pid for process in own)])


def _alive(numbers: Iterable[int]) -> list[psutil.Process]:
    return [psutil.Process(number) for number in numbers if psutil.pid_exists(number)]


def _list() -> tuple[float, dict[int, tuple[float, str]]]:
    """(now, process id -> seconds of a core that it used, its name)."""
    now, each = time.perf_counter(), {}
    for process in psutil.process_iter():
        try:
            times = process.cpu_times()
            each[process.pid] = (times.user + times.system, process.name())
        except psutil.Error:
            continue
    return now, each


def _busiest(then: tuple, now: tuple, own: set[int]) -> tuple[str, ...]:
    """Names of the processes, but ``own``, that used most time between two lists, with their cores."""
    seconds, before, after = now[0] - then[0], then[1], now[1]
    used = {number: (spent - before.get(number, (0.0, ""))[0]) / seconds for number, (spent, _) in after.items()}
    rows = sorted((number for number in used if number not in own and used[number] > _NAMED), key=lambda number: -used[number])
    return tuple(f"{after[number][1]} (process {number}, {used[number]:.1f} cores)" for number in rows[:3])


@dataclass(frozen=True)
class Holding:
    """What a server holds of its file and beside it.

    ``resident``: share of the file's pages in memory; ``large``: share of what it maps of the file by pages of 2 MiB, None: it
    maps nothing of it. ``own``: bytes that no file backs. ``swapped``: bytes in swap. ``limit``, ``free``: of its group, 0
    without one. ``nodes``: pages of the file by NUMA node.
    """

    resident: float = 1.0
    large: float | None = None
    own: int = 0
    swapped: int = 0
    limit: int = 0
    free: int = 0
    nodes: tuple[int, ...] = ()


def holding(owner: Owner, total: int) -> Holding:
    """What the server holds now. ``total``: bytes of the machine's memory: a limit of more is none."""
    from kit.gguf.pagecache import resident_fraction

    resident = resident_fraction(owner.file) if owner.file else 1.0
    if not owner.process:
        return Holding(resident)
    parts = [*processes.maps(owner.process)]
    mine = [part for part in parts if owner.file and part.path and part.path.endswith(owner.file.name)] if owner.mapped else []
    held, own, swapped = sum(x.resident for x in mine), sum(x.own for x in parts), sum(x.swapped for x in parts)
    limit, free = processes.memory_of(owner.process) or (0, 0)
    seen = Holding(resident, sum(part.large for part in mine) / held if held else None, own, swapped)
    pages = processes.nodes(owner.process, mine[0].path) if mine else {}
    seen = replace(seen, nodes=tuple(pages[node] for node in sorted(pages)))
    return replace(seen, limit=limit, free=free) if 0 < limit < total else seen
