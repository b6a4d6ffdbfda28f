"""Every way to hold weights, replayed on whole models: policy by capacity, pinned sets, and where the ranking reverses."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib import cycler

from kit.cache import POLICIES
from kit.cache.bounds import CYCLIC, cyclic_hit_rate, interval_bound, knapsack, lru_hit_curve, min_hit_curve
from kit.cache.policies.base import LFU, LRU, Policy
from kit.cache.policies.pinned import Pinned, RowPlan
from kit.cache.replay import replay, replay_hits
from kit.cache.traces import Requests, decode_order, mixture_of_experts, repeated
from kit.gguf.names import layer_of
from kit.lab import figures, tables
from kit.synthetic.geometry import GEOMETRIES

FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def closed_forms(objects: int, fraction: float) -> pd.DataFrame:
    """Predicted steady hit rates on a scan of equal objects at this capacity, beside a replay of 60 passes."""
    capacity = max(2, round(fraction * objects))
    scan = repeated([(f"{number}", 1) for number in range(objects)], 60)
    rows = {}
    for name in CYCLIC:
        form = cyclic_hit_rate(name, objects, capacity)
        if name in POLICIES:
            rows[name] = (form, warm_rates(scan, POLICIES[name](capacity), 30)[0])
    table = pd.DataFrame(rows, index=["closed form", "replayed"]).T
    return table.assign(difference=table["replayed"] - table["closed form"])


def dense(tokens: int) -> Requests:
    """A decode of ``tokens`` tokens of the whole granite-3.3-8b, in f32."""
    return repeated(decode_order(GEOMETRIES["granite-3.3-8b"]), tokens)


def warm_rates(trace: Requests, policy: Policy, warm: int) -> tuple[float, float]:
    """Hit rate and byte hit rate from token ``warm`` on; the replay starts cold at the beginning."""
    _, hit = replay_hits(trace, policy)
    late = np.array(trace.tokens) >= warm
    sizes = np.array(trace.sizes, float)[late]
    return float(hit[late].mean()), float(sizes[hit[late]].sum() / sizes.sum())


def curves(trace: Requests, fractions=FRACTIONS) -> pd.DataFrame:
    """Policy by capacity (fractions of the working set): hit rate and byte hit rate over the trace's second half."""
    warm = (max(trace.tokens) + 1) // 2
    rows = [
        (name, fraction, *warm_rates(trace, make(trace.share(fraction)), warm))
        for name, make in POLICIES.items()
        for fraction in fractions
    ]
    return pd.DataFrame(rows, columns=["policy", "capacity / working set", "hit rate", "byte hit rate"])


def alike(named: Iterable[tuple[str, object]]) -> list[tuple[list[str], object]]:
    """Curves (or pictures) that nowhere differ by more than 0.02 are one: (their names, the first), the largest first."""
    found: list[tuple[list[str], object]] = []
    for name, values in named:
        same = next((names for names, first in found if np.abs(values - first).max() <= 0.02), None)
        found.append(([name], values)) if same is None else same.append(name)
    return sorted(found, key=lambda group: -group[1].mean())


def families(table: pd.DataFrame, column: str) -> list[tuple[str, pd.Series]]:
    """Policies whose curves are alike share a line: (their names, the first one's curve)."""
    wide = table.pivot(index="capacity / working set", columns="policy", values=column)[table["policy"].unique()]
    return [(", ".join(names), curve) for names, curve in alike(wide.items())]


_COLORS = [color for color in figures.PALETTE if color not in (figures.BLACK, figures.YELLOW)]
_LINES = cycler(linestyle=["-", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1))]) * cycler(color=_COLORS)


def curves_figure(by_objects: pd.DataFrame, by_bytes: pd.DataFrame):
    """Two panels, objects of one size and true bytes: a line a family of policies, drawn as its first; the bound dashed."""
    figure, panels = figures.new(2, height=8.4)
    styles = dict(zip(by_objects["policy"].unique(), _LINES, strict=False))
    titles = ("Equal objects: most policies hit nothing until all fit", "True sizes: what is large decides, the bound stays")
    columns = ("hit rate", "byte hit rate")
    for axes, table, column, title in zip(panels, (by_objects, by_bytes), columns, titles, strict=True):
        for names, curve in families(table, column):
            axes.plot(100 * curve.index, 100 * curve, label=names, **styles[names.partition(",")[0]])
        axes.plot([0, 100], [0, 100], **figures.DASHED, label="bound: capacity / total")
        axes.set(ylabel=f"warm {column}, %", xlabel="capacity, % of the working set", title=title)
        axes.legend(loc="upper left", fontsize=8.5)
    return figure


