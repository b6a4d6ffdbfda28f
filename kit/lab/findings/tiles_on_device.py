"""Report 004 on a device: its one thread, the rung `triton`, tokens from tiles in device memory, tiles over the bus."""

from collections import deque
from functools import partial

import numpy as np
import pandas as pd
import torch

import kit
from kit.codec.container import CompressedFile
from kit.codec.tiles import TILE_VALUES, Tiles
from kit.codec.triton import DEVICE, decode_on_device, upload
from kit.gguf.tile_coding import LOWER
from kit.lab import tables
from kit.lab.measuring.gpu import Limits, time_on_device
from kit.lab.on_device.compressed import CompressedTransformer, Streamed, TileWeights
from kit.lab.on_device.one_thread import one_thread_kernel
from kit.system import usable_cores


def one_thread(tile: Tiles, samples: int) -> list[float]:
    """Seconds in which one thread decodes the first of ``tile``, of the profile "reported", by a linear search. Its residuals
    are compared with what a table finds; the predictor is not undone."""
    loaded, first = upload(tile), np.append(np.uint32(0), tile.frequencies[0].cumsum(dtype=np.uint32))
    first, coded = torch.from_numpy(first).to(DEVICE), int(loaded.index[2][0])
    residuals = torch.empty(coded, dtype=torch.uint8, device=DEVICE)

    def run():
        one_thread_kernel[(1,)](loaded.units, first, residuals, coded, LOWER=LOWER[8], num_warps=1)

    taken = time_on_device(run, samples)
    values = residuals.cpu().numpy().reshape(tile.sizes[0]).cumsum(1, np.uint8).cumsum(1, np.uint8).view(np.int8)
    rows, columns = tile.sizes[0]
    assert np.array_equal(values, kit.codec.decode(tile)[:rows, :columns]), "one thread finds other values"
    return taken


def batches(lab, claim: str, values: np.ndarray, samples: int, counts=(1, 1024, 8192)) -> pd.DataFrame:
    """Seconds a tile of so many at once, streams and result on the device, predictor, checksum and its check on the host
    included, with a record of ``claim`` for each. ``values``: int8 of whole tiles, taken over again. "limit": a tile's
    compressed bytes read and its values written at the device's bandwidth. Before it is timed a batch must give back every
    value."""
    side, rows = int(np.sqrt(TILE_VALUES)), {}
    whole = values.reshape(len(values) // side, side, -1, side).swapaxes(1, 2).reshape(-1, side, side)
    for count in counts:
        many = np.resize(whole, (count, side, side)).reshape(-1, side)
        tiles = kit.codec.encode(many, threads=usable_cores())
        loaded = upload(tiles)
        out = torch.empty(many.shape, dtype=torch.int8, device=DEVICE)
        right = np.array_equal(decode_on_device(loaded, out).cpu().numpy(), many)
        assert right, f"{count} tiles decode to other values on the device"
        taken = [seconds / count for seconds in time_on_device(lambda at=loaded, to=out: decode_on_device(at, to), samples)]
        least = lab.gpu.seconds_to_read(tiles.nbytes / count) + lab.gpu.seconds_to_write(TILE_VALUES)
        name, seconds = "one alone" if count == 1 else f"{count:,} at once", float(np.median(taken))
        lab.record(
            claim, quantity=f"a tile on the device, {name}", unit="s", samples=taken, device=lab.device, lower=least,
            lower_source="compressed bytes read, values written at the device's bandwidth",
        )  # fmt: skip
        rows[name] = (seconds, least, TILE_VALUES / seconds / 1e9, seconds / least)
    return tables.frame(rows, "tiles", "seconds", "limit", "GB/s", "times the limit")


def generate_from_tiles(file: CompressedFile, prompt: list[int], tokens: int) -> tuple[tuple[int, ...], list[float], int]:
    """Generate greedily, every matrix unpacked at every token: (tokens, seconds of each, bytes held). With a GPU a token after
    the first is a replayed graph; a generation that is not counted captures it."""
    model = CompressedTransformer(TileWeights(file), max_context=len(prompt) + tokens)
    cache = model.new_cache()
    kit.generate(model, prompt, 2, stop_at_end=False, cache=cache)
    cache.truncate(0)
    answer = kit.generate(model, prompt, tokens, stop_at_end=False, cache=cache)
    return tuple(answer.tokens), answer.seconds, model.weights.held_bytes


def least_token(packed: int, plain: int, gpu: Limits) -> float:
    """A token cannot take less: compressed bytes read, INT8 values written and read again, at device bandwidth."""
    return gpu.seconds_to_read(packed + plain) + gpu.seconds_to_write(plain)


def streamed(file: CompressedFile, gpu: Limits, samples: int) -> pd.DataFrame:
    """A pass over all matrices that wait in pinned host memory, as plain INT8 and as tiles: seconds, the least, GB/s of INT8.
    The least is the longer of the bus and, for tiles, of what unpacking moves in device memory."""
    tiles = {name: matrix.tiles for name, matrix in file.matrices.items()}
    values = {name: kit.codec.decode(matrix, "simd", threads=usable_cores()) for name, matrix in tiles.items()}
    plain, rows = sum(matrix.size for matrix in values.values()), {}
    for label, matrices in (("plain INT8", values), ("tiles", tiles)):
        source = Streamed(matrices)
        assert all(np.array_equal(matrix.cpu().numpy(), values[name]) for name, matrix in source), f"{label} arrive changed"
        taken = time_on_device(partial(deque, source, 0), samples)
        decoding = least_token(source.nbytes, plain, gpu) if label == "tiles" else 0.0
        least = max(gpu.seconds_from_host(source.nbytes), decoding)
        seconds = float(np.median(taken))
        rows[label] = (source.nbytes / 2**20, seconds, least, seconds / least, plain / seconds / 1e9, taken)
    names = ("weights", "MiB over the bus", "pass, s", "least, s", "times the least", "GB/s of INT8", "samples")
    return tables.frame(rows, *names)
