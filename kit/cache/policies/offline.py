"""MIN, the offline optimum for policies without prefetch (Belady 1966): it knows the future accesses."""

import heapq
import math

from kit.cache.policies.base import Policy
from kit.cache.traces import Requests, requests
from kit.errors import CacheError


class MIN(Policy):
    """Evicts the object that is used farthest in the future; with ``bypass``, refuses an object used later than its victims.

    Optimal for equal sizes: with ``bypass`` among all policies without prefetch, without it among those that keep every
    accessed object. For unequal sizes the optimum is NP-hard, and PFOO-U (Berger, Beckmann, Harchol-Balter, 2018) bounds it.
    ``future``: the trace to come, which ``kit.replay`` fills in.
    """

    def __init__(self, capacity: int | str, bypass: bool = True, future=None):
        super().__init__(capacity)
        self._bypass = bypass
        self._now = -1
        self._next: dict[str, float] = {}
        self._later: list[int] = []  # a heap: next uses, negative; each resident's, and those that have come, which are stale
        self._never: list[str] = []  # a heap: residents without a next use
        self._plan: list[str] = []  # victims for the object being admitted, taken out of the heaps; the farthest is the last
        self._future: Requests | None = None
        if future is not None:
            self.foresee(requests(future))

    def foresee(self, future: Requests) -> None:
        """Set the future accesses, all of them in order."""
        self._future, self._following = future, future.next_uses

    def request(self, key, size):
        self._now = now = self._now + 1
        if self._future is None:
            raise CacheError("MIN needs the future accesses: give MIN(capacity, future=trace), or use kit.replay")
        keys = self._future.keys
        if now >= len(keys) or keys[now] != key:
            raise CacheError(
                f"MIN: access {now} is {key!r}, but its future trace has another: give the trace of these accesses"
            )
        self._next[key] = self._following[now]
        return super().request(key, size)

    def _added(self, key):
        following = self._next[key]
        if following == math.inf:
            heapq.heappush(self._never, key)
        else:
            heapq.heappush(self._later, -following)

    _touch = _added

    def _admits(self, key, size):
        """Plan victims; with bypass, only such as are needed later than this object."""
        missing, own = self.resident_bytes + size - self.capacity, self._next[key] if self._bypass else self._now
        if own == math.inf:
            return False
        while missing > 0:
            name = self._take(own)
            if name is None:
                for name in self._plan:
                    self._added(name)
                self._plan = []
                return False
            self._plan.append(name)
            missing -= self._sizes[name]
        self._plan.reverse()
        return True

    def _take(self, after: float) -> str | None:
        """Take the resident that is used last out of the heaps; None when that is not later than access ``after``."""
        if self._never:
            return heapq.heappop(self._never)
        if self._later and -self._later[0] > after:
            return self._future.keys[-heapq.heappop(self._later)]
        return None

    def _victim(self):
        return self._plan.pop()
