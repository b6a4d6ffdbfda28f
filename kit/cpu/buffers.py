"""Buffers: memory for dequantized tensors, used again once nobody looks at it, because fresh pages are slow to fill."""

import math
import threading
import weakref

import torch


class Buffers:
    """Hands out tensors whose memory comes back by itself when the last tensor, or view of one, is gone.

    At most ``limit`` bytes are kept for later; the rest goes back to the system at once. A larger tensor is not pooled.
    """

    def __init__(self, limit: int = 256 * 2**20):
        self.limit = limit
        self.free_bytes = 0
        self._free: list[torch.Tensor] = []  # longest unused first
        self._lock = threading.RLock()  # a finaliser may run in the thread that holds it

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized tensor, in memory used before where some of just that size is free."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not 0 < nbytes <= self.limit:
            return torch.empty(shape, dtype=dtype)
        memory = self._take(nbytes)
        lease = memory.numpy()  # every tensor and view below holds this array, and nothing else does
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return torch.from_numpy(lease).view(dtype).view(shape)

    def _take(self, nbytes: int) -> torch.Tensor:
        with self._lock:
            for i, memory in enumerate(self._free):
                if memory.nbytes == nbytes:
                    self.free_bytes -= nbytes
                    return self._free.pop(i)
        return torch.empty(nbytes, dtype=torch.uint8)

    def _give_back(self, memory: torch.Tensor) -> None:
        with self._lock:
            self._free.append(memory)
            self.free_bytes += memory.nbytes
            while self.free_bytes > self.limit:
                self.free_bytes -= self._free.pop(0).nbytes
