"""Attention and the projections: the figures of notebook 04."""

import numpy as np
import pandas as pd

from kit.findings.n04_attention.one_token import PARTS, WAYS
from kit.findings.n04_attention.variants import amdahl
from kit.lab import figures
from kit.units import format_seconds

COLORS = {
    "python": figures.BLACK,
    "loop": figures.VERMILION,
    "strided": figures.ORANGE,
    "blas": figures.BLUE,
    "sdpa": figures.SKY,
    "chunked": figures.GREEN,
    "matmul": figures.BLUE,
    "fused": figures.PURPLE,
}


def times(timed: pd.DataFrame):
    """Time of one query against its context, every variant, and the least that memory and arithmetic allow."""
    figure, axes = figures.new()
    seconds = timed.pivot(index="context", columns="variant", values="seconds")[timed["variant"].unique()]
    seconds.plot(ax=axes, marker="o", markersize=4, color=COLORS)
    timed.groupby("context")["bound"].first().plot(ax=axes, **figures.DASHED, label="least on this machine")
    figures.log(axes, "x", "y")
    axes.set(xlabel="context (positions)", ylabel="seconds a layer and token")
    slowest = seconds["loop"].iloc[-1] / seconds.iloc[-1].min()
    axes.set_title(f"Attention of one token at {seconds.index[-1]} positions: loops take {slowest:.0f} times the fastest")
    axes.legend(ncols=2)
    return figure


def shares(table: pd.DataFrame, claimed=(10, 20)):
    """Attention's share of a token, and the most that replacing it can give, with the claimed speed-up marked."""
    figure, (left, right) = figures.new(1, 2, height=4.2)
    for axes, values in ((left, 100 * table), (right, amdahl(table))):
        values.plot(ax=axes, style=["-s", "-o", "-^"], markersize=4, legend=False)
        figures.log(axes, "x", "y")
        axes.set_xlabel("context (positions)")
    left.set(ylabel="attention's share of a token (%)", title="Attention's share grows with the context")
    right.axhspan(*claimed, color=figures.YELLOW, alpha=0.5, label=f"claimed: {claimed[0]:g} to {claimed[1]:g} times")
    right.set(ylabel="times faster with no attention at all", title="The most that replacing it can give")
    right.set_ylim(0.9, max(40, amdahl(table.to_numpy().max()) * 1.5))
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    return figure


def projections(table: pd.DataFrame):
    """GB/s of weights by variant and matrix, on a log scale; the fastest read of the same rounds is the bound."""
    figure, axes = figures.new(height=4.6)
    speeds = table.pivot(index="tensor", columns="variant", values="GB/s")
    speeds = speeds.loc[table["tensor"].unique(), table["variant"].unique()].rename(lambda name: name.removesuffix(".weight"))
    speeds.plot.barh(ax=axes, width=0.8, color=COLORS, legend=False)
    for bars in axes.containers:
        axes.bar_label(bars, fmt=" {:.2g}", fontsize=8.5)
    bound = table["read GB/s"].iloc[0]
    figures.bound(axes, bound, f"read bandwidth beside, {bound:.0f} GB/s", vertical=True)
    figures.log(axes, "x")
    axes.set(xlabel="GB/s of weights, as each variant reads them (fused reads blocks, the others f32)", ylabel="")
    axes.set_xlim(right=speeds.max().max() * 2.5)
    axes.set_title("One token through a projection: strides, not attention, were the cost")
    figures.rows(axes)
    figure.legend(loc="outside lower center", ncols=5)
    return figure


def kv_speeds(table: pd.DataFrame):
    """Decoded tokens a second by attention and KV type, the bound of each type drawn above its bars."""
    figure, axes = figures.new()
    speeds = table.pivot(index="KV cache", columns="attention", values="tok/s")
    speeds = speeds.loc[table["KV cache"].unique(), table["attention"].unique()]
    speeds.plot.bar(ax=axes, width=0.8, rot=0, color=COLORS)
    bounds, places = table.groupby("KV cache", sort=False)["bound tok/s"].first(), np.arange(len(speeds))
    label = "weights and KV cache at read bandwidth"
    axes.hlines(bounds, places - 0.45, places + 0.45, **figures.DASHED, label=label)
    axes.set(xlabel="KV cache type", ylabel="tokens a second")
    axes.set_ylim(top=max(bounds.max(), table["tok/s"].max()) * 1.35)
    axes.set_title("A smaller KV cache helps only where the cache is what is read")
    axes.grid(axis="x", visible=False)
    axes.legend(ncols=3, loc="upper center")
    return figure


def roofline(table: pd.DataFrame, machine):
    """GFLOP/s over FLOPs a byte: read bandwidth and peak arithmetic are the roof."""
    figure, axes = under_a_roof(table, machine)
    for point, row in table.iterrows():
        kind, variant = point.split()[0], point.split()[1].rstrip(",")
        marker = "o" if kind == "attention" else "s"
        axes.plot(row["intensity"], row["gflops"], marker, color=COLORS[variant], markersize=8, label=point)
    axes.set_title("One token is bound by memory, a prefill by arithmetic")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8.5)
    return figure


def under_a_roof(table: pd.DataFrame, machine):
    """(figure, axes) of a roofline that is wide enough for the column "intensity"."""
    figure, axes = figures.roof(machine, table["intensity"].min() / 2, table["intensity"].max() * 2, height=4.8)
    axes.set(xlabel="FLOPs a byte read", ylabel="GFLOP/s")
    return figure, axes


def token_bars(tokens: pd.DataFrame, least: float):
    """Stacked bars of one token by part and way, with the least that reading f32 takes."""
    medians = tokens.groupby(level="way", sort=False).median()[list(PARTS)].clip(lower=0)
    medians.index = [WAYS[way].label for way in medians.index]
    loops = medians.loc[WAYS["again"].label]
    title = f"With all weights cached, looped projections are {loops['projections'] / loops.sum():.0%} of a token"
    figure, (_, log) = figures.stacked_bars_twice(medians, "seconds a token", (title, "The same on a log scale"))
    figures.bound(log, least, f"all f32 weights read once: {format_seconds(least)}", vertical=True)
    figure.legend(*log.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
