"""Preload a cache with some fault and watch it from outside, as the reports did: counts, references, what inference finds."""

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace


def observe(
    make: Callable, tensors: Mapping[str, int], arrival: Sequence[str], first: str, glance: int = 178
) -> SimpleNamespace:  # fmt: skip
    """Preload ``tensors`` (name -> bytes) in the order ``arrival``; then ask for ``first`` in another thread, the one
    that serves the request; then once for each tensor. Numbers take the place of weights.

    ``make()``: a WeightCache or one of kit.lab.findings.faults. Seen are ``preload`` (Stats at its end), ``counter`` (misses
    after ``glance`` tensors, at the end, after the request), ``missed`` (was ``first`` loaded again?), ``references``
    to the cache, ``one`` (did the same instance answer?), ``held_bytes``, and ``asked`` (gets of the last pass).
    """
    cache, loaded = make(), []

    def load(name):
        loaded.append(name)
        return len(loaded)

    handles = {name: partial(cache.get, name, tensors[name], partial(load, name)) for name in arrival}
    owner = (cache,)
    seen = SimpleNamespace(counter=[], references=sys.getrefcount(owner[0]) - 1)  # less the argument of this call
    instance = getattr(cache, "instance", cache)
    for number, get in enumerate(handles.values(), 1):
        get()
        if number in (glance, len(handles)):
            seen.preload = cache.stats
            seen.counter.append(seen.preload.misses)
    seen.held_bytes = getattr(cache, "held_bytes", seen.preload.resident_bytes)
    if hasattr(cache, "switch"):
        cache.switch()
    loaded.clear()

    def request():
        handles[first]()
        seen.counter.append(cache.stats.misses)
        seen.one = getattr(cache, "instance", cache) is instance

    ThreadPoolExecutor(1).submit(request).result()
    seen.missed = first in loaded
    before = cache.stats.gets
    for get in handles.values():
        get()
    seen.asked = cache.stats.gets - before
    return seen
