"""Each fault on purpose shows the symptom that its docstring names, and the real store does not."""

import threading

import torch

from kit.cache.policies.base import LRU, HashMap
from kit.lab.findings import faults

SCAN = [(f"blk.{i}.w", 10) for i in range(8)]


def run(cache, passes):
    loads = []
    for _ in range(passes):
        for key, size in SCAN:
            cache.get(key, size, lambda key=key: loads.append(key) or torch.zeros(2))
    return loads


def test_two_levels_the_outer_sees_each_tensor_once_and_the_limit_means_nothing():
    cache = faults.TwoLevels(LRU(30))
    assert len(run(cache, 3)) == 8
    assert (cache.stats.hits, cache.stats.misses, cache.held_bytes) == (0, 8, 80)
    inner_removed = cache.instance
    assert len(run(inner_removed, 3)) == 24 and inner_removed.stats.hits == 0  # and without the inner level: all misses


def test_split_instances_start_again_empty():
    cache = faults.SplitInstances(HashMap())
    run(cache, 1)
    cache.switch()
    assert cache.stats.gets == 0 and len(run(cache, 1)) == 8
    assert (cache.stats.hits, cache.stats.misses) == (0, 8)


def test_resetting_statistics_forget_and_the_objects_are_there():
    cache = faults.ResettingStats(HashMap())
    run(cache, 1)
    assert cache.stats.misses == 8
    assert cache.stats.misses == 0 and cache.stats.entries == 8
    assert run(cache, 1) == [] and cache.stats.hits == 8


def test_thread_local_caches_do_not_see_each_other():
    cache, loads = faults.ThreadLocal(HashMap()), []
    run(cache, 1)
    thread = threading.Thread(target=lambda: loads.extend(run(cache, 1)))
    thread.start()
    thread.join()
    assert len(loads) == 8 and cache.stats.misses == 8 and run(cache, 1) == []


def test_a_hit_and_a_miss_copy_once_each():
    """As their ``get_or_dequantize``: what a miss returns is not what it keeps, nor is what a hit returns."""
    cache, loaded = faults.Copies(HashMap()), []
    load = lambda: loaded.append(torch.ones(2)) or loaded[-1]  # noqa: E731
    a, b, c = (cache.get("a", 8, load) for _ in range(3))
    assert torch.equal(a, b) and len({each.data_ptr() for each in (a, b, c)}) == 3 and cache.stats.hits == 2
    assert len(loaded) == 1 and a is loaded[0]
    assert cache._values["a"].data_ptr() not in {a.data_ptr(), b.data_ptr(), c.data_ptr()}
