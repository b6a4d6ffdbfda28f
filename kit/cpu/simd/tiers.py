"""Which tier of primitives this process runs: the best that the CPU has and that passes its self-test, or the one that is
named."""

import contextlib
import contextvars
import functools
import os
import warnings

import numpy as np

from kit.cpu.tasks import Static, features, function, task
from kit.errors import KitError, KitWarning
from kit.system import permit_tiles

# What a tier's instructions need, as LLVM spells it; best first.
TIERS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx512vbmi", "avx512vbmi2", "f16c"},
    "avx2": {"avx2", "f16c", "ssse3"},
    "neon": {"neon"},
    "plain": set(),
}
MATRIX = TIERS["avx512"] | {"amx-tile", "amx-int8"}


def available() -> list[str]:
    """The tiers whose instructions this CPU has, best first."""
    return [name for name, needs in TIERS.items() if needs <= features()]


def tier(name: str | None = None) -> Static:
    """The tier called ``name``. Default: that of ``using``, or of the variable KIT_SIMD, or the best one that works.

    KitError if a named tier cannot run here or fails its self-test. Without a name, a tier that fails is skipped with a
    warning.
    """
    return _choose(name or _asked.get() or os.environ.get("KIT_SIMD"))


@contextlib.contextmanager
def using(name: str | None):
    """Within the ``with``, in this thread, ``tier()``, which it gives, is the tier called ``name``; None changes nothing."""
    token = _asked.set(name or _asked.get())
    try:
        yield tier
    finally:
        _asked.reset(token)


_asked: contextvars.ContextVar[str | None] = contextvars.ContextVar("tier", default=None)


@functools.cache
def _choose(asked: str | None) -> Static:
    if asked and asked not in available():
        raise KitError(f"this CPU cannot run the SIMD tier {asked!r}; it can run {', '.join(available())}")
    for candidate in [asked] if asked else available():
        wrong = ", ".join(self_test(candidate))
        if not wrong:
            return Static(candidate)
        if asked:
            raise KitError(f"SIMD tier {candidate!r} computes wrong results on this CPU: {wrong}")
        warnings.warn(f"SIMD tier {candidate!r} fails its self-test ({wrong}); trying the next", KitWarning, stacklevel=4)
    raise KitError("no SIMD tier passes its self-test on this CPU: use backend='reference'")


def matrix() -> bool:
    """Whether kernels use the CPU's matrix unit (kit.cpu.simd.amx): if no tier is named, the system lets this process use the
    unit, and its products are right."""
    return not (_asked.get() or os.environ.get("KIT_SIMD")) and MATRIX <= features() and _matrix_works()


@functools.cache
def _matrix_works() -> bool:
    if not permit_tiles():
        return False
    random = np.random.default_rng(0)
    left, right = random.integers(-128, 128, (2, 16, 64), np.int8)
    sums, scratch = np.empty((16, 16), np.int32), np.empty(64, np.uint8)
    function(_matrix_probe(), 5)(0, *(array.ctypes.data for array in (left, right, sums, scratch)))
    columns = right.reshape(16, 16, 4).swapaxes(0, 1).reshape(16, 64)
    if wrong := not np.array_equal(sums, left.astype(np.int32) @ columns.T.astype(np.int32)):
        warnings.warn("the CPU's matrix unit fails its self-test; it is not used", KitWarning, stacklevel=4)
    return not wrong


@task
def _matrix_probe():
    """One product of tiles."""
    from kit.cpu.simd.amx import configure, multiply, release  # and Numba

    def probe(task, left, right, sums, scratch):
        configure(64, scratch)
        multiply(left, 64, right, sums)
        release()

    return probe


@functools.cache
def self_test(name: str) -> list[str]:
    """The primitives of a tier whose results differ from numpy's on this CPU; empty if all are right."""
    halves = np.arange(2**16, dtype=np.uint16)
    floats = np.concatenate([halves.astype(np.uint32) << 16 | low for low in (0, 0x1000, 0x7FFF, 0xFFFF)]).view(np.float32)
    random = np.random.default_rng(0)
    table, index = random.integers(0, 256, 16, np.uint8), random.integers(0, 16, 16, np.uint8)
    words, places = random.integers(0, 2**16, 32, np.uint16), random.integers(0, 32, 32, np.uint16)
    a, b = random.integers(0, 256, 64, np.uint8), random.integers(-128, 128, 64, np.int8)
    widened, narrowed = np.empty(2**16, np.float32), np.empty(len(floats), np.uint16)
    picked, chosen, total = np.empty(16, np.uint8), np.empty(32, np.uint16), np.ones(16, np.int32)
    arrays = (halves, widened, floats, narrowed, table, index, picked, words, places, chosen, a, b, total)
    function(_probe(name), 2 + len(arrays))(len(halves), len(floats), *(array.ctypes.data for array in arrays))
    with np.errstate(all="ignore"):
        rounded, exact = floats.astype(np.float16), halves.view(np.float16).astype(np.float32)
    right = {
        "half_to_float": np.array_equal(widened, exact, equal_nan=True),
        "float_to_half": np.array_equal(narrowed.view(np.float16), rounded, equal_nan=True),
        "lookup": np.array_equal(picked, table[index]) and np.array_equal(chosen, words[places]),
        "dot4": np.array_equal(total, 1 + (a.astype(np.int32) * b).reshape(16, 4).sum(1)),
    }
    return [primitive for primitive, ok in right.items() if not ok]


@task
def _probe(tier: Static):
    """Each of the primitives on each of the numbers."""
    from kit.cpu.simd.isa import dot4, float_to_half, half_to_float, lookup  # and Numba
    from kit.cpu.simd.memory import load, store
    from kit.cpu.simd.vectors import f32x16, i8x64, i32x16, u8x16, u8x64, u16x16, u16x32

    def probe(n_halves, n_floats, halves, widened, floats, narrowed, table, index, picked, words, places, chosen, a, b, total):
        for i in range(0, n_halves, 16):
            store(widened + 4 * i, half_to_float(tier, load(u16x16, halves + 2 * i)))
        for i in range(0, n_floats, 16):
            store(narrowed + 2 * i, float_to_half(tier, load(f32x16, floats + 4 * i)))
        store(picked, lookup(tier, load(u8x16, table), load(u8x16, index)))
        store(chosen, lookup(tier, load(u16x32, words), load(u16x32, places)))
        store(total, dot4(tier, load(i32x16, total), load(u8x64, a), load(i8x64, b)))

    return probe


def describe() -> tuple[str, str, str]:
    """For `kit doctor`: the state ("ok", "note"), the tier in use and what the CPU has, and the remedy for a failure."""
    failing = [name for name in available() if self_test(name)]
    finding = f"{tier().value} runs; this CPU has {', '.join(available())}"
    finding += "; prompts by its matrix unit (AMX)" if matrix() else ""
    if failing:
        return ("note", f"{finding}; wrong results from {', '.join(failing)}", "update numba and llvmlite, or report this CPU")
    return "ok", finding, ""
