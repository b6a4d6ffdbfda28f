"""Predictors: a tile codes the differences between values and their predictions, modulo 256 (residuals).

On independent weights they cost bits, because a difference of two Gaussians is wider than either. Report 004 used one;
the encoder measures the entropy with each and takes the best.
"""

import numpy as np

from kit.cpu.simd.vectors import jit
from kit.cpu.tiles.vector import add_up
from kit.gguf.tile_coding import LEFT, LEFT2, NONE, UP


@jit
def apply(tile, predictor, residuals):
    """Write the residuals of tile (h, w) int8, row after row, to residuals (h * w,) uint8.

    left: x[j] - x[j-1]. left2: the differences of those. up: x[i] - x[i-1]. Values outside the tile count as 0.
    """
    height, width = tile.shape
    for i in range(height):
        row = residuals[i * width : (i + 1) * width]
        for j in range(width):
            row[j] = np.uint8(tile[i, j])
        if predictor == UP and i:
            for j in range(width):
                row[j] = np.uint8(np.uint8(tile[i, j]) - np.uint8(tile[i - 1, j]))
        if predictor == LEFT or predictor == LEFT2:
            for _ in range(predictor):  # LEFT is 1: one difference; LEFT2 is 2: two
                before = np.uint8(0)
                for j in range(width):
                    value = row[j]
                    row[j] = np.uint8(value - before)
                    before = value


@jit
def undo(residuals, predictor, height, width):
    """Turn residuals (h * w,) uint8 back into the tile's values, in place."""
    if predictor == NONE:
        return
    for i in range(height):
        row = residuals[i * width : (i + 1) * width]
        if predictor == LEFT or predictor == LEFT2:
            for _ in range(predictor):
                add_up(row)
        elif predictor == UP and i:
            above = residuals[(i - 1) * width : i * width]
            for j in range(width):
                row[j] = np.uint8(row[j] + above[j])
