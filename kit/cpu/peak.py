"""Operations per second that the CPU's instructions allow: multiply-adds of registers, with nothing to load, scale or store.

No product is faster, whatever its tiles. Bytes without dot products of four are taken as codes of four bits are, whose sums of
two are added in 16 bits; other codes take more instructions.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numba import types
from numba.core.cgutils import pack_array, unpack_tuple
from numba.extending import intrinsic

from kit.cpu import threads
from kit.cpu.simd import emit
from kit.cpu.simd.emit import emits
from kit.cpu.simd.isa import emit_dot4, emit_pairs, emit_widened, has_vnni
from kit.cpu.simd.registers import several_of
from kit.cpu.simd.tiers import tier
from kit.cpu.simd.vectors import Static, Vector
from kit.cpu.tasks import task

_BYTES = {"avx512": 64, "avx2": 32, "neon": 16}  # of a vector, by tier
_CODES, _FACTORS, _PLACE = 15, 1024, 2048  # the largest code; where a task's factors begin, and bytes of its memory
_TURNS = 2**18


def ways() -> Iterator[tuple[str, Callable[[], None], int]]:
    """(type of activations, function, operations of a call, additions counted) for each type that this tier multiplies as
    such; none on a tier without vectors."""
    for kind in ("float32", "int8", "int16") if tier().value in _BYTES else ():
        if kind != "int16" or _in_pairs():
            tasks = 4 * threads.count()
            memory, kernel_ = np.zeros(tasks * _PLACE, np.uint8), kernel(tier(), kind)
            lanes = _vectors(tier().value, kind)[1].lanes
            operations = 2 * _sums(tier().value, kind) * lanes * _TURNS * tasks

            def run(kernel=kernel_, memory=memory, tasks=tasks):
                threads.run(kernel, dict(turns=_TURNS, memory=memory), tasks)

            yield kind, run, operations


def _in_pairs() -> bool:
    """Whether bytes and words are multiplied by pairs, which another instruction adds to the sums."""
    return tier().value == "avx2" and not has_vnni()


def _factors(kind: str) -> int:
    """Vectors of each factor: of as many products as there are sums, where an instruction computes them without the sums."""
    return 3 if _in_pairs() and kind != "float32" else 1


def _sums(tier: str, kind: str) -> int:
    """Sums, so many that none waits for its last addition: 12 or 16, or those of ``_factors`` that fit with them."""
    return _factors(kind) ** 2 if _factors(kind) > 1 else 16 if tier == "neon" else 12


def _vectors(tier: str, kind: str) -> tuple[Vector, Vector]:
    """The types of a sum and of a factor."""
    size = _BYTES[tier]
    if kind == "float32":
        return (Vector(types.float32, size // 4),) * 2
    if kind == "int16":
        return Vector(types.int32, size // 4), Vector(types.int16, size // 2)
    return Vector(types.int16 if _in_pairs() else types.int32, size // (2 if _in_pairs() else 4)), Vector(types.uint8, size)


def _adding(kind: str):
    """A primitive: (tier, sums, a, b) -> the sums, to each of which a product of one of ``a`` and one of ``b`` is added."""

    def added(builder, tier, total, a, b):
        if kind == "float32":
            return emit.fma(builder, a, b, total)
        if kind == "int16":
            return emit_widened(builder, total, a, b)
        return builder.add(total, emit_pairs(builder, a, b)) if _in_pairs() else emit_dot4(builder, tier, total, a, b, _CODES)

    @intrinsic
    def add(_, tier, sums, a, b):
        def code(builder, _, sums, a, b):
            sums, a, b = (unpack_tuple(builder, vectors) for vectors in (sums, a, b))
            if len(a) > 1:  # or LLVM would multiply before the loop
                a = [emit.opaque(builder, vector, True) for vector in a]
            pairs = [(one, other) for one in a for other in b] * (1 if len(a) > 1 else len(sums))
            return pack_array(builder, [added(builder, tier, total, *pair) for total, pair in zip(sums, pairs, strict=True)])

        return emits(sums(tier, sums, a, b), code)

    return add


@task
def kernel(tier: Static, kind: Static):
    """The task: its memory is _PLACE bytes, the sums at multiples of 64 bytes, from _FACTORS on those of ``a`` and of ``b``."""
    total, factor = _vectors(tier.value, kind.value)
    load_sums, store_sums = several_of(_sums(tier.value, kind.value), total)
    (load_factors, _), add = several_of(_factors(kind.value), factor), _adding(kind.value)
    apart = 64 * _factors(kind.value)

    def multiply(task, turns, memory):
        memory += task * _PLACE
        sums, a = load_sums(memory, 64), load_factors(memory + _FACTORS, 64)
        b = load_factors(memory + _FACTORS + apart, 64)
        for _ in range(turns):
            sums = add(tier, sums, a, b)
        store_sums(memory, 64, sums)

    return multiply
