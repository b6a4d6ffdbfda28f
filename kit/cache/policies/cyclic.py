"""CyclicAware, a policy of ours: finds a scan while it runs and holds a fixed part of it; guarded by a shadow LRU.

A forward pass asks for the same tensors in the same order, token after token. The first repeated access tells how long
the loop is; from then on nothing is thrown out for an object that will be needed later than what it would replace.
"""

from kit.cache.policies.base import LRU, Policy


class NextUse(Policy, limited=False):
    """Predicts each next use from past gaps between uses, evicts the farthest, refuses what is farther still.

    An object seen once is expected after the gap that is typical for the trace (in a loop all gaps are alike); before
    any gap is known the policy is LRU. One that is ``OVERDUE`` is expected after as long again as it has been absent.
    When every prediction is right this is MIN with bypass.
    """

    OVERDUE = 1.5  # times its usual gap

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._now = 0
        self._last: dict[str, int] = {}
        self._gap: dict[str, float] = {}
        self._typical: float | None = None
        self._plan: list[str] = []  # victims of the object being admitted, farthest last

    def request(self, key, size):
        self._now += 1
        if key in self._last:
            gap = self._now - self._last[key]
            self._gap[key] = (self._gap.get(key, gap) + gap) / 2
            self._typical = gap if self._typical is None else self._typical + (gap - self._typical) / 16
        self._last[key] = self._now
        return super().request(key, size)

    def _wait(self, key) -> float:
        """Requests until the next use, as far as the past can tell."""
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
        if max(map(self._wait, self._sizes)) <= own:  # the usual case on a scan, without sorting
            return False
        plan = []  # kept only when it is carried out: a resize must not find victims of an object that was refused
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
    """Does what NextUse does, unless LRU would do better: both run as shadows, the contents follow the one that leads.

    A switch needs a lead of a quarter of the capacity in bytes hit: a wrong start costs that much, and then a refill.
    On a scan LRU never leads. The first pass is all misses; from the second on as much is hit as fits.
    """

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._rhythm, self._lru = NextUse(capacity), LRU(capacity)
        self._leader: Policy = self._rhythm
        self._lead = 0  # bytes that LRU hit more than NextUse, a counter that saturates at the margin
        self._stale: dict[str, None] = {}  # residents that the leader does not hold, to be evicted first

    def request(self, key, size):
        self._lead += size * (self._shadow(self._lru, key, size) - self._shadow(self._rhythm, key, size))
        margin = self.capacity // 4
        self._lead = max(-margin, min(margin, self._lead))
        if abs(self._lead) == margin:
            self._follow(self._lru if self._lead > 0 else self._rhythm)
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
        for expert in (self._rhythm, self._lru):
            expert.resize(capacity)
        self._stale = {name: None for name in self._sizes if name not in self._leader}
        return super().resize(capacity)
