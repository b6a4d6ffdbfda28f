"""Which tier of primitives this process runs: what the CPU has, what passed its self-test, or what was asked for."""

import functools
import os
import warnings

import llvmlite.binding as llvm
import numpy as np
from numba.core import config

from kit.errors import KitError
from kit.simd.special import dot4, float_to_half, half_to_float, lookup
from kit.simd.vectors import Static, f32x16, i8x64, i32x16, jit, load, store, u8x16, u8x64, u16x16

# What a tier's instructions need, as LLVM spells it; best first.
TIERS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx512vbmi", "avx512vbmi2", "f16c"},
    "avx2": {"avx2", "f16c", "ssse3"},
    "plain": set(),
}


@functools.cache
def features() -> frozenset[str]:
    """The CPU features for which Numba compiles: this CPU's, or those of NUMBA_CPU_FEATURES."""
    if config.CPU_FEATURES is not None:
        return frozenset(name[1:] for name in config.CPU_FEATURES.split(",") if name.startswith("+"))
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def available() -> list[str]:
    """The tiers whose instructions this CPU has, best first."""
    return [name for name, needs in TIERS.items() if needs <= features()]


@functools.cache
def tier(name: str | None = None) -> Static:
    """The tier called ``name``, or by default that of the variable KIT_SIMD, or else the best that passes its self-test.

    A tier that was asked for and cannot run raises KitError; one that this CPU has but that fails its self-test is left
    out with a warning.
    """
    asked = name or os.environ.get("KIT_SIMD")
    if asked and asked not in available():
        raise KitError(f"SIMD tier {asked!r} is not one that this CPU can run: {', '.join(available())}")
    for candidate in [asked] if asked else available():
        wrong = self_test(candidate)
        if not wrong:
            return Static(candidate)
        if asked:
            raise KitError(f"SIMD tier {candidate!r} computes wrong results here: {', '.join(wrong)}")
        warnings.warn(f"SIMD tier {candidate!r} fails its self-test ({', '.join(wrong)}); trying the next", stacklevel=2)
    raise KitError("no SIMD tier passes its self-test: set KIT_SIMD, or use the reference backend")


@functools.cache
def self_test(name: str) -> list[str]:
    """The primitives of a tier that differ from numpy on this CPU; empty when all is well."""
    halves = np.arange(2**16, dtype=np.uint16)
    floats = np.concatenate([halves.astype(np.uint32) << 16 | low for low in (0, 0x1000, 0x7FFF, 0xFFFF)]).view(np.float32)
    random = np.random.default_rng(0)
    table, index = random.integers(0, 256, 16, np.uint8), random.integers(0, 16, 16, np.uint8)
    a, b = random.integers(0, 256, 64, np.uint8), random.integers(-128, 128, 64, np.int8)
    widened, narrowed = np.empty(2**16, np.float32), np.empty(len(floats), np.uint16)
    picked, total = np.empty(16, np.uint8), np.ones(16, np.int32)
    arrays = (halves, widened, floats, narrowed, table, index, picked, a, b, total)
    _probe(Static(name), len(halves), len(floats), *(array.ctypes.data for array in arrays))
    with np.errstate(all="ignore"):
        rounded = floats.astype(np.float16)
    right = {
        "half_to_float": np.array_equal(widened, halves.view(np.float16).astype(np.float32), equal_nan=True),
        "float_to_half": np.array_equal(narrowed.view(np.float16), rounded, equal_nan=True),
        "lookup": np.array_equal(picked, table[index]),
        "dot4": np.array_equal(total, 1 + (a.astype(np.int32) * b).reshape(16, 4).sum(1)),
    }
    return [primitive for primitive, ok in right.items() if not ok]


@jit
def _probe(tier, n_halves, n_floats, halves, widened, floats, narrowed, table, index, picked, a, b, total):
    for i in range(0, n_halves, 16):
        store(widened + 4 * i, half_to_float(tier, load(u16x16, halves + 2 * i)))
    for i in range(0, n_floats, 16):
        store(narrowed + 2 * i, float_to_half(tier, load(f32x16, floats + 4 * i)))
    store(picked, lookup(tier, load(u8x16, table), load(u8x16, index)))
    store(total, dot4(tier, load(i32x16, total), load(u8x64, a), load(i8x64, b)))


def describe() -> dict:
    """For `kit doctor`: the tier that runs, those that this CPU has, and the failures of each self-test."""
    failures = {name: self_test(name) for name in available()}
    return {"tier": tier().value, "available": available(), "failures": {k: v for k, v in failures.items() if v}}
