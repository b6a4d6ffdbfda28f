"""The ggml formats as Triton device functions: where the codes of a block lie, and how a sub-block is scaled.

One function a format, ``(block, s, j, table) -> codes, scale, low``: block is the address of each block (blocks, 1, 1),
s the sub-block (1, subs, 1), j the word in it (1, 1, words), table the address of the format's look-up table. A word is
four codes in the four bytes of a uint32; weight = scale * (code - bias) - low, in this order of operations, so that
float32 results equal gguf-py's bit for bit. Scales have one element a sub-block. Field names are ggml-common.h's.
"""

import triton
import triton.language as tl


@triton.jit
def _byte(address):
    return tl.load(address).to(tl.uint32)


@triton.jit
def _short(address):
    return tl.load(address.to(tl.pointer_type(tl.uint16))).to(tl.uint32)


@triton.jit
def _word(address, at, ALIGN: tl.constexpr):
    """Word ``at``: one load of 32 bits, or two or four narrower ones where blocks are aligned to less.

    Counted in words and not in bytes, so that the compiler sees neighbors and loads up to 16 bytes at once.
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
    """An unsigned integer below 2^23 as float32 without a conversion: the mantissa of 2^23 + code."""
    return (code | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def _plane(address, g, RUN: tl.constexpr, BITS: tl.constexpr, ALIGN: tl.constexpr):
    """Word g of a plane: RUN bytes hold the lowest BITS of RUN weights, the bits above those of the RUN weights after."""
    words: tl.constexpr = RUN // 4
    fields: tl.constexpr = 8 // BITS
    word = _word(address, g // (words * fields) * words + g % words, ALIGN)
    return (word >> (BITS * (g // words % fields)).to(tl.uint32)) & (((1 << BITS) - 1) * 0x01010101)


@triton.jit
def _spread(bits):
    """Bit i of four to the lowest bit of byte i: the products of 2^i and 2^(7 i) never meet."""
    return ((bits & 15) * 0x00204081) & 0x01010101


@triton.jit
def _signed(magnitudes, signs):
    """Magnitudes below 128, negated where the bit of ``signs`` (four) is set: 128 + value in every byte, no borrows."""
    negative = _spread(signs) * 0x7F
    return ((magnitudes ^ negative) | 0x80808080) - negative


@triton.jit
def _even(signs):
    """Seven sign bits and the eighth that makes their number even (ksigns_iq2xs of ggml)."""
    folded = signs ^ (signs >> 4)
    return signs | (((0x6996 >> (folded & 15)) & 1) << 7)


@triton.jit
def _nibble(address, s):
    """Four bits of sub-block s, the low ones of a byte first."""
    return (_byte(address + s // 2) >> (4 * (s % 2)).to(tl.uint32)) & 15


# ---- legacy: 32 weights


@triton.jit
def q4_0(block, s, j, table):
    return _plane(block + 2, j, 16, 4, 2), _half(block), 0.0


@triton.jit
def _negative(x):
    """-x for zeros, too: some versions of Triton write a minus as 0 - x, which turns 0.0 into 0.0 and not into -0.0."""
    return x * -1.0


@triton.jit
def q4_1(block, s, j, table):
    return _plane(block + 4, j, 16, 4, 4), _half(block), _negative(_half(block + 2))


@triton.jit
def q5_0(block, s, j, table):
    fifth = _spread(_word(block + 2, 0, 2) >> (4 * j).to(tl.uint32))
    return _plane(block + 6, j, 16, 4, 2) | (fifth << 4), _half(block), 0.0


@triton.jit
def q5_1(block, s, j, table):
    fifth = _spread(_word(block + 4, 0, 4) >> (4 * j).to(tl.uint32))
    return _plane(block + 8, j, 16, 4, 4) | (fifth << 4), _half(block), _negative(_half(block + 2))


@triton.jit
def q8_0(block, s, j, table):
    return _word(block + 2, j, 2) ^ 0x80808080, _half(block), 0.0


# ---- K: 256 weights, sub-blocks of 16 or 32


@triton.jit
def q2_k(block, s, j, table):
    scales = _byte(block + s)
    return (
        _plane(block + 16, 4 * s + j, 32, 2, 4),
        _half(block + 80) * _number(scales & 15),
        _half(block + 82) * _number(scales >> 4),
    )


@triton.jit
def q3_k(block, s, j, table):
    g = 4 * s + j
    low = (_byte(block + 96 + s % 8) >> (4 * (s // 8)).to(tl.uint32)) & 15
    high = (_byte(block + 104 + s % 4) >> (2 * (s // 4)).to(tl.uint32)) & 3
    scale = _half(block + 108) * (_number(low | (high << 4)) - 32.0)
    return _plane(block + 32, g, 32, 2, 2) | (_plane(block, g, 32, 1, 2) << 2), scale, 0.0


@triton.jit
def _six_bits(block, s):
    """The scale and the minimum of sub-block s: 6 bits each, the upper two of the last four packed above others."""
    byte = block + 4 + s % 4
    d, m, both = _byte(byte), _byte(byte + 4), _byte(byte + 8)
    first = s < 4
    scale = tl.where(first, d & 63, (both & 15) | ((d >> 2) & 48))
    minimum = tl.where(first, m & 63, (both >> 4) | ((m >> 2) & 48))
    return _half(block) * _number(scale), _half(block + 2) * _number(minimum)


@triton.jit
def q4_k(block, s, j, table):
    """Codes stay in their nibbles: those of odd sub-blocks are 16 times as large, and meet a sixteenth of the scale.

    That saves a shift a word and is exact: a scale is zero or at least 2^-24.
    """
    scale, low = _six_bits(block, s)
    high = s % 2
    codes = _word(block + 16, s // 2 * 8 + j, 4) & (0x0F0F0F0F << (4 * high).to(tl.uint32))
    return codes, scale * tl.where(high == 1, 1 / 16, 1.0), low


@triton.jit
def q5_k(block, s, j, table):
    g = 8 * s + j
    scale, low = _six_bits(block, s)
    return _plane(block + 48, g, 32, 4, 4) | (_plane(block + 16, g, 32, 1, 4) << 4), scale, low


@triton.jit
def q6_k(block, s, j, table):
    g = 4 * s + j
    codes = _plane(block, g, 64, 4, 2) | (_plane(block + 128, g, 32, 2, 2) << 4)
    return codes, _half(block + 208) * (_number(_byte(block + 192 + s) ^ 128) - 128.0), 0.0


# ---- ternary


@triton.jit
def tq1_0(block, s, j, table):
    """Five digits of base 3 a byte: multiplied by 3^k modulo 256, the k-th is what thrice the byte carries over."""
    long, short = j < 40, j < 60
    digit = tl.where(long, j // 8, tl.where(short, (j - 40) // 4, j - 60))
    word = _word(block, tl.where(long, j % 8, tl.where(short, 8 + (j - 40) % 4, 12)), 2)
    power = tl.where(digit == 0, 1, tl.where(digit == 1, 3, tl.where(digit == 2, 9, tl.where(digit == 3, 27, 81))))
    power = power.to(tl.uint32)
    even = (((word & 0x00FF00FF) * power & 0x00FF00FF) * 3 >> 8) & 0x00030003
    odd = ((((word >> 8) & 0x00FF00FF) * power & 0x00FF00FF) * 3) & 0x03000300
    return even | odd, _half(block + 52), 0.0


@triton.jit
def tq2_0(block, s, j, table):
    return _plane(block, j, 32, 2, 2), _half(block + 64), 0.0


# ---- sixteen values a table: two codes a look-up


@triton.jit
def _pairs(nibbles, table):
    """Nibbles in bytes to the bytes of the table, which holds 256 pairs."""
    both = nibbles | (nibbles >> 4)
    low, high = tl.load(table + (both & 255)), tl.load(table + ((both >> 16) & 255))
    return (low | (high << 16)).to(tl.uint32, bitcast=True)


@triton.jit
def iq4_nl(block, s, j, table):
    return _pairs(_plane(block + 2, j, 16, 4, 2), table), _half(block), 0.0


@triton.jit
def iq4_xs(block, s, j, table):
    scale = _nibble(block + 4, s) | (((_short(block + 2) >> (2 * s).to(tl.uint32)) & 3) << 4)
    return _pairs(_plane(block + 8, 8 * s + j, 16, 4, 4), table), _half(block) * (_number(scale) - 32.0), 0.0


@triton.jit
def mxfp4(block, s, j, table):
    """The scale is a power of two, halved: 2^(e - 128), a subnormal number for e below 2."""
    e = _byte(block)
    bits = tl.where(e < 2, 0x00200000 << e, (e - 1) << 23)
    return _pairs(_plane(block + 1, j, 16, 4, 1), table), bits.to(tl.float32, bitcast=True), 0.0


@triton.jit
def nvfp4(block, s, j, table):
    """The scale is an unsigned E4M3, halved: its bits in the float32's places, 2^119 too small."""
    e = _byte(block + s)
    scale = ((e & 127) << 20).to(tl.float32, bitcast=True) * 664613997892457936451903530140172288.0  # 2^119
    return _pairs(_plane(block + 4, 4 * s + j, 8, 4, 4), table), tl.where(e == 127, 0.0, scale), 0.0


