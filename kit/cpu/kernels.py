"""How a block of each format becomes numbers, as a table: sixteen integer codes at a time, a scale, perhaps a minimum.

Every format but the plain floats is ``scale[i // group] * code[i] (+- minimum[i // group])``. A row of KERNELS names the
readers of its codes and of its scales; kit.cpu.simd carries both to whatever CPU this is.
"""

from collections.abc import Callable
from typing import NamedTuple

from gguf.quants import IQ4_NL, MXFP4
from numba import njit, types
from numba.extending import overload

from kit.cpu import codes, scales
from kit.cpu.simd.isa import bfloat_to_float, float_to_bfloat, float_to_half, half_to_float
from kit.cpu.simd.memory import copy, load, store, stream
from kit.cpu.simd.vectors import convert, f32x16, u16x16
from kit.gguf.formats import FORMATS as TABLE

f32 = types.float32


class Kernel(NamedTuple):
    """One format: ``codes(tier, block, j) -> i32x16``, ``scales(tier, block, scratch)``; see these modules.

    ``group``: weights that share a scale, a power of two and at least 16. ``minimum``: +1 when it is added, -1 when it is
    subtracted, 0 when there is none.
    """

    codes: Callable
    scales: Callable
    group: int
    minimum: int = 0


KERNELS = {
    "Q4_0": Kernel(codes.planes("Q4_0", ("qs", 16, 4), bias=8), scales.half("Q4_0"), 32),
    "Q4_1": Kernel(codes.planes("Q4_1", ("qs", 16, 4)), scales.half("Q4_1", "d", "m"), 32, +1),
    "Q5_0": Kernel(codes.nibbles_and_bits("Q5_0", bias=16), scales.half("Q5_0"), 32),
    "Q5_1": Kernel(codes.nibbles_and_bits("Q5_1", bias=0), scales.half("Q5_1", "d", "m"), 32, +1),
    "Q8_0": Kernel(codes.signed_bytes("Q8_0"), scales.half("Q8_0"), 32),
    "Q2_K": Kernel(codes.planes("Q2_K", ("qs", 32, 2)), scales.q2_k(), 16, -1),
    "Q3_K": Kernel(codes.planes("Q3_K", ("qs", 32, 2), ("hmask", 32, 1), bias=4), scales.q3_k(), 16),
    "Q4_K": Kernel(codes.planes("Q4_K", ("qs", 32, 4)), scales.q4_k("Q4_K"), 32, -1),
    "Q5_K": Kernel(codes.planes("Q5_K", ("qs", 32, 4), ("qh", 32, 1)), scales.q4_k("Q5_K"), 32, -1),
    "Q6_K": Kernel(codes.planes("Q6_K", ("ql", 64, 4), ("qh", 32, 2), bias=32), scales.q6_k(), 16),
    "TQ1_0": Kernel(codes.trits("TQ1_0"), scales.half("TQ1_0"), 256),
    "TQ2_0": Kernel(codes.planes("TQ2_0", ("qs", 32, 2), bias=1), scales.half("TQ2_0"), 256),
    "IQ4_NL": Kernel(codes.values("IQ4_NL", IQ4_NL.kvalues), scales.half("IQ4_NL"), 32),
    "IQ4_XS": Kernel(codes.values("IQ4_XS", IQ4_NL.kvalues), scales.iq4_xs(), 32),
    "MXFP4": Kernel(codes.values("MXFP4", MXFP4.kvalues), scales.table("MXFP4", "e", scales.E8M0), 32),
    "NVFP4": Kernel(codes.short_values("NVFP4", MXFP4.kvalues), scales.table("NVFP4", "d", scales.UE4M3), 16),
    "IQ2_XXS": Kernel(codes.iq2_xxs(), scales.top_nibbles("IQ2_XXS", "qs", 8, 0.25), 32),
    "IQ2_XS": Kernel(codes.iq2_xs(), scales.nibbles("IQ2_XS"), 16),
    "IQ2_S": Kernel(codes.iq2_s(), scales.nibbles("IQ2_S"), 16),
    "IQ3_XXS": Kernel(codes.iq3_xxs(), scales.top_nibbles("IQ3_XXS", "signs", 4, 0.5), 32),
    "IQ3_S": Kernel(codes.iq3_s(), scales.iq3_s(), 32),
    "IQ1_S": Kernel(codes.iq1_s(), scales.iq1_s(), 32),
    "IQ1_M": Kernel(codes.iq1_m(), scales.iq1_m(), 16),
}

# Formats without blocks: sixteen numbers at an address as float32, and the bytes of one number.
RAW = {
    "F32": (njit(lambda tier, address: load(f32x16, address)), 4),
    "F16": (njit(lambda tier, address: half_to_float(tier, load(u16x16, address))), 2),
    "BF16": (njit(lambda tier, address: bfloat_to_float(load(u16x16, address))), 2),
}
FORMATS = frozenset(KERNELS) | frozenset(RAW)

# Sixteen float32 as what is stored, and the bytes of one number.
SINKS = {
    "float32": (njit(lambda tier, x: x), 4),
    "float16": (njit(lambda tier, x: float_to_half(tier, x)), 2),
    "bfloat16": (njit(lambda tier, x: float_to_bfloat(x)), 2),
}


# ---- the loops


def decode(format, dtype, tier, streams, blocks, count, out, scratch):
    """Decode ``count`` blocks at the address ``blocks`` to ``out``, past the caches if ``streams``.

    format, dtype and tier are Static; ``scratch`` is the address of 256 bytes; to stream, ``out`` is a multiple of 64.
    """


@overload(decode)
def _(format, dtype, tier, streams, blocks, count, out, scratch):
    make = _raw if format.value in RAW else _blocked
    return make(format.value, *SINKS[dtype.value])


def _blocked(format: str, narrow, width: int):
    layout = TABLE[format]
    read_codes, read_scales, group, minimum = KERNELS[format]
    weights, block_bytes, shift, minima = (
        layout.block_elements,
        layout.block_bytes,
        group.bit_length() - 5,
        scales.MINIMA,
    )

    def loop(format, dtype, tier, streams, blocks, count, out, scratch):
        for _ in range(count):
            read_scales(tier, blocks, scratch)
            for j in range(weights // 16):
                at = scratch + 4 * (j >> shift)
                x = convert(f32x16, read_codes(tier, blocks, j)) * load(f32, at)
                if minimum < 0:
                    x = x - load(f32, at + minima)
                elif minimum > 0:
                    x = x + load(f32, at + minima)
                if streams:
                    stream(out + 16 * width * j, narrow(tier, x))
                else:
                    store(out + 16 * width * j, narrow(tier, x))
            blocks += block_bytes
            out += width * weights

    return loop


def _raw(format: str, narrow, width: int):
    numbers, source_width = RAW[format]

    def loop(format, dtype, tier, streams, blocks, count, out, scratch):
        whole = count & -16
        for i in range(0, whole, 16):
            x = narrow(tier, numbers(tier, blocks + source_width * i))
            if streams:
                stream(out + width * i, x)
            else:
                store(out + width * i, x)
        if whole < count:  # neither a byte read nor one written past the end
            copy(blocks + source_width * whole, source_width * (count - whole), scratch)
            store(scratch + 64, narrow(tier, numbers(tier, scratch)))
            copy(scratch + 64, width * (count - whole), out + width * whole)

    return loop
