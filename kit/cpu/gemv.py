"""One token times float32 activations: 64 bytes of codes are taken apart at a time, and the products of a group share a step.

What is done to whole vectors of codes, and what is done once for a group's sum and not once for a weight, is what makes this
faster than the kernel for any format and any number of tokens (kit.cpu.gemv_float).
"""

import torch
from numba import njit, types
from numba.extending import overload

from kit.cpu import threads
from kit.cpu.simd.isa import nibbles_less, sixteen_less
from kit.cpu.simd.memory import load, prefetch, stack, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import Static, bitcast, broadcast, f32x16, u32x16
from kit.cpu.superblocks import UNIT, codes, codes_of, spread, steps, unit_size
from kit.cpu.tasks import task
from kit.gguf.formats import Format

f32, i64 = types.float32, types.int64
_AHEAD = 4096  # bytes; the CPU itself sees two rows as two streams that end soon
_scratch = stack(256)  # 128 bytes for the reader of the steps, then those of two rows


# ---- the activations


def prepare(x: torch.Tensor, format: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """x (1, columns) in the order in which the format's kernel meets it, (1, columns), and the sums of each sixteen of it,
    (columns / 16,), with which minima are taken off."""
    plane = plane_of(format)
    ordered, sums = torch.empty_like(x) if plane else x, torch.empty(x.shape[1] // 16)
    threads.run(preparing(), (x.data_ptr(), x.shape[1], plane, ordered.data_ptr(), sums.data_ptr()), 1)
    return ordered, sums


def plane_of(format: Format) -> int:
    """How the task of ``prepare`` orders activations for a format."""
    return format.codes.planes[0].run if codes_of(format).packed else 0


@task
def preparing():
    """The task of ``prepare``."""
    return _prepare


def _prepare(task, x, columns, plane, ordered, sums):
    """``plane``: a block's bytes hold so many codes in their low halves, and then as many in their high ones; or 0.

    Of 64 bytes read as sixteen words, the same four bits of all words meet sixteen activations in a row.
    """
    for n in range(columns // 16):
        store(sums + 4 * n, reduce_add(load(f32x16, x + 64 * n)))
    if plane:
        for chunk in range(0, columns, 128):
            for byte in range(64):
                low = chunk + 2 * plane * (byte // plane) + byte % plane
                to = chunk + 32 * (byte % 4) + byte // 4
                store(ordered + 4 * to, load(f32, x + 4 * low))
                store(ordered + 4 * (to + 16), load(f32, x + 4 * (low + plane)))


# ---- rows, two at a time: between them they read the activations once, which with 32 KB of them is what a row waits for


@njit
def two_rows(format, tier, row, other, units, x, sums, scratch):
    """The products of two rows of ``units`` units with the activations of ``prepare``."""
    size, lows = unit_size(format), has_lows(format)
    pair = 2 * (other - row)
    ahead = pair * (_AHEAD // max(1, pair) + 1)  # where the lines of a later pair lie as these do
    a = b = c = d = low_a = low_b = broadcast(f32x16, 0)
    for _ in range(units):
        for line in range(0, size, 64):
            prefetch(row + ahead + line)
            prefetch(other + ahead + line)
        step, low = steps(format, tier, row, scratch)
        other_step, other_low = steps(format, tier, other, scratch)
        a, b, c, d = add_unit(format, tier, row, other, step, other_step, x, scratch + 128, a, b, c, d)
        if lows:
            low_a = fma(low, load(f32x16, sums), low_a)
            low_b = fma(other_low, load(f32x16, sums), low_b)
        sums += 64
        row += size
        other += size
        x += 4 * UNIT
    return reduce_add(a + c) - reduce_add(low_a), reduce_add(b + d) - reduce_add(low_b)


def has_lows(format):
    """Whether the format has minima, which the steps' lows then are; the lows of signed codes only undo a bias."""


def add_unit(format, tier, row, other, step, other_step, x, scratch, a, b, c, d):
    """The sums of one row (a and c) and the other (b and d) + the products of a unit; scratch: 128 bytes."""


@overload(has_lows)
def _(format):
    lows = format.value.scales.sign != 0
    return lambda format: lows


@overload(add_unit, jit_options={"forceinline": True})
def _(format, tier, row, other, step, other_step, x, scratch, a, b, c, d):
    read_packed = codes_of(format.value).packed

    def of_bytes(format, tier, row, other, step, other_step, x, scratch, a, b, c, d):
        store(scratch, step)
        store(scratch + 64, other_step)
        v, w = codes(format, tier, row), codes(format, tier, other)
        a, b = add_bytes(format, tier, 0, v[0], w[0], x, scratch, a, b)
        c, d = add_bytes(format, tier, 1, v[1], w[1], x, scratch, c, d)
        a, b = add_bytes(format, tier, 2, v[2], w[2], x, scratch, a, b)
        c, d = add_bytes(format, tier, 3, v[3], w[3], x, scratch, c, d)
        return a, b, c, d

    def of_words(format, tier, row, other, step, other_step, x, scratch, a, b, c, d):
        v, w = read_packed(row), read_packed(other)
        p, q = dots_of_words(format, tier, v[0], w[0], x)
        a, b = fma(p, spread(format, 0, step), a), fma(q, spread(format, 0, other_step), b)
        p, q = dots_of_words(format, tier, v[0] >> 4, w[0] >> 4, x + 64)
        c, d = fma(p, spread(format, 1, step), c), fma(q, spread(format, 1, other_step), d)
        p, q = dots_of_words(format, tier, v[1], w[1], x + 2 * UNIT)
        a, b = fma(p, spread(format, 2, step), a), fma(q, spread(format, 2, other_step), b)
        p, q = dots_of_words(format, tier, v[1] >> 4, w[1] >> 4, x + 2 * UNIT + 64)
        c, d = fma(p, spread(format, 3, step), c), fma(q, spread(format, 3, other_step), d)
        return a, b, c, d

    return of_words if read_packed else of_bytes


# ---- codes of half a byte


@njit(forceinline=True)
def dots_of_words(format, tier, packed, other, x):
    """The products of the low halves of 64 bytes, of two rows, and the activations at x, in sixteen lanes."""
    v, w = bitcast(u32x16, packed), bitcast(u32x16, other)
    y = load(f32x16, x)
    a, b = nibble(format, tier, v) * y, nibble(format, tier, w) * y
    y = load(f32x16, x + 128)
    a, b = fma(nibble(format, tier, v >> 8), y, a), fma(nibble(format, tier, w >> 8), y, b)
    y = load(f32x16, x + 256)
    a, b = fma(nibble(format, tier, v >> 16), y, a), fma(nibble(format, tier, w >> 16), y, b)
    y = load(f32x16, x + 384)
    return fma(nibble(format, tier, v >> 24), y, a), fma(nibble(format, tier, w >> 24), y, b)


def nibble(format, tier, words):
    """The number that the low four bits of each word (u32x16) stand for, as float32."""


@overload(nibble, jit_options={"forceinline": True})
def _(format, tier, words):
    number = nibbles_less(format.value.bias)
    return lambda format, tier, words: number(tier, words)


# ---- codes in bytes


def add_bytes(format, tier, part, vector, other, x, steps, total, other_total):
    """The totals of two rows + the products of the first (second ...) 64 codes of a unit of each, their steps (64 bytes of
    the one, then of the other) and the activations at x."""


@overload(add_bytes, jit_options={"forceinline": True}, prefer_literal=True)
def _(format, tier, part, vector, other, x, steps, total, other_total):
    a, b, c, d = codes_of(format.value).order[4 * part.literal_value :][:4]
    shared = format.value.scales.group >= 32 and (a ^ 1, c ^ 1) == (b, d)  # neighbors, which have one step

    @njit(forceinline=True)
    def scaled(product, steps, n, total):
        return fma(product, broadcast(f32x16, load(f32, steps + 4 * n)), total)

    def pairs(format, tier, part, vector, other, x, steps, total, other_total):
        y, z = load(f32x16, x + 64 * a), load(f32x16, x + 64 * b)
        p = fma(sixteen(format, vector, 1), z, sixteen(format, vector, 0) * y)
        q = fma(sixteen(format, other, 1), z, sixteen(format, other, 0) * y)
        total, other_total = scaled(p, steps, a, total), scaled(q, steps + 64, a, other_total)
        y, z = load(f32x16, x + 64 * c), load(f32x16, x + 64 * d)
        p = fma(sixteen(format, vector, 3), z, sixteen(format, vector, 2) * y)
        q = fma(sixteen(format, other, 3), z, sixteen(format, other, 2) * y)
        return scaled(p, steps, c, total), scaled(q, steps + 64, c, other_total)

    def singles(format, tier, part, vector, other, x, steps, total, other_total):
        y = load(f32x16, x + 64 * a)
        total = scaled(sixteen(format, vector, 0) * y, steps, a, total)
        other_total = scaled(sixteen(format, other, 0) * y, steps + 64, a, other_total)
        y = load(f32x16, x + 64 * b)
        total = scaled(sixteen(format, vector, 1) * y, steps, b, total)
        other_total = scaled(sixteen(format, other, 1) * y, steps + 64, b, other_total)
        y = load(f32x16, x + 64 * c)
        total = scaled(sixteen(format, vector, 2) * y, steps, c, total)
        other_total = scaled(sixteen(format, other, 2) * y, steps + 64, c, other_total)
        y = load(f32x16, x + 64 * d)
        total = scaled(sixteen(format, vector, 3) * y, steps, d, total)
        return total, scaled(sixteen(format, other, 3) * y, steps + 64, d, other_total)

    return pairs if shared else singles


def sixteen(format, vector, part):
    """sixteen(format, v, 1): the numbers that bytes 16 to 31 of the codes (u8x64) stand for, as float32."""


@overload(sixteen, jit_options={"forceinline": True}, prefer_literal=True)
def _(format, vector, part):
    numbers = sixteen_less(format.value.bias, part.literal_value)
    return lambda format, vector, part: numbers(vector)


@task
def kernel(format: Static, tier: Static):
    """The task that kit.cpu.linear describes, for one token of whole units; ``sums`` as ``prepare`` makes them."""

    def single(task, blocks, row_bytes, rows, columns, x, y, stride, step, tokens, share, sums):
        units, scratch, last = columns // UNIT, _scratch(), min(rows, (task + 1) * share) - 1
        for row in range(task * share, last + 1, 2):
            other = min(row + 1, last)  # the last of an odd number of rows is its own neighbor
            at = blocks + row * row_bytes
            a, b = two_rows(format, tier, at, at + (other - row) * row_bytes, units, x, sums, scratch)
            store(y + 4 * row, a)
            store(y + 4 * other, b)

    return single
