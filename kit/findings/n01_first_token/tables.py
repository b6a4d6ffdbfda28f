"""First token: the runs of all ways as tables."""

import numpy as np
import pandas as pd

from kit.findings.live import relative_rms
from kit.findings.n01_first_token.bounds import least_seconds
from kit.findings.n01_first_token.ways import WAYS, Run
from kit.lab import tables
from kit.lab.measure import bootstrap_median
from kit.units import format_bytes, format_seconds


def equality(runs: list[Run]) -> pd.DataFrame:
    """Do all ways give the same token? RMS difference of the logits over their standard deviation, against "lazy"."""
    truth = next(run for run in runs if run.way == "lazy").logits
    rows = {
        WAYS[run.way].label if run.way in WAYS else run.way: (int(run.logits.argmax()), relative_rms(run.logits, truth))
        for run in runs
    }
    return tables.frame(rows, "way", "token", "rms / std")


def by_phase(runs: list[Run]) -> pd.DataFrame:
    """One row a way, its median run: seconds by phase and in all, and whether the file's pages were gone."""
    rows = {
        WAYS[way].label: {**run.phases, "total": run.seconds, "cold file": run.cold} for way, run in typical_runs(runs).items()
    }
    return pd.DataFrame(rows).T.infer_objects().rename_axis("seconds")


def against_bounds(runs: list[Run], predicted: pd.DataFrame) -> pd.DataFrame:
    """One row a way: its total over its bound, f32 weights held afterwards, GB/s of f32 written while dequantizing."""
    rows = {}
    for way, run in typical_runs(runs).items():
        wrote, least = run.frame.query("what == 'dequantize'")["nbytes"].sum(), least_seconds(way, predicted)
        spent = run.phases["dequantize"]
        rows[WAYS[way].label] = {
            "total, s": run.seconds, "bound, s": least, "times the bound": run.seconds / least,
            "f32 held": format_bytes(run.held_bytes),
            "dequantized, GB/s": wrote / spent / 1e9 if spent > 0.01 * run.seconds else np.nan,  # else only vectors
        }  # fmt: skip
    return pd.DataFrame(rows).T.infer_objects().rename_axis("way")


def explained() -> pd.DataFrame:
    """What each way does, in words."""
    return pd.DataFrame({"way": way.label, "what it does": way.what} for way in WAYS.values()).set_index("way")


def typical_runs(runs: list[Run]) -> dict[str, Run]:
    """The median run of each way."""
    ordered = sorted(runs, key=lambda run: run.seconds)
    groups = {way: [run for run in ordered if run.way == way] for way in dict.fromkeys(run.way for run in runs)}
    return {way: group[len(group) // 2] for way, group in groups.items()}


def samples(runs: list[Run], way: str) -> list[float]:
    """Total seconds of every run of that way, in the order of the rounds."""
    return [run.seconds for run in runs if run.way == way]


def ratios(runs: list[Run], slow: str, fast: str) -> list[float]:
    """Seconds of ``slow`` over seconds of ``fast`` in the rounds of both; a way that ran once is compared with each round."""
    before, after = samples(runs, slow), samples(runs, fast)
    before = before * len(after) if len(before) == 1 else before
    return [a / b for a, b in zip(before, after, strict=False)]


STEPS = (  # from, to, what changed between them
    ("reported", "lazy-reference", "matrix products instead of strided loops"),
    ("lazy-reference", "lazy", "the fast dequantizer"),
    ("lazy", "preload", "preloading"),
    ("preload", "overlapped", "reading while dequantizing"),
    ("preload", "warm", "not counting the preload"),
    ("preload", "fused", "using the blocks where they lie"),
    ("warm", "fused-warm", "the second request: blocks instead of f32"),
)


def steps(runs: list[Run]) -> pd.DataFrame:
    """What each change brought: seconds before and after, and their ratio round by round with its 95% interval."""
    rows = []
    measured = {run.way for run in runs}
    for slow, fast, change in STEPS:
        if {slow, fast} <= measured:
            pairs = ratios(runs, slow, fast)
            before, after = np.median(samples(runs, slow)), np.median(samples(runs, fast))
            rows.append((change, before, after, np.median(pairs), *bootstrap_median(pairs)))
    return tables.frame(rows, "change", "before, s", "after, s", "times faster", "at least", "at most")


def answer(runs: list[Run], least_ms: pd.Series) -> str:
    """The finding in two sentences, from the measured medians; ``least_ms``: see reported.least_by_width."""
    seconds = {way: float(np.median(samples(runs, way))) for way in typical_runs(runs)}
    told = {way: format_seconds(value) for way, value in seconds.items()}
    warm = f"; a second request takes {told['warm']} from cached f32" if "warm" in told else ""
    return (
        f"From the closed file to the first token the reports' way takes {told['reported']} here and "
        f"{'preloading ' + told['preload'] if 'preload' in told else 'loading lazily ' + told['lazy']}, but using the file's "
        f"blocks where they lie takes {told['fused']}{warm} and {told['fused-warm']} from blocks: preloading moves the "
        "dequantizing, it does not remove it. The reports' 0.075 s cannot be a pass over their model in float32, which takes "
        f"{least_ms['float32']:.0f} ms at 120 GB/s; from its blocks it could be ({least_ms['blocks of the file']:.0f} ms)."
    )
