"""The ladder: seconds to unpack a tile, from the reported 295 ms to the bound of memory, one step at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch

import kit.codec
from kit.claims import table as claims
from kit.claims.judge import times
from kit.codec.codings import quantize
from kit.findings.n05_tile_decode import native
from kit.findings.n05_tile_decode.bits import SIDE, TILE
from kit.lab import figures, measure, tables
from kit.units import format_seconds

INTERPRETED = "a tile as reported, interpreted"  # the quantity of a record: 06 reads it, so that one run has one figure


@dataclass(frozen=True)
class Rung:
    """One step: how to unpack which profile, and what is new against the rung above. ``run(tiles, out)`` unpacks."""

    name: str
    new: str
    profile: str
    run: Callable
    tiles: int | None = None  # at most so many: a slow rung need not unpack them all


def _kit(decoder: str, threads: int = 1):
    return lambda tiles, out: kit.codec.decode(tiles, decoder, out, threads)


def _native(level: int, context: bool):
    return lambda tiles, out: native.unpack(tiles, level, context, out.reshape(-1, SIDE, SIDE)).reshape(out.shape)


LADDER = (
    Rung("python", "interpreted, linear search", "reported", _kit("python"), 1),
    Rung("native -O0, careless", "native, not optimized, context, copies", "reported", _native(0, True), 4),
    Rung("native -O0", "no context, no copies", "reported", _native(0, False), 4),
    Rung("native -O3", "optimized by LLVM", "reported", _native(3, False), 4),
    Rung("scalar-linear", "sums of the frequencies kept", "reported", _kit("scalar-linear"), 4),
    Rung("scalar-binary", "binary search", "reported", _kit("scalar-binary")),
    Rung("scalar-table", "a table of 4096 slots", "reported", _kit("scalar-table")),
    Rung("scalar-table, kit", "16-bit units, no predictor", "kit", _kit("scalar-table")),
    Rung("interleaved", "128 states abreast", "kit", _kit("interleaved")),
    Rung("simd", "vector instructions", "kit", _kit("simd")),
    Rung("simd x 2", "two threads", "kit", _kit("simd", 2)),
)


def ladder(weights: torch.Tensor, samples: int = 5, rungs=LADDER) -> tuple[pd.DataFrame, dict[str, list[float]]]:
    """Seconds a 64 KiB tile of each rung, on the same INT8 values; and the samples by rung, all rungs in turn. Before anything
    is timed every rung must give the values back. Column "factor": the rung above over this one."""
    values, _ = quantize(weights)
    ways, counts, encoded = {}, {}, {}
    for rung in rungs:
        part = values[: rung.tiles * SIDE, :SIDE] if rung.tiles else values
        key = rung.profile, part.shape
        tiles = encoded.setdefault(key, kit.codec.encode(part, rung.profile))
        run = partial(rung.run, tiles, np.empty_like(part))
        assert np.array_equal(run(), part), f"{rung.name} unpacks other values"
        ways[rung.name], counts[rung.name] = measure.sampler(run, 0.01)[0], len(tiles)
    found = measure.rounds(ways, least=samples, budget=20)
    raw = {name: [seconds / counts[name] for seconds in found.seconds[name]] for name in ways}
    table = tables.frame([(rung.name, rung.new, np.median(raw[rung.name])) for rung in rungs], "decoder", "new", "seconds")
    table["factor"] = table["seconds"].shift() / table["seconds"]
    table["GB/s"] = TILE / table["seconds"] / 1e9
    return table, raw


def interpreted_tile(lab) -> list[float]:
    """Seconds for a tile the reported way: what 05 measured in this run, else the same measured now."""
    weights = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return lab.once(INTERPRETED, "s", lambda: ladder(weights, 3, LADDER[:1])[1][LADDER[0].name])


def least_seconds(machine, bits: float) -> float:
    """A tile cannot unpack in less on this machine: its compressed bytes read and its values written, at bandwidth."""
    return machine.seconds_to_read(TILE * bits / 8) + machine.seconds_to_write(TILE)


def figure(table: pd.DataFrame, bound: float):
    """Seconds a tile on a log axis, one bar a rung, from the reported 295 ms down to the bound of memory."""
    claim = claims.get("tile-295-5")
    reported = pd.DataFrame({"new": ["report 004"], "seconds": [claim.before]}, index=["as reported"])
    shown = pd.concat([reported, table])
    drawn, axes = figures.new(height=5.2)
    bars = axes.barh(shown["new"], shown["seconds"], color=[figures.VERMILION] + [figures.BLUE] * len(table), height=0.65)
    factors = shown["factor"].map("  ({:.1f}x)".format, na_action="ignore").fillna("")
    axes.bar_label(bars, " " + shown["seconds"].map(format_seconds) + factors, fontsize=9)
    axes.axvspan(1e-3, claim.after, color=figures.ORANGE, alpha=0.3, label="1-5 ms: expected of a GPU decoder")
    figures.bound(axes, bound, f"bytes / bandwidth: {format_seconds(bound)}", vertical=True)
    figures.log(axes, "x", write=format_seconds)
    told = [format_seconds(seconds) for seconds in (table["seconds"].iloc[0], table["seconds"].min())]
    axes.set(title=f"A tile, one step at a time: {told[0]} to {told[1]}", xlabel="time a tile")
    axes.set_xlim(bound / 3, 30 * shown["seconds"].max())
    figures.rows(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.3, -0.12), ncols=2, fontsize=9)
    return drawn


def milliseconds(table: pd.DataFrame, claim_after: float) -> str:
    """The first rung within the milliseconds that were expected of a GPU, in words."""
    within = table["seconds"][table["seconds"] <= claim_after]
    return f"{within.index[0]} ({format_seconds(within.iloc[0])})" if len(within) else "no rung"


def answer(table: pd.DataFrame, bits: pd.DataFrame, bound: float) -> str:
    """The notebook's answer, filled from the run."""
    told = {name: format_seconds(table.loc[name, "seconds"]) for name in table.index}
    fastest = table["seconds"].idxmin()
    return (
        f"A tile takes {told['python']} only where an interpreter searches for every value: the same search in native code "
        f"takes {told['native -O0, careless']} without any optimization and {told['native -O3']} with, and all steps end at "
        f"{told[fastest]} on this CPU ({format_seconds(bound)} is the least), so no GPU is needed for the reported 1 to 5 ms. "
        f"The reported predictor makes independent weights larger: {bits.loc['Gaussian', 'LEFT twice']:.2f} bits where "
        f"{bits.loc['Gaussian', 'order 0']:.2f} are enough."
    )


