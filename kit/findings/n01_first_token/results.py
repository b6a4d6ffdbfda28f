"""First token: the runs of all ways as tables and figures."""

import numpy as np
import pandas as pd

from kit.findings.live import relative_rms
from kit.findings.n01_first_token.ways import WAYS, Run, least_seconds
from kit.lab import figures, tables
from kit.lab.measure import bootstrap_median
from kit.units import format_bytes, format_seconds


def equality(runs: list[Run]) -> pd.DataFrame:
    """Do all ways give the same token? RMS difference of the logits over their standard deviation, against "lazy"."""
    truth = next(run for run in runs if run.way == "lazy").logits
    rows = [(run.label, int(run.logits.argmax()), relative_rms(run.logits, truth)) for run in runs]
    return tables.frame(rows, "way", "token", "rms / std")


def by_phase(runs: list[Run]) -> pd.DataFrame:
    """One row a way, its median run: seconds by phase and in all, and whether the file's pages were gone."""
    rows = {run.label: {**run.phases, "total": run.seconds, "cold file": run.cold} for run in typical_runs(runs).values()}
    return pd.DataFrame.from_dict(rows, "index").rename_axis("seconds")


def against_bounds(runs: list[Run], predicted: pd.DataFrame) -> pd.DataFrame:
    """One row a way: its total over its bound, f32 weights held afterwards, GB/s of f32 written while dequantizing."""
    rows = []
    for way, run in typical_runs(runs).items():
        least, spent = least_seconds(way, predicted), run.phases["dequantize"]
        wrote = run.frame.query("what == 'dequantize'")["nbytes"].sum()
        speed = wrote / spent / 1e9 if spent > 0.01 * run.seconds else np.nan  # else only vectors
        rows.append((run.label, run.seconds, least, run.seconds / least, format_bytes(run.held_bytes), speed))
    return tables.frame(rows, "way", "total, s", "bound, s", "times the bound", "f32 held", "dequantized, GB/s")


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
    rows, measured = [], {run.way for run in runs}
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


# --- figures ----------------------------------------------------------------------------------------------------------


def bars(runs: list[Run]):
    """Stacked bars of the phases of each way."""
    parts = pd.DataFrame({run.label: run.phases for run in typical_runs(runs).values()}).T
    titles = (
        "Preloading moves the cost; it does not remove it",
        "The same on a log scale: from blocks almost nothing is dequantized",
    )
    figure, _ = figures.stacked_bars_twice(parts, "seconds from the closed file to the token (warm: from the request)", titles)
    figure.axes[0].legend(loc="center right")
    return figure


def gantt(runs: list[Run]):
    """When each tensor was read, dequantized and used: one line a tensor, one panel a way (of those measured)."""
    colors = {"linear": figures.VERMILION, "read": figures.ORANGE, "dequantize": figures.GREEN}  # as in ``bars``
    names = {"linear": "multiply (waits for its weight)"}
    typical = typical_runs(runs)
    ways = [way for way in ("lazy", "preload", "overlapped") if way in typical]
    figure, panels = figures.new(len(ways), height=2.3 * len(ways), sharex=True, squeeze=False)
    panels = panels[:, 0]
    for axes, way in zip(panels, ways, strict=True):
        run = typical[way]
        spans = run.frame[run.frame["what"].isin(colors)]
        rows = pd.Series(pd.factorize(spans["tensor"])[0], spans.index)
        for what, color in colors.items():
            some, label = spans[spans["what"] == what], names.get(what, what)
            axes.barh(rows[some.index], some["seconds"], left=some["start"], height=1, color=color, label=label)
        axes.set(title=run.label, ylabel="tensor")
        axes.invert_yaxis()
    figure.suptitle("Preloading does the same work, before the first use")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(colors))
    panels[-1].set_xlabel("seconds since the file was opened")
    return figure


def needed(limits: pd.DataFrame, target: float):
    """Least seconds a token on each device (log scale), the reported time as the bound."""
    figure, axes = figures.new(height=2.8)
    least = limits["least seconds a token"]
    axes.bar_label(axes.barh(least.index, least, color=figures.BLUE), " " + least.map(format_seconds), fontsize=9)
    figures.bound(axes, target, f"reported: {format_seconds(target)}", vertical=True)
    figures.log(axes, "x")
    axes.set_xlim(right=least.max() * 4)
    axes.set_xlabel("least seconds a token: 30.44 GiB of f32 weights over read bandwidth")
    axes.set_title("0.075 s is out of reach of the machine that reported it")
    figures.rows(axes)
    axes.legend(loc="lower right")
    return figure
