"""The decoder `triton`: tiles on the GPU, or on the CPU with TRITON_INTERPRET=1.

The device decodes the streams, undoes the predictor and computes the checksums. The status and checksum of each tile come
back to the host: at once (``decode_on_device``), or when the caller calls ``verify`` after ``start``.
"""

from typing import NamedTuple

import numpy as np
import torch

from kit.codec.decoders import REASONS
from kit.codec.tiles import Tiles, streams_of
from kit.cuda import tile_decoder
from kit.cuda.device import DEVICE, pinned, require
from kit.errors import CodecError
from kit.gguf.tile_coding import LOWER

require("decoder 'triton'", "'simd' or 'interleaved'", CodecError)


class DeviceTiles(NamedTuple):
    """A matrix's tiles on the device. ``tiles`` stays on the host, for its layout, checksums and errors."""

    tiles: Tiles
    units: torch.Tensor  # (units,) uint8 or uint16
    index: tuple[torch.Tensor, ...]  # of tile_decoder.index

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(part.nbytes for part in (self.units, *self.index))


def upload(tiles: Tiles) -> DeviceTiles:
    """Copy ``tiles`` to the device through pinned memory, on the current CUDA stream, without waiting."""
    streams = streams_of(tiles)
    return DeviceTiles(tiles, _to_device(streams.units), tile_decoder.index(streams))


def _to_device(array: np.ndarray) -> torch.Tensor:
    return pinned(array).to(DEVICE, non_blocking=True)


def decode_tiles(streams, first, last, residuals, status):
    """The decoder function of kit.codec.decoders: residuals and status are copied to the host."""
    parts = {name: getattr(streams, name)[first:last] for name in ("begin", "end", "coded", "values")}
    if len(streams.frequencies) > 1:
        parts["frequencies"] = streams.frequencies[first:last]
    into = torch.zeros(residuals.shape, dtype=torch.uint8, device=DEVICE)
    outcome = torch.empty(last - first, dtype=torch.uint8, device=DEVICE)
    index = tile_decoder.index(streams._replace(**parts))
    tile_decoder.launch(_to_device(streams.units), index, into, outcome, streams.lanes, streams.lower)
    residuals[...] = into.cpu().numpy()
    status[...] = outcome.cpu().numpy()


def decode_on_device(loaded: DeviceTiles, out: torch.Tensor | None = None) -> torch.Tensor:
    """The int8 matrix (rows, columns) on the device. CodecError names the first tile that fails, and the reason."""
    out, outcome = start(loaded, out)
    check(loaded.tiles, outcome.cpu().numpy())
    return out


def start(loaded: DeviceTiles, out: torch.Tensor | None = None, outcome=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the decoding without waiting: (matrix, outcome).

    outcome: (2, tiles) uint32 on the device, the status and checksum of each tile, for ``verify``.
    """
    tiles, layout = loaded.tiles, loaded.tiles.layout
    if out is None:
        out = torch.empty(tiles.shape, dtype=torch.int8, device=DEVICE)
    elif out.shape != tiles.shape or out.dtype != torch.int8 or not out.is_contiguous():
        raise CodecError(f"{tiles.name}: out is {out.dtype} {tuple(out.shape)}, but the matrix is int8 {tiles.shape}")
    room = layout.tile_rows * layout.tile_columns
    residuals = torch.empty((len(tiles), room), dtype=torch.uint8, device=out.device)
    outcome = torch.empty((2, len(tiles)), dtype=torch.uint32, device=out.device) if outcome is None else outcome
    lower, finish = LOWER[layout.unit_bits], (layout, outcome[1], out)
    tile_decoder.launch(loaded.units, loaded.index, residuals, outcome[0], layout.lanes, lower, finish)
    return out, outcome


def check(tiles: Tiles, outcome: np.ndarray) -> None:
    """Check the ``outcome`` of ``start``, copied to the host. CodecError names the first tile that failed, and the reason."""
    status, sums = outcome
    for tile in np.flatnonzero(status)[:1]:
        raise tiles.error(int(tile), f"{REASONS[int(status[tile])]} (decoder triton)")
    for tile in np.flatnonzero(sums != tiles.checksums)[:1]:
        raise tiles.error(int(tile), "the checksum of its values differs (decoder triton)")
