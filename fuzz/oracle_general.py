"""oracleGeneral traces for libCacheSim; kit.lab.predicting.oracle reads them."""

import math
from pathlib import Path

import numpy as np

from kit.cache.traces import Requests
from kit.errors import TraceError
from kit.lab.predicting.oracle import RECORD

LARGEST = 2**32 - 1


def write(trace: Requests, path: Path) -> Path:
    """Write ``path``; TraceError when an object has 4 GiB or more, which a record cannot hold.

    ``id``: place (from 1) of the name in order of first access. ``time``: the token. ``next``: index of the next access to the
    object, -1 for none.
    """
    for key, size in zip(trace.keys, trace.sizes, strict=True):
        if size > LARGEST:
            raise TraceError(f"{path}: {key} has 4 GiB or more; an oracleGeneral record holds at most {LARGEST} bytes")
    ids = {name: number for number, name in enumerate(trace.objects, start=1)}
    records = np.zeros(len(trace), RECORD)
    records["time"] = np.maximum(trace.tokens, 0)
    records["id"] = [ids[key] for key in trace.keys]
    records["size"] = trace.sizes
    records["next"] = [-1 if index == math.inf else index for index in trace.next_uses]
    records.tofile(path)
    return path
