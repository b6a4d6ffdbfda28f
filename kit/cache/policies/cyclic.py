"""CyclicAware, the kit's own policy: it detects a cyclic scan and keeps a fixed part of it; a shadow LRU guards it.

A forward pass accesses the same tensors in the same order for every token. The first repeated access gives the length of
the cycle; from then on no object is evicted for one that will be needed later.
"""

from kit.cache.policies.base import LRU, Policy


class NextUse(Policy, limited=False):
    """Predicts each object's next use from the gaps between its uses; evicts the farthest, refuses one that is farther.

    An object used once is predicted with the typical gap of the trace; before any gap is known the policy is LRU. An
    overdue object (absent for more than OVERDUE of its gaps) is expected after as long again as it has been absent. With
    right predictions this is MIN with bypass.
    """

    OVERDUE = 1.5

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._now = 0
        self._last: dict[str, int] = {}
        self._gap: dict[str, float] = {}
        self._typical: float | None = None
        self._plan: list[str] = []  # victims for the object being admitted; the farthest is the last

    def request(self, key, size):
        self._now += 1
        if key in self._last:
            gap = self._now - self._last[key]
            self._gap[key] = (self._gap.get(key, gap) + gap) / 2
            self._typical = gap if self._typical is None else self._typical + (gap - self._typical) / 16
        self._last[key] = self._now
        return super().request(key, size)

    def _wait(self, key) -> float:
        """Predicted number of requests until the next use."""
        absent = self._now - self._last.get(key, self._now)
        gap = self._gap.get(key, self._typical)
        if gap is None or absent > self.OVERDUE * gap:
            return absent
        return max(gap - absent, 0)

    def _admits(self, key, size):
        self._plan = []
        missing = self.resident_bytes + size - self.capacity
        if missing <= 0:
            return True
        own = -1 if self._typical is None else self._wait(key)
        if max(map(self._wait, self._sizes)) <= own:  # the usual case on a scan, decided without sorting
            return False
        plan = []  # stored only if the object is admitted: otherwise a later resize would evict by it
        for name in sorted(self._sizes, key=self._wait, reverse=True):
            if missing <= 0:
                break
            if self._wait(name) <= own:
                return False
            plan.insert(0, name)
            missing -= self._sizes[name]
        self._plan = plan
        return True

    def _victim(self):
        return self._plan.pop() if self._plan else max(self._sizes, key=self._wait)


class CyclicAware(Policy):
    """Follows NextUse or LRU, whichever hits more: both run as shadow caches, and the contents follow the leading one.

    A switch needs a lead of a quarter of the capacity in bytes hit. On a cyclic scan NextUse always leads: the first pass
    misses, and from the second on capacity / working set of the bytes are hits.
    """

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._next_use, self._lru = NextUse(capacity), LRU(capacity)
        self._leader: Policy = self._next_use
        self._lead = 0  # bytes hit by LRU minus those by NextUse, limited to plus or minus the margin
        self._stale: dict[str, None] = {}  # residents that the leader does not hold; they are evicted first

    def request(self, key, size):
        self._lead += size * (self._shadow(self._lru, key, size) - self._shadow(self._next_use, key, size))
        margin = self.capacity // 4
        self._lead = max(-margin, min(margin, self._lead))
        if abs(self._lead) == margin:
            self._follow(self._lru if self._lead > 0 else self._next_use)
        return super().request(key, size)

    def _shadow(self, expert, key, size) -> bool:
        if expert.request(key, size):
            return True
        evicted = expert.insert(key, size)
        if expert is self._leader and evicted is not None:
            self._stale.update((name, None) for name in evicted if name in self._sizes)
            self._stale.pop(key, None)
        return False

    def _follow(self, expert):
        if expert is not self._leader:
            self._leader = expert
            self._stale = {name: None for name in self._sizes if name not in expert}

    def _admits(self, key, size):
        return key in self._leader

    def _victim(self):
        return next(iter(self._stale))

    def _removed(self, key):
        self._stale.pop(key, None)

    def resize(self, capacity):
        for expert in (self._next_use, self._lru):
            expert.resize(capacity)
        self._stale = {name: None for name in self._sizes if name not in self._leader}
        return super().resize(capacity)
