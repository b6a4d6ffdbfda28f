"""Super-blocks of sixteen rows as a matrix product of tiles wants them: a vector holds four consecutive weights of each row.

Of most formats the packed bytes are transposed, which are a half or a quarter of the codes, and the codes are taken from them
for sixteen rows at a time; so are the scales of super-blocks whose scales are steps. Formats whose codes come from grids or
functions are unpacked row by row, and then transposed.
"""

import functools

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import I16, I32, I64, emits, every
from kit.cpu.simd.isa import emit_half_to_float, emit_lookup
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.registers import emit_columns, several_of, transpose
from kit.cpu.simd.vectors import f32x16, generated, inner, join, pick, u8x64
from kit.cpu.superblocks import SUPERBLOCK, codes, codes_of, scales, whole
from kit.cpu.words import parts_of, places_of, steps_of, words_of
from kit.gguf.formats import Format

SCALES = 16 * SUPERBLOCK  # of sixteen rows: codes, then scales, then minima of each 16 weights
MINIMA, UNPACKED = SCALES + 1024, SCALES + 2048
(load16, store16), (_, store8), (_, store4) = several_of(16), several_of(8), several_of(4)
_WORDS, _BYTES, _FOUR = ir.VectorType(I32, 16), u8x64.llvm, ir.VectorType(I32, 4)
_found, _copies = stack(8 * 16), stack(16 * 384)
i64 = types.int64


