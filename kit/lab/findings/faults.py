"""Caches with the faults of the reports, built over the real store to reproduce one symptom each.

All have ``get(key, size, load)`` and ``stats`` as WeightCache has, and can replace it in a Weights object.
"""

import threading

from kit.cache.policies.base import Policy
from kit.cache.stats import Stats
from kit.cache.store import WeightCache


class _Instances:
    """Several caches that pass for one: ``instance`` is the WeightCache that serves the caller now."""

    instance: WeightCache

    def get(self, key, size, load):
        """The value from the instance in use."""
        return self.instance.get(key, size, load)

    @property
    def stats(self) -> Stats:
        """Statistics of the instance in use."""
        return self.instance.stats


class TwoLevels(_Instances):
    """A second cache in front of the store that never forgets: LazyTensor.cached_data (report 000), the slot of each tensor
    object (report 004).

    Symptom: the store, ``instance``, counts one miss for each tensor and no hit, and memory holds the whole model whatever
    the store's limit is.
    """

    def __init__(self, policy: Policy, trace=None):
        self.instance = WeightCache(policy, trace)
        self.inner: dict[str, tuple[object, int]] = {}

    def get(self, key, size, load):
        """The value from the inner cache, else from the store."""
        if key not in self.inner:
            self.inner[key] = super().get(key, size, load), size
        return self.inner[key][0]

    @property
    def held_bytes(self) -> int:
        """Bytes that the inner cache really holds."""
        return sum(size for _, size in self.inner.values())


class SplitInstances(_Instances):
    """Two caches instead of one: ``switch()`` changes between them after the preload (report 001, hypothesis 2).

    Symptom: inference starts with an empty cache, whose counts start at 0.
    """

    def __init__(self, policy: Policy, trace=None):
        self.instance, self._other = WeightCache(policy.fresh(), trace), WeightCache(policy.fresh(), trace)

    def switch(self) -> None:
        """Use the other instance from now on."""
        self.instance, self._other = self._other, self.instance


class ResettingStats(WeightCache):
    """Reading the statistics resets them (report 001, hypothesis 3).

    Symptom: a second reading counts only what happened since the first, while the objects are still resident.
    """

    @property
    def stats(self) -> Stats:
        """Counts since they were last read."""
        snapshot = super().stats
        with self._lock:
            self._counts.clear()
            self._hits = self._bytes_hit = self._peak = 0
        return snapshot


class ThreadLocal(threading.local, _Instances):
    """A cache for each thread (report 001, hypothesis 4).

    Symptom: another thread misses what the loading thread cached; memory grows with the number of threads.
    """

    def __init__(self, policy: Policy, trace=None):  # threading.local calls it once in every thread
        self.instance = WeightCache(policy.fresh(), trace)


class Copies(WeightCache):
    """Keeps and hands out copies, as ``Vec<f32>.clone()`` does in reports 002 and 003: a hit returns a copy of what is held, a
    miss keeps a copy of what it returns (``get_or_dequantize``).

    Symptom: a hit reads and writes the whole tensor, which costs as much memory traffic as it saves; a miss pays for it, too.
    """

    def get(self, key, size, load):
        """A value that is the caller's own."""
        made = []

        def kept():
            made.append(load())
            return made[0].clone()

        held = super().get(key, size, kept)
        return made[0] if made else held.clone()
