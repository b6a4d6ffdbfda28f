"""Policies against their definitions: invariants for all, closed forms on a scan, MIN against brute force."""

import functools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from traces import mixture_of_experts, shifting, zipf

import kit
from kit import cache
from kit.cache.policies.adaptive import ARC, TinyLFU
from kit.cache.policies.base import FIFO, LFU, LIP, LRU, MRU, HashMap, NoCache, Random
from kit.cache.policies.cyclic import CyclicAware, NextUse
from kit.cache.policies.offline import MIN
from kit.cache.policies.pinned import Pinned
from kit.cache.policies.queues import CLOCK, S3FIFO, SIEVE
from kit.cache.traces import Requests, repeated, requests
from kit.errors import CacheError
from kit.lab.predicting import bounds

POLICIES = [*(make for make in cache.POLICIES.values() if make is not MIN), functools.partial(LFU, window=5), NextUse]


def name_of(make):
    return make.func.__name__ + "-window" if isinstance(make, functools.partial) else make.__name__


def scan(objects, passes):
    return repeated([(f"k{i}", 1) for i in range(objects)], passes)


accesses = st.lists(st.integers(0, 12), min_size=1, max_size=120)
size_table = st.lists(st.integers(0, 9), min_size=13, max_size=13)


@pytest.mark.parametrize("make", POLICIES, ids=name_of)
@settings(max_examples=60, deadline=None)
@given(keys=accesses, sizes=size_table, capacity=st.integers(1, 30))
def test_contents_and_bytes_agree_with_a_plain_set(make, keys, sizes, capacity):
    policy, held = make(capacity), {}
    for number in keys:
        key, size = f"k{number}", sizes[number]
        assert policy.request(key, size) == (key in held)
        if key not in held:
            evicted = policy.insert(key, size)
            if size > capacity:
                assert evicted is None
            if evicted is not None:
                assert len(set(evicted)) == len(evicted)
                for name in evicted:
                    del held[name]
                held[key] = size
        assert set(policy) == set(held) and len(policy) == len(held)
        assert policy.resident_bytes == sum(held.values()) <= capacity
    assert len(policy.fresh()) == 0 and policy.fresh().capacity == capacity


@pytest.mark.parametrize("make", [m for m in POLICIES if m is not Pinned], ids=name_of)
def test_everything_stays_when_everything_fits(make):
    stats = kit.replay(scan(50, 4), make(50))
    assert (stats.hits, stats.misses, stats.evictions, stats.entries) == (150, 50, 0, 50)


def random_hit_rate(objects: int, capacity: int) -> float:
    """Random replacement on a cyclic scan of N objects with room for C: the root of h = exp(-(1-h) N/C) below 1.

    A hit means that the object survived a cycle of (1-h) N evictions, each with probability 1 - 1/C.
    """
    return _root(lambda h: math.exp(-(1 - h) * objects / capacity))


def two_random_hit_rate(objects: int, capacity: int) -> float:
    """Evicting the older of two random objects on a cyclic scan: h = 1 - y^2 where y = tanh(y N/C).

    With G(u) residents used within the last u requests, an object of age u is evicted at the rate 2 (1-h) G(u) / C^2, so
    G'' = -2 (1-h) G G' / C^2, G(0) = 0, G'(0) = 1, G(N) = C; then G = C tanh(y u/C) / y and h = G'(N).
    """
    return _root(lambda h: 1 - math.tanh(math.sqrt(1 - h) * objects / capacity) ** 2)


def _root(step) -> float:
    """Smallest fixed point of an increasing ``step`` on [0, 1), by iteration from 0."""
    rate = 0.0
    for _ in range(100_000):
        following = step(rate)
        if abs(following - rate) < 1e-12:
            break
        rate = following
    return rate


# Policy -> steady-state hit rate on a scan of N equal objects with room for C of them, 2 <= C < N.
CYCLIC = dict.fromkeys(("NoCache", "LRU", "FIFO", "CLOCK", "SIEVE", "ARC", "LFU"), lambda n, c: 0.0)
CYCLIC |= {"Random": random_hit_rate, "TwoRandom": two_random_hit_rate, "LIP": lambda n, c: (c - 1) / n}
CYCLIC |= dict.fromkeys(("MRU", "MIN without bypass"), lambda n, c: (c - 1) / (n - 1))
CYCLIC |= dict.fromkeys(("TinyLFU", "Pinned", "CyclicAware", "MIN"), lambda n, c: c / n)


