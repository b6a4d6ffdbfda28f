"""The cache configuration of report 002; notebook 03 measures the effect of each field."""

import time
from dataclasses import dataclass

from kit.cache.policies.base import LFU, LRU, Policy, parse_capacity
from kit.cache.prefetch import Prefetcher
from kit.cache.store import WeightCache
from kit.errors import CacheError


@dataclass(frozen=True)
class CacheConfig:
    """The fields of ``DequantizationCacheConfig``, with its defaults where the report gives them.

    ``max_memory_bytes``: limit of resident bytes. ``prefetch_ahead``: layers loaded ahead (0: none).
    ``use_frequency_priority``: evict the object used least often in the last ``frequency_window`` seconds, instead of the
    least recently used. ``enable_async_prefetch``: prefetch in another thread, else in the thread that calls get.
    """

    max_memory_bytes: int | str = "512 MiB"
    prefetch_ahead: int = 0
    use_frequency_priority: bool = False
    frequency_window: float = 60.0
    enable_async_prefetch: bool = False

    def __post_init__(self):
        parse_capacity(self.max_memory_bytes)
        if self.prefetch_ahead < 0:
            raise CacheError(f"prefetch_ahead: {self.prefetch_ahead} layers; give 0 (none) or more")
        if not self.frequency_window > 0:
            raise CacheError(f"frequency_window: {self.frequency_window!r} s; give a positive number of seconds")

    def policy(self) -> Policy:
        """LFU within the window when ``use_frequency_priority``, else LRU."""
        if self.use_frequency_priority:
            return LFU(self.max_memory_bytes, window=self.frequency_window, clock=time.monotonic)
        return LRU(self.max_memory_bytes)

    def prefetcher(self, store: WeightCache, plan) -> Prefetcher | None:
        """The Prefetcher over ``plan`` (``[(key, size, load), ...]``), None when ``prefetch_ahead`` is 0.

        The store gets room for ``prefetch_ahead + 1`` layers beside its limit.
        """
        if not self.prefetch_ahead:
            return None
        prefetcher = Prefetcher(store, plan, ahead=self.prefetch_ahead, asynchronous=self.enable_async_prefetch)
        store.ahead_bytes = prefetcher.layer_bytes * (self.prefetch_ahead + 1)
        return prefetcher
