"""The kernel that dequantizes every block format. It can be imported and compiled without a GPU.

A thread loads words of four codes and stores 16 bytes of consecutive weights. To be bit-exact in float32, products must be
rounded before they are added: launch with ``enable_fp_fusion=False``, so that no FMA is generated.
"""

import triton
import triton.language as tl

from kit.cuda.codes import unpack

WEIGHTS_A_PROGRAM = 4096


@triton.jit
def _bfloat16_bits(value):
    """Bits of a float32 rounded to nearest even, by integers: the interpreter's own conversion truncates."""
    bits = value.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(value == value, rounded, (bits >> 16) | 0x40).to(tl.uint16)


@triton.jit
def dequantize_kernel(
    blocks, table, out, count, FORMAT: tl.constexpr, CODES: tl.constexpr, SCALES: tl.constexpr, BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """Dequantize BLOCKS of ``count`` blocks; past the end the last block is repeated, which needs no masks."""
    BYTES: tl.constexpr = FORMAT.block_bytes
    SUBS: tl.constexpr = FORMAT.groups
    WORDS: tl.constexpr = FORMAT.scales.group // 4
    first = tl.program_id(0).to(tl.int64) * BLOCKS  # one 64-bit number for the program; a thread's offsets have 32 bits
    index = tl.minimum(tl.arange(0, BLOCKS), (count - 1 - first).to(tl.int32))
    s, j = tl.arange(0, SUBS)[None, :, None], tl.arange(0, WORDS)[None, None, :]
    block = blocks + first * BYTES + index[:, None, None] * BYTES
    codes, scale, minimum = unpack(block, s, j, table, FORMAT, CODES, SCALES)
    byte = (8 * tl.arange(0, 4)).to(tl.uint32)[None, None, None, :]
    number = (((codes[:, :, :, None] >> byte) & 255) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + FORMAT.bias)
    value = (number.reshape(BLOCKS, SUBS, 4 * WORDS) * scale - minimum).reshape(BLOCKS, 4 * SUBS * WORDS)
    weights: tl.constexpr = 4 * SUBS * WORDS
    if BITS:
        value = _bfloat16_bits(value)
    place = index[:, None] * weights + tl.arange(0, weights)[None, :]
    tl.store(out + first * weights + place, value.to(out.dtype.element_ty))
