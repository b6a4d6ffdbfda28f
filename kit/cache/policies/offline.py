"""MIN, the offline optimum for policies without prefetch (Belady 1966): it knows the future accesses."""

import heapq
import math

from kit.cache.policies.base import Policy
from kit.cache.traces import Requests, requests
from kit.errors import CacheError


def next_uses(keys) -> list[float]:
    """For each access the index of the next access to the same key, inf when there is none."""
    upcoming, following = {}, [math.inf] * len(keys)
    for index in range(len(keys) - 1, -1, -1):
        following[index] = upcoming.get(keys[index], math.inf)
        upcoming[keys[index]] = index
    return following


class MIN(Policy):
    """Evicts the object that is used farthest in the future; with ``bypass``, refuses an object used later than its victims.

    Optimal for equal sizes: with ``bypass`` among all policies without prefetch, without it among those that keep every
    accessed object. For unequal sizes the optimum is NP-hard, and :func:`kit.cache.bounds.interval_bound` bounds it.
    ``future``: the trace to come, which ``kit.replay`` fills in.
    """

    def __init__(self, capacity: int | str, bypass: bool = True, future=None):
        super().__init__(capacity)
        self._bypass = bypass
        self._now = -1
        self._next: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # (-next use, key); entries that differ from _next are stale
        self._future: Requests | None = None
        if future is not None:
            self.foresee(requests(future))

    def foresee(self, future: Requests) -> None:
        """Set the future accesses, all of them in order."""
        self._future, self._following = future, next_uses(future.keys)

    def request(self, key, size):
        self._now += 1
        if self._future is None:
            raise CacheError("MIN must know the future: give MIN(capacity, future=trace), or use kit.replay")
        if self._now >= len(self._future) or self._future.keys[self._now] != key:
            raise CacheError(f"MIN: access {self._now} is {key!r}, which differs from its future trace")
        self._next[key] = self._following[self._now]
        if resident := super().request(key, size):
            heapq.heappush(self._heap, (-self._next[key], key))
        return resident

    def _added(self, key):
        heapq.heappush(self._heap, (-self._next[key], key))

    def _admits(self, key, size):
        """With bypass: whether enough residents are needed later than this object."""
        if not self._bypass:
            return True
        if self._next[key] == math.inf:
            return False
        missing, passed = self.resident_bytes + size - self.capacity, []
        while missing > 0 and -self._farthest()[0] > self._next[key]:
            passed.append(heapq.heappop(self._heap))
            missing -= self._sizes[passed[-1][1]]
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return missing <= 0

    def _farthest(self):
        """The heap's first valid entry, (-next use, key); (inf, "") when nothing is resident."""
        while self._heap:
            negative, key = self._heap[0]
            if key in self._sizes and -negative == self._next[key]:
                return self._heap[0]
            heapq.heappop(self._heap)
        return (math.inf, "")

    def _victim(self):
        return self._farthest()[1]
