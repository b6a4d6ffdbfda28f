"""Super-blocks of sixteen rows as a matrix product of tiles wants them: a vector holds four consecutive weights of each row.

Of most formats the packed bytes are transposed, which are a half or a quarter of the codes, and the codes are taken from them
for sixteen rows at a time. Formats whose codes come from grids or functions are unpacked row by row, and then transposed.
"""

import functools
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import I32, emits, every
from kit.cpu.simd.isa import emit_lookup
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.registers import several_of, transpose
from kit.cpu.simd.vectors import f32x16, generated, inner, join, pick, u8x64
from kit.cpu.superblocks import SUPERBLOCK, bytes_at, codes, codes_of, scales, whole
from kit.gguf.formats import Format

SCALES = 16 * SUPERBLOCK  # of sixteen rows: codes, then scales, then minima of each 16 weights
MINIMA, UNPACKED = SCALES + 1024, SCALES + 2048
(load16, store16), (_, store8), (_, store4) = several_of(16), several_of(8), several_of(4)
_WORDS, _BYTES = ir.VectorType(I32, 16), u8x64.llvm


class _Field(NamedTuple):
    """A plane of four weights: the word of the transposed bytes that holds them, the lowest bit in each of its bytes, or in the
    word if they are ``packed``, one after another; bits of each, and bits of the code below them."""

    word: int
    shift: int
    bits: int
    below: int
    packed: bool


class PackedWords(NamedTuple):
    """Where the codes of a super-block are: the places of 16 bytes each, and the fields of each four weights."""

    places: tuple[int, ...]
    fields: tuple[tuple[_Field, ...], ...]


