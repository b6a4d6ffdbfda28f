"""Simulation of a cache: run a policy over a recorded trace without loading anything."""

import numpy as np

from kit.cache.policies.base import Policy
from kit.cache.policies.offline import MIN
from kit.cache.stats import Stats
from kit.cache.traces import Requests, requests


def replay(trace, cache: Policy, tokens: int = 1, dtype: str = "float32") -> Stats:
    """Stats of ``cache.fresh()`` after the accesses of ``trace``.

    ``trace``: a Trace, its DataFrame, Requests, ``[(name, bytes), ...]``, or an open GGUF file, which stands for
    ``tokens`` passes over its tensors in file order at the size of ``dtype``.
    """
    return replay_hits(requests(trace, tokens=tokens, dtype=dtype), cache)[0]


def replay_hits(accesses: Requests, cache: Policy) -> tuple[Stats, np.ndarray]:
    """(the stats of ``replay``, whether each access hit: (accesses,) bool)."""
    policy = cache.fresh()
    if isinstance(policy, MIN):
        policy.foresee(accesses)
    request, insert = policy.request, policy.insert
    hit = bytearray(len(accesses))
    bypassed = evictions = peak = bytes_hit = 0
    for index, (key, size) in enumerate(zip(accesses.keys, accesses.sizes, strict=True)):
        if request(key, size):
            hit[index] = 1
            bytes_hit += size
            continue
        evicted = insert(key, size)
        if evicted is None:
            bypassed += 1
            continue
        if evicted:
            evictions += len(evicted)
        if policy.resident_bytes > peak:
            peak = policy.resident_bytes
    hits, asked = sum(hit), sum(accesses.sizes)
    stats = Stats(
        hits=hits, misses=len(accesses) - hits, bypassed=bypassed, evictions=evictions, entries=len(policy),
        resident_bytes=policy.resident_bytes, peak_bytes=peak,
        bytes_requested=asked, bytes_hit=bytes_hit, bytes_loaded=asked - bytes_hit,
    )  # fmt: skip
    return stats, np.frombuffer(hit, dtype=bool)
