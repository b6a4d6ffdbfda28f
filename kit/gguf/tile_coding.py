"""The numbers of the tile coding (kit.codec.tiles has its serial form), which encoder, decoders and every processor share.

Range asymmetric numeral systems (rANS; Duda 2013): symbol ``s`` owns ``f[s]`` of the 4096 slots, from ``start[s]`` on.
Decoding a value from state ``x`` gives the symbol that owns slot ``x mod 4096``, and ``x = f[s] * (x >> 12) + (x mod 4096) -
start[s]``; a state below its lower bound takes the next unit of the stream: ``x = x << bits | unit``. Units are bytes (lower
bound 2^23, as in report 004) or 16-bit words (lower bound 2^16).
"""

from typing import NamedTuple

import numpy as np

SLOT_BITS = 12
SLOTS = 1 << SLOT_BITS
MOST = SLOTS - 1  # slots of one symbol at most, so that a frequency fits 12 bits
LOWER = {8: 1 << 23, 16: 1 << 16}  # bits of a unit -> lower bound of a state
PREDICTORS = ("none", "left", "left2", "up")  # the index is the predictor's number in a header
NONE, LEFT, LEFT2, UP = range(len(PREDICTORS))
ALIGNMENT = 16  # of a tile's stream, bytes
OK, SHORT, LONG, STATE = range(4)  # status of a decoded tile; see kit.codec.decoders.REASONS


class Streams(NamedTuple):
    """The streams of a matrix; positions are indices into ``units``, all arrays are read-only."""

    units: np.ndarray  # (units,) uint8 or uint16
    begin: np.ndarray  # (tiles,) int64, first unit of the states
    end: np.ndarray  # (tiles,) int64, one past the last unit
    coded: np.ndarray  # (tiles,) int64, number of coded values; the final states hold the others
    values: np.ndarray  # (tiles,) int64, number of values
    frequencies: np.ndarray  # (1 or tiles, 256) uint16
    lanes: int
    lower: int  # lower bound of a state
