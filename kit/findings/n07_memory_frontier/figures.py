"""The frontier as pictures: seconds a token against memory, predictions against measurements, quality as color."""

import numpy as np
from matplotlib.colors import LogNorm

from kit.costs.tables import off_by
from kit.costs.ways import BLOCKS, BLOCKS_INT8, Measured, Prediction
from kit.findings.n07_memory_frontier import sweep, tiles
from kit.lab import figures

LINES = {  # name -> (dtype, linear, policy), color, style
    "f32, LRU": (("float32", "dequantized", "LRU"), figures.VERMILION, ":"),
    "f32, pinned": (("float32", "dequantized", "Pinned"), figures.BLUE, "-"),
    "f16, pinned": (("float16", "dequantized", "Pinned"), figures.GREEN, "-"),
    "INT8 tiles, pinned": (("int8", tiles.PLAIN, "Pinned"), figures.PURPLE, "-"),
    "blocks, pinned": (("float32", sweep.PINNED_BLOCKS, "Pinned"), figures.BLACK, "-"),
}
MARKS = {BLOCKS: "*", BLOCKS_INT8: "P"}
FAINTEST = 1e-6  # nats: below that a way counts as exact


def plane(subject, predictions: list[Prediction], costs, rings=(), memory: int | None = None, title: str = ""):
    """Seconds a token (log) against memory in use: predictions as lines, measurements as rings, the Pareto front below.
    ``rings``: see rings. ``memory``: what there is, as a line."""
    figure, axes = figures.new(height=5.2)
    unit, name = (2**30, "GiB") if max(p.total for p in predictions) >= 2**30 else (2**20, "MiB")
    front = sweep.pareto(predictions)
    axes.step([p.total / unit for p in front], [p.seconds for p in front], where="post", color=figures.YELLOW, linewidth=6,
              alpha=0.6, zorder=0, label="Pareto front")  # fmt: skip
    for label, (key, color, style) in LINES.items():
        line = _line(predictions, *key)
        axes.plot([p.total / unit for p in line], [p.seconds for p in line], style, color=color, label=label)
    for way, mark in MARKS.items():
        found = next(p for p in predictions if p.way == way)
        axes.plot(found.total / unit, found.seconds, mark, color=figures.ORANGE, markersize=11, label=way.label, zorder=4)
    if rings:
        held, seconds, kl = zip(*rings, strict=True)
        colors = np.maximum(FAINTEST, kl)
        norm = LogNorm(FAINTEST, max(1e-2, np.nanmax(colors)))
        drawn = axes.scatter(np.array(held) / unit, seconds, c=colors, norm=norm, cmap="cividis_r",
                             s=46, edgecolors=figures.BLACK, linewidths=0.9, zorder=5, label="measured")  # fmt: skip
        figure.colorbar(drawn, ax=axes, label="KL divergence from f32, nats", format=lambda value, _: f"{value:g}", pad=0.02)
    seconds = costs.machine.seconds_to_read(subject.blocks)
    figures.bound(axes, seconds, None)
    axes.annotate("least: blocks read once", (1, seconds), xycoords=("axes fraction", "data"), xytext=(-2, 3),
                  textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
    if memory:
        axes.axvline(memory / unit, color="#777777", linewidth=1.4, label=f"{memory / unit:.3g} {name}")
    figures.log(axes, "y")
    axes.set(xlabel=f"{name} of memory in use: weights and pages of the file", ylabel="seconds a token", title=title)
    axes.set_xlim(left=0)
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8.5, ncols=4, loc="outside lower center")
    return figure


def _line(predictions, dtype, linear, policy):
    """The predictions of one policy with its ends: nothing kept, everything kept."""
    ends = {"NoCache", "HashMap"}
    line = [p for p in predictions if (p.way.dtype, p.way.linear) == (dtype, linear) and p.way.policy in {policy, *ends}]
    if linear == sweep.PINNED_BLOCKS:
        line += [p for p in predictions if p.way in (sweep.PRESSED, BLOCKS)]
    return sorted(line, key=lambda p: (p.way.policy == "HashMap", p.total))


def rings(predictions: list[Prediction], measured: list[Measured], quality, scale: float = 1.0) -> list[tuple]:
    """Bytes of memory, seconds and KL divergence of what was measured, ``scale`` times for a larger model of the same layers.
    ``quality``: of kit.costs.quality; NaN where it has no row."""
    totals, kl = {found.way: found.total for found in predictions}, quality["kl"]
    return [(scale * totals[m.way], scale * m.seconds, kl.get(m.way.precision, np.nan)) for m in measured]


def errors(table):
    """Measured against predicted seconds a token of sweep.table, with the line where they are equal."""
    figure, axes = figures.new(height=4.2)
    pairs = table[["predicted", "measured"]].dropna().to_numpy()
    off = off_by(table["factor"].dropna())
    ends = np.array([pairs.min() / 1.4, pairs.max() * 1.4])
    axes.plot(ends, ends, **figures.DASHED, label="predicted = measured")
    axes.fill_between(ends, ends / 1.25, ends * 1.25, color="#dddddd", alpha=0.5, label="within a factor of 1.25")
    axes.plot(pairs[:, 0], pairs[:, 1], "o", color=figures.BLUE, label="a way")
    figures.log(axes, "x", "y")
    axes.set(xlabel="predicted seconds a token", ylabel="measured seconds a token")
    axes.set(title=f"{(off <= 1.25).sum()} of {len(off)} predictions are within a factor of 1.25")
    axes.legend(fontsize=9)
    return figure
