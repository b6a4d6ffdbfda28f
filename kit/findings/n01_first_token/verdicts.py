"""First token: the verdicts on reports 000 and 001, from the runs that were measured."""

import pandas as pd

from kit.claims import table as claims
from kit.findings import reported
from kit.findings.n01_first_token import parallel, slow_end
from kit.findings.n01_first_token.results import ratios, samples
from kit.findings.n01_first_token.ways import FUSED, Run, least_seconds
from kit.units import format_bytes, format_seconds


def judge_preload(lab, file, runs: list[Run], predicted: pd.DataFrame, left_out: dict[str, str]) -> None:
    """first-token-preload: the effect, what preloading moves, and what 0.075 s would take in float32 and from blocks."""
    claim = claims.get("first-token-preload")
    missing = left_out.get("warm", "")
    lab.judge(
        claim.id, "first token as reported over first token warm", "x", ratios(runs, "reported", "warm"), accept=(100, None),
        in_ratio=True, tolerance="hundreds to thousands, as 2,600x is", missing=missing,
        text="slow dequantizing and strided loops against one pass over cached weights",
    )  # fmt: skip
    least = reported.least_by_width()["least ms a token"] / 1e3
    lab.judge(
        claim.id, f"a token of {reported.MODEL} in float32 on the reports' machine", "s", accept=(None, claim.after),
        how="computed",
        at_least=(least["float32"], f"{format_bytes(reported.f32_bytes())} over {reported.machine()['read_gbps']:g} GB/s"),
        text=f"no pass over preloaded float32 weights takes {claim.after} s on that machine; from the file's blocks, which "
        f"need no preload, a token takes {format_seconds(least['blocks of the file'])} at least",
    )  # fmt: skip
    lab.record(claim.id, quantity="first token as reported", unit="s", samples=samples(runs, "reported"))
    if not missing:
        lab.record(quantity="closed file to token: lazy over preloaded", unit="x", samples=ratios(runs, "lazy", "preload"))
        lab.record(
            claim.id, quantity="first token, warm, from float32", unit="s", samples=samples(runs, "warm"),
            lower=least_seconds("warm", predicted), lower_source=predicted.loc["compute", "bound"],
        )  # fmt: skip
    scale = reported.elements() / sum(tensor.elements for tensor in file.tensors.values())
    lab.record(
        quantity=f"first token, warm, from blocks, scaled by weights to {reported.MODEL}", unit="s",
        samples=[scale * seconds for seconds in samples(runs, "fused-warm")],
        lower=scale * least_seconds("fused-warm", predicted), lower_source=predicted.loc[FUSED, "bound"],
    )  # fmt: skip


def judge_cold(lab, file, runs: list[Run], ablation: pd.DataFrame) -> None:
    """cold-inference: every tensor misses once; and 194 s is what several set-ups give (``ablation``: slow_end)."""
    claim = claims.get("cold-inference")
    first, tensors = [run for run in runs if run.way == "reported"], len(file.tensors)
    lab.judge(
        claim.id, "misses of the first inference over tensors in the file", "x", [run.misses / tensors for run in first],
        accept=(1, 1), how="counted",
        text=f"{first[0].misses} misses and {first[0].hits} hits on {tensors} tensors, each used once a pass",
    )  # fmt: skip
    lab.judge(
        claim.id, "set-ups of loops, prompt, threads and dequantizer that take less than the reported time", "%",
        [100 * float((ablation["seconds"] < claim.after).mean())], accept=(1, 99), how="counted", in_ratio=True,
        tolerance=f"{claim.after:g} s lies among what set-ups take, scaled by weights to {reported.MODEL}",
        text=f"{slow_end.told(ablation, claim.after)}: the report names none of these, so which it was cannot be said",
    )  # fmt: skip


def judge_parallel(lab, runs: list[Run], predicted: pd.DataFrame, taken: pd.DataFrame, left_out: dict[str, str]) -> None:
    """parallel-dequant: one thread against all cores by dequantizer, and reading ahead while dequantizing."""
    for dequantizer in parallel.DEQUANTIZERS.values():
        some = taken[taken["dequantizer"] == dequantizer]
        alone = some[some["threads"] == 1]
        cores, least = int(some["threads"].max()), lab.machine.seconds_to_write(float(alone["bytes"].iloc[0]))
        missing = "this machine has one core" if cores == 1 else ""
        lab.judge(
            "parallel-dequant", f"tensors dequantized on one thread over {cores} threads, {dequantizer} dequantizer", "x",
            parallel.gains(taken, dequantizer), accept=(1, None), in_ratio=True, tolerance="faster", missing=missing,
            at_most=(float(alone["seconds"].max()) / least,
            "seconds on one thread, measured, over the bytes at write bandwidth"),
            text="one tensor a thread: write bandwidth is the ceiling, and a fast dequantizer is near it",
        )  # fmt: skip
    missing = left_out.get("overlapped", "")
    lab.judge(
        "parallel-dequant", "closed file to token: preloaded over preloaded while the file is read", "x",
        ratios(runs, "preload", "overlapped"), accept=(1, None), in_ratio=True, tolerance="faster", missing=missing,
        at_most=None if missing else (max(samples(runs, "preload")) / least_seconds("overlapped", predicted),
        "seconds in a row, measured, over the longer part"),
        text="only waiting for the file can be hidden, and dequantizing takes every core already",
    )  # fmt: skip


def judge_capacity(lab) -> None:
    """cache-4gb-feasible: arithmetic."""
    claim, whole = claims.get("cache-4gb-feasible"), reported.f32_bytes()
    lab.judge(
        claim.id, f"cache that holds all of {reported.MODEL} in float32", "B", accept=(None, claim.after), how="computed",
        at_least=(whole, "4 bytes for each of its weights"),
        text=f"all weights need {format_bytes(whole)} of the 16 GiB machine; 4 GB holds {claim.after / whole:.1%} of them",
    )  # fmt: skip
