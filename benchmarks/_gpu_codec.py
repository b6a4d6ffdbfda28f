"""Rows of benchmarks/gpu_session.py about tiles: decoded in device memory, streamed from the host, and by nvCOMP's ANS."""

import numpy as np
import torch

from kit import codec
from kit.codec.codings import quantize
from kit.codec.tiles import TILE_VALUES

_TILES = (1, 1024, 4096)
_SIDE, _MATRICES = 4096, 32  # what is streamed: square matrices
# How the weights were made INT8 decides how well they compress: (name, scales, the greatest weight in standard deviations)
_WEIGHTS = (("a scale a row", "row", 0.0), ("a scale a tensor, one weight of 16 sigma", "tensor", 16.0))


def tile_rows() -> list[dict]:
    """Tiles decoded on the device, with the check on the host and by the kernels alone."""
    from kit.codec.triton import decode_on_device, start, upload
    from kit.lab.measuring.gpu import time_on_device

    rows = []
    for count in _TILES:
        tiles = codec.encode(_matrix(count), threads=8)
        loaded, out = upload(tiles), torch.empty(tiles.shape, dtype=torch.int8, device="cuda")
        row = {"read_MB": tiles.nbytes / 1e6, "written_MB": out.nbytes / 1e6, "per": "tile"}
        for how, function in {"both kernels": start, "and the check on the host": decode_on_device}.items():
            seconds = _median(time_on_device(lambda function=function: function(loaded, out)))  # noqa: B023
            each = {"measured_us": 1e6 * seconds, "us_a_tile": 1e6 * seconds / count}
            rows.append({"kernel": f"decode {count} tiles, {how}"} | row | each)
    return rows


def nvcomp_row(ours: list[dict]) -> dict:
    """nvCOMP's ANS over the values of the largest of ``tile_rows``, in chunks of a tile's size.

    ``times_ours``: its time over that of our kernels. An error of nvCOMP (import, API, CUDA) is reported in the row. Call
    it last, because a CUDA error makes later CUDA calls fail.
    """
    count = _TILES[-1]
    row = {"kernel": f"nvCOMP ANS, {count} tiles", "per": "tile"}
    values = torch.from_numpy(_matrix(count).view(np.uint8)).cuda()
    values = values.view(-1, 256, values.shape[1] // 256, 256).transpose(1, 2).reshape(-1)  # tile after tile, as ours
    try:
        seconds, packed_bytes = _nvcomp(values)
    except (ImportError, OSError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        return row | {"measured_us": f"not measured: {type(error).__name__}: {error}"}
    own = next(each["measured_us"] for each in ours if each["kernel"] == f"decode {count} tiles, both kernels")
    return row | {
        "read_MB": packed_bytes / 1e6, "written_MB": values.nbytes / 1e6, "measured_us": 1e6 * seconds,
        "us_a_tile": 1e6 * seconds / count, "times_ours": 1e6 * seconds / own,
    }  # fmt: skip


def _nvcomp(values: torch.Tensor) -> tuple[float, int]:
    """(median seconds of a decode without synchronization, compressed bytes)."""
    from nvidia import nvcomp

    from kit.lab.measuring.gpu import time_on_device

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        coder = nvcomp.Codec(algorithm="ANS", cuda_stream=stream.cuda_stream, uncomp_chunk_size=TILE_VALUES)
        packing = coder.compression_config(values.numel())
        packed = coder.encode(nvcomp.as_array(values, stream.cuda_stream), compression_config=packing)
        unpacking, out = coder.decompression_config(packing), torch.zeros_like(values)
        seconds = time_on_device(lambda: coder.decode(packed, out=out, decompression_config=unpacking))
        stream.synchronize()
        if not torch.equal(out, values):
            raise RuntimeError("it decoded to other values")
        return _median(seconds), packed.buffer_size


def streaming_rows(device: dict) -> list[dict]:
    """A pass over matrices in pinned host memory, plain INT8 and compressed; each is also read on the device, by a sum.

    ``times_plain``: speed over that of plain INT8, measured, and its bound (the ratio of bytes copied).
    """
    rows = []
    for name, scales, greatest in _WEIGHTS:
        matrices = {f"{number}": _weights(number, scales, greatest) for number in range(_MATRICES)}
        tiles = {number: codec.encode(matrix, threads=8) for number, matrix in matrices.items()}
        sizes = [sum(matrix.size for matrix in matrices.values()), sum(part.streams.size for part in tiles.values())]
        for what, held, size in zip(("plain INT8", "tiles"), (matrices, tiles), sizes, strict=True):
            row = {
                "kernel": f"stream {_MATRICES} x {_SIDE} x {_SIDE}, {name}: {what}", "per": "pass", "bus_MB": size / 1e6,
                "bus_us": size / device["host_to_device_gbps"] / 1e3, "bits_a_weight": 8 * size / sizes[0],
                "times_plain_at_most": sizes[0] / size, "measured_us": 1e6 * _pass(held),
            }  # fmt: skip
            row["times_plain"] = rows[-1]["measured_us"] / row["measured_us"] if what == "tiles" else 1.0
            rows.append(row)
    return rows


def _pass(matrices) -> float:
    from kit.lab.measuring.gpu import time_on_device
    from kit.lab.on_device.compressed import Streamed

    stream = Streamed(matrices)

    def once():
        for _, matrix in stream:
            matrix.view(torch.int32).sum()

    return _median(time_on_device(once))


def _weights(seed: int, scales: str, greatest: float) -> np.ndarray:
    weights = torch.randn(_SIDE, _SIDE, generator=torch.Generator().manual_seed(seed))
    if greatest:
        weights[0, 0] = greatest
    return quantize(weights, per=scales)[0]


def _matrix(tiles: int) -> np.ndarray:
    """An int8 matrix of so many tiles of 256 x 256 normal values."""
    across = min(tiles, 16)
    values = np.random.default_rng(0).normal(0, 30, (tiles // across * 256, across * 256))
    return np.clip(values, -127, 127).astype(np.int8)


def _median(seconds) -> float:
    return float(np.median(seconds))
