"""Reading and checking a tile's states, which all decoders share."""

import numpy as np

from kit.cpu.simd.vectors import jit
from kit.gguf.tile_coding import LONG, OK, SHORT, STATE


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
