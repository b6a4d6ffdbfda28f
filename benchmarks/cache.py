"""Caches: a whole granite-3.3-8b decode of 100 tokens replayed (compared with libCacheSim, which is C), and a live hit."""

import importlib.util
import tempfile
from pathlib import Path

import pandas as pd

import kit
from benchmarks._oracle import write
from kit.cache import POLICIES
from kit.cache.store import WeightCache
from kit.cache.traces import repeated
from kit.lab.measuring import measure
from kit.lab.predicting.bounds import interval_bound, stack_distances
from kit.lab.synthetic.geometry import GEOMETRIES, decode_order

GOALS = {"LRU": 1.0}  # seconds a replay, at most; every other policy has SLOWEST
SLOWEST = 5.0
HIT = 0.5e-6  # seconds of a live hit when nothing listens, at most
PEERS = {"LRU": "LRU", "FIFO": "FIFO", "CLOCK": "Clock", "SIEVE": "Sieve", "S3FIFO": "S3FIFO", "ARC": "ARC", "MIN": "Belady"}


def run(samples: int = 3, capacity: int = 4 << 30, tokens: int = 100) -> pd.DataFrame:
    """One row for each policy: seconds of the replay, its goal, libCacheSim's seconds on the same trace, byte hit rate and
    its bound; then Mattson's pass over all capacities, and seconds of a live hit and of a dict look-up."""
    trace = repeated(decode_order(GEOMETRIES["granite-3.3-8b"]), tokens)
    bound = interval_bound(trace, capacity)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = write(trace, Path(folder) / "decode.oracleGeneral")
        for name, make in POLICIES.items():
            stats = kit.replay(trace, make(capacity))
            seconds = measure.time(lambda make=make: kit.replay(trace, make(capacity)), samples, min_sample=0).median
            rows.append(
                {"what": name, "seconds": seconds, "goal": GOALS.get(name, SLOWEST),
                 "peer_seconds": _peer(name, path, capacity, samples), "byte_hit_rate": stats.byte_hit_rate,
                 "of_bound": stats.byte_hit_rate / bound}
            )  # fmt: skip
    rows.append(
        {"what": "Mattson: all LRU capacities", "seconds": measure.time(lambda: stack_distances(trace), samples, 0).median}
    )
    rows += _hits(samples)
    return pd.DataFrame(rows).set_index("what")


def _peer(name, path, capacity, samples) -> float | None:
    if name not in PEERS or importlib.util.find_spec("libcachesim") is None:
        return None
    import libcachesim

    def theirs():
        reader = libcachesim.TraceReader(str(path), trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        getattr(libcachesim, PEERS[name])(capacity).process_trace(reader)

    return measure.time(theirs, samples, min_sample=0).median


def _hits(samples) -> list[dict]:
    """A get that hits, without and with a trace, beside a plain dict look-up."""
    value, plain = object(), {"a": 1}
    bare, traced = WeightCache(kit.LRU(100)), WeightCache(kit.LRU(100), trace := kit.Trace())
    for store in (bare, traced):
        store.get("a", 10, lambda: value)
    ways = {"live hit": lambda: bare.get("a", 10, None), "live hit, traced": lambda: traced.get("a", 10, None)}
    rows = []
    for what, way in ways.items():
        pair = measure.compare(way, lambda: plain["a"], samples)
        ours, theirs = pair.median("a"), pair.median("b")
        ratio = HIT / ours if way is ways["live hit"] else None  # of the goal
        rows.append({"what": what, "seconds": ours, "peer_seconds": theirs, "ratio": ratio, "least": 1, "hoped": 2})
        trace.clear()
    return rows