def live_figure(points: pd.DataFrame, fraction: float):
    """Warm byte hit rate by policy (see live.points): replayed as a bar, live as a dot; capacity / total dashed."""
    points = points.sort_values("replayed", kind="stable")
    figure, axes = figures.new(height=4.4)
    axes.barh(points.index, 100 * points["replayed"], color=figures.SKY, label="replayed from names and sizes")
    axes.plot(100 * points["live"], points.index, "o", color=figures.VERMILION, ms=5, label="live, with the weights")
    figures.bound(axes, 100 * fraction, "bound: capacity / total", vertical=True)
    axes.set(xlabel=f"warm byte hit rate at a capacity of {fraction:.0%}, %", title="Live runs hit what the replays say")
    axes.set_xlim(0, 160 * max(fraction, points.max(axis=None)))
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    return figure


def layer_shares(trace: Requests, policy: Policy) -> np.ndarray:
    """(layers, tokens): the share of the bytes asked for that hit; output norm and projection are one more layer, the last."""
    layers = np.array([layer_of(key) for key in trace.keys])
    layers[layers < 0] = layers.max() + 1
    tokens, sizes = np.array(trace.tokens), np.array(trace.sizes, float)
    asked, held = (np.zeros((layers.max() + 1, tokens.max() + 1)) for _ in range(2))
    np.add.at(asked, (layers, tokens), sizes)
    np.add.at(held, (layers, tokens), sizes * replay_hits(trace, policy)[1])
    return np.divide(held, asked, out=np.zeros_like(held), where=asked > 0)


