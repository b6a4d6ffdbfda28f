"""What explains report 001? Each hypothesis is one trait of the cache, added to an LRU of its limit, and run.

A hypothesis holds when it contradicts nothing that the report saw, and some of that is not seen without the trait.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd

import kit
from kit.cache import faults
from kit.cache.store import WeightCache


@dataclass(frozen=True)
class Hypothesis:
    """A cache with one trait, made of its policy by ``make``."""

    text: str
    make: Callable = WeightCache
    claim: str = ""
    policy: Callable = kit.LRU
    without: str = "limit"  # the same without the trait: the plain LRU; for the LRU's own limit, a cache that has none
    pressed: float = 1.0  # of the limit: what the machine leaves the cache during the preload
    asks: bool = True  # whether inference reaches the model at all


HYPOTHESES = {
    "none": Hypothesis("no limit at all", policy=lambda limit: kit.HashMap(), without="none"),
    "limit": Hypothesis("evicted by the cache's own limit", claim="hypothesis-eviction", without="none"),
    "pressure": Hypothesis("evicted as the machine takes half of it back", pressed=0.5),
    "instances": Hypothesis("several instances", faults.SplitInstances, "hypothesis-instances"),
    "stats": Hypothesis("statistics that reset", faults.ResettingStats, "hypothesis-stats"),
    "threads": Hypothesis("thread-local state", faults.ThreadLocal, "hypothesis-thread-local"),
    "two levels": Hypothesis("two levels (report 000)", faults.TwoLevels),
    "harness": Hypothesis("a client that never reaches the model", asks=False),
}


def observe(hypothesis: Hypothesis, tensors: dict[str, int], limit: int, first: str, load=id, seed: int = 0) -> SimpleNamespace:
    """Preload in one random order, then ask for ``first`` in another thread, which serves the request. Each tensor holds a
    shared reference to the cache and asks it, as the report describes it. ``load(name)``: the values; without it a number
    stands for them."""
    cache = hypothesis.make(hypothesis.policy(limit))
    handles = [partial(cache.get, name, nbytes, partial(load, name)) for name, nbytes in tensors.items()]
    owner = (cache,)
    references = sys.getrefcount(owner[0]) - 1  # less the argument of this call
    for place in np.random.default_rng(seed).permutation(len(handles)):
        handles[place]()
    if hypothesis.pressed < 1:
        cache.resize(int(hypothesis.pressed * limit))
    seen = SimpleNamespace(hits=cache.stats.hits, misses=cache.stats.misses, references=references, missed_first=False)
    seen.resident_bytes = getattr(cache, "held_bytes", cache.stats.resident_bytes)
    answered = getattr(cache, "instance", cache)
    if hasattr(cache, "switch"):
        cache.switch()

    def load_first():
        seen.missed_first = True
        return load(first)

    def first_access():
        if hypothesis.asks:
            cache.get(first, tensors[first], load_first)
        seen.misses_after = cache.stats.misses
        seen.instances = 1 + (getattr(cache, "instance", cache) is not answered)

    ThreadPoolExecutor(1).submit(first_access).result()
    return seen


def evidence(tensors: dict[str, int], limit: int, first: str) -> dict[str, Callable[[SimpleNamespace], bool]]:
    """What report 001 saw, for so many tensors and this limit, as tests of what was observed."""
    count, largest = len(tensors), max(size for size in tensors.values() if size <= limit)
    return {
        f"0 hits, {count} misses": lambda o: (o.hits, o.misses) == (0, count),
        "memory: a full cache": lambda o: limit - largest <= o.resident_bytes <= limit,
        f"{first} misses": lambda o: o.missed_first,
        f"misses go on to {count + 1}": lambda o: o.misses_after == count + 1,
        f"1 instance, {count + 2} references": lambda o: (o.instances, o.references) == (1, count + 2),
    }


def tried(tensors: dict[str, int], limit: int, first: str, load=id, seeds=range(5)) -> pd.DataFrame:
    """Hypothesis by evidence: the share of random preload orders in which it shows what the report saw; and how many of
    these, shown in most orders, are not shown without its trait."""
    tests = evidence(tensors, limit, first)
    shares = {
        key: [np.mean([test(o) for o in seen]) for test in tests.values()]
        for key, hypothesis in HYPOTHESES.items()
        if (seen := [observe(hypothesis, tensors, limit, first, load, seed) for seed in seeds])
    }
    table = pd.DataFrame(shares, index=list(tests)).T
    shown = table > 0.5
    needed = [int((shown.loc[key] & ~shown.loc[HYPOTHESES[key].without]).sum()) for key in table.index]
    return table.assign(**{"only it explains": needed})


def contradicted(table: pd.DataFrame, key: str) -> list[str]:
    """The evidence that a hypothesis does not show in most preload orders."""
    return [what for what, share in table.drop(columns="only it explains").loc[key].items() if share <= 0.5]


def worded(table: pd.DataFrame) -> pd.DataFrame:
    """The same with the hypotheses in words."""
    return table.rename(index={key: hypothesis.text for key, hypothesis in HYPOTHESES.items()}).rename_axis("trait of an LRU")


def strong_count(tensors: dict[str, int], limit: int) -> int:
    """References to one shared cache: a handle in each tensor, the owner, one local variable."""
    return observe(HYPOTHESES["limit"], tensors, limit, next(iter(tensors))).references
