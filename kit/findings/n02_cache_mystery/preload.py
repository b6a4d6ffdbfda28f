"""The cache mystery of report 001 at true scale: what a 4 GiB LRU holds after 30.44 GiB went through it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

import kit
from kit.cache.traces import decode_order, repeated
from kit.findings import reported
from kit.lab import figures, tables
from kit.synthetic.geometry import GEOMETRIES
from kit.units import format_bytes

MIB, GIB = 2**20, 2**30
LIMIT = 4 * GIB  # report 001: "LRU dequantization cache with 4GB memory"
REPORTED_MB = 3920  # its "memory usage" after the preload: of 2^20 bytes, see unit_of_the_report
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
    """A preload that walks a hash map, ``draws`` times: tensors arrive once each, in a uniformly random order. An LRU then
    holds exactly the longest tail of the arrivals that fits: an object is evicted when it and all that came after it exceed the
    limit, and that sum only grows. So no cache need be run; ``check`` runs some."""
    names, sizes = list(tensors), np.array(list(tensors.values()), dtype=np.int64)
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(len(names)), (draws, 1)), axis=1)
    tails = np.cumsum(sizes[orders][:, ::-1], axis=1)
    survivors = (tails <= limit).sum(axis=1)
    resident = np.where(tails <= limit, tails, 0).max(axis=1)
    age = len(names) - 1 - np.argsort(orders, axis=1)  # arrivals after each tensor
    watched = {name: age[:, names.index(name)] < survivors for name in WATCHED if name in tensors}
    return Preloads(names, sizes, orders, survivors, resident, watched)


def check(preloads: Preloads, limit: int = LIMIT) -> pd.DataFrame:
    """The first 20 orders through the real policy: one row an order, closed form beside replay."""
    rows = []
    for order, survivors, resident in list(zip(preloads.orders, preloads.survivors, preloads.resident_bytes, strict=True))[:20]:
        pairs = [(preloads.names[i], int(preloads.sizes[i])) for i in order]
        stats = kit.replay(pairs, kit.LRU(limit))
        rows.append((survivors, stats.entries, resident, stats.resident_bytes, stats.hits, stats.misses, stats.evictions))
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


def preload_table(preloads: Preloads, references: int) -> pd.DataFrame:
    """The report's numbers beside what plain eviction gives: median, the middle 95%, how many orders round to the report's."""
    count = len(preloads.names)
    rows = {
        "memory at the end, MiB": (REPORTED_MB, preloads.resident_bytes / MIB),
        "hits of the preload": (0, np.zeros(1)),
        "misses of the preload": (362, np.full(1, count)),
        "misses after the first access": (363, count + ~preloads.watched[WATCHED[0]]),
        "references to the one cache": (364, np.full(1, references)),
        "evictions": (np.nan, preloads.evictions),
        "tensors left in the cache": (np.nan, preloads.survivors),
    }
    table = [
        (what, reported, np.median(values), *np.percentile(values, (2.5, 97.5)), 100 * np.mean(np.round(values) == reported))
        for what, (reported, values) in rows.items()
    ]
    table = tables.frame(table, "", "report", "median", "2.5%", "97.5%", "orders as reported, %")
    table.loc[table["report"].isna(), "orders as reported, %"] = np.nan
    return table


def unit_of_the_report(preloads: Preloads) -> pd.DataFrame:
    """Is the report's MB 2^20 or 10^6 bytes? The share of orders that end at or below 3920 of each."""
    ended = {"MiB, 2^20 bytes": preloads.resident_bytes / MIB, "MB, 10^6 bytes": preloads.resident_bytes / 1e6}
    rows = {unit: (*np.percentile(size, (2.5, 97.5)), 100 * np.mean(size <= REPORTED_MB)) for unit, size in ended.items()}
    return tables.frame(rows, "unit", "2.5%", "97.5%", f"orders that end at or below {REPORTED_MB}, %")


def survival(preloads: Preloads) -> pd.DataFrame:
    """How often the tensors that report 003 looks for are still there, over all orders."""
    rows = {name: 100 * kept.mean() for name, kept in preloads.watched.items()}
    return pd.DataFrame({"survives the preload, % of orders": rows})


def preload_figure(preloads: Preloads):
    """Memory at the end, and how many tensors are left, over all orders."""
    figure, (memory, left) = figures.new(1, 2, height=3.6)
    memory.hist(preloads.resident_bytes / MIB, bins=60, color=figures.SKY)
    figures.bound(memory, LIMIT / MIB, "limit: 4096 MiB", vertical=True)
    memory.axvline(REPORTED_MB, color=figures.VERMILION, label="report: 3920 MB, read as MiB")
    memory.set(xlabel="MiB in the cache after the preload", ylabel="orders", title="3920 MiB: an ordinary full cache")
    memory.set_xlim(left=3200)
    memory.legend(loc="upper left", fontsize=8.5)
    left.hist(preloads.survivors, bins=np.arange(preloads.survivors.min(), preloads.survivors.max() + 2), color=figures.SKY)
    left.set(xlabel=f"of {len(preloads.names)} tensors, left after the preload", ylabel="orders")
    left.set_title("Seven of eight tensors are gone")
    return figure


def passes_table(tensors: dict[str, int]) -> pd.DataFrame:
    """What inference finds after the preload: hits of each forward pass through LRU, pinned and HashMap, by replay."""
    policies, rows = {"LRU": kit.LRU(LIMIT), "Pinned": kit.Pinned(LIMIT), "HashMap, no limit": kit.HashMap()}, {}
    for name, policy in policies.items():
        rows[name] = np.diff([kit.replay(repeated(list(tensors.items()), count), policy).hits for count in range(1, 5)])
    return pd.DataFrame.from_dict(rows, "index", columns=[f"hits of pass {count}" for count in range(1, 4)])


def answer(preloads: Preloads, explains: list[str], slowest: float, fastest: float) -> str:
    """The finding in two sentences, from what was measured."""
    lost = 1 - preloads.watched[WATCHED[0]].mean()
    why = " and ".join(explains) or "nothing tried"
    return (
        f"The cache works and is too small: weights are {why}, {np.median(preloads.survivors):.0f} of {len(preloads.names)} "
        f"tensors are left after the preload, and the first access of inference misses in {lost:.0%} of the orders. 45 to 1100 "
        f"tokens a second were not tokens of that model, which the bandwidth of its machine limits to "
        f"{1 / reported.least_seconds(reported.f32_bytes()):.1f} in float32; one possible cause is a client that counts the "
        f"tokens it asked for: it prints {slowest:.0f} to {fastest:,.0f} here, for errors."
    )
