"""Pinned sets: objects that are never evicted, the optimum for a cyclic scan without prefetch."""

from dataclasses import dataclass

from kit.cache.policies.base import Policy, parse_capacity
from kit.cache.traces import Requests
from kit.errors import CacheError
from kit.units import format_bytes


class Pinned(Policy):
    """Keeps the first objects that fit and never evicts; with ``names``, keeps only those.

    On a cyclic scan the byte hit rate from the second pass on is held bytes / all bytes. Names can be chosen by
    :func:`kit.cache.bounds.knapsack` over measured miss costs, or by a :class:`RowPlan`.
    """

    def __init__(self, capacity: int | str, names=None):
        super().__init__(capacity)
        self.names = None if names is None else frozenset(names)

    def _admits(self, key, size):
        return self.resident_bytes + size <= self.capacity and (self.names is None or key in self.names)


@dataclass(frozen=True)
class Rows:
    """Rows ``start`` to ``stop`` (exclusive) of a tensor; ``key`` is their name in caches and traces."""

    tensor: str
    start: int
    stop: int
    nbytes: int

    @property
    def key(self) -> str:
        """``blk.0.ffn_up.weight[0:128]``"""
        return f"{self.tensor}[{self.start}:{self.stop}]"


class RowPlan:
    """The rows of each tensor that a cache of ``capacity`` bytes holds, so that the capacity is used fully.

    ``tensors``: ``{name: (rows, bytes a row)}`` in order of use. Tensors are held in that order, the last one in part. With
    ``spread`` the same share of every tensor is held: then every layer leaves the same amount to load, which a prefetch
    can hide behind the layer before it.
    """

    def __init__(self, capacity: int | str, tensors: dict[str, tuple[int, int]], spread: bool = False):
        self.capacity = parse_capacity(capacity)
        total = sum(rows * nbytes for rows, nbytes in tensors.values())
        if not total:
            raise CacheError("RowPlan: no tensors with rows to plan for")
        share = min(1.0, self.capacity / total)
        left = self.capacity
        self.parts: dict[str, list[Rows]] = {}
        self.held: set[str] = set()
        for name, (rows, nbytes) in tensors.items():
            count = min(rows, left // nbytes, int(rows * share) if spread else rows)
            left -= count * nbytes
            cuts = [(0, count), (count, rows)]
            self.parts[name] = [Rows(name, a, b, (b - a) * nbytes) for a, b in cuts if b > a]
            if count:
                self.held.add(self.parts[name][0].key)

    def policy(self) -> Pinned:
        """Keeps exactly the planned rows."""
        return Pinned(self.capacity, names=self.held)

    def requests(self, trace: Requests) -> Requests:
        """The trace with each access to a planned tensor split into accesses to its parts."""
        split = [
            (part.key, part.nbytes, token) if part else (key, size, token)
            for key, size, token in zip(trace.keys, trace.sizes, trace.tokens, strict=True)
            for part in self.parts.get(key, [None])
        ]
        return Requests(*map(list, zip(*split, strict=True)))

    def get(self, store, name: str, load_rows) -> list[tuple[Rows, object]]:
        """The parts of a tensor, each from the store or from ``load_rows(start, stop)``; the parts are not concatenated."""
        if name not in self.parts:
            raise CacheError(f"{name!r} is not in the row plan of {format_bytes(self.capacity)}")
        return [
            (part, store.get(part.key, part.nbytes, lambda part=part: load_rows(part.start, part.stop)))
            for part in self.parts[name]
        ]
