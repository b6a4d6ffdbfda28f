"""Rows of blocks times 8-bit digits of activations, for one or a few tokens: products of codes, bytes times bytes.

A step takes a super-block of 256 weights, and kit.cpu.gemv_products multiplies it.
"""

from numba import types

from kit.cpu.activations import DIGITS, address, record_bytes
from kit.cpu.gemv_products import add_minima, bytes_per_record, has_minima, products, unpacked
from kit.cpu.simd.memory import copy, load, prefetch, stack, store
from kit.cpu.simd.sums import reduce_add4
from kit.cpu.simd.vectors import Static, broadcast, f32x16, generated, inner
from kit.cpu.strategies import digits
from kit.cpu.superblocks import SUPERBLOCK, codes_of, superblock_bytes, whole
from kit.cpu.tasks import task
from kit.cpu.tuned import tuned

f32 = types.float32
TOKENS = 32  # multiplied at once, whose sums fit the first-level cache

AHEAD, _WIDE = tuned().ahead, tuned().wide

_scratch = stack(128 + 512)  # a super-block's scales and minima, and the super-block itself where it is copied
_sums = stack(2 * 64 * TOKENS)


def layout(format, tier: str, activations: str) -> dict[str, int]:
    """What kit.cpu.activations.quantize needs to know for the records that ``kernel`` takes."""
    count = digits(format, tier, activations)
    group = format.activations if count == 1 else SUPERBLOCK
    return dict(order=address(codes_of(format).order), digits=count, group=group, sums=16, in_units=0, times=0)


@inner(forceinline=True)
def fetch(format, row, ahead):
    if AHEAD:  # by 0 bytes it is for nothing and costs nothing that was measured; a branch would divide the loop
        for line in range(0, superblock_bytes(format), 64):
            prefetch(row + ahead + line)


@generated
def _ahead(format, tier, activations, sixteens):
    """Bytes ahead of a row of so many times 16 weights, for one token."""
    most = _narrow(activations.value, record_bytes(digits(format.value, tier.value, activations.value)))
    return lambda format, tier, activations, sixteens: AHEAD if sixteens <= most else 0


def _narrow(activations: str, size: int) -> int:
    """The most times 16 weights of a row whose lines are fetched ahead. ``size``: bytes of a record of 256 activations."""
    return 16 * (_WIDE // size) if _WIDE and DIGITS[activations] == 1 else 1 << 40


@inner(forceinline=True)
def _add_superblock(format, tier, activations, at, sixteens, record, scratch, a, b, quarters):
    """a plus the products of a super-block's codes and the only token, and b plus the products of its minima."""
    codes, scales, minima = unpacked(format, tier, activations, at, sixteens, scratch)
    a = a + products(format, tier, activations, codes, scales, record, scratch, quarters)
    if has_minima(format, tier, activations):
        b = add_minima(format, tier, minima, record, b)
    return a, b


@generated(forceinline=True)
def _one_token(format, tier, activations, row, sixteens, end, record, scratch):
    """The product of a row of 16 * ``sixteens`` weights and the only token, as lanes to be added up; ``end``: end of the
    matrix."""
    has_rest = format.value.block_elements < SUPERBLOCK  # what it rules out is not compiled

    def row_of(format, tier, activations, row, sixteens, end, record, scratch):
        a = b = broadcast(f32x16, 0)
        ahead = _ahead(format, tier, activations, sixteens)
        for _ in range(sixteens // 16):
            fetch(format, row, ahead)
            a, b = _add_superblock(format, tier, activations, row, 16, record, scratch, a, b, 4)
            row += superblock_bytes(format)
            record += bytes_per_record(format, tier, activations)
        if has_rest and sixteens % 16:
            at, rest = whole(format, row, end, scratch + 128), sixteens % 16
            if rest > 8:
                a, b = _add_superblock(format, tier, activations, at, rest, record, scratch, a, b, 4)
            elif rest > 4:
                a, b = _add_superblock(format, tier, activations, at, rest, record, scratch, a, b, 2)
            else:
                a, b = _add_superblock(format, tier, activations, at, rest, record, scratch, a, b, 1)
        return a + b

    return row_of


@inner
def _some_tokens(format, tier, activations, row, sixteens, end, records, tokens, count, sums, scratch):
    """Write the products of a row and ``count`` tokens to ``sums``: one vector each, as lanes to be added up. Each has the bits
    of ``_one_token``."""
    for i in range(count):
        store(sums + 64 * i, broadcast(f32x16, 0))
        store(sums + 64 * (TOKENS + i), broadcast(f32x16, 0))
    for left in range(sixteens, 0, -16):
        fetch(format, row, AHEAD)
        start = whole(format, row, end, scratch + 128)
        codes, scales, minima = unpacked(format, tier, activations, start, left, scratch)
        record = records
        for at in range(sums, sums + 64 * count, 64):
            store(at, load(f32x16, at) + products(format, tier, activations, codes, scales, record, scratch, 4))
            if has_minima(format, tier, activations):
                other = at + 64 * TOKENS
                store(other, add_minima(format, tier, minima, record, load(f32x16, other)))
            record += bytes_per_record(format, tier, activations)
        row += superblock_bytes(format)
        records += tokens * bytes_per_record(format, tier, activations)
    for at in range(sums, sums + 64 * count, 64):
        store(at, load(f32x16, at) + load(f32x16, at + 64 * TOKENS))


@task
def kernel(format: Static, tier: Static, activations: Static):
    """The task described in kit.cpu.linear; ``x`` is the address of the activations' records."""

    def integer(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        sixteens, end, scratch, sums = columns // 16, blocks + rows * row_bytes, _scratch(), _sums()
        first, last = task * share, min(rows, (task + 1) * share)
        if tokens == 1:
            for row in range(first, last, 4):
                height = min(4, last - row)
                for r in range(height):
                    at = blocks + (row + r) * row_bytes
                    store(sums + 64 * r, _one_token(format, tier, activations, at, sixteens, end, x, scratch))
                a, b, c, d = load(f32x16, sums), load(f32x16, sums + 64), load(f32x16, sums + 128), load(f32x16, sums + 192)
                if height == 4:
                    store(y + 4 * row, reduce_add4(a, b, c, d))
                else:
                    store(sums, reduce_add4(a, b, c, d))
                    copy(sums, 4 * height, y + 4 * row)
            return
        for row in range(first, last):  # one after another: memory gives more to who reads in order
            for token in range(0, tokens, TOKENS):
                count = min(TOKENS, tokens - token)
                _some_tokens(
                    format, tier, activations, blocks + row * row_bytes, sixteens, end,
                    x + token * bytes_per_record(format, tier, activations), tokens, count, sums, scratch,
                )  # fmt: skip
                for t in range(0, count, 4):
                    at = sums + 64 * t
                    a, b, c, d = load(f32x16, at), load(f32x16, at + 64), load(f32x16, at + 128), load(f32x16, at + 192)
                    store(at, reduce_add4(a, b, c, d))
                    for n in range(min(4, count - t)):
                        store(y + (token + t + n) * y_stride + 4 * row, load(f32, at + 4 * n))

    return integer
