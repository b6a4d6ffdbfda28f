"""Many states abreast in plain Numba: all lanes look up and multiply, then all take what they need from the stream."""

import numpy as np
from numba import njit

from kit.codec import rans
from kit.codec.rans import SLOT_BITS, SLOTS
from kit.codec.streams import SHORT, check_states, read_states


@njit(cache=True, nogil=True)
def interleaved(streams, first, last, residuals, status):
    """Decode tile after tile, `lanes` values a step. Words past a stream's end may be read, but never believed."""
    states = np.empty(streams.lanes, np.uint32)
    slots = rans.slot_table(streams.frequencies[0])
    for tile in range(first, last):
        if len(streams.frequencies) > 1:
            slots = rans.slot_table(streams.frequencies[tile])
        status[tile - first] = _decode_tile(streams, tile, slots, states, residuals[tile - first])


@njit(cache=True, nogil=True)
def _decode_tile(streams, tile, slots, states, residuals):
    units, lower = streams.units, np.uint32(streams.lower)
    bits, most = np.uint32(8 * units.itemsize), 2 // units.itemsize  # two bytes or one word, at most, refill a state
    position, end = read_states(streams, tile, states), streams.end[tile]
    lanes, coded = states.size, streams.coded[tile]
    for done in range(0, coded, lanes):
        count = min(lanes, coded - done)
        values = residuals[done : done + count]
        for lane in range(count):
            x = states[lane]
            entry = slots[x & np.uint32(SLOTS - 1)]
            values[lane] = entry & np.uint32(0xFF)
            frequency = (entry >> np.uint32(8)) & np.uint32(SLOTS - 1)
            states[lane] = np.uint32(frequency * np.uint32(x >> np.uint32(SLOT_BITS))) + (entry >> np.uint32(20))
        for lane in range(count):
            x = states[lane]
            if most == 1:
                low = x < lower
                refilled = np.uint32(np.uint32(x << bits) | np.uint32(units[position]))
                states[lane] = refilled if low else x
                position += low
            else:
                for _ in range(most):
                    if x < lower:
                        x = np.uint32(np.uint32(x << bits) | np.uint32(units[position]))
                        position += 1
                states[lane] = x
        if position > end:
            return SHORT
    return check_states(streams, tile, states, position, residuals)
