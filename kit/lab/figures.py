"""The style of every figure: color-blind safe, readable at 800 px, bounds drawn as dashed lines."""

import copy
import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else its import and its first use tell of a cache, amid the output

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FixedFormatter  # noqa: E402

from kit.units import format_seconds  # noqa: E402

# Okabe and Ito's palette: distinguishable with every common kind of color blindness, and in gray. Their yellow (#F0E442) is
# darker here: it had no contrast on white, and none on a dark page, which turns light into dark.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#A69000", "#000000",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK)

INK = "#444444"  # of small text: orange has a contrast of 2.3 on white, and none in a dark view

FILES = ("png", "svg", "pdf")  # endings of a picture's name

STYLE = {
    "figure.figsize": (8.0, 4.2),
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "axes.prop_cycle": plt.cycler(color=PALETTE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "font.size": 10.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.bbox": "tight",
    "text.parse_math": False,  # a tensor or file name may hold a $
}


PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # under a label, so that no line crosses it
DASHED = {"color": BLACK, "linestyle": "--", "linewidth": 1.2}  # of every bound
CLAIMED = {"facecolor": "#A6900055", "edgecolor": YELLOW, "linewidth": 1.0, "hatch": "//"}  # of a span that a claim names


class Titled(Figure):
    """A figure whose text form is its titles: what a page says to those who do not see it."""

    def __repr__(self):
        titles = [self.get_suptitle(), *(axes.get_title("left") or axes.get_title() for axes in self.axes)]
        return "; ".join(filter(None, titles)) or super().__repr__()


def new(rows: int = 1, columns: int = 1, height: float | None = None, **kwargs):
    """(figure, axes) in the house style, 8 inches wide; ``height`` in inches."""
    plt.rcParams.update(STYLE)
    width, default = STYLE["figure.figsize"]
    size = (width, height or default * rows)
    return plt.subplots(rows, columns, figsize=size, FigureClass=Titled, **kwargs)


def lines(table, across: str, up: str, height: float = 3.4, logs: str = "", **look):
    """(figure, axes) with a line of each column of ``table`` over its index. ``across``, ``up``: labels of the axes, ``logs``:
    those in log scale ("x", "xy"), ``look``: further arguments of DataFrame.plot."""
    figure, axes = new(height=height)
    marks = [f"-{mark}" for mark, _ in zip("os^Dv*PX", table, strict=False)]
    table.plot(ax=axes, legend=False, **({"style": marks} | look))
    log(axes, *logs)
    axes.set(xlabel=across, ylabel=up)
    return figure, axes


def bars(values, across: str, height: float = 2.6, write=lambda value: f"{value:.3g}", color=BLUE):
    """(figure, axes) with a bar of each value of a Series from the top down, and the value behind it as ``write`` has it."""
    figure, axes = new(height=height)
    drawn = axes.barh(values.index, values, color=color)
    axes.bar_label(drawn, [write(value) for value in values], padding=4, fontsize=9, bbox=PLATE)
    rows(axes)
    axes.set_xlabel(across)
    axes.xaxis.set_major_formatter(lambda value, _: write(value))  # no "1e-5" at its end
    axes.margins(x=0.2)  # room for the values
    return figure, axes


def bound(axes: Axes, value: float, label: str, vertical: bool = False) -> None:
    """Draw a bound as a dashed black line with its label in the legend."""
    line = axes.axvline if vertical else axes.axhline
    line(value, label=label, **DASHED)


def log(axes: Axes, *names: str, write=lambda value: f"{value:g}") -> None:
    """Log scale on the axes named ("x", "y"), labeled by ``write``: mathtext is off in this style. An axis of less than two
    decades has labels at 2 and 5, too."""

    def between(axis, value):
        low, high = axis.get_view_interval()
        return write(value) if high < 100 * low and f"{value:e}"[0] in "25" else ""

    axes.use_sticky_edges = False  # its tolerance is linear: a bar that ends at 1e6 would cut off all that is below 10
    for name in names:
        getattr(axes, f"set_{name}scale")("log")
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter(lambda value, _: write(value))
        axis.set_minor_formatter(lambda value, _, axis=axis: between(axis, value))


def rows(axes: Axes) -> None:
    """Horizontal bars from the top down, without lines between them."""
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def roof(machine, low: float, high: float, height: float | None = None):
    """(figure, axes) with a machine's roofline from ``low`` to ``high`` FLOPs a byte."""
    figure, axes = new(height=height)
    places = np.geomspace(low, high, 200)
    label = f"roof: {machine.read_gbps:.0f} GB/s, {machine.f32_gflops:.0f} GFLOP/s"
    axes.plot(places, np.minimum(machine.f32_gflops, machine.read_gbps * places), **DASHED, label=label)
    log(axes, "x", "y")
    axes.set_ylim(top=2.5 * machine.f32_gflops)  # room for labels above the roof
    return figure, axes


def over_kl(axes: Axes) -> None:
    """What is drawn are speeds in llama.cpp's over KL divergence from float32: log scale, and a line at its own speed."""
    axes.axhline(1, **DASHED)
    log(axes, "x", write="{:.0e}".format)
    axes.tick_params(axis="x", labelsize=8.5)


def against_kl(times, kl):
    """(figure, axes) with a point a way or peer: ``times`` the speed of llama.cpp over ``kl``, Series of the same index. The
    marks are hollow, and each is larger than the one before it, so that none hides another; the title has the fastest."""
    figure, axes = new(height=3.2)
    for number, (name, mark) in enumerate(zip(times.index, "os^DvhPX", strict=False)):
        size = 7 + 2 * number
        axes.plot(kl[name], times[name], mark, ms=size, mfc="none", mew=1.8, label=f"{name}, KL {kl[name]:.2g}")
    over_kl(axes)
    axes.set(xlabel="KL divergence from float32 (nats): left is exact", ylabel="speed / llama.cpp's")
    axes.set_ylim(0, 1.1 * times.max())  # the peer's own mark stands whole where nobody is faster
    figure.legend(fontsize=8.5, ncols=2, loc="outside lower center")
    fastest = times.idxmax()
    axes.set_title(f"{fastest}: {times[fastest]:.2f} times as fast as llama.cpp, with KL {kl[fastest]:.2g}")
    return figure, axes


def thumbnail(figure, path) -> None:
    """Save the figure in 3.2 x 1.8 inches without legends, titles and axis labels; the figure itself is not changed."""
    small = copy.deepcopy(figure)
    small.set_size_inches(3.2, 1.8)
    small.legends.clear()  # a hidden legend would still take space
    for axes in small.axes:
        hidden = [axes.get_legend(), axes.xaxis.label, axes.yaxis.label, axes._left_title, axes.title, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):  # the names of bars, and every other number
            named = axis.have_units() or isinstance(axis.get_major_formatter(), FixedFormatter)
            hidden += axis.get_ticklabels()[:: 1 if named else 2]
        for artist in filter(None, hidden):
            artist.set_visible(False)
    small.savefig(path, dpi=200)
    plt.close(small)  # a copy is a figure of pyplot, too, which a notebook would show


def dumbbells(table):
    """(figure, axes) in seconds: a row for each of ``table``, whose column "predicted" is hollow and "measured" filled, with a
    line between them; "least" is a stroke. A column may be missing, a measured time be nan."""
    figure, axes = new(height=1.2 + 0.3 * len(table))
    filled = {"predicted": {"mfc": "white", "marker": "o"}, "measured": {"marker": "o"}}
    strokes = {"least": {"marker": "|", "markersize": 13, "color": BLACK}}
    if "measured" in table:
        axes.hlines(table.index, table["predicted"], table["measured"], color="#999999", linewidth=1.5)
    for column, style in (filled | strokes).items():
        if column in table:
            axes.plot(table[column], table.index, **{"color": BLUE, "linestyle": "", "label": column} | style)
    log(axes, "x", write=format_seconds)
    rows(axes)
    axes.set(xlabel="time per token")
    figure.legend(ncols=3, loc="outside lower center")
    return figure, axes


FORESEEN = "hollow: predicted; full: measured, with the error of the prediction"  # what the marks of ``foreseen`` are


def foreseen(axes: Axes, across, predicted, measured, label: str, mark: str) -> None:
    """A line of predictions with hollow marks over ``across``, and what was measured of them (nan: nothing) as full ones of the
    same shape, each with the error of its prediction in percent."""
    [line] = axes.plot(across, predicted, f"{mark}-", mfc="white", lw=1.4, zorder=4, label=label)
    axes.plot(across, measured, mark, color=line.get_color(), zorder=5)
    axes.vlines(across, predicted, measured, color=line.get_color(), linestyle=":", lw=1.6)
    for x, guess, real in zip(across, predicted, measured, strict=True):
        if real == real:  # the number is on the other side of the full mark
            place = {"xytext": (0, 7 if real >= guess else -7), "va": "bottom" if real >= guess else "top"}
            axes.annotate(f"{guess / real - 1:+.0%}", (x, real), textcoords="offset points", ha="center", fontsize=8,
                          color=INK, bbox=PLATE, zorder=3, **place)  # fmt: skip


def stacked_bars(axes: Axes, table, told=None) -> None:
    """Horizontal stacked bars: one for each row of ``table`` (columns: parts), with ``told`` at the ends, a text for each; by
    default the totals as seconds."""
    left = table.iloc[:, 0] * 0  # pandas' bars lie at numbers, and thumbnail hides names only where bars lie at names
    for (part, values), color in zip(table.items(), PALETTE, strict=False):
        bars = axes.barh(table.index, values, left=left, label=part, color=color)
        left = left + values
    axes.bar_label(bars, [*(told or map(format_seconds, left))], padding=4, fontsize=9, bbox=PLATE)
    rows(axes)
