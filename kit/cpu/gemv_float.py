"""Rows of blocks times float32 activations: sixteen weights at a time are dequantized to registers and used there."""

from numba import njit, types
from numba.extending import overload

from kit.cpu.kernels import RAW, parts_of
from kit.cpu.scales import MINIMA
from kit.cpu.simd.memory import copy, load, stack, store
from kit.cpu.simd.sums import fma, reduce_add
from kit.cpu.simd.vectors import Static, broadcast, convert, f32x16, i8x16
from kit.cpu.tasks import task
from kit.gguf.formats import Format

f32, i64 = types.float32, types.int64
TILE = 4  # tokens that share one decoding of a row

# Numbers without blocks; I8 is what kit.codec decodes to, with a scale a row that is applied to the product.
NUMBERS = RAW | {"I8": (njit(lambda tier, address: convert(f32x16, load(i8x16, address))), 1)}


_scratch = stack(128)


# ---- one row: dot(format, tier, row, columns, x, y) for one token, dot4 for TILE tokens at x, x + stride, ...


def dot(format, tier, row, columns, x, scratch):
    """The dot product of the row of blocks at an address with ``columns`` floats at x. format and tier are Static."""


def dots(format, tier, row, columns, x, stride, y, step, scratch):
    """TILE dot products: of the row with the floats at x, x + stride ..., to y, y + step ..., in bytes."""


@overload(dot)
def _(format, tier, row, columns, x, scratch):
    return _raw_dot(*NUMBERS[format.value.name]) if format.value.name in NUMBERS else _block_dot(format.value)


@overload(dots)
def _(format, tier, row, columns, x, stride, y, step, scratch):
    return _raw_dots(*NUMBERS[format.value.name]) if format.value.name in NUMBERS else _block_dots(format.value)


def _reader(format: Format):
    """weights(tier, block, j, scratch): weights 16 j to 16 j + 15 of a block whose scales are in the scratch."""
    read_codes, _, group, minimum = parts_of(format)
    shift = group.bit_length() - 5

    @njit(forceinline=True)
    def weights(tier, block, j, scratch):
        at = scratch + 4 * (j >> shift)
        codes, scale = convert(f32x16, read_codes(tier, block, j)), load(f32, at)
        if minimum < 0:
            return fma(codes, broadcast(f32x16, scale), broadcast(f32x16, -load(f32, at + MINIMA)))
        if minimum > 0:
            return fma(codes, broadcast(f32x16, scale), broadcast(f32x16, load(f32, at + MINIMA)))
        return codes * scale

    return weights


def _block_dot(format: Format):
    block_elements, block_bytes = format.block_elements, format.block_bytes
    read_scales, weights = parts_of(format).scales, _reader(format)
    sixteens = block_elements // 16

    def dot(format, tier, row, columns, x, scratch):
        a = b = c = d = broadcast(f32x16, 0)  # independent sums, so that no addition waits for the one before
        for _ in range(columns // block_elements):
            read_scales(tier, row, scratch)
            if sixteens % 4 == 0:
                for j in range(0, sixteens, 4):
                    a = fma(weights(tier, row, j, scratch), load(f32x16, x + 64 * j), a)
                    b = fma(weights(tier, row, j + 1, scratch), load(f32x16, x + 64 * j + 64), b)
                    c = fma(weights(tier, row, j + 2, scratch), load(f32x16, x + 64 * j + 128), c)
                    d = fma(weights(tier, row, j + 3, scratch), load(f32x16, x + 64 * j + 192), d)
            else:
                a = fma(weights(tier, row, 0, scratch), load(f32x16, x), a)
                b = fma(weights(tier, row, 1, scratch), load(f32x16, x + 64), b)
            row += block_bytes
            x += 4 * block_elements
        return reduce_add((a + b) + (c + d))

    return dot


def _block_dots(format: Format):
    block_elements, block_bytes = format.block_elements, format.block_bytes
    read_scales, weights = parts_of(format).scales, _reader(format)

    def dots(format, tier, row, columns, x, stride, y, step, scratch):
        a = b = c = d = broadcast(f32x16, 0)
        for _ in range(columns // block_elements):
            read_scales(tier, row, scratch)
            for j in range(block_elements // 16):
                w, at = weights(tier, row, j, scratch), x + 64 * j
                a = fma(w, load(f32x16, at), a)
                b = fma(w, load(f32x16, at + stride), b)
                c = fma(w, load(f32x16, at + 2 * stride), c)
                d = fma(w, load(f32x16, at + 3 * stride), d)
            row += block_bytes
            x += 4 * block_elements
        store(y, reduce_add(a))
        store(y + step, reduce_add(b))
        store(y + 2 * step, reduce_add(c))
        store(y + 3 * step, reduce_add(d))

    return dots


def _raw_dot(numbers, width: int):
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


def _raw_dots(numbers, width: int):
    def dots(format, tier, row, columns, x, stride, y, step, scratch):
        for token in range(TILE):  # the row is in the first-level cache after the first
            store(y + token * step, dot(format, tier, row, columns, x + token * stride, scratch))

    return dots


@task
def kernel(format: Static, tier: Static):
    """The task that kit.cpu.linear describes."""

    def floating(task, blocks, row_bytes, rows, columns, x, y, stride, step, tokens, share):
        scratch = _scratch()
        for row in range(task * share, min(rows, (task + 1) * share)):
            at, token = blocks + row * row_bytes, 0
            while token + TILE <= tokens:
                dots(format, tier, at, columns, x + token * stride, stride, y + token * step + 4 * row, step, scratch)
                token += TILE
            while token < tokens:
                store(y + token * step + 4 * row, dot(format, tier, at, columns, x + token * stride, scratch))
                token += 1

    return floating
