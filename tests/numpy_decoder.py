"""A decoder of its own for the tests: all lanes of many tiles abreast in numpy, one vector operation at a time."""

import numpy as np

from kit.codec.decoders import DECODERS
from kit.cpu.tiles import rans
from kit.cpu.tiles.states import check_states, read_states
from kit.gguf.tile_coding import SHORT, SLOT_BITS, SLOTS

DECODERS["numpy"] = (__name__, "abreast", 256)  # kit.codec.decode finds it by that name


def abreast(streams, first, last, residuals, status):
    """Decode tiles [first, last) together, step by step; a tile that is done early idles until all are."""
    tiles, lanes = last - first, streams.lanes
    bits, most = 8 * streams.units.itemsize, 2 // streams.units.itemsize
    tables = streams.frequencies if len(streams.frequencies) == 1 else streams.frequencies[first:last]
    slots = np.stack([rans.slot_table(frequencies) for frequencies in tables])
    which = np.arange(tiles)[:, None] if len(tables) > 1 else 0
    states, position = np.empty((tiles, lanes), np.uint32), np.empty(tiles, np.int64)
    for i in range(tiles):
        position[i] = read_states(streams, first + i, states[i])
    coded, end = streams.coded[first:last], streams.end[first:last]
    lane = np.arange(lanes)
    for done in range(0, int(coded.max()), lanes):
        active = lane < (coded - done)[:, None]  # (tiles, lanes)
        entry = slots[which, states & (SLOTS - 1)]
        count = min(lanes, residuals.shape[1] - done)
        residuals[:, done : done + count] = entry[:, :count]  # the low byte; what idle lanes write is overwritten or unused
        moved = (entry >> 8 & SLOTS - 1) * (states >> SLOT_BITS) + (entry >> 20)
        states = np.where(active, moved, states)
        for _ in range(most):
            low = active & (states < streams.lower)
            at = position[:, None] + np.cumsum(low, axis=1) - 1
            words = streams.units[np.minimum(at, streams.units.size - 1)]
            states = np.where(low, states << bits | words, states)
            position += low.sum(axis=1)
        if (position > end).any():  # a damaged tile stops where it is; the others go on
            coded = np.where(position > end, 0, coded)
    for i in range(tiles):
        status[i] = SHORT if position[i] > end[i] else check_states(streams, first + i, states[i], position[i], residuals[i])
