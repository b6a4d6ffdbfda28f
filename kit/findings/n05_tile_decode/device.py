"""Tiles on a device: the rung `triton` of the ladder, one tile alone and thousands at a time."""

import numpy as np
import pandas as pd
import torch

import kit.codec
from kit.claims import table as claims
from kit.codec.codings import quantize
from kit.codec.triton import decode_on_device, upload
from kit.findings.n05_tile_decode import ladder as cpu
from kit.findings.n05_tile_decode.bits import SIDE, TILE, tiles_of
from kit.lab import tables
from kit.lab.device import Limits, time_on_device
from kit.lab.machine import usable_cores
from kit.units import format_seconds

BATCHES = (1, 1024, 8192)


def rungs(weights: torch.Tensor, ladder: pd.DataFrame, gpu: Limits, samples: int, batches=BATCHES) -> tuple:
    """The ladder's further rungs and their raw samples: seconds a tile of each batch, streams and result on the device, the
    predictor, the checksum and its check on the host included. Before it is timed a batch must give back every value.
    Column "bound": a tile's compressed bytes read and its values written at the device's bandwidth; "factor" is over
    the rung above, for the first over the fastest of ``ladder``."""
    whole, rows, raw = tiles_of(quantize(weights)[0]), [], []
    for count in batches:
        values = np.resize(whole, (count, SIDE, SIDE)).reshape(-1, SIDE)  # the same tiles over again
        tiles = kit.codec.encode(values, threads=usable_cores())
        loaded = upload(tiles)
        out = torch.empty(values.shape, dtype=torch.int8, device=loaded.units.device)
        right = np.array_equal(decode_on_device(loaded, out).cpu().numpy(), values)
        assert right, f"{count} tiles decode to other values on the device"
        taken = [seconds / count for seconds in time_on_device(lambda at=loaded, to=out: decode_on_device(at, to), samples)]
        raw.append(taken)
        least = gpu.seconds_to_read(tiles.nbytes / count) + gpu.seconds_to_write(TILE)
        name = "one tile" if count == 1 else f"{count:,} at once"
        rows.append((f"triton x {count:,}", name, float(np.median(taken)), least))
    table = tables.frame(rows, "decoder", "new", "seconds", "bound")
    table["factor"] = table["seconds"].shift(fill_value=ladder["seconds"].min()) / table["seconds"]
    table["GB/s"] = TILE / table["seconds"] / 1e9
    table["times the bound"] = table["seconds"] / table["bound"]
    return table, raw


def figure(ladder: pd.DataFrame, table: pd.DataFrame):
    """The whole ladder, the device's rungs below those of the CPU, with the bound of the device."""
    return cpu.figure(pd.concat([ladder, table]), table["bound"].min())


def verdicts(lab, table: pd.DataFrame, raw: list[list[float]], slow: list[float]) -> None:
    """What the device says of tile-295-5 and generic-decoder; ``slow`` is the reported algorithm, interpreted."""
    claim = claims.get("tile-295-5")
    source = "compressed bytes read and values written at the device's measured bandwidth"
    for row, samples in zip(table.itertuples(), raw, strict=True):
        lab.record(claim.id, quantity=f"a tile on the device, {row.new}", unit="s", samples=samples, lower=row.bound,
                   lower_source=source, device=lab.device)  # fmt: skip
    alone, fastest = table["seconds"].iloc[0], table.loc[table["seconds"].idxmin()]
    typical = float(np.median(slow))
    gain = [typical / seconds for seconds in raw[table["seconds"].argmin()]]
    lab.judge(
        claim.id, f"a tile: as reported over triton, {fastest['new']}", "x", gain, accept=(59, None), in_ratio=True,
        at_most=(typical / fastest["bound"], source), tolerance="the report expects 59x, 60 to 300 times",
        text=f"{format_seconds(typical)} -> {format_seconds(fastest['seconds'])} on {lab.gpu.name}, {fastest['GB/s']:,.3g} "
        "GB/s of values", device=lab.device,
    )  # fmt: skip
    lab.judge(
        "generic-decoder", "one tile alone, by an explicit GPU decoder", "s", raw[0], accept=(None, claim.after),
        at_least=(table["bound"].iloc[0], source), in_ratio=True, tolerance="the report expects 1 to 5 ms",
        text=f"{format_seconds(alone)} alone, {format_seconds(fastest['seconds'])} {fastest['new']}: a GPU needs many tiles "
        "at a time, and an explicit decoder is not what made the CPU slow", device=lab.device,
    )  # fmt: skip
