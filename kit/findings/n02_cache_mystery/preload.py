"""The cache mystery of report 001 at true scale: what a 4 GiB LRU holds after 30.44 GiB went through it."""

import sys
import threading
from dataclasses import dataclass

import numpy as np
import pandas as pd

import kit
from kit.cache import faults
from kit.cache.store import WeightCache
from kit.cache.traces import decode_order, repeated
from kit.lab import figures
from kit.synthetic.geometry import GEOMETRIES
from kit.units import format_bytes

MIB, GIB = 2**20, 2**30
LIMIT = 4 * GIB  # report 001: "LRU dequantization cache with 4GB memory"
REPORTED_MB = 3920  # its "memory usage" after the preload; 2^20 bytes each, as 4096 of them are its limit
WATCHED = ("token_embd.weight", "blk.0.attn_norm.weight")  # what option 1 of report 003 looks for


def model_tensors() -> dict[str, int]:
    """The 362 tensors of granite-3.3-8b with their f32 bytes, by geometry."""
    return dict(decode_order(GEOMETRIES["granite-3.3-8b"]))


@dataclass(frozen=True)
class Preloads:
    """Outcomes of preloading in random orders: one entry an order. ``order`` holds indices into ``names``."""

    names: list[str]
    sizes: np.ndarray
    orders: np.ndarray
    survivors: np.ndarray
    resident_bytes: np.ndarray
    watched: dict[str, np.ndarray]

    @property
    def evictions(self) -> np.ndarray:
        """Every tensor came in once; what did not survive was evicted."""
        return len(self.names) - self.survivors


def preload_orders(tensors: dict[str, int], limit: int = LIMIT, draws: int = 2000, seed: int = 0) -> Preloads:
    """A preload that walks a hash map, ``draws`` times: tensors arrive once each, in a uniformly random order.

    An LRU then holds exactly the longest tail of the arrivals that fits: an object is evicted when it and all that
    came after it exceed the limit, and that sum only grows. So no cache need be run; ``check`` runs some.
    """
    names, sizes = list(tensors), np.array(list(tensors.values()), dtype=np.int64)
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(len(names)), (draws, 1)), axis=1)
    tails = np.cumsum(sizes[orders][:, ::-1], axis=1)
    survivors = (tails <= limit).sum(axis=1)
    resident = np.where(survivors > 0, tails[np.arange(draws), np.maximum(survivors, 1) - 1], 0)
    age = len(names) - 1 - np.argsort(orders, axis=1)  # arrivals after each tensor
    watched = {name: age[:, names.index(name)] < survivors for name in WATCHED if name in tensors}
    return Preloads(names, sizes, orders, survivors, resident, watched)


def check(preloads: Preloads, limit: int = LIMIT, runs: int = 20) -> pd.DataFrame:
    """The same orders through the real policy: one row a run, closed form beside replay."""
    rows = []
    for draw in range(min(runs, len(preloads.orders))):
        pairs = [(preloads.names[i], int(preloads.sizes[i])) for i in preloads.orders[draw]]
        stats = kit.replay(pairs, kit.LRU(limit))
        rows.append(
            (preloads.survivors[draw], stats.entries, preloads.resident_bytes[draw], stats.resident_bytes,
             stats.hits, stats.misses, stats.evictions)
        )  # fmt: skip
    names = "survivors,replayed survivors,resident,replayed resident,hits,misses,evictions"
    return pd.DataFrame(rows, columns=names.split(","))


def predict(tensors: dict[str, int], limit: int = LIMIT) -> pd.DataFrame:
    """What arithmetic says before anything runs."""
    total, count = sum(tensors.values()), len(tensors)
    rows = {
        "hits of the preload": "0",
        "misses of the preload": f"{count}",
        "weights that fit": f"{limit / total:.1%}",
        "bytes evicted, at least": format_bytes(total - limit),
        "memory at the end": f"{format_bytes(limit - max(tensors.values()))} to {format_bytes(limit)}",
        "hits of each forward pass, LRU": "0",
        "bytes hit of each forward pass, at best": f"{limit / total:.1%}",
    }
    return pd.DataFrame({"predicted": rows})


