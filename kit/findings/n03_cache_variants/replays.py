"""Every way to hold weights, replayed on whole models: policy by capacity, pinned sets, and where the order turns round."""

import numpy as np
import pandas as pd

from kit.cache import POLICIES
from kit.cache.bounds import CYCLIC, cyclic_hit_rate, interval_bound, knapsack, lru_hit_curve, min_hit_curve
from kit.cache.policies.base import LFU, LRU, Policy
from kit.cache.policies.pinned import Pinned, RowPlan
from kit.cache.replay import replay, replay_hits
from kit.cache.traces import Requests, decode_order, mixture_of_experts, repeated
from kit.gguf.names import layer_of
from kit.lab import figures
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


def dense(tokens: int, geometry: str = "granite-3.3-8b") -> Requests:
    """A decode of ``tokens`` tokens of a whole dense model, in f32."""
    return repeated(decode_order(GEOMETRIES[geometry]), tokens)


def warm_rates(trace: Requests, policy: Policy, warm: int) -> tuple[float, float]:
    """Hit rate and byte hit rate from token ``warm`` on; the replay starts cold at the beginning."""
    _, hit = replay_hits(trace, policy)
    late = np.array(trace.tokens) >= warm
    sizes = np.array(trace.sizes, float)[late]
    return float(hit[late].mean()), float(sizes[hit[late]].sum() / sizes.sum())


def curves(trace: Requests, fractions=FRACTIONS, policies=None, warm: int | None = None) -> pd.DataFrame:
    """Policy by capacity (fractions of the working set): warm hit rate and byte hit rate, one row each.

    ``warm``: the first token that counts, by default half-way through the trace.
    """
    warm = (max(trace.tokens) + 1) // 2 if warm is None else warm
    rows = []
    for name, make in (policies or POLICIES).items():
        for fraction in fractions:
            capacity = max(1, round(fraction * trace.working_set))
            rows.append((name, fraction, *warm_rates(trace, make(capacity), warm)))
    return pd.DataFrame(rows, columns=["policy", "capacity / working set", "hit rate", "byte hit rate"])


def families(table: pd.DataFrame, column: str, within: float = 0.02) -> list[tuple[str, pd.Series]]:
    """Policies whose curves nowhere differ by more than ``within`` share a line: (their names, the first one's curve)."""
    wide = table.pivot(index="capacity / working set", columns="policy", values=column)[table["policy"].unique()]
    found: list[tuple[list[str], pd.Series]] = []
    for name, curve in wide.items():
        for names, first in found:
            if (curve - first).abs().max() <= within:
                names.append(name)
                break
        else:
            found.append(([name], curve))
    return [(", ".join(names), curve) for names, curve in sorted(found, key=lambda item: -item[1].mean())]


_LINES = ("-", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))


