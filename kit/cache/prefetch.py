"""Prefetch: load the next layers before they are requested, in worker threads or in the requesting thread."""

from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

from kit.errors import CacheError
from kit.gguf.names import layer_of


class Prefetcher(AbstractContextManager):
    """Watches a WeightCache and, when a get enters a new layer, loads the next ``ahead`` layers.

    ``plan``: ``[(key, size, load), ...]`` in order of use. Tensors of no layer (output norm and projection) count as one
    more layer at the end, which is followed by the first layer: the next token. Resident tensors, and those that do not
    fit the store's ``ahead_bytes`` (0 becomes room for ``ahead + 1`` layers), are not loaded. ``workers``: number of
    threads; with ``asynchronous=False`` the requesting thread loads. Close it (or use ``with``) to end the threads.
    """

    def __init__(self, store, plan, ahead: int = 1, workers: int = 1, asynchronous: bool = True):
        if ahead < 1 or workers < 1:
            raise CacheError(f"prefetch: ahead={ahead} and workers={workers} must each be at least 1")
        self.store, self.ahead = store, ahead
        layers = defaultdict(list)
        for key, size, load in plan:
            layers[layer_of(key)].append((key, size, load))
        self._layers = dict(layers)
        largest = max((sum(size for _, size, _ in items) for items in layers.values()), default=0)
        store.ahead_bytes = store.ahead_bytes or (ahead + 1) * largest
        self._order = list(layers)
        self._pool = ThreadPoolExecutor(workers, "prefetch") if asynchronous else None
        self._current: int | None = None
        store.prefetcher = self

    def saw(self, key: str) -> None:
        """Called at the start of every get: prefetches the next layers when ``key`` is of a new layer."""
        layer = layer_of(key)
        if layer == self._current or layer not in self._layers:
            return
        self._current = layer
        place = self._order.index(layer)
        for step in range(1, min(self.ahead, len(self._order) - 1) + 1):
            self.prefetch(self._order[(place + step) % len(self._order)])

    def prefetch(self, layer: int) -> list[Future]:
        """Load a layer's tensors: the futures of the loads, or [] when this thread has loaded them."""
        if layer not in self._layers:
            raise CacheError(f"prefetch: there is no layer {layer}: give {self._order[0]} to {self._order[-1]}")
        jobs = [partial(self.store.prefetch, *item) for item in self._layers[layer]]
        if self._pool:
            return [self._pool.submit(job) for job in jobs]
        for job in jobs:
            job()
        return []

    def close(self) -> None:
        """Stop watching, cancel loads that have not begun, and wait for those that have."""
        self.store.prefetcher = None
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def __exit__(self, *_):
        self.close()
