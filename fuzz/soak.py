"""Threads on one weight cache, with loaders that fail and a prefetcher, and every count checked.

``PYTHONMALLOC=debug python -m fuzz.soak --gets 1000000 --record`` adds a line to results/reference/<machine>/soak.jsonl.
"""

import argparse
import json
import os
import random
import sys
import sysconfig
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime

from kit.cache.policies.base import LRU
from kit.cache.prefetch import Prefetcher
from kit.cache.store import WeightCache
from kit.lab.measuring import machine
from kit.system.paths import ROOT

OBJECTS, SIZE, LIMIT, AHEAD = 40, 10, 200, 40


def soak(gets: int, threads: int = 8, seed: int = 0, prefetch: bool = True) -> dict:
    """``threads`` x ``gets`` gets: what was counted. AssertionError for a count that is off, a double load, a byte too many."""
    store, guard, alive, loads = WeightCache(LRU(LIMIT), ahead_bytes=AHEAD), threading.RLock(), [0, 0], Counter()
    loading, failing = set(), random.Random(seed)

    class Value:
        """Counts itself: what is in memory, whoever holds it."""

        def __init__(self, key):
            self.key = key
            with guard:
                alive[0] += 1
                alive[1] = max(alive)

        def __del__(self):
            with guard:
                alive[0] -= 1

    def load(key):
        with guard:
            assert key not in loading, f"two loads of {key} at once"
            loading.add(key)
            fails = failing.random() < 0.01
            loads["failed" if fails else "done"] += 1
        try:
            if fails:
                raise OSError(key)
            return Value(key)
        finally:
            with guard:
                loading.discard(key)

    def work(number):
        draw, errors = random.Random(1000 * seed + number), 0
        for count in range(gets):
            key = f"blk.{int(OBJECTS * draw.random() ** 2)}.w"
            try:
                assert store.get(key, SIZE, lambda key=key: load(key)).key == key
            except OSError as error:
                assert error.args == (key,)
                errors += 1
            if count % 1000 == 0:
                assert store.stats.resident_bytes <= LIMIT
        return errors

    plan = [(key, SIZE, lambda key=key: load(key)) for key in (f"blk.{n}.w" for n in range(OBJECTS))]
    started = time.monotonic()
    watch = Prefetcher(store, plan, ahead=2, workers=2) if prefetch else None
    with ThreadPoolExecutor(threads) as pool:
        errors = sum(pool.map(work, range(threads)))
    if watch:
        watch.close()
    stats, staged = store.stats, len(store._flights)  # done by a prefetch, and not requested since
    assert stats.gets == threads * gets and stats.errors == errors > 0
    assert stats.bytes_requested == stats.gets * SIZE and stats.bytes_loaded == loads["done"] * SIZE
    assert loads["done"] >= stats.misses and (prefetch or loads["done"] == stats.misses)
    assert loads["failed"] >= 1 and not loading and staged * SIZE <= AHEAD
    assert all(flight.ahead and flight.done() for flight in store._flights.values())
    assert stats.entries * SIZE == stats.resident_bytes <= stats.peak_bytes <= LIMIT
    assert alive[0] == stats.entries + staged, "a value that nobody holds is still in memory"
    # each thread may hold what it is loading or was just given, beside what the store keeps and has ahead
    assert alive[1] <= (LIMIT + AHEAD) // SIZE + 2 * (threads + 2)
    seconds = round(time.monotonic() - started, 1)
    return {"threads": threads, "gets": stats.gets, "seconds": seconds, "loads": dict(loads)} | asdict(stats)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.soak", description=__doc__)
    parser.add_argument("--gets", type=int, default=100_000, help="of each of the eight threads  [default: 100000]")
    parser.add_argument("--seed", type=int, default=0, help="of what is asked and what fails")
    parser.add_argument("--record", action="store_true", help="keep the counts under results/reference")
    options = parser.parse_args()
    row = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": machine.git_commit(),
        "python": sys.version.split()[0], "malloc": os.environ.get("PYTHONMALLOC", ""),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "seed": options.seed,
    } | soak(options.gets, seed=options.seed)  # fmt: skip
    print(json.dumps(row))
    if options.record:
        with open(ROOT / "results" / "reference" / machine.machine_id() / "soak.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
