"""Runs a policy over a recorded trace, sizes only: what would this cache have done?"""

from kit.cache.offline import MIN
from kit.cache.policy import Policy
from kit.cache.stats import Stats
from kit.cache.traces import Requests, requests


def replay(trace, cache: Policy, tokens: int = 1, dtype: str = "float32") -> Stats:
    """Stats of ``cache.fresh()`` after the accesses of ``trace``.

    ``trace``: a Trace, its DataFrame, Requests, ``[(name, bytes), ...]``, or an open GGUF file, which stands for
    ``tokens`` passes over its tensors in file order at the size of ``dtype``.
    """
    accesses = trace if isinstance(trace, Requests) else requests(trace, tokens=tokens, dtype=dtype)
    policy = cache.fresh()
    if isinstance(policy, MIN):
        policy.foresee(accesses)
    request, insert = policy.request, policy.insert
    hits = bypassed = evictions = peak = bytes_hit = bytes_loaded = 0
    for key, size in zip(accesses.keys, accesses.sizes, strict=True):
        if request(key, size):
            hits += 1
            bytes_hit += size
            continue
        bytes_loaded += size
        evicted = insert(key, size)
        if evicted is None:
            bypassed += 1
        else:
            evictions += len(evicted)
            if policy.resident_bytes > peak:
                peak = policy.resident_bytes
    return Stats(
        hits=hits,
        misses=len(accesses.keys) - hits,
        bypassed=bypassed,
        evictions=evictions,
        entries=len(policy),
        resident_bytes=policy.resident_bytes,
        peak_bytes=peak,
        bytes_requested=bytes_hit + bytes_loaded,
        bytes_hit=bytes_hit,
        bytes_loaded=bytes_loaded,
    )
