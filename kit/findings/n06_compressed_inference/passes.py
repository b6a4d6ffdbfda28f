"""Compressed inference: report 004's caches, and better ones, over the tiles of one model; time against memory."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import kit
from kit.cache.faults import TwoLevels
from kit.cache.policies.base import LRU, HashMap, NoCache
from kit.cache.policies.cyclic import CyclicAware
from kit.cache.policies.offline import MIN
from kit.cache.policies.pinned import Pinned
from kit.cache.prefetch import Prefetcher
from kit.cache.replay import replay
from kit.cache.traces import repeated
from kit.codec.compressor import compress
from kit.codec.container import CompressedFile
from kit.codec.weights import CompressedWeights
from kit.gguf.names import layer_of
from kit.lab import figures
from kit.lab.paths import models_folder
from kit.synthetic.geometry import GEOMETRIES

ENTRIES, LAYERS = 20, 155  # of report 004: cache=20/20, and the Linear layers of TinyLlama
SIDE = 256


def compressed_model(path) -> CompressedFile:
    """The compressed form of a model, written on the first call and kept among the generated models."""
    with kit.open(path) as file:
        source = Path(file.path)
    stamp = source.stat()
    folder = models_folder()
    folder.mkdir(parents=True, exist_ok=True)
    packed = folder / f"{source.stem}-{stamp.st_size}-{stamp.st_mtime_ns}.tiles.gguf"
    if not packed.exists():
        compress(source, packed, threads=kit.lab.machine.usable_cores())
    return CompressedFile(packed)


def reported_layers() -> dict[str, int]:
    """Tiles of each of the 155 Linear layers of TinyLlama, in the order of a forward pass."""
    specs = [spec for spec in GEOMETRIES["tinyllama-1.1b"].tensors("Q4_K_M") if len(spec.shape) == 2]
    linear = [spec for spec in specs if spec.name != "token_embd.weight"]
    blocks = [spec for spec in linear if spec.name.startswith("blk.")]
    order = blocks + [spec for spec in linear if not spec.name.startswith("blk.")]
    return {spec.name: -(-spec.shape[0] // SIDE) * -(-spec.shape[1] // SIDE) for spec in order}


# ---- hits


POLICIES = {
    "MIN": MIN,
    "Pinned": Pinned,
    "cyclic-aware": CyclicAware,
    "MIN without bypass": partial(MIN, bypass=False),
    "LRU": LRU,
}


def hit_curve(names: list[str], tokens: int = 6, points: int = 32) -> pd.DataFrame:
    """Hit rate after the first pass, by entries (rows) and policy (columns), of `tokens` passes over `names` in order.

    Counts entries, as report 004 did; the same policy objects as in a live cache.
    """
    n = len(names)
    marked = {min(ENTRIES, n), math.ceil(0.85 * n), max(1, n - 1)}
    entries = sorted(marked | set(np.linspace(1, n, min(points, n)).astype(int).tolist()))
    scan = repeated([(name, 1) for name in names], tokens)
    hits = {
        label: [replay(scan, make(count)).hits / ((tokens - 1) * n) for count in entries]
        for label, make in POLICIES.items()
    }
    return pd.DataFrame(hits, index=pd.Index(entries, name="entries"))


def entries_needed(curve: pd.DataFrame, share: float = 0.85) -> pd.Series:
    """The fewest entries of the curve's rows at which each policy reaches `share`."""
    return (curve >= share).idxmax().rename(f"entries for {share:.0%}")


def hit_figure(curve: pd.DataFrame, share: float = 0.85):
    """Hit rate against entries, the reported point and the bound for every policy without prefetch."""
    figure, axes = figures.new()
    n = curve.index.max()
    for (label, values), size in zip(curve.items(), (11, 8, 5, 3, 3), strict=True):  # equal curves: ring within ring
        axes.plot(curve.index, 100 * values, "o-", markersize=size, markerfacecolor="none", linewidth=1, label=label)
    axes.plot([0, n], [0, 100], color=figures.BLACK, linestyle="--", linewidth=1.2, label="entries / layers: the bound")
    axes.plot(
        ENTRIES, 100 * share, "*", color=figures.VERMILION, markersize=15, label=f"report 004: {share:.0%} at 20 of 20"
    )
    axes.axhline(100 * share, color=figures.VERMILION, linewidth=0.8)
    axes.set(title=f"{n} layers, one pass a token: what a cache can hit", xlabel="entries")
    axes.set(ylabel="hit rate after the first pass, %", xlim=(0, n + 2), ylim=(-3, 103))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
    return figure


