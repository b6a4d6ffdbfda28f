"""The decoder `triton`: tiles on the GPU, or with TRITON_INTERPRET=1 on the CPU; alone, by thousands, or as they arrive.

Streams, states and tables are read on the device; the predictor is undone and the checksum summed there, too. Four bytes
a tile come back to be compared.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import triton

from kit.codec import rans
from kit.codec.decoders import REASONS
from kit.codec.streams import streams_of
from kit.codec.tiles import Tiles
from kit.codec.triton_kernels import finish_kernel, rans_kernel
from kit.errors import CodecError

INTERPRETED = bool(triton.knobs.runtime.interpret)
_AT_ONCE = 4096  # values of a tile that the finishing kernel holds in registers

if not INTERPRETED and not torch.cuda.is_available():
    raise CodecError(
        "decoder 'triton' needs a CUDA device and torch sees none: choose 'simd' or 'interleaved' (`kit doctor` says what "
        "is missing), or set TRITON_INTERPRET=1 before Python starts to run its kernels slowly on the CPU"
    )


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
        """Bytes that crossed to the device."""
        return sum(part.nbytes for part in self[1:])


def device() -> torch.device:
    """Where this decoder works."""
    return torch.device("cpu" if INTERPRETED else "cuda")


def upload(tiles: Tiles) -> DeviceTiles:
    """Copy ``tiles`` to the device, through pinned host memory, on the current stream and without waiting for it."""
    streams = streams_of(tiles)
    if len(tiles) and not (streams.begin[0] >= 0 and streams.end[-1] <= streams.units.size):
        raise CodecError(f"{tiles.name}: the lengths of its tiles go beyond its streams")
    slots = np.stack([rans.slot_table(frequencies) for frequencies in streams.frequencies])
    arrays = streams.units, streams.begin, streams.end, streams.coded, streams.values, slots
    return DeviceTiles(tiles, *map(_to_device, arrays))


def _to_device(array: np.ndarray) -> torch.Tensor:
    host = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), pin_memory=not INTERPRETED)
    host.numpy()[...] = array
    return host.to(device(), non_blocking=True)


def decode_tiles(streams, first, last, residuals, status):
    """The signature of every decoder (kit.codec.decoders): residuals and status come back to the host."""
    on_device = [
        _to_device(array) for array in (streams.units, streams.begin, streams.end, streams.coded, streams.values)
    ]
    tables = streams.frequencies if len(streams.frequencies) == 1 else streams.frequencies[first:last]
    slots = _to_device(np.stack([rans.slot_table(frequencies) for frequencies in tables]))
    into = torch.zeros(residuals.shape, dtype=torch.uint8, device=device())
    found = torch.empty(last - first, dtype=torch.uint8, device=device())
    per_tile = [part[first:last] for part in on_device[1:]]
    _launch(on_device[0], *per_tile, slots, into, found, streams.lanes, streams.lower)
    residuals[...] = into.cpu().numpy()
    status[...] = found.cpu().numpy()


def decode_on_device(loaded: DeviceTiles, out: torch.Tensor | None = None) -> torch.Tensor:
    """The int8 matrix (rows, columns) on the device. CodecError names the first tile that does not decode, and why."""
    tiles, layout = loaded.tiles, loaded.tiles.layout
    if out is None:
        out = torch.empty(tiles.shape, dtype=torch.int8, device=device())
    elif out.shape != tiles.shape or out.dtype != torch.int8 or not out.is_contiguous():
        raise CodecError(f"{tiles.name}: out is {out.dtype} {tuple(out.shape)}, and the matrix int8 {tiles.shape}")
    room = layout.tile_rows * layout.tile_columns
    residuals = torch.empty((len(tiles), room), dtype=torch.uint8, device=out.device)
    status = torch.empty(len(tiles), dtype=torch.uint8, device=out.device)
    sums = torch.empty(len(tiles), dtype=torch.uint32, device=out.device)
    _launch(*loaded[1:], residuals, status, layout.lanes, rans.LOWER[layout.unit_bits])
    width = triton.next_power_of_2(layout.tile_columns)
    finish_kernel[(len(tiles),)](
        residuals, sums, out, room, layout.rows, layout.columns, layout.tile_rows, layout.tile_columns,
        PREDICTOR=layout.predictor, HEIGHT=max(1, _AT_ONCE // width), WIDTH=width, num_warps=4,
    )  # fmt: skip
    _check(tiles, status.cpu().numpy(), sums.cpu().numpy())
    return out


def _launch(units, begin, end, coded, values, slots, residuals, status, lanes, lower):
    if lanes & (lanes - 1):
        raise CodecError(f"decoder triton takes a power of two of lanes, not {lanes}: choose another decoder")
    threads = min(lanes, 32)
    rans_kernel[(len(begin),)](
        units, begin, end, coded, values, slots, residuals, status, residuals.shape[1],
        slots.shape[1] if len(slots) > 1 else 0, THREADS=threads, EACH=lanes // threads,
        UNIT_BITS=8 * units.itemsize, LOWER=lower, num_warps=1,
    )  # fmt: skip


def _check(tiles, status, sums):
    for tile in np.flatnonzero(status)[:1]:
        raise tiles.error(int(tile), f"{REASONS[int(status[tile])]} (decoder triton)")
    for tile in np.flatnonzero(sums != tiles.checksums)[:1]:
        raise tiles.error(int(tile), "the checksum of its values differs (decoder triton)")


def decode_as_they_arrive(matrices: Iterable[Tiles]) -> Iterator[torch.Tensor]:
    """Decode one matrix after another while the next one's streams cross from pinned host memory on a second stream."""
    if INTERPRETED:
        yield from (decode_on_device(upload(tiles)) for tiles in matrices)
        return
    copying, computing = torch.cuda.Stream(), torch.cuda.current_stream()

    def start(tiles):
        with torch.cuda.stream(copying):
            return upload(tiles), copying.record_event()

    waiting = None
    for tiles in matrices:
        arriving = start(tiles)
        if waiting:
            yield _decode_after(*waiting, computing)
        waiting = arriving
    if waiting:
        yield _decode_after(*waiting, computing)


def _decode_after(loaded: DeviceTiles, copied, stream) -> torch.Tensor:
    stream.wait_event(copied)
    for part in loaded[1:]:
        part.record_stream(stream)  # it was allocated on the copying stream and must outlive this one's use
    return decode_on_device(loaded)
