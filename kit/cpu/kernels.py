"""Block to numbers, for each format: sixteen integer codes at a time, one scale, and for some formats a minimum.

Every format except the plain floats is ``scale[i // group] * code[i] (+- minimum[i // group])``. Its readers are made from its
row in kit.gguf.formats; kit.cpu.simd compiles them for the CPU.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import types

from kit.cpu import codes, scales
from kit.cpu.codes import integers
from kit.cpu.simd.isa import bfloat_to_float, float_to_bfloat, float_to_half, floats_to_bfloats, half_to_float, lookup
from kit.cpu.simd.memory import copy, load, prefetch, store, stream
from kit.cpu.simd.vectors import constant, convert, f32x16, generated, inner, join, u16x16, u16x32
from kit.cpu.tasks import features
from kit.cpu.tuned import tuned
from kit.gguf.formats import Format

f32 = types.float32
_AHEAD = tuned().dequantized


class Kernel(NamedTuple):
    """One format: ``codes(tier, block, j) -> i32x16`` (kit.cpu.codes) and ``scales(tier, block, scratch)`` (kit.cpu.scales).

    ``group``: how many weights share a scale, a power of two and at least 16. ``minimum``: +1 if it is added, -1 if it is
    subtracted, 0 if there is none.
    """

    codes: Callable
    scales: Callable
    group: int
    minimum: int


@functools.cache
def parts_of(format: Format) -> Kernel:
    """The readers from which the kernels of a block format are made."""
    return Kernel(codes.reader(format), scales.reader(format), format.scales.group, format.scales.sign)


# Formats without blocks: sixteen numbers at an address as float32, and the bytes of one number.
RAW = {
    "F32": (inner(lambda tier, address: load(f32x16, address)), 4),
    "F16": (inner(lambda tier, address: half_to_float(tier, load(u16x16, address))), 2),
    "BF16": (inner(lambda tier, address: bfloat_to_float(load(u16x16, address))), 2),
}

# Two times sixteen float32 as the 64 bytes that are stored: half a line past the caches costs as long as a whole one.
PAIRS = {
    "float32": None,
    "float16": inner(lambda tier, a, b: join(float_to_half(tier, a), float_to_half(tier, b))),
    "bfloat16": inner(lambda tier, a, b: join(float_to_bfloat(a), float_to_bfloat(b))),
}


# ---- the loops


@generated
def dequantize_blocks(format, dtype, tier, streams, blocks, count, out, scratch):
    """Dequantize ``count`` blocks at the address ``blocks`` to ``out``; if it ``streams``, with stores that bypass the caches.

    format, dtype and tier are Static, as everywhere below; ``scratch`` is the address of 256 bytes. To stream, ``out`` must be
    a multiple of 64.
    """
    make = _raw if format.value.name in RAW else _blocked
    return make(format.value, dtype.value, tier.value)


def _blocked(format: Format, dtype: str, tier: str):
    read_codes, read_scales, group, minimum = parts_of(format)
    weights, block_bytes = format.block_elements, format.block_bytes
    shift, minima = group.bit_length() - 5, scales.MINIMA

    @inner
    def scaled(x, j, scratch):
        at = scratch + 4 * (j >> shift)
        x = x * load(f32, at)
        if minimum < 0:
            x = x - load(f32, at + minima)
        elif minimum > 0:
            x = x + load(f32, at + minima)
        return x

    pair = _pair(dtype, subnormal=format.scales.table == "E8M0")
    if pair and tier == "avx512" and format.codes.planes and format.codes.bits <= 5:
        line = _looked_up(format, scaled, pair)
    else:
        line = _line(inner(lambda tier, at, j, scratch: scaled(convert(f32x16, read_codes(tier, at, j)), j, scratch)), pair)
    step = 2 if pair else 1
    width = 4 // step

    def loop(format, dtype, tier, streams, blocks, count, out, scratch):
        for _ in range(count):
            if streams:
                for i in range(0, block_bytes, 64):
                    prefetch(blocks + _AHEAD + i)
            read_scales(tier, blocks, scratch)
            for j in range(0, weights // 16, step):
                _put(streams, out + 16 * width * j, line(tier, blocks, j, scratch))
            blocks += block_bytes
            out += width * weights

    return loop


@inner(forceinline=True)
def _put(streams, address, line):
    if streams:
        stream(address, line)
    else:
        store(address, line)


def _pair(dtype: str, subnormal: bool):
    """PAIRS[dtype], or one instruction instead of it if the CPU has it and no number can be ``subnormal``."""
    if dtype == "bfloat16" and not subnormal and "avx512bf16" in features():
        return inner(lambda tier, a, b: floats_to_bfloats(tier, a, b))
    return PAIRS[dtype]


def _line(numbers, pair):
    """From ``numbers``, which gives the j-th sixteen numbers as float32, a function that gives the 64 bytes to store from there
    on."""
    if pair is None:
        return numbers
    return inner(lambda tier, at, j, scratch: pair(tier, numbers(tier, at, j, scratch), numbers(tier, at, j + 1, scratch)))


def _looked_up(format: Format, scaled, pair):
    """A line of 16-bit numbers for codes of up to five bits: a table holds the numbers of a group, and the codes are its
    indices."""
    codes, halves = format.codes, format.scales.group == 16  # the two groups of a line have half a table each
    values = [*(codes.values or np.arange(2**codes.bits) - codes.less), *[0] * 16]
    first, second = (constant(f32x16, *values[at : at + 16]) for at in (0, 16 if codes.bits == 5 else 0))
    read, offset = integers(format, codes, 32, types.uint16), constant(u16x32, *[0] * 16, *[16 * halves] * 16)

    @inner
    def line(tier, block, j, scratch):
        table = pair(tier, scaled(first(), j, scratch), scaled(second(), j + 1, scratch))
        return lookup(tier, table, read(block, j >> 1) | offset())

    return line


def _raw(format: Format, dtype: str, tier: str):
    read, source_width = RAW[format.name]
    numbers = inner(lambda tier, at, j, scratch: read(tier, at + 16 * source_width * j))
    pair = _pair(dtype, subnormal=format.name != "F16")
    line, step = _line(numbers, pair), 2 if pair else 1
    width = 4 // step

    def loop(format, dtype, tier, streams, blocks, count, out, scratch):
        whole = count & -(16 * step)
        for j in range(0, whole // 16, step):
            _put(streams, out + 16 * width * j, line(tier, blocks, j, scratch))
        if whole < count:  # neither a byte read nor one written past the end
            copy(blocks + source_width * whole, source_width * (count - whole), scratch)
            store(scratch + 128, line(tier, scratch, 0, scratch))
            copy(scratch + 128, width * (count - whole), out + width * whole)

    return loop
