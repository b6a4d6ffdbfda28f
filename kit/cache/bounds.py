"""Upper bounds of the hits of any cache, the capacities with which an LRU hits, and the best contents of a static cache."""

import math

import numpy as np

from kit.cache.traces import Requests


def interval_bound(trace: Requests, capacity: int, by: str = "bytes") -> float:
    """Upper bound of the hit rate (of ``by``: "bytes" or "objects") of any policy without prefetch, for any sizes.

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
    worth = sizes if by == "bytes" else np.ones_like(sizes)
    order = np.argsort(lengths if by == "bytes" else lengths * sizes, kind="stable")  # by space-time for each unit of worth
    room = capacity * len(trace)
    worth, area = worth[order], (lengths * sizes)[order]
    used = np.cumsum(area)
    fits = int(np.searchsorted(used, room, side="right"))
    total = worth[:fits].sum()
    if fits < len(order):
        total += worth[fits] * (room - (used[fits - 1] if fits else 0.0)) / area[fits]
    return float(total / max(1, sum(trace.sizes) if by == "bytes" else len(trace)))


def knapsack(costs: dict[str, float], sizes: dict[str, int], capacity: int, cells: int = 20_000) -> list[str]:
    """Names with the largest total cost whose sizes fit in ``capacity`` bytes: what a static cache should pin.

    Dynamic programming over sizes in at most ``cells`` steps. Sizes are rounded up to whole steps, so the set always fits;
    it is optimal when a step divides all sizes.
    """
    grain = max(1, math.gcd(*sizes.values()) if sizes else 1, -(-capacity // cells))
    room = capacity // grain
    best = np.zeros(room + 1)
    taken = np.zeros((len(costs), room + 1), bool)
    names = list(costs)
    for row, name in enumerate(names):
        need = -(-sizes[name] // grain)
        if need > room or costs[name] <= 0:
            continue
        if need == 0:
            taken[row] = True
            best += costs[name]
            continue
        offer = best[:-need] + costs[name]
        taken[row, need:] = offer > best[need:]
        best[need:] = np.maximum(best[need:], offer)
    chosen, left = [], room
    for row in range(len(names) - 1, -1, -1):
        if taken[row, left]:
            chosen.append(names[row])
            left -= -(-sizes[names[row]] // grain)
    return chosen[::-1]


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
    tree, found, total = np.zeros(len(sizes) + 1, np.int64), np.full(len(sizes), -1), 0
    for now in range(len(sizes)):
        last = before[now]
        if last >= 0:
            older, place = 0, last
            while place > 0:
                older += tree[place]
                place -= place & -place
            found[now] = total - older
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
    return found
