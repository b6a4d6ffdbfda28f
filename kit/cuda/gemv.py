"""Kernels for y = W x from ggml blocks, for one or a few tokens. They can be imported and compiled without a GPU.

An integer below 2^24, read as the bits of a float32, is that integer times 2^-149. So codes need no conversion if x is
scaled up by a power of two; products are exact inside the FMA. x is packed into *planes* (tokens, 5, words): elements 0,
1, 2 and 3 of every four, scaled, and the sum of every four, which is multiplied by bias and minimum. Planes have the layout
of words of four codes, so no data moves between threads. Zeros pad them to whole steps, so loads of x need no mask.
"""

import triton
import triton.language as tl

from kit.cuda.codes import unpack
from kit.gguf.formats import Format

PLANES = 5
STEP_WORDS = 512  # of one row in a step, four weights each: 128 threads with 16 consecutive weights each
_SCALE = tl.constexpr(2.0**96)  # of x, so that a product is code * x * 2^-53; |x| must be below 2^32
_BACK = tl.constexpr(2.0**53)  # of scales, which must be below 2^74; a float16 times a few bits is


def rows_of_a_program(format: Format, rows: int, tokens: int) -> int:
    """Rows of a program, which share its loads of x: more for formats with 16-byte loads, if there are enough rows to keep
    all multiprocessors busy."""
    return max(1, (8 if format.block_bytes % 16 == 0 and rows >= 4096 else 4) // tokens)


@triton.jit
def _place_of(part):
    """The factor that undoes the position of a code in its word: 2^-8 for the second, 2^-16 for the third, else 1."""
    return tl.where(part == 1, 1 / 256, tl.where(part == 2, 1 / 65536, 1.0))


@triton.jit
def _store_planes(planes, value, word, padded):
    """Store value (n, 4) float32, the words ``word`` (n,) of one token, in its planes of ``padded`` words each."""
    part, inside = tl.arange(0, 4)[None, :], word < padded
    scaled = value * (_SCALE * _place_of(part))
    tl.store(planes + part * padded + word[:, None], scaled, inside[:, None])
    tl.store(planes + 4 * padded + word, tl.sum(value, axis=1), inside)


@triton.jit
def pack_kernel(x, gate, planes, words, padded, SWIGLU: tl.constexpr, BLOCK: tl.constexpr):
    """Pack x (tokens, 4 * words), or with SWIGLU x * silu(gate), into planes; BLOCK words of one token."""
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token, inside = tl.program_id(1), word < words
    place = token * words * 4 + word[:, None] * 4 + tl.arange(0, 4)[None, :]
    value = tl.load(x + place, inside[:, None], 0.0)
    if SWIGLU:
        gated = tl.load(gate + place, inside[:, None], 0.0)
        value *= gated / (1.0 + tl.exp(-gated))
    _store_planes(planes + token * padded * 5, value, word, padded)


@triton.jit
def norm_kernel(x, weight, planes, words, padded, eps, BLOCK: tl.constexpr):
    """Pack RMSNorm(x) * weight into planes, x (tokens, 4 * words); one token, BLOCK >= padded."""
    word = tl.arange(0, BLOCK)
    token, inside = tl.program_id(0), word < words
    place = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    value = tl.load(x + token * words * 4 + place, inside[:, None], 0.0)
    mean = tl.sum(tl.sum(value * value, axis=1), axis=0) / (4 * words)
    value = value / tl.sqrt(mean + eps) * tl.load(weight + place, inside[:, None], 0.0)
    _store_planes(planes + token * padded * 5, value, word, padded)


@triton.jit
def blocks_kernel(
    blocks, table, planes, y, rows, blocks_a_row, factor, FORMAT: tl.constexpr, CODES: tl.constexpr, SCALES: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """ROWS rows of y (TOKENS, rows) = W x, or with ADD y += factor * W x; CHUNK blocks of each row in a step.

    Axes: token, row, block, sub-block, word. Past the last row that row is computed again and not stored; past a row's
    last block that block is multiplied by zeros.
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
        codes, scale, minimum = unpack(at_block, s, j, table, FORMAT, CODES, SCALES)
        product = (codes & 0xFF).to(tl.float32, bitcast=True) * tl.load(here)
        product += (codes & 0xFF00).to(tl.float32, bitcast=True) * tl.load(here + padded)
        product += (codes & 0xFF0000).to(tl.float32, bitcast=True) * tl.load(here + 2 * padded)
        product += (codes >> 24).to(tl.float32, bitcast=True) * tl.load(here + 3 * padded)
        # The four words of a thread share a scale, so they are added first.
        product = tl.sum(product.reshape(TOKENS, ROWS, CHUNK, SUBS, WORDS // 4, 4), axis=5)
        sums = tl.sum(tl.load(here + 4 * padded).reshape(TOKENS, 1, CHUNK, SUBS, WORDS // 4, 4), axis=5)
        total += product * (scale * _BACK)
        total -= sums * (scale * FORMAT.bias + minimum)
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
    """As blocks_kernel, for weights stored as numbers (F32, F16, BF16, I8): CHUNK words of four columns in a step."""
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
