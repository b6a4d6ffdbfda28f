"""Ways to hold weights: verdicts on reports 002 and 003, from what the two modules of cache variants measured."""

import numpy as np
import pandas as pd

import kit
from kit.cache.traces import Requests
from kit.claims import table as claims
from kit.findings.n03_cache_variants.live import paired
from kit.lab import peaks as devices
from kit.lab.measure import bootstrap_median
from kit.units import format_bytes


def judge_lookups(lab, table: pd.DataFrame) -> None:
    """cache-lookup-speedup: a weight ready and read once, hit against miss, for two dequantizers and a copying cache."""
    low, high = claims.get("cache-lookup-speedup").ratio
    for way in [name for name in table.index if name.startswith("miss")]:
        ratio = table.loc[way, "times a hit"]
        copied = ratio / table.loc["hit, copied each time (reports 002, 003)", "times a hit"]
        lab.record(
            "cache-lookup-speedup", quantity=f"{way} over a hit, ready and read once", unit="x",
            samples=table.loc[way, "samples"], lower=1.0, lower_source="a hit reads the weight too",
            tolerance=f"within the report's {low:g} to {high:g}",
            verdict="reproduced" if low <= ratio <= high else "not reproduced",
            reason=f"{ratio:.1f}x with views, {copied:.1f}x with a cache that copies on every hit: the factor is that of the "
            "dequantizer; a look-up alone touches no weight and proves nothing",
        )  # fmt: skip


def judge_limit(lab, trace: Requests) -> None:
    """lru-512mb: the report's default limit over a decode of the whole model."""
    limit = claims.get("lru-512mb").after
    stats = kit.replay(trace, kit.LRU(int(limit)))
    rate, share = stats.byte_hit_rate, min(1.0, limit / trace.working_set)
    uses = pd.Series(trace.keys).value_counts() / (max(trace.tokens) + 1)
    lab.record(
        "lru-512mb", quantity="byte hit rate of a 512 MiB LRU, granite-3.3-8b decoded", unit="", samples=[rate],
        lower=0.0, lower_source="no hit", upper=share,
        upper_source="capacity over working set, what a pinned set of that size hits",
        tolerance="at least half of the upper bound",
        verdict="reproduced" if rate >= share / 2 else "not reproduced",
        reason=f"{stats.hits} hits in {stats.gets:,} accesses: every weight is used {uses.min():g} times a token, so none is "
        f"hot: {format_bytes(trace.working_set)} pass through {format_bytes(limit)}",
    )  # fmt: skip


def judge_prefetch(lab, runs: pd.DataFrame, table: pd.DataFrame) -> None:
    """prefetch-ahead: the first pass with each kind of prefetch against none, and the warm passes beside their bound."""
    for label in table.index.drop("none"):
        for column, what in (("first", "first token"), ("warm", "later tokens")):
            ratios = paired(runs, label, column)
            low, high = bootstrap_median(ratios)
            better = low > 1
            why = "there is waiting to hide" if better else "slower" if high < 1 else "no gain beyond noise"
            lab.record(
                "prefetch-ahead", quantity=f"{what}: without over with prefetch, {label}", unit="x", samples=ratios.tolist(),
                upper=float(table.loc["none", "bound"] / table.loc[label, "bound"]),
                upper_source="loading and reading in a row over the larger of the two",
                tolerance="faster beyond the 95 % interval", verdict="reproduced in ratio" if better else "not reproduced",
                reason=f"{np.median(ratios):.2f}x ({low:.2f} to {high:.2f}): {why}; loads and products share cores and memory",
            )  # fmt: skip


def judge_frequency(lab, table: pd.DataFrame) -> None:
    """frequency-priority: LFU in a window against LRU, on a dense model and on a mixture of experts."""
    for kind in table.columns:
        rates = table[kind]
        gains = (rates.drop("LRU") - rates["LRU"]) * 100
        best = float(gains.max())
        lab.record(
            "frequency-priority", quantity=f"byte hit rate, frequency priority less LRU: {kind}", unit="points",
            samples=gains.tolist(), tolerance="at least 2 points, in the best window",
            verdict="reproduced in ratio" if best >= 2 else "not reproduced",
            reason=f"{best:+.1f} points in the best window, {gains.min():+.1f} in the worst"
            + ("; every weight is used equally often, so frequency orders nothing" if np.allclose(gains, 0) else ""),
        )  # fmt: skip


def judge_fixes(lab, table: pd.DataFrame, working_set: int) -> None:
    """fix-verify, fix-pinned, fix-hashmap: misses after the preload, and the promised 500 tok/s against the bandwidth."""
    device = devices.load().set_index("id").loc["apple-m4"]
    most = device["read_gbps"] * 1e9 / working_set
    held = {
        "fix-verify": ("1 verify: LRU, and look", "it looks and changes nothing"),
        "fix-pinned": ("2 pinned", "what fits is hit on every pass, what does not fit is missed on every pass"),
        "fix-hashmap": ("3 HashMap", f"all of it is held: {format_bytes(working_set)} for the report's model, "
                        f"{working_set / device['memory_bytes']:.1f} times that machine's memory"),
    }  # fmt: skip
    for claim, (way, what) in held.items():
        misses = float(table.loc[way, "misses a token"])
        before = table.loc["as reported: LRU", "misses a token"]
        lab.record(
            claim, quantity="misses a token after the preload", unit="misses", samples=[misses], lower=0,
            lower_source="all held", upper=before, upper_source="the cache as reported", tolerance="none: no misses",
            verdict="reproduced" if misses == 0 else "not reproduced",
            reason=f"{misses:g} against {before:g} before, with {table.loc[way, 'memory / limit']:.1f} times the limit: {what}",
        )  # fmt: skip
        goal = claims.get(claim).after
        lab.record(
            claim, quantity="most tokens a second of granite-3.3-8b in f32 at the reports' bandwidth", unit="tok/s",
            samples=[most], upper=most, upper_source=f"{format_bytes(working_set)} a token: {device['source']}",
            tolerance="none: a bound", verdict="impossible" if goal > most else "not reproduced",
            reason=f"no cache makes {goal:g} tok/s of {format_bytes(working_set)} a token; hits still read every weight",
        )  # fmt: skip
