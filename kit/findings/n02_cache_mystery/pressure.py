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
print(json.dumps(dict(served=served, failed=failed, hits=stats.hits, held=stats.resident_bytes, errors=stats.errors)))
"""


def run(kind: str, tensors: int, nbytes: int, budget: int, limit: int) -> dict:
    """Two passes over ``tensors`` of ``nbytes`` each in a child that may take ``budget`` more bytes.

    ``kind`` is HashMap (caches everything), LRU or Pinned (both within ``limit`` bytes). The child's own report, with
    ``exit`` (its exit code) and, when it died, ``message``.
    """
    arguments = [sys.executable, "-c", _CHILD, kind, *map(str, (tensors, nbytes, budget, limit))]
    child = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    lines = child.stdout.strip().splitlines()
    report = json.loads(lines[-1]) if child.returncode == 0 else {"message": child.stderr.strip()[-300:]}
    return {"cache": kind, "exit": child.returncode, **report}


def table(budget: int = 256 << 20, tensors: int = 32, nbytes: int = 16 << 20) -> pd.DataFrame:
    """A model of twice the budget through three caches; the limited ones may hold half of the budget."""
    rows = [run(kind, tensors, nbytes, budget, budget // 2) for kind in ("HashMap", "LRU", "Pinned")]
    frame = pd.DataFrame(rows).set_index("cache")
    if failed := frame.index[frame["exit"] != 0].tolist():
        raise ReportError(f"the child with {failed[0]} ended early: {frame.loc[failed[0], 'message']}")
    frame.insert(0, "memory allowed", format_bytes(budget))
    frame.insert(1, "model", format_bytes(tensors * nbytes))
    return frame.assign(held=frame["held"].map(format_bytes)).drop(columns=["exit", "errors"])
