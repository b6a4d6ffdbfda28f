"""What a load costs and what hides it: a hit against two dequantizers, and prefetch, live and by a model of more cores."""

import numpy as np
import pandas as pd
import torch

import kit
from kit.cache.faults import CopyOnHit
from kit.cache.store import WeightCache
from kit.cache.traces import Requests
from kit.findings.live import decode, prefetching
from kit.gguf import pagecache
from kit.gguf.names import layer_of
from kit.lab import figures, tables
from kit.lab.measure import Rounds, rounds, sampler

ALONE = "look-up alone (nothing is read)"
VIEW, COPY = "hit, a view", "hit, copied each time (reports 002, 003)"
FAST, SLOW = "miss, the kit's dequantizer", "miss, gguf-py's dequantizer"


def hits(file, order: Requests, samples: int = 20, budget: float = 8.0) -> tuple[Rounds, int]:
    """Every way to have a layer's largest weight ready and read once (a product with a vector), in turn; its bytes of f32. Not
    the embedding: a copy of it would measure how fast the system hands out fresh memory."""
    sizes = {name: size for name, size in order.objects.items() if layer_of(name) >= 0}
    name = max(sizes, key=sizes.get)
    size, weights = sizes[name], {backend: kit.Weights(file, backend=backend) for backend in ("cpu", "reference")}
    value = weights["cpu"].load(name)
    x = torch.ones(value.shape[-1])
    stores = {"view": WeightCache(kit.HashMap()), "copy": CopyOnHit(kit.HashMap())}
    for store in stores.values():
        store.get(name, size, lambda: value)
    ways = {
        ALONE: lambda: stores["view"].get(name, size, None),
        VIEW: lambda: stores["view"].get(name, size, None) @ x,
        COPY: lambda: stores["copy"].get(name, size, None) @ x,
        FAST: lambda: weights["cpu"].load(name) @ x,
        SLOW: lambda: weights["reference"].load(name) @ x,
    }
    return rounds({label: sampler(way, min_sample=0)[0] for label, way in ways.items()}, samples, budget), size


def hits_table(taken: Rounds, size: int) -> pd.DataFrame:
    """One row a way: milliseconds, GB/s of f32, times a hit that is a view, times a hit that copies."""
    rows = []
    for way in taken.seconds:
        seconds, times = taken.median(way), [float(np.median(taken.ratios(way, hit))) for hit in (VIEW, COPY)]
        rows.append((way, 1e3 * seconds, size / seconds / 1e9 if way != ALONE else np.nan, *times))
    return tables.frame(rows, "way", "ms", "f32, GB/s", "times a hit, a view", "times a hit, copied")


# --- prefetch: live beside its bounds, and modeled -----------------------------------------------------------------------

AHEAD = {  # label -> arguments of Prefetcher; None: no prefetch
    "none": None,
    "1 layer ahead, same thread": {"ahead": 1, "asynchronous": False},
    "1 layer ahead, a thread": {"ahead": 1},
    "2 layers ahead, a thread": {"ahead": 2},
}
AHEAD_SLOW = ("none", "1 layer ahead, a thread")  # of AHEAD: with gguf-py's dequantizer, which takes a second a pass


def prefetch(
    path, order: Requests, fraction: float, passes: int, times: int, backend: str = "cpu", kinds=tuple(AHEAD)
) -> pd.DataFrame:
    """Decode with a pinned set of this capacity and each kind of prefetch, in turn: one row a run. ``first``: seconds of the
    first pass, with nothing cached and (``cold``) the file's pages out of the page cache where the system can do that, so close
    the file before; ``warm``: median of the later passes."""
    capacity = order.share(fraction)
    rows = []
    for number in range(times):
        for label in kinds[:: 1 if number % 2 == 0 else -1]:
            cold = pagecache.drop(path)
            with kit.open(path) as file:
                prepare = prefetching(order, AHEAD[label])
                run = decode(file, kit.Pinned(capacity), label, passes, backend=backend, prepare=prepare)
            rows.append((label, number, cold, run.seconds[0], float(np.median(run.seconds[1:])), run.stats.prefetched,
                         run.stats.gets))  # fmt: skip
    return pd.DataFrame(rows, columns=["prefetch", "round", "cold", "first", "warm", "prefetched", "gets"])


