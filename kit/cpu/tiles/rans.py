"""rANS (kit.gguf.tile_coding): frequency tables, and the coding of one tile's symbols into a stream.

Duda, "Asymmetric numeral systems" (2013); Giesen, "Interleaved entropy coders" (2014).
"""

import numpy as np

from kit.cpu.simd.vectors import jit
from kit.gguf.tile_coding import MOST, SLOT_BITS, SLOTS


@jit
def normalize(counts):
    """counts (256,) int64 -> frequencies (256,) uint16 that sum to 4096, at least 1 for every symbol that occurs.

    Proportions are rounded; then single slots are added or taken where that costs the fewest bits.
    """
    total = counts.sum()
    constant = counts.max() == total  # only one symbol occurs: the slot that it may not own goes to another
    frequencies = np.zeros(256, np.int64)
    for symbol in range(256):
        if counts[symbol]:
            frequencies[symbol] = min(max(1, (counts[symbol] * SLOTS + total // 2) // total), MOST)
    spare = SLOTS - frequencies.sum()
    while spare:
        step = 1 if spare > 0 else -1
        best, chosen = -np.inf, -1
        for symbol in range(256):
            now = frequencies[symbol]
            after = now + step
            if 1 <= after <= MOST and (now or constant):
                gain = counts[symbol] * np.log2(after / now) if now else 0.0
                if gain > best:
                    best, chosen = gain, symbol
        frequencies[chosen] += step
        spare -= step
    return frequencies.astype(np.uint16)


@jit
def first_slots(frequencies):
    """(257,) int64: symbol s owns the slots from [s] up to [s + 1], exclusive."""
    starts = np.zeros(257, np.int64)
    starts[1:] = np.cumsum(frequencies.astype(np.int64))
    return starts


@jit
def slot_table(frequencies):
    """(4096,) uint32: symbol | frequency << 8 | (slot - start) << 20 of the symbol that owns each slot."""
    table = np.empty(SLOTS, np.uint32)
    slot = 0
    for symbol in range(256):
        for within in range(frequencies[symbol]):
            table[slot] = np.uint32(symbol | np.int64(frequencies[symbol]) << 8 | within << 20)
            slot += 1
    return table


@jit
def encode_symbols(symbols, frequencies, starts, bits, lower, states, units):
    """Code symbols (n,) uint8, the last one first, into the end of `units`; returns the index of the first unit.

    Symbol i belongs to state i mod lanes. `states` (lanes,) uint32: the decoder's final states on entry, its initial states
    on return. `units`: uint8 or uint16, at least 12 / bits units for each symbol.
    """
    lanes = states.size
    factor = np.uint32(lower >> SLOT_BITS << bits)
    mask = np.uint32((1 << bits) - 1)
    position = units.size
    lane = (symbols.size - 1) % lanes
    for i in range(symbols.size - 1, -1, -1):
        symbol = symbols[i]
        frequency = np.uint32(frequencies[symbol])
        x = states[lane]
        while x >= np.uint32(factor * frequency):
            position -= 1
            units[position] = x & mask
            x = np.uint32(x >> np.uint32(bits))
        quotient = np.uint32(x // frequency)
        x = np.uint32(np.uint32(quotient << np.uint32(SLOT_BITS)) + np.uint32(x - np.uint32(quotient * frequency)))
        states[lane] = np.uint32(x + np.uint32(starts[symbol]))
        lane = lane - 1 if lane else lanes - 1
    return position
