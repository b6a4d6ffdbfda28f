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
    right predictions this is MIN with bypass. A request costs the logarithm of the objects held: one heap holds them by the
    time that they are expected, one those that are overdue by their last use, and each is looked at when it may become so.
    """

    OVERDUE = 1.5

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._now = 0
        self._uses: dict[str, tuple[int, float | None]] = {}  # (last use, gap; None after a single use) of every key
        self._typical: float | None = None
        self._plan: list[str] = []  # victims for the object being admitted; the farthest is the last
        self._aside: list[tuple[list, tuple]] = []  # (heap, entry) of planned victims, to be put back if the object is refused
        # A heap's entry counts while its object is resident and was last used then.
        self._once: OrderedDict[str, None] = OrderedDict()  # residents without a gap of their own, oldest use first
        self._expected: list[tuple[float, str, int]] = []  # (-time of the next use, key, last use)
        self._overdue: list[tuple[int, str, int]] = []  # (last use, key, last use)
        self._looks: dict[int, list[str]] = {}  # after a time, keys that may be overdue
        self._look: dict[str, int] = {}  # the earliest of a key in _looks
        self._looked = 0  # the last time whose keys were looked at

    def request(self, key, size):
        self._now = now = self._now + 1
        uses, gap = self._uses.get(key), None
        if uses is not None:
            since = now - uses[0]
            gap = since if uses[1] is None else (uses[1] + since) / 2
            self._typical = since if self._typical is None else self._typical + (since - self._typical) / 16
        self._uses[key] = now, gap
        if key not in self._sizes:
            return False
        self._added(key)
        return True

    def _added(self, key):
        last, gap = self._uses.setdefault(key, (self._now, None))
        if gap is None:
            self._once[key] = None
            self._once.move_to_end(key)
            return
        if self._once:
            self._once.pop(key, None)
        heapq.heappush(self._expected, (-(last + gap), key, last))
        self._look_again(key, last, gap)
        if len(self._expected) > 4 * len(self._sizes) + 64:  # hits leave entries behind that no eviction takes away
            self._expected = [e for e in self._expected if self._uses[e[1]][0] == e[2] and e[1] in self._sizes]
            heapq.heapify(self._expected)

    def _removed(self, key):
        if self._once:
            self._once.pop(key, None)

    def _wait(self, key) -> float:
        """Predicted number of requests until the next use."""
        last, gap = self._uses.get(key, (self._now, None))
        absent, gap = self._now - last, self._typical if gap is None else gap
        if gap is None or absent > self.OVERDUE * gap:
            return absent
        return max(gap - absent, 0)

    def _farthest(self) -> tuple[float, str]:
        """(wait, key) of the resident that waits longest and is not planned for eviction."""
        now, sizes, uses, plan = self._now, self._sizes, self._uses, self._plan
        while self._looked < now - 1:
            self._looked += 1
            if self._looked in self._looks:
                self._find_overdue()
        wait, found = -1, ""
        for heap in (self._expected, self._overdue):
            while heap:
                entry = heap[0]
                at, key, last = entry
                if key in sizes and uses[key][0] == last and key not in plan:
                    ahead = now - last if heap is self._overdue else -at - now if -at > now else 0
                    if ahead > wait:
                        wait, found = ahead, key
                    break
                heapq.heappop(heap)
                if key in plan:
                    self._aside.append((heap, entry))
        for order in (self._once, reversed(self._once)) if self._once else ():
            for key in order:  # the oldest may be overdue, the newest is expected last
                if key not in plan:
                    if (ahead := self._wait(key)) > wait:
                        wait, found = ahead, key
                    break
        return wait, found

    def _look_again(self, key, last, gap):
        """Put an object where it will be found when it is overdue."""
        late = last + self.OVERDUE * gap
        if late < self._now:
            heapq.heappush(self._overdue, (last, key, last))
        elif (at := int(late)) < self._look.get(key, at + 1):
            self._look[key] = at
            self._looks.setdefault(at, []).append(key)

    def _find_overdue(self):
        """Look at the keys of the time that has just passed."""
        for key in self._looks.pop(self._looked):
            if self._look.get(key) == self._looked:
                del self._look[key]
                if key in self._sizes and key not in self._once:
                    self._look_again(key, *self._uses[key])

    def _admits(self, key, size):
        self._plan, self._aside = [], []
        missing = self.resident_bytes + size - self.capacity
        gap = self._uses.get(key, (0, None))[1]
        own = -1 if self._typical is None else self._typical if gap is None else gap  # it is used now
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
        lead = self._lead + size * (self._shadow(self._lru, key, size) - self._shadow(self._next_use, key, size))
        margin = self.capacity // 4
        if not -margin < lead < margin:
            lead = margin if lead > 0 else -margin
            self._follow(self._lru if lead > 0 else self._next_use)
        self._lead = lead
        return key in self._sizes

    def _shadow(self, expert, key, size) -> bool:
        if expert.request(key, size):
            return True
        evicted = expert.insert(key, size)
        if expert is self._leader and evicted is not None:
            for name in evicted:
                if name in self._sizes:
                    self._stale[name] = None
            self._stale.pop(key, None)
        return False

    def _follow(self, expert):
        if expert is not self._leader:
            self._leader = expert
            self._stale = {name: None for name in self._sizes if name not in expert}

    def _admits(self, key, size):
        return key in self._leader._sizes

    def _victim(self):
        return next(iter(self._stale))

    def _removed(self, key):
        self._stale.pop(key, None)

    def resize(self, capacity):
        for expert in (self._next_use, self._lru):
            expert.resize(capacity)
        self._stale = {name: None for name in self._sizes if name not in self._leader}
        return super().resize(capacity)
