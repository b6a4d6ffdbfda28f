"""CyclicAware, the kit's own policy: it detects a cyclic scan and keeps a fixed part of it; an LRU beside it guards it.

A forward pass accesses the same tensors in the same order for every token. The first repeated access gives the length of
the cycle; from then on no object is evicted for one that will be needed later.
"""

import heapq
import math
from collections import OrderedDict

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
        self._uses: dict[str, tuple[float, str, int, float | None]] = {}  # (-next use, key, last use, gap, if any) of each key
        self._typical: float | None = None
        self._expected: list[tuple] = []  # a heap of uses of residents with a gap: as they are now or were earlier

    def request(self, key, size):
        self._now = now = self._now + 1
        known, typical = self._uses.get(key), self._typical
        if known is None:
            gap = typical
        else:
            since, gap = now - known[2], known[3]
            gap = since if gap is None else (gap + since) / 2
            self._typical = since if typical is None else typical + (since - typical) / 16
        self._uses[key] = use = (math.inf if gap is None else -now - gap, key, now, gap)
        if key not in self._sizes:
            return False
        self._sizes.move_to_end(key)
        heapq.heappush(self._expected, use)
        return True

    def insert(self, key, size):
        if size > self.capacity:
            return None
        sizes, heap, missing = self._sizes, self._expected, self.resident_bytes + size - self.capacity
        use = self._uses.setdefault(key, (math.inf, key, self._now, None))
        evicted, aside, gap = [], [], use[3]
        own = self._typical if gap is None else gap  # it is used now
        while missing > 0:
            wait, name = self._farthest(evicted, aside)
            if own is not None and wait <= own:
                for entry in aside:
                    heapq.heappush(heap, entry)
                return None
            evicted.append(name)
            missing -= sizes[name]
        for name in evicted:
            self.resident_bytes -= sizes.pop(name)
        self.resident_bytes += size
        sizes[key] = size
        if gap is not None:
            heapq.heappush(heap, use)
        if len(heap) > 4 * len(sizes) + 64:  # hits leave entries behind that no eviction takes away
            heap[:] = [self._uses[name] for name in sizes if self._uses[name][3] is not None]
            heapq.heapify(heap)
        return evicted

    def _farthest(self, planned, aside) -> tuple[float, str]:
        """(wait, key) of the resident that waits longest and is not planned for eviction; entries of those go ``aside``."""
        now, sizes, uses, heap = self._now, self._sizes, self._uses, self._expected
        wait, victim = -1, ""
        while heap:
            use = heap[0]
            key = use[1]
            if uses[key] is use and key in sizes:
                if key not in planned:
                    wait, victim = -use[0] - now, key
                    break
                aside.append(use)
            heapq.heappop(heap)
        for key in sizes:
            if key not in planned:
                _, _, last, gap = uses[key]
                if now - last > wait and (gap is None or now - last > self.OVERDUE * gap):
                    return now - last, key
                break
        return wait, victim


class CyclicAware(Policy):
    """Holds what NextUse or LRU would, whichever hits more: both run beside it, without data.

    A switch needs a lead of a quarter of the capacity in bytes hit; what the new one does not hold goes as room is needed. On
    a cyclic scan NextUse always leads: the first pass misses, and from the second on capacity / working set of the bytes are
    hits.
    """

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._followed, self._other = NextUse(capacity), LRU(capacity)
        self._lead = 0  # bytes hit by the other minus those by the followed, limited to plus or minus the margin
        self._strays: OrderedDict[str, None] = OrderedDict()  # what the followed dropped: it goes first, unless held again

    def request(self, key, size):
        followed, other = self._followed, self._other
        if not (hit := followed.request(key, size)):
            for name in followed.insert(key, size) or ():
                self._strays[name] = None
        if not (other_hit := other.request(key, size)):
            other.insert(key, size)
        if hit is not other_hit:
            margin = self.capacity // 4
            self._lead = min(max(self._lead + (size if other_hit else -size), -margin), margin)
            if other_hit and self._lead == margin:
                self._followed, self._other, self._lead = other, followed, -margin
                self._strays = OrderedDict.fromkeys(name for name in self._sizes if name not in other)
        return key in self._sizes

    def insert(self, key, size):
        held, sizes, evicted = self._followed._sizes, self._sizes, []
        if key not in held:
            return None
        while self.resident_bytes + size > self.capacity:
            name, _ = self._strays.popitem(last=False)
            if name in sizes and name not in held:
                self.resident_bytes -= sizes.pop(name)
                evicted.append(name)
        sizes[key] = size
        self.resident_bytes += size
        return evicted
