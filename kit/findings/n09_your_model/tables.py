"""What kit explain says of a file, as tables of plain numbers; kit.costs.columns writes them for people."""

import re
import textwrap

import numpy as np
import pandas as pd

import kit
from kit.cache import POLICIES
from kit.cache.bounds import interval_bound
from kit.cache.traces import Requests
from kit.costs.measured import DTYPES
from kit.costs.order import Order, kind_of
from kit.costs.ways import BLOCKS, BLOCKS_INT8, LAZY, Measured, Prediction, Way, from_blocks, parts_of, predict
from kit.gguf.formats import FORMATS
from kit.quants.exactness import exactness, sample
from kit.units import printable

REST = "attention and the rest"


def families(file, order: Order, costs) -> pd.DataFrame:
    """Where a token's time goes: one row a family of tensors (blk.N.ffn_up.weight -> ffn_up), the costliest first.

    Seconds a token: to dequantize all of it to float32, to multiply by it once dequantized, to use it straight from its blocks.
    """
    weights, token, rows = kit.Weights(file), from_blocks("fused", order, costs), []
    for name in (name for token in order.tokens for name in token):
        kind = kind_of(weights, name)
        cost = costs[kind]
        family = printable(re.sub(r"^blk\.\d+\.|\.weight|\[\d+\]$", "", name))
        sizes = weights.blocks(name).nbytes, weights.nbytes(name)
        rows.append((family, 1, *sizes, cost.load["float32"], cost.multiply["float32"], token.products.get(kind, 0.0)))
    names = ["family", "uses", "in the file", "in float32", "dequantize", "multiply", "from blocks"]
    table = pd.DataFrame(rows, columns=names).groupby("family").sum() / len(order.tokens)
    table.insert(0, "share", (table["dequantize"] + table["multiply"]) / (table["dequantize"] + table["multiply"]).sum())
    table = table.sort_values("share", ascending=False)
    if not order.reason:
        table.loc[REST, ["multiply", "from blocks"]] = order.rest, token.rest
    return table


def policies(accesses: Requests, memory: int, names=tuple(POLICIES)) -> pd.DataFrame:
    """Policies of kit.cache with ``memory`` bytes over a trace, from its second token on; most bytes hit first.

    "upper bound": no policy without prefetch hits a larger share of these bytes.
    """
    first, rows = _first_token(accesses), []
    for name in names:
        whole, cold = (kit.replay(part, POLICIES[name](memory)) for part in (accesses, accesses[:first]))
        gets, requested = whole.gets - cold.gets, whole.bytes_requested - cold.bytes_requested
        hit, nbytes = whole.hits - cold.hits, whole.bytes_hit - cold.bytes_hit
        rows.append((name, hit / max(1, gets), nbytes / max(1, requested), whole.evictions, whole.peak_bytes))
    table = pd.DataFrame(rows, columns=["policy", "hit rate", "bytes hit", "evictions", "peak"])
    table["upper bound"] = upper_bound(accesses, memory)
    return table.sort_values("bytes hit", ascending=False, kind="stable").set_index("policy")


def upper_bound(accesses: Requests, memory: int) -> float:
    """Of the bytes asked for after the first token, the share that any policy without prefetch can hit.

    Where every token asks for the same objects once that is memory over working set.
    """
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
    from kit.lab.machine import gpu

    table = exactness(blocks=sample(file, 2), backends=("cpu", "triton") if gpu() else ("cpu",))
    told = ["equal" if row.equal else f"{row.ulp} ulp, {row.relative:.1e}" for row in table.itertuples()]
    wide = table.assign(told=told, how=table["backend"] + " " + table["dtype"])
    wide = wide.pivot(index=["qtype", "weights"], columns="how", values="told").reset_index("weights")
    return wide.rename_axis(index="format", columns=None)


def candidates(working_set, memory: int) -> list[Way]:
    """The ways open to a cache of ``memory`` bytes, the reports' own first; ``working_set(dtype)`` in bytes."""
    ways = [Way("LRU", memory), LAZY]
    for dtype in DTYPES:
        if working_set(dtype) <= memory:
            ways.append(Way("HashMap", dtype=dtype))
        else:
            ways += [Way("Pinned", memory, dtype), Way("CyclicAware", memory, dtype)]
    return [*ways, BLOCKS, BLOCKS_INT8]


def advice(file, order: Order, costs, machine, memory: int) -> list[Prediction]:
    """Predictions for all candidates: first what a cache of the reports does now, then the others, fastest first.

    Where no weight is quantized, activations are not rounded either, and that way is none of its own.
    """
    ways, parts = candidates(lambda dtype: kit.Weights(file, dtype=dtype).working_set, memory), parts_of(file, order)
    if not any(FORMATS[part.kind.qtype].codes for part in parts.values()):
        ways.remove(BLOCKS_INT8)
    now, *others = (predict(way, parts, order, costs, machine) for way in ways)
    return [now, *sorted(others, key=lambda prediction: prediction.seconds)]


def advice_table(predictions: list[Prediction], measured: dict[Way, Measured] | None = None) -> pd.DataFrame:
    """One row a way: seconds a token predicted (and measured), the least possible, times faster than the first row.

    "faster" is of the measured seconds where both rows were measured, else of the predicted ones.
    """
    now, rows, measured = predictions[0], [], measured or {}
    for found in predictions:
        row = {"way": found.way.label, "predicted": found.seconds, "faster": now.seconds / found.seconds}
        if measured:
            real = measured.get(found.way)
            row["measured"] = real.seconds if real else np.nan
            row["error"] = found.seconds / real.seconds - 1 if real else np.nan
            if real and now.way in measured:
                row["faster"] = measured[now.way].seconds / real.seconds
        row |= {"least": found.bound, "hit rate": found.hit_rate, "held": found.held, "file pages": found.pages}
        rows.append(row)
    return pd.DataFrame(rows).set_index("way")


# --- for a terminal: plain text of at most 100 columns, whatever a file's names hold --------------------------------


WIDTH = 100


def as_text(frame: pd.DataFrame) -> str:
    """A frame of text as columns, the index first; the first column gives way when the lines would be too long."""
    index = frame.index.name or ""
    rows = [[index, *map(str, frame.columns)]]
    rows += [[printable(key), *map(printable, values)] for key, values in zip(frame.index, frame.to_numpy(), strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1))
    return "\n".join(_line(row, widths) for row in rows)


def _line(row, widths) -> str:
    first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 3] + "..."
    return "  ".join([first.ljust(widths[0]), *(cell.rjust(room) for cell, room in zip(row[1:], widths[1:], strict=True))])


def paragraph(text: str) -> str:
    """Text wrapped at WIDTH columns."""
    return textwrap.fill(printable(text), WIDTH)
