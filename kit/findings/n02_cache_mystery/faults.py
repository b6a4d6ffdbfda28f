"""What goes wrong: the reports' broken caches (kit.cache.faults) beside the healthy store, and caches where memory ends."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pandas as pd
import torch

import kit
from kit.cache import faults
from kit.cache.prefetch import Prefetcher
from kit.cache.store import WeightCache
from kit.errors import CacheError, ReportError
from kit.lab import tables
from kit.units import format_bytes

SCAN = [(f"blk.{number}.weight", 4000) for number in range(8)]  # 8 objects, asked for in order, pass after pass
SMALL = 4 * 4000  # room for half of them


def _walk(cache, passes: int = 1) -> int:
    """Loads that ``passes`` over the scan cause."""
    loads = []
    for _ in range(passes):
        for key, size in SCAN:
            cache.get(key, size, lambda key=key: loads.append(key) or torch.zeros(1000))
    return len(loads)


def _two_levels(cache):
    first, later = _walk(cache), _walk(cache, 2)
    held = getattr(cache, "held_bytes", cache.stats.resident_bytes)
    return f"loads: {first}, then {later}; held: {held // 4000} of 8 with room for 4; outer cache: {cache.stats.hits} hits"


def _split(cache):
    _walk(cache)
    if hasattr(cache, "switch"):
        cache.switch()
    return f"after the preload: {cache.stats.misses} misses counted; the first pass then loads {_walk(cache)}"


def _resetting(cache):
    _walk(cache)
    return f"misses read: {cache.stats.misses}, read again: {cache.stats.misses}; held: {cache.stats.entries}"


def _thread_local(cache):
    _walk(cache)
    return f"another thread loads {ThreadPoolExecutor(1).submit(_walk, cache).result()}"


def _copying(cache):
    first, second = (cache.get("w", 4000, lambda: torch.zeros(1000)) for _ in range(2))
    return "a hit is the same memory" if first.data_ptr() == second.data_ptr() else "each hit is a new array"


def _queue(cache):
    with Prefetcher(cache, [(key, size, lambda: torch.zeros(1000)) for key, size in SCAN], asynchronous=False):
        _walk(cache, 2)
    waiting = cache.queue.qsize() if hasattr(cache, "queue") else 0
    return f"served by a prefetch: {cache.stats.prefetched} of {cache.stats.gets}; requests nobody read: {waiting}"


def _upgrading(cache):
    _walk(cache)
    try:
        return f"a second pass loads {_walk(cache)}"
    except CacheError as error:
        return f"the first hit: {error}"


_FULL, _PINNED = partial(kit.LRU, SMALL), partial(kit.Pinned, SMALL)
GALLERY = {  # fault -> (what makes the broken cache of a policy, that policy, the healthy store's, what to do with either)
    "two levels, the inner one never forgets": (faults.TwoLevels, _FULL, _PINNED, _two_levels),
    "the inner level removed, LRU left": (lambda policy: faults.TwoLevels(policy).instance, _FULL, _PINNED, _two_levels),
    "split instances": (faults.SplitInstances, kit.HashMap, kit.HashMap, _split),
    "statistics that reset": (faults.ResettingStats, kit.HashMap, kit.HashMap, _resetting),
    "thread-local maps": (faults.ThreadLocal, kit.HashMap, kit.HashMap, _thread_local),
    "copy on hit": (faults.CopyOnHit, kit.HashMap, kit.HashMap, _copying),
    "a prefetch queue that nobody reads": (faults.DeadQueue, _PINNED, _PINNED, _queue),
    "a read lock upgraded on a hit": (faults.UpgradingLock, kit.HashMap, kit.HashMap, _upgrading),
}


def gallery() -> pd.DataFrame:
    """Fault by fault: what the broken cache shows, and what the healthy store shows instead."""
    rows = [
        (name, show(broken(policy())), show(WeightCache(healthy())))
        for name, (broken, policy, healthy, show) in GALLERY.items()
    ]
    return tables.frame(rows, "fault", "with the fault", "without")


# --- "cache everything" near the end of memory: in a child with a real limit, so that the machine survives ----------------

# The child imports first and limits its address space afterwards: what it may take is what it has plus the budget.
_CHILD = """
import json, resource, sys
import numpy as np, psutil
from kit.cache.policies.base import HashMap, LRU
from kit.cache.policies.pinned import Pinned
from kit.cache.store import WeightCache

kind, tensors, nbytes, budget, limit = sys.argv[1], *map(int, sys.argv[2:])
policy = {"HashMap": HashMap, "LRU": lambda: LRU(limit), "Pinned": lambda: Pinned(limit)}[kind]()
store, failed, served = WeightCache(policy), 0, 0
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + budget, hard))
for _ in range(2):
    for number in range(tensors):
        try:
            store.get(f"blk.{number}.weight", nbytes, lambda: np.ones(nbytes // 4, np.float32))
            served += 1
        except MemoryError:
            failed += 1
stats = store.stats
print(json.dumps(dict(served=served, failed=failed, hits=stats.hits, held=stats.resident_bytes)))
"""


def pressure(budget: int = 256 << 20, tensors: int = 32, nbytes: int = 16 << 20) -> pd.DataFrame:
    """Two passes over ``tensors`` of ``nbytes`` each through three caches, each in a child that may take ``budget`` more bytes:
    a HashMap caches everything, LRU and Pinned may hold half of the budget. ReportError when a child ends early."""
    rows = {}
    for kind in ("HashMap", "LRU", "Pinned"):
        arguments = [sys.executable, "-c", _CHILD, kind, *map(str, (tensors, nbytes, budget, budget // 2))]
        child = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
        if child.returncode:
            raise ReportError(f"the child with {kind} ended early: {child.stderr.strip()[-300:]}")
        rows[kind] = {"memory allowed": budget, "model": tensors * nbytes} | json.loads(child.stdout.splitlines()[-1])
    frame = pd.DataFrame.from_dict(rows, "index").rename_axis("cache")
    return frame.assign(**{column: frame[column].map(format_bytes) for column in ("memory allowed", "model", "held")})