def heat_maps(trace: Requests, fraction: float, policies=POLICIES):
    """Hits over tokens x layers, a panel for each pattern with its policies: white is a miss, dark a layer that was held. The
    title names the policies without any hit."""
    capacity = trace.share(fraction)
    patterns = alike((name, layer_shares(trace, make(capacity))) for name, make in policies.items())
    empty = [name for names, share in patterns if not share.any() for name in names]
    patterns = [(names, share) for names, share in patterns if share.any()]
    rows = max(1, -(-len(patterns) // 3))
    figure, grid = figures.new(rows, 3, height=1.0 + 2.2 * rows, sharex=True, sharey=True, squeeze=False)
    for axes, (names, share) in zip(grid.flat, patterns, strict=False):
        image = axes.imshow(100 * share, aspect="auto", cmap="Blues", vmin=0, vmax=100, origin="lower")
        axes.set_title(", ".join(names), fontsize=9.5)
        axes.grid(visible=False)
    for axes in grid.flat[len(patterns) :]:
        axes.set_visible(False)
    if patterns:
        figure.colorbar(image, ax=grid, label="bytes hit, %", shrink=0.6)
    figure.suptitle(f"Hits by layer and token; no hits at all: {', '.join(empty) or 'none of the policies'}", fontsize=11)
    figure.supxlabel("token", fontsize=10)
    figure.supylabel("layer", fontsize=10)
    return figure


# --- what to pin ----------------------------------------------------------------------------------------------------


def pinned_sets(trace: Requests, fraction: float, costs: dict[str, float] | None = None) -> pd.DataFrame:
    """Four ways to choose a static set of this capacity: bytes held, warm byte hit rate, and its share of the bound. ``costs``:
    what a miss of each object costs (seconds, measured); bytes when there are none."""
    sizes, capacity = trace.objects, trace.share(fraction)
    chosen = knapsack({name: (costs or sizes).get(name, 0) for name in sizes}, sizes, capacity)
    ways = {"first come": (trace, Pinned(capacity)), "knapsack": (trace, Pinned(capacity, names=chosen))}
    for name, spread in (("rows, in order", False), ("rows, the same share of each", True)):
        plan = RowPlan(capacity, {name: (max(1, size // 4096), min(size, 4096)) for name, size in sizes.items()}, spread)
        ways[name] = plan.requests(trace), plan.policy()
    rows = []
    for name, (accesses, policy) in ways.items():
        hits, byte_hits = warm_rates(accesses, policy, 1)
        held = replay(accesses, policy).resident_bytes / capacity
        rows.append((name, held, hits, byte_hits, byte_hits * trace.working_set / capacity))
    return tables.frame(rows, "pinned", "capacity used", "hit rate", "byte hit rate", "of the bound")


# --- where the ranking reverses -------------------------------------------------------------------------------------


def compare_kinds(kinds: dict[str, Requests], fraction: float) -> pd.DataFrame:
    """Policy by trace at one capacity (a fraction of each working set): byte hit rate of the whole run, and its bound."""
    columns = {}
    for kind, trace in kinds.items():
        capacity = trace.share(fraction)
        rates = {name: replay(trace, make(capacity)).byte_hit_rate for name, make in POLICIES.items()}
        columns[kind] = rates | {"bound": interval_bound(trace, capacity)}
    return pd.DataFrame(columns)


def kinds_figure(table: pd.DataFrame, fraction: float):
    """Bars by policy for each kind of model, in the order of the first kind; the bound as a dashed line."""
    order = table.drop("bound").sort_values(table.columns[0], ascending=False)
    figure, panels = figures.new(1, len(table.columns), height=4.6, sharey=True)
    for axes, kind, color in zip(panels, table.columns, (figures.BLUE, figures.ORANGE, figures.GREEN), strict=False):
        axes.barh(order.index, 100 * order[kind], color=color)
        figures.bound(axes, 100 * table.loc["bound", kind], "bound", vertical=True)
        axes.set(title=kind, xlabel="byte hit rate, %", xlim=(0, 100), xticks=range(0, 100, 25))
        axes.grid(axis="y", visible=False)
    panels[0].legend(loc="center right")
    panels[0].invert_yaxis()  # of all: they share it
    figure.suptitle(f"At {fraction:.0%} of the working set: what is best for a dense model is not for experts")
    return figure


def kinds(tokens: int, seed: int) -> dict[str, Requests]:
    """A dense model, and two routers over 24 layers x 32 experts, four used a token, for eight times as many tokens. The first
    router mostly keeps the experts of the token before; the second draws anew each time, a few far more often."""
    return {
        "dense": dense(tokens),
        "experts, local": mixture_of_experts(tokens=8 * tokens, seed=seed, locality=0.6, skew=0.5),
        "experts, skewed": mixture_of_experts(tokens=8 * tokens, seed=seed, locality=0.0, skew=2.0),
    }


def one_pass_figure(kinds: dict[str, Requests]):
    """LRU and MIN at every capacity, each from one pass over the trace (Mattson): hit rate by objects of one size."""
    figure, panels = figures.new(1, len(kinds), height=3.4, sharey=True)
    for axes, (kind, trace) in zip(panels, kinds.items(), strict=True):
        equal = trace.counted()
        (room, lru), best, share = lru_hit_curve(equal), min_hit_curve(equal), 100 / equal.working_set
        axes.plot([0, 100], [0, 100], **figures.DASHED, label="capacity / total")
        axes.plot(share * np.arange(1, len(best) + 1), 100 * best / len(equal), color=figures.GREEN, label="MIN, keeps all")
        axes.step(
            share * np.r_[0, room, equal.working_set], 100 * np.r_[0, lru, lru[-1]] / len(equal), where="post",
            color=figures.VERMILION, label="LRU",
        )  # fmt: skip
        axes.set(title=kind, xlabel="capacity, % of the objects", xticks=range(0, 100, 25))
    panels[0].set_ylabel("hit rate, %")
    panels[0].legend(loc="upper left", fontsize=9)
    figure.suptitle("A dense model leaves LRU nothing; a router leaves it much")
    return figure


def windows(kinds: dict[str, Requests], fraction: float) -> pd.DataFrame:
    """LFU within a window of so many passes, against LRU: byte hit rate of the whole run, by kind of trace."""
    rows = {}
    for kind, trace in kinds.items():
        capacity = trace.share(fraction)
        a_pass = round(len(trace) / (max(trace.tokens) + 1))
        policies = {"LRU": LRU(capacity), "LFU, all time": LFU(capacity)}
        policies |= {f"LFU, passes in its window: {count}": LFU(capacity, window=count * a_pass) for count in (1, 4, 16)}
        rows[kind] = {name: replay(trace, policy).byte_hit_rate for name, policy in policies.items()}
    return pd.DataFrame(rows)


def advice(table: pd.DataFrame, fraction: float) -> pd.DataFrame:
    """For each kind of model: the best policy measured that knows no future, and what the report's LRU gives instead."""
    rows = []
    for kind in table.columns:
        rates = table[kind].drop(["bound", "MIN"])
        best = rates.max()
        near = ", ".join(rates.index[rates >= best - 0.005])
        what = "pin" if rates["Pinned"] >= best - 0.005 else "measure: no fixed set is best"
        rows.append((kind, what, near, best, table.loc["bound", kind], rates["LRU"], rates["Pinned"]))
    best = f"best at {fraction:.0%}"
    return tables.frame(rows, "model", "advice", best, "byte hit rate", "bound", "LRU (report 002)", "Pinned")
