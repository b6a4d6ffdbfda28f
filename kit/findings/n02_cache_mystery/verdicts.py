"""The cache mystery: verdicts on reports 000 and 001, from what the other modules of this folder measured."""

import numpy as np
import pandas as pd

from kit.claims import table as claims
from kit.findings.live import Live
from kit.findings.n02_cache_mystery.preload import HYPOTHESES, LIMIT, MIB, REPORTED_MB, Preloads
from kit.lab import peaks as devices
from kit.units import format_bytes


def judge_preload(lab, preloads: Preloads, checked: pd.DataFrame, references: int) -> None:
    """preload-memory, preload-hit-rate, miss-counter, strong-count: the report's numbers from eviction arithmetic."""
    count, total = len(preloads.names), int(preloads.sizes.sum())
    resident = preloads.resident_bytes / MIB
    low, high = np.percentile(resident, (2.5, 97.5))
    lab.record(
        "preload-memory", quantity=f"memory after a preload of {count} tensors through 4 GiB, {len(resident):,} orders",
        unit="MiB", samples=resident.tolist(), lower=(LIMIT - preloads.sizes.max()) / MIB,
        lower_source="the limit less the largest tensor", upper=LIMIT / MIB, upper_source="the limit",
        tolerance="the report's value lies in the middle 95 %",
        verdict="reproduced" if low <= REPORTED_MB <= high else "not reproduced",
        reason=f"{REPORTED_MB} MB against {low:,.0f} to {high:,.0f}: where a full 4 GiB LRU stops, not {count} tensors",
    )  # fmt: skip
    lab.record(
        "preload-memory", quantity="bytes of all tensors in f32 over the limit", unit="x", samples=[total / LIMIT],
        lower=1.0, lower_source="all can only be cached when this is at most 1", tolerance="none: arithmetic",
        verdict="impossible" if total > LIMIT else "reproduced",
        reason=f"{format_bytes(total)} do not fit in {format_bytes(LIMIT)}; {np.median(preloads.survivors):.0f} tensors stay",
    )  # fmt: skip
    exact = bool((checked["hits"] == 0).all() and (checked["misses"] == 362).all())
    lab.record(
        "preload-hit-rate", quantity="hit rate of the preload, replayed orders", unit="%",
        samples=(100 * checked["hits"] / (checked["hits"] + checked["misses"])).tolist(), lower=0.0, upper=0.0,
        lower_source="each tensor is asked for once", upper_source="each tensor is asked for once",
        tolerance="exact: 0 hits and 362 misses", verdict="reproduced" if exact else "not reproduced",
        reason="a preload touches each tensor once, so it cannot hit: the rate says nothing about the cache",
    )  # fmt: skip
    after = count + ~preloads.watched["token_embd.weight"]
    share = float(np.mean(after == claims.get("miss-counter").after))
    lab.record(
        "miss-counter", quantity="misses after the first access of inference, over orders", unit="misses",
        samples=after.tolist(), lower=count, lower_source="token_embd survived the preload", upper=count + 1,
        upper_source="it did not", tolerance="363 in at least half of the orders",
        verdict="reproduced" if share >= 0.5 else "not reproduced",
        reason=f"363 in {share:.0%} of the orders: {count} misses of the preload and one for token_embd; 178 is the same "
        "counter read on the way",
    )  # fmt: skip
    claim = claims.get("strong-count")
    lab.record(
        "strong-count", quantity="references to one cache that all tensors share", unit="references", samples=[references],
        lower=count + 2, lower_source="tensors, owner, one local variable", upper=count + 2, upper_source="the same",
        tolerance="exact", verdict="reproduced" if references == claim.after else "not reproduced",
        reason=f"{count} tensors, the owner and one local make {references}: the count shows one instance and no fault",
    )  # fmt: skip


