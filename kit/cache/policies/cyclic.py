"""CyclicAware, the kit's own policy: it detects a cyclic scan and keeps a fixed part of it; an LRU beside it guards it.

A forward pass accesses the same tensors in the same order for every token. The first repeated access gives the length of
the cycle; from then on no object is evicted for one that will be needed later.
"""

import heapq
from copy import copy

from kit.cache.policies.base import LRU, Policy


class NextUse(Policy, limited=False):
    """Predicts each object's next use from the gaps between its uses; evicts the farthest, refuses one that is farther.

    The first gap predicted is the typical one of the trace; each gap seen moves the prediction half the way. Before any gap
    is known the policy is LRU. Of all residents the one used longest ago is looked at beside the one that is expected last:
    overdue (absent for more than OVERDUE of its gaps), it is expected after as long again as it has been absent. With right
    predictions this is MIN with bypass. A request costs the logarithm of the objects held.
    """

    OVERDUE = 1.5

    def __init__(self, capacity: int | str):
        super().__init__(capacity)  # _sizes are in the order of the last uses
        self._now = 0
        self._uses: dict[str, tuple[int, float | None]] = {}  # (last use, predicted gap, if any) of every key
        self._typical: float | None = None
        self._expected: list[tuple[float, str, int]] = []  # heap of (-time of the next use, key, last use): it counts while
        # the object is resident and was last used then
        self._plan: list[str] = []  # victims for the object being admitted; the farthest is the last

    def request(self, key, size):
        self._now = now = self._now + 1
        known, typical = self._uses.get(key), self._typical
        if known is None:
            gap = typical
        else:
            last, gap = known
            since = now - last
            gap = since if gap is None else (gap + since) / 2
            self._typical = since if typical is None else typical + (since - typical) / 16
        self._uses[key] = now, gap
        if key not in self._sizes:
            return False
        self._sizes.move_to_end(key)
        heapq.heappush(self._expected, (-now - gap, key, now))
        return True

    def _added(self, key):
        last, gap = self._uses.setdefault(key, (self._now, None))
        if gap is not None:
            heapq.heappush(self._expected, (-last - gap, key, last))
        if len(self._expected) > 4 * len(self._sizes) + 64:  # hits leave entries behind that no eviction takes away
            self._expected = [e for e in self._expected if e[1] in self._sizes and self._uses[e[1]][0] == e[2]]
            heapq.heapify(self._expected)

    def _farthest(self, planned=(), aside=None) -> tuple[float, str]:
        """(wait, key) of the resident that waits longest and is not planned for eviction; entries of those go ``aside``."""
        now, sizes, uses, heap = self._now, self._sizes, self._uses, self._expected
        wait, found = -1, ""
        while heap:
            at, key, last = heap[0]
            if key in sizes and uses[key][0] == last:
                if key not in planned:
                    wait, found = max(-at - now, 0), key
                    break
                aside.append(heap[0])
            heapq.heappop(heap)
        for key in sizes:
            if key not in planned:
                last, gap = uses[key]
                if now - last > wait and (gap is None or now - last > self.OVERDUE * gap):
                    wait, found = now - last, key
                break
        return wait, found

    def _admits(self, key, size):
        missing = self.resident_bytes + size - self.capacity
        gap = self._uses.get(key, (0, None))[1]
        own, aside, self._plan = self._typical if gap is None else gap, [], []  # it is used now
        while missing > 0:
            wait, name = self._farthest(self._plan, aside)
            if own is not None and wait <= own:
                for entry in aside:
                    heapq.heappush(self._expected, entry)
                self._plan = []  # none may be left: a later resize would evict by it
                return False
            self._plan.append(name)
            missing -= self._sizes[name]
        self._plan.reverse()
        return True

    def _victim(self):
        return self._plan.pop() if self._plan else self._farthest()[1]


class CyclicAware(NextUse):
    """Follows NextUse or LRU, whichever hits more: the one that it does not follow runs beside it, without data.

    A switch needs a lead of a quarter of the capacity in bytes hit. On a cyclic scan NextUse always leads: the first pass
    misses, and from the second on capacity / working set of the bytes are hits.
    """

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._lru = LRU(capacity)
        self._next_use: NextUse | None = None  # what NextUse would hold, while this follows LRU
        self._lead = 0  # bytes hit by LRU minus those by NextUse, limited to plus or minus the margin

    def request(self, key, size):
        hit = super().request(key, size)
        by_lru, by_next_use = self._lru.request(key, size), hit
        if not by_lru:
            self._lru.insert(key, size)
        if self._next_use is not None:
            by_next_use = self._next_use.request(key, size)
            if not by_next_use:
                self._next_use.insert(key, size)
        if by_lru is not by_next_use:
            self._follow(self._lead + (size if by_lru else -size))
        return hit

    def _follow(self, lead):
        margin = self.capacity // 4
        self._lead = min(max(lead, -margin), margin)
        if lead <= -margin:
            self._next_use = None
        elif lead >= margin and self._next_use is None:
            self._next_use = NextUse(self.capacity)
            vars(self._next_use).update({name: copy(vars(self)[name]) for name in vars(self._next_use)})

    def _admits(self, key, size):
        return self._next_use is not None or super()._admits(key, size)

    def _victim(self):
        return next(iter(self._sizes)) if self._next_use is not None else super()._victim()

    def resize(self, capacity):
        for other in filter(None, (self._lru, self._next_use)):
            other.resize(capacity)
        return super().resize(capacity)
