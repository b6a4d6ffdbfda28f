"""What kit explain says of a file: tables of plain numbers, and the same as text with units."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd

import kit
from kit.cache import POLICIES
from kit.cache.replay import replay_hits
from kit.cache.traces import Requests
from kit.gguf.formats import FORMATS
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.exactness import exactness, sample
from kit.lab.explaining.lines import MOST, width
from kit.lab.measuring.machine import gpu
from kit.lab.measuring.measurements import Reading
from kit.lab.predicting.bounds import interval_bound
from kit.lab.predicting.measured import DTYPES
from kit.lab.predicting.order import Order
from kit.lab.predicting.ways import BLOCK_WAYS, LAZY, BackingStore, Prediction, Way, from_blocks, predict, used_tensors
from kit.lab.tables import frame, in_tables, number
from kit.system import memory_limit
from kit.units import format_bytes, format_count, format_rate, format_seconds, printable

REST = "attention and the rest"
TIMES = ("each time", "kept", "from blocks")  # columns of families, in seconds
DEPTH = "positions before"  # names the index of a table of seconds (kit.lab.explaining.depth)
RATE = "tok/s"  # heads what is added behind the seconds of a token
HELD_BLOCKS = "the file's blocks"
WEIGHT_BYTES = {"float32": 4.0, "float16, bfloat16": 2.0, "int8": 1.0}


def held(file, uses=None) -> pd.DataFrame:
    """Bytes of the weights by how they are held: "size" of all of them, "bytes of a token" of what a token uses (``uses``: of
    kit.gguf.uses): of a mixture its experts alone, of an embedding one row."""
    uses, infos, rows = uses_of(file) if uses is None else uses, file.tensors.values(), []
    elements = sum(tensor.elements for tensor in infos)
    for name, each in (WEIGHT_BYTES | {HELD_BLOCKS: None}).items():
        nbytes, whole = bytes_used(uses, each), each * elements if each else sum(tensor.nbytes for tensor in infos)
        fits = "yes" if whole < memory_limit() else "no"
        rows.append((name, nbytes, whole, 8 * whole / elements, fits))
    table = frame(rows, "held as", "bytes of a token", "size", "bits of a weight", "fits in memory")
    return table.sort_values("bytes of a token", ascending=False)


def token_bounds(file, machine, uses=None) -> pd.DataFrame:
    """The least time and the most tokens per second by how weights are held, when a token reads once what it uses."""
    table = held(file, uses)
    table["least seconds per token"] = least = table["bytes of a token"].map(machine.seconds_to_read)
    table["most tokens per second"] = 1 / least
    return table


def parts_of(
    file, order: Order, costs, linear: str = "fused", seconds: float | None = None, most: float = np.inf
) -> pd.DataFrame:
    """Where the time of a token from the blocks goes: one row per family of tensors and one for attention and the rest, the
    longest first. Share of the token, "seconds" per token, "bytes" of blocks, "GB/s" at which these are read. ``seconds``: of
    the token as the answer has it, which the parts add up to; None: the recorded one. ``most``: GB/s of memory, which no part
    exceeds."""
    tensors, token, rows = used_tensors(file, order), from_blocks(linear, order, costs), []
    for name in (name for uses in order.tokens for name in uses):
        tensor = tensors[name]
        if tensor.kind in token.products and len(tensor.kind.shape) > 1:
            rows.append((_family(name), token.products[tensor.kind], tensor.blocks))
    table = pd.DataFrame(rows, columns=["part", "seconds", "bytes"]).groupby("part").sum() / len(order.tokens)
    table.loc[REST] = token.rest, np.nan
    least = table["bytes"].fillna(0.0) / (most * 1e9)
    table["seconds"] = _scaled(table["seconds"], least, seconds or table["seconds"].sum())
    table.insert(0, "share", table["seconds"] / table["seconds"].sum())
    table["GB/s"] = table["bytes"] / table["seconds"] / 1e9
    return table.sort_values("share", ascending=False)


def _scaled(parts: pd.Series, least: pd.Series, whole: float) -> pd.Series:
    """Parts that were recorded in another minute, scaled to the sum ``whole``, none to less than its ``least`` if these allow
    it: in a table of 22 ms a matrix was read at 91 GB/s, where memory had never given more than 87."""
    free = parts >= 0  # all of them, at first
    while True:
        scaled = parts * (whole - least[~free].sum()) / parts[free].sum()
        below = free & (scaled < least)
        if not below.any() or whole <= least.sum():
            return scaled.where(free, least)
        free &= ~below


def _family(name: str) -> str:
    return printable(re.sub(r"^blk\.\d+\.|\.weight|\[\d+\]$", "", name))


def families(file, order: Order, costs, parts: pd.DataFrame | None = None) -> pd.DataFrame:
    """Where a token's time goes: one row per family of tensors (blk.N.ffn_up.weight -> ffn_up), the costliest first. Seconds a
    token of its uses, each of three as measured: dequantized to float32 "each time", "kept" in float32, "from blocks" (nan:
    vectors, which the recorded program fetches in the rest). ``parts``: of ``parts_of``, whose seconds "from blocks" has."""
    tensors, token, rows = used_tensors(file, order), from_blocks("fused", order, costs), []
    for name in (name for uses in order.tokens for name in uses):
        kind, cost = tensors[name].kind, costs[tensors[name].kind]
        family = _family(name)
        sizes = tensors[name].blocks, 4 * tensors[name].elements
        kept = cost.multiply["float32"]
        rows.append((family, 1, *sizes, cost.load["float32"] + kept, kept, token.products.get(kind, np.nan)))
    table = pd.DataFrame(rows, columns=["family", "uses", "in the file", "in float32", *TIMES])
    table = table.groupby("family").sum(min_count=1) / len(order.tokens)
    table.insert(0, "share", table["each time"] / table["each time"].sum())
    table = table.sort_values("share", ascending=False)
    if not order.reason:
        table.loc[REST, list(TIMES)] = order.rest, order.rest, token.rest
    if parts is not None:
        table["from blocks"] = parts["seconds"].reindex(table.index)
    return table


def policies(accesses: Requests, memory: int, names=tuple(POLICIES)) -> pd.DataFrame:
    """Policies of kit.cache with ``memory`` bytes over a trace, from its second token on; most bytes hit first. "bytes limit":
    no policy without prefetch hits a larger share of these bytes."""
    first, rows = _first_token(accesses), []
    asked = np.array(accesses.sizes[first:])
    for name in names:
        stats, hits = replay_hits(accesses, POLICIES[name](memory))
        hits = hits[first:]
        rows.append((name, hits.mean(), (hits * asked).sum() / max(1, asked.sum()), stats.evictions, stats.peak_bytes))
    table = frame(rows, "policy", "hit rate", "bytes hit", "evictions", "peak")
    table["bytes limit"] = upper_bound(accesses, memory)
    return table.sort_values("bytes hit", ascending=False, kind="stable")


def upper_bound(accesses: Requests, memory: int) -> float:
    """Of the bytes asked for after the first token, the share that any policy without prefetch can hit. Where every token asks
    for the same objects once that is memory over working set."""
    first = _first_token(accesses)
    if first and accesses.keys == accesses.keys[:first] * (len(accesses) // first):
        return min(1.0, memory / max(1, accesses.working_set))
    return min(1.0, interval_bound(accesses, memory) * sum(accesses.sizes) / max(1, sum(accesses.sizes[first:])))


def _first_token(accesses: Requests) -> int:
    """How many accesses belong to the first token; 0 when the trace tells no tokens apart."""
    tokens = accesses.tokens
    return next((place for place, token in enumerate(tokens) if token != tokens[0]), 0)


def exactness_of(file) -> pd.DataFrame:
    """Each backend that runs here on the first two rows of this file's own tensors, against gguf-py: format by backend."""
    table = exactness(blocks=sample(file, 2), backends=("cpu", "triton") if gpu() else ("cpu",))
    told = ["equal" if row.equal else f"{row.ulp} ulp, {row.relative:.1e}" for row in table.itertuples()]
    wide = table.assign(told=told, how=table["backend"] + " " + table["dtype"])
    wide = wide.pivot(index=["qtype", "weights"], columns="how", values="told").reset_index("weights")
    return wide.rename_axis(index="format", columns=None)


