"""Dequantizing a weight at a time, compiled without vector code: what stands in for the reports' dequantizer.

Their program has plain loops over a block in Rust (its vector code was never right: data/evidence.yaml, half-zero-simd). LLVM
would turn such loops into vectors. It does not in a function with the attribute ``noimplicitfloat``, which `no_vectors` sets.
"""

from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.simd.vectors import jit


@intrinsic
def no_vectors(_):
    """In a kernel: LLVM makes no vectors of its loops."""

    def code(context, builder, _signature, _args):
        builder.function.attributes.add("noimplicitfloat")
        return ir.Constant(context.get_value_type(types.int64), 0)

    return types.int64(), code


def q4_k(blocks, halves, out):
    """(blocks, 144) uint8 -> (blocks, 256) float32; ``halves``: every float16 as float32."""
    no_vectors()
    for number in range(len(blocks)):
        block = blocks[number]
        d, dmin = halves[block[0] | block[1] << 8], halves[block[2] | block[3] << 8]
        for sub in range(8):
            if sub < 4:
                scale, least = block[4 + sub] & 63, block[8 + sub] & 63
            else:
                scale = block[8 + sub] & 15 | block[sub] >> 6 << 4
                least = block[8 + sub] >> 4 | block[4 + sub] >> 6 << 4
            by, less, shift = np.float32(d * scale), np.float32(dmin * least), 4 * (sub % 2)
            for i in range(32):
                code = block[16 + sub // 2 * 32 + i] >> shift & 15
                out[number, 32 * sub + i] = np.float32(by * np.float32(code)) - less


def q6_k(blocks, halves, out):
    """(blocks, 210) uint8 -> (blocks, 256) float32."""
    no_vectors()
    for number in range(len(blocks)):
        block = blocks[number]
        d = halves[block[208] | block[209] << 8]
        for half in range(2):
            for part in range(4):
                for i in range(32):
                    low = block[64 * half + 32 * (part % 2) + i] >> 4 * (part // 2) & 15
                    code = np.int32(low | (block[128 + 32 * half + i] >> 2 * part & 3) << 4) - 32
                    scale = np.int32(np.int8(block[192 + 8 * half + 2 * part + i // 16]))
                    out[number, 128 * half + 32 * part + i] = np.float32(d * np.float32(scale)) * np.float32(code)


def q8_0(blocks, halves, out):
    """(blocks, 34) uint8 -> (blocks, 32) float32."""
    no_vectors()
    for number in range(len(blocks)):
        d = halves[blocks[number, 0] | blocks[number, 1] << 8]
        for i in range(32):
            out[number, i] = d * np.float32(np.int8(blocks[number, 2 + i]))


def q5_0(blocks, halves, out):
    """(blocks, 22) uint8 -> (blocks, 32) float32."""
    no_vectors()
    for number in range(len(blocks)):
        block = blocks[number]
        d = halves[block[0] | block[1] << 8]
        for i in range(32):
            code = block[6 + i % 16] >> 4 * (i // 16) & 15 | (block[2 + i // 8] >> i % 8 & 1) << 4
            out[number, i] = d * np.float32(np.int32(code) - 16)


LOOPS = {"Q4_K": q4_k, "Q6_K": q6_k, "Q8_0": q8_0, "Q5_0": q5_0}  # format -> its loop


@cache
def _compiled(name: str):
    return jit(LOOPS[name])


@cache
def _halves() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def dequantize(blocks: np.ndarray, format, out) -> None:
    """Uint8 blocks of a format in LOOPS -> ``out``, a float32 tensor of as many weights, on the calling thread."""
    weights = out.numpy().reshape(-1, format.block_elements)
    with np.errstate(all="ignore"):
        _compiled(format.name)(blocks.reshape(-1, format.block_bytes), _halves(), weights)
