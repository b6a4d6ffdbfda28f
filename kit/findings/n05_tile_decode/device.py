"""Tile decode on a device: the rung `triton` of the ladder, one tile alone and thousands at a time."""

import numpy as np
import pandas as pd
import torch

import kit.codec
from kit.claims import table as claims
from kit.codec.int8 import quantize
from kit.codec.triton import decode_on_device, upload
from kit.findings.n05_tile_decode.ladder import SIDE, TILE, ladder_figure
from kit.lab.device import Limits, time_on_device
from kit.lab.machine import usable_cores
from kit.units import format_seconds

BATCHES = (1, 1024, 8192)


def batch(weights: torch.Tensor, tiles: int) -> np.ndarray:
    """INT8 values (256 * tiles, 256): the whole tiles of a float matrix, one after another and over again."""
    values, _ = quantize(weights)
    grid = values.reshape(len(values) // SIDE, SIDE, values.shape[1] // SIDE, SIDE).swapaxes(1, 2)
    return np.resize(grid.reshape(-1, SIDE, SIDE), (tiles, SIDE, SIDE)).reshape(-1, SIDE)


def rungs(weights: torch.Tensor, ladder: pd.DataFrame, gpu: Limits, samples: int, batches=BATCHES) -> tuple:
    """The ladder's further rungs and their raw samples: seconds a tile of each batch, streams and result on the device.

    Predictor, checksum and the host's look at it are included. Each batch must give back every value before it is timed.
    Column "bound": a tile's compressed bytes read and its values written at the device's bandwidth; "factor" is over
    the rung above, for the first over the fastest of ``ladder``.
    """
    rows, raw = [], []
    for count in batches:
        values = batch(weights, count)
        tiles = kit.codec.encode(values, threads=usable_cores())
        loaded = upload(tiles)
        out = torch.empty(values.shape, dtype=torch.int8, device=loaded.units.device)
        right = np.array_equal(decode_on_device(loaded, out).cpu().numpy(), values)
        assert right, f"{count} tiles decode to other values on the device"
        taken = [
            seconds / count for seconds in time_on_device(lambda at=loaded, to=out: decode_on_device(at, to), samples)
        ]
        raw.append(taken)
        least = gpu.seconds_to_read(tiles.nbytes / count) + gpu.seconds_to_write(TILE)
        rows.append({"decoder": "triton", "profile": "kit", "new": "one tile" if count == 1 else f"{count:,} at once",
                     "seconds": float(np.median(taken)), "bound": least})  # fmt: skip
    table = pd.DataFrame(rows)
    table["factor"] = table["seconds"].shift(fill_value=ladder["seconds"].min()) / table["seconds"]
    table["GB/s"] = TILE / table["seconds"] / 1e9
    table["times the bound"] = table["seconds"] / table["bound"]
    return table, raw


def figure(ladder: pd.DataFrame, table: pd.DataFrame):
    """The whole ladder, the device's rungs below those of the CPU, with the bound of the device."""
    return ladder_figure(pd.concat([ladder, table], ignore_index=True), table["bound"].min())


def judge(lab, table: pd.DataFrame, raw: list[list[float]], slow: list[float]) -> None:
    """What the device says of tile-295-5 and generic-decoder; ``slow`` is the reported algorithm, interpreted."""
    claim = claims.get("tile-295-5")
    source = "compressed bytes read and values written at the device's measured bandwidth"
    for row, samples in zip(table.itertuples(), raw, strict=True):
        lab.record(claim.id, quantity=f"a tile on the device, {row.new}", unit="s", samples=samples, lower=row.bound,
                   lower_source=source, device=lab.device)  # fmt: skip
    alone, fastest = table["seconds"].iloc[0], table.loc[table["seconds"].idxmin()]
    gain = [slow[0] / seconds for seconds in raw[int(table["seconds"].idxmin())]]
    lab.record(
        claim.id, quantity=f"a tile: as reported over triton, {fastest['new']}", unit="x", samples=gain, device=lab.device,
        upper=slow[0] / fastest["bound"], upper_source=source, tolerance="at least the reported 59x",
        verdict="reproduced in ratio" if np.median(gain) >= 59 else "not reproduced",
        reason=f"{format_seconds(slow[0])} -> {format_seconds(fastest['seconds'])} on {lab.gpu.name}, "
        f"{fastest['GB/s']:,.3g} GB/s of values",
    )  # fmt: skip
    lab.record(
        "generic-decoder", quantity="one tile alone, by an explicit GPU decoder", unit="s", samples=raw[0],
        device=lab.device, lower=table["bound"].iloc[0], lower_source=source, tolerance="at most the 5 ms expected of it",
        verdict="reproduced in ratio" if alone <= claim.after else "not reproduced",
        reason=f"{format_seconds(alone)} alone, {format_seconds(fastest['seconds'])} {fastest['new']}: a GPU needs many "
        "tiles at a time, and an explicit decoder is not what made the CPU slow",
    )  # fmt: skip
