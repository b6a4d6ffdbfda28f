"""What "cache everything" does near the end of memory: a child process with a real limit, so that the machine survives."""

import json
import subprocess
import sys

import pandas as pd

from kit.errors import ReportError
from kit.units import format_bytes

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


def table(budget: int = 256 << 20, tensors: int = 32, nbytes: int = 16 << 20) -> pd.DataFrame:
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