# ---- strategies


@dataclass(frozen=True)
class Strategy:
    """A way to hold the weights. ``cache(entries, bytes, scan)`` makes the cache; ``by`` says what it counts."""

    label: str
    decoder: str
    cache: Callable
    by: str = "bytes"
    prefetch: bool = False


STRATEGIES = {
    "reported": Strategy("before: inner cache keeps all, outer LRU of 20", "scalar-table",
                         lambda entries, *_: TwoLevels(LRU(entries)), "entries"),
    "fixed": Strategy("after: LRU of 20", "scalar-table", lambda entries, *_: LRU(entries), "entries"),
    "table": Strategy("no cache, table", "scalar-table", lambda *_: NoCache()),
    "interleaved": Strategy("no cache, interleaved", "interleaved", lambda *_: NoCache()),
    "simd": Strategy("no cache, simd", "simd", lambda *_: NoCache()),
    "prefetch": Strategy("no cache, simd, next layer prefetched", "simd", lambda *_: NoCache(), prefetch=True),
    "pinned": Strategy("pinned, bytes of 20", "simd", lambda _, nbytes, __: Pinned(nbytes)),
    "cyclic": Strategy("cyclic-aware, bytes of 20", "simd", lambda _, nbytes, __: CyclicAware(nbytes)),
    "MIN": Strategy("MIN, bytes of 20", "simd", lambda _, nbytes, scan: MIN(nbytes, future=scan)),
    "half": Strategy("pinned, half the model", "simd", lambda _, nbytes, __: Pinned(nbytes * LAYERS // (2 * ENTRIES))),
    "all": Strategy("plain INT8: all decoded once and kept", "simd", lambda *_: HashMap()),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One strategy, run. ``decodes`` and ``read_bytes``: layers decoded and compressed bytes read for it at each token, the
    prompt first; a prefetch counts where it ran. ``outer_hits``: as the cache itself reports them."""

    strategy: str
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    decodes: tuple[int, ...]
    read_bytes: tuple[int, ...]
    outer_hits: int
    held_bytes: int
    weights: CompressedWeights

    @property
    def token_seconds(self) -> float:
        """Median of the tokens after the first."""
        return float(np.median(self.seconds[1:]))


def run(file: CompressedFile, strategy: str, prompt: list[int], tokens: int = 5, progress=None) -> Outcome:
    """Generate ``tokens`` tokens greedily; cache sizes keep the reported ratio of 20 entries to 155 layers."""
    how = STRATEGIES[strategy]
    order = scan_order(file)
    total, n = sum(size for _, size in order), len(order)
    entries = max(1, round(n * ENTRIES / LAYERS))
    cache = how.cache(entries, max(1, total * ENTRIES // LAYERS), repeated(order, tokens))
    weights = CompressedWeights(file, cache, how.decoder, by=how.by, progress=progress)
    model = kit.Transformer(weights, linear=weights.linear)
    kv, step, chosen, seconds = model.new_cache(len(prompt) + tokens), prompt, [], []
    with ExitStack() as stack:
        if how.prefetch:
            plan = [(layer.name, layer.size, layer.load) for layer in weights.layers.values()]
            prefetcher = stack.enter_context(Prefetcher(weights.store, plan))
            weights.store.ahead_bytes = 2 * prefetcher.layer_bytes
        for _ in range(tokens):
            start = time.perf_counter()
            logits = model.step(step, kv)
            seconds.append(time.perf_counter() - start)
            step = [int(logits.argmax())]
            chosen += step
    spans = weights.trace.frame()
    decodes = spans[spans["what"] == "decode"].groupby("token")["nbytes"].agg(["size", "sum"])
    decodes = decodes.reindex(range(tokens), fill_value=0)
    held = _held(weights, how, decodes["size"].iloc[-1])
    counts = tuple(decodes["size"]), tuple(decodes["sum"]), weights.store.stats.hits
    return Outcome(strategy, tuple(seconds), tuple(chosen), *counts, held, weights)


def scan_order(file: CompressedFile) -> list[tuple[str, int]]:
    """(name, decoded bytes) of every matrix in the order in which a token uses them."""
    parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    blocks = [name for name in file.matrices if name.startswith("blk.")]
    blocks.sort(key=lambda name: (layer_of(name), parts.index(name.split(".")[2])))
    names = blocks + [name for name in file.matrices if not name.startswith("blk.")]
    return [(name, file.matrices[name].shape[0] * file.matrices[name].shape[1]) for name in names]


def _held(weights, how, decodes) -> int:
    """Bytes in memory: decoded matrices that the caches hold, and, while any are decoded, what lies ahead, the largest
    in use and all compressed ones."""
    names = weights.store.inner if isinstance(weights.store, TwoLevels) else list(weights.store.policy)
    held = sum(weights.layers[name].nbytes for name in names)
    if not decodes:
        return held
    ahead = weights.store.ahead_bytes if how.prefetch else 0
    return held + ahead + max(layer.nbytes for layer in weights.layers.values()) + weights.compressed_bytes


def table(file: CompressedFile, outcomes: list[Outcome], machine) -> pd.DataFrame:
    """One row a strategy: hits of the tokens after the first, memory, seconds, and the least seconds on this machine.

    Memory: decoded matrices, and the compressed ones beside them where a token still needs them. The bound: what is
    held is read as INT8, what is decoded as compressed bytes, at the measured read bandwidth.
    """
    total, n = sum(size for _, size in scan_order(file)), len(file.matrices)
    rows = []
    for outcome in outcomes:
        packed, decodes = float(np.mean(outcome.read_bytes[1:])), float(np.mean(outcome.decodes[1:]))
        read = packed + (1 - min(1, packed / outcome.weights.compressed_bytes)) * total
        least = machine.seconds_to_read(read)
        rows.append({
            "strategy": STRATEGIES[outcome.strategy].label, "decoder": STRATEGIES[outcome.strategy].decoder,
            "hit rate": max(0.0, 1 - decodes / n), "decoded a token": decodes, "held MiB": outcome.held_bytes / 2**20,
            "first token, s": outcome.seconds[0], "token, s": outcome.token_seconds, "GB/s": read / outcome.token_seconds / 1e9,
            "least, s": least, "times the least": outcome.token_seconds / least,
        })  # fmt: skip
    return pd.DataFrame(rows).set_index("strategy")


def same_tokens(outcomes: list[Outcome]) -> pd.DataFrame:
    """The tokens of every strategy, one row each: equality comes before speed."""
    return pd.DataFrame([outcome.tokens for outcome in outcomes], index=[outcome.strategy for outcome in outcomes])


def hits_by_layer(outcome: Outcome) -> pd.DataFrame:
    """Uses, hits and decodes of one run by layer (-1: the output), and the tiles that each count stands for."""
    spans = outcome.weights.trace.frame()
    tiles = {name: layer.tiles for name, layer in outcome.weights.layers.items()}
    passes = len(outcome.tokens)
    rows = pd.DataFrame([(layer_of(name), count) for name, count in tiles.items()], columns=["layer", "tiles"])
    frame = rows.groupby("layer").agg(matrices=("tiles", "size"), tiles=("tiles", "sum"))
    decoded = spans[spans["what"] == "decode"]
    by_layer = decoded.assign(tiles=decoded["tensor"].map(tiles)).groupby("layer")["tiles"]
    frame["layers decoded"] = by_layer.size().reindex(frame.index, fill_value=0)
    frame["tiles decoded"] = by_layer.sum().reindex(frame.index, fill_value=0)
    frame["hits"] = passes * frame["matrices"] - frame["layers decoded"]
    frame["tiles hit"] = passes * frame["tiles"] - frame["tiles decoded"]
    return frame
