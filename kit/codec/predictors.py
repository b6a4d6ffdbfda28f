"""Predictors: what is coded in place of a value, modulo 256, row by row of a tile; each is undone exactly.

On independent weights every one of them costs bits (a difference of two Gaussians is wider than either); they are here
because report 004 used one, and because the encoder measures before it believes.
"""

import numpy as np
from numba import njit

PREDICTORS = ("none", "left", "left2", "up")  # a position in this tuple is the predictor's number in a stream
NONE, LEFT, LEFT2, UP = range(len(PREDICTORS))


@njit(cache=True, nogil=True)
def apply(tile, predictor, residuals):
    """Write the residuals of tile (h, w) int8, row after row, to residuals (h * w,) uint8.

    left: x[j] - x[j-1]; left2: the difference of those differences; up: x[i] - x[i-1]. Outside the tile all is 0.
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
            for _ in range(predictor):  # LEFT is number 1, LEFT2 number 2: so many differences
                before = np.uint8(0)
                for j in range(width):
                    value = row[j]
                    row[j] = np.uint8(value - before)
                    before = value


@njit(cache=True, nogil=True)
def undo(residuals, predictor, height, width):
    """Turn residuals (h * w,) uint8 back into the tile's values, in place."""
    if predictor == LEFT or predictor == LEFT2:
        for i in range(height):
            row = residuals[i * width : (i + 1) * width]
            slope, value = np.uint8(0), np.uint8(0)
            if predictor == LEFT:
                for j in range(width):
                    value = np.uint8(value + row[j])
                    row[j] = value
            else:
                for j in range(width):
                    slope = np.uint8(slope + row[j])
                    value = np.uint8(value + slope)
                    row[j] = value
    elif predictor == UP:
        for i in range(1, height):
            above = residuals[(i - 1) * width : i * width]
            row = residuals[i * width : (i + 1) * width]
            for j in range(width):
                row[j] = np.uint8(row[j] + above[j])
