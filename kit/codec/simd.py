"""The interleaved decoder in vector instructions: 16 lanes look up, multiply and refill at once.

The next words of the stream go to the lanes that need one, by an expand instruction (tier avx512), else by byte shuffles
from a table of the 256 subsets of 8 lanes. The tier is that of `kit.cpu.simd`.
"""

import numpy as np
from numba import types

from kit.codec import rans
from kit.codec.rans import LOWER, SLOT_BITS, SLOTS
from kit.codec.streams import SHORT, check_states, read_states
from kit.cpu.simd.isa import bits_set, expand, look_up, lookup
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.tiers import tier
from kit.cpu.simd.vectors import bitcast, convert, generated, jit, join, select, u8x16, u16x8, u16x16, u32x16
from kit.errors import CodecError

_WORD = LOWER[16]


def _shuffles() -> np.ndarray:
    """(256, 16) uint8: for each subset of 8 lanes the byte shuffle that moves word k to the k-th lane of the subset."""
    lanes = np.arange(256)[:, None] >> np.arange(8) & 1
    word = np.maximum(np.cumsum(lanes, axis=1) - 1, 0).astype(np.uint8)
    return np.stack([2 * word, 2 * word + 1], axis=2).reshape(256, 16)


_SHUFFLES = _shuffles()


def decode_simd(streams, first, last, residuals, status):
    """Decode tile after tile, `lanes` values a step, on the current tier."""
    if streams.lower != _WORD:
        raise CodecError("decoder 'simd' cannot read these tiles: use decoder 'scalar-table'")
    _decode_tiles(tier(), streams, first, last, residuals, status, _SHUFFLES.ctypes.data)


@generated
def _next_words(tier, address, low, shuffles):
    """u32x16: the next words of the stream in the lanes of the mask ``low``, in order; other lanes are undefined."""
    if tier.value == "avx512":
        return lambda tier, address, low, shuffles: expand(low, convert(u32x16, load(u16x16, address)))

    def shuffled(tier, address, low, shuffles):
        bits = bitcast(types.uint16, low)
        first = lookup(tier, load(u8x16, address), load(u8x16, shuffles + 16 * np.int64(bits & 0xFF)))
        address += 2 * bits_set(np.uint8(bits & 0xFF))
        second = lookup(tier, load(u8x16, address), load(u8x16, shuffles + 16 * np.int64(bits >> 8)))
        return convert(u32x16, join(bitcast(u16x8, first), bitcast(u16x8, second)))

    return shuffled


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
    for done in range(0, whole, states.size):
        for lane in range(0, states.size, 16):
            x = load(u32x16, states.ctypes.data + 4 * lane)
            entry = look_up(table, x & (SLOTS - 1))
            store(to + done + lane, convert(u8x16, entry))
            x = (entry >> 8 & (SLOTS - 1)) * (x >> SLOT_BITS) + (entry >> 20)
            low = x < _WORD
            x = select(low, x << 16 | _next_words(tier, at, low, shuffles), x)
            store(states.ctypes.data + 4 * lane, x)
            at += 2 * bits_set(bitcast(types.uint16, low))
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