def verdicts(lab, table: pd.DataFrame, raw: dict[str, list[float]], bits: float) -> None:
    """Write the records and verdicts of tile-295-5 and generic-decoder."""
    claim = claims.get("tile-295-5")
    bound = least_seconds(lab.machine, bits), "compressed bytes read and values written at this machine's bandwidth"
    for name, samples in raw.items():
        quantity = INTERPRETED if name == "python" else f"a tile, {name}: {table.loc[name, 'new']}"
        lab.record(claim.id, quantity=quantity, unit="s", samples=samples, lower=bound[0], lower_source=bound[1])
    seconds = table["seconds"]
    told = {name: format_seconds(seconds[name]) for name in seconds.index}
    gain = [slow / fast for slow, fast in zip(raw["python"], raw["simd"], strict=True)]
    lab.judge(
        claim.id, "a tile: as reported and interpreted over the fastest on one core", "x", gain, accept=(59, None),
        at_most=(seconds["python"] / bound[0], bound[1]), in_ratio=True, cure="compiled code on one core, not a GPU",
        tolerance="the report expects 59x, 60 to 300 times",
        text=f"{told['python']} -> {told['native -O3']} by compiling alone, {told['scalar-linear']} with the sums of the "
        f"frequencies kept: still a linear search, without a table, with one state; all steps together end at {told['simd']}",
    )  # fmt: skip
    lab.judge(
        "generic-decoder", "a tile by native code on one CPU thread, not optimized, a context and copies a tile", "s",
        raw["native -O0, careless"], accept=times(claim.before, 2), at_least=bound,
        tolerance="the CPU is the cause if its code takes the reported 295 ms, within a factor of 2 for another machine",
        text=f"{told['native -O0, careless']}: even unoptimized native code with a context and copies a tile is "
        f"{claim.before / seconds['native -O0, careless']:.0f} times faster than 295 ms on one CPU thread, optimized "
        f"{claim.before / seconds['native -O3']:.0f} times; an interpreter takes {told['python']}",
    )  # fmt: skip
