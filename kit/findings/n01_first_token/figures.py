"""First token: the phases as bars, the tensors as a Gantt chart, the bandwidth that the claim would need."""

import pandas as pd

from kit.findings.n01_first_token.tables import typical_runs
from kit.findings.n01_first_token.ways import WAYS, Run
from kit.lab import figures
from kit.units import format_seconds


def bars(runs: list[Run]):
    """Stacked bars of the phases, linear and on a log scale: a phase that vanishes in one is told in the other."""
    parts = pd.DataFrame({WAYS[way].label: run.phases for way, run in typical_runs(runs).items()}).T
    figure, (linear, log) = figures.new(2, height=6.6)
    for axes in (linear, log):
        figures.stacked_bars(axes, parts)
        axes.set_xlabel("seconds from the closed file to the token (warm: from the request)", fontsize=9.5)
    figures.log(log, "x")
    log.set_xlim(parts.sum(axis=1).min() / 20, parts.sum(axis=1).max() * 4)
    linear.set_title("Preloading moves the cost; it does not remove it")
    log.set_title("The same on a log scale: from blocks almost nothing is dequantized")
    linear.legend(loc="center right")
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
        order = {name: row for row, name in enumerate(dict.fromkeys(spans["tensor"]))}
        for what, color in colors.items():
            some = spans[spans["what"] == what]
            axes.barh(
                some["tensor"].map(order),
                some["seconds"],
                left=some["start"],
                height=1,
                color=color,
                label=names.get(what, what),
            )
        axes.set(title=WAYS[way].label, ylabel="tensor")
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