def candidates(working_set, memory: int, pinned: int | None = None, slots: int | None = None) -> list[Way]:
    """The ways open to a cache of ``memory`` bytes, first that which `kit generate` takes by itself; ``working_set(dtype)`` in
    bytes. ``pinned``: bytes of blocks that stay in memory, where they do not all; ``slots``: of a mixture's experts."""
    if slots:
        ways = [replace(way, policy="LRU", capacity=slots, holds="slots") for way in BLOCK_WAYS]
    else:
        kept = [] if pinned is None else [replace(way, policy="Pinned", capacity=pinned, holds="pinned") for way in BLOCK_WAYS]
        ways = [*kept, *BLOCK_WAYS]
    ways += [LAZY, *[Way("LRU", memory)] * (working_set("float32") > memory)]
    for dtype in DTYPES:
        if working_set(dtype) <= memory:
            ways.append(Way("HashMap", dtype=dtype))
        else:
            ways += [Way("Pinned", memory, dtype), Way("CyclicAware", memory, dtype)]
    return ways


def advice(
    file,
    order: Order,
    costs,
    machine,
    memory: int,
    disk: BackingStore | None = None,
    pinned: int | None = None,
    slots: int | None = None,
) -> list[Prediction]:
    """Predictions for all candidates: first what `kit generate` does by itself, then the others, fastest first. Where no
    weight is quantized, activations are not rounded either, and those ways are none of their own."""
    tensors = used_tensors(file, order)
    ways = candidates(lambda dtype: kit.Weights(file, dtype=dtype).working_set, memory, pinned, slots)
    if not any(FORMATS[tensor.kind.qtype].codes for tensor in tensors.values()):
        ways = [way for way in ways if not way.rounds]
    now, *others = (predict(way, tensors, order, costs, machine, disk) for way in ways)
    return [now, *sorted(others, key=lambda prediction: prediction.seconds)]


