"""Encode an int8 matrix into tiles."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from kit.codec import predictors, rans
from kit.codec.predictors import PREDICTORS
from kit.codec.rans import LOWER
from kit.codec.tiles import ALIGNMENT, READ_AHEAD, Layout, Tiles, checksum
from kit.cpu.simd.vectors import jit
from kit.errors import CodecError, known

_TASK_TILES = 64  # tiles that one task encodes


@dataclass(frozen=True)
class CodecProfile:
    """How to cut and code. Of several predictors, the one with the least entropy on the matrix is taken."""

    predictors: tuple[str, ...]
    lanes: int
    unit_bits: int
    table_a_tile: bool
    tile_rows: int = 256
    tile_columns: int = 256


PROFILES = {
    # Report 004: differences of differences, one state, one table for each tile.
    "reported": CodecProfile(predictors=("left2",), lanes=1, unit_bits=8, table_a_tile=True),
    "kit": CodecProfile(predictors=("none", "left", "up"), lanes=128, unit_bits=16, table_a_tile=False),
}


def encode(matrix, profile: str | CodecProfile = "kit", name: str = "matrix", threads: int = 1) -> Tiles:
    """Compress an int8 matrix (rows, columns), a torch tensor or a numpy array, without loss.

    `profile` is a name in PROFILES or a CodecProfile. CodecError for another dtype, a shape that is not 2-D, or no elements.
    """
    matrix = np.asarray(matrix)
    if isinstance(profile, str):
        profile = known("profile", profile, PROFILES, CodecError)
    if matrix.dtype != np.int8 or matrix.ndim != 2:
        raise CodecError(f"{name}: expected a 2-D int8 matrix, not {matrix.ndim}-D {matrix.dtype}: quantize it first")
    if not matrix.size:
        raise CodecError(f"{name}: the matrix is empty ({matrix.shape[0]} x {matrix.shape[1]}): nothing to encode")
    lanes = profile.lanes
    while lanes > 16 and matrix.size < 128 * lanes:  # in a small matrix many states cost more than they speed up
        lanes //= 2

    def layout_for(predictor):
        cut = profile.tile_rows, profile.tile_columns
        return Layout(*matrix.shape, *cut, lanes, profile.unit_bits, PREDICTORS.index(predictor))

    candidates = [layout_for(predictor) for predictor in profile.predictors]
    matrix = np.ascontiguousarray(matrix)
    tiles = candidates[0].grid[0] * candidates[0].grid[1]
    parts = [(first, min(first + _TASK_TILES, tiles)) for first in range(0, tiles, _TASK_TILES)]
    with ThreadPoolExecutor(threads) as pool:
        counts = [sum(pool.map(lambda part, c=c: _count(matrix, c, *part), parts)) for c in candidates]
        best = min(range(len(candidates)), key=lambda i: rans.entropy(counts[i]))
        layout, table = candidates[best], rans.normalize(counts[best])[None]
        tables = np.repeat(table, tiles, axis=0) if profile.table_a_tile else table
        checksums, lengths = np.empty(tiles, np.uint32), np.empty(tiles, np.uint32)
        unit = f"u{layout.unit_bits // 8}"
        most = 3 * layout.tile_rows * layout.tile_columns // 2 * 8 // layout.unit_bits  # units of a tile: 12 bits a value

        def code(part):
            room = np.empty(most, unit)
            return _encode_tiles(matrix, layout, LOWER[layout.unit_bits], room, tables, checksums, lengths, *part)

        streams = list(pool.map(code, parts))
    return Tiles(layout, tables, checksums, lengths, np.concatenate([*streams, np.zeros(READ_AHEAD, np.uint8)]), name)


@jit
def _cut(matrix, layout, tile):
    """A tile as a view of the matrix."""
    across = -(-layout.columns // layout.tile_columns)
    row, column = tile // across * layout.tile_rows, tile % across * layout.tile_columns
    return matrix[row : row + layout.tile_rows, column : column + layout.tile_columns]


@jit
def _histogram(symbols, counts):
    four = np.zeros((4, 256), np.int64)  # equal neighbors increment different counters, which avoids waiting for the store
    for i in range(symbols.size):
        four[i & 3, symbols[i]] += 1
    counts += four.sum(axis=0)


@jit
def _count(matrix, layout, first, last):
    """Counts of each residual in the tiles from first up to last (exclusive), (256,) int64."""
    counts = np.zeros(256, np.int64)
    residuals = np.empty(layout.tile_rows * layout.tile_columns, np.uint8)
    for tile in range(first, last):
        values = _cut(matrix, layout, tile)
        predictors.apply(values, layout.predictor, residuals)
        _histogram(residuals[: values.size], counts)
    return counts


@jit
def _encode_tiles(matrix, layout, lower, units, tables, checksums, lengths, first, last):
    """Code the tiles from first up to last; returns their streams, each padded to ALIGNMENT, (bytes,) uint8.

    Writes `checksums` and `lengths`, and `tables` if each tile has one. `units`: working memory for one tile's units.
    """
    symbols_of_tile = np.empty(layout.tile_rows * layout.tile_columns, np.uint8)
    states = np.empty(layout.lanes, np.uint32)
    streams, end = np.zeros((last - first) * (4 * layout.lanes + units.nbytes + ALIGNMENT), np.uint8), 0
    for tile in range(first, last):
        values = _cut(matrix, layout, tile)
        symbols = symbols_of_tile[: values.size]
        predictors.apply(values, predictors.NONE, symbols)
        checksums[tile] = checksum(symbols)
        if layout.predictor != predictors.NONE:
            predictors.apply(values, layout.predictor, symbols)
        if len(tables) > 1:
            counts = np.zeros(256, np.int64)
            _histogram(symbols, counts)
            tables[tile] = rans.normalize(counts)
        frequencies = tables[tile % len(tables)]

        states[:] = lower
        coded = symbols.size
        if layout.unit_bits == 16:
            coded = max(0, symbols.size - 2 * layout.lanes)
            for i in range(coded, symbols.size):
                states[(i - coded) // 2] |= np.uint32(symbols[i]) << np.uint32(8 * ((i - coded) % 2))
        begin = rans.encode_symbols(
            symbols[:coded], frequencies, rans.first_slots(frequencies), layout.unit_bits, lower, states, units
        )
        lengths[tile] = states.nbytes + units[begin:].nbytes
        streams[end : end + states.nbytes] = states.view(np.uint8)
        streams[end + states.nbytes : end + lengths[tile]] = units[begin:].view(np.uint8)
        end += (lengths[tile] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return streams[:end]
