"""The interleaved decoder in vector instructions (kit.cpu.rans): 16 lanes look up, multiply and refill at once."""

import numpy as np

from kit.codec import rans
from kit.codec.rans import LOWER, SLOT_BITS, SLOTS
from kit.codec.streams import SHORT, check_states, read_states
from kit.cpu.rans import steps
from kit.cpu.simd import tier
from kit.cpu.simd.vectors import jit
from kit.errors import CodecError

_WORD = LOWER[16]
_SHUFFLES, _steps = steps(SLOT_BITS, _WORD)


def decode_simd(streams, first, last, residuals, status):
    """Decode tile after tile, `lanes` values a step, on the current tier."""
    if streams.lower != _WORD:
        raise CodecError("decoder 'simd' cannot read these tiles: use decoder 'scalar-table'")
    _decode_tiles(tier(), streams, first, last, residuals, status, _SHUFFLES.ctypes.data)


@jit
def _decode_tiles(tier, streams, first, last, residuals, status, shuffles):
    states = np.empty(streams.lanes, np.uint32)
    slots = rans.slot_table(streams.frequencies[0])
    for tile in range(first, last):
        if len(streams.frequencies) > 1:
            slots = rans.slot_table(streams.frequencies[tile])
        status[tile - first] = _decode_tile(tier, streams, tile, slots, states, residuals[tile - first], shuffles)


@jit
def _decode_tile(tier, streams, tile, slots, states, residuals, shuffles):
    units, table, to = streams.units.ctypes.data, slots.ctypes.data, residuals.ctypes.data
    position, coded = read_states(streams, tile, states), streams.coded[tile]
    at, end = units + 2 * position, units + 2 * streams.end[tile]
    whole = coded // states.size * states.size
    at = _steps(tier, states, table, at, end, to, whole, shuffles)
    if at > end:
        return SHORT
    position = (at - units) // 2
    for lane in range(coded - whole):  # the last, partial step
        x = states[lane]
        entry = slots[x & np.uint32(SLOTS - 1)]
        residuals[whole + lane] = entry & np.uint32(0xFF)
        frequency = (entry >> np.uint32(8)) & np.uint32(SLOTS - 1)
        x = np.uint32(frequency * np.uint32(x >> np.uint32(SLOT_BITS))) + (entry >> np.uint32(20))
        if x < _WORD:
            x = np.uint32(np.uint32(x << np.uint32(16)) | np.uint32(streams.units[position]))
            position += 1
        states[lane] = x
    if position > streams.end[tile]:
        return SHORT
    return check_states(streams, tile, states, position, residuals)
