"""y = W x straight from ggml blocks, for one token or a few; imported without a GPU, too, to be compiled for one.

An integer below 2^24 that is read as a float32 bit pattern is that integer times 2^-149, subnormal or nearly: codes need
no conversion when x is scaled up by a power of two to make up for it, and products stay exact inside the FMA. x comes as
*planes* (tokens, 5, words): the elements 0, 1, 2 and 3 of every four, scaled, and the sums of every four, which meet the
bias and the minimum. Where codes are words of four, planes have their layout: neither moves between threads. Zeros fill
the planes up to a whole number of steps: no load of x needs a mask.
"""

import triton
import triton.language as tl

from kit.cuda.codes import unpack
from kit.gguf.formats import Format

PLANES = 5
STEP_WEIGHTS = 2048  # of one row a step: 128 threads with 16 consecutive weights each
STEP_WORDS = STEP_WEIGHTS // 4
_SCALE = tl.constexpr(2.0**96)  # times code * 2^-149: code * 2^-53. x itself must lie below 2^32
_BACK = tl.constexpr(2.0**53)  # scales must lie below 2^74; a float16 times a few bits does


def rows_of_a_program(format: Format, rows: int, tokens: int) -> int:
    """How many rows share what a step loads of x: more where codes come by wide loads into few registers, and where rows
    abound, so that all multiprocessors still have programs enough to wait for memory with."""
    return max(1, (8 if format.block_bytes % 16 == 0 and rows >= 4096 else 4) // tokens)


@triton.jit
def _place_of(part):
    """2^-8, 2^-16: how much higher the second and third code of a word lie than the first and (shifted down) the last."""
    return tl.where(part == 1, 1 / 256, tl.where(part == 2, 1 / 65536, 1.0))


@triton.jit
def _store_planes(planes, value, word, padded):
    """value (n, 4) float32, the words ``word`` (n,) of one token, to its planes of ``padded`` words."""
    part, inside = tl.arange(0, 4)[None, :], word < padded
    scaled = value * (_SCALE * _place_of(part))
    tl.store(planes + part * padded + word[:, None], scaled, inside[:, None])
    tl.store(planes + 4 * padded + word, tl.sum(value, axis=1), inside)


@triton.jit
def spread_kernel(x, gate, planes, words, padded, SWIGLU: tl.constexpr, BLOCK: tl.constexpr):
    """x (tokens, 4 * words) to planes; with SWIGLU x * silu(gate). A program takes BLOCK words of a token."""
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token, inside = tl.program_id(1), word < words
    place = token * words * 4 + word[:, None] * 4 + tl.arange(0, 4)[None, :]
    value = tl.load(x + place, inside[:, None], 0.0)
    if SWIGLU:
        opening = tl.load(gate + place, inside[:, None], 0.0)
        value *= opening / (1.0 + tl.exp(-opening))
    _store_planes(planes + token * padded * 5, value, word, padded)


@triton.jit
def norm_kernel(x, weight, planes, words, padded, eps, BLOCK: tl.constexpr):
    """RMSNorm of x (tokens, 4 * words) times weight, to planes. A program takes a token; BLOCK >= padded."""
    word = tl.arange(0, BLOCK)
    token, inside = tl.program_id(0), word < words
    place = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    value = tl.load(x + token * words * 4 + place, inside[:, None], 0.0)
    mean = tl.sum(tl.sum(value * value, axis=1), axis=0) / (4 * words)
    value = value / tl.sqrt(mean + eps) * tl.load(weight + place, inside[:, None], 0.0)
    _store_planes(planes + token * padded * 5, value, word, padded)


@triton.jit
def blocks_kernel(
    blocks,
    table,
    planes,
    y,
    rows,
    blocks_a_row,
    factor,
    FORMAT: tl.constexpr,
    CODES: tl.constexpr,
    SCALES: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    ADD: tl.constexpr,
):
    """ROWS rows of y (TOKENS, rows) a program, CHUNK blocks of each a step. Axes: token, row, block, sub-block, word.

    Rows beyond the last repeat it and are not stored; blocks beyond a row's last repeat that and meet an x of zero. With
    ADD y grows by factor * W x.
    """
    BYTES: tl.constexpr = FORMAT.block_bytes
    SUBS: tl.constexpr = FORMAT.groups
    WORDS: tl.constexpr = FORMAT.scales.group // 4
    token = tl.arange(0, TOKENS)[:, None, None, None, None]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = tl.minimum(row, rows - 1)[None, :, None, None, None]
    b = tl.arange(0, CHUNK)[None, None, :, None, None]
    s = tl.arange(0, SUBS)[None, None, None, :, None]
    j = tl.arange(0, WORDS)[None, None, None, None, :]
    first = blocks + inside.to(tl.int64) * blocks_a_row * BYTES
    padded = tl.cdiv(blocks_a_row, CHUNK) * (CHUNK * SUBS * WORDS)
    planes += token * padded * 5 + s * WORDS + j
    total = tl.zeros((TOKENS, ROWS, CHUNK, SUBS, WORDS // 4), tl.float32)
    for at in range(0, blocks_a_row, CHUNK):
        block = at + b
        here = planes + block * SUBS * WORDS
        at_block = first + tl.minimum(block, blocks_a_row - 1) * BYTES
        codes, scale, low = unpack(at_block, s, j, table, FORMAT, CODES, SCALES)
        product = (codes & 0xFF).to(tl.float32, bitcast=True) * tl.load(here)
        product += (codes & 0xFF00).to(tl.float32, bitcast=True) * tl.load(here + padded)
        product += (codes & 0xFF0000).to(tl.float32, bitcast=True) * tl.load(here + 2 * padded)
        product += (codes >> 24).to(tl.float32, bitcast=True) * tl.load(here + 3 * padded)
        # Four words lie in one thread: they are added before they meet the scale that they share.
        product = tl.sum(product.reshape(TOKENS, ROWS, CHUNK, SUBS, WORDS // 4, 4), axis=5)
        sums = tl.sum(tl.load(here + 4 * padded).reshape(TOKENS, 1, CHUNK, SUBS, WORDS // 4, 4), axis=5)
        total += product * (scale * _BACK)
        total -= sums * (scale * FORMAT.bias + low)
    sums = tl.sum(total.reshape(TOKENS, ROWS, CHUNK * SUBS * WORDS // 4), axis=2)
    _store_rows(y, sums, row, rows, factor, TOKENS, ADD)


@triton.jit
def _store_rows(y, sums, row, rows, factor, TOKENS: tl.constexpr, ADD: tl.constexpr):
    place, inside = y + tl.arange(0, TOKENS)[:, None] * rows + row[None, :], (row < rows)[None, :]
    if ADD:
        sums = tl.load(place, inside, 0.0) + factor * sums
    tl.store(place, sums, inside)


@triton.jit
def floats_kernel(
    weight, planes, y, rows, words, factor, TOKENS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, ADD: tl.constexpr
):
    """The same for weights that are float16, bfloat16 or float32: CHUNK words of four columns a step."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = tl.minimum(row, rows - 1)[None, :, None, None].to(tl.int64)
    token, part = tl.arange(0, TOKENS)[:, None, None, None], tl.arange(0, 4)[None, None, None, :]
    padded = tl.cdiv(words, CHUNK) * CHUNK
    back = 1.0 / (_SCALE * _place_of(part))
    total = tl.zeros((TOKENS, ROWS, CHUNK, 4), tl.float32)
    for start in range(0, words, CHUNK):
        word = start + tl.arange(0, CHUNK)[None, None, :, None]
        there = word < words
        w = tl.load(weight + (inside * words + word) * 4 + part, there, 0.0).to(tl.float32)
        total += w * (tl.load(planes + token * padded * 5 + part * padded + word) * back)
    sums = tl.sum(total.reshape(TOKENS, ROWS, CHUNK * 4), axis=2)
    _store_rows(y, sums, row, rows, factor, TOKENS, ADD)
