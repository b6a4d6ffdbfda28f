"""The reports' broken caches, on purpose: each is a few lines over the real store and shows one symptom.

All have ``get(key, size, load)`` and ``stats``, as WeightCache has, so each can take its place in a Weights object.
"""

import queue
import threading
from contextlib import contextmanager

from kit.cache.policies.base import Policy
from kit.cache.stats import Stats
from kit.cache.store import WeightCache
from kit.errors import CacheError


class TwoLevels:
    """A second cache in front of the store, unknown to it. By default it never forgets: every tensor object keeps what it
    once got (LazyTensor.cached_data, report 000). ``keeps``: it is an LRU of so many entries (report 004: 50).

    Symptom without a limit: the outer cache sees each tensor once, all misses, and nothing after; memory is that of the
    whole model whatever the outer limit says. With one: both miss, for a scan is longer than either.
    """

    def __init__(self, policy: Policy, trace=None, keeps: int | None = None):
        self.outer = WeightCache(policy, trace)
        self.inner: dict[str, tuple[object, int]] = {}
        self.keeps = keeps

    def get(self, key, size, load):
        """From the inner level if that still holds it, else through the outer one."""
        found = self.inner.pop(key, None) or (self.outer.get(key, size, load), size)
        self.inner[key] = found
        if self.keeps is not None and len(self.inner) > self.keeps:
            del self.inner[next(iter(self.inner))]  # the least recently used one
        return found[0]

    @property
    def instance(self) -> WeightCache:
        """The real store behind."""
        return self.outer

    @property
    def stats(self) -> Stats:
        """What the outer cache says about itself."""
        return self.outer.stats

    @property
    def held_bytes(self) -> int:
        """What is in memory really."""
        return sum(size for _, size in self.inner.values())


class SplitInstances:
    """Two caches where one was meant: ``switch()`` stands between preload and inference (report 001, hypothesis 2).

    Symptom: the second one starts empty, and its count of misses too.
    """

    def __init__(self, policy: Policy, trace=None):
        self._caches = [WeightCache(policy.fresh(), trace), WeightCache(policy.fresh(), trace)]
        self.get = self._caches[0].get

    def switch(self) -> None:
        """From here on the other instance answers."""
        self._caches.reverse()
        self.get = self._caches[0].get

    @property
    def instance(self) -> WeightCache:
        """The one that answers now."""
        return self._caches[0]

    @property
    def stats(self) -> Stats:
        """Counts of the instance that answers now."""
        return self.instance.stats


class ResettingStats(WeightCache):
    """Reading the statistics sets them back (report 001, hypothesis 3).

    Symptom: a second reading shows only what happened since the first: counters fall, the objects are still there.
    """

    @property
    def stats(self) -> Stats:
        """Counts since they were last read."""
        snapshot = super().stats
        with self._lock:
            self._counts.clear()
            self._peak = 0
        return snapshot


class ThreadLocal:
    """A cache for each thread (report 001, hypothesis 4).

    Symptom: what the loading thread put in, a serving thread misses; memory grows with the threads.
    """

    def __init__(self, policy: Policy, trace=None):
        self._policy, self._trace = policy, trace
        self._local = threading.local()

    @property
    def instance(self) -> WeightCache:
        """The one of the calling thread."""
        if not hasattr(self._local, "cache"):
            self._local.cache = WeightCache(self._policy.fresh(), self._trace)
        return self._local.cache

    def get(self, key, size, load):
        """From the cache of the calling thread."""
        return self.instance.get(key, size, load)

    @property
    def stats(self) -> Stats:
        """Counts of the calling thread's cache."""
        return self.instance.stats


class CopyOnHit(WeightCache):
    """Hands out a copy each time, as ``Vec<f32>.clone()`` does in reports 002 and 003.

    Symptom: a hit reads and writes the whole tensor again, so it costs as much memory traffic as it saves.
    """

    def get(self, key, size, load):
        """A private copy of the value."""
        return super().get(key, size, load).clone()


class DeadQueue(WeightCache):
    """Prefetch requests go into a queue that no thread reads (report 002).

    Symptom: the queue grows, nothing is ever served by a prefetch, every count is that of a cache without one.
    """

    def __init__(self, policy: Policy, trace=None, ahead_bytes: int = 0):
        super().__init__(policy, trace, ahead_bytes)
        self.queue = queue.SimpleQueue()

    def prefetch(self, key, size, load):
        """Note the wish; False: nothing was loaded."""
        self.queue.put((key, size, load))
        return False


class UpgradingLock(WeightCache):
    """A hit takes the read lock, then asks for the write lock to move the entry up, still holding the first.

    Symptom: the writer waits for all readers and is one of them: the first hit never returns. Here it gives up after
    ``timeout`` seconds with a CacheError.
    """

    def __init__(self, policy: Policy, trace=None, timeout: float = 0.2):
        super().__init__(policy, trace)
        self._rw = _ReadWriteLock(timeout)

    def get(self, key, size, load):
        """As in the store, with the lock order of the fault."""
        with self._rw.read():
            resident = key in self.policy
            if resident:
                with self._rw.write():
                    return super().get(key, size, load)
        with self._rw.write():
            return super().get(key, size, load)


class _ReadWriteLock:
    """Many readers or one writer; waiting longer than ``timeout`` seconds is a CacheError."""

    def __init__(self, timeout: float):
        self._timeout, self._changed = timeout, threading.Condition()
        self._held = 0  # readers; -1: the writer

    def read(self):
        return self._hold(lambda: self._held >= 0, 1)

    def write(self):
        return self._hold(lambda: self._held == 0, -1)

    @contextmanager
    def _hold(self, free, change):
        with self._changed:
            if not self._changed.wait_for(free, self._timeout):
                readers = max(0, self._held)
                raise CacheError(f"deadlock: waited {self._timeout} s for a lock that {readers} reader(s) hold")
            self._held += change
        try:
            yield
        finally:
            with self._changed:
                self._held -= change
                self._changed.notify_all()