@functools.cache
def words_of(format: Format) -> PackedWords | None:
    """The words that hold the codes of a format's super-blocks; None if four weights are not in one word."""
    if not format.codes.planes or format.codes.listed or (format.codes.values and len(format.codes.values) > 16):
        return None
    size, fields, at = format.nbytes(SUPERBLOCK), [], set()
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
        fields.append([(int(f), int(b), plane.bits, below, packed) for f, b in zip(first, bit[:, 0], strict=True)])
        at |= set(map(int, first))
    places: list[int] = []
    for word in sorted(at):  # sixteen bytes at a time, none behind the super-block
        if not any(word in range(place, place + 13, 4) for place in places):
            places.append(word - 4 * max(0, -(-(word + 16 - size) // 4)))
    if min(places) < 0:
        return None
    index = {place + 4 * i: 4 * n + i for n, place in reversed(list(enumerate(places))) for i in range(4)}
    return PackedWords(
        tuple(places), tuple(tuple(_Field(index[f], *rest) for f, *rest in of) for of in zip(*fields, strict=True))
    )


def _codes(format: Format, less: int):
    """A primitive: write the codes less ``less`` to an address, 64 vectors, from transposed bytes at another."""
    fields, flip = words_of(format).fields, 128 if format.signed(format.codes.planes[0]) else 0
    table = [(value + format.bias - less) % 256 for value in format.codes.values or ()]

    @intrinsic
    def primitive(_, tier, lines, weights):
        def code(builder, _, lines, weights):
            loaded: dict[int, tuple[int, ir.Value]] = {}  # of each plane, the last word

            def word(plane, index):
                if loaded.get(plane, (-1, None))[0] != index:
                    loaded[plane] = index, builder.load(emit.pointer(builder, lines, _WORDS, 64 * index), align=64)
                return loaded[plane][1]

            def shifted(value, left):
                if not left:
                    return value
                return (builder.shl if left > 0 else builder.lshr)(value, every(_WORDS, abs(left)))

            def masked(value, bits):
                return builder.and_(value, every(_WORDS, bits * 0x01010101)) if bits < 255 else value

            def part(plane, field):
                value, mask = word(plane, field.word), (1 << field.bits) - 1
                if not field.packed:
                    return masked(shifted(value, field.below - field.shift), mask << field.below)
                four = builder.and_(shifted(value, -field.shift), every(_WORDS, (1 << 4 * field.bits) - 1))
                for i in (2, 1):  # of four neighbors two move, then one of each two
                    four = builder.or_(four, shifted(four, i * (8 - field.bits)))
                return shifted(masked(four, mask), field.below)

            for four in sorted(range(64), key=lambda four: fields[four][0].word):
                value = functools.reduce(builder.or_, (part(*of) for of in enumerate(fields[four])))
                value = builder.bitcast(value, _BYTES)
                if table:
                    value = emit_lookup(builder, tier, table, value)
                elif less != flip:
                    value = builder.xor(value, every(_BYTES, flip)) if flip else builder.sub(value, every(_BYTES, less))
                builder.store(value, emit.pointer(builder, weights, _BYTES, 64 * four), align=64)

        return emits(types.void(tier, types.int64, types.int64), code)

    return primitive


def _reader(places):
    """A reader of 64 bytes, sixteen at each of up to four places."""
    read = bytes_at([*places, *[places[-1]] * (4 - len(places))])
    return inner(lambda start: read(start), forceinline=True)


@generated
def _write_codes(format, tier, less, blocks, row_bytes, rows, end, weights, lines, scratch):
    """The codes of ``unpack``."""
    order, less, words = codes_of(format.value).order, less.value, words_of(format.value)

    def by_rows(format, tier, less, blocks, row_bytes, rows, end, weights, lines, scratch):
        for row in range(16):
            at = whole(format, blocks + min(row, rows - 1) * row_bytes, end, scratch + 128)
            a, b, c, d = codes(format, tier, at)
            store(lines + 256 * row, a - number)
            store(lines + 256 * row + 64, b - number)
            store(lines + 256 * row + 128, c - number)
            store(lines + 256 * row + 192, d - number)
        for part in range(4):
            v = transpose(load16(lines + 64 * part, 256))
            store4(weights + 256 * order[4 * part], 64, v[:4])
            store4(weights + 256 * order[4 * part + 1], 64, v[4:8])
            store4(weights + 256 * order[4 * part + 2], 64, v[8:12])
            store4(weights + 256 * order[4 * part + 3], 64, v[12:])

    number = less
    if words is None:
        return by_rows
    a, b, c, d = (_reader(words.places[4 * n : 4 * n + 4] or words.places[:1]) for n in range(4))
    lines_used, write = -(-len(words.places) // 4), _codes(format.value, less)

    def by_words(format, tier, less, blocks, row_bytes, rows, end, weights, lines, scratch):
        for row in range(16):
            at = whole(format, blocks + min(row, rows - 1) * row_bytes, end, scratch + 128)
            store(lines + 64 * row, a(at))
            if lines_used > 1:
                store(lines + 1024 + 64 * row, b(at))
            if lines_used > 2:
                store(lines + 2048 + 64 * row, c(at))
            if lines_used > 3:
                store(lines + 3072 + 64 * row, d(at))
        for line in range(lines_used):
            store16(lines + 1024 * line, 64, transpose(load16(lines + 1024 * line, 64)))
        write(tier, lines, weights)

    return by_words


@generated
def _write_scales(format, tier, less, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch):
    """The scales and minima of ``unpack``."""
    sign, in_pairs = format.value.scales.sign, format.value.scales.group >= 32
    own, raised = sign != 0, np.float32(0 if less.value else format.value.bias)
    evens = pick(*range(0, 32, 2))

    def of_both(format, tier, less, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch):
        for row in range(16):
            at = whole(format, blocks + min(row, rows - 1) * row_bytes, end, scratch + 128)
            scale, minimum = scales(format, tier, at, sixteens, scratch)
            if in_pairs:
                store(lines + 64 * row, evens(join(scale, minimum)))
            else:
                store(lines + 64 * row, scale)
                store(lines + 1024 + 64 * row, minimum)
        v = transpose(load16(lines, 64))
        if in_pairs:
            store8(weights + SCALES, 128, v[:8])
            store8(weights + MINIMA, 128, v[8:])
        else:
            store16(weights + SCALES, 64, v)
            store16(weights + MINIMA, 64, transpose(load16(lines + 1024, 64)))

    def of_scales(format, tier, less, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch):
        for row in range(16):
            at = whole(format, blocks + min(row, rows - 1) * row_bytes, end, scratch + 128)
            scale, _ = scales(format, tier, at, sixteens, scratch)
            store(lines + 64 * row, scale)
        store16(weights + SCALES, 64, transpose(load16(lines, 64)))
        if raised:
            for n in range(0, 1024, 64):
                store(weights + MINIMA + n, load(f32x16, weights + SCALES + n) * raised)

    return of_both if own else of_scales


@inner
def unpack(format, tier, less, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch):
    """Write a super-block of sixteen rows, of which the first ``rows`` exist, to ``weights``: the codes, four weights of each
    row per vector; the scales of each sixteen weights and their minima, one vector of rows each, where a scale is of more
    weights only the first of them. less (Static): what codes are lowered by; by a format's bias, which makes int8 of them, and
    then it has no minima. lines, scratch: the addresses of UNPACKED and 640 bytes; all three at multiples of 64."""
    _write_scales(format, tier, less, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch)
    _write_codes(format, tier, less, blocks, row_bytes, rows, end, weights, lines, scratch)


def lowered(format: Format, signed: bool) -> int:
    """What codes are lowered by so that ``signed`` products take them without minima, if the format has none."""
    return format.bias if signed and format.scales.sign == 0 else 0
