"""The interleaved decoder in vector instructions, 16 lanes look up, multiply and refill at once; and sums of residuals.

The next words of the stream go to the lanes that need one, by an expand instruction (tier avx512), else by byte shuffles
from a table of the 256 subsets of 8 lanes.
"""

import numpy as np
from numba import types

from kit.cpu.simd import tier
from kit.cpu.simd.isa import bits_set, expand, gather, lookup
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import (
    bitcast,
    convert,
    extract,
    generated,
    jit,
    join,
    move_up,
    select,
    u8x16,
    u8x64,
    u16x8,
    u16x16,
    u32x16,
)
from kit.cpu.tiles import rans
from kit.cpu.tiles.states import check_states, read_states
from kit.errors import CodecError
from kit.gguf.tile_coding import LOWER, SHORT, SLOT_BITS, SLOTS

_WORD = LOWER[16]


def decode_simd(streams, first, last, residuals, status):
    """Decode tile after tile, `lanes` values a step, on the current tier."""
    if streams.lower != _WORD:
        raise CodecError("decoder 'simd' cannot read these tiles: use decoder 'scalar-table'")
    _decode_tiles(tier(), streams, first, last, residuals, status, _SHUFFLES.ctypes.data)


def _shuffles() -> np.ndarray:
    """(256, 16) uint8: for each subset of 8 lanes the byte shuffle that moves word k to the k-th lane of the subset."""
    lanes = np.arange(256)[:, None] >> np.arange(8) & 1
    word = np.maximum(np.cumsum(lanes, axis=1) - 1, 0).astype(np.uint8)
    return np.stack([2 * word, 2 * word + 1], axis=2).reshape(256, 16)


_SHUFFLES = _shuffles()


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
def steps(tier, states, lanes, slots, at, end, to, count, shuffles):
    """All ``lanes`` states (uint32, from the address ``states``) decode a value at each step, and those below the lower bound
    take a 16-bit word from the address ``at``. ``count`` values, a multiple of the lanes, go to the address ``to``; ``slots``
    is the address of a rans.slot_table, ``shuffles`` that of the table. Returns the address after the last word, early if that
    is beyond ``end``."""
    for done in range(0, count, lanes):
        for lane in range(0, lanes, 16):
            x = load(u32x16, states + 4 * lane)
            entry = gather(slots, x & (SLOTS - 1))
            store(to + done + lane, convert(u8x16, entry))
            x = (entry >> 8 & (SLOTS - 1)) * (x >> SLOT_BITS) + (entry >> 20)
            low = x < _WORD
            x = select(low, x << 16 | _next_words(tier, at, low, shuffles), x)
            store(states + 4 * lane, x)
            at += 2 * bits_set(bitcast(types.uint16, low))
        if at > end:
            return at
    return at


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
    at = steps(tier, states.ctypes.data, states.size, table, at, end, to, whole, shuffles)
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


@jit
def sums(address, count):
    """Prefix sums modulo 256 of ``count`` bytes, a multiple of 64, in place: 64 at a time by six shifted additions, plus the
    total before. Returns the last one, or 0."""
    total = np.uint8(0)
    for at in range(address, address + count, 64):
        each = load(u8x64, at)
        each = each + move_up(each, 1)
        each = each + move_up(each, 2)
        each = each + move_up(each, 4)
        each = each + move_up(each, 8)
        each = each + move_up(each, 16)
        each = each + move_up(each, 32)
        each = each + total
        store(at, each)
        total = extract(each, 63)
    return total


@jit
def add_up(row):
    """Prefix sums modulo 256 of row (n,) uint8, in place."""
    whole = row.size // 64 * 64
    total = sums(row.ctypes.data, whole)
    for j in range(whole, row.size):
        total = np.uint8(total + row[j])
        row[j] = total
