"""The decoders by name, and the steps that they share: predictor, checksum, threads.

A decoder is a function ``(streams: Streams, first, last, residuals, status)``. For each tile from first up to last it
writes the residuals to ``residuals[tile - first]`` (uint8, room for a whole tile) and a status (kit.gguf.tile_coding) to
``status[tile - first]``. For any bytes it terminates, and reads only from ``begin`` up to ``end + READ_AHEAD``.
"""

import functools
import importlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kit.codec.tiles import Tiles, streams_of
from kit.cpu.tiles import finish
from kit.errors import CodecError, known
from kit.gguf.tile_coding import LONG, SHORT, STATE
from kit.system import after_fork

# name -> (module, function, tiles of one call); imported at first use.
DECODERS = {
    "python": ("kit.cpu.tiles.scalar", "python", 1),
    "scalar-linear": ("kit.cpu.tiles.scalar", "linear", 8),
    "scalar-binary": ("kit.cpu.tiles.scalar", "binary", 8),
    "scalar-table": ("kit.cpu.tiles.scalar", "table", 8),
    "interleaved": ("kit.cpu.tiles.scalar", "interleaved", 16),
    "simd": ("kit.cpu.tiles.vector", "decode_simd", 16),
    "triton": ("kit.codec.triton", "decode_tiles", 4096),
}

REASONS = {
    SHORT: "the stream ends before the tile does",
    LONG: "the stream goes on after the tile has ended",
    STATE: "a final state is not one from which an encoder starts",
}


def decode(tiles: Tiles, decoder: str = "interleaved", out=None, threads: int = 1) -> np.ndarray:
    """The int8 matrix (rows, columns) of `tiles`, written to `out` if given.

    CodecError for a decoder that is unknown or cannot run here; for a damaged tile, it names tensor, tile and reason.
    """
    run, at_a_time = find(decoder)
    if out is None:
        out = np.empty(tiles.shape, np.int8)
    elif out.shape != tiles.shape or out.dtype != np.int8:
        raise CodecError(f"{tiles.name}: out is {out.dtype} {out.shape}, but the matrix is int8 {tiles.shape}")
    streams = streams_of(tiles)
    room = tiles.layout.tile_rows * tiles.layout.tile_columns

    def work(first):
        last = min(first + at_a_time, len(tiles))
        residuals, status = _room(last - first, room), np.empty(last - first, np.uint8)
        run(streams, first, last, residuals, status)
        for i in np.flatnonzero(status):
            raise tiles.error(first + int(i), f"{REASONS[int(status[i])]} (decoder {decoder})")
        wrong = finish(residuals, tiles.layout, tiles.checksums, first, last, out)
        if wrong >= 0:
            raise tiles.error(wrong, f"the checksum of its values differs (decoder {decoder})")

    tasks = range(0, len(tiles), at_a_time)
    if threads == 1:
        for first in tasks:
            work(first)
    else:
        for _ in _pool(threads).map(work, tasks):
            pass
    return out


_own = threading.local()


def _room(tiles: int, values: int) -> np.ndarray:
    """(tiles, values) uint8, the same memory at every call of this thread: new pages take longer than decoding."""
    if getattr(_own, "room", np.empty(0)).size < tiles * values:
        _own.room = np.empty(tiles * values, np.uint8)
    return _own.room[: tiles * values].reshape(tiles, values)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """A pool that is kept, because starting threads takes as long as decoding some ten tiles."""
    return ThreadPoolExecutor(threads, "unpack")


after_fork(_pool.cache_clear)


def find(decoder: str):
    """(function, tiles of one call) of a decoder; CodecError lists the known names."""
    module, function, at_a_time = known("decoder", decoder, DECODERS, CodecError)
    return getattr(importlib.import_module(module), function), at_a_time
