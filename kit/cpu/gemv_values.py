"""Rows of numbers (F32, F16, BF16, I8) times float32 activations."""

from kit.cpu.kernels import RAW
from kit.cpu.simd.memory import copy, load, stack, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import Static, broadcast, convert, f32x16, generated, i8x16, inner
from kit.cpu.tasks import task

# I8 is what kit.codec decodes to, with a scale a row that is applied to the product.
NUMBERS = RAW | {"I8": (inner(lambda tier, address: convert(f32x16, load(i8x16, address))), 1)}

_scratch = stack(128)


@generated
def dot(format, tier, row, columns, x, scratch):
    """The product of the row at an address and ``columns`` floats at x. format and tier are Static."""
    numbers, width = NUMBERS[format.value.name]

    def dot(format, tier, row, columns, x, scratch):
        a = b = c = d = broadcast(f32x16, 0)
        for _ in range(columns // 64):
            a = fma(numbers(tier, row), load(f32x16, x), a)
            b = fma(numbers(tier, row + 16 * width), load(f32x16, x + 64), b)
            c = fma(numbers(tier, row + 32 * width), load(f32x16, x + 128), c)
            d = fma(numbers(tier, row + 48 * width), load(f32x16, x + 192), d)
            row += 64 * width
            x += 256
        for _ in range(columns % 64 // 16):
            a = fma(numbers(tier, row), load(f32x16, x), a)
            row += 16 * width
            x += 64
        if columns % 16:  # neither weights nor activations are read past the end
            store(scratch, broadcast(f32x16, 0))
            store(scratch + 64, broadcast(f32x16, 0))
            copy(row, width * (columns % 16), scratch)
            copy(x, 4 * (columns % 16), scratch + 64)
            b = fma(numbers(tier, scratch), load(f32x16, scratch + 64), b)
        return reduce_add((a + b) + (c + d))

    return dot


@task
def kernel(format: Static, tier: Static):
    """The task described in kit.cpu.linear."""

    def floating(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        scratch = _scratch()
        for row in range(task * share, min(rows, (task + 1) * share)):
            at = blocks + row * row_bytes
            for token in range(tokens):  # the row is in the first-level cache after the first
                store(y + token * y_stride + 4 * row, dot(format, tier, at, columns, x + token * x_stride, scratch))

    return floating
