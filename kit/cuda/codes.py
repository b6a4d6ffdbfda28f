"""Codes and scales of ggml blocks as Triton device functions, generated from a format's row or named by it.

``unpack`` returns codes, scales and minima of sub-blocks. block: address of each block (blocks, 1, 1); s: sub-block
(1, groups, 1); j: word in it (1, 1, words); table: address of the format's look-up table. A word is four codes in the four
bytes of a uint32. weight = scale * (code - bias) - minimum, in this order of operations, so that float32 results equal
gguf-py's bit for bit. Scales and minima have one element for each sub-block.
"""

import triton
import triton.language as tl

from kit.gguf.formats import Format


@triton.jit
def unpack(block, s, j, table, FORMAT: tl.constexpr, CODES: tl.constexpr, SCALES: tl.constexpr):
    """(codes, scale, minimum). CODES and SCALES: ``regular_codes`` and ``regular_scales``, or functions of the format.

    Where all codes of a sub-block are high nibbles, they are not shifted: codes are 16 times as large and the scale a
    sixteenth. That saves a shift for each word and is exact, since a scale is zero or at least 2^-24.
    """
    scale, minimum = SCALES(block, s, table, FORMAT)
    if stay_in_place(FORMAT):
        PLANE: tl.constexpr = FORMAT.codes.planes[0]
        words: tl.constexpr = FORMAT.scales.group // 4
        subs: tl.constexpr = PLANE.run // FORMAT.scales.group  # in a run
        high = s // subs % 2
        at = (s // (2 * subs) * subs + s % subs) * words + j
        word = _word(_field(block, PLANE, FORMAT), at, FORMAT.alignment(PLANE))
        return word & (0x0F0F0F0F << (4 * high).to(tl.uint32)), scale * tl.where(high == 1, 1 / 16, 1.0), minimum
    else:
        return CODES(block, s, j, table, FORMAT), scale, minimum


@triton.constexpr_function
def stay_in_place(format: Format) -> bool:
    """Whether the codes of each sub-block are all low or all high nibbles, and are only scaled."""
    codes = format.codes
    if len(codes.planes) != 1 or codes.less or codes.values:
        return False
    return codes.planes[0].bits == 4 and codes.planes[0].run >= format.scales.group


@triton.jit
def _field(block, PLANE: tl.constexpr, FORMAT: tl.constexpr):
    return block + (FORMAT.at(PLANE.field) + PLANE.start)


# ---- primitives


@triton.jit
def _byte(address):
    return tl.load(address).to(tl.uint32)


@triton.jit
def _short(address):
    return tl.load(address.to(tl.pointer_type(tl.uint16))).to(tl.uint32)


@triton.jit
def _word(address, at, ALIGN: tl.constexpr):
    """32 bits at index ``at``: one load, or two or four narrower ones for blocks with less alignment.

    The index counts words, so that the compiler sees consecutive words and loads up to 16 bytes at once.
    """
    if ALIGN == 4:
        return tl.load(address.to(tl.pointer_type(tl.uint32)) + at)
    elif ALIGN == 2:
        shorts = address.to(tl.pointer_type(tl.uint16)) + 2 * at
        return tl.load(shorts).to(tl.uint32) | (tl.load(shorts + 1).to(tl.uint32) << 16)
    else:
        low, high = address + 4 * at, address + 4 * at + 2
        return _byte(low) | (_byte(low + 1) << 8) | (_byte(high) << 16) | (_byte(high + 1) << 24)


@triton.jit
def _half(address):
    return tl.load(address.to(tl.pointer_type(tl.float16))).to(tl.float32)


@triton.jit
def _number(code):
    """An unsigned integer below 2^23 as float32, without a conversion: it is the mantissa of 2^23 + code."""
    return (code | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def _bits_to_bytes(bits):
    """Bit i of four becomes the lowest bit of byte i."""
    return ((bits & 15) * 0x00204081) & 0x01010101


@triton.jit
def _signed(magnitudes, signs, BIAS: tl.constexpr):
    """BIAS + value in each byte, from magnitudes below that power of two and four sign bits; no byte borrows from the next."""
    negative = _bits_to_bytes(signs) * (BIAS - 1)
    return ((magnitudes ^ negative) | (0x01010101 * BIAS)) - negative


@triton.jit
def _even(signs):
    """Seven sign bits, and an eighth for even parity (ksigns_iq2xs of ggml)."""
    folded = signs ^ (signs >> 4)
    return signs | (((0x6996 >> (folded & 15)) & 1) << 7)


@triton.jit
def _pairs(nibbles, table):
    """Four codes below 16, in bytes, looked up in the table of 256 pairs of codes; int8 values in bytes."""
    both = nibbles | (nibbles >> 4)
    low, high = tl.load(table + (both & 255)), tl.load(table + ((both >> 16) & 255))
    return (low | (high << 16)).to(tl.uint32, bitcast=True)


# ---- codes and scales from a format's row


@triton.jit
def regular_codes(block, s, j, table, FORMAT: tl.constexpr):
    """Word j of sub-block s from all planes."""
    g = s * (FORMAT.scales.group // 4) + j
    word = _plane_word(block, g, FORMAT.codes.planes[0], FORMAT)
    for i in tl.static_range(1, len(FORMAT.codes.planes)):
        word |= _plane_word(block, g, FORMAT.codes.planes[i], FORMAT) << FORMAT.codes.below(i)
    if len(FORMAT.codes.values):
        word = _pairs(word, table)
    return word


@triton.jit
def _plane_word(block, g, PLANE: tl.constexpr, FORMAT: tl.constexpr):
    """Integers 4 g to 4 g + 3 of a plane, in four bytes; 128 is added to signed ones."""
    tl.static_assert(PLANE.step == 1 and PLANE.shift == 0 and PLANE.run != 2, "no kernel for such planes of codes")
    field = _field(block, PLANE, FORMAT)
    ALIGN: tl.constexpr = FORMAT.alignment(PLANE)
    if PLANE.bits == 8:
        return _word(field, g, ALIGN) ^ (0x80808080 if FORMAT.signed(PLANE) else 0)
    elif PLANE.run > 1:
        at, shift = _place(g, PLANE, 4)
        return (_word(field, at, ALIGN) >> shift.to(tl.uint32)) & (((1 << PLANE.bits) - 1) * 0x01010101)
    elif PLANE.bits == 4:
        both = _byte(field + 2 * g) | (_byte(field + 2 * g + 1) << 16)
        return (both | (both << 4)) & 0x0F0F0F0F
    elif PLANE.bits == 2:
        four = _byte(field + g)
        return (four | (four << 6) | (four << 12) | (four << 18)) & 0x03030303
    else:
        return _bits_to_bytes(_byte(field + g // 2) >> (4 * (g % 2)).to(tl.uint32))


@triton.jit
def regular_scales(block, s, table, FORMAT: tl.constexpr):
    """Scale and minimum of sub-block s."""
    scales: tl.constexpr = FORMAT.scales
    minimum = 0.0
    if scales.table != "":
        at: tl.constexpr = 256 if len(FORMAT.codes.values) else 0
        scale = tl.load(table + at + _byte(block + FORMAT.at(scales.d) + s)).to(tl.float32, bitcast=True)
    elif scales.steps is None:
        scale = _half(block + FORMAT.at(scales.d))
        if scales.dmin != "":
            minimum = _half(block + FORMAT.at(scales.dmin))
    else:
        scale = _half(block + FORMAT.at(scales.d)) * _step(block, s, FORMAT)
        if scales.dmin != "":
            minimum = _half(block + FORMAT.at(scales.dmin)) * _step(block, FORMAT.groups + s, FORMAT)
    if scales.sign > 0:
        minimum = _negative(minimum)
    return scale, minimum


@triton.jit
def _step(block, i, FORMAT: tl.constexpr):
    """Number i of the steps."""
    steps: tl.constexpr = FORMAT.scales.steps
    n = _integer(block, i, steps.planes[0], FORMAT)
    for k in tl.static_range(1, len(steps.planes)):
        n |= _integer(block, i, steps.planes[k], FORMAT) << steps.below(k)
    offset: tl.constexpr = 128 if FORMAT.signed(steps.planes[0]) else 0
    return (_number(n ^ offset) - (steps.less + offset)) * steps.times


@triton.jit
def _integer(block, i, PLANE: tl.constexpr, FORMAT: tl.constexpr):
    """Integer i of a plane."""
    at, shift = _place(i, PLANE, 1)
    return (_byte(_field(block, PLANE, FORMAT) + PLANE.step * at) >> shift.to(tl.uint32)) & ((1 << PLANE.bits) - 1)


@triton.jit
def _place(i, PLANE: tl.constexpr, WIDTH: tl.constexpr):
    """``Plane.place`` for WIDTH integers of a run at a time: which byte, or word of so many bytes, and the lowest bit."""
    run: tl.constexpr = PLANE.run // WIDTH
    if len(PLANE.places):
        at, shift = tl.zeros_like(i) + PLANE.places[0][0], tl.zeros_like(i) + PLANE.places[0][1]
        for n in tl.static_range(1, len(PLANE.places)):
            at = tl.where(i // run == n, PLANE.places[n][0], at)
            shift = tl.where(i // run == n, PLANE.places[n][1], shift)
        return at + i % run, shift
    else:
        fields: tl.constexpr = 8 // PLANE.bits
        return i // (run * fields) * run + i % run, PLANE.shift + PLANE.bits * (i // run % fields)


@triton.jit
def _negative(x):
    """-x, also for 0.0: some versions of Triton compute a minus as 0 - x, which gives 0.0 instead of -0.0."""
    return x * -1.0


# ---- codes and scales that planes cannot describe


@triton.jit
def tq1_0(block, s, j, table, FORMAT: tl.constexpr):
    """Five base-3 digits in a byte: digit k is the carry (bits 8 and up) of 3 * (byte * 3^k modulo 256)."""
    long, short = j < 40, j < 60
    digit = tl.where(long, j // 8, tl.where(short, (j - 40) // 4, j - 60))
    word = _word(block + FORMAT.at("qs"), tl.where(long, j % 8, tl.where(short, 8 + (j - 40) % 4, 12)), 2)
    power = tl.where(digit == 0, 1, tl.where(digit == 1, 3, tl.where(digit == 2, 9, tl.where(digit == 3, 27, 81))))
    power = power.to(tl.uint32)
    even = (((word & 0x00FF00FF) * power & 0x00FF00FF) * 3 >> 8) & 0x00030003
    odd = ((((word >> 8) & 0x00FF00FF) * power & 0x00FF00FF) * 3) & 0x03000300
    return even | odd


# ---- grids: four or eight weights from one look-up


@triton.jit
def grid_codes(block, s, j, table, FORMAT: tl.constexpr):
    """Word j of sub-block s: a row of four weights, or half of a row of eight. Rows whose weights are -1, 0 and 1 times eight
    hold 8 more, and the bias is 9."""
    GRID: tl.constexpr = FORMAT.codes.grid
    g = s * (FORMAT.scales.group // 4) + j
    eight, half = g // 2, (g % 2).to(tl.uint32)
    words: tl.constexpr = GRID.lanes // 4
    index = _bits(block, g // words, GRID.index[0], FORMAT)
    if len(GRID.index) > 1:
        index |= _bits(block, g // words, GRID.index[1], FORMAT) << GRID.index[0].bits
    row = tl.load(table + (index if words == 1 else 2 * index + half))
    if GRID.minus is not None:
        return row + tl.where(_bits(block, eight, GRID.minus, FORMAT) != 0, 0, 0x02020202).to(tl.uint32)
    else:  # what followed a return would be compiled, too
        signs = _bits(block, eight, GRID.signs, FORMAT)
        return _signed(row, (_even(signs) if GRID.signs.bits == 7 else signs) >> (4 * half), FORMAT.bias)


@triton.jit
def _bits(block, i, BITS: tl.constexpr, FORMAT: tl.constexpr):
    """Integer i of some Bits."""
    address = block + (FORMAT.at(BITS.field) + BITS.start) + BITS.step * (i // BITS.count)
    if BITS.word == 1:
        word = _byte(address)
    elif BITS.word == 2:
        word = _short(address)
    else:
        word = _word(address, 0, 2)
    return (word >> (BITS.shift + BITS.apart * (i % BITS.count)).to(tl.uint32)) & ((1 << BITS.bits) - 1)


@triton.jit
def iq1_m_scales(block, s, table, FORMAT: tl.constexpr):
    words = block + FORMAT.at("scales")
    d = (_short(words) >> 12) | ((_short(words + 2) >> 8) & 0x00F0) | ((_short(words + 4) >> 4) & 0x0F00)
    d = (d | (_short(words + 6) & 0xF000)).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    n = (_short(words + 2 * (s // 4)) >> (3 * (s % 4)).to(tl.uint32)) & 7
    return d * 0.125 * _number(2 * n + 1), 0.0


CODES = {"tq1_0": tq1_0, "grid": grid_codes, "": regular_codes}
SCALES = {"iq1_m": iq1_m_scales, "": regular_scales}
