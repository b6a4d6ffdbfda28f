"""A matrix's streams as arrays for the decoders; reading and checking a tile's states, which all decoders share."""

from typing import NamedTuple

import numpy as np

from kit.codec.rans import LOWER
from kit.codec.tiles import Tiles
from kit.cpu.simd.vectors import jit

OK, SHORT, LONG, STATE = range(4)  # status of a decoded tile; see kit.codec.decoders.REASONS


class Streams(NamedTuple):
    """The streams of a matrix; positions are indices into ``units``, all arrays are read-only."""

    units: np.ndarray  # (units,) uint8 or uint16
    begin: np.ndarray  # (tiles,) int64, first unit of the states
    end: np.ndarray  # (tiles,) int64, one past the last unit
    coded: np.ndarray  # (tiles,) int64, number of coded values; the final states hold the others
    values: np.ndarray  # (tiles,) int64, number of values
    frequencies: np.ndarray  # (1 or tiles, 256) uint16
    lanes: int
    lower: int  # lower bound of a state


def streams_of(tiles: Tiles) -> Streams:
    """The streams of `tiles`."""
    unit = tiles.layout.unit_bits // 8
    begin = tiles.starts // unit
    end = begin + tiles.lengths.astype(np.int64) // unit
    values = tiles.sizes.prod(axis=1)
    arrays = (tiles.streams.view(f"u{unit}"), begin, end, np.maximum(0, values - tiles.layout.tail), values, tiles.frequencies)
    return Streams(*map(frozen, arrays), tiles.layout.lanes, LOWER[tiles.layout.unit_bits])


def frozen(array: np.ndarray) -> np.ndarray:
    """A read-only view, so that Numba compiles one kernel for arrays in memory and in mapped files."""
    view = array.view()
    view.flags.writeable = False
    return view


@jit
def read_states(streams, tile, states):
    """Fill states (lanes,) uint32 from the start of the tile's stream; returns the position after them."""
    position = streams.begin[tile]
    each = 4 // streams.units.itemsize
    for lane in range(states.size):
        x = np.uint32(0)
        for i in range(each):
            x |= np.uint32(streams.units[position]) << np.uint32(32 // each * i)
            position += 1
        states[lane] = x
    return position


@jit
def check_states(streams, tile, states, position, residuals):
    """Status of a tile from its final states and position; writes the values that the final states hold."""
    if position != streams.end[tile]:
        return LONG if position < streams.end[tile] else SHORT
    coded, values = streams.coded[tile], streams.values[tile]
    if streams.units.itemsize == 1:
        for lane in range(states.size):
            if states[lane] != streams.lower:
                return STATE
        return OK
    for lane in range(states.size):
        low, high = states[lane] & np.uint32(0xFF), (states[lane] >> np.uint32(8)) & np.uint32(0xFF)
        if states[lane] >> np.uint32(16) != 1:
            return STATE
        at = coded + 2 * lane
        if at < values:
            residuals[at] = low
        elif low:
            return STATE
        if at + 1 < values:
            residuals[at + 1] = high
        elif high:
            return STATE
    return OK