@pytest.mark.parametrize("name", CYCLIC)
@pytest.mark.parametrize("objects, capacity", [(155, 20), (155, 132), (362, 47), (362, 340)])
def test_closed_forms_of_a_scan(name, objects, capacity):
    base = name.removesuffix(" without bypass")
    policy = NoCache() if name == "NoCache" else cache.POLICIES[base](capacity, **({"bypass": False} if base != name else {}))
    warm, passes = 40, 200
    hits = kit.replay(scan(objects, passes), policy).hits - kit.replay(scan(objects, warm), policy).hits
    rate = hits / (objects * (passes - warm))
    assert rate == pytest.approx(CYCLIC[name](objects, capacity), abs=0.005)


@functools.cache
def best_hits(keys, capacity, may_bypass, held=frozenset()):
    """Most hits that any eviction choice can reach: the definition of MIN, by trying everything."""
    if not keys:
        return 0
    first, rest = keys[0], keys[1:]
    if first in held:
        return 1 + best_hits(rest, capacity, may_bypass, held)
    choices = [held] if may_bypass else []
    if len(held) < capacity:
        choices.append(held | {first})
    choices += [held - {old} | {first} for old in held]
    return max(best_hits(rest, capacity, may_bypass, choice) for choice in choices)


@settings(max_examples=60, deadline=None)
@given(keys=st.lists(st.sampled_from("abcde"), min_size=1, max_size=11), capacity=st.integers(1, 4), bypass=st.booleans())
def test_min_is_optimal(keys, capacity, bypass):
    trace = requests([(key, 1) for key in keys])
    assert kit.replay(trace, MIN(capacity, bypass=bypass)).hits == best_hits(tuple(keys), capacity, bypass)


@settings(max_examples=100, deadline=None)
@given(keys=accesses, sizes=size_table, capacity=st.integers(1, 30), bypass=st.booleans())
def test_min_evicts_the_farthest_and_only_for_what_is_needed_sooner(keys, sizes, capacity, bypass):
    """Its definition on a set; of those that are never used again the first by name goes first."""
    names, held = [f"k{number:02}" for number in keys], {}
    policy = MIN(capacity, bypass, future=[(name, sizes[int(name[1:])]) for name in names])
    for now, name in enumerate(names):
        following = lambda key, now=now: names.index(key, now + 1) if key in names[now + 1 :] else math.inf  # noqa: E731
        size, own = sizes[int(name[1:])], following(name)
        assert policy.request(name, size) == (name in held)
        if name in held:
            continue
        leaves, left = [], sorted(held, key=lambda key: (-following(key), key))
        while sum(held.values()) - sum(held[key] for key in leaves) + size > capacity and left:
            leaves.append(left.pop(0))
        late = own == math.inf or any(following(key) < own for key in leaves)
        refused = size > capacity or (bypass and late)
        assert policy.insert(name, size) == (None if refused else leaves)
        if not refused:
            held = {key: held[key] for key in held if key not in leaves} | {name: size}
        assert set(policy) == set(held) and policy.resident_bytes == sum(held.values())


@settings(max_examples=60, deadline=None)
@given(keys=accesses, sizes=size_table, capacity=st.integers(1, 40))
def test_nobody_beats_the_interval_bound(keys, sizes, capacity):
    trace = requests([(f"k{number}", sizes[number]) for number in keys])
    for make in [*POLICIES, MIN]:
        stats = kit.replay(trace, make(capacity))
        assert stats.byte_hit_rate <= bounds.interval_bound(trace, capacity) + 1e-9


