"""One token times float32 activations: 64 bytes of codes are taken apart at a time, and the products of a group share a step.

What is done to whole vectors of codes, and what is done once for a group's sum and not once for a weight, is what makes this
faster than the kernel for any format and any number of tokens (kit.fused.floating).
"""

import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from kit.fused.floating import multiply_add, total
from kit.fused.units import CODES, PACKED, UNIT, codes, spread, steps, unit_bytes
from kit.quants.kernels import KERNELS
from kit.simd.special import _call
from kit.simd.vectors import Static, bitcast, f32x16, jit, load, splat, stack, store, u32x16
from kit.threads import piecework

f32, i64 = types.float32, types.int64
FORMATS = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0")
_scratch = stack(192)  # 128 bytes for the reader of the steps, then the steps


# ---- the activations


def prepare(x: torch.Tensor, format: str) -> tuple[torch.Tensor, torch.Tensor]:
    """x (1, columns) in the order in which the format's kernel meets it, (1, columns), and the sums of each sixteen of it,
    (columns / 16,), with which minima are taken off."""
    plane = 0 if format not in PACKED else 32 if KERNELS[format].minimum else 16
    ordered, sums = torch.empty_like(x) if plane else x, torch.empty(x.shape[1] // 16)
    _prepare(x.data_ptr(), x.shape[1], plane, ordered.data_ptr(), sums.data_ptr())
    return ordered, sums


@jit
def _prepare(x, columns, plane, ordered, sums):
    """``plane``: a block's bytes hold so many codes in their low halves, and then as many in their high ones; or 0.

    Of 64 bytes read as sixteen words, the same four bits of all words meet sixteen activations in a row.
    """
    for n in range(columns // 16):
        store(sums + 4 * n, total(load(f32x16, x + 64 * n)))
    if plane:
        for chunk in range(0, columns, 128):
            for byte in range(64):
                low = chunk + 2 * plane * (byte // plane) + byte % plane
                to = chunk + 32 * (byte % 4) + byte // 4
                store(ordered + 4 * to, load(f32, x + 4 * low))
                store(ordered + 4 * (to + 16), load(f32, x + 4 * (low + plane)))


# ---- a row: row(format, tier, row, units, x, sums, scratch)


def row_product(format, tier, row, units, x, sums, scratch):
    """The product of a row of ``units`` units with the activations of ``prepare``."""


@overload(row_product)
def _(format, tier, row, units, x, sums, scratch):
    size, minimum = unit_bytes(format.value), KERNELS[format.value].minimum
    read_packed = PACKED.get(format.value)

    def of_bytes(format, tier, row, units, x, sums, scratch):
        a = b = c = d = lows = splat(f32x16, 0)
        for _ in range(units):
            step, low = steps(format, tier, row, scratch)
            store(scratch + 128, step)
            first, second, third, fourth = codes(format, tier, row)
            a = add_bytes(format, tier, 0, first, x, scratch + 128, a)
            b = add_bytes(format, tier, 1, second, x, scratch + 128, b)
            c = add_bytes(format, tier, 2, third, x, scratch + 128, c)
            d = add_bytes(format, tier, 3, fourth, x, scratch + 128, d)
            if minimum:
                lows = multiply_add(low, load(f32x16, sums), lows)
            sums += 64
            row += size
            x += 4 * UNIT
        return total((a + b) + (c + d)) - total(lows)

    def of_words(format, tier, row, units, x, sums, scratch):
        a = b = lows = splat(f32x16, 0)
        for _ in range(units):
            step, low = steps(format, tier, row, scratch)
            first, second = read_packed(row)
            a = add_words(format, tier, first, x, spread(format, 0, step), spread(format, 1, step), a)
            b = add_words(format, tier, second, x + 2 * UNIT, spread(format, 2, step), spread(format, 3, step), b)
            if minimum:
                lows = multiply_add(low, load(f32x16, sums), lows)
            sums += 64
            row += size
            x += 4 * UNIT
        return total(a + b) - total(lows)

    return of_words if read_packed else of_bytes


# ---- codes of half a byte


@njit(forceinline=True)
def add_words(format, tier, packed, x, low_steps, high_steps, total):
    """total + the products of the 128 codes in 64 bytes, their steps and the activations at x."""
    words = bitcast(u32x16, packed)
    low = nibble(format, tier, words) * load(f32x16, x)
    high = nibble(format, tier, words >> 4) * load(f32x16, x + 64)
    low = multiply_add(nibble(format, tier, words >> 8), load(f32x16, x + 128), low)
    high = multiply_add(nibble(format, tier, words >> 12), load(f32x16, x + 192), high)
    low = multiply_add(nibble(format, tier, words >> 16), load(f32x16, x + 256), low)
    high = multiply_add(nibble(format, tier, words >> 20), load(f32x16, x + 320), high)
    low = multiply_add(nibble(format, tier, words >> 24), load(f32x16, x + 384), low)
    high = multiply_add(nibble(format, tier, words >> 28), load(f32x16, x + 448), high)
    return multiply_add(low, low_steps, multiply_add(high, high_steps, total))


@intrinsic
def nibble(_, format, tier, words):
    """nibble(format, tier, w): the number that the low four bits of each word (u32x16) stand for, as float32.

    A look-up in a table of sixteen, where the CPU has one that wide: neither masks nor conversions.
    """
    bias = CODES[format.value].bias

    def emit(context, builder, signature, args):
        if tier.value == "avx512":
            table = ir.Constant(f32x16.llvm, [float(code - bias) for code in range(16)])
            return _call(builder, "llvm.x86.avx512.permvar.sf.512", f32x16.llvm, [table, args[2]])
        fifteen, less = (ir.Constant(args[2].type, [number] * 16) for number in (15, bias))
        return builder.sitofp(builder.sub(builder.and_(args[2], fifteen), less), f32x16.llvm)

    return f32x16(format, tier, words), emit


# ---- codes in bytes


def add_bytes(format, tier, part, vector, x, steps, total):
    """total + the products of the first (second ...) 64 codes of a unit, their steps and the activations at x."""


@overload(add_bytes, jit_options={"forceinline": True}, prefer_literal=True)
def _(format, tier, part, vector, x, steps, total):
    a, b, c, d = CODES[format.value].order[4 * part.literal_value :][:4]
    shared = KERNELS[format.value].group >= 32 and (a ^ 1, c ^ 1) == (b, d)  # neighbours, which have one step

    def pairs(format, tier, part, vector, x, steps, total):
        first = sixteen(format, vector, 0) * load(f32x16, x + 64 * a)
        first = multiply_add(sixteen(format, vector, 1), load(f32x16, x + 64 * b), first)
        other = sixteen(format, vector, 2) * load(f32x16, x + 64 * c)
        other = multiply_add(sixteen(format, vector, 3), load(f32x16, x + 64 * d), other)
        total = multiply_add(first, splat(f32x16, load(f32, steps + 4 * a)), total)
        return multiply_add(other, splat(f32x16, load(f32, steps + 4 * c)), total)

    def singles(format, tier, part, vector, x, steps, total):
        first = sixteen(format, vector, 0) * load(f32x16, x + 64 * a)
        second = sixteen(format, vector, 1) * load(f32x16, x + 64 * b)
        third = sixteen(format, vector, 2) * load(f32x16, x + 64 * c)
        fourth = sixteen(format, vector, 3) * load(f32x16, x + 64 * d)
        total = multiply_add(first, splat(f32x16, load(f32, steps + 4 * a)), total)
        total = multiply_add(second, splat(f32x16, load(f32, steps + 4 * b)), total)
        total = multiply_add(third, splat(f32x16, load(f32, steps + 4 * c)), total)
        return multiply_add(fourth, splat(f32x16, load(f32, steps + 4 * d)), total)

    return pairs if shared else singles


@intrinsic(prefer_literal=True)
def sixteen(_, format, vector, part):
    """sixteen(format, v, 1): the numbers that bytes 16 to 31 of the codes (u8x64) stand for, as float32."""
    first, bias = 16 * part.literal_value, CODES[format.value].bias

    def emit(context, builder, signature, args):
        words = ir.VectorType(ir.IntType(32), 16)
        signed = builder.sub(args[1], ir.Constant(args[1].type, [bias] * 64))
        picked = builder.shuffle_vector(signed, signed, ir.Constant(words, list(range(first, first + 16))))
        return builder.sitofp((builder.sext if bias else builder.zext)(picked, words), f32x16.llvm)

    return f32x16(format, vector, part), emit


def kernel(format: Static, tier: Static) -> int:
    """The kernel that kit.fused.linear describes, for one token of whole units; one more argument: the address of sums."""

    def single(arguments, piece):
        blocks, row_bytes, rows = load(i64, arguments), load(i64, arguments + 8), load(i64, arguments + 16)
        units, x, y = load(i64, arguments + 24) // UNIT, load(i64, arguments + 32), load(i64, arguments + 40)
        share, sums, scratch = load(i64, arguments + 72), load(i64, arguments + 80), _scratch()
        for row in range(piece * share, min(rows, (piece + 1) * share)):
            store(y + 4 * row, row_product(format, tier, blocks + row * row_bytes, units, x, sums, scratch))

    return piecework(single)
