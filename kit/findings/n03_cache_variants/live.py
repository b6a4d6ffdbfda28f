"""Ways to hold weights, live on one file: every policy, rows of matrices, the three fixes of report 003, the five fields."""

import time

import numpy as np
import pandas as pd
import torch

import kit
from kit.cache import POLICIES
from kit.cache.policies.pinned import RowPlan
from kit.cache.store import WeightCache
from kit.cache.traces import Requests, repeated, requests
from kit.errors import ModelError
from kit.findings.live import Live, decode, fastest, one_pass, prefetching
from kit.findings.n03_cache_variants.replays import warm_rates
from kit.lab import figures, tables


def every_policy(file, order: Requests, fraction: float, passes: int) -> list[Live]:
    """One live decode with each policy at this capacity, and with none and all. The run without a cache comes first: its
    accesses are the future that MIN needs."""
    capacity, runs = order.share(fraction), [decode(file, kit.NoCache(), "NoCache", passes)]
    for name, make in POLICIES.items():
        policy = make(capacity, future=requests(runs[0].accesses)) if name == "MIN" else make(capacity)
        runs.append(decode(file, policy, name, passes))
    return [*runs, decode(file, kit.HashMap(), "HashMap", passes)]


def points(runs: list[Live], order: Requests) -> pd.DataFrame:
    """Warm byte hit rate of each policy, live, and by a replay of the names and sizes alone, no weights at hand."""
    scan = repeated(list(zip(order.keys, order.sizes, strict=True)), len(runs[0].seconds))
    rows = [(run.label, run.warm_byte_hit_rate, warm_rates(scan, run.policy, 1)[1]) for run in runs if run.label in POLICIES]
    return tables.frame(rows, "policy", "live", "replayed")


def by_file(files: dict, fraction: float, passes: int) -> pd.DataFrame:
    """Warm byte hit rates of some policies on several files: live, and by the sizes alone. They depend on the sizes of the
    tensors and not on the weights; a file that the kit cannot run is named and left out."""
    columns = {}
    for label, file in files.items():
        try:
            order = one_pass(file)
            capacity, names = order.share(fraction), ("LRU", "MRU", "CyclicAware", "Pinned")
            runs = [decode(file, POLICIES[name](capacity), name, passes) for name in names]
            table = points(runs, order)
            columns[f"{label}, live"], columns[f"{label}, sizes alone"] = table["live"], table["replayed"]
        except ModelError as error:
            print(f"{label} is not run: {error}")
    return pd.DataFrame(columns).rename_axis("policy")


def held_in_part(file, order: Requests, fraction: float) -> pd.DataFrame:
    """Every matrix through a cache that holds some of its rows: is W x, made of parts, the same, and how much is hit? Each part
    is a cache entry of its own; the products of the parts are stacked, nothing else is copied."""
    asked, rows = order.objects, []  # of stacks it names single experts, which no tensor is
    matrices = {name: file.tensors[name] for name in asked if name in file.tensors and len(file.tensors[name].shape) == 2}
    shapes = {name: (info.shape[0], 4 * info.shape[1]) for name, info in matrices.items()}
    total = sum(4 * info.elements for info in matrices.values())
    for spread in (False, True):
        plan = RowPlan(max(1, round(fraction * total)), shapes, spread)
        store, errors = WeightCache(plan.policy()), []
        for name, info in [*matrices.items()] * 2:  # the first pass fills the cache, the second hits

            def load(start, stop, name=name, qtype=info.qtype):
                return kit.dequantize(file.blocks(name)[start:stop], qtype)

            x, whole = torch.ones(info.shape[1]), kit.dequantize(file.blocks(name), info.qtype)
            right, y = whole @ x, torch.cat([part @ x for _, part in plan.get(store, name, load)])
            errors.append(float((y - right).abs().max() / right.abs().max()))
        held, hits = store.stats.resident_bytes / total, store.stats.bytes_hit / total
        rows.append(("the same share of each" if spread else "in order", held, hits, max(errors)))
    return tables.frame(rows, "rows", "held", "byte hit rate, warm", "largest relative difference")


