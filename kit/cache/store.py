"""WeightCache: the live cache. A policy decides what it keeps; several threads that miss one key share one load."""

import threading
import time
from collections import defaultdict
from concurrent.futures import Future

from kit.cache.policies.base import Policy
from kit.cache.stats import Stats
from kit.gguf.names import layer_of


class _Flight(Future):
    """A load, until a get has its value. ``ahead``: a prefetch started it. ``wanted``: a get waits for it."""

    def __init__(self, size: int, ahead: bool):
        super().__init__()
        self.size, self.ahead, self.wanted = size, ahead, False


class WeightCache:
    """A thread-safe cache of the values that its policy keeps. The lock is never held during a load.

    A hit returns the loaded value itself, not a copy: do not write to it. Each get adds one span "access" to the trace,
    with the outcome hit, miss, bypass (loaded, not kept), shared (waited for the load of another thread), prefetch (a
    prefetch had started its load) or error.

    Memory is limited to the policy's capacity, plus ``ahead_bytes`` for prefetched values not yet requested, plus loads in
    progress. A prefetched value is offered to the policy when it is requested, so the policy's decisions, and those of a
    replay, are the same with and without prefetch.
    """

    def __init__(self, policy: Policy, trace=None, ahead_bytes: int = 0):
        self.policy = policy
        self.trace = trace
        self.ahead_bytes = ahead_bytes
        self.prefetcher = None  # a kit.cache.prefetch.Prefetcher, which is told of every get
        self._lock = threading.Lock()
        self._values: dict[str, object] = {}
        self._flights: dict[str, _Flight] = {}  # in progress, or done by a prefetch and not yet requested
        self._counts: defaultdict[str, int] = defaultdict(int)  # of all that is no hit
        self._hits = self._bytes_hit = 0
        self._peak = 0  # most bytes resident at once

    # --- get ---------------------------------------------------------------------------------------------------------

    def get(self, key: str, size: int, load):
        """The value of ``key``: resident, or from ``load()``, which runs once for all threads that wait for it.

        ``size``: bytes of the value. An error of ``load`` is raised in every waiting thread; nothing is cached then.
        """
        start = 0 if self.trace is None else time.perf_counter_ns()
        if self.prefetcher is not None:
            self.prefetcher.saw(key)
        with self._lock:
            if self.policy.request(key, size):  # the shortest path, because most gets are hits
                self._hits += 1
                self._bytes_hit += size
                value = self._values[key]
                if self.trace is None:
                    return value
                outcome, flight = "hit", None
            else:
                self._note(bytes_not_hit=size)
                flight = self._flights.get(key)
                if leads := flight is None:
                    flight = self._flights[key] = _Flight(size, ahead=False)
                outcome = "prefetch" if flight.ahead and not flight.wanted else "shared"
                flight.wanted = True
                if flight.done():
                    del self._flights[key]
                    self._keep(key, size, flight.result())
        if flight:
            try:
                if leads:
                    outcome = self._fly(key, size, load, flight)
                value = flight.result()
            except BaseException:
                self._finish(start, key, size, "error", errors=1)
                raise
            if not leads:
                self._finish(start, key, size, outcome, **{"prefetched" if outcome == "prefetch" else "shared": 1})
                return value
        self._finish(start, key, size, outcome)
        return value

    def _fly(self, key, size, load, flight) -> str:
        """Load the value, keep it if a get wants it, set the result of ``flight``; returns the outcome of the access."""
        try:
            value = load()
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            flight.set_exception(error)
            raise
        with self._lock:
            self._note(bytes_loaded=size, misses=int(not flight.ahead))
            flight.set_result(value)
            if not flight.wanted:
                return ""
            del self._flights[key]
            return "miss" if self._keep(key, size, value) else "bypass"

    def _keep(self, key, size, value) -> bool:
        """Offer a loaded value to the policy; whether it is kept (lock held)."""
        evicted = self.policy.insert(key, size)
        if evicted is None:
            self._note(bypassed=1)
            return False
        self._values[key] = value
        for name in evicted:
            del self._values[name]
        self._note(evictions=len(evicted))
        self._peak = max(self._peak, self.policy.resident_bytes)
        return True

    def _note(self, **amounts):
        for name, amount in amounts.items():
            self._counts[name] += amount

    def _finish(self, start, key, size, outcome, **amounts):
        if amounts:
            with self._lock:
                self._note(**amounts)
        if self.trace is not None:
            self.trace.add("access", start, time.perf_counter_ns(), key, layer_of(key), None, size, outcome)

    # --- prefetch ----------------------------------------------------------------------------------------------------

    def prefetch(self, key: str, size: int, load) -> bool:
        """Load ``key`` in this thread before it is requested; False when it is held, does not fit ``ahead_bytes`` or fails.

        An error of ``load`` is raised in the get that waits for it, if there is one; a later get loads again.
        """
        with self._lock:
            used = sum(flight.size for flight in self._flights.values() if flight.ahead)
            if key in self.policy or key in self._flights or used + size > self.ahead_bytes:
                return False
            flight = self._flights[key] = _Flight(size, ahead=True)
        start, outcome = time.perf_counter_ns(), ""
        try:
            self._fly(key, size, load, flight)
        except Exception:
            outcome = "error"
        if self.trace is not None:
            self.trace.add("prefetch", start, time.perf_counter_ns(), key, layer_of(key), None, size, outcome)
        return not outcome

    # --- statistics --------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """A consistent snapshot of the counts since the store was made."""
        with self._lock:
            others, hit = dict(self._counts), self._bytes_hit
            return Stats(
                hits=self._hits, bytes_hit=hit, bytes_requested=hit + others.pop("bytes_not_hit", 0), entries=len(self.policy),
                resident_bytes=self.policy.resident_bytes, peak_bytes=self._peak, **others,
            )  # fmt: skip
