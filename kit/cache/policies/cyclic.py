"""CyclicAware, the kit's own policy: it detects a cyclic scan and keeps a fixed part of it; a shadow LRU guards it.

A forward pass accesses the same tensors in the same order for every token. The first repeated access gives the length of
the cycle; from then on no object is evicted for one that will be needed later.
"""

import heapq
from collections import OrderedDict

from kit.cache.policies.base import LRU, Policy


class NextUse(Policy, limited=False):
    """Predicts each object's next use from the gaps between its uses; evicts the farthest, refuses one that is farther.

    An object used once is predicted with the typical gap of the trace; before any gap is known the policy is LRU. An
    overdue object (absent for more than OVERDUE of its gaps) is expected after as long again as it has been absent. With
    right predictions this is MIN with bypass. A request costs the logarithm of the objects held: three heaps hold them by
    the time that they are expected, by the time that they are overdue, and, once they are, by their last use.
    """

    OVERDUE = 1.5

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._now = 0
        self._last: dict[str, int] = {}
        self._gap: dict[str, float] = {}
        self._typical: float | None = None
        self._plan: list[str] = []  # victims for the object being admitted; the farthest is the last
        self._aside: list[tuple[list, tuple]] = []  # (heap, entry) of planned victims, to be put back if the object is refused
        # A heap's entry counts while its object is resident and was last used then.
        self._once: OrderedDict[str, None] = OrderedDict()  # residents without a gap of their own, oldest use first
        self._expected: list[tuple[float, str, int]] = []  # (-time of the next use, key, last use)
        self._overdue: list[tuple[int, str, int]] = []  # (last use, key, last use)
        self._alarms: list[tuple[float, str]] = []  # (time at which it is overdue, or an earlier one; key)
        self._alarm: dict[str, float] = {}  # the earliest of a key in _alarms

    def request(self, key, size):
        self._now = now = self._now + 1
        last = self._last.get(key)
        if last is not None:
            gap = now - last
            self._gap[key] = (self._gap.get(key, gap) + gap) / 2
            self._typical = gap if self._typical is None else self._typical + (gap - self._typical) / 16
        self._last[key] = now
        if key not in self._sizes:
            return False
        self._added(key)
        return True

    def _added(self, key):
        last, gap = self._last.setdefault(key, self._now), self._gap.get(key)
        if gap is None:
            self._once[key] = None
            self._once.move_to_end(key)
            return
        self._once.pop(key, None)
        heapq.heappush(self._expected, (-(last + gap), key, last))
        late = last + self.OVERDUE * gap
        if late < self._alarm.get(key, late + 1):
            self._alarm[key] = late
            heapq.heappush(self._alarms, (late, key))
        if len(self._expected) > 4 * len(self._sizes) + 64:  # hits leave entries behind that no eviction takes away
            self._expected = [e for e in self._expected if self._last[e[1]] == e[2] and e[1] in self._sizes]
            heapq.heapify(self._expected)

    def _removed(self, key):
        self._once.pop(key, None)

    def _wait(self, key) -> float:
        """Predicted number of requests until the next use."""
        absent = self._now - self._last.get(key, self._now)
        gap = self._gap.get(key, self._typical)
        if gap is None or absent > self.OVERDUE * gap:
            return absent
        return max(gap - absent, 0)

    def _farthest(self) -> tuple[float, str]:
        """(wait, key) of the resident that waits longest and is not planned for eviction."""
        now, sizes, last = self._now, self._sizes, self._last
        if self._alarms and self._alarms[0][0] < now:
            self._ring()
        wait, found = -1, ""
        for heap in (self._expected, self._overdue):
            while heap:
                entry = heap[0]
                key = entry[1]
                if key in sizes and last[key] == entry[2] and key not in self._plan:
                    ahead = max(-entry[0] - now, 0) if heap is self._expected else now - entry[2]
                    if ahead > wait:
                        wait, found = ahead, key
                    break
                heapq.heappop(heap)
                if key in self._plan:
                    self._aside.append((heap, entry))
        for order in (self._once, reversed(self._once)):  # the oldest may be overdue, the newest is expected last
            key = next((key for key in order if key not in self._plan), None) if self._once else None
            if key is not None and (ahead := self._wait(key)) > wait:
                wait, found = ahead, key
        return wait, found

    def _ring(self):
        """Move to _overdue what has become so since the last call."""
        while self._alarms and self._alarms[0][0] < self._now:
            at, key = heapq.heappop(self._alarms)
            if self._alarm.get(key) != at:
                continue
            del self._alarm[key]
            if key not in self._sizes or key in self._once:
                continue
            last = self._last[key]
            late = last + self.OVERDUE * self._gap[key]
            if late < self._now:
                heapq.heappush(self._overdue, (last, key, last))
            else:
                self._alarm[key] = late
                heapq.heappush(self._alarms, (late, key))

    def _admits(self, key, size):
        self._plan, self._aside = [], []
        missing = self.resident_bytes + size - self.capacity
        own = -1 if self._typical is None else self._gap.get(key, self._typical)  # it is used now
        while missing > 0:
            wait, name = self._farthest()
            if wait <= own:
                for heap, entry in self._aside:
                    heapq.heappush(heap, entry)
                self._plan = []  # none may be left: a later resize would evict by it
                return False
            self._plan.append(name)
            missing -= self._sizes[name]
        self._plan.reverse()
        return True

    def _victim(self):
        return self._plan.pop() if self._plan else self._farthest()[1]


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
