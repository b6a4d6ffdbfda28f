"""Figures of a study: the time by family, hits by policy over memory, what each way would bring; one with live controls."""

import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

import kit
from kit.cache.traces import Requests
from kit.costs.measured import DTYPES
from kit.costs.tables import REST, policies, upper_bound
from kit.costs.ways import BLOCKS, Way, parts_of, predict
from kit.lab import figures
from kit.units import format_bytes

SHOWN = ("LRU", "Random", "CyclicAware", "Pinned", "MIN")  # one of those at 0, one between, and the best


def families(table: pd.DataFrame, biggest: int = 6):
    """Seconds of a token by family of tensors, three ways: dequantized each time, once, straight from the blocks."""
    costs = table.fillna(0.0)[["dequantize", "multiply", "from blocks"]]
    rest = costs[costs.index == REST]
    costs = costs.drop(rest.index)
    others = costs.iloc[biggest:].sum().to_frame("all others").T if len(costs) > biggest else costs.iloc[:0]
    shown = pd.concat([costs.iloc[:biggest], others, rest])
    ways = {
        "dequantized each time": shown["dequantize"] + shown["multiply"],
        "dequantized once, kept": shown["multiply"],
        "straight from blocks": shown["from blocks"],
    }
    figure, axes = figures.new(height=2.9)
    figures.stacked_bars(axes, pd.DataFrame(ways).T)
    axes.set_xlim(0, 1.15 * max(values.sum() for values in ways.values()))
    lost = shown["dequantize"].sum() / ways["dequantized each time"].sum()
    axes.set(xlabel="seconds a token (sum of the measured costs)")
    axes.set_title(f"Where nothing is kept, dequantizing is {lost:.0%} of a token")
    axes.legend(ncols=4, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.45, -0.27))
    return figure


def hits(accesses: Requests, memory: int, points: int = 12):
    """Share of bytes hit after the first token against the memory given, a line a policy, the bound dashed."""
    figure, axes = figures.new(height=3.8)
    whole = accesses.working_set
    sizes = np.unique(np.linspace(0.05, 1.0, points) * whole).astype(int)
    curves = {size: policies(accesses, size, SHOWN) for size in sizes.tolist()}
    unit, scale = ("GiB", 2**30) if whole >= 2**30 else ("MiB", 2**20)
    for name, style in zip(SHOWN, ("-", "-", "-", "-", ":"), strict=True):
        axes.plot(sizes / scale, [100 * curves[size].loc[name, "bytes hit"] for size in sizes], style, label=name)
    bound = [100 * upper_bound(accesses, size) for size in sizes]
    axes.plot(sizes / scale, bound, **figures.DASHED, label="bound without prefetch")
    axes.axvline(min(memory, whole) / scale, color="#777777", linewidth=1, label=f"given: {format_bytes(memory)}")
    axes.set(xlabel=f"{unit} of cache (right end: everything fits)", ylabel="bytes hit, %")
    given = 100 * policies(accesses, memory, SHOWN)["bytes hit"]
    best = given.drop("MIN").idxmax()
    axes.set(title=f"With {format_bytes(memory)} LRU hits {given['LRU']:.0f}% of the bytes, {best} {given[best]:.0f}%")
    axes.set_ylim(-3, 103)
    axes.legend(fontsize=8.5, loc="upper left")
    return figure


def advice(table: pd.DataFrame):
    """Predicted seconds a token as bars, measured as dots, the least possible as a line in each bar."""
    figure, axes = figures.new(height=1.5 + 0.36 * len(table))
    now, best = table["predicted"].iloc[0], table["predicted"].idxmin()
    colors = [figures.VERMILION, *[figures.SKY] * (len(table) - 1)]
    labels = ["predicted, now", "predicted, instead", *["_"] * (len(table) - 2)]  # matplotlib skips what begins with _
    axes.barh(table.index, table["predicted"], color=colors, label=labels)
    rows = np.arange(len(table))
    axes.vlines(table["least"], rows - 0.4, rows + 0.4, color=figures.BLACK, linestyle="--", linewidth=1.4, label="least")
    if "measured" in table:
        axes.plot(table["measured"], rows, "D", color=figures.ORANGE, markeredgecolor="black", label="measured")
    figures.log(axes, "x")
    axes.set(xlabel="seconds a token (least: its bytes at this machine's bandwidth)")
    axes.set_title(f"{best}: {now / table.loc[best, 'predicted']:.1f} times as fast as now, predicted")
    figures.rows(axes)
    axes.legend(fontsize=8.5, loc="upper center", bbox_to_anchor=(0.4, -0.12 - 0.5 / len(table)), ncols=4)
    return figure


def at(study, memory: int, dtype: str):
    """Both questions for one choice: which share of the bytes each policy hits, what a token then takes."""
    accesses = study.trace or study.order.requests(kit.Weights(study.file, dtype=dtype).nbytes)
    figure, (left, right) = figures.new(1, 2, height=3.2)
    left.barh(SHOWN, 100 * policies(accesses, memory, SHOWN)["bytes hit"][list(SHOWN)], color=figures.SKY)
    figures.bound(left, 100 * upper_bound(accesses, memory), "bound", vertical=True)
    left.set(xlabel="bytes hit, %", title=f"With {format_bytes(memory)}, {dtype}", xlim=(0, 105))
    ways = [*(Way(name, memory, dtype) for name in SHOWN if name != "MIN"), BLOCKS]
    parts = parts_of(study.file, study.order)
    seconds = [predict(way, parts, study.order, study.costs, study.machine).seconds for way in ways]
    names = [*(way.policy for way in ways[:-1]), "blocks"]
    right.barh(names, seconds, color=figures.ORANGE)
    right.set(xlabel="seconds a token, predicted", title=f"Fastest: {names[int(np.argmin(seconds))]}")
    for axes in (left, right):
        figures.rows(axes)
    left.legend(fontsize=8.5)
    return figure


def explore(study) -> None:
    """The figure ``at`` for a memory and a dtype that a user of JupyterLab chooses by two controls. In a batch it is drawn
    once, for the memory that was given and float32."""
    if "JPY_SESSION_NAME" not in os.environ:  # Jupyter's server names the notebook to its kernel, a batch does not
        at(study, study.memory, DTYPES[0])
        return
    import ipywidgets

    largest = study.accesses.working_set
    sizes = sorted({study.memory, *np.linspace(largest / 24, largest, 24).astype(int).tolist()})
    memory = ipywidgets.SelectionSlider(
        options=[(format_bytes(size), size) for size in sizes], value=study.memory, description="memory",
        continuous_update=False,
    )  # fmt: skip
    dtype = ipywidgets.Dropdown(options=DTYPES, description="dtype")

    def draw(memory, dtype):
        at(study, memory, dtype)
        plt.show()

    display(ipywidgets.HBox([memory, dtype]), ipywidgets.interactive_output(draw, {"memory": memory, "dtype": dtype}))