def test_interval_bound_of_a_scan_is_capacity_over_total():
    assert bounds.interval_bound(scan(100, 50), 30) == pytest.approx(0.3, abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(keys=accesses, sizes=size_table)
def test_mattson_gives_every_lru_in_one_pass(keys, sizes):
    trace = requests([(f"k{number}", sizes[number]) for number in keys])
    distances = bounds.stack_distances(trace)
    for capacity in range(max(1, *trace.sizes), sum(sizes) + 2):
        assert kit.replay(trace, LRU(capacity)).hits == ((distances >= 0) & (distances <= capacity)).sum()


def test_cyclic_aware_on_unequal_sizes_reaches_the_byte_bound_from_the_second_pass_on():
    layer = [("q", 64), ("k", 16), ("v", 16), ("o", 64), ("gate", 200), ("up", 200), ("down", 200), ("norm", 0)]
    pairs = [(f"blk.{i}.{name}", size) for i in range(40) for name, size in layer] + [("token_embd", 768)]
    total, capacity, passes = sum(size for _, size in pairs), 4096, 100
    stats = kit.replay(repeated(pairs, passes), CyclicAware(capacity))
    assert stats.byte_hit_rate >= 0.99 * capacity / total * (passes - 1) / passes


@pytest.mark.parametrize("objects, capacity", [(155, 20), (362, 47), (362, 300)])
def test_cyclic_aware_loses_nothing_but_the_first_pass(objects, capacity):
    stats = kit.replay(scan(objects, 100), CyclicAware(capacity))
    assert stats.hits == 99 * capacity


@pytest.mark.parametrize(
    "trace, capacity",
    [
        (zipf(300, 20_000, 0.0), 60), (zipf(300, 20_000, 0.8), 60), (zipf(1000, 20_000, 1.2), 60),
        (shifting(3000, 20_000, 80, 600), 60), (shifting(3000, 20_000, 40, 2000), 60),
        (mixture_of_experts(tokens=100), "4 GiB"), (mixture_of_experts(tokens=100, skew=2.0, locality=0), "2 GiB"),
        (mixture_of_experts(tokens=100, skew=0.0, locality=0.6), "8 GiB"),
    ],
    ids=["uniform", "zipf", "steep zipf", "shifting", "slowly shifting", "experts", "skewed experts", "uniform experts"],
)  # fmt: skip
def test_cyclic_aware_is_never_two_points_worse_than_lru(trace, capacity):
    ours, lru = (kit.replay(trace, make(capacity)) for make in (CyclicAware, LRU))
    assert ours.hit_rate >= lru.hit_rate - 0.02
    assert ours.byte_hit_rate >= lru.byte_hit_rate - 0.02


def test_orders_of_eviction():
    def left(policy, text):
        for key in text:
            if not policy.request(key, 1):
                policy.insert(key, 1)
        return "".join(sorted(policy))

    assert left(LRU(3), "abcad") == "acd"
    assert left(FIFO(3), "abcad") == "bcd"
    assert left(MRU(3), "abcad") == "bcd"
    assert left(LIP(3), "abcad") == "abd"
    assert left(LFU(3), "aabbcd") == "abd"
    assert left(LFU(3, window=3), "aabbbcd") == "bcd"
    (once := LFU(2)).request("a", 1)
    assert [once.insert(key, 1) for key in "abc"] == [[], [], ["b"]], "what nobody asked for was used less than once"
    assert left(CLOCK(3), "abcad") == "acd"
    assert left(SIEVE(3), "abcad") == "acd"
    assert left(S3FIFO(3), "aabcd") == "bcd"  # one more use is not enough to leave the small queue
    assert left(S3FIFO(3), "aaabcd") == "acd"  # two are
    assert left(S3FIFO(4), "abcdeafgh") == "afgh"  # a was in the ghost, so it came back into the main queue
    assert left(TinyLFU(3), "aabbccd") == "abc"
    assert left(TinyLFU(3), "abcadd") == "acd"
    assert left(Pinned(3), "abcd") == "abc"
    assert left(Pinned(3, names="bd"), "abcd") == "bd"
    assert left(HashMap(), "abcd") == "abcd"
    assert left(NoCache(), "abcd") == ""


@pytest.mark.parametrize("capacity", [2, 5, 12, 30])
def test_s3fifo_is_the_algorithm_of_its_paper(capacity):
    """Algorithm 1 of Yang et al. for objects of size 1, on plain lists, oldest first."""
    keys = np.random.default_rng(capacity).geometric(1 / capacity, 3000)
    small, main, ghost, uses, hits = [], [], [], {}, []
    for key in keys:
        hits.append(key in small or key in main)
        if hits[-1]:
            uses[key] = min(uses[key] + 1, 3)
            continue
        while len(small) + len(main) >= capacity:
            if small and (not main or len(small) >= 0.1 * capacity):
                oldest = small.pop(0)
                (main if uses[oldest] > 1 else ghost).append(oldest)
                ghost = ghost[-int(0.9 * capacity) :]
            else:
                oldest = main.pop(0)
                if uses[oldest] > 0:
                    uses[oldest] -= 1
                    main.append(oldest)
        uses[key] = 0
        (main if key in ghost else small).append(key)
        ghost = [old for old in ghost if old != key]
    policy = S3FIFO(capacity)
    for key, hit in zip(keys, hits, strict=True):
        assert policy.request(f"k{key}", 1) == hit
        if not hit:
            policy.insert(f"k{key}", 1)
    assert set(policy) == {f"k{key}" for key in small + main}


@pytest.mark.parametrize("seed", range(20))
def test_tinylfu_admits_what_was_asked_for_more_often_than_each_that_leaves(seed):
    """Its definition on a list, oldest first; counts are halved after ten requests for each key."""
    generator, capacity = np.random.default_rng(seed), 10 + seed
    keys, sizes = (generator.geometric(0.2, 300) % 13).tolist(), generator.integers(1, 10, 13).tolist()
    policy, held, counts, since = TinyLFU(capacity), [], {}, 0
    for key in keys:
        counts[key], since = counts.get(key, 0) + 1, since + 1
        if since == 10 * len(counts):
            counts, since = {each: count // 2 for each, count in counts.items()}, 0
        assert policy.request(f"k{key}", sizes[key]) == (key in held)
        if key in held:
            held = [*(other for other in held if other != key), key]
            continue
        stays = held
        while stays and sum(sizes[other] for other in stays) + sizes[key] > capacity:
            stays = stays[1:]
        leaves = held[: len(held) - len(stays)]
        if sizes[key] <= capacity and all(counts[other] < counts[key] for other in leaves):
            held = [*stays, key]
        policy.insert(f"k{key}", sizes[key])
        assert list(policy) == [f"k{key}" for key in held]


def as_next_use_is_defined(keys, sizes, capacity):
    """On a list, in the order of the last uses: the gap predicted for each object, and what waits longest. How often an object
    was refused."""
    policy, held, last, gaps, typical, refused = NextUse(capacity), [], {}, {}, None, 0
    for now, key in enumerate(keys, 1):
        since = now - last[key] if key in last else None
        before = gaps.get(key)
        gaps[key] = typical if since is None else since if before is None else (before + since) / 2
        if since is not None:
            typical = since if typical is None else typical + (since - typical) / 16
        last[key] = now
        assert policy.request(f"k{key}", sizes[key]) == (key in held)
        if key in held:
            held = [*(other for other in held if other != key), key]
            continue
        left, own = list(held), typical if gaps[key] is None else gaps[key]
        while sum(sizes[other] for other in left) + sizes[key] > capacity and left:
            absent = now - last[left[0]]
            late = gaps[left[0]] is None or absent > NextUse.OVERDUE * gaps[left[0]]
            waits = {other: max(last[other] + gaps[other] - now, 0) for other in left if gaps[other] is not None}
            farthest = max(waits, key=waits.get, default=None)
            if late and absent > waits.get(farthest, -1):
                farthest, waits[left[0]] = left[0], absent
            if own is not None and waits.get(farthest, -1) <= own:
                left, refused = None, refused + 1
                break
            left.remove(farthest)
        if left is not None and sizes[key] <= capacity:
            held = [*left, key]
        policy.insert(f"k{key}", sizes[key])
        assert {int(name[1:]) for name in policy} == set(held)
    return refused


@pytest.mark.parametrize("capacity", [3, 10, 30])
def test_next_use_evicts_the_farthest_and_only_for_what_is_needed_sooner(capacity):
    generator = np.random.default_rng(capacity)
    keys, sizes = generator.geometric(0.1, 2000) % 13, generator.integers(0, 10, 500).tolist()
    keys[::5] = range(13, 413)  # what nobody has seen is expected back after the typical gap
    assert as_next_use_is_defined(keys.tolist(), sizes, capacity) > 20


def test_next_use_in_short_traces_where_waits_are_equal():
    generator = np.random.default_rng(0)
    for capacity in (1, 2, 3) * 150:
        as_next_use_is_defined(generator.integers(0, 5, 16).tolist(), [1] * 5, capacity)
    assert [NextUse(2).insert(key, 1) for key in "ab"] == [[], []]
    (unasked := NextUse(2)).insert("a", 1)
    assert [unasked.insert(key, 1) for key in "bc"] == [[], ["a"]]


@settings(max_examples=200, deadline=None)
@given(keys=accesses, sizes=size_table, capacity=st.integers(1, 30), circles=st.integers(0, 12))
@example(keys=[7, 8, 9, 11, 2, 9, 6, 5, 6, 3, 10, 7, 7, 8], sizes=[1] * 13, capacity=8, circles=0)  # a lead of a byte less
def test_cyclic_aware_keeps_what_the_better_of_next_use_and_lru_keeps(keys, sizes, capacity, circles):
    def asked(policy, key, size):
        hit = policy.request(key, size)
        return hit, [] if hit else policy.insert(key, size)

    policy, followed, other, lead, held, switched = CyclicAware(capacity), NextUse(capacity), LRU(capacity), 0, set(), False
    for number in [*keys, *list(range(circles)) * 6, *keys, *keys[::-1]]:
        key, size, before = f"k{number}", sizes[number], policy.resident_bytes
        better, worse = asked(other, key, size)[0], asked(followed, key, size)[0]
        lead = max(lead + size * (better - worse), -(capacity // 4))
        if better > worse and lead >= capacity // 4:
            followed, other, lead, switched = other, followed, -(capacity // 4), True
        hit, evicted = asked(policy, key, size)
        assert hit == (key in held) and (evicted is not None) == (hit or key in followed)
        if evicted:
            assert not any(name in followed for name in evicted)
            assert before + size - sum(sizes[int(name[1:])] for name in evicted[:-1]) > capacity  # and none in vain
        held = held - set(evicted or ()) | ({key} if evicted is not None else set())
        assert set(policy) == held and (switched or held == set(followed))


def test_cyclic_aware_follows_lru_through_phases_and_next_use_through_scans():
    generator = np.random.default_rng(0)
    phases = [f"k{key}" for _ in range(20) for key in generator.permutation(30)[:8][generator.integers(0, 8, 300)]]
    for keys, better, worse in ((phases, LRU, NextUse), ([f"k{n % 20}" for n in range(1000)], NextUse, LRU)):
        rates = [kit.replay([(key, 1) for key in keys], make(10)).hit_rate for make in (better, CyclicAware, worse)]
        assert rates[0] - 0.01 <= rates[1] and rates[2] < rates[0] - 0.03


@pytest.mark.parametrize("make", POLICIES, ids=name_of)
def test_what_a_policy_remembers_depends_on_objects_and_not_on_accesses(make):
    """LFU's heap once had one entry more for each return of an evicted object: 7.8 us an access, and growing."""
    policy = make(3)
    for number in (10 * np.random.default_rng(0).random(4000) ** 2).astype(int).tolist():
        if not policy.request(f"k{number}", 1):
            policy.insert(f"k{number}", 1)
    assert all(len(part) < 200 for part in vars(policy).values() if hasattr(part, "__len__"))


def test_lfu_window_in_the_unit_of_a_clock():
    now = 0.0
    policy = LFU(2, window=10, clock=lambda: now)
    for key in "aaab":
        now += 1.0
        if not policy.request(key, 1):
            policy.insert(key, 1)
    now = 30.0  # the uses of a are forgotten, then b is used once
    assert policy.request("b", 1)
    policy.request("c", 1)
    assert policy.insert("c", 1) == ["a"]


def test_arc_prefers_what_was_used_twice():
    policy = ARC(4)
    for key in "abab" + "cdefghij":
        if not policy.request(key, 1):
            policy.insert(key, 1)
    assert "a" in policy and "b" in policy


@pytest.mark.parametrize("capacity", [0, "0", -1, "4 gigs", None, True, 0.2])
def test_a_capacity_that_is_none(capacity):
    with pytest.raises(CacheError, match="capacity"):
        LRU(capacity)


def test_min_without_its_future():
    with pytest.raises(CacheError, match="future"):
        MIN(3).request("a", 1)
    policy = MIN(3, future=[("a", 1), ("b", 1)])
    policy.request("a", 1)
    with pytest.raises(CacheError, match="access 1 is 'c'"):
        policy.request("c", 1)
    policy = MIN(3, future=[("a", 1)])
    policy.request("a", 1)
    with pytest.raises(CacheError, match="access 1 is 'a'"):
        policy.request("a", 1)


def test_lfu_window_must_remember_something():
    with pytest.raises(CacheError, match="window"):
        LFU(3, window=0)


def test_replay_is_deterministic_and_leaves_the_policy_alone():
    policy, trace = Random(10, seed=3), zipf(50, 2000)
    first = kit.replay(trace, policy)
    assert kit.replay(trace, policy) == first and len(policy) == 0
    assert kit.replay(trace, Random(10, seed=4)) != first


def test_repr_tells_how_it_was_made():
    assert repr(LRU("4 GiB")) == "LRU('4 GiB')" and repr(MIN(3, bypass=False)) == "MIN(3, bypass=False)"


def test_requests_of_one_size_count_objects():
    trace = Requests(["a", "b", "a"], [5, 7, 5], [0, 0, 1])
    assert trace.working_set == 12 and trace.counted().working_set == 2 and trace[1:].keys == ["b", "a"]


def test_every_policy_is_a_name_of_the_kit():
    for name, policy in (cache.POLICIES | cache.UNLIMITED).items():
        assert getattr(kit, name) is policy and name in kit.__all__ and policy.__doc__
    assert kit.HashMap is kit.Unbounded
