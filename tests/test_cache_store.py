"""The live store: single flight, errors, threads, pins, prefetch; and its agreement with the replay, count for count."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from fuzz.soak import soak
from kit.cache import POLICIES
from kit.cache.policies.base import LRU, HashMap, NoCache
from kit.cache.policies.offline import MIN
from kit.cache.policies.pinned import Pinned
from kit.cache.prefetch import Prefetcher
from kit.cache.store import WeightCache
from kit.errors import CacheError


def make(policy, capacity, future):
    if policy in (NoCache, HashMap):
        return policy()
    return policy(capacity, future=future) if policy is MIN else policy(capacity)


@pytest.mark.parametrize("policy", [NoCache, HashMap, *POLICIES.values()])
@settings(max_examples=25, deadline=None)
@given(
    keys=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    sizes=st.lists(st.integers(0, 9), min_size=10, max_size=10),
    capacity=st.integers(1, 25),
)
def test_a_live_run_and_its_replay_agree_count_for_count(policy, keys, sizes, capacity):
    pairs = [(f"blk.{number}.w", sizes[number]) for number in keys]
    trace = kit.Trace()
    store = WeightCache(make(policy, capacity, pairs), trace)
    for key, size in pairs:
        assert store.get(key, size, lambda key=key: key) == key
    replayed = kit.replay(trace, make(policy, capacity, pairs))
    assert store.stats == replayed == kit.replay(trace.frame(), make(policy, capacity, pairs))
    outcomes = trace.frame()["outcome"].value_counts()
    assert outcomes.get("hit", 0) == replayed.hits and outcomes.get("bypass", 0) == replayed.bypassed


def test_a_hit_is_the_very_array():
    store = WeightCache(LRU(1000))
    value = store.get("a", 400, lambda: torch.zeros(100))
    assert store.get("a", 400, lambda: pytest.fail("loaded twice")) is value


def test_too_large_is_served_and_not_kept():
    trace = kit.Trace()
    store = WeightCache(LRU(10), trace)
    store.get("small", 4, lambda: "s")
    assert store.get("large", 11, lambda: "L") == "L"
    assert [span.outcome for span in trace.spans] == ["miss", "bypass"]
    assert store.stats.entries == 1 and store.stats.bypassed == 1


def test_single_flight_and_no_lock_during_a_load():
    trace, loads, gate = kit.Trace(), [], threading.Event()
    store = WeightCache(LRU(100), trace)
    store.get("resident", 1, lambda: "r")

    def slow():
        loads.append(1)
        assert gate.wait(10)
        return "value"

    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(store.get, "slow", 10, slow) for _ in range(5)]
        while len(loads) == 0:
            time.sleep(0.001)
        assert pool.submit(store.get, "resident", 1, slow).result(timeout=5) == "r"  # hits do not wait for a load
        while store.stats.bytes_requested < 1 + 1 + 50:
            time.sleep(0.001)
        gate.set()
        assert [future.result() for future in waiting] == ["value"] * 5
    stats = store.stats
    assert (len(loads), stats.misses, stats.shared, stats.hits, stats.gets) == (1, 2, 4, 1, 7)
    assert sorted(span.outcome for span in trace.spans) == ["hit", "miss", "miss"] + ["shared"] * 4


def test_a_failing_load_reaches_every_waiter_and_leaves_nothing():
    store, gate, started = WeightCache(LRU(100)), threading.Event(), threading.Event()

    def fail():
        started.set()
        assert gate.wait(10)
        raise OSError("disk")

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(store.get, "a", 10, fail) for _ in range(4)]
        assert started.wait(10)
        while store.stats.bytes_requested < 40:
            time.sleep(0.001)
        gate.set()
        for future in waiting:
            with pytest.raises(OSError, match="disk"):
                future.result()
    assert (store.stats.errors, store.stats.entries, store.stats.resident_bytes) == (4, 0, 0)
    assert store.get("a", 10, lambda: 5) == 5


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("gets", "prefetch"), [(10_000, False), (1_500, True)])
def test_stress_of_eight_threads(gets, prefetch):
    """With failing loads: no deadlock, no load twice at a time, no byte above the limit, exact counts (more: fuzz/soak.py)."""
    counted = soak(gets, prefetch=prefetch)
    assert counted["gets"] == 8 * gets and (counted["prefetched"] > 0) == prefetch


def plan_of(layers, loads, gate=None, size=10):
    def load(key):
        assert gate is None or gate.wait(10)
        loads.append(key)
        return key

    keys = [f"blk.{layer}.{name}" for layer in range(layers) for name in "ab"] + ["output"]
    return [(key, size, lambda key=key: load(key)) for key in keys]


def test_synchronous_prefetch_loads_the_next_layer_and_decides_nothing():
    loads, trace = [], kit.Trace()
    plan = plan_of(4, loads)
    store = WeightCache(Pinned(40), trace, ahead_bytes=20)
    with Prefetcher(store, plan, ahead=1, asynchronous=False):
        for _ in range(3):
            for item in plan:
                assert store.get(*item) == item[0]
    stats = store.stats
    assert stats.prefetched > 0 and stats.misses + stats.prefetched == kit.replay(trace, Pinned(40)).misses
    assert loads[:3] == ["blk.1.a", "blk.1.b", "blk.0.a"]
    assert stats.misses + stats.prefetched + stats.hits == stats.gets == 27
    replayed = kit.replay(trace, Pinned(40))
    assert (stats.hits, stats.entries, stats.resident_bytes) == (replayed.hits, replayed.entries, 40)


def test_asynchronous_prefetch_runs_beside_the_gets():
    loads, gate = [], threading.Event()
    plan = plan_of(3, loads, gate)
    store = WeightCache(NoCache(), ahead_bytes=40)
    with Prefetcher(store, plan, ahead=2, workers=2) as prefetcher:
        futures = prefetcher.prefetch(1)
        assert len(futures) == 2 and not any(future.done() for future in futures)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.get, *plan[2])
            time.sleep(0.02)
            assert not waiting.done()  # it waits for the worker's load and starts none of its own
            gate.set()
            assert waiting.result(10) == "blk.1.a"
        assert all(future.result(10) for future in futures)
        assert store.get(*plan[3]) == "blk.1.b"
    stats = store.stats
    assert loads.count("blk.1.a") == loads.count("blk.1.b") == 1
    assert (stats.prefetched, stats.misses) == (2, 0)
    assert store.prefetcher is None


def test_prefetch_keeps_to_its_budget_and_survives_errors():
    store = WeightCache(LRU(100), ahead_bytes=25)
    assert store.prefetch("a", 10, lambda: 1) and store.prefetch("b", 10, lambda: 2)
    assert not store.prefetch("c", 10, lambda: pytest.fail("no room"))
    assert not store.prefetch("a", 10, lambda: pytest.fail("staged already"))
    assert store.stats.resident_bytes == 0  # the policy has not been asked
    assert store.get("a", 10, None) == 1 and store.stats.resident_bytes == 10

    def fail():
        raise OSError("disk")

    assert not store.prefetch("d", 10, fail)
    assert store.prefetch("d", 10, lambda: 4) and store.get("d", 10, None) == 4
    assert not store.prefetch("e", 25, lambda: 5) and store.get("b", 10, None) == 2
    assert store.prefetch("e", 25, lambda: 5), "what was asked for takes no room ahead"
    with pytest.raises(CacheError, match="at least 1"):
        Prefetcher(store, plan_of(2, []), ahead=0)
    with Prefetcher(store, plan_of(2, []), asynchronous=False) as prefetcher, pytest.raises(CacheError, match="no layer 7"):
        prefetcher.prefetch(7)


def test_a_store_without_room_gets_it_for_the_layers_ahead_and_the_next():
    store, loads = WeightCache(LRU(100)), []
    with Prefetcher(store, plan_of(4, loads), ahead=2, asynchronous=False):
        store.get("blk.0.a", 10, lambda: "mine")
        assert loads == ["blk.1.a", "blk.1.b", "blk.2.a", "blk.2.b"] and store.ahead_bytes == 60


def test_prefetch_sees_each_layer_once_and_never_its_own():
    store, loads = WeightCache(NoCache(), ahead_bytes=1000), []
    with Prefetcher(store, plan_of(2, loads), ahead=5, asynchronous=False) as prefetcher:
        store.get("blk.0.a", 10, lambda: "mine")
        assert loads == ["blk.1.a", "blk.1.b", "output"], "all but its own layer"
        for key in ("blk.1.a", "blk.0.b", "blk.7.a"):
            store.get(key, 10, lambda: "mine")
        assert loads[3:] == ["blk.0.a", "blk.0.b", "blk.1.a"], "at its first tensor, once, what is not there"
        with pytest.raises(CacheError, match="no layer 7: give 0 to -1"):
            prefetcher.prefetch(7)
    with pytest.raises(CacheError, match="workers=0"):
        Prefetcher(store, plan_of(2, []), workers=0)


def test_a_prefetcher_that_is_closed_cancels_what_has_not_begun():
    ends, futures = time.monotonic() + 5, []

    def load():
        while not futures or (not futures[-1].cancelled() and time.monotonic() < ends):
            time.sleep(0.001)

    prefetcher = Prefetcher(WeightCache(NoCache(), ahead_bytes=100), [(f"blk.0.{name}", 10, load) for name in "abc"])
    futures += prefetcher.prefetch(0)
    prefetcher.close()
    assert futures[-1].cancelled() and prefetcher.store.prefetcher is None
