"""Attention: the verdicts on reports 000 and 001, from what kit.findings.n04_attention.variants measured."""

import numpy as np
import pandas as pd

from kit.claims import table as claims
from kit.findings import reported
from kit.findings.n04_attention.variants import amdahl
from kit.lab import peaks as devices
from kit.synthetic.geometry import GEOMETRIES
from kit.units import format_seconds

REPORTED = "granite-3.3-8b"  # the model of the reports


def judge(lab, tokens: pd.DataFrame, shares: pd.DataFrame, context: int, elements: int, prompt_tokens: int) -> None:
    """Write the verdicts of attention-blas-speedup, warm-inference and blas-500.

    ``tokens``: parts of a token by way, at ``context``; ``shares``: attention's share by context; ``elements``: weights
    that such a token reads; ``prompt_tokens``: the length of the reports' prompt, which they do not give. Loops take as
    long for each of its tokens.
    """
    seconds = tokens.sum(axis=1)
    _judge_speedup(lab, seconds, shares, context)
    _judge_warm(lab, tokens, seconds, elements, prompt_tokens)
    _judge_500(lab, seconds, elements)


def _ratios(seconds, slow, fast):
    return [float(a / b) for a in seconds.loc[slow] for b in seconds.loc[fast]]


def _judge_speedup(lab, seconds, shares, context):
    claim = claims.get("attention-blas-speedup")
    low, high = claim.ratio
    near = shares[shares.index <= context].iloc[-1]
    most = float(amdahl(near.drop("FLOPs").max()))
    pairs = _ratios(seconds, "loop-attention", "cached")
    typical = float(np.median(pairs))
    lab.record(
        claim.id, quantity=f"a token at context {context}: attention in loops over attention by BLAS", unit="x",
        samples=pairs, lower=1.0, lower_source="attention by BLAS is not slower", upper=most,
        upper_source="Amdahl's law: attention's share of the measured time removed altogether",
        tolerance=f"{low:g} to {high:g} as claimed",
        verdict=_verdict(typical >= low, possible=most >= low),
        reason=f"{typical:.2f}x; even free attention would give {most:.2f}x, for it is {near['FLOPs']:.1%} of the FLOPs",
    )  # fmt: skip
    pairs = _ratios(seconds, "loop-projections", "cached")
    typical = float(np.median(pairs))
    lab.record(
        claim.id, quantity=f"a token at context {context}: projections in strided loops over projections by BLAS", unit="x",
        samples=pairs, tolerance=f"at least {low:g} as claimed", verdict=_verdict(typical >= low),
        reason=f"{typical:.3g}x from the projections alone, which do {1 - near['FLOPs']:.1%} of the FLOPs",
    )  # fmt: skip


def _judge_warm(lab, tokens, seconds, elements, prompt_tokens):
    claim = claims.get("warm-inference")
    scale = reported.elements() / elements
    again, first = float(seconds.loc["again"].median()), float(seconds.loc["first"].median())
    inference = scale * prompt_tokens * again
    loops = float((tokens.loc["again", "projections"] / seconds.loc["again"]).median())
    fast = scale * float(seconds.loc["cached"].median())
    lab.record(
        claim.id, quantity=f"second inference, prompt of {prompt_tokens}, all cached, loops, for the weights of {REPORTED}",
        unit="s", samples=[scale * prompt_tokens * float(value) for value in seconds.loc["again"]],
        lower=lab.machine.seconds_to_read(4 * reported.elements()),
        lower_source="every f32 weight read once at measured bandwidth", tolerance="a factor of 4, another machine",
        verdict=_verdict(claim.after / 4 <= inference <= claim.after * 4),
        reason=f"{format_seconds(inference)}, {format_seconds(inference / prompt_tokens)} a token, with nothing left to "
        f"dequantize: {loops:.0%} is loops over columns; BLAS takes {format_seconds(fast)} a token on the same cached weights",
    )  # fmt: skip
    before = first + (prompt_tokens - 1) * again
    lab.record(
        claim.id, quantity=f"first inference over second, prompt of {prompt_tokens}", unit="x",
        samples=[before / (prompt_tokens * again)], lower=1.0, lower_source="a hit is not slower than dequantizing",
        tolerance="reported 194 s / 179 s = 1.08; within 1 to 2", verdict=_verdict(before <= 2 * prompt_tokens * again),
        reason=f"{before / (prompt_tokens * again):.2f}x: a cache that always hits saves the dequantizing, "
        f"{tokens.loc['first', 'dequantize'].median() / before:.0%} of the first inference, and the loops take the rest",
    )  # fmt: skip


def _judge_500(lab, seconds, elements):
    claim = claims.get("blas-500")
    reports = devices.load().set_index("id").loc["apple-m4"]
    whole = reported.elements()
    blocks = sum(tensor.nbytes for tensor in GEOMETRIES[REPORTED].tensors("Q4_K_M"))
    most_f32, most_blocks = (float(reports["read_gbps"] * 1e9 / nbytes) for nbytes in (4 * whole, blocks))
    for way, what in (("cached", "cached f32, BLAS"), ("fused", "straight from the blocks")):
        here = [float(elements / whole / value) for value in seconds.loc[way]]
        nbytes, most = (4 * whole, most_f32) if way == "cached" else (blocks, most_blocks)
        lab.record(
            claim.id, quantity=f"tokens a second for the weights of {REPORTED}, {what}", unit="tok/s", samples=here,
            upper=1 / lab.machine.seconds_to_read(nbytes), upper_source="bytes of the weights at this machine's read bandwidth",
            tolerance="none: a bound",
            verdict=_verdict(float(np.median(here)) >= claim.after, possible=most >= claim.after),
            reason=f"{np.median(here):.2f} tok/s here; the reports' machine reads {reports['read_gbps']:g} GB/s, so at most "
            f"{most:.1f} tok/s of that model this way: {claim.after:g} were not tokens of it",
        )  # fmt: skip


def summary(tokens: pd.DataFrame, shares: pd.DataFrame, context: int) -> str:
    """The finding in two sentences, from the measured medians."""
    again, cached, attention = (
        float(tokens.sum(axis=1).loc[way].median()) for way in ("again", "cached", "loop-attention")
    )
    share = shares[shares.index <= context].iloc[-1]["reports' loops, measured"]
    return (
        f"With all weights cached and everything in loops a token takes {format_seconds(again)}, of which attention at a "
        f"context of {context} is {share:.1%}. BLAS for the projections brings {again / attention:.0f}x; BLAS for attention "
        f"after that brings {attention / cached:.2f}x."
    )


def _verdict(holds, possible=True):
    return "impossible" if not possible else "reproduced in ratio" if holds else "not reproduced"
