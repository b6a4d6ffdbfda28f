"""The cache mystery: verdicts on reports 000 and 001, from what the other modules of this folder measured."""

import numpy as np
import pandas as pd

from kit.claims import table as claims
from kit.claims.judge import times
from kit.findings import reported
from kit.findings.live import Live
from kit.findings.n02_cache_mystery import hypotheses
from kit.findings.n02_cache_mystery.preload import LIMIT, MIB, REPORTED_MB, WATCHED, Preloads
from kit.units import format_bytes


def judge_preload(lab, preloads: Preloads, checked: pd.DataFrame, references: int) -> None:
    """preload-memory, preload-hit-rate, miss-counter, strong-count: the report's numbers from eviction arithmetic."""
    count, total = len(preloads.names), int(preloads.sizes.sum())
    resident = preloads.resident_bytes / MIB
    low, high = np.percentile(resident, (2.5, 97.5))
    megabytes = np.mean(preloads.resident_bytes / 1e6 <= REPORTED_MB)
    lab.record(
        quantity=f"memory after a preload of {count} tensors through 4 GiB, {len(resident):,} orders", unit="MiB",
        samples=resident.tolist(), lower=(LIMIT - preloads.sizes.max()) / MIB, lower_source="the limit less the largest tensor",
        upper=LIMIT / MIB, upper_source="the limit",
    )  # fmt: skip
    lab.judge(
        "preload-memory", f"orders that end at or below {REPORTED_MB} MiB", "%", [100 * np.mean(resident <= REPORTED_MB)],
        accept=(2.5, 97.5), how="counted", tolerance="the report's value lies in the middle 95% of orders",
        text=f"the middle 95% is {low:,.0f} to {high:,.0f} MiB: 3920 is where a full 4 GiB LRU stops, not {count} tensors; as "
        f"10^6 bytes it would be lower than all but {megabytes:.1%} of the orders, so the report's MB is 2^20 bytes",
    )  # fmt: skip
    lab.judge(
        "preload-memory", "bytes that hold all tensors in float32", "B", accept=(None, LIMIT), how="computed",
        at_least=(total, "4 bytes a weight"), tolerance="the limit of the report's cache",
        text=f"{format_bytes(total)} do not fit in {format_bytes(LIMIT)}; {np.median(preloads.survivors):.0f} of {count} "
        "tensors stay",
    )  # fmt: skip
    why = "a preload touches each tensor once, so it cannot hit: the rate says nothing about the cache"
    for what, goal in (("hits", 0), ("misses", 362)):
        lab.judge(
            "preload-hit-rate", f"{what} of the preload", what, checked[what], accept=(goal, goal), how="counted", text=why
        )
    goal = claims.get("miss-counter").after
    lab.judge(
        "miss-counter", f"orders in which the misses go on to {goal:g}", "%",
        [100 * np.mean(count + ~preloads.watched[WATCHED[0]] == goal)], accept=(50, None), how="counted",
        tolerance="most orders",
        text=f"{count} misses of the preload and one for {WATCHED[0]}; 178 is the same counter read on the way",
    )  # fmt: skip
    lab.judge(
        "strong-count", "references to one cache that all tensors share", "references", [references],
        accept=(claims.get("strong-count").after,) * 2, how="counted",
        text=f"{count} tensors, the owner and one local make {references}: the count shows one instance and no fault",
    )  # fmt: skip


def judge_hypotheses(lab, table: pd.DataFrame) -> None:
    """The four hypotheses, each a trait on the report's LRU: what only it explains, if it contradicts nothing."""
    for key, hypothesis in hypotheses.HYPOTHESES.items():
        if not hypothesis.claim:
            continue
        against, needed = hypotheses.contradicted(table, key), int(table.loc[key, "only it explains"])
        text = f"it contradicts: {'; '.join(against)}" if against else "it contradicts nothing"
        if key == "limit":
            pressed = "; ".join(hypotheses.contradicted(table, "pressure")) or "nothing"
            text += (
                f", and without a limit {needed} of the {len(table.columns) - 1} kinds are gone; the machine's memory plays no "
                "part: cache and file leave half of 16 GiB free, and a machine that took half of the cache would contradict: "
                f"{pressed}"
            )
        elif not needed:
            text += ", and eviction by the cache's own 4 GiB limit explains all of it without this"
        lab.judge(
            hypothesis.claim, "evidence of report 001 that only it explains, contradicting none", "kinds",
            [0 if against else needed], accept=(1, None), how="counted", tolerance="each shown in most preload orders",
            text=text,
        )  # fmt: skip


def judge_two_levels(lab, run: Live, tensors: int, prompt: int) -> None:
    """dual-level-cache and warm-inference, from inferences with the two-level fault, a slow dequantizer and strided loops."""
    outer = run.stats
    lab.judge(
        "dual-level-cache", "requests that reach the outer cache after the first inference", "requests", [outer.gets - tensors],
        accept=(0, 0), how="counted", text=f"{outer.misses} misses in the first inference; "
        f"{format_bytes(run.held_bytes)} are held whatever the outer limit says",
    )  # fmt: skip
    one_token = run.dequantizing / (run.dequantizing + float(np.median(run.seconds[1:])) / prompt)
    lab.judge(
        "warm-inference", f"inference with every tensor cached over the first, prompt of {prompt}, strided loops", "x",
        [seconds / run.seconds[0] for seconds in run.seconds[1:]], accept=times(1.0, 1.5), in_ratio=True,
        tolerance="the report: 0.92 and 1.09",
        text=f"{run.dequantizing / run.seconds[0]:.0%} of the first inference was dequantizing, all that caching can take "
        f"away; the loops remain. With a prompt of one token it would be {one_token:.0%}",
    )  # fmt: skip


def judge_speeds(lab, rungs: pd.DataFrame, caught: pd.DataFrame, tried: pd.DataFrame) -> None:
    """variance-45-1100 and blas-500: one cause that prints such numbers beside others, and what the bandwidth forbids."""
    goals = (45, 500, 1100)
    told = "; ".join(f"{cause} {factor:.3g}x" for cause, factor in tried["factor"].items())
    stopped = int((caught["stopped by"] != "none: it counts").sum())
    lab.judge(
        "variance-45-1100", 'printed for errors on loopback over the reported "tok/s"', "x",
        [value / goal for value, goal in zip(rungs['printed "tok/s"'], goals, strict=True)], accept=times(1.0, 1.5),
        in_ratio=True, tolerance="at each of 45, 500 and 1100",
        text="one possible cause, not a proven one: a client that divides the tokens it asked for by the time until an error, "
        f"with delays that we chose, prints this range; the gates stop {stopped} of {len(caught)} kinds of answer. Fastest "
        f"over slowest by cause: {told}",
    )  # fmt: skip
    for asked, printed in zip(goals, rungs['printed "tok/s"'], strict=True):
        lab.record(
            "variance-45-1100", quantity=f"printed for an error, where {asked} is reported", unit="tok/s", samples=[printed]
        )
    whole, gbps = reported.f32_bytes(), reported.machine()["read_gbps"]
    for claim in ("variance-45-1100", "blas-500"):
        goal = claims.get(claim).after
        text = f"{goal:g} tok/s would read {goal * whole / 1e12:.1f} TB/s; the reports' machine reads {gbps / 1000:.2f}"
        lab.record(reported.speed(claim, whole, text))