class _Rows:
    """Words of sixteen rows, whose addresses are in memory at ``rows``, of a ``part`` of their super-blocks. As many sixteen
    bytes of each stay in registers as are asked for."""

    def __init__(self, builder, rows, places: list[tuple[int, int]], most: int, part=None):
        self._builder, self._rows, self._places, self._most, self._held = builder, rows, places, most, {}
        self._moved = {
            stride: builder.mul(part, ir.Constant(I64, stride)) if stride else ir.Constant(I64, 0) for _, stride in places
        }

    def place(self, field) -> tuple[int, int]:
        """Where the sixteen bytes are read that hold the field's word, and their stride."""
        return next(
            (at, stride) for at, stride in self._places if field.word in range(at, at + 13, 4) and stride == field.stride
        )

    def word(self, field):
        """The field's word: 16 lanes."""
        place = self.place(field)
        self._held[place] = self._held.pop(place, None) or self._read(*place)  # the last one now
        if len(self._held) > self._most:
            del self._held[next(iter(self._held))]
        return self._held[place][(field.word - place[0]) // 4]

    def _read(self, place, stride):
        """The four words at a place."""
        builder = self._builder

        def part(row):
            at = builder.load(emit.pointer(builder, self._rows, I64, 8 * row))
            at = builder.add(at, self._moved[stride])
            return builder.load(emit.pointer(builder, at, _FOUR, place), align=1)

        return emit_columns(builder, [part(row) for row in range(16)])


def _shifted(builder, value, left: int):
    if not left:
        return value
    return (builder.shl if left > 0 else builder.lshr)(value, every(_WORDS, abs(left)))


@functools.cache
def write_codes(format: Format, less: int, in_parts: bool = False):
    """A primitive: (tier, rows, weights, part) -> write the codes less ``less`` of all of a super-block, or of one part of
    ``parts_of``, to ``weights``, a vector for each four, from the sixteen rows whose addresses are in memory at ``rows``. For
    formats with ``words_of``."""
    parts, fields = parts_of(format) if in_parts else (1, words_of(format))
    places, flip = places_of(format, fields, parts), 128 if format.signed(format.codes.planes[0]) else 0
    table = [(value + format.bias - less) % 256 for value in format.codes.values or ()]

    @intrinsic
    def primitive(_, tier, rows, weights, part):
        def code(builder, _, rows, weights, part):
            rows = _Rows(builder, rows, places, len(fields[0]), part)

            def order(four):  # bytes that several planes share with others are read once
                return [rows.place(field) for field in reversed(fields[four])], fields[four][0].word

            def masked(value, bits):
                return builder.and_(value, every(_WORDS, bits * 0x01010101)) if bits < 255 else value

            def bits_of(field):
                value, mask = rows.word(field), (1 << field.bits) - 1
                if not field.packed:
                    return masked(_shifted(builder, value, field.below - field.shift), mask << field.below)
                four = builder.and_(_shifted(builder, value, -field.shift), every(_WORDS, (1 << 4 * field.bits) - 1))
                for i in (2, 1):  # of four neighbors two move, then one of each two
                    four = builder.or_(four, _shifted(builder, four, i * (8 - field.bits)))
                return _shifted(builder, masked(four, mask), field.below)

            for four in sorted(range(len(fields)), key=order):
                value = functools.reduce(builder.or_, map(bits_of, fields[four]))
                value = builder.bitcast(value, _BYTES)
                if table:
                    value = emit_lookup(builder, tier, table, value)
                elif less != flip:
                    value = builder.xor(value, every(_BYTES, flip)) if flip else builder.sub(value, every(_BYTES, less))
                builder.store(value, emit.pointer(builder, weights, _BYTES, 64 * four), align=64)

        return emits(types.void(tier, types.int64, types.int64, types.int64), code)

    return primitive


def _scales(format: Format, raised: int):
    """A primitive: write the scales and minima of ``unpack`` from the steps of the rows whose addresses are at another
    address."""
    own, (numbers, units) = format.scales, steps_of(format)
    places, group = places_of(format, (*numbers, units)), min(32, own.group)

    @intrinsic
    def primitive(_, tier, rows, weights):
        def code(builder, _, rows, weights):
            rows = _Rows(builder, rows, places, len(places))

            def part(bits):
                value = rows.word(bits)
                if bits.signed:
                    value = _shifted(builder, value, 32 - bits.bits - bits.shift)
                    return builder.ashr(value, every(_WORDS, 32 - bits.bits))
                value = builder.and_(_shifted(builder, value, -bits.shift), every(_WORDS, (1 << bits.bits) - 1))
                return _shifted(builder, value, bits.below)

            def number(n):
                value = builder.sitofp(functools.reduce(builder.or_, map(part, numbers[n])), f32x16.llvm)
                if own.steps.less:
                    value = builder.fsub(value, every(value.type, own.steps.less))
                return builder.fmul(value, every(value.type, own.steps.times)) if own.steps.times != 1 else value

            def unit(bits):
                half = builder.trunc(_shifted(builder, rows.word(bits), -bits.shift), ir.VectorType(I16, 16))
                return emit_half_to_float(builder, tier, half)

            def product(n, scale):
                return builder.fmul(number(n), scale) if numbers else scale

            def put(value, start, n):
                for slot in range(n * own.group, (n + 1) * own.group, group):
                    builder.store(value, emit.pointer(builder, weights, value.type, start + 4 * slot), align=64)

            scale, *minimum = map(unit, units)
            for n in range(format.groups):
                value = product(n, scale)
                put(value, SCALES, n)
                low = builder.fmul(value, every(value.type, raised)) if raised else None
                if own.sign:
                    lowest = product(format.groups + n, minimum[0])
                    lowest = builder.fneg(lowest) if own.sign > 0 else lowest
                    low = builder.fadd(low, lowest) if raised else lowest
                if low:
                    put(low, MINIMA, n)

        return emits(types.void(tier, types.int64, types.int64), code)

    return primitive


@inner(forceinline=True)
def find_rows(format, blocks, row_bytes, rows, end, copies, found):
    """Write the addresses of a super-block of sixteen rows to ``found``, of the last again where there are no more than
    ``rows``. What would be read behind the matrix's end is copied, to 16 times 384 bytes at ``copies``."""
    at = blocks + min(0, rows - 1) * row_bytes  # the last row may be before these
    for row in range(16):
        store(found + 8 * row, whole(format, at, end, copies + 384 * row))
        at += row_bytes if row + 1 < rows else 0


@generated
def _write_codes(format, tier, less, rows, weights, lines):
    """The codes of ``unpack``."""
    order, number = codes_of(format.value).order, less.value
    if words_of(format.value) is not None:
        write = write_codes(format.value, number)
        return lambda format, tier, less, rows, weights, lines: write(tier, rows, weights, 0)

    def by_rows(format, tier, less, rows, weights, lines):
        for row in range(16):
            a, b, c, d = codes(format, tier, load(i64, rows + 8 * row))
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

    return by_rows


@generated
def write_scales(format, tier, raised, rows, sixteens, weights, lines, scratch):
    """The scales and minima of ``unpack`` for the rows whose addresses are in memory at ``rows``."""
    sign, in_pairs = format.value.scales.sign, format.value.scales.group >= 32
    own, less = sign != 0, np.float32(raised.value)
    evens = pick(*range(0, 32, 2))
    if steps_of(format.value):
        write = _scales(format.value, raised.value)
        return lambda format, tier, raised, rows, sixteens, weights, lines, scratch: write(tier, rows, weights)

    def of_both(format, tier, raised, rows, sixteens, weights, lines, scratch):
        for row in range(16):
            scale, minimum = scales(format, tier, load(i64, rows + 8 * row), sixteens, scratch)
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

    def of_scales(format, tier, raised, rows, sixteens, weights, lines, scratch):
        for row in range(16):
            scale, _ = scales(format, tier, load(i64, rows + 8 * row), sixteens, scratch)
            store(lines + 64 * row, scale)
        store16(weights + SCALES, 64, transpose(load16(lines, 64)))
        if less:
            for n in range(0, 1024, 64):
                store(weights + MINIMA + n, load(f32x16, weights + SCALES + n) * less)

    return of_both if own else of_scales


@inner
def unpack(format, tier, less, raised, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch):
    """Write a super-block of sixteen rows, of which the first ``rows`` exist, to ``weights``: the codes, four weights of each
    row per vector; the scales of each sixteen weights and their minima, one vector of rows each, where a scale is of more
    weights only the first of them. less (Static): what codes are lowered by; by a format's bias, which makes int8 of them.
    raised (Static): the bias that minima take back; 0: they do not. lines, scratch: the addresses of UNPACKED and 128 bytes;
    all three at multiples of 64."""
    found, copies = _found(), _copies()
    find_rows(format, blocks, row_bytes, rows, end, copies, found)
    write_scales(format, tier, raised, found, sixteens, weights, lines, scratch)
    _write_codes(format, tier, less, found, weights, lines)


def lowered(format: Format, signed: bool) -> int:
    """What codes are lowered by so that ``signed`` products take them without minima, if the format has none."""
    return format.bias if signed and format.scales.sign == 0 else 0
