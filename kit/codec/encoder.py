"""Encode an int8 matrix into tiles."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from kit.codec.tiles import READ_AHEAD, Layout, Tiles
from kit.cpu import tiles as compiled
from kit.errors import CodecError, known
from kit.gguf.tile_coding import LOWER, PREDICTORS

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
        counts = [sum(pool.map(lambda part, c=c: compiled.count(matrix, c, *part), parts)) for c in candidates]
        best = min(range(len(candidates)), key=lambda i: entropy(counts[i]))
        layout, table = candidates[best], compiled.normalize(counts[best])[None]
        tables = np.repeat(table, tiles, axis=0) if profile.table_a_tile else table
        checksums, lengths = np.empty(tiles, np.uint32), np.empty(tiles, np.uint32)
        unit = f"u{layout.unit_bits // 8}"
        most = 3 * layout.tile_rows * layout.tile_columns // 2 * 8 // layout.unit_bits  # units of a tile: 12 bits a value

        def code(part):
            room = np.empty(most, unit)
            return compiled.encode(matrix, layout, LOWER[layout.unit_bits], room, tables, checksums, lengths, *part)

        streams = list(pool.map(code, parts))
    return Tiles(layout, tables, checksums, lengths, np.concatenate([*streams, np.zeros(READ_AHEAD, np.uint8)]), name)


def entropy(counts) -> float:
    """Order-0 entropy of counts (256,), bits a symbol: the lower bound of codes that ignore neighboring values."""
    p = np.asarray(counts, np.float64)
    p = p[p > 0] / p.sum()
    return float(-(p * np.log2(p)).sum())
