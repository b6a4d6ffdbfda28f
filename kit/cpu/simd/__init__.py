"""Vectors for Numba kernels: what Numba does not emit by itself, as primitives that build LLVM vector instructions.

    @jit
    def scale(tier, halves, codes, out, n):                  # addresses are integers: array.ctypes.data
        for i in range(0, n, 16):
            d = half_to_float(tier, load(uint16, halves + i // 8))
            x = convert(f32x16, load(i8x16, codes + i))      # sixteen bytes -> sixteen floats
            stream(out + 4 * i, x * d)                       # a non-temporal store; operators take vectors and numbers

    scale(kit.cpu.simd.tier(), halves.ctypes.data, codes.ctypes.data, out.ctypes.data, n)

A vector is a value in registers, of any length: LLVM splits what the CPU has no register for. ``vectors`` is plain LLVM,
written with ``emit``. The primitives of ``isa`` use an instruction that LLVM does not find by itself. Their first argument,
the tier, chooses it: "avx512", "avx2", "neon", or "plain", for any CPU. Nothing is reassociated or contracted anywhere:
results are those of the scalar arithmetic, bit for bit.
"""

from kit.cpu.simd.tiers import TIERS, available, describe, features, matrix, self_test, tier, using

__all__ = ["TIERS", "available", "describe", "features", "matrix", "self_test", "tier", "using"]