# ---- grids: four or eight weights a look-up


@triton.jit
def iq2_xxs(block, s, j, table):
    word = _word(block + 6, 2 * s, 2)
    signs = _even((word >> (7 * (j // 2)).to(tl.uint32)) & 127)
    grid = tl.load(table + 2 * _byte(block + 2 + 8 * s + j // 2) + (j % 2).to(tl.uint32))
    scale = _half(block) * (0.5 + _number(word >> 28)) * 0.25
    return _signed(grid, signs >> (4 * (j % 2)).to(tl.uint32)), scale, 0.0


@triton.jit
def iq2_xs(block, s, j, table):
    q = _short(block + 2 + 4 * s + 2 * (j // 2))
    grid = tl.load(table + 2 * (q & 511) + (j % 2).to(tl.uint32))
    scale = _half(block) * (0.5 + _number(_nibble(block + 66, s))) * 0.25
    return _signed(grid, _even(q >> 9) >> (4 * (j % 2)).to(tl.uint32)), scale, 0.0


@triton.jit
def iq2_s(block, s, j, table):
    k = 2 * s + j // 2
    high = (_byte(block + 66 + k // 4) >> (2 * (k % 4)).to(tl.uint32)) & 3
    grid = tl.load(table + 2 * (_byte(block + 2 + k) | (high << 8)) + (j % 2).to(tl.uint32))
    scale = _half(block) * (0.5 + _number(_nibble(block + 74, s))) * 0.25
    return _signed(grid, _byte(block + 34 + k) >> (4 * (j % 2)).to(tl.uint32)), scale, 0.0


@triton.jit
def iq3_xxs(block, s, j, table):
    word = _word(block + 66, s, 2)
    signs = _even((word >> (7 * (j // 2)).to(tl.uint32)) & 127)
    scale = _half(block) * (0.5 + _number(word >> 28)) * 0.5
    grid = tl.load(table + _byte(block + 2 + 8 * s + j))
    return _signed(grid, signs >> (4 * (j % 2)).to(tl.uint32)), scale, 0.0


@triton.jit
def iq3_s(block, s, j, table):
    ninth = (_byte(block + 66 + s) >> j.to(tl.uint32)) & 1
    grid = tl.load(table + (_byte(block + 2 + 8 * s + j) | (ninth << 8)))
    signs = _byte(block + 74 + 4 * s + j // 2) >> (4 * (j % 2)).to(tl.uint32)
    return _signed(grid, signs), _half(block) * _number(2 * _nibble(block + 106, s) + 1), 0.0


@triton.jit
def _ternary(index, below, scale, j, table):
    """scale * (x -+ 1/8) for x in -1, 0, 1, as scale / 8 * (8 x -+ 1); the grid holds 8 + 8 x, the bias is 9."""
    grid = tl.load(table + 2 * index + (j % 2).to(tl.uint32))
    return grid + tl.where(below != 0, 0, 0x02020202).to(tl.uint32), scale * 0.125, 0.0


@triton.jit
def iq1_s(block, s, j, table):
    qh = _short(block + 34 + 2 * s)
    index = _byte(block + 2 + 4 * s + j // 2) | (((qh >> (3 * (j // 2)).to(tl.uint32)) & 7) << 8)
    return _ternary(index, qh & 0x8000, _half(block) * _number(2 * ((qh >> 12) & 7) + 1), j, table)


@triton.jit
def iq1_m(block, s, j, table):
    k = 2 * s + j // 2
    qh = _byte(block + 32 + k // 2) >> (4 * (k % 2)).to(tl.uint32)
    d = (_short(block + 48) >> 12) | ((_short(block + 50) >> 8) & 0x00F0) | ((_short(block + 52) >> 4) & 0x0F00)
    d = (d | (_short(block + 54) & 0xF000)).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    scale = d * _number(2 * ((_short(block + 48 + 2 * (s // 4)) >> (3 * (s % 4)).to(tl.uint32)) & 7) + 1)
    return _ternary(_byte(block + k) | ((qh & 7) << 8), qh & 8, scale, j, table)
