"""What follows every decoder: the predictor undone, the checksum compared, the tile copied into the matrix."""

import numpy as np

from kit.cpu.simd.vectors import jit
from kit.cpu.tiles import predictors


@jit
def finish(residuals, layout, checksums, first, last, out):
    """Undo the predictor, compare the checksum and copy each tile into ``out``; the first tile that differs, or -1."""
    across = -(-layout.columns // layout.tile_columns)
    for tile in range(first, last):
        row, column = tile // across * layout.tile_rows, tile % across * layout.tile_columns
        height = min(layout.tile_rows, layout.rows - row)
        width = min(layout.tile_columns, layout.columns - column)
        values = residuals[tile - first, : height * width]
        predictors.undo(values, layout.predictor, height, width)
        if checksum(values) != checksums[tile]:
            return tile
        for i in range(height):
            line = out[row + i]
            for j in range(width):
                line[np.uint64(column + j)] = values[np.uint64(i * width + j)]  # unsigned: Numba adds no test for negatives
    return -1


@jit
def checksum(values):
    """Sum of v[i] * (2 i + 1) modulo 2^32 over the 32-bit words (the last padded with zeros) of values (n,) uint8.

    The factors are odd, so every change within one word changes the sum; and the terms can be added in any order.
    """
    words = values[: values.size // 4 * 4].view(np.uint32)
    total = np.uint32(0)
    for i in range(words.size):
        total = np.uint32(total + np.uint32(words[i] * np.uint32(2 * i + 1)))
    rest = np.uint32(0)
    for j in range(words.size * 4, values.size):
        rest |= np.uint32(values[j]) << np.uint32(8 * (j % 4))
    return np.uint32(total + np.uint32(rest * np.uint32(2 * words.size + 1)))
