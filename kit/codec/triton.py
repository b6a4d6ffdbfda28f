"""The decoder `triton`: tiles on the GPU, or on the CPU with TRITON_INTERPRET=1.

The device decodes the streams, undoes the predictor and computes the checksums. The status and checksum of each tile come
back to the host: at once (``decode_on_device``), or when the caller calls ``verify`` after ``start``.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton

from kit.codec import rans
from kit.codec.decoders import REASONS
from kit.codec.streams import Streams, streams_of
from kit.codec.tiles import Tiles
from kit.codec.triton_kernels import finish_kernel, rans_kernel
from kit.cuda.device import DEVICE, pinned, require
from kit.errors import CodecError

_FINISH_VALUES = 4096  # values of a tile that finish_kernel holds in registers
TOUCHED_TILES = 256  # up to two tiles a multiprocessor of an H200, streams are loaded into the cache before decoding

require("decoder 'triton'", "'simd' or 'interleaved'", CodecError)


class DeviceTiles(NamedTuple):
    """A matrix's tiles on the device. ``tiles`` stays on the host, for its layout, checksums and errors."""

    tiles: Tiles
    units: torch.Tensor  # (units,) uint8 or uint16
    begin: torch.Tensor  # (tiles,) int64, as in Streams
    end: torch.Tensor
    coded: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor  # (1 or tiles, 4096) uint32

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(part.nbytes for part in self[1:])


def upload(tiles: Tiles) -> DeviceTiles:
    """Copy ``tiles`` to the device through pinned memory, on the current CUDA stream, without waiting."""
    streams = streams_of(tiles)
    return DeviceTiles(tiles, _to_device(streams.units), *index_on_device(streams))


def index_on_device(streams: Streams) -> tuple[torch.Tensor, ...]:
    """begin, end, coded, values and slots of DeviceTiles, which stay on the device when streams are copied at every use."""
    slots = np.stack([rans.slot_table(frequencies) for frequencies in streams.frequencies])
    return tuple(map(_to_device, (streams.begin, streams.end, streams.coded, streams.values, slots)))


def _to_device(array: np.ndarray) -> torch.Tensor:
    return pinned(array).to(DEVICE, non_blocking=True)


def decode_tiles(streams, first, last, residuals, status):
    """The decoder function of kit.codec.decoders: residuals and status are copied to the host."""
    parts = {name: getattr(streams, name)[first:last] for name in ("begin", "end", "coded", "values")}
    if len(streams.frequencies) > 1:
        parts["frequencies"] = streams.frequencies[first:last]
    into = torch.zeros(residuals.shape, dtype=torch.uint8, device=DEVICE)
    outcome = torch.empty(last - first, dtype=torch.uint8, device=DEVICE)
    _launch(_to_device(streams.units), *index_on_device(streams._replace(**parts)), into, outcome, streams.lanes, streams.lower)
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
    _launch(*loaded[1:], residuals, outcome[0], layout.lanes, rans.LOWER[layout.unit_bits])
    width = triton.next_power_of_2(layout.tile_columns)
    finish_kernel[(len(tiles),)](
        residuals, outcome[1], out, room, layout.rows, layout.columns, layout.tile_rows, layout.tile_columns,
        PREDICTOR=layout.predictor, HEIGHT=max(1, _FINISH_VALUES // width), WIDTH=width, num_warps=4,
    )  # fmt: skip
    return out, outcome


def check(tiles: Tiles, outcome: np.ndarray) -> None:
    """Check the ``outcome`` of ``start``, copied to the host. CodecError names the first tile that failed, and the reason."""
    status, sums = outcome
    for tile in np.flatnonzero(status)[:1]:
        raise tiles.error(int(tile), f"{REASONS[int(status[tile])]} (decoder triton)")
    for tile in np.flatnonzero(sums != tiles.checksums)[:1]:
        raise tiles.error(int(tile), "the checksum of its values differs (decoder triton)")


def _launch(units, begin, end, coded, values, slots, residuals, status, lanes, lower):
    threads = min(lanes, 32)
    rans_kernel[(len(begin),)](
        units, begin, end, coded, values, slots, residuals, status, residuals.shape[1],
        slots.shape[1] if len(slots) > 1 else 0, THREADS=threads, EACH=lanes // threads,
        UNIT_BITS=8 * units.itemsize, LOWER=lower, TOUCH=len(begin) <= TOUCHED_TILES, num_warps=1,
    )  # fmt: skip
