"""Hit rates in closed form for a cyclic scan, upper bounds for any trace, and the best contents of a static cache."""

import math

import numpy as np

from kit.cache.traces import Requests
from kit.errors import CacheError


def random_hit_rate(objects: int, capacity: int) -> float:
    """Random replacement on a cyclic scan of N objects with room for C: the root of h = exp(-(1-h) N/C) below 1.

    A hit means that the object survived a cycle of (1-h) N evictions, each with probability 1 - 1/C.
    """
    return _root(lambda h: math.exp(-(1 - h) * objects / capacity))


def two_random_hit_rate(objects: int, capacity: int) -> float:
    """Evicting the older of two random objects on a cyclic scan: h = 1 - y^2 where y = tanh(y N/C).

    With G(u) residents used within the last u requests, an object of age u is evicted at the rate 2 (1-h) G(u) / C^2, so
    G'' = -2 (1-h) G G' / C^2, G(0) = 0, G'(0) = 1, G(N) = C; then G = C tanh(y u/C) / y and h = G'(N).
    """
    return _root(lambda h: 1 - math.tanh(math.sqrt(1 - h) * objects / capacity) ** 2)


def _root(step) -> float:
    """Smallest fixed point of an increasing ``step`` on [0, 1), by iteration from 0."""
    rate = 0.0
    for _ in range(100_000):
        following = step(rate)
        if abs(following - rate) < 1e-12:
            break
        rate = following
    return rate


# Policy -> steady-state hit rate on a scan of N equal objects with room for C of them, 2 <= C < N.
CYCLIC = dict.fromkeys(("NoCache", "LRU", "FIFO", "CLOCK", "SIEVE", "ARC", "LFU"), lambda n, c: 0.0)
CYCLIC |= {"Random": random_hit_rate, "TwoRandom": two_random_hit_rate, "LIP": lambda n, c: (c - 1) / n}
CYCLIC |= dict.fromkeys(("MRU", "MIN without bypass"), lambda n, c: (c - 1) / (n - 1))
CYCLIC |= dict.fromkeys(("TinyLFU", "Pinned", "CyclicAware", "MIN"), lambda n, c: c / n)


def cyclic_hit_rate(policy: str, objects: int, capacity: int) -> float:
    """Steady-state hit rate of a policy on a cyclic scan of ``objects`` equal objects, ``capacity`` of which fit.

    1 when all of them fit. CacheError for a policy without a closed form.
    """
    if policy not in CYCLIC:
        raise CacheError(f"{policy}: no closed form for a cyclic scan; known are {', '.join(CYCLIC)}")
    return 1.0 if capacity >= objects and policy != "NoCache" else CYCLIC[policy](objects, capacity)


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


def lru_hit_curve(trace: Requests) -> tuple[np.ndarray, np.ndarray]:
    """(capacities, hits) of all LRU caches in one pass (:func:`stack_distances`); capacities in bytes, rising.

    A cache of at least ``capacities[i]`` bytes, and less than the next, has ``hits[i]`` hits.
    """
    distances = stack_distances(trace)
    capacities, counts = np.unique(distances[distances >= 0], return_counts=True)
    return capacities, np.cumsum(counts)


def min_hit_curve(trace: Requests) -> np.ndarray:
    """Hits of all MIN caches (without bypass) in one pass: (distinct objects,), with room for 1, 2, ... equal objects.

    Mattson's stack with the next use as priority: an accessed object moves to the top, and each level down to its old
    place keeps the object that is needed sooner. Takes at most accesses x objects steps.
    """
    following = trace.next_uses
    stack: list[tuple[float, str]] = []  # (next use, key), top first
    depths = np.zeros(len(trace.objects), dtype=np.int64)
    for now, key in enumerate(trace.keys):
        carried = (following[now], key)
        for depth, held in enumerate(stack):
            if held[1] == key:
                depths[depth] += 1
                stack[depth] = carried
                break
            if depth == 0 or held[0] > carried[0]:
                stack[depth], carried = carried, held
        else:
            stack.append(carried)
    return np.cumsum(depths)
