"""Predictors: a tile codes the differences between values and their predictions, modulo 256 (residuals).

On independent weights they cost bits, because a difference of two Gaussians is wider than either. Report 004 used one;
the encoder measures the entropy with each and takes the best.
"""

import numpy as np

from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import extract, jit, move_up, u8x64

PREDICTORS = ("none", "left", "left2", "up")  # the index is the predictor's number in a header
NONE, LEFT, LEFT2, UP = range(len(PREDICTORS))


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
                _add_up(row)
        elif predictor == UP and i:
            above = residuals[(i - 1) * width : i * width]
            for j in range(width):
                row[j] = np.uint8(row[j] + above[j])


@jit
def _add_up(row):
    """Prefix sums modulo 256 of row (n,) uint8, in place: 64 at a time by six shifted additions, plus the total before."""
    address, whole = row.ctypes.data, row.size // 64 * 64
    total = np.uint8(0)
    for j in range(0, whole, 64):
        sums = load(u8x64, address + j)
        sums = sums + move_up(sums, 1)
        sums = sums + move_up(sums, 2)
        sums = sums + move_up(sums, 4)
        sums = sums + move_up(sums, 8)
        sums = sums + move_up(sums, 16)
        sums = sums + move_up(sums, 32)
        sums = sums + total
        store(address + j, sums)
        total = extract(sums, 63)
    for j in range(whole, row.size):
        total = np.uint8(total + row[j])
        row[j] = total
