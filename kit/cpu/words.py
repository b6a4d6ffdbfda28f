"""Where the bits of a super-block's codes and scales are: in which of its 32-bit words, of a format's row alone.

kit.cpu.transposed takes them from there for sixteen rows at a time.
"""

import functools
from typing import NamedTuple

import numpy as np

from kit.cpu.superblocks import SUPERBLOCK
from kit.gguf.formats import Format, Numbers


class Field(NamedTuple):
    """A plane of four weights: the word of the super-block that holds them, the lowest bit in each of its bytes, or in the word
    if they are ``packed``, one after another; bits of each, and bits of the code below them. ``stride``: bytes to the word of
    the same weights of the next part of the super-block."""

    word: int
    shift: int
    bits: int
    below: int
    packed: bool
    stride: int = 0


class StepBits(NamedTuple):
    """Bits of a step or of a half: the word that holds them, the lowest of them there, how many, and how many of the number are
    below them."""

    word: int
    shift: int
    bits: int
    below: int = 0
    signed: bool = False
    stride: int = 0


class Steps(NamedTuple):
    """The steps of a super-block's scales, then of its minima, and the halves that they are multiplied by."""

    numbers: tuple[tuple[StepBits, ...], ...]
    units: tuple[StepBits, ...]


@functools.cache
def words_of(format: Format) -> tuple[tuple[Field, ...], ...] | None:
    """The fields of each four weights of a format's super-blocks; None if four weights are not in one word."""
    if not format.codes.planes or format.codes.listed or (format.codes.values and len(format.codes.values) > 16):
        return None
    fields = []
    for plane, (byte, shift, _mask, below) in zip(
        format.codes.planes, format.bit_fields(format.codes, np.arange(SUPERBLOCK)), strict=True
    ):
        byte, shift = byte.reshape(64, 4), np.broadcast_to(shift, SUPERBLOCK).reshape(64, 4)
        packed = plane.run == 1
        start = format.at(plane.field) + np.arange(0, SUPERBLOCK, 4) // format.block_elements * format.block_bytes
        first = byte[:, 0] - (byte[:, 0] - start) % 4 * packed
        bit = 8 * (byte - first[:, None]) + shift
        apart = np.arange(4) * (plane.bits if packed else 8)
        if (bit != bit[:, :1] + apart).any() or (plane.bits > 2 and packed):
            return None
        fields.append([Field(int(f), int(b), plane.bits, below, packed) for f, b in zip(first, bit[:, 0], strict=True)])
    fields = tuple(zip(*fields, strict=True))
    return fields if places_of(format, fields) else None


@functools.cache
def steps_of(format: Format) -> Steps | None:
    """The steps of a format's super-blocks; None if scales are made otherwise."""
    own, steps = format.scales, format.scales.steps or Numbers()
    if format.block_elements < SUPERBLOCK or own.table or own.function or steps.function or steps.values:
        return None
    last, fields = format.block_bytes - 4, [own.d, *[own.dmin] * bool(own.dmin)]

    def bits(byte, shift, *rest):
        word = min(int(byte) // 4 * 4, last)
        return StepBits(word, 8 * (int(byte) - word) + int(shift), *rest)

    parts = []
    places = format.bit_fields(steps, np.arange(format.groups * len(fields)))
    for plane, (byte, shift, _mask, below) in zip(steps.planes, places, strict=True):
        some = zip(byte, np.broadcast_to(shift, byte.shape), strict=True)
        parts.append([bits(*at, plane.bits, below, format.signed(plane)) for at in some])
    found = Steps(tuple(zip(*parts, strict=True)), tuple(bits(format.at(field), 0, 16) for field in fields))
    return found if places_of(format, (*found.numbers, found.units)) else None


@functools.cache
def parts_of(format: Format) -> tuple[int, tuple[tuple[Field, ...], ...]]:
    """Into how many parts alike a super-block can be taken, of which no two have the same bytes, and the fields of each four
    weights of the first of them."""
    fields = words_of(format)
    for parts in (8, 4, 2):
        each, found = 64 // parts, []
        for of in zip(*fields, strict=True):  # a plane
            stride = of[each].word - of[0].word
            moved = all(of[n + each] == of[n]._replace(word=of[n].word + stride) for n in range(64 - each))
            found.append([field._replace(stride=stride) for field in of[:each]] if moved and stride else None)
        first = None if None in found else tuple(zip(*found, strict=True))
        if first and places_of(format, first, parts):
            return parts, first
    return 1, fields


def places_of(format: Format, fields, parts: int = 1) -> list[tuple[int, int]]:
    """Where to read sixteen bytes each for the words of these fields, none behind the super-block, and their strides; empty if
    that cannot be."""
    places: list[tuple[int, int]] = []
    for stride, word in sorted({(field.stride, field.word) for of in fields for field in of}):
        end = format.nbytes(SUPERBLOCK) - stride * (parts - 1)
        if not any(word in range(place, place + 13, 4) and apart == stride for place, apart in places):
            places.append((word - 4 * max(0, -(-(word + 16 - end) // 4)), stride))
    return places if all(place >= 0 for place, _ in places) else []
