"""Cache policies: they decide which objects stay, in the live store and in the replay alike.

Protocol: ``request`` once for every access; after a miss, ``insert`` when the object has been loaded. Sizes and capacity
are in bytes, or in objects when every size is 1.
"""

import heapq
import math
import random
from collections import OrderedDict, deque

from kit.errors import CacheError
from kit.units import parse_bytes


def parse_capacity(capacity: int | str) -> int:
    """Bytes of a limit such as ``"4 GiB"``; CacheError when it is no size or below one byte."""
    try:
        limit = parse_bytes(capacity)
    except ValueError as error:
        raise CacheError(f"cache capacity: {error}") from None
    if limit < 1:
        raise CacheError(f"cache capacity {capacity!r} is too small: give at least 1 byte, or use NoCache()")
    return limit


POLICIES: dict[str, type["Policy"]] = {}  # name -> policy that needs only a capacity; comparisons run over all of them


class Policy:
    """Base of all policies: byte accounting and the eviction loop.

    Hooks for subclasses: ``_touch`` (a hit), ``_added``, ``_removed``, ``_victim`` (the key to evict; by default the first
    of ``_sizes``, which are in order of insertion) and ``_admits`` (False refuses an object). Subclasses are listed in
    POLICIES, except those defined with ``limited=False``.
    """

    def __init_subclass__(cls, limited: bool = True):
        if limited:
            POLICIES[cls.__name__] = cls

    def __new__(cls, *args, **kwargs):
        policy = super().__new__(cls)
        policy._made_with = (args, kwargs)
        return policy

    def __init__(self, capacity: int | str):
        self.capacity = parse_capacity(capacity)
        self.resident_bytes = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()

    def fresh(self):
        """A new, empty policy made with the same arguments."""
        args, kwargs = self._made_with
        return type(self)(*args, **kwargs)

    def __repr__(self):
        args, kwargs = self._made_with
        return f"{type(self).__name__}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in kwargs.items())])})"

    def __contains__(self, key) -> bool:
        return key in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self):
        return iter(self._sizes)

    def request(self, key: str, size: int) -> bool:
        """Record one access; whether the object is resident."""
        if key in self._sizes:
            self._touch(key)
            return True
        return False

    def insert(self, key: str, size: int) -> list[str] | None:
        """Offer a loaded object; returns the keys evicted for it, or None when it is not kept."""
        if size > self.capacity or not self._admits(key, size):
            return None
        evicted, sizes, room = [], self._sizes, self.capacity - size
        while self.resident_bytes > room:
            name = self._victim()
            self.resident_bytes -= sizes.pop(name)
            self._removed(name)
            evicted.append(name)
        sizes[key] = size
        self.resident_bytes += size
        self._added(key)
        return evicted

    def _admits(self, key, size) -> bool:
        return True

    def _touch(self, key) -> None:
        pass

    _added = _removed = _touch

    def _victim(self) -> str:
        return next(iter(self._sizes))


class NoCache(Policy, limited=False):
    """Keeps nothing: every access is a load."""

    def __init__(self):
        super().__init__(1)
        self.capacity = 0

    def _admits(self, key, size):
        return False


class HashMap(Policy, limited=False):
    """Keeps everything."""

    def __init__(self):
        super().__init__(1)
        self.capacity = math.inf


Unbounded = HashMap


class FIFO(Policy):
    """Evicts the object inserted first."""


class LRU(Policy):
    """Evicts the least recently used object (Mattson et al. 1970)."""

    def _touch(self, key):
        self._sizes.move_to_end(key)


class MRU(LRU):
    """Evicts the most recently used object. Cyclic scan: (C-1)/(N-1) hits, as many as MIN without bypass."""

    def _victim(self):
        return next(reversed(self._sizes))


class LIP(LRU):
    """LRU that inserts an object as the least recently used one; its first hit moves it up (Qureshi et al., ISCA 2007)."""

    def _added(self, key):
        self._sizes.move_to_end(key, last=False)


class LFU(Policy):
    """Evicts the least frequently used object, and among equals the least recently used.

    ``window`` (``frequency_window`` in the reports): only the uses of the last ``window`` requests count, or of the last
    ``window`` units of ``clock()`` if one is given. None: all uses since the start count, also those of evicted objects.
    """

    def __init__(self, capacity: int | str, window: float | None = None, clock=None):
        super().__init__(capacity)
        if window is not None and not window > 0:
            raise CacheError(f"LFU window {window!r} is too small: give a positive number, or None for all uses")
        self._window, self._clock = window, clock
        self._requests = 0
        self._recent = deque()  # (time, key) inside the window
        self._uses: dict[str, tuple[int, int, str]] = {}  # (count, number of the last request, key) of every key
        self._heap: list[tuple[int, int, str]] = []  # the uses of each resident, as they are now or were earlier

    def request(self, key, size):
        self._requests = now = self._requests + 1
        uses = self._uses.get(key)
        self._uses[key] = uses[0] + 1 if uses else 1, now, key  # a count that has grown is put in its place by _victim
        if self._window is not None:
            self._forget(now, key)
        return key in self._sizes

    def _forget(self, now, key):
        """Count only the uses inside the window, of which this is one more."""
        now = self._clock() if self._clock else now
        self._recent.append((now, key))
        while self._recent[0][0] <= now - self._window:
            count, last, old = self._uses[self._recent.popleft()[1]]
            self._uses[old] = count - 1, last, old
            if old in self._sizes:  # a smaller count must be in the heap, or _victim would come to it too late
                heapq.heappush(self._heap, self._uses[old])
        if len(self._heap) > 4 * len(self._sizes) + 64:
            self._heap = [self._uses[name] for name in self._sizes]
            heapq.heapify(self._heap)

    def _added(self, key):
        heapq.heappush(self._heap, self._uses.setdefault(key, (0, self._requests, key)))

    def _victim(self):
        heap, uses, sizes = self._heap, self._uses, self._sizes
        while True:
            entry = heap[0]
            key = entry[2]
            if key not in sizes:
                heapq.heappop(heap)
            elif entry is uses[key]:
                heapq.heappop(heap)  # or a key that comes back would have one entry more each time
                return key
            else:
                heapq.heapreplace(heap, uses[key])


class Random(Policy):
    """Evicts a random object. Cyclic scan: the hit rate solves h = exp(-(1-h) N/C)."""

    def __init__(self, capacity: int | str, seed: int = 0):
        super().__init__(capacity)
        self._draw = random.Random(seed).random
        self._slots: list[str] = []
        self._slot_of: dict[str, int] = {}

    def _added(self, key):
        self._slot_of[key] = len(self._slots)
        self._slots.append(key)

    def _removed(self, key):
        slot, last = self._slot_of.pop(key), self._slots.pop()
        if last != key:
            self._slots[slot], self._slot_of[last] = last, slot

    def _victim(self):
        return self._slots[int(self._draw() * len(self._slots))]


class TwoRandom(Random):
    """Evicts the less recently used of two random objects. Cyclic scan: h = 1 - y^2 with y = tanh(y N/C)."""

    def __init__(self, capacity: int | str, seed: int = 0):
        super().__init__(capacity, seed)
        self._uses = 0
        self._last: dict[str, int] = {}

    def _touch(self, key):
        self._uses = self._last[key] = self._uses + 1

    def _added(self, key):
        super()._added(key)
        self._touch(key)

    def _victim(self):
        one, other, last = super()._victim(), super()._victim(), self._last
        return other if last[other] < last[one] else one
