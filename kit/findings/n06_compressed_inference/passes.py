"""Compressed inference: report 004's caches, and better ones, over the tiles of one model; time against memory."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

import kit
from kit.cache.faults import TwoLevels
from kit.cache.prefetch import Prefetcher
from kit.codec.codings import unpack
from kit.codec.compressor import compress
from kit.codec.container import CompressedFile
from kit.codec.weights import CompressedWeights
from kit.findings.n06_compressed_inference.hits import ENTRIES, INNER, LAYERS, in_ratio
from kit.gguf.names import layer_of
from kit.lab import figures, tables
from kit.lab.machine import usable_cores
from kit.lab.paths import models_folder
from kit.units import format_bytes, format_seconds


def compressed_model(path) -> CompressedFile:
    """The compressed form of a model, written on the first call and kept among the generated models."""
    with kit.open(path) as file:
        source = Path(file.path)
    stamp = source.stat()
    folder = models_folder()
    folder.mkdir(parents=True, exist_ok=True)
    packed = folder / f"{source.stem}-{stamp.st_size}-{stamp.st_mtime_ns}.tiles.gguf"
    if not packed.exists():
        compress(source, packed, threads=usable_cores())
    return CompressedFile(packed)


def plain_bytes(file: CompressedFile) -> int:
    """Bytes of all matrices unpacked, as INT8."""
    return sum(matrix.shape[0] * matrix.shape[1] for matrix in file.matrices.values())


def packed_bytes(file: CompressedFile) -> int:
    """Bytes of all matrices as tiles."""
    return sum(matrix.nbytes for matrix in file.matrices.values())


@dataclass(frozen=True)
class Strategy:
    """A way to hold the weights. ``cache(c)`` makes the cache, which counts what ``by`` says; c has ``entries`` and ``inner``
    in the reported ratio, ``nbytes``, the same share of the bytes, and ``future``, the accesses to come."""

    label: str  # with the numbers of c
    decoder: str
    cache: Callable[[SimpleNamespace], object]
    by: str = "bytes"
    prefetch: bool = False


LAZY = "simd"  # unpacks every matrix at every token; its accesses are those that MIN foresees
STRATEGIES = {
    LAZY: Strategy("no cache, simd", "simd", lambda _: kit.NoCache()),
    "double": Strategy("before: inner LRU of {inner}, outer LRU of {entries}", "scalar-table",
                       lambda c: TwoLevels(kit.LRU(c.entries), keeps=c.inner), "entries"),
    "unlimited": Strategy("before, the inner one without limit", "scalar-table", lambda c: TwoLevels(kit.LRU(c.entries)),
                          "entries"),
    "fixed": Strategy("after: LRU of {entries}", "scalar-table", lambda c: kit.LRU(c.entries), "entries"),
    "table": Strategy("no cache, table", "scalar-table", lambda _: kit.NoCache()),
    "interleaved": Strategy("no cache, interleaved", "interleaved", lambda _: kit.NoCache()),
    "prefetch": Strategy("no cache, simd, next layer prefetched", "simd", lambda _: kit.NoCache(), prefetch=True),
    "pinned": Strategy("pinned, bytes of {entries}", "simd", lambda c: kit.Pinned(c.nbytes)),
    "cyclic": Strategy("cyclic-aware, bytes of {entries}", "simd", lambda c: kit.CyclicAware(c.nbytes)),
    "MIN": Strategy("MIN, bytes of {entries}", "simd", lambda c: kit.MIN(c.nbytes, future=c.future)),
    "half": Strategy("pinned, half the model", "simd", lambda c: kit.Pinned(c.nbytes * LAYERS // (2 * ENTRIES))),
    "all": Strategy("plain INT8: all unpacked once and kept", "simd", lambda _: kit.HashMap()),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One strategy, run. ``decodes`` and ``read_bytes``: matrices unpacked and compressed bytes read for it at each token, the
    prompt first; a prefetch counts where it ran."""

    strategy: str
    label: str
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    decodes: tuple[int, ...]
    read_bytes: tuple[int, ...]
    held_bytes: int
    weights: CompressedWeights

    @property
    def token_seconds(self) -> float:
        """Median of the tokens after the first."""
        return float(np.median(self.seconds[1:]))

    @property
    def hit_rates(self) -> list[float]:
        """Share of the matrices that each token after the first did not unpack."""
        return [max(0.0, 1 - decodes / len(self.weights.layers)) for decodes in self.decodes[1:]]