def preload_table(preloads: Preloads) -> pd.DataFrame:
    """The report's numbers beside what plain eviction gives: median, the middle 95 %, where the report's value falls."""
    resident = preloads.resident_bytes / MIB
    count = len(preloads.names)
    rows = {
        "memory in use at the end, MiB": (REPORTED_MB, resident),
        "hits of the preload": (0, np.zeros(1)),
        "misses of the preload": (362, np.full(1, count)),
        "misses after the first access of inference": (363, count + ~preloads.watched[WATCHED[0]]),
        "references to the one cache": (
            364,
            np.full(1, strong_count(dict(zip(preloads.names, preloads.sizes, strict=True)))),
        ),
        "evictions": (np.nan, preloads.evictions),
        "tensors left in the cache": (np.nan, preloads.survivors),
    }
    table = [
        (what, reported, np.median(values), *np.percentile(values, (2.5, 97.5)), 100 * np.mean(values == reported))
        for what, (reported, values) in rows.items()
    ]
    names = ["", "report", "median", "2.5 %", "97.5 %", "orders that give exactly the report's, %"]
    return pd.DataFrame(table, columns=names).set_index("")


def survival(preloads: Preloads) -> pd.DataFrame:
    """How often the tensors that report 003 looks for are still there, over all orders."""
    rows = {name: 100 * kept.mean() for name, kept in preloads.watched.items()}
    return pd.DataFrame({"survives the preload, % of orders": rows})


def preload_figure(preloads: Preloads):
    """Memory at the end, and how many tensors are left, over all orders."""
    figure, (memory, left) = figures.new(1, 2, height=3.6)
    memory.hist(preloads.resident_bytes / MIB, bins=60, color=figures.SKY)
    figures.bound(memory, LIMIT / MIB, "limit: 4096 MiB", vertical=True)
    memory.axvline(REPORTED_MB, color=figures.VERMILION, label="report: 3920 MB")
    memory.set(xlabel="MiB in the cache after the preload", ylabel="orders", title="What is left fills the limit")
    memory.set_xlim(left=3200)
    memory.legend(loc="upper left")
    left.hist(
        preloads.survivors, bins=np.arange(preloads.survivors.min(), preloads.survivors.max() + 2), color=figures.SKY
    )
    left.set(xlabel=f"of {len(preloads.names)} tensors, left after the preload", ylabel="orders")
    left.set_title("Most tensors are gone")
    return figure


# --- the hypotheses, each alone, run live ---------------------------------------------------------------------------


def _other_thread(function):
    worker = threading.Thread(target=function)
    worker.start()
    worker.join()


def _here(function):
    function()


@dataclass(frozen=True)
class Hypothesis:
    """One explanation, as a cache that has this trait and no other: ``make()`` and how inference reaches it."""

    claim: str
    text: str
    make: object
    switch: str = ""  # method to call between preload and inference
    serve: object = _here
    asks: bool = True  # whether inference reaches the model at all


RAM = 16 * GIB  # the reports' machine
HYPOTHESES = (
    Hypothesis("", "plain eviction: 30.44 GiB through a 4 GiB LRU", lambda: WeightCache(kit.LRU(LIMIT))),
    Hypothesis(
        "hypothesis-eviction", "eviction under memory pressure (16 GB of RAM)", lambda: WeightCache(kit.LRU(RAM))
    ),
    Hypothesis(
        "hypothesis-instances", "several instances", lambda: faults.SplitInstances(kit.HashMap()), switch="switch"
    ),
    Hypothesis("hypothesis-stats", "statistics that reset", lambda: faults.ResettingStats(kit.HashMap())),
    Hypothesis(
        "hypothesis-thread-local", "thread-local state", lambda: faults.ThreadLocal(kit.HashMap()), serve=_other_thread
    ),
    Hypothesis("", "two levels (report 000)", lambda: faults.TwoLevels(kit.LRU(LIMIT))),
    Hypothesis("", "a harness that measures nothing", lambda: WeightCache(kit.HashMap()), asks=False),
)