def judge_hypotheses(lab, table: pd.DataFrame) -> None:
    """The four hypotheses: how much of the evidence each reproduces alone, beside plain eviction."""
    evidence = table.columns.drop("explains all")
    plain = HYPOTHESES[0].text
    for hypothesis in HYPOTHESES:
        if not hypothesis.claim:
            continue
        shows = table.loc[hypothesis.text, evidence].astype(float)
        missing = [what for what, share in shows.items() if share <= 0.5]
        verdict = "reproduced" if not missing else "not reproduced"
        reason = f"alone it does not give: {'; '.join(missing)}" if missing else "alone it gives all that was seen"
        if table.loc[plain, "explains all"]:
            reason += "; plain eviction by the cache's own 4 GiB limit gives all of it"
        lab.record(
            hypothesis.claim, quantity="evidence of report 001 that it shows alone", unit=f"of {len(evidence)}",
            samples=[float((shows > 0.5).sum())], lower=0, lower_source="none of it", upper=len(evidence),
            upper_source="all of it", tolerance="all, each in most preload orders", verdict=verdict, reason=reason,
        )  # fmt: skip


def judge_two_levels(lab, run: Live, tensors: int) -> None:
    """dual-level-cache and warm-inference, from a decode with the two-level fault and strided loops."""
    outer = run.stats
    silent = outer.gets == outer.misses == tensors
    later = outer.gets - tensors
    lab.record(
        "dual-level-cache", quantity="requests that reach the outer cache after the first pass", unit="requests",
        samples=[later], lower=0, lower_source="the inner level answers first", tolerance="exact: none",
        verdict="reproduced" if silent else "not reproduced",
        reason=f"{outer.misses} misses in the first pass, {later} requests after it; meanwhile {format_bytes(run.held_bytes)} "
        "are held whatever the outer limit says",
    )  # fmt: skip
    ratios = [seconds / run.seconds[0] for seconds in run.seconds[1:]]
    typical = float(np.median(ratios))
    lab.record(
        "warm-inference", quantity="inference with every tensor cached over the first one, strided loops", unit="x",
        samples=ratios, upper=1.0, upper_source="the same work less the dequantizing",
        tolerance="0.75 to 1.25 (report: 0.92 and 1.09)",
        verdict="reproduced in ratio" if 0.75 <= typical <= 1.25 else "not reproduced",
        reason=f"{typical:.2f}: of the first inference {1 - typical:.0%} was dequantizing (and what else a first pass does); "
        "caching cannot take away the loops",
    )  # fmt: skip


def judge_speeds(lab, rungs: pd.DataFrame, caught: pd.DataFrame, total_bytes: int) -> None:
    """variance-45-1100 and blas-500: what a client that reads nothing prints, and what the bandwidth forbids."""
    printed = rungs['printed "tok/s"']
    reported = (45, 500, 1100)
    near = all(0.67 <= value / goal <= 1.5 for value, goal in zip(printed, reported, strict=True))
    stopped = (caught.loc[caught["stopped by"] != "none: it counts", '"tok/s"']).count()
    lab.record(
        "variance-45-1100", quantity="tokens a second printed for errors on loopback", unit="tok/s",
        samples=printed.tolist(), lower=0, lower_source="no token was made", tolerance="a factor of 1.5 at each rung",
        verdict="reproduced" if near else "not reproduced",
        reason="errors after 110, 10 and 9 ms for 5, 5 and 10 asked tokens print the report's range; the gates stop "
        f"{stopped} of {len(caught)} kinds of answer and let the real one pass",
    )  # fmt: skip
    device = devices.load().set_index("id").loc["apple-m4"]
    most = device["read_gbps"] * 1e9 / total_bytes
    for claim in ("variance-45-1100", "blas-500"):
        goal = claims.get(claim).after
        lab.record(
            claim, quantity="most tokens a second of granite-3.3-8b in f32 at the reports' bandwidth", unit="tok/s",
            samples=[most], upper=most, upper_source=f"{format_bytes(total_bytes)} a token over {device['read_gbps']} GB/s: "
            f"{device['source']}", tolerance="none: a bound",
            verdict="impossible" if goal > most else "not reproduced",
            reason=f"{goal} tok/s would read {goal * total_bytes / 1e12:.1f} TB/s; the machine has "
            f"{device['read_gbps'] / 1000:.2f}",
        )  # fmt: skip
