"""First token: the verdicts on reports 000 and 001, from the runs that were measured."""

import numpy as np
import pandas as pd

from kit.claims import table as claims
from kit.findings.n01_first_token.tables import elements_of, ratios, samples
from kit.findings.n01_first_token.ways import Run
from kit.lab.measure import bootstrap_median
from kit.units import format_bytes, format_seconds

_REPORTED = "granite-3.3-8b"


def judge(lab, file, runs: list[Run], predicted: pd.DataFrame, limits: pd.DataFrame, left_out: dict[str, str]) -> None:
    """Write the verdicts of first-token-preload, cold-inference, parallel-dequant and cache-4gb-feasible.

    ``left_out``: the ways that were not gone, and why; what needs one of them is recorded as not measurable here.
    """
    _judge_effect(lab, runs, predicted, left_out)
    _judge_possible(lab, limits)
    _judge_cold(lab, file, runs)
    _judge_parallel(lab, runs, predicted, left_out)
    _judge_capacity(lab)


def _judge_effect(lab, runs, predicted, left_out):
    effect = "first token as reported over first token warm"
    moves = "closed file to token: lazy over preloaded"
    if reason := left_out.get("warm"):
        lab.skip("first-token-preload", effect, reason)
        lab.skip("first-token-preload", moves, reason)
        return
    times = ratios(runs, "reported", "warm")
    typical = float(np.median(times))
    lab.record(
        "first-token-preload", quantity=effect, unit="x", samples=times,
        tolerance="hundreds to thousands: at least 100x",
        verdict="reproduced in ratio" if typical >= 100 else "not reproduced",
        reason=f"{typical:,.0f}x here: slow dequantizing and strided loops against one pass over cached weights",
    )  # fmt: skip
    times = ratios(runs, "lazy", "preload")
    gained = float(np.median(times))
    lab.record(
        "first-token-preload", quantity=moves, unit="x", samples=times,
        tolerance="a preload that removed the cost would gain at least 2x",
        verdict="reproduced in ratio" if gained >= 2 else "not reproduced",
        reason=f"{gained:.2f}x: the same bytes are read and dequantized, only before the request instead of during it",
    )  # fmt: skip
    lab.record(
        "first-token-preload", quantity="first token, warm", unit="s", samples=samples(runs, "warm"),
        lower=float(predicted.loc["compute", "seconds"]), lower_source=predicted.loc["compute", "bound"],
    )  # fmt: skip


def _judge_possible(lab, limits):
    claim = claims.get("first-token-preload")
    device, least = next((name, row["least seconds a token"]) for name, row in limits.iterrows() if "reports" in name)
    lab.record(
        claim.id, quantity=f"least seconds a token of {_REPORTED} in f32 on the reports' machine", unit="s", samples=[least],
        lower=least, lower_source=f"{format_bytes(4 * elements_of(_REPORTED))} over the bandwidth of {device}",
        tolerance="none: a bound", verdict="impossible" if least > claim.after else "not reproduced",
        reason=f"{claim.after} s is enough for {claim.after / least:.0%} of the weights, so it was no pass over this model",
    )  # fmt: skip


def _judge_cold(lab, file, runs):
    claim = claims.get("cold-inference")
    first = [run for run in runs if run.way == "reported"]
    tensors = len(file.tensors)
    counted = all((run.misses, run.hits) == (tensors, 0) for run in first)
    lab.record(
        claim.id, quantity="misses of the first inference over tensors in the file", unit="x",
        samples=[run.misses / tensors for run in first], lower=1.0, upper=1.0,
        lower_source="each tensor is used once a pass", upper_source="each tensor is used once a pass",
        tolerance="exact, with 0 hits", verdict="reproduced" if counted else "not reproduced",
        reason=f"{first[0].misses} misses and {first[0].hits} hits on {tensors} tensors",
    )  # fmt: skip
    scale = elements_of(_REPORTED) / sum(tensor.elements for tensor in file.tensors.values())
    whole = [scale * run.seconds for run in first]
    typical = float(np.median(whole))
    dequantizing = first[0].phases["dequantize"] / first[0].seconds
    lab.record(
        claim.id, quantity=f"first inference the reported way, scaled by weights to {_REPORTED}", unit="s", samples=whole,
        tolerance="a factor of 4: another machine, other loops",
        verdict="reproduced in ratio" if claim.after / 4 <= typical <= claim.after * 4 else "not reproduced",
        reason=f"{format_seconds(typical)} for {scale:.3g} times these weights: {dequantizing:.0%} of it dequantizing, "
        f"{first[0].phases['compute'] / first[0].seconds:.0%} arithmetic in strided loops",
    )  # fmt: skip


def _judge_parallel(lab, runs, predicted, left_out):
    parts = predicted["seconds"]
    upper = float(parts.sum() / max(parts["read"], parts["dequantize"] + parts["compute"]))
    for way, what in (("parallel", "by tensors in parallel"), ("overlapped", "while the file is still being read")):
        quantity = f"closed file to token: preloaded serially over preloaded {what}"
        if reason := left_out.get(way):
            lab.skip("parallel-dequant", quantity, reason)
            continue
        times = ratios(runs, "preload", way)
        low, high = bootstrap_median(times)
        lab.record(
            "parallel-dequant", quantity=quantity, unit="x", samples=times,
            upper=upper, upper_source="all phases in a row over the longer of reading and all the rest",
            tolerance="faster beyond the 95 % interval",
            verdict="reproduced in ratio" if low > 1 else "not reproduced",
            reason=f"{np.median(times):.2f}x (95 % interval {low:.2f} to {high:.2f}): one tensor at a time already uses "
            "every core, so only waiting for the file can be hidden",
        )  # fmt: skip


def _judge_capacity(lab):
    claim = claims.get("cache-4gb-feasible")
    whole = 4 * elements_of(_REPORTED)
    share = claim.after / whole
    lab.record(
        claim.id, quantity=f"share of {_REPORTED}'s f32 weights that 4 GiB can hold", unit="", samples=[share],
        upper=share, upper_source=f"capacity over working set, {format_bytes(whole)} by the geometry",
        tolerance="none: arithmetic", verdict="impossible" if share < 1 else "reproduced",
        reason=f"all weights need {format_bytes(whole)}; 4 GiB holds {share:.1%}",
    )  # fmt: skip
