"""Pinned sets: objects that are never evicted, the optimum for a cyclic scan without prefetch."""

from kit.cache.policies.base import Policy


class Pinned(Policy):
    """Keeps the first objects that fit and never evicts; with ``names``, keeps only those.

    On a cyclic scan the byte hit rate from the second pass on is held bytes / all bytes.
    """

    def __init__(self, capacity: int | str, names=None):
        super().__init__(capacity)
        self.names = None if names is None else frozenset(names)

    def _admits(self, key, size):
        return self.resident_bytes + size <= self.capacity and (self.names is None or key in self.names)