def prefetch_table(runs: pd.DataFrame, machine, working_set: int, fraction: float) -> pd.DataFrame:
    """Medians a kind of prefetch, beside the two bounds of a warm pass: the parts in a row, or the larger part alone."""
    groups = runs.groupby("prefetch", sort=False)
    found, counts = groups[["first", "warm"]].median(), groups[["prefetched", "gets"]].sum()
    found["prefetched, %"] = 100 * counts["prefetched"] / counts["gets"]
    load = (1 - fraction) * machine.seconds_to_write(working_set)
    compute = machine.seconds_to_read(working_set)
    found["bound"] = [load + compute if label == "none" else max(load, compute) for label in found.index]
    found["warm / bound"] = found["warm"] / found["bound"]
    return found


def paired(runs: pd.DataFrame, label: str, column: str) -> np.ndarray:
    """(rounds,) seconds without prefetch over seconds with this one, of the same round."""
    wide = runs.pivot(index="round", columns="prefetch", values=column)
    return (wide["none"] / wide[label]).to_numpy()


def prefetch_figure(found: dict[str, pd.DataFrame]):
    """First and warm passes by kind of prefetch, a panel a dequantizer, the bound of each kind as a dashed mark."""
    ratios = [len(table) for table in found.values()]
    drawn, panels = figures.new(len(found), height=2.2 * len(found) + 0.8, squeeze=False, height_ratios=ratios)
    for axes, (name, table) in zip(panels[:, 0], found.items(), strict=True):
        passes = table[["first", "warm"]].add_suffix(" pass")
        passes.plot.barh(ax=axes, width=0.8, color=[figures.ORANGE, figures.BLUE], legend=False)
        places = np.arange(len(table))
        axes.vlines(table["bound"], places - 0.42, places + 0.42, label="bound of a warm pass", **figures.DASHED)
        axes.set(title=f"{name} dequantizer", ylabel="")
        figures.rows(axes)
    panels[-1, 0].set_xlabel("seconds a pass")
    gains = {name: table["warm"].iloc[0] / table["warm"].iloc[1:].min() for name, table in found.items()}
    told = ", ".join(f"{gain:.2f}x ({name} dequantizer)" for name, gain in gains.items())
    drawn.suptitle(f"Best prefetch of a warm pass: {told}")
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return drawn


def modeled(
    machine, working_set: int, fraction: float, gbps_a_core: dict[str, float], cores=(2, 3, 4, 6, 8, 12, 16)
) -> pd.DataFrame:
    """Times that prefetch would make a warm pass faster, by cores and dequantizer (GB/s of f32 on one core, measured). As many
    cores as this machine has multiply; further cores dequantize meanwhile, and then all of them what is left. Without prefetch
    all cores dequantize, then all multiply. Reading and writing share the bus (copy bandwidth)."""
    reading, missed = machine.seconds_to_read(working_set), (1 - fraction) * working_set
    shared = (working_set + missed) / machine.copy_gbps / 1e9
    gains = pd.DataFrame(index=pd.Index(cores, name="cores"))
    for name, each in gbps_a_core.items():
        all_of_them = 1e9 * np.minimum(each * gains.index, machine.write_gbps)
        spare = 1e9 * np.clip(each * (gains.index - machine.cores), 0, machine.write_gbps)
        left = np.maximum(0, missed - spare * reading) / all_of_them
        gains[name] = (missed / all_of_them + reading) / np.maximum(reading + left, shared)
    return gains


def model_figure(modeled: pd.DataFrame, cores_here: int):
    """The gain by cores, a line a dequantizer; this machine marked."""
    drawn, axes = figures.new(height=3.4)
    modeled.add_suffix(" dequantizer").plot(ax=axes, style=["-o", "-s"])
    figures.bound(axes, 2.0, "bound: two parts overlap at best twofold")
    axes.axvline(cores_here, color=figures.ORANGE, lw=1.2, label="cores here")
    axes.set(xlabel="cores", ylabel="times faster with prefetch", xticks=list(modeled.index), ylim=(0, 2.3))
    axes.set_title(f"With cores to spare prefetch gains up to {modeled.max(axis=None):.2f}x: a model, not a measurement")
    axes.legend(loc="lower right")
    return drawn
