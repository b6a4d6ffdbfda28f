"""The one kernel that dequantizes every block format; imported without a GPU, too, so that it can be compiled for one.

A program takes several blocks; a thread loads words of four codes and stores 16 bytes of consecutive weights.
Bit-exactness in float32 needs products that are rounded before they are added: launch with ``enable_fp_fusion=False``,
and neither LLVM nor ptxas makes one FMA of a multiplication and an addition.
"""

import triton
import triton.language as tl

from kit.cuda.codes import unpack

WEIGHTS_A_PROGRAM = 4096


@triton.jit
def _bfloat16_bits(value):
    """Nearest even in integers, NaN kept: the interpreter's own conversion truncates."""
    bits = value.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(value == value, rounded, (bits >> 16) | 0x40).to(tl.uint16)


@triton.jit
def dequantize_kernel(
    blocks,
    table,
    out,
    count,
    FORMAT: tl.constexpr,
    CODES: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
):
    """BLOCKS blocks a program. A last one that is not full takes the last block again and again: every load and store stays
    inside.
    """
    BYTES: tl.constexpr = FORMAT.block_bytes
    SUBS: tl.constexpr = FORMAT.groups
    WORDS: tl.constexpr = FORMAT.scales.group // 4
    first = tl.program_id(0).to(tl.int64) * BLOCKS  # of 64 bits once a program; what each thread adds has 32
    index = tl.minimum(tl.arange(0, BLOCKS), (count - 1 - first).to(tl.int32))
    s, j = tl.arange(0, SUBS)[None, :, None], tl.arange(0, WORDS)[None, None, :]
    block = blocks + first * BYTES + index[:, None, None] * BYTES
    codes, scale, low = unpack(block, s, j, table, FORMAT, CODES, SCALES)
    byte = (8 * tl.arange(0, 4)).to(tl.uint32)[None, None, None, :]
    number = (((codes[:, :, :, None] >> byte) & 255) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + FORMAT.bias)
    value = (number.reshape(BLOCKS, SUBS, 4 * WORDS) * scale - low).reshape(BLOCKS, 4 * SUBS * WORDS)
    weights: tl.constexpr = 4 * SUBS * WORDS
    if BITS:
        value = _bfloat16_bits(value)
    place = index[:, None] * weights + tl.arange(0, weights)[None, :]
    tl.store(out + first * weights + place, value.to(out.dtype.element_ty))
