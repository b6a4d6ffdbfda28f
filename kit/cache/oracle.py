"""oracleGeneral traces: the 24-byte records that libCacheSim reads, with a JSON sidecar for the tensors' names."""

import json
import math
from pathlib import Path

import numpy as np

from kit.cache.traces import Requests, requests
from kit.errors import TraceError

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])  # packed, 24 bytes
LARGEST = 2**32 - 1


def write(trace: Requests, path: str | Path) -> Path:
    """Write ``path`` and ``path``.json; TraceError when an object has 4 GiB or more, which a record cannot hold.

    ``id``: place (from 1) of the name in the sidecar. ``time``: the token. ``next``: index of the next access to the
    object, -1 for none.
    """
    path = Path(path)
    for key, size in zip(trace.keys, trace.sizes, strict=True):
        if size > LARGEST:
            raise TraceError(f"{path}: {key} has 4 GiB or more; an oracleGeneral record holds at most {LARGEST} bytes")
    ids = {name: number for number, name in enumerate(dict.fromkeys(trace.keys), start=1)}
    records = np.zeros(len(trace), RECORD)
    records["time"] = np.maximum(trace.tokens, 0)
    records["id"] = [ids[key] for key in trace.keys]
    records["size"] = trace.sizes
    records["next"] = [-1 if index == math.inf else index for index in trace.next_uses]
    records.tofile(path)
    sidecar(path).write_text(json.dumps({"format": "oracleGeneral", "names": list(ids)}, indent=0), encoding="utf-8")
    return path


def read(path: str | Path) -> Requests:
    """The accesses of an oracleGeneral file, with names from its sidecar, else ``object.<id>``. TraceError if malformed."""
    path = Path(path)
    nbytes = path.stat().st_size if path.is_file() else None
    if not nbytes or nbytes % RECORD.itemsize:
        what = "no such file" if nbytes is None else f"{nbytes} bytes are no whole number of 24-byte records"
        raise TraceError(f"{path}: not an oracleGeneral trace ({what})")
    records = np.fromfile(path, RECORD)
    named = _names(path)
    ids = records["id"].tolist()
    if named is not None and not 1 <= min(ids) <= max(ids) <= len(named):
        raise TraceError(f"{sidecar(path)}: names {len(named)} objects, but the trace has ids {min(ids)} to {max(ids)}")
    keys = [named[i - 1] if named is not None else f"object.{i}" for i in ids]
    return Requests(keys, records["size"].tolist(), records["time"].tolist())


def read_trace(path: str | Path) -> Requests:
    """A trace of weight accesses recorded elsewhere: CSV with the columns tensor and nbytes (token), or oracleGeneral."""
    import pandas as pd  # the policies do without

    path = Path(path)
    if path.suffix.lower() != ".csv":
        return read(path)
    try:
        frame = pd.read_csv(path, dtype={"tensor": str, "nbytes": np.uint64}, keep_default_na=False)
    except (OSError, ValueError, OverflowError) as error:
        message = f"cannot be read as CSV ({str(error).strip()}); it needs the columns tensor and nbytes, whole numbers"
        raise TraceError(f"{path}: {message}") from None
    found = requests(frame)
    if not len(found):
        raise TraceError(f"{path}: holds no access; a row needs a tensor and its nbytes")
    return found


def sidecar(path: Path) -> Path:
    """Path of the JSON file with the names of a trace."""
    return path.with_name(path.name + ".json")


def _names(path) -> list[str] | None:
    if not sidecar(path).exists():
        return None
    try:
        names = json.loads(sidecar(path).read_text(encoding="utf-8"))["names"]
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{sidecar(path)}: not the sidecar of a trace ({error!r})") from None
    return [str(name) for name in names]