def run(
    file: CompressedFile, strategy: str, prompt: list[int], tokens=5, lazy: Outcome | None = None, progress=None
) -> Outcome:
    """Generate ``tokens`` tokens greedily; cache sizes keep the reported ratio of entries to 155 layers. ``lazy``: the outcome
    of LAZY on the same prompt, whose accesses MIN foresees."""
    how, n = STRATEGIES[strategy], len(file.matrices)
    caches = SimpleNamespace(entries=in_ratio(ENTRIES, n), inner=in_ratio(INNER, n), future=lazy and lazy.weights.trace,
                             nbytes=max(1, plain_bytes(file) * ENTRIES // LAYERS))  # fmt: skip
    weights = CompressedWeights(file, how.cache(caches), how.decoder, by=how.by, progress=progress)
    model = kit.Transformer(weights, linear=weights.linear)
    layers = [weights.layers[name] for name in model.config.order_of_use(weights.layers)]
    plan = [(layer.name, layer.size, layer.load) for layer in layers]
    with Prefetcher(weights.store, plan) if how.prefetch else nullcontext():
        cache = model.new_cache(len(prompt) + tokens)
        found = kit.generate(model, prompt, tokens, stop_at_end=False, cache=cache)
    spans = weights.trace.frame()
    decodes = spans[spans["what"] == "unpack"].groupby("token")["nbytes"].agg(["size", "sum"])
    decodes = decodes.reindex(range(tokens), fill_value=0)
    held = _held(weights, how, decodes["size"].iloc[-1])
    label = how.label.format(entries=caches.entries, inner=caches.inner)
    counts = tuple(decodes["size"]), tuple(decodes["sum"])
    return Outcome(strategy, label, tuple(found.seconds), tuple(found.tokens), *counts, held, weights)


def run_all(file: CompressedFile, prompt: list[int], tokens: int, progress=None) -> dict[str, Outcome]:
    """The outcome of every strategy; ``progress`` is for the reported cure alone (see kit.codec.weights.ProgressLine). Before
    any is timed each decoder unpacks a matrix and a token is generated: compiling is no part of a first token."""
    smallest = min(file.matrices.values(), key=lambda matrix: matrix.nbytes)
    for decoder in {how.decoder for how in STRATEGIES.values()}:
        unpack(smallest, decoder)
    run(file, LAZY, prompt, 1)
    outcomes = {LAZY: run(file, LAZY, prompt, tokens)}
    for name in STRATEGIES:
        if name != LAZY:
            outcomes[name] = run(file, name, prompt, tokens, outcomes[LAZY], progress if name == "fixed" else None)
    return outcomes


def _held(weights, how, decodes) -> int:
    """Bytes in memory: unpacked matrices that the caches hold, and, while any are unpacked, what lies ahead, the largest
    in use and all compressed ones."""
    names = weights.store.inner if isinstance(weights.store, TwoLevels) else list(weights.store.policy)
    held = sum(weights.layers[name].nbytes for name in names)
    if not decodes:
        return held
    ahead = weights.store.ahead_bytes if how.prefetch else 0
    return held + ahead + max(layer.nbytes for layer in weights.layers.values()) + weights.compressed_bytes


def table(file: CompressedFile, outcomes: dict[str, Outcome], machine) -> pd.DataFrame:
    """One row a strategy: hits of the tokens after the first, memory, seconds, and the least seconds on this machine. Memory:
    unpacked matrices, and the compressed ones beside them where a token still needs them. The bound: what is held is read as
    INT8, what is unpacked as compressed bytes, at the measured read bandwidth."""
    rows = []
    for outcome in outcomes.values():
        packed = float(np.mean(outcome.read_bytes[1:]))
        read = packed + (1 - min(1, packed / outcome.weights.compressed_bytes)) * plain_bytes(file)
        seconds, least = outcome.token_seconds, machine.seconds_to_read(read)
        rows.append((outcome.label, STRATEGIES[outcome.strategy].decoder, float(np.mean(outcome.hit_rates)),
                     outcome.held_bytes / 2**20, outcome.seconds[0], seconds, seconds / least))  # fmt: skip
    names = ("strategy", "decoder", "hit rate", "held MiB", "first token, s", "token, s", "times the least")
    return tables.frame(rows, *names)


def same_tokens(outcomes: dict[str, Outcome]) -> pd.DataFrame:
    """The tokens of every strategy, one row each: equality comes before speed."""
    return pd.DataFrame([outcome.tokens for outcome in outcomes.values()], index=list(outcomes))


def hits_by_layer(outcome: Outcome) -> pd.DataFrame:
    """Hits of one run by layer, in matrices and in tiles, and what was unpacked."""
    spans, passes = outcome.weights.trace.frame(), len(outcome.tokens)
    tiles = pd.Series({name: layer.tiles for name, layer in outcome.weights.layers.items()})
    unpacked = spans.loc[spans["what"] == "unpack", "tensor"].value_counts().reindex(tiles.index, fill_value=0)
    counts = {"matrices": 1, "tiles": tiles, "unpacked": unpacked, "tiles unpacked": unpacked * tiles}
    frame = pd.DataFrame(counts).groupby(layer_of).sum().rename_axis("layer")
    frame["hits"] = passes * frame["matrices"] - frame["unpacked"]
    frame["tiles hit"] = passes * frame["tiles"] - frame["tiles unpacked"]
    return frame.rename(index={-1: "output"})


def capacity(file: CompressedFile) -> str:
    """Whether tiles need less memory than plain INT8 on this file: the largest matrix lies beside them while it is used."""
    packed, plain = packed_bytes(file), plain_bytes(file)
    largest = max(matrix.shape[0] * matrix.shape[1] for matrix in file.matrices.values())
    more = packed + largest - plain
    return (
        f"Tiles {format_bytes(packed)} and the largest matrix unpacked {format_bytes(largest)}: {format_bytes(abs(more))} "
        f"{'more' if more > 0 else 'less'} than plain INT8 ({format_bytes(plain)}). They win in capacity where the largest "
        f"matrix is below {1 - packed / plain:.1%} of the model; here it is {largest / plain:.1%}."
    )


def figure(rows: pd.DataFrame, machine):
    """Time a token against bytes held, one point a strategy, with the least time of the same bytes."""
    drawn, axes = figures.new(height=5.2)
    for (label, row), marker, place in zip(rows.iterrows(), "osv^Dp*hX<>P", range(len(rows)), strict=True):
        color = figures.PALETTE[place % len(figures.PALETTE)]
        axes.plot(row["held MiB"], row["token, s"], marker, color=color, markersize=9, label=label)
    least = machine.seconds_to_read(rows.iloc[-1]["held MiB"] * 2**20)
    figures.bound(axes, least, "every INT8 weight read once, at bandwidth")
    figures.log(axes, "y", write=format_seconds)
    axes.set(title="A fast decoder needs no cache; plain INT8 that fits is faster", ylabel="time a token")
    axes.set(xlabel="memory for weights, MiB")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
    return drawn
