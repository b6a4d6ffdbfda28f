"""Policies only decide what stays: the same small object drives the live store and the replay.

The protocol: ``request`` once for every access; after a miss, ``insert`` once the object has been loaded. Sizes and
capacity share one unit: bytes, or 1 for each object to count objects.
"""

import math
from collections import OrderedDict

from kit.errors import CacheError
from kit.units import parse_bytes


def parse_capacity(capacity: int | str) -> int:
    """Bytes of a limit such as ``"4 GiB"``; CacheError when it is no size or below one byte."""
    try:
        limit = parse_bytes(capacity)
    except ValueError as error:
        raise CacheError(f"cache capacity: {error}") from None
    if limit < 1:
        raise CacheError(f"cache capacity: {capacity!r} holds nothing; give at least 1 byte, or use NoCache()")
    return limit


class Policy:
    """Base of all policies: byte accounting and the eviction loop. A subclass keeps an order and picks victims.

    Hooks of a subclass: ``_touch`` (a hit), ``_added``, ``_removed`` and ``_victim``; ``_admits`` may refuse an object.
    """

    def __new__(cls, *args, **kwargs):
        policy = super().__new__(cls)
        policy._made_with = (args, kwargs)
        return policy

    def __init__(self, capacity: int | str):
        self.capacity = parse_capacity(capacity)
        self.resident_bytes = 0
        self._sizes: dict[str, int] = {}

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
        """Note one access; True when the object is resident."""
        if key in self._sizes:
            self._touch(key)
            return True
        return False

    def insert(self, key: str, size: int) -> list[str] | None:
        """Offer a loaded object: the keys evicted for it, or None when it is not kept."""
        if size > self.capacity or not self._admits(key, size):
            return None
        evicted = self._make_room(size)
        self._sizes[key] = size
        self.resident_bytes += size
        self._added(key)
        return evicted

    def remove(self, key: str) -> None:
        """Let a resident object go; KeyError when it is not resident."""
        self.resident_bytes -= self._sizes.pop(key)
        self._removed(key)

    def resize(self, capacity: int | str) -> list[str]:
        """Change the limit; the keys evicted to meet it."""
        self.capacity = parse_capacity(capacity)
        return self._make_room(0)

    def _make_room(self, size: int) -> list[str]:
        evicted = []
        while self.resident_bytes + size > self.capacity:
            evicted.append(self._victim())
            self.remove(evicted[-1])
        return evicted

    def _admits(self, key, size) -> bool:
        return True

    def _touch(self, key) -> None:
        pass

    def _added(self, key) -> None:
        pass

    def _removed(self, key) -> None:
        pass

    def _victim(self) -> str:
        return next(iter(self._sizes))


class NoCache(Policy):
    """Keeps nothing: every access is a load."""

    def __init__(self):
        super().__init__(1)
        self.capacity = 0

    def _admits(self, key, size):
        return False


class HashMap(Policy):
    """Keeps everything, without a limit (option 3 of report 003)."""

    def __init__(self):
        super().__init__(1)
        self.capacity = math.inf


class FIFO(Policy):
    """Evicts what came in first, used or not."""


class LRU(Policy):
    """Evicts what was used longest ago (Mattson et al. 1970)."""

    def __init__(self, capacity: int | str):
        super().__init__(capacity)
        self._order = OrderedDict()  # oldest use first

    def _touch(self, key):
        self._order.move_to_end(key)

    def _added(self, key):
        self._order[key] = None

    def _removed(self, key):
        del self._order[key]

    def _victim(self):
        return next(iter(self._order))