class _LazyTensor:
    """A tensor as the report describes it: it holds a shared reference to the cache and asks it."""

    def __init__(self, name: str, nbytes: int, cache):
        self.name, self.nbytes, self.cache = name, nbytes, cache

    def get(self):
        return self.cache.get(self.name, self.nbytes, object)


@dataclass(frozen=True)
class Observed:
    """What one hypothesis shows in a preload of all tensors and the first access of inference."""

    hits: int
    misses: int
    resident_mib: float
    misses_after: int
    missed_embedding: bool
    references: int
    instances: int


def observe(hypothesis: Hypothesis, tensors: dict[str, int], seed: int = 0) -> Observed:
    """Preload in one random order and then ask for token_embd, at true sizes (the values themselves are empty)."""
    cache = hypothesis.make()
    handles = [_LazyTensor(name, nbytes, cache) for name, nbytes in tensors.items()]
    owner = (cache,)
    references = sys.getrefcount(owner[0]) - 1  # less the argument of this call
    draw = np.random.default_rng(seed)
    for place in draw.permutation(len(handles)):
        handles[place].get()
    before = cache.stats
    resident = getattr(cache, "held_bytes", before.resident_bytes)
    answered = getattr(cache, "instance", cache)
    if hypothesis.switch:
        getattr(cache, hypothesis.switch)()
    loaded, seen = [], []

    def first_access():
        if hypothesis.asks:
            cache.get(WATCHED[0], tensors[WATCHED[0]], lambda: loaded.append(1) or object())
        seen.extend([cache.stats.misses, 1 + (getattr(cache, "instance", cache) is not answered)])

    hypothesis.serve(first_access)
    return Observed(before.hits, before.misses, resident / MIB, seen[0], bool(loaded), references, seen[1])


EVIDENCE = {  # what report 001 saw -> whether a hypothesis shows the same
    "0 hits, 362 misses": lambda o: (o.hits, o.misses) == (0, 362),
    "3920 MB in use": lambda o: REPORTED_MB * 0.9 <= o.resident_mib <= LIMIT / MIB,
    "token_embd misses": lambda o: o.missed_embedding,
    "misses go on to 363": lambda o: o.misses_after == 363,
    "one instance, 364 references": lambda o: (o.instances, o.references) == (1, 364),
}


def hypotheses_table(tensors: dict[str, int], seeds=range(5)) -> pd.DataFrame:
    """Evidence by hypothesis: the share of random preload orders in which it shows what the report saw."""
    rows = {}
    for hypothesis in HYPOTHESES:
        seen = [observe(hypothesis, tensors, seed) for seed in seeds]
        rows[hypothesis.text] = {what: np.mean([test(o) for o in seen]) for what, test in EVIDENCE.items()}
    table = pd.DataFrame(rows).T
    table["explains all"] = (table > 0.5).all(axis=1)
    return table


def strong_count(tensors: dict[str, int]) -> int:
    """References to one shared cache: a handle in each tensor, the owner, one local variable."""
    return observe(HYPOTHESES[0], tensors).references


def passes_table(tensors: dict[str, int], limit: int = LIMIT, passes: int = 3) -> pd.DataFrame:
    """What inference finds after the preload: hits of each forward pass through LRU, pinned and HashMap, by replay."""
    scan = list(tensors.items())
    rows = {}
    for policy in (kit.LRU(limit), kit.Pinned(limit), kit.HashMap()):
        hits = [kit.replay(repeated(scan, count), policy).hits for count in range(1, passes + 2)]
        rows[repr(policy)] = np.diff(hits)
    return pd.DataFrame(rows, index=[f"hits of pass {count}" for count in range(1, passes + 1)]).T


def summary(preloads: Preloads, table: pd.DataFrame) -> str:
    """The finding in two sentences, from what was measured."""
    fits = table.index[table["explains all"]].tolist()
    lost = 1 - preloads.watched[WATCHED[0]].mean()
    return (
        f"What explains all the evidence: {', '.join(fits) or 'nothing tried here'}. "
        f"After the preload {np.median(preloads.survivors):.0f} of {len(preloads.names)} tensors are left, and the first "
        f"access of inference misses in {lost:.0%} of the orders."
    )
