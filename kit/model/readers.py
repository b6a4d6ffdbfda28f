"""Threads that read a file's bytes into memory past the page cache, and how many of them the disk likes."""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np

from kit.errors import GGUFError
from kit.system import counters, open_past, reserve, wake_at_once
from kit.system.rows import PAGE

DEPTHS = (1, 2, 4, 8, 16)  # reads in flight that the probe tries
PIECES = (0, 1 << 20, 256 << 10)  # bytes of one read that it tries; 0: a whole matrix
_PROBE, _NEAR = 0.02, 0.95  # seconds of each try; the fewest readers with this share of the best speed are taken
_LEAST = 64 << 20  # bytes of a file that is worth a probe


class Depth(NamedTuple):
    """``readers``: reads in flight; ``piece``: bytes of each, 0 for a whole matrix; ``gbps``: measured, 0.0 if not."""

    readers: int = 4
    piece: int = 0
    gbps: float = 0.0


class Load:
    """Reads that belong together: ``wait`` returns when all have ended, and raises the first error of one."""

    def __init__(self, reads: int):
        self._left, self._one, self._done, self.error = reads, threading.Lock(), threading.Lock(), None
        self._done.acquire()
        self.start = self.end = 0

    def ended(self, error: Exception | None) -> bool:
        """Called after each read; True after the last one."""
        with self._one:
            self.error = self.error or error
            self._left -= 1
            if not self._left:
                self._done.release()
            return not self._left

    @property
    def coming(self) -> bool:
        """Whether a read has not ended yet."""
        return self._left > 0

    def wait(self) -> None:
        with self._done:
            if self.error:
                raise self.error


class Read(NamedTuple):
    """``view``: whole pages of memory for the pages of the file ``part`` from ``offset`` on; at least ``least`` bytes must come
    (the last page of a file is not a whole one). ``name``: of what is read, for messages."""

    part: int
    offset: int
    view: memoryview
    least: int
    name: str


class Readers:
    """``depth.readers`` threads that read the files of ``paths``. ``how``: "past the page cache", or through it and why."""

    def __init__(self, paths: Sequence, depth: Depth, direct: bool = True):
        self._paths, self.depth, self.how = paths, depth, "past the page cache"
        reason = "" if direct else "as asked"
        try:
            self._files = [(_opened if direct else _plain)(path) for path in paths]
        except OSError as error:
            reason = error.strerror or str(error)
            self._files = [_plain(path) for path in paths]
        if reason:
            self.how = f"through the page cache ({reason})"
        self._queue, self._threads = SimpleQueue(), []
        for number in range(depth.readers):
            thread = threading.Thread(target=self._work, name=f"kit-reader-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def start(self, reads: list[Read], done) -> Load:
        """Begin to read; a reader calls ``done(load)`` at the end of all, unless one failed."""
        if piece := self.depth.piece:
            reads = [part for read in reads for part in _pieces(read, piece)]
        load = Load(len(reads))
        for read in reads:
            self._queue.put((load, read, done))
        return load

    def _work(self):
        wake_at_once()
        while (task := self._queue.get()) is not None:
            load, read, done = task
            load.start = load.start or time.perf_counter_ns()
            error = None
            try:
                if not load.error:
                    self._read(read)
            except Exception as raised:  # it is raised where somebody waits for the load
                error = raised
            load.end = time.perf_counter_ns()
            if load.ended(error) and not load.error:
                done(load)

    def _read(self, read: Read):
        done, path = 0, self._paths[read.part]
        while done < read.least:
            try:
                count = os.preadv(self._files[read.part], [read.view[done:]], read.offset + done)
            except OSError as error:
                raise GGUFError(f"{path}: {read.name} cannot be read: {error.strerror or error}; check the disk") from None
            done += count
            if done < read.least and (not count or count % PAGE):
                raise GGUFError(f"{path}: became shorter while {read.name} was read; fetch or write it again")

    def close(self) -> None:
        """End the threads, after the reads that they are in."""
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        for descriptor in self._files:
            os.close(descriptor)
        self._files, self._threads = [], []


def _plain(path) -> int:
    return os.open(path, os.O_RDONLY)


def _opened(path) -> int:
    """A descriptor that has read a page past the page cache; OSError where the system, the folder or the disk cannot."""
    descriptor = open_past(path)
    try:
        os.preadv(descriptor, [reserve(PAGE)], 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _pieces(read: Read, nbytes: int):
    for at in range(0, len(read.view), nbytes):
        view = read.view[at : at + nbytes]
        yield Read(read.part, read.offset + at, view, min(len(view), read.least - at), read.name)


def probed(path, matrix: int) -> Depth:
    """The fewest readers, and what they read at once, that read a file's matrices of ``matrix`` bytes at about the disk's full
    speed: by short tries. The default for a small file and where nothing goes past the page cache."""
    if os.path.getsize(path) < max(_LEAST, 4 * matrix):
        return Depth()
    tried = [Depth()]
    with suppress(OSError):
        for piece in (size for size in PIECES if size < matrix):
            each = piece or matrix
            tried += [Depth(count, piece, random_gbps(path, count, each, _PROBE, seed=count)) for count in DEPTHS]
    best = max(depth.gbps for depth in tried)
    return min((depth for depth in tried if depth.gbps >= _NEAR * best), key=lambda depth: (depth.readers, -depth.gbps))


def random_gbps(path, readers: int, nbytes: int, seconds: float = 1.0, seed: int = 0, direct: bool = True) -> float:
    """GB/s of reads of ``nbytes`` at random pages of a file by so many threads, past the page cache or (not ``direct``) through
    it: then of the bytes that come from the disk, read ahead or asked for, if any do."""
    pages = os.path.getsize(path) // PAGE - nbytes // PAGE - 1
    descriptor = (open_past if direct else os.open)(path, os.O_RDONLY)

    def reader(number):
        random, done = np.random.default_rng(seed + number), 0
        room = reserve(size := -(-nbytes // PAGE) * PAGE)
        room.write(bytes(size))  # no page of it is new to the reads
        start = time.perf_counter()
        while (took := time.perf_counter() - start) < seconds:
            done += os.preadv(descriptor, [room], int(random.integers(pages)) * PAGE)
        return done / took / 1e9

    start, before = time.perf_counter(), counters()[1]
    try:
        with ThreadPoolExecutor(readers) as pool:
            total = sum(pool.map(reader, range(readers)))
    finally:
        os.close(descriptor)
    return total if direct else (counters()[1] - before) / (time.perf_counter() - start) / 1e9 or total
