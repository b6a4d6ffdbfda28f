"""Compressed inference on a device: tiles that lie in its memory, and tiles that cross the bus at every pass."""

from collections import deque
from functools import partial

import numpy as np
import pandas as pd

import kit
from kit.codec.container import CompressedFile
from kit.codec.device import CompressedTransformer, TileWeights
from kit.codec.streaming import Streamed
from kit.findings.n06_compressed_inference.passes import packed_bytes, plain_bytes
from kit.findings.n06_compressed_inference.verdicts import speed_ups
from kit.lab import tables
from kit.lab.device import Limits, time_on_device
from kit.lab.machine import usable_cores
from kit.units import format_bytes


def run(file: CompressedFile, prompt: list[int], tokens: int) -> tuple[tuple[int, ...], list[float], int]:
    """Generate ``tokens`` tokens greedily, every matrix unpacked at every token: (tokens, seconds of each, bytes held). With a
    GPU a token after the first is a replayed graph; a generation that is not counted captures it."""
    model = CompressedTransformer(TileWeights(file), max_context=len(prompt) + tokens)
    cache = model.new_cache()
    kit.generate(model, prompt, 2, stop_at_end=False, cache=cache)
    cache.truncate(0)
    found = kit.generate(model, prompt, tokens, stop_at_end=False, cache=cache)
    return tuple(found.tokens), found.seconds, model.weights.held_bytes


def least_seconds(file: CompressedFile, gpu: Limits) -> float:
    """A token cannot take less this way: compressed bytes read, INT8 values written and read again, at device bandwidth."""
    plain = plain_bytes(file)
    return gpu.seconds_to_read(packed_bytes(file) + plain) + gpu.seconds_to_write(plain)


def streamed(file: CompressedFile, gpu: Limits, samples: int) -> pd.DataFrame:
    """A pass over all matrices that wait in pinned host memory, as plain INT8 and as tiles: seconds, the least, GB/s of INT8.
    The least is the longer of the bus and, for tiles, of what unpacking moves in device memory."""
    plain = plain_bytes(file)
    tiles = {name: matrix.tiles for name, matrix in file.matrices.items()}
    values = {name: kit.codec.decode(matrix, "simd", threads=usable_cores()) for name, matrix in tiles.items()}
    rows = {}
    for label, matrices in (("plain INT8", values), ("tiles", tiles)):
        source = Streamed(matrices)
        assert all(np.array_equal(matrix.cpu().numpy(), values[name]) for name, matrix in source), f"{label} arrive changed"
        taken = time_on_device(partial(deque, source, 0), samples)
        decoding = least_seconds(file, gpu) if label == "tiles" else 0.0
        least = max(gpu.seconds_from_host(source.nbytes), decoding)
        seconds = float(np.median(taken))
        rows[label] = (source.nbytes / 2**20, seconds, least, seconds / least, plain / seconds / 1e9, taken)
    names = ("weights", "MiB over the bus", "pass, s", "least, s", "times the least", "GB/s of INT8", "samples")
    return tables.frame(rows, *names)


def table(file: CompressedFile, seconds: list[float], held: int, gpu: Limits) -> pd.DataFrame:
    """The first token and those after it, beside the least and the memory that the weights take."""
    plain = plain_bytes(file)
    token, least = float(np.median(seconds[1:])), least_seconds(file, gpu)
    row = (seconds[0], token, least, token / least, plain / token / 1e9, held / 2**20, plain / 2**20)
    names = ("way", "first token, s", "token, s", "least, s", "times the least", "GB/s of INT8", "held MiB", "plain INT8 MiB")
    return tables.frame({"tiles on the device, unpacked at every token": row}, *names)


def verdicts(lab, file: CompressedFile, seconds: list[float], passes: pd.DataFrame, slow: list[float]) -> None:
    """What the device says of token-time, five-tokens and cold-token; ``slow``: the reported way, seconds a tile. Speeds are
    scaled to the tiles of the report's model, as on the CPU."""
    source = "compressed bytes read, INT8 written and read again, at the device's measured bandwidth"
    least = least_seconds(file, lab.gpu), source
    speed_ups(lab, file, slow, [seconds], least, "tiles unpacked at every token on the device", lab.device)
    gain = passes.loc["plain INT8", "pass, s"] / passes.loc["tiles", "pass, s"]
    plain, packed = plain_bytes(file), packed_bytes(file)
    lab.record(
        quantity="a pass from pinned memory: plain INT8 over tiles", unit="x", samples=[gain], device=lab.device,
        upper=plain / packed, upper_source=f"bytes saved: {format_bytes(plain)} over {format_bytes(packed)}", tolerance="1.4x",
        reason=f"the bus gives {lab.gpu.host_to_device_gbps:.1f} GB/s, tiles arrive as "
        f"{passes.loc['tiles', 'GB/s of INT8']:.1f} GB/s of INT8",
    )  # fmt: skip
