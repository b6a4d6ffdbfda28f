"""Traces of weight accesses recorded elsewhere: CSV, and oracleGeneral, the 24-byte records that libCacheSim reads."""

from pathlib import Path

import numpy as np

from kit.cache.traces import Requests, requests
from kit.errors import TraceError

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])  # packed, 24 bytes


def read(path: str | Path) -> Requests:
    """The accesses of an oracleGeneral file, to names ``object.<id>``. TraceError if malformed."""
    path = Path(path)
    nbytes = path.stat().st_size if path.is_file() else None
    if not nbytes or nbytes % RECORD.itemsize:
        what = "no such file" if nbytes is None else f"{nbytes} bytes are no whole number of 24-byte records"
        raise TraceError(f"{path}: is not an oracleGeneral trace ({what})")
    records = np.fromfile(path, RECORD)
    if (records["time"][1:] < records["time"][:-1]).any():  # any file of such a length would be one
        raise TraceError(f"{path}: is not an oracleGeneral trace (its times do not ascend)")
    return Requests([f"object.{i}" for i in records["id"]], records["size"].tolist(), records["time"].tolist())


def read_trace(path: str | Path) -> Requests:
    """A trace: CSV with the columns tensor and nbytes (token), or oracleGeneral."""
    import pandas as pd  # the policies do without

    path = Path(path)
    if path.suffix.lower() != ".csv":
        return read(path)
    if not path.is_file():  # a named pipe would be waited for
        raise TraceError(f"{path}: is no file")
    try:
        frame = pd.read_csv(path, dtype={"tensor": str, "nbytes": np.uint64}, keep_default_na=False)
    except (OSError, ValueError, OverflowError) as error:
        message = f"cannot be read as CSV ({str(error).strip()}); it needs the columns tensor and nbytes, whole numbers"
        raise TraceError(f"{path}: {message}") from None
    trace = requests(frame)
    if not len(trace):
        raise TraceError(f"{path}: has no accesses; each row needs a tensor and its nbytes")
    return trace
