"""First token: the verdicts on reports 000 and 001, from the runs that kit.findings.first_token measured."""

import numpy as np
import pandas as pd

from kit import claims
from kit.findings.first_token import Run, elements_of, ratios, samples
from kit.measure import bootstrap_median
from kit.units import format_bytes, format_seconds


def judge(lab, file, runs: list[Run], predicted: pd.DataFrame, limits: pd.DataFrame) -> None:
    """Write the verdicts of first-token-preload, cold-inference, parallel-dequant and cache-4gb-feasible."""
    _judge_preload(lab, runs, predicted, limits)
    _judge_cold(lab, file, runs)
    _judge_parallel(lab, runs, predicted)
    _judge_capacity(lab, file)


def _judge_preload(lab, runs, predicted, limits):
    claim = claims.get("first-token-preload")
    effect, moved = ratios(runs, "reported", "warm"), ratios(runs, "lazy", "preload")
    typical = float(np.median(effect))
    reached = 100 <= typical
    lab.record(
        claim.id, quantity="first token as reported over first token warm", unit="x", samples=effect,
        upper=None, tolerance="hundreds to thousands: at least 100x",
        verdict="reproduced in ratio" if reached else "not reproduced",
        reason=f"{typical:,.0f}x on this file: slow dequantising and strided loops against one pass over cached f32 weights",
    )  # fmt: skip
    gained = float(np.median(moved))
    lab.record(
        claim.id, quantity="closed file to token: lazy over preloaded", unit="x", samples=moved,
        lower=1.0, lower_source="the same bytes are read and dequantised either way",
        tolerance="a preload that removed the cost would gain at least 2x here",
        verdict="reproduced in ratio" if gained >= 2 else "not reproduced",
        reason=f"{gained:.2f}x: preloading moves the cost in front of the request, it does not remove it",
    )  # fmt: skip
    least = limits.iloc[1]["least seconds a token"]
    possible = least <= claim.after
    lab.record(
        claim.id, quantity="least seconds a token of granite-3.3-8b in f32 on the reports' machine", unit="s",
        samples=[least], lower=least, lower_source=f"30.44 GiB over the bandwidth of {limits.index[1]}",
        tolerance="none: a bound", verdict="not reproduced" if possible else "impossible",
        reason=f"{claim.after} s reads {claim.after / least:.0%} of the weights at that bandwidth: no whole pass was timed",
    )  # fmt: skip
    lab.record(
        claim.id, quantity="first token, warm", unit="s", samples=samples(runs, "warm"),
        lower=float(predicted.loc["compute", "seconds"]), lower_source=predicted.loc["compute", "bound"],
    )  # fmt: skip


def _judge_cold(lab, file, runs):
    claim = claims.get("cold-inference")
    lazy = [run for run in runs if run.way == "reported"]
    tensors = len(file.tensors)
    counted = all((run.misses, run.hits) == (tensors, 0) for run in lazy)
    lab.record(
        claim.id, quantity="misses of the first inference over tensors in the file, no hits", unit="x",
        samples=[run.misses / tensors for run in lazy], lower=1.0, upper=1.0,
        lower_source="each tensor is used once a pass", upper_source="each tensor is used once a pass",
        tolerance="exact, with 0 hits", verdict="reproduced" if counted else "not reproduced",
        reason=f"{lazy[0].misses} misses and {lazy[0].hits} hits on {tensors} tensors",
    )  # fmt: skip
    working_set = 4 * sum(tensor.elements for tensor in file.tensors.values())
    scale = 4 * elements_of("granite-3.3-8b") / working_set
    whole = [scale * run.seconds for run in lazy]
    near = claim.after / 4 <= np.median(whole) <= claim.after * 4
    lab.record(
        claim.id, quantity="first inference the reported way, scaled by bytes to granite-3.3-8b", unit="s", samples=whole,
        tolerance="a factor of 4, another machine and another loop",
        verdict="reproduced in ratio" if near else "not reproduced",
        reason=f"{format_seconds(float(np.median(whole)))} for {scale:.1f} times these bytes, of which dequantising is "
        f"{lazy[0].phases['dequantize'] / lazy[0].seconds:.0%} and the loops {lazy[0].phases['compute'] / lazy[0].seconds:.0%}",
    )  # fmt: skip


def _judge_parallel(lab, runs, predicted):
    for way, what in (("parallel", "tensors in parallel"), ("overlapped", "while the file is still being read")):
        pairs = ratios(runs, "preload", way)
        low, _ = bootstrap_median(pairs)
        parts = predicted["seconds"]
        lab.record(
            "parallel-dequant", quantity=f"closed file to token: preloaded serially over {what}", unit="x", samples=pairs,
            upper=float(parts.sum() / parts[["read", "dequantize"]].max()),
            upper_source="all phases in a row over the longest of reading and dequantising",
            tolerance="faster beyond the 95 % interval",
            verdict="reproduced in ratio" if low > 1 else "not reproduced",
            reason=f"{np.median(pairs):.2f}x, at least {low:.2f}x: the fast dequantiser already uses every core, "
            "so only time spent waiting for the file can be hidden",
        )  # fmt: skip


def _judge_capacity(lab, file):
    claim = claims.get("cache-4gb-feasible")
    whole = 4 * elements_of("granite-3.3-8b")
    held = [claim.after / whole]
    lab.record(
        claim.id, quantity="share of granite-3.3-8b's f32 weights that 4 GiB can hold", unit="", samples=held,
        upper=held[0], upper_source=f"capacity over working set, {format_bytes(whole)} by the geometry",
        tolerance="none: arithmetic", verdict="impossible" if held[0] < 1 else "reproduced",
        reason=f"all weights need {format_bytes(whole)}; 4 GiB holds {held[0]:.1%}",
    )  # fmt: skip