def curves_figure(by_objects: pd.DataFrame, by_bytes: pd.DataFrame, live: pd.DataFrame | None = None):
    """Two panels, objects of one size and true bytes: a line a family of policies, the bound dashed, live points on top."""
    figure, panels = figures.new(2, height=8.4)
    titles = ("Equal objects: most policies hit nothing until all fit", "True sizes, by bytes")
    columns = ("hit rate", "byte hit rate")
    for axes, table, column, title in zip(panels, (by_objects, by_bytes), columns, titles, strict=True):
        colors = [color for color in figures.PALETTE if color not in (figures.BLACK, figures.YELLOW)]
        for place, (names, curve) in enumerate(families(table, column)):
            axes.plot(
                100 * curve.index, 100 * curve, label=names, color=colors[place % len(colors)],
                linestyle=_LINES[place // len(colors) % len(_LINES)],
            )  # fmt: skip
        axes.plot([0, 100], [0, 100], "--", color=figures.BLACK, lw=1.2, label="bound: capacity / total")
        axes.set(ylabel=f"warm {column}, %", xlabel="capacity, % of the working set", title=title)
        axes.legend(loc="upper left", fontsize=8.5)
    if live is not None:
        panels[1].scatter(
            100 * live["capacity / working set"], 100 * live["byte hit rate"], color=figures.BLACK, s=18, zorder=5
        )
    return figure


def live_figure(replayed: pd.DataFrame, live: pd.DataFrame):
    """One small panel a policy: the replayed byte hit rates as a line, live runs as points, capacity / total dashed."""
    names = list(live["policy"].unique())
    figure, grid = figures.new(-(-len(names) // 4), 4, height=2.0 * -(-len(names) // 4), sharex=True, sharey=True)
    for axes, name in zip(grid.flat, names, strict=False):
        line, points = (table[table["policy"] == name] for table in (replayed, live))
        axes.plot([0, 100], [0, 100], "--", color=figures.BLACK, lw=1)
        axes.plot(100 * line["capacity / working set"], 100 * line["byte hit rate"], color=figures.BLUE, lw=1.4)
        axes.plot(
            100 * points["capacity / working set"], 100 * points["byte hit rate"], "o", color=figures.VERMILION, ms=5
        )
        axes.set_title(name, fontsize=10)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    figure.supxlabel("capacity, % of the working set", fontsize=10)
    figure.supylabel("warm byte hit rate, %", fontsize=10)
    return figure


def heat_maps(trace: Requests, fraction: float, policies=None):
    """Hits over tokens x layers, one panel a policy: white is a miss, dark is a layer whose every byte was held."""
    policies = POLICIES if policies is None else policies
    capacity = max(1, round(fraction * trace.working_set))
    layers = np.array([layer_of(key) for key in trace.keys])
    layers[layers < 0] = layers.max() + 1  # output norm and projection: one more layer, the last
    tokens, sizes = np.array(trace.tokens), np.array(trace.sizes, float)
    shape = (layers.max() + 1, tokens.max() + 1)
    asked = np.zeros(shape)
    np.add.at(asked, (layers, tokens), sizes)
    rows = -(-len(policies) // 4)
    figure, grid = figures.new(rows, 4, height=2.1 * rows, sharex=True, sharey=True)
    for axes, (name, make) in zip(grid.flat, policies.items(), strict=False):
        _, hit = replay_hits(trace, make(capacity))
        held = np.zeros(shape)
        np.add.at(held, (layers, tokens), sizes * hit)
        share = np.divide(held, asked, out=np.zeros(shape), where=asked > 0)
        image = axes.imshow(100 * share, aspect="auto", cmap="Blues", vmin=0, vmax=100, origin="lower")
        axes.set_title(f"{name}: {100 * held.sum() / asked.sum():.1f} %", fontsize=8.5)
        axes.grid(visible=False)
    for axes in grid.flat[len(policies) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=grid, label="bytes hit, %", shrink=0.6)
    figure.supxlabel("token", fontsize=10)
    figure.supylabel("layer", fontsize=10)
    return figure


# --- what to pin ----------------------------------------------------------------------------------------------------


def pinned_sets(trace: Requests, fraction: float, costs: dict[str, float] | None = None) -> pd.DataFrame:
    """Four ways to choose a static set of this capacity: bytes held, warm byte hit rate, and its share of the bound.

    ``costs``: what a miss of each object costs (seconds, measured); bytes when there are none.
    """
    sizes = trace.objects
    capacity = max(1, round(fraction * trace.working_set))
    rows_of = {name: (max(1, size // 4096), min(size, 4096)) for name, size in sizes.items()}
    plans = {
        "rows, in order": RowPlan(capacity, rows_of),
        "rows, the same share of each": RowPlan(capacity, rows_of, True),
    }
    ways = {
        "first come": (trace, Pinned(capacity)),
        "knapsack": (
            trace,
            Pinned(capacity, names=knapsack({name: (costs or sizes).get(name, 0) for name in sizes}, sizes, capacity)),
        ),
        **{name: (plan.requests(trace), plan.policy()) for name, plan in plans.items()},
    }
    bound = capacity / trace.working_set
    rows = []
    for name, (accesses, policy) in ways.items():
        hits, byte_hits = warm_rates(accesses, policy, 1)
        held = replay(accesses, policy).resident_bytes
        rows.append((name, held / capacity, hits, byte_hits, byte_hits / bound))
    names = ["pinned", "capacity used", "hit rate", "byte hit rate", "of the bound"]
    return pd.DataFrame(rows, columns=names).set_index("pinned")


# --- where the order turns round ------------------------------------------------------------------------------------


def compare_kinds(kinds: dict[str, Requests], fraction: float) -> pd.DataFrame:
    """Policy by trace at one capacity (a fraction of each working set): byte hit rate of the whole run, and its bound."""
    columns = {}
    for kind, trace in kinds.items():
        capacity = max(1, round(fraction * trace.working_set))
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
    panels[0].invert_yaxis()
    figure.suptitle(f"Capacity {fraction:.0%} of the working set: the order turns round", fontsize=12)
    return figure


def kinds(tokens: int, seed: int) -> dict[str, Requests]:
    """A dense model, and two routers over 24 layers x 32 experts, four used a token, for more tokens of less bytes.

    The first router mostly keeps the experts of the token before; the second draws anew each time, a few far more often.
    """
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
        room, lru = lru_hit_curve(equal)
        best = min_hit_curve(equal)
        share = 100 / equal.working_set
        axes.plot([0, 100], [0, 100], "--", color=figures.BLACK, lw=1.2, label="capacity / total")
        axes.plot(
            share * np.arange(1, len(best) + 1), 100 * best / len(equal), color=figures.GREEN, label="MIN, keeps all"
        )
        axes.step(
            share * np.r_[0, room, equal.working_set], 100 * np.r_[0, lru, lru[-1]] / len(equal), where="post",
            color=figures.VERMILION, label="LRU",
        )  # fmt: skip
        axes.set(title=kind, xlabel="capacity, % of the objects", xticks=range(0, 100, 25))
    panels[0].set_ylabel("hit rate, %")
    panels[0].legend(loc="upper left", fontsize=9)
    return figure


def windows(kinds: dict[str, Requests], fraction: float) -> pd.DataFrame:
    """LFU within a window of so many passes, against LRU: byte hit rate of the whole run, by kind of trace."""
    rows = {}
    for kind, trace in kinds.items():
        capacity = max(1, round(fraction * trace.working_set))
        a_pass = round(len(trace) / (max(trace.tokens) + 1))
        policies = {"LRU": LRU(capacity), "LFU, all time": LFU(capacity)}
        policies |= {f"LFU, window of {count} passes": LFU(capacity, window=count * a_pass) for count in (1, 4, 16)}
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
        rows.append(
            (kind, what, near, best, table.loc["bound", kind], rates["LRU"], rates["Pinned"], rates["CyclicAware"])
        )
    names = ["model", "advice", "best", "byte hit rate", "bound", "LRU (report 002)", "Pinned", "CyclicAware"]
    return pd.DataFrame(rows, columns=names).set_index("model").assign(capacity=f"{fraction:.0%}")
