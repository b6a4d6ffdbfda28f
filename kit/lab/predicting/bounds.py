"""An upper bound of the hits of any cache, and the capacities with which an LRU hits."""

import numpy as np

from kit.cache.traces import Requests


def interval_bound(trace: Requests, capacity: int) -> float:
    """Upper bound of the byte hit rate of any policy without prefetch, for any sizes.

    A hit needs the object to be held since its last access, which takes size x interval of space-time. The cache has
    capacity x (length of the trace) of it; the bound spends that on the cheapest intervals, the last one in part (PFOO-U:
    Berger, Beckmann, Harchol-Balter, SIGMETRICS 2018). On a cyclic scan it is C/N.
    """
    last: dict[str, int] = {}
    intervals = []  # (length, size)
    for index, (key, size) in enumerate(zip(trace.keys, trace.sizes, strict=True)):
        if key in last and size <= capacity:
            intervals.append((index - last[key], size))
        last[key] = index
    lengths, sizes = np.array(intervals, float).reshape(-1, 2).T
    order = np.argsort(lengths, kind="stable")  # by space-time for each byte
    room = capacity * len(trace)
    worth, area = sizes[order], (lengths * sizes)[order]
    used = np.cumsum(area)
    fits = int(np.searchsorted(used, room, side="right"))
    total = worth[:fits].sum()
    if fits < len(order):
        total += worth[fits] * (room - (used[fits - 1] if fits else 0.0)) / area[fits]
    return float(total / max(1, sum(trace.sizes)))


def stack_distances(trace: Requests) -> np.ndarray:
    """For each access the least capacity in bytes with which an LRU cache hits it, (accesses,) int64; -1 for a first access.

    These are the bytes of all objects accessed since the object's last access, itself included (Mattson et al. 1970), by a
    Fenwick tree over the last accesses. Exact for capacities not below the largest object, which a smaller cache would bypass.
    """
    from kit.cpu.simd.vectors import jit  # here, because most traces are replayed without a compiler

    latest: dict[str, int] = {}
    before = np.empty(len(trace), np.int64)
    for now, key in enumerate(trace.keys):
        before[now] = latest.get(key, -1)
        latest[key] = now
    return jit(_distances)(before, np.array(trace.sizes, np.int64))


def _distances(before, sizes):
    tree, distances, total = np.zeros(len(sizes) + 1, np.int64), np.full(len(sizes), -1), 0
    for now in range(len(sizes)):
        last = before[now]
        if last >= 0:
            older, place = 0, last
            while place > 0:
                older += tree[place]
                place -= place & -place
            distances[now] = total - older
            total -= sizes[last]
            place = last + 1
            while place < len(tree):
                tree[place] -= sizes[last]
                place += place & -place
        total += sizes[now]
        place = now + 1
        while place < len(tree):
            tree[place] += sizes[now]
            place += place & -place
    return distances
