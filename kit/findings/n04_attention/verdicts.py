"""Attention: the verdicts on reports 000 and 001, from what the other modules of this folder measured."""

import numpy as np
import pandas as pd

from kit.claims import table as claims
from kit.claims.judge import times
from kit.findings import reported
from kit.findings.n04_attention.variants import amdahl
from kit.units import format_bytes, format_seconds


def judge_speedup(lab, pairs: pd.DataFrame, tokens: pd.DataFrame, share: float, context: int) -> None:
    """attention-blas-speedup: attention and projections in loops against BLAS. ``pairs``: see one_token.paired. ``tokens``:
    seconds of a token's parts by way; ``share``: of the FLOPs, attention's at ``context``."""
    claim, ratios = claims.get("attention-blas-speedup"), pairs["loops"] / pairs["blas"]
    most = float(amdahl(pairs["attention"] / pairs["loops"]).max())
    lab.judge(
        claim.id, f"a token at context {context}: attention in loops over attention by BLAS", "x", ratios, accept=claim.ratio,
        in_ratio=True, at_most=(most, "Amdahl's law: the loops' largest share of a round's time removed altogether"),
        text=f"attention is {share:.1%} of the FLOPs at {context} positions, so free attention gives at most "
        f"{amdahl(share):.3f}x where all FLOPs take equally long, {most:.2f}x by the time that its loops take here (if all "
        "else takes the same in both)",
    )  # fmt: skip
    slow, fast = (tokens.sum(axis=1).loc[way] for way in ("loop-projections", "cached"))
    lab.judge(
        claim.id, f"a token at context {context}: projections in strided loops over projections by BLAS", "x",
        [one / float(fast.median()) for one in slow], accept=(claim.ratio[0], None), in_ratio=True,
        text=f"from the projections alone, which do {1 - share:.1%} of the FLOPs",
    )  # fmt: skip


def judge_warm(lab, tokens: pd.DataFrame, elements: int, prompt: int) -> None:
    """warm-inference: an inference with all cached and loops, scaled by weights, and what the cache took off the first one.
    ``elements``: weights that such a token reads; ``prompt``: tokens of the reports' prompt, which they do not give. Loops take
    as long for each of its tokens."""
    claim, scale, seconds = claims.get("warm-inference"), reported.elements() / elements, tokens.sum(axis=1)
    first, again = float(seconds.loc["first"].median()), seconds.loc["again"]
    loops = float((tokens.loc["again", "projections"] / again).median())
    lab.judge(
        claim.id, f"second inference, prompt of {prompt}, all cached, loops, for the weights of {reported.MODEL}", "s",
        [scale * prompt * float(value) for value in again], accept=times(claim.after, 4), in_ratio=True,
        at_least=(lab.machine.seconds_to_read(reported.f32_bytes()), "every f32 weight read once at measured bandwidth"),
        tolerance="a factor of 4: another machine, another prompt",
        text=f"{format_seconds(scale * float(again.median()))} a token with nothing left to dequantize: {loops:.0%} is loops "
        f"over columns; BLAS takes {format_seconds(scale * float(seconds.loc['cached'].median()))} on the same cached weights",
    )  # fmt: skip
    lab.judge(
        claim.id, f"first inference over second, prompt of {prompt}", "x",
        [(first + (prompt - 1) * float(value)) / (prompt * float(value)) for value in again],
        accept=times(194 / claim.after, 1.5), in_ratio=True, tolerance="reported: 194 s / 179 s",
        text="a cache that always hits saves the dequantizing, "
        f"{tokens.loc['first', 'dequantize'].median() / (first + (prompt - 1) * float(again.median())):.0%} of the first "
        "inference, and the loops take the rest",
    )  # fmt: skip


def judge_500(lab, tokens: pd.DataFrame, elements: int) -> None:
    """blas-500: what the reports' bandwidth allows, from float32 and from blocks; what is measured here stands beside it."""
    goal, totals = claims.get("blas-500").after, tokens.sum(axis=1)
    for way, weights, nbytes in (
        ("cached", "float32", reported.f32_bytes()), ("fused", "the file's blocks", reported.block_bytes()),
    ):  # fmt: skip
        here = [float(elements / reported.elements() / value) for value in totals.loc[way]]
        lab.record(
            quantity=f"tokens a second for the weights of {reported.MODEL}, from {weights}", unit="tok/s", samples=here,
            upper=1 / lab.machine.seconds_to_read(nbytes),
            upper_source=f"{format_bytes(nbytes)} at this machine's read bandwidth",
        )  # fmt: skip
        text = f"{goal:g} tok/s cannot be tokens of this model there; this machine makes {np.median(here):.2f} tok/s"
        lab.record(reported.speed("blas-500", nbytes, text, weights))


def answer(tokens: pd.DataFrame, pairs: pd.DataFrame, share: float, context: int) -> str:
    """The finding in two sentences, from the measured medians."""
    again, cached = (float(tokens.sum(axis=1).loc[way].median()) for way in ("again", "cached"))
    gained = float((pairs["loops"] / pairs["blas"]).median())
    return (
        f"At a context of {context} attention is {share:.1%} of a token's arithmetic, and BLAS for attention alone makes a "
        f"token {gained:.2f} times as fast, where 10 to 20 was claimed. With all weights cached and everything in loops a "
        f"token takes {format_seconds(again)}, by matrix products {format_seconds(cached)}, {again / cached:.3g} times: what "
        "cached weights leave is the projections."
    )