def advice_table(predictions: list[Prediction], measured: dict[Way, Reading] | None = None) -> pd.DataFrame:
    """One row per way: seconds per token as predicted (and measured), the least possible, times faster than the first row.
    "faster" compares the measured seconds if both rows were measured, else the predicted ones, as "by" says; "factor" is the
    predicted seconds divided by the measured ones."""
    seconds = {way: each.seconds for way, each in (measured or {}).items()}
    rows = [(each.way.label, each.seconds, np.nan, "", seconds.get(each.way, np.nan), np.nan, each.least, each.hit_rate,
             each.held, each.pages) for each in predictions]  # fmt: skip
    names = ("way", "predicted", "faster", "by", "measured", "factor", "least", "hit rate", "held", "file pages")
    table = frame(rows, *names)
    predicted, real = table["predicted"], table["measured"]
    faster = real.iloc[0] / real
    table["by"] = np.where(faster.isna(), "predicted", "measured")
    table["faster"] = faster.fillna(predicted.iloc[0] / predicted)
    table["factor"] = predicted / real
    return table if measured else table.drop(columns=["measured", "factor"])


def short(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of Study.advice that a reader decides by."""
    measured = table.get("measured", pd.Series(np.nan, table.index))
    taken = table.assign(**{"per token": measured.fillna(table["predicted"])})
    return taken[["per token", "faster", "by", "least", "memory", "fits"]]


# --- for people: text with units, in a terminal of at most 100 columns, whatever a file's names hold -----------------


_SECONDS = (*TIMES, "comes in", "predicted", "measured", "least", "least seconds per token", "seconds", "per token")
_BYTES = ("in the file", "in float32", "held", "file pages", "together", "peak", "bytes", "size", "bytes of a token", "memory")
_SHARES = ("share", "hit rate", "bytes hit", "bytes limit")
_FORMATS = (
    dict.fromkeys(_SECONDS, format_seconds)
    | dict.fromkeys(_BYTES, format_bytes)
    | dict.fromkeys(_SHARES, "{:.1%}".format)
    | {"faster": lambda times: f"{times:#.2g}".rstrip(".") + "x", "factor": "{:.2f}x".format, "weights": format_count}
)


def formatted(table: pd.DataFrame) -> pd.DataFrame:
    """A table of this module with its numbers as text, with units by its columns' names; an en dash for missing values; ways
    by their one word. The seconds of a token have tokens per second behind them."""
    known = dict.fromkeys(table, format_seconds) if table.index.name == DEPTH else _FORMATS
    texts = {}
    for name, values in table.items():
        texts[name] = values.astype(object).map(known.get(name, number), "ignore")
        if name == _token(table):
            texts[RATE] = (1 / values).astype(object).map(format_rate, "ignore")
    frame = pd.DataFrame(texts, index=table.index, dtype=object).fillna("–").rename(index=in_tables)
    if "by" in frame:
        told = frame["faster"] + " (" + frame.pop("by") + ")"
        frame = frame.assign(faster=told.where(frame["faster"] != "–", "–")).rename(columns={"faster": "times as fast"})
    return frame


def _token(table: pd.DataFrame) -> str | None:
    """The column with the seconds of a whole token, the surest of several; None where there is none."""
    return next((name for name in ("token", "per token", "measured", "predicted") if name in table), None)


def as_text(table: pd.DataFrame) -> str:
    """A table of text as columns, the index first; the index is cut where the lines would be longer than the terminal."""
    lines = table.map(printable).set_axis([""] * len(table)).to_string().split("\n")
    keys = [table.index.name or "", *map(printable, table.index)]
    for columns in (width(), MOST):  # the second where a narrow terminal would give two rows one name
        room = min(max(map(len, keys)), max(8, columns - 1 - len(lines[0])))
        cut = [key if len(key) <= room else f"{key[: room - 3]}..." for key in keys]
        if len({*cut}) == len({*keys}):
            break
    return "\n".join(f"{key:{room}} {line}" for key, line in zip(cut, lines, strict=True))
