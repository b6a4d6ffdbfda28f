"""Pinned sets: what is kept is decided once and never evicted, the best that a cyclic scan allows without prefetch."""

from kit.cache.policy import Policy


class Pinned(Policy):
    """Keeps the first objects that fit and never evicts; with ``names``, keeps only those.

    A cyclic scan then hits on every object held from the second pass on: capacity / total by bytes, the bound for
    every policy without prefetch.
    """

    def __init__(self, capacity: int | str, names=None):
        super().__init__(capacity)
        self.names = None if names is None else frozenset(names)

    def _admits(self, key, size):
        return self.resident_bytes + size <= self.capacity and (self.names is None or key in self.names)
