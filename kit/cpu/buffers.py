"""Buffers: memory for large tensors, reused when the last reference is gone, because fresh pages are slow to fill."""

import math
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np


class Buffers:
    """A pool of memory for tensors and arrays; memory returns to the pool when its last tensor and the last view of it are
    gone.

    The pool keeps ``limit`` bytes plus the size of the largest of the last ``recent`` pieces, because a decode allocates that
    piece again while the others exist. Beyond this, the least recently used pieces are freed; if a new piece does not fit in
    memory, all unused pieces are freed. For pieces below ``least`` bytes the allocator itself keeps the pages.
    """

    def __init__(self, limit: int = 2**29, least: int = 2**17, recent: int = 2**16):  # 61 layers of 256 experts are 46,848
        self.limit, self.least, self.recent = limit, least, recent
        self.free_bytes = self._returned = 0
        self._largest = [0, 0]  # of the last pieces, ``recent`` at most, and of as many before them
        self._free: list[np.ndarray] = []  # longest unused first
        self._lock = threading.RLock()  # a finaliser may run in the thread that holds it

    def empty(self, shape: tuple[int, ...], dtype, trace=None):
        """An uninitialized tensor (torch dtype) or array (numpy dtype), aligned to 64 bytes. The pool reuses memory of exactly
        this size. If there is none, ``trace`` gets an event "fresh" with the bytes, for sizes from ``least`` on."""
        nbytes = math.prod(shape) * dtype.itemsize
        large, room = nbytes >= self.least, None
        if large and (room := self._take(nbytes)) is None and trace is not None:
            trace.add("fresh", now := time.perf_counter_ns(), now, nbytes=nbytes)
        room = self._fresh(nbytes) if room is None else room
        if large:
            memory = np.asarray(memoryview(room))  # every tensor and view below holds this array, and nothing else does
            weakref.finalize(memory, self._give_back, room).atexit = False
        else:
            memory = room
        if isinstance(dtype, np.dtype):
            return memory.view(dtype).reshape(shape)
        import torch

        return torch.from_numpy(memory).view(dtype).view(shape)

    def _take(self, nbytes: int) -> np.ndarray | None:
        with self._lock:
            for i in reversed(range(len(self._free))):  # what was used last may still be in the caches
                if self._free[i].nbytes == nbytes:
                    self.free_bytes -= nbytes
                    return self._free.pop(i)
        return None

    def _give_back(self, memory: np.ndarray) -> None:
        with self._lock:
            self._free.append(memory)
            self.free_bytes += memory.nbytes
            if self._returned % self.recent == 0:
                self._largest = [0, self._largest[0]]
            self._returned += 1
            self._largest[0] = max(self._largest[0], memory.nbytes)
            while self.free_bytes > self.limit + max(self._largest):
                self.free_bytes -= self._free.pop(0).nbytes

    def _fresh(self, nbytes: int) -> np.ndarray:
        try:
            return _aligned(nbytes)
        except MemoryError:
            with self._lock:
                self._free, self.free_bytes = [], 0
            return _aligned(nbytes)


def _aligned(nbytes: int) -> np.ndarray:
    room = np.empty(nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + nbytes]


class PassBuffers(Buffers):
    """Buffers for what operations give, which a pass needs again layer by layer; unused ones are kept while a pass runs. Sizes
    within an eighth share memory, because a mixture's experts have a little more or fewer tokens each. Pages of what is smaller
    than ``least`` mostly stay with the allocator."""

    def __init__(self, least: int = 2**20):
        super().__init__(least=least)
        self._passes = 0

    def empty(self, shape: tuple[int, ...], dtype, trace=None):
        count = math.prod(shape)
        if count * dtype.itemsize < self.least and not isinstance(dtype, np.dtype):
            import torch

            # aligned to 64 bytes as well, in a quarter of the time
            return torch.empty(shape, dtype=dtype, device="cpu")
        room = count + -count % (1 << max(0, count.bit_length() - 4))
        return super().empty((room,), dtype, trace)[:count].reshape(shape)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within the ``with`` memory is used again."""
        with self._lock:
            self._passes += 1
        try:
            yield
        finally:
            with self._lock:
                self._passes -= 1
                if not self._passes:
                    self._free, self.free_bytes = [], 0

    def _give_back(self, memory):
        with self._lock:
            if self._passes:
                super()._give_back(memory)


class Arena(NamedTuple):
    """What is reused of dequantized and unpacked weights, and of what passes compute."""

    weights: Buffers
    results: PassBuffers


ARENA = Arena(Buffers(), PassBuffers())  # of the process
