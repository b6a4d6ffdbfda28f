"""The encoder's loops over tiles: residuals counted, and coded into streams."""

import numpy as np

from kit.cpu.simd.vectors import jit
from kit.cpu.tiles import predictors
from kit.cpu.tiles.finishing import checksum
from kit.cpu.tiles.rans import encode_symbols, first_slots, normalize
from kit.gguf.tile_coding import ALIGNMENT, NONE


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
def count(matrix, layout, first, last):
    """Counts of each residual in the tiles from first up to last (exclusive), (256,) int64."""
    counts = np.zeros(256, np.int64)
    residuals = np.empty(layout.tile_rows * layout.tile_columns, np.uint8)
    for tile in range(first, last):
        values = _cut(matrix, layout, tile)
        predictors.apply(values, layout.predictor, residuals)
        _histogram(residuals[: values.size], counts)
    return counts


@jit
def encode(matrix, layout, lower, units, tables, checksums, lengths, first, last):
    """Code the tiles from first up to last; returns their streams, each padded to ALIGNMENT, (bytes,) uint8.

    Writes `checksums` and `lengths`, and `tables` if each tile has one. `units`: working memory for one tile's units.
    """
    symbols_of_tile = np.empty(layout.tile_rows * layout.tile_columns, np.uint8)
    states = np.empty(layout.lanes, np.uint32)
    streams, end = np.zeros((last - first) * (4 * layout.lanes + units.nbytes + ALIGNMENT), np.uint8), 0
    for tile in range(first, last):
        values = _cut(matrix, layout, tile)
        symbols = symbols_of_tile[: values.size]
        predictors.apply(values, NONE, symbols)
        checksums[tile] = checksum(symbols)
        if layout.predictor != NONE:
            predictors.apply(values, layout.predictor, symbols)
        if len(tables) > 1:
            counts = np.zeros(256, np.int64)
            _histogram(symbols, counts)
            tables[tile] = normalize(counts)
        frequencies = tables[tile % len(tables)]

        states[:] = lower
        coded = symbols.size
        if layout.unit_bits == 16:
            coded = max(0, symbols.size - 2 * layout.lanes)
            for i in range(coded, symbols.size):
                states[(i - coded) // 2] |= np.uint32(symbols[i]) << np.uint32(8 * ((i - coded) % 2))
        begin = encode_symbols(symbols[:coded], frequencies, first_slots(frequencies), layout.unit_bits, lower, states, units)
        lengths[tile] = states.nbytes + units[begin:].nbytes
        streams[end : end + states.nbytes] = states.view(np.uint8)
        streams[end + states.nbytes : end + lengths[tile]] = units[begin:].view(np.uint8)
        end += (lengths[tile] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return streams[:end]
