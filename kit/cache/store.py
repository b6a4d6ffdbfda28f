"""WeightCache: get or load with single flight a key, counted; the policy decides, the store holds the arrays."""

import threading
import time
from collections import defaultdict
from concurrent.futures import Future

from kit.cache.policy import Policy
from kit.cache.stats import Stats
from kit.gguf.reader import layer_of


class WeightCache:
    """Holds what its policy keeps. Safe under threads: the lock is held for bookkeeping only, never during a load.

    A hit returns the very array that was loaded (no copy): do not write to it. Each get adds one span "access" to the
    trace, with the outcome hit, miss, bypass (loaded, not kept), shared (waited for another thread) or error.
    """

    def __init__(self, policy: Policy, trace=None):
        self.policy = policy
        self.trace = trace
        self._lock = threading.Lock()
        self._values = {}
        self._flights: dict[str, Future] = {}
        self._totals = defaultdict(int)
        self._load_ns = {}  # key -> what its last load took

    def get(self, key: str, size: int, load):
        """The value of ``key``: resident, or from ``load()``, which runs once however many threads ask.

        ``size`` is what the value occupies (bytes). An error of ``load`` reaches every waiting thread and leaves
        nothing behind.
        """
        start = time.perf_counter_ns()
        leads = False
        with self._lock:
            self._totals["bytes_requested"] += size
            if self.policy.request(key, size):
                value = self._values[key]
                self._totals["hits"] += 1
                self._totals["bytes_hit"] += size
                self._totals["ns_saved"] += self._load_ns[key]
                outcome = "hit"
            else:
                flight = self._flights.get(key)
                if leads := flight is None:
                    flight = self._flights[key] = Future()
                outcome = "shared"
        if outcome != "hit":
            try:
                if leads:
                    outcome = self._fly(key, size, load, flight)
                value = flight.result()
                if not leads:
                    self._count("shared")
            except BaseException:
                self._count("errors")
                self._span(start, key, size, "error")
                raise
        self._span(start, key, size, outcome)
        return value

    def _fly(self, key, size, load, flight) -> str:
        start = time.perf_counter_ns()
        try:
            value = load()
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            flight.set_exception(error)
            raise
        took = time.perf_counter_ns() - start
        with self._lock:
            del self._flights[key]
            evicted = self.policy.insert(key, size)
            totals = self._totals
            totals["misses"] += 1
            totals["bytes_loaded"] += size
            totals["ns_loading"] += took
            self._load_ns[key] = took
            if evicted is None:
                totals["bypassed"] += 1
            else:
                self._values[key] = value
                for name in evicted:
                    del self._values[name]
                totals["evictions"] += len(evicted)
                totals["peak_bytes"] = max(totals["peak_bytes"], self.policy.resident_bytes)
        flight.set_result(value)
        return "bypass" if evicted is None else "miss"

    def _count(self, name):
        with self._lock:
            self._totals[name] += 1

    def _span(self, start, key, size, outcome):
        if self.trace is not None:
            self.trace.add("access", start, time.perf_counter_ns(), key, layer_of(key), None, size, outcome)

    @property
    def stats(self) -> Stats:
        """A consistent snapshot of the counts since the store was made."""
        with self._lock:
            totals = dict(self._totals)
            seconds = {f"seconds_{name}": totals.pop(f"ns_{name}", 0) / 1e9 for name in ("loading", "saved")}
            return Stats(entries=len(self.policy), resident_bytes=self.policy.resident_bytes, **seconds, **totals)