# --- the three fixes of report 003 ----------------------------------------------------------------------------------


def fixes(file, order: Requests, share: float, passes: int) -> pd.DataFrame:
    """Preload, then decode, through the cache of report 001 and each fix, at ``share`` of the model as its limit. "verified":
    how many of two tensors option 1 finds after the preload. Misses are a token, after the preload."""
    limit, rows = order.share(share), []
    ways = {"as reported: LRU": kit.LRU(limit), "1 verify: LRU, and look": kit.LRU(limit), "2 pinned": kit.Pinned(limit)}
    for name, policy in (ways | {"3 HashMap": kit.HashMap()}).items():
        found = []

        def preload(weights, found=found):
            weights.preload(order.objects)
            found.append(sum(key in weights.store.policy for key in (order.keys[0], order.keys[-1])))

        run = decode(file, policy, name, passes, prepare=preload)
        misses, resident = (run.accesses["outcome"] != "hit").sum() / passes, run.stats.resident_bytes
        speed, uneven = 1 / float(np.median(run.seconds)), max(run.seconds) / min(run.seconds)
        rows.append((name, *found, misses, resident / limit, resident / 2**20, speed, uneven))
    names = "verified, of 2", "misses a token", "memory / limit", "resident MiB", "tok/s", "slowest / fastest token"
    return tables.frame(rows, "way", *names)


# --- the five fields of report 002 ----------------------------------------------------------------------------------


def fields(file, order: Requests, share: float, passes: int) -> pd.DataFrame:
    """The configuration of report 002 at ``share`` of the model, then with one field changed at a time, live."""
    limit = order.share(share)
    changes = {  # field -> (policy, arguments of Prefetcher)
        "as reported": (kit.LRU(limit), None),
        "max_memory_bytes x 2": (kit.LRU(2 * limit), None),
        "max_memory_bytes = the model": (kit.LRU(order.working_set), None),
        "prefetch_ahead = 1": (kit.LRU(limit), {"asynchronous": False}),
        "prefetch_ahead = 1, enable_async_prefetch": (kit.LRU(limit), {}),
        "use_frequency_priority": (kit.LFU(limit, window=60.0, clock=time.monotonic), None),
        "use_frequency_priority, frequency_window = 0.1 s": (kit.LFU(limit, window=0.1, clock=time.monotonic), None),
    }
    rows = []
    for label, (policy, ahead) in changes.items():
        run = decode(file, policy, label, passes, prepare=prefetching(order, ahead))
        rows.append((label, run.warm_byte_hit_rate, run.stats.prefetched, run.stats.misses, run.tokens_per_second,
                     run.stats.peak_bytes / 2**20))  # fmt: skip
    table = tables.frame(rows, "field", "byte hit rate", "prefetched", "misses", "tok/s", "peak MiB")
    loaded = table[["byte hit rate", "prefetched", "misses"]]
    table["effect on what is loaded"] = np.where((loaded != loaded.iloc[0]).any(axis=1), "yes", "none")
    table.iloc[0, -1] = "-"
    return table


def speed_figure(runs: list[Live], machine, working_set: int):
    """Bars: tokens a second by policy, fastest last, with the memory held; the machine's bound for its hit rate dashed."""
    runs = sorted(runs, key=lambda run: run.warm_byte_hit_rate)
    figure, axes = figures.new(height=5.2)
    places = np.arange(len(runs))
    bounds = fastest(machine, working_set, [run.warm_byte_hit_rate for run in runs])
    axes.barh([run.label for run in runs], [run.tokens_per_second for run in runs], color=figures.BLUE, label="measured")
    axes.vlines(bounds, places - 0.45, places + 0.45, **figures.DASHED, label="bound of this machine")
    for place, run, bound in zip(places, runs, bounds, strict=True):
        text = f" {run.stats.resident_bytes / 2**20:,.0f} MiB, {100 * run.warm_byte_hit_rate:.0f}% hit"
        axes.annotate(text, (bound, place), va="center", fontsize=8.5)
    axes.set(xlabel="tokens a second", title="What memory buys depends on the policy")
    axes.set_xlim(right=1.35 * bounds.max())
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    return figure
