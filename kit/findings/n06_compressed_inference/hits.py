"""What a cache of unpacked layers can hit: the reported geometry, hit rates by entries, and the bound of every policy."""

import math
from functools import partial

import numpy as np
import pandas as pd

import kit
from kit.cache.traces import repeated
from kit.findings.n05_tile_decode.bits import SIDE
from kit.lab import figures
from kit.synthetic.geometry import GEOMETRIES

ENTRIES, INNER, LAYERS = 20, 50, 155  # report 004: cache=20/20, cache_size=50 inside it, the Linear layers of TinyLlama
SHARE = 0.85  # of the tiles: the hit rate that it reports
POLICIES = {
    "MIN": kit.MIN,
    "Pinned": kit.Pinned,
    "cyclic-aware": kit.CyclicAware,
    "MIN without bypass": partial(kit.MIN, bypass=False),
    "LRU": kit.LRU,
}


def reported_layers() -> dict[str, int]:
    """Tiles of each of the 155 Linear layers of TinyLlama, in the order of a forward pass."""
    specs = [spec for spec in GEOMETRIES["tinyllama-1.1b"].tensors("Q4_K_M") if len(spec.shape) == 2]
    linear = [spec for spec in specs if spec.name != "token_embd.weight"]
    order = sorted(linear, key=lambda spec: not spec.name.startswith("blk."))  # stable: the output comes last
    return {spec.name: -(-spec.shape[0] // SIDE) * -(-spec.shape[1] // SIDE) for spec in order}


def in_ratio(reported: int, layers: int) -> int:
    """As many entries of ``layers`` as the reported number is of 155."""
    return max(1, round(reported * layers / LAYERS))


def curve(names: list[str], tokens: int = 6, points: int = 32) -> pd.DataFrame:
    """Hit rate after the first pass, by entries (rows) and policy (columns), of `tokens` passes over `names` in order. Counts
    entries, as report 004 did; the same policy objects as in a live cache."""
    n = len(names)
    marked = {min(ENTRIES, n), min(INNER, n), math.ceil(SHARE * n), max(1, n - 1)}
    entries = sorted(marked | set(np.linspace(1, n, min(points, n)).astype(int).tolist()))
    scan = repeated([(name, 1) for name in names], tokens)
    gets = (tokens - 1) * n
    hits = {label: [kit.replay(scan, make(count)).hits / gets for count in entries] for label, make in POLICIES.items()}
    return pd.DataFrame(hits, index=pd.Index(entries, name="entries"))


def figure(curve: pd.DataFrame):
    """Hit rate against entries, the reported point and the bound for every policy without prefetch."""
    drawn, axes = figures.new()
    n = curve.index.max()
    for (label, values), size in zip(curve.items(), (11, 8, 5, 3, 3), strict=True):  # equal curves: ring within ring
        axes.plot(curve.index, 100 * values, "o-", markersize=size, markerfacecolor="none", linewidth=1, label=label)
    axes.plot([0, n], [0, 100], **figures.DASHED, label="entries / layers: the bound")
    axes.plot(ENTRIES, 100 * SHARE, "*", color=figures.VERMILION, markersize=15, label=f"report 004: {SHARE:.0%} at 20 of 20")
    axes.axhline(100 * SHARE, color=figures.VERMILION, linewidth=0.8)
    most = 100 * min(ENTRIES, n) / n
    axes.set(title=f"20 entries for {n} layers hit at most {most:.1f}%, and LRU none", xlabel="entries")
    axes.set(ylabel="hit rate after the first pass, %", xlim=(0, n + 2), ylim=(-3, 103))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
    return drawn
