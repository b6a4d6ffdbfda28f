"""Report 004's decoder on a device, to measure beside the kit's: one program, one state, a search for each value."""

import triton
import triton.language as tl

from kit.gguf.tile_coding import SLOT_BITS, SLOTS

_SLOT_BITS, _SLOT_MASK = tl.constexpr(SLOT_BITS), tl.constexpr(SLOTS - 1)


@triton.jit
def one_thread_kernel(units, first, residuals, coded, LOWER: tl.constexpr):
    """Decode ``coded`` values: for each a search from the first symbol on for the owner of the slot. ``first``: (257,) uint32,
    the first slot of each symbol; 8-bit units."""
    state = tl.zeros((), tl.uint32)
    for i in tl.static_range(4):
        state |= tl.load(units + i).to(tl.uint32) << (8 * i)
    position = 4
    for i in range(coded):
        slot = state & _SLOT_MASK
        symbol, start, stop = 0, tl.load(first), tl.load(first + 1)
        while stop <= slot:
            symbol += 1
            start, stop = stop, tl.load(first + symbol + 1)
        tl.store(residuals + i, symbol)
        state = (stop - start) * (state >> _SLOT_BITS) + slot - start
        while state < LOWER:
            state = (state << 8) | tl.load(units + position).to(tl.uint32)
            position += 1
