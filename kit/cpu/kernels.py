"""How a block of each format becomes numbers: sixteen integer codes at a time, a scale, perhaps a minimum.

Every format but the plain floats is ``scale[i // group] * code[i] (+- minimum[i // group])``, and its readers are made from
its row in kit.gguf.formats; kit.cpu.simd carries them to whatever CPU this is.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import njit, types
from numba.extending import overload

from kit.cpu import codes, scales
from kit.cpu.simd.isa import bfloat_to_float, float_to_bfloat, float_to_half, half_to_float
from kit.cpu.simd.memory import copy, load, store, stream
from kit.cpu.simd.vectors import convert, f32x16, join, u16x16
from kit.gguf.formats import Format

f32 = types.float32


class Kernel(NamedTuple):
    """One format: ``codes(tier, block, j) -> i32x16``, ``scales(tier, block, scratch)``; see these modules.

    ``group``: weights that share a scale, a power of two and at least 16. ``minimum``: +1 when it is added, -1 when it is
    subtracted, 0 when there is none.
    """

    codes: Callable
    scales: Callable
    group: int
    minimum: int


@functools.cache
def parts_of(format: Format) -> Kernel:
    """What the kernels of a format with blocks are made of."""
    return Kernel(codes.reader(format), scales.reader(format), format.scales.group, format.scales.sign)


# Formats without blocks: sixteen numbers at an address as float32, and the bytes of one number.
RAW = {
    "F32": (njit(lambda tier, address: load(f32x16, address)), 4),
    "F16": (njit(lambda tier, address: half_to_float(tier, load(u16x16, address))), 2),
    "BF16": (njit(lambda tier, address: bfloat_to_float(load(u16x16, address))), 2),
}

# Sixteen float32 as what is stored, and the bytes of one number.
SINKS = {
    "float32": (njit(lambda tier, x: x), 4),
    "float16": (njit(lambda tier, x: float_to_half(tier, x)), 2),
    "bfloat16": (njit(lambda tier, x: float_to_bfloat(x)), 2),
}


# ---- the loops


def dequantize_blocks(format, dtype, tier, streams, blocks, count, out, scratch):
    """Dequantize ``count`` blocks at the address ``blocks`` to ``out``, past the caches if ``streams``.

    format, dtype and tier are Static, as everywhere below; ``scratch`` is the address of 256 bytes; to stream, ``out`` is a
    multiple of 64.
    """


@overload(dequantize_blocks)
def _(format, dtype, tier, streams, blocks, count, out, scratch):
    make = _raw if format.value.name in RAW else _blocked
    return make(format.value, *SINKS[dtype.value])


def _blocked(format: Format, narrow, width: int):
    read_codes, read_scales, group, minimum = parts_of(format)
    weights, block_bytes = format.block_elements, format.block_bytes
    shift, minima = group.bit_length() - 5, scales.MINIMA

    @njit
    def numbers(tier, block, j, scratch):
        at = scratch + 4 * (j >> shift)
        x = convert(f32x16, read_codes(tier, block, j)) * load(f32, at)
        if minimum < 0:
            x = x - load(f32, at + minima)
        elif minimum > 0:
            x = x + load(f32, at + minima)
        return narrow(tier, x)

    line, step = _line(numbers, width, weights)

    def loop(format, dtype, tier, streams, blocks, count, out, scratch):
        for _ in range(count):
            read_scales(tier, blocks, scratch)
            for j in range(0, weights // 16, step):
                x = line(tier, blocks, j, scratch)
                if streams:
                    stream(out + 16 * width * j, x)
                else:
                    store(out + 16 * width * j, x)
            blocks += block_bytes
            out += width * weights

    return loop


def _line(numbers, width: int, weights: int = 32):
    """(a function like ``numbers``, which gives the j-th sixteen, that gives 64 bytes of them; how many sixteens these are):
    half a line past the caches costs as long as a whole one."""
    if width == 4 or weights % 32:
        return numbers, 1
    two = njit(lambda tier, at, j, scratch: join(numbers(tier, at, j, scratch), numbers(tier, at, j + 1, scratch)))
    return two, 2


def _raw(format: Format, narrow, width: int):
    read, source_width = RAW[format.name]
    line, step = _line(njit(lambda tier, at, j, scratch: narrow(tier, read(tier, at + 16 * source_width * j))), width)

    def loop(format, dtype, tier, streams, blocks, count, out, scratch):
        whole = count & -(16 * step)
        for j in range(0, whole // 16, step):
            x = line(tier, blocks, j, scratch)
            if streams:
                stream(out + 16 * width * j, x)
            else:
                store(out + 16 * width * j, x)
        if whole < count:  # neither a byte read nor one written past the end
            copy(blocks + source_width * whole, source_width * (count - whole), scratch)
            store(scratch + 128, line(tier, scratch, 0, scratch))
            copy(scratch + 128, width * (count - whole), out + width * whole)

    return loop
