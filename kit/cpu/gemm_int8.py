"""Rows of blocks times many int8 activations by the CPU's matrix unit: products of tiles, 16 tokens by 16 rows.

The product of a group of weights that share a step gives int32 sums, which vectors scale and add up. On a Xeon of 3.1 GHz a
product and the store of its sums take 29 to 32 cycles, however wide the group is, and the vectors 22, or 34 with minima. The
times add up (54 and 77), though vectors and matrix unit are given independent work.
"""

from numba import njit, types
from numba.extending import overload

from kit.cpu import threads
from kit.cpu.activations import RECORD, SCALE, SUMS
from kit.cpu.simd.amx import configure, multiply, release
from kit.cpu.simd.memory import copy, load, stack, store
from kit.cpu.simd.registers import several_of, sum_of_products, transpose
from kit.cpu.simd.sums import fma
from kit.cpu.simd.vectors import Static, broadcast, f32x16, i32x16
from kit.cpu.superblocks import UNIT, codes, codes_of, steps, unit_size, whole
from kit.cpu.tasks import task
from kit.gguf.formats import Format

f32 = types.float32
FEWEST = 16  # tokens: the height of a tile
ROWS, _TOKENS = 64, 512  # of a piece: its sums and its unpacked weights stay in the second-level cache
_STEPS, _LOWS, _UNPACKED = 16 * UNIT, 16 * UNIT + 1024, 16 * UNIT + 2048  # of sixteen rows: codes, steps, lows

_scratch, _lines, _weights = stack(128 + 512), stack(_UNPACKED), stack(_UNPACKED)
_sums, _totals = stack(2 * 16 * 1024), stack(4 * ROWS * _TOKENS)
(load16, store16), (_, store4) = several_of(16), several_of(4)


def group_of(format: Format) -> int:
    """Weights of a group: 32, or 16 where fewer share a step."""
    return min(32, format.scales.group)


def share(rows: int) -> int:
    """Rows of a task: a piece, or fewer where not all threads would find work."""
    return min(ROWS, 16 * -(-rows // (32 * threads.count())))


def width(format):
    """``group_of`` a Static."""


def unpack(format, tier, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch):
    """A unit of sixteen rows, of which ``rows`` are there, to ``weights``: their codes as int8, four weights of each row
    in a vector; each sixteen's steps, a vector of rows; lows, if the format has minima. Else codes are less its bias."""


def add_unit(format, weights, records, last, count, sums, totals):
    """Add the products of sixteen rows' unit and ``count`` times 16 tokens to totals: (count, 16 tokens, 16 rows) float32.

    The last tokens begin at ``last``: some of them may be among those before.
    """


@overload(width)
def _(format):
    number = group_of(format.value)
    return lambda format: number


@overload(unpack)
def _(format, tier, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch):
    order, minima = codes_of(format.value).order, format.value.scales.sign != 0
    bias = 0 if minima else format.value.bias

    def unpacked(format, tier, blocks, row_bytes, rows, sixteens, end, weights, lines, scratch):
        for row in range(16):
            at = whole(format, blocks + min(row, rows - 1) * row_bytes, end, scratch + 128)
            a, b, c, d = codes(format, tier, at)
            store(lines + 256 * row, a - bias)
            store(lines + 256 * row + 64, b - bias)
            store(lines + 256 * row + 128, c - bias)
            store(lines + 256 * row + 192, d - bias)
            step, low = steps(format, tier, at, sixteens, scratch)
            store(lines + _STEPS + 64 * row, step)
            store(lines + _LOWS + 64 * row, low)
        for part in range(4):
            v = transpose(load16(lines + 64 * part, 256))
            store4(weights + 256 * order[4 * part], 64, v[:4])
            store4(weights + 256 * order[4 * part + 1], 64, v[4:8])
            store4(weights + 256 * order[4 * part + 2], 64, v[8:12])
            store4(weights + 256 * order[4 * part + 3], 64, v[12:])
        store16(weights + _STEPS, 64, transpose(load16(lines + _STEPS, 64)))
        if minima:
            store16(weights + _LOWS, 64, transpose(load16(lines + _LOWS, 64)))

    return unpacked


@overload(add_unit)
def _(format, weights, records, last, count, sums, totals):
    minima, groups = format.value.scales.sign != 0, UNIT // group_of(format.value)
    many, (of_groups, _) = 16 // groups, several_of(groups)  # sixteens of a group, and tokens to scale beside its product

    def added(format, weights, records, last, count, sums, totals):
        step = of_groups(weights + _STEPS, 64 * many)
        low = of_groups(weights + _LOWS, 64 * many)
        for tile in range(count + 1):
            new, old = sums + (tile & 1) * 16384, sums + (~tile & 1) * 16384
            ahead, record = records + min(16 * tile, last) * RECORD, records + min(16 * (tile - 1), last) * RECORD
            for group in range(groups):
                if tile < count:
                    multiply(ahead + 16 * many * group, RECORD, weights + 256 * many * group, new + 1024 * group)
                if tile > 0:
                    for token in range(many * group, many * (group + 1)):
                        at, of = totals + 64 * (16 * (tile - 1) + token), record + RECORD * token
                        total = sum_of_products(i32x16, step, old + 64 * token, 1024, broadcast(f32x16, 0))
                        total = fma(total, load(f32x16, of + SCALE), load(f32x16, at))
                        if minima:
                            total = sum_of_products(f32, low, of + SUMS, 4 * many, total)
                        store(at, total)

    return added


@task
def kernel(format: Static, tier: Static):
    """The task that kit.cpu.linear describes, for tokens >= FEWEST; ``x`` is the address of the activations' records."""

    def tiles(task, blocks, row_bytes, rows, columns, x, y, stride, step, tokens, share):
        sixteens, end, first, until = columns // 16, blocks + rows * row_bytes, task * share, min(rows, (task + 1) * share)
        scratch, lines, weights, sums, totals = _scratch(), _lines(), _weights(), _sums(), _totals()
        configure(width(format), scratch)
        for row in range(first, until, ROWS):
            height = min(ROWS, until - row)
            for token in range(0, tokens, _TOKENS):
                start = min(token, tokens - 16)
                some = min(_TOKENS, tokens - start)
                count, last = (some + 15) // 16, some - 16
                for i in range((height + 15) // 16 * count * 16):
                    store(totals + 64 * i, broadcast(f32x16, 0))
                unit, records = blocks + row * row_bytes, x + start * RECORD
                for left in range(sixteens, 0, -16):
                    for r in range(0, height, 16):
                        at = unit + r * row_bytes
                        unpack(format, tier, at, row_bytes, height - r, left, end, weights, lines, scratch)
                        add_unit(format, weights, records, last, count, sums, totals + r * 64 * count)
                    unit += unit_size(format)
                    records += tokens * RECORD
                for r in range(0, height, 16):
                    for t in range(16 * count):
                        at = start + min(t // 16 * 16, last) + t % 16
                        copy_some(totals + 64 * (r * count + t), height - r, y + at * step + 4 * (row + r))
        release()

    return tiles


@njit
def copy_some(source, count, target):
    """Copy up to 16 numbers."""
    if count >= 16:
        store(target, load(f32x16, source))
    else:
        copy(source, 4 * count, target)
