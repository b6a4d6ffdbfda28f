"""Rows of blocks times two to nine tokens, with the bits that kit.cpu.gemv_codes gives each alone.

A super-block is unpacked once for all tokens, as there, but their number is a constant of the kernel: sums stay in registers.
On AVX2 codes are multiplied by all tokens before the next codes are unpacked, so that sixteen registers hold what is wanted
twice: token by token, 205 of 312 instructions for four int8 tokens of Q4_K were loads and stores, and they are 68 of 199.
"""

from kit.cpu.gemv_codes import AHEAD, fetch
from kit.cpu.gemv_products import add_minima, bytes_per_record, has_minima, pairs_of, products, unpacked
from kit.cpu.simd.memory import copy, load, stack, store
from kit.cpu.simd.registers import several_of
from kit.cpu.simd.sums import reduce_add4
from kit.cpu.simd.vectors import Static, broadcast, f32x16, inner
from kit.cpu.strategies import strategy
from kit.cpu.superblocks import superblock_bytes, whole
from kit.cpu.tasks import task

MOST = 9  # tokens: a draft of eight and the one before it

_COPIES = 128 + 512  # after a super-block's scales and its copy: a copy of scales for each token
_scratch = stack(_COPIES + 64 * MOST)
_sums = stack(64 * 5 * MOST)  # of four rows, then of the minima of one
_load4, _ = several_of(4)


def _adding(format, tier: str, activations: str, count: int):
    """A function that adds a super-block's products with so many tokens to ``a`` and those of its minima to ``b``, a vector per
    token each."""
    if tier == "avx2" and strategy(format, tier, activations) != "dots":
        multiply, finish = pairs_of(format, activations, tokens=count)
    else:  # no products of all tokens at a time, but each token's where they are added
        none, finish = (0,) * count, None
        multiply = inner(lambda codes, scales, record, scratch: none, forceinline=True)
    add = _adding_each(count, finish)

    @inner(forceinline=True)
    def several(format, tier, activations, codes, scales, minima, record, scratch, a, b):
        sums = multiply(codes, scales, record, scratch + _COPIES)
        return add(format, tier, activations, sums, codes, scales, minima, record, scratch, a, b)

    return several


def _adding_each(count: int, finish):
    """``_adding`` for what multiplies all tokens at a time, whose sums ``finish`` scales, or one after another."""

    @inner(forceinline=True)
    def own(format, tier, activations, sums, codes, scales, record, scratch):
        return products(format, tier, activations, codes, scales, record, scratch, 4)

    @inner(forceinline=True)
    def finished(format, tier, activations, sums, codes, scales, record, scratch):
        return finish(tier, sums, scales, record)

    product = finished if finish else own

    @inner(forceinline=True)
    def one(format, tier, activations, sums, codes, scales, minima, record, scratch, a, b):
        a0, b0 = a[0] + product(format, tier, activations, sums[0], codes, scales, record, scratch), b[0]
        if has_minima(format, tier, activations):
            b0 = add_minima(format, tier, minima, record, b0)
        return (a0,), (b0,)

    if count == 1:
        return one
    others = _adding_each(count - 1, finish)

    @inner(forceinline=True)
    def several(format, tier, activations, sums, codes, scales, minima, record, scratch, a, b):
        a0, b0 = one(format, tier, activations, sums, codes, scales, minima, record, scratch, a, b)
        record += bytes_per_record(format, tier, activations)
        rest, low = others(format, tier, activations, sums[1:], codes, scales, minima, record, scratch, a[1:], b[1:])
        return a0 + rest, b0 + low

    return several


@task
def kernel(format: Static, tier: Static, activations: Static, tokens: Static):
    """The task described in kit.cpu.linear, for exactly so many ``tokens``; ``x`` is the address of the activations' records,
    in the layout of gemv_codes."""
    count = int(tokens.value)
    add, (load_sums, store_sums) = _adding(format.value, tier.value, activations.value, count), several_of(count)

    @inner
    def row_of(format, tier, activations, row, sixteens, end, records, sums, minima_sums, scratch):
        store(sums, broadcast(f32x16, 0))
        a = b = load_sums(sums, 0)
        for left in range(sixteens, 0, -16):
            fetch(format, row, AHEAD)
            codes, scales, minima = unpacked(format, tier, activations, whole(format, row, end, scratch + 128), left, scratch)
            a, b = add(format, tier, activations, codes, scales, minima, records, scratch, a, b)
            row += superblock_bytes(format)
            records += count * bytes_per_record(format, tier, activations)
        store_sums(sums, 64, a)
        store_sums(minima_sums, 64, b)
        for i in range(0, 64 * count, 64):
            store(sums + i, load(f32x16, sums + i) + load(f32x16, minima_sums + i))

    def integer(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        sixteens, end, scratch, sums = columns // 16, blocks + rows * row_bytes, _scratch(), _sums()
        first, last = task * share, min(rows, (task + 1) * share)
        for row in range(first, last, 4):
            height = min(4, last - row)
            for r in range(height):
                at, to = blocks + (row + r) * row_bytes, sums + 64 * count * r
                row_of(format, tier, activations, at, sixteens, end, x, to, sums + 256 * count, scratch)
            for token in range(count):
                at, to = sums + 64 * token, y + token * y_stride + 4 * row
                a, b, c, d = _load4(at, 64 * count)
                if height == 4:
                    store(to, reduce_add4(a, b, c, d))
                else:
                    store(at, reduce_add4(a, b, c, d))
                    copy(at, 4 * height, to)

    return integer
