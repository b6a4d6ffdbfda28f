"""Ways to hold weights: verdicts on reports 002 and 003, from what the other modules of this folder measured."""

import numpy as np
import pandas as pd

import kit
from kit.cache.traces import Requests
from kit.claims import table as claims
from kit.findings import reported
from kit.findings.n03_cache_variants import loading
from kit.lab.measure import Rounds
from kit.units import format_bytes


def judge_lookups(lab, taken: Rounds) -> None:
    """cache-lookup-speedup: the reports' own configuration (a slow dequantizer, a copy on every hit) beside the others."""
    others = {
        f"{what}, {cache}": taken.ratios(miss, hit)
        for what, miss in (("gguf-py", loading.SLOW), ("the kit's dequantizer", loading.FAST))
        for cache, hit in (("views", loading.VIEW), ("copies", loading.COPY))
    }
    beside = "; ".join(f"{label} {np.median(ratios):.1f}x" for label, ratios in others.items())
    lab.judge(
        "cache-lookup-speedup", "a weight dequantized by gguf-py over a hit that copies it, ready and read once", "x",
        others["gguf-py, copies"], accept=claims.get("cache-lookup-speedup").ratio, in_ratio=True,
        tolerance="the configuration of reports 002 and 003",
        text=f"the factor is that of the dequantizer and of the copy ({beside}); a look-up alone reads no weight and proves "
        "nothing",
    )  # fmt: skip
    for label, ratios in others.items():
        lab.record(quantity=f"a weight dequantized over a hit, ready and read once: {label}", unit="x", samples=ratios.tolist())


def judge_limit(lab, trace: Requests) -> None:
    """lru-512mb: the report's default limit over a decode of the whole model."""
    limit = claims.get("lru-512mb").after
    stats = kit.replay(trace, kit.LRU(int(limit)))
    share = min(1.0, limit / trace.working_set)
    uses = pd.Series(trace.keys).value_counts() / (max(trace.tokens) + 1)
    lab.judge(
        "lru-512mb", "byte hit rate of a 512 MiB LRU, granite-3.3-8b decoded", "%", [100 * stats.byte_hit_rate],
        accept=(50 * share, None), how="counted", tolerance="half of what a pinned set of that size hits",
        at_most=(100 * share, "capacity over working set"),
        text=f"{stats.hits} hits in {stats.gets:,} accesses: every weight is used {uses.min():g} times a token, so none is "
        f"hot: {format_bytes(trace.working_set)} pass through {format_bytes(limit)}",
    )  # fmt: skip


def judge_prefetch(lab, runs: pd.DataFrame, table: pd.DataFrame, dequantizer: str, modeled: pd.Series) -> None:
    """prefetch-ahead: the first pass with each kind of prefetch against none; later passes beside it, without a verdict.
    ``modeled``: the gain by cores of loading.modeled."""
    slowest = runs.loc[runs["prefetch"] == "none", "first"].max()
    for label in table.index.drop("none"):
        lab.judge(
            "prefetch-ahead", f"first token, {dequantizer} dequantizer: without over with prefetch, {label}", "x",
            loading.paired(runs, label, "first"), accept=(1, None), in_ratio=True, tolerance="faster",
            at_most=(slowest / table.loc[label, "bound"], "seconds without, measured, over the longer of loading and reading"),
            text=f"loads and products share these cores and one memory bus; by the model a machine of {modeled.index[-1]} "
            f"cores would gain {modeled.iloc[-1]:.2f}x on later tokens",
        )  # fmt: skip
        lab.record(
            quantity=f"later tokens, {dequantizer} dequantizer: without over with prefetch, {label}", unit="x",
            samples=loading.paired(runs, label, "warm").tolist(),
        )  # fmt: skip


def judge_frequency(lab, table: pd.DataFrame) -> None:
    """frequency-priority: LFU in a window against LRU, on a dense model and on a mixture of experts."""
    for kind in table.columns:
        gains = (table[kind].drop("LRU") - table.loc["LRU", kind]) * 100
        why = "; every weight is used equally often, so frequency orders nothing" if np.allclose(gains, 0) else ""
        lab.judge(
            "frequency-priority", f"byte hit rate, frequency priority in its best window less LRU: {kind}", "points",
            [gains.max()], accept=(2, None), how="counted", in_ratio=True, tolerance="more than a difference of orders",
            text=f"{gains.max():+.1f} points in the best window, {gains.min():+.1f} in the worst{why}",
        )  # fmt: skip


def judge_fixes(lab, table: pd.DataFrame, working_set: int) -> None:
    """fix-verify, fix-pinned, fix-hashmap: misses after the preload, and the promised 500 tok/s against the bandwidth."""
    held = {
        "fix-verify": ("1 verify: LRU, and look", "it looks and changes nothing"),
        "fix-pinned": ("2 pinned", "what fits is hit on every pass, what does not fit is missed on every pass"),
        "fix-hashmap": ("3 HashMap", f"all of it is held: {format_bytes(working_set)} for the report's model, "
                        f"{working_set / reported.machine()['memory_bytes']:.1f} times that machine's memory"),
    }  # fmt: skip
    for claim, (way, what) in held.items():
        misses, before = (float(table.loc[label, "misses a token"]) for label in (way, "as reported: LRU"))
        lab.judge(
            claim, "misses a token after the preload", "misses", [misses], accept=(0, 0), how="counted", tolerance="no misses",
            text=f"{misses:g} against {before:g} before, with {table.loc[way, 'memory / limit']:.1f} times the limit: {what}",
        )  # fmt: skip
        goal, nbytes = claims.get(claim).after, format_bytes(working_set)
        text = f"no cache makes {goal:g} tok/s of {nbytes} a token; hits still read every weight"
        lab.record(reported.speed(claim, working_set, text))


def answer(replayed: pd.DataFrame, fraction: float, taken: Rounds) -> str:
    """The finding in two sentences: what policies hit on a dense model, and what a hit is worth as the reports built it."""
    at = replayed.set_index("policy")["byte hit rate"]
    none = [name for name, rate in at.items() if rate < 0.001]
    built, fast = (
        float(np.median(taken.ratios(*pair))) for pair in ((loading.SLOW, loading.COPY), (loading.FAST, loading.VIEW))
    )
    return (
        f"A decode asks for every weight once a token, so a cache of {fraction:.0%} of the model can hit {fraction:.0%} of the "
        f"bytes: a pinned set hits {at['Pinned']:.0%}, and {', '.join(none) or 'no policy'} hit nothing; verifying changes "
        f"nothing and a HashMap needs all of the memory. A hit is worth {built:.1f}x as the reports built it (a slow "
        f"dequantizer, a "
        f"copy on each hit) and {fast:.1f}x with a fast one and views, and no hit makes 500 tokens a second of 30.44 GiB."
    )
