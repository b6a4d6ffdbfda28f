"""The interleaved decoder in plain Numba: each step looks up, multiplies and refills all lanes, in one loop each."""

import numpy as np

from kit.codec import rans
from kit.codec.rans import SLOT_BITS, SLOTS
from kit.codec.streams import SHORT, check_states, read_states
from kit.cpu.simd.vectors import jit


@jit
def interleaved(streams, first, last, residuals, status):
    """Decode tile after tile, `lanes` values a step. It may read units past a stream's end; such a tile is SHORT."""
    states = np.empty(streams.lanes, np.uint32)
    slots = rans.slot_table(streams.frequencies[0])
    for tile in range(first, last):
        if len(streams.frequencies) > 1:
            slots = rans.slot_table(streams.frequencies[tile])
        status[tile - first] = _decode_tile(streams, tile, slots, states, residuals[tile - first])


@jit
def _decode_tile(streams, tile, slots, states, residuals):
    units, lower = streams.units, np.uint32(streams.lower)
    bits, most = np.uint32(8 * units.itemsize), 2 // units.itemsize  # at most two bytes or one word refill a state
    entries = np.empty(states.size, np.uint32)
    position, end = np.uint64(read_states(streams, tile, states)), np.uint64(streams.end[tile])
    coded = streams.coded[tile]
    for done in range(0, coded, states.size):
        count = min(states.size, coded - done)
        values = residuals[done : done + count]
        for lane in range(count):
            entries[lane] = slots[states[lane] & np.uint32(SLOTS - 1)]
        for lane in range(count):  # apart from the look-up, so that the compiler vectorizes it
            entry = entries[lane]
            values[lane] = entry & np.uint32(0xFF)
            frequency = (entry >> np.uint32(8)) & np.uint32(SLOTS - 1)
            states[lane] = np.uint32(frequency * np.uint32(states[lane] >> np.uint32(SLOT_BITS))) + (entry >> np.uint32(20))
        for _ in range(most):
            for lane in range(count):  # in lane order, without branches
                x = states[lane]
                low = x < lower
                refilled = np.uint32(np.uint32(x << bits) | np.uint32(units[position]))
                states[lane] = refilled if low else x
                position += np.uint64(low)
        if position > end:
            return SHORT
    return check_states(streams, tile, states, np.int64(position), residuals)
