"""Decoders without vector instructions: report 004's algorithm in Python, compiled, with faster searches; and `interleaved`.

All but the last decode one value at a time. It looks up, multiplies and refills all lanes, in one loop each.
"""

import functools

import numpy as np

from kit.cpu.simd.vectors import jit
from kit.cpu.tiles import rans
from kit.cpu.tiles.states import check_states, read_states
from kit.gguf.tile_coding import OK, SHORT, SLOT_BITS, SLOTS

LINEAR, BINARY, TABLE = range(3)  # the search for the symbol that owns a slot


@jit
def _scalar(search, streams, first, last, residuals, status):
    states = np.empty(streams.lanes, np.uint32)
    for tile in range(first, last):
        frequencies = streams.frequencies[tile % len(streams.frequencies)]
        status[tile - first] = _decode_tile(streams, tile, frequencies, search, states, residuals[tile - first])


linear = functools.partial(_scalar, LINEAR)  # some 128 comparisons a value
binary = functools.partial(_scalar, BINARY)  # eight comparisons a value, whose branches are unpredictable
table = functools.partial(_scalar, TABLE)  # one load a value, from a table of the 4096 slots


@jit
def _decode_tile(streams, tile, frequencies, search, states, residuals):
    starts = rans.first_slots(frequencies)
    slots = rans.slot_table(frequencies) if search == TABLE else np.empty(0, np.uint32)
    lower, bits = np.uint32(streams.lower), np.uint32(8 * streams.units.itemsize)
    most = 2 // streams.units.itemsize  # at most two bytes or one word refill a state
    position, end = read_states(streams, tile, states), streams.end[tile]
    lane = 0
    for i in range(streams.coded[tile]):
        x = states[lane]
        slot = np.uint32(x & np.uint32(SLOTS - 1))
        if search == TABLE:
            entry = slots[slot]
            symbol = entry & np.uint32(0xFF)
            frequency, offset = (entry >> np.uint32(8)) & np.uint32(SLOTS - 1), entry >> np.uint32(20)
        else:
            symbol = 0
            if search == LINEAR:
                while starts[symbol + 1] <= slot:
                    symbol += 1
            else:
                for half in (128, 64, 32, 16, 8, 4, 2, 1):
                    if starts[symbol + half] <= slot:
                        symbol += half
            frequency, offset = np.uint32(frequencies[symbol]), np.uint32(slot - np.uint32(starts[symbol]))
        residuals[i] = symbol
        x = np.uint32(np.uint32(frequency * np.uint32(x >> np.uint32(SLOT_BITS))) + offset)
        for _ in range(most):  # without branches, which would be unpredictable; a unit past the end may be read
            low = x < lower
            refilled = np.uint32(np.uint32(x << bits) | np.uint32(streams.units[position]))
            x = refilled if low else x
            position += np.int64(low)
        if position > end:
            return SHORT
        states[lane] = x
        lane += 1
        if lane == states.size:
            lane = 0
    return check_states(streams, tile, states, position, residuals)


def python(streams, first, last, residuals, status):
    """The reports' decoder in interpreted Python; the definition that the other decoders are tested against."""
    lanes, lower, bits = streams.lanes, streams.lower, 8 * streams.units.itemsize
    for tile in range(first, last):
        frequencies = streams.frequencies[tile % len(streams.frequencies)].tolist()
        head, end = np.empty(lanes, np.uint32), int(streams.end[tile])
        position = int(read_states(streams, tile, head))
        states, out, outcome = head.tolist(), residuals[tile - first], OK
        for i in range(int(streams.coded[tile])):
            x = states[i % lanes]
            slot = x % SLOTS
            symbol = start = 0
            while start + frequencies[symbol] <= slot:
                start += frequencies[symbol]
                symbol += 1
            out[i] = symbol
            x = frequencies[symbol] * (x >> SLOT_BITS) + slot - start
            while x < lower and position < end:
                x = x << bits | int(streams.units[position])
                position += 1
            if x < lower:
                outcome = SHORT
                break
            states[i % lanes] = x
        if outcome == OK:
            outcome = check_states(streams, tile, np.array(states, np.uint32), position, out)
        status[tile - first] = outcome


@jit
def interleaved(streams, first, last, residuals, status):
    """Decode tile after tile, `lanes` values a step. It may read units past a stream's end; such a tile is SHORT."""
    states = np.empty(streams.lanes, np.uint32)
    slots = rans.slot_table(streams.frequencies[0])
    for tile in range(first, last):
        if len(streams.frequencies) > 1:
            slots = rans.slot_table(streams.frequencies[tile])
        status[tile - first] = _decode_lanes(streams, tile, slots, states, residuals[tile - first])


@jit
def _decode_lanes(streams, tile, slots, states, residuals):
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
