"""The frontier as pictures: seconds a token against memory, predictions against measurements."""

import numpy as np

from kit.costs.measured import DTYPES
from kit.costs.ways import BLOCKS, BLOCKS_INT8, SHORT, Measured, Prediction
from kit.findings.n07_memory_frontier import sweep, tiles
from kit.lab import figures

COLORS = dict(zip(DTYPES, (figures.BLUE, figures.GREEN, figures.SKY), strict=True)) | {"int8": figures.PURPLE}
LINES = {"LRU": ":", "CyclicAware": "-.", "Pinned": "-"}
BLOCK_MARKS = {BLOCKS: "*", BLOCKS_INT8: "P", sweep.PRESSED: "X"}
_RING = {
    "marker": "o",
    "markersize": 7,
    "markerfacecolor": "white",
    "markeredgewidth": 1.8,
    "linewidth": 0,
    "zorder": 5,
}
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (1, "B"))


def plane(subject, predictions: list[Prediction], costs, rings=(), memory: int | None = None):
    """Seconds a token (log) against memory in use: predictions as lines, measurements as rings, the Pareto front.

    ``rings``: see rings. ``memory``: what there is, as a line.
    """
    figure, axes = figures.new(height=5.6)
    unit, name = next((size, name) for size, name in UNITS if max(p.total for p in predictions) >= size)
    for dtype in (*DTYPES, "int8"):
        for linear in ("decoded", *tiles.LINEARS):
            for policy, style in LINES.items():
                line = _line(predictions, dtype, linear, policy)
                if len(line) > 2:
                    label = f"{SHORT[dtype]}{'' if linear == 'matmul' else ' ' + linear}, {policy}"
                    style = "--" if linear == tiles.PREFETCHED else style
                    axes.plot(
                        [p.total / unit for p in line],
                        [p.seconds for p in line],
                        style,
                        color=COLORS[dtype],
                        label=label,
                    )
    for way, mark in BLOCK_MARKS.items():
        found = next(p for p in predictions if p.way == way)
        axes.plot(
            found.total / unit, found.seconds, mark, color=figures.VERMILION, markersize=10, label=way.label, zorder=4
        )
    front = sweep.pareto(predictions)
    axes.step([p.total / unit for p in front], [p.seconds for p in front], where="post", color=figures.YELLOW, linewidth=6,
              alpha=0.6, zorder=0, label="Pareto front")  # fmt: skip
    for place, (nbytes, seconds, dtype) in enumerate(rings):
        axes.plot(
            nbytes / unit, seconds, label=None if place else "measured", **_RING | {"markeredgecolor": COLORS[dtype]}
        )
    blocks = sum(part.blocks for part in subject.parts.values())
    for text, nbytes in (("f32 weights read once", subject.working_set("float32")), ("blocks read once", blocks)):
        seconds = costs.machine.seconds_to_read(nbytes)
        figures.bound(axes, seconds, None)
        axes.annotate(f"least: {text}", (1, seconds), xycoords=("axes fraction", "data"), xytext=(-2, 3),
                      textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
    pressed = next(found for found in predictions if found.way == sweep.PRESSED)
    axes.hlines(pressed.seconds, 0, blocks / unit, color=figures.VERMILION, linestyle=":", linewidth=1.4)
    if memory:
        axes.axvline(memory / unit, color="#777777", linewidth=1.4, label=f"{memory / unit:.3g} {name}")
    figures.log(axes, "y")
    axes.set(xlabel=f"{name} of memory in use: decoded weights and pages of the file", ylabel="seconds a token")
    axes.set_xlim(left=0)
    axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.48, -0.12))
    return figure, axes


def _line(predictions, dtype, linear, policy):
    """The predictions of one policy with its ends: nothing kept, everything kept."""
    kept = {policy, "NoCache", "HashMap"}
    line = [p for p in predictions if (p.way.dtype, p.way.linear) == (dtype, linear) and p.way.policy in kept]
    if not any(p.way.policy == policy for p in line):
        return []
    return sorted(line, key=lambda p: (p.way.policy != "NoCache", p.way.policy == "HashMap", p.way.capacity or 0))


def rings(
    predictions: list[Prediction], measured: list[Measured], scale: float = 1.0
) -> list[tuple[float, float, str]]:
    """Memory, seconds and dtype of what was measured; those of a larger model of the same layers are ``scale`` times that."""
    totals = {found.way: found.total for found in predictions}
    return [(scale * totals[found.way], scale * found.seconds, found.way.dtype) for found in measured]


def errors(predictions: list[Prediction], measured: list[Measured]):
    """Measured against predicted seconds a token, on the line where they are equal."""
    figure, axes = figures.new(height=4.2)
    seconds = {p.way: p.seconds for p in predictions}
    pairs = np.array([(seconds[found.way], found.seconds) for found in measured])
    ends = np.array([pairs.min() / 1.4, pairs.max() * 1.4])
    axes.plot(ends, ends, "--", color=figures.BLACK, linewidth=1.2, label="predicted = measured")
    axes.fill_between(ends, ends / 1.25, ends * 1.25, color="#dddddd", alpha=0.5, label="within a quarter")
    for dtype in dict.fromkeys(found.way.dtype for found in measured):
        some = np.array([(seconds[f.way], f.seconds) for f in measured if f.way.dtype == dtype])
        axes.plot(some[:, 0], some[:, 1], "o", color=COLORS[dtype], label=SHORT[dtype])
    figures.log(axes, "x", "y")
    axes.set(
        xlabel="predicted seconds a token", ylabel="measured seconds a token", title="How far the predictions are off"
    )
    axes.legend(fontsize=9)
    return figure
