"""The steps of the codec's interleaved decoder (kit.codec.rans has the algorithm), 16 lanes at once, and sums of residuals.

The next words of the stream go to the lanes that need one, by an expand instruction (tier avx512), else by byte shuffles
from a table of the 256 subsets of 8 lanes.
"""

import numpy as np
from numba import types

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


def _shuffles() -> np.ndarray:
    """(256, 16) uint8: for each subset of 8 lanes the byte shuffle that moves word k to the k-th lane of the subset."""
    lanes = np.arange(256)[:, None] >> np.arange(8) & 1
    word = np.maximum(np.cumsum(lanes, axis=1) - 1, 0).astype(np.uint8)
    return np.stack([2 * word, 2 * word + 1], axis=2).reshape(256, 16)


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


def steps(slot_bits: int, lower: int):
    """The table of shuffles, and a compiled function of (tier, states, slots, at, end, to, count, shuffles). All lanes of
    ``states`` (uint32) decode a value at each step, and those below ``lower`` take a 16-bit word from the address ``at``.
    ``count`` values, a multiple of the lanes, go to the address ``to``; ``slots`` is the address of 2^slot_bits entries
    (kit.codec.rans.slot_table), and ``shuffles`` that of the table. The function returns the address after the last word,
    early if that is beyond ``end``."""
    slot = (1 << slot_bits) - 1

    @jit
    def decode(tier, states, slots, at, end, to, count, shuffles):
        for done in range(0, count, states.size):
            for lane in range(0, states.size, 16):
                x = load(u32x16, states.ctypes.data + 4 * lane)
                entry = gather(slots, x & slot)
                store(to + done + lane, convert(u8x16, entry))
                x = (entry >> 8 & slot) * (x >> slot_bits) + (entry >> 20)
                low = x < lower
                x = select(low, x << 16 | _next_words(tier, at, low, shuffles), x)
                store(states.ctypes.data + 4 * lane, x)
                at += 2 * bits_set(bitcast(types.uint16, low))
            if at > end:
                return at
        return at

    return _shuffles(), decode


@jit
def add_up(row):
    """Prefix sums modulo 256 of row (n,) uint8, in place: 64 at a time by six shifted additions, plus the total before."""
    address, whole = row.ctypes.data, row.size // 64 * 64
    total = np.uint8(0)
    for j in range(0, whole, 64):
        sums = load(u8x64, address + j)
        sums = sums + move_up(sums, 1)
        sums = sums + move_up(sums, 2)
        sums = sums + move_up(sums, 4)
        sums = sums + move_up(sums, 8)
        sums = sums + move_up(sums, 16)
        sums = sums + move_up(sums, 32)
        sums = sums + total
        store(address + j, sums)
        total = extract(sums, 63)
    for j in range(whole, row.size):
        total = np.uint8(total + row[j])
        row[j] = total
