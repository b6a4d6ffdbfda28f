"""Rows of blocks times several activations in 8-bit digits: int32 sums of products of bytes, then scaled as floats.

Sixteen rows are unpacked at a time, once for all tokens (kit.cpu.transposed). kit.cpu.crossings measures from how many tokens
on that gains. Of a few tokens, one tile, parts of a super-block are unpacked between the products of others, and the next rows
are fetched a few lines at a time: 72 lines at once took a Zen 5 as long as the arithmetic, because its loads wait for them.

With the CPU's matrix unit (AMX), tiles are 16 tokens by 16 rows. The product of one group of weights that share a scale and the
store of its sums take 29 to 32 cycles of a 3.1 GHz Xeon, at every group width; the vector part takes 22, or 34 with minima, and
more where few activations share a scale. The times add up (54 and 77), although vectors and matrix unit have independent work.
Without a matrix unit, dot products of four bytes fill tiles of rows and tokens whose sums fit the vector registers: 60
multiply-adds per cycle of the same CPU with AVX-512, of at most 93.

Of sums scaled by groups, a vector unit multiplies codes in three of four turns (Q4_K: 96 of 132 instructions), or in four of
five where 256 activations share a scale. Codes that only a bias raises have no minima to multiply: their sums start at minus
the bias times the sum of activations.

int16 activations take two such products, one per digit, but on AVX2 without VNNI one of words (``in_words``). Three digits,
exact to 24 bits, take three: 119 GFLOP/s per core of a Zen 4, compared with 90 of torch's product of dequantized pieces (Q4_K,
512 tokens). The matrix unit is not used for it.
"""

from numba import types

from kit.cpu import threads
from kit.cpu.activations import DIGITS, NATURAL, RECORD, SCALE, SUMS, WORD, address, record_bytes
from kit.cpu.simd.amx import configure, multiply, release
from kit.cpu.simd.isa import has_vnni
from kit.cpu.simd.memory import copy, load, prefetch_far, prefetch_written, stack, store
from kit.cpu.simd.registers import add_dots_of, several_of, sum_of_products, times_numbers, widen_pairs_of
from kit.cpu.simd.sums import fma
from kit.cpu.simd.tiers import matrix, tier
from kit.cpu.simd.vectors import Static, broadcast, f32x16, i32x16, inner
from kit.cpu.superblocks import SUPERBLOCK, largest_code, superblock_bytes
from kit.cpu.tasks import task
from kit.cpu.transposed import (
    MINIMA,
    SCALES,
    UNPACKED,
    find_rows,
    lowered,
    parts_of,
    unpack,
    words_of,
    write_codes,
    write_scales,
)
from kit.gguf.formats import Format

f32 = types.float32
FEWEST = 16  # tokens of the matrix unit's tiles, and of a prompt, whose eight bits have FINE scales
FINE = 32  # activations that share a scale in a prompt's eight bits
TILES = {"amx": (16, 1), "avx512": (6, 2), "avx2": (4, 1), "neon": (4, 1)}  # tokens and sixteens of rows: see multiplier
WIDE = (2, 3, 4, 5, 6, 16)  # tokens of a tile, for each of which a kernel is compiled
FEW = {"avx2": 6}  # tokens of one of a few tiles, if more: what another would unpack takes longer than sums out of registers
# Digits -> what is faster than torch's products of floats, for MANY_TOKENS of kit.cpu.linear. AVX2's three digits are about as
# fast as its floats, whichever of them crossings.py finds.
FASTER = {1: tuple(TILES), 2: ("avx512", "avx2"), 3: ("avx512",)}
ROWS, _TOKENS = 32, 512  # of a piece: its sums, its weights and those of the next piece stay in the second-level cache

WIDENED = 2 * UNPACKED  # where codes as words begin, behind those of at most 32 rows as bytes

_scratch, _lines, _weights = stack(128), stack(UNPACKED), stack(WIDENED + 2 * 16 * SUPERBLOCK)
_found, _copies = stack(2 * 128), stack(2 * 16 * 384)
_sums, _totals = stack(2 * 16 * 1024), stack(4 * ROWS * (_TOKENS + 16))


def multiplier(activations: str, tokens: int = FEWEST) -> str:
    """What multiplies bytes: "amx" (the matrix unit), for one digit and no fewer tokens than its tiles have, or the vectors of
    the tier; see FASTER."""
    return "amx" if DIGITS[activations] == 1 and tokens >= FEWEST and matrix() else tier().value


def wide(tokens: int, multiplier: str) -> int:
    """Tokens of a tile for 2 tokens or more, so that few tiles multiply few of them twice."""
    most = TILES[multiplier][0]
    if multiplier == "amx" or tokens > 3 * most:
        return most

    def taken(n):  # by all tiles that unpack alone; the sums of one more than ``most`` still fit
        return -(-tokens // n) * (n + 3 + 2 * (n > most + 1))

    return min((n for n in WIDE if n <= min(FEW.get(multiplier, most), tokens)), key=taken)


def unpacks_at_once(format: Format, multiplier: str, tokens: int) -> bool:
    """Whether each of a few tiles unpacks codes between its products. One that unpacks for all takes longer until there are
    many: a Zen 5 took 112 ms for eight tokens of a 1.5B, and takes 77; for eighteen 183 and 157."""
    return multiplier != "amx" and words_of(format) is not None and tokens <= 3 * wide(tokens, multiplier)


def group_of(format: Format) -> int:
    """Weights per group: 32, or 16 if fewer share a scale."""
    return min(32, format.scales.group)


def together(format: Format, activations: str, tokens: int) -> int:
    """Activations that share a scale. Of a prompt these are fewer than in a decode, which multiplies a super-block's scales as
    integers: with FINE a prompt of Qwen2.5-Coder 1.5B loses a fifth as much (KL 0.0003 nats, 0.0015 with 256)."""
    if DIGITS[activations] > 1:
        return SUPERBLOCK
    return FINE if tokens >= FEWEST else format.activations


def layout(format: Format, activations: str, tokens: int) -> dict[str, int]:
    """What kit.cpu.activations.quantize needs to know for the records that ``kernel`` takes."""
    digits, group = DIGITS[activations], together(format, activations, tokens)
    if in_words(format, activations, tokens):
        return dict(order=address(NATURAL), digits=WORD, group=group, sums=group_of(format), in_units=1, times=0)
    times = format.bias if starts_low(format, digits) else 0
    in_units = int(group == SUPERBLOCK or times > 0)
    return dict(order=address(NATURAL), digits=digits, group=group, sums=group_of(format), in_units=in_units, times=times)


def in_words(format: Format, activations: str, tokens: int) -> bool:
    """Whether 16 bits are multiplied as such, by codes that were widened: AVX2 without VNNI adds sixteen products in two
    instructions, while two digits of six-bit codes take five for 32 each. A tile that unpacks alone has digits."""
    by = multiplier(activations, tokens)
    return DIGITS[activations] == 2 and by == "avx2" and not has_vnni() and not unpacks_at_once(format, by, tokens)


def starts_low(format: Format, digits: int) -> bool:
    """Whether sums of products start at minus the bias times the sum of activations, as the records have it, so that codes that
    only the bias raises are multiplied with no minima. Sums of three digits do not fit 32 bits."""
    return format.scales.sign == 0 < format.bias and digits < 3


def share(rows: int, activations: str, tokens: int = FEWEST) -> int:
    """Rows per task: two pieces, or fewer if some threads would be idle."""
    height = 16 * TILES[multiplier(activations, tokens)][1]
    return min(2 * ROWS, height * -(-rows // (2 * height * threads.count())))


def _by_tiles(format: Format):
    """add_superblock(tier, weights, records, last, count, left, sums, totals) with the matrix unit.

    Adds the products of sixteen rows' super-block and ``count`` x 16 tokens to totals: (count, 16 tokens, 16 rows) float32. The
    last tokens begin at ``last``, so they may overlap those before. The rows have ``left`` x 16 weights from here on; scales
    after them are zero.
    """
    minima, groups = format.scales.sign != 0, SUPERBLOCK // group_of(format)
    many, (of_groups, _) = 16 // groups, several_of(groups)  # sixteens of a group, and tokens to scale beside its product

    @inner
    def add_superblock(tier, weights, records, last, count, left, sums, totals, y, y_stride, ahead, nbytes):
        for line in range(ahead, ahead + nbytes, 64):
            prefetch_far(line)
        scale = of_groups(weights + SCALES, 64 * many)
        minimum = of_groups(weights + MINIMA, 64 * many)
        for tile in range(count + 1):
            new, old = sums + (tile & 1) * 16384, sums + (~tile & 1) * 16384
            ahead, record = records + min(16 * tile, last) * RECORD, records + min(16 * (tile - 1), last) * RECORD
            for group in range(groups):
                if tile < count:
                    multiply(ahead + 16 * many * group, RECORD, weights + 256 * many * group, new + 1024 * group)
                if tile > 0:
                    for token in range(many * group, many * (group + 1)):
                        at, of = totals + 64 * (16 * (tile - 1) + token), record + RECORD * token
                        scales = times_numbers(scale, of + SCALE, 4 * many)
                        total = sum_of_products(i32x16, scales, old + 64 * token, 1024, broadcast(f32x16, 0))
                        if minima:
                            total = sum_of_products(f32, minimum, of + SUMS, 4 * many, total)
                        store(at, load(f32x16, at) + total)

    return add_superblock


def _signed(format: Format, multiplier: str, digits: int) -> bool:
    """Whether codes are multiplied as signed numbers: by the matrix unit, as words, and where AVX2's multiply-add takes seven
    bits of uint8. The second digits may be -128, whose sign it cannot change."""
    of_bytes = multiplier == "avx2" and not has_vnni() and digits == 1 and largest_code(format) > 127
    return multiplier == "amx" or ((of_bytes or digits == WORD) and format.scales.sign == 0)


def _taken_back(format: Format, multiplier: str, digits: int) -> tuple[Static, Static]:
    """Where the bias goes that raises codes: (what they are lowered by, what minima take back); see ``unpack``."""
    less = lowered(format, _signed(format, multiplier, digits))
    return Static(less), Static(0 if less or starts_low(format, digits) else format.bias)


def _adding(format: Format, multiplier: str, digits: int, together: int):
    """(whether fewer activations than a super-block's share a scale, ``add_dots`` of a group)."""
    by_group, signed, words = together < SUPERBLOCK, _signed(format, multiplier, digits), digits == WORD
    units, places = SCALE - SUMS if by_group else 0, (RECORD,) if words else (0, RECORD, RECORD + SUPERBLOCK)[:digits]
    starts = starts_low(format, digits) and not signed
    return by_group, add_dots_of(group_of(format) // 4, largest_code(format), units, places, signed, starts, words)


def _by_dots(format: Format, multiplier: str, tokens: int, sixteens: int, digits: int, together: int):
    """``_by_tiles`` with dot products of bytes, for ``sixteens`` x 16 rows and ``count`` x ``tokens``; totals: (sixteens,
    count, tokens, 16 rows)."""
    groups, size = SUPERBLOCK // group_of(format), record_bytes(digits)
    many, (by_group, add_dots) = 16 // groups, _adding(format, multiplier, digits, together)
    (load_rows, _), (load_tile, store_tile) = several_of(sixteens), several_of(tokens * sixteens)
    wide, codes = (2, WIDENED) if digits == WORD else (1, 0)

    @inner
    def add_superblock(tier, weights, records, last, count, left, sums, totals, y, y_stride, ahead, nbytes):
        share = (nbytes // 64 + count - 1) // count * 64
        for tile in range(count):
            record = records + min(tokens * tile, last) * size
            for line in range(ahead + share * tile, min(ahead + share * (tile + 1), ahead + nbytes), 64):
                prefetch_far(line)
            if left <= 16:  # the last: what is written next comes meanwhile
                for token in range(tokens):
                    for line in range(0, 64 * sixteens, 64):
                        prefetch_written(y + (min(tokens * tile, last) + token) * y_stride + line)
            store(sums, broadcast(f32x16, 0))
            total = load_tile(sums, 0)
            for group in range(min(groups, (left + many - 1) // many)):
                of, x, w = weights + 64 * many * group, record + 16 * wide * many * group, 256 * wide * many * group
                scale, minimum = load_rows(of + SCALES, UNPACKED), load_rows(of + MINIMA, UNPACKED)
                of_x = record + SUMS + 4 * many * group
                total = add_dots(tier, total, x, size, weights + codes + w, UNPACKED, scale, minimum, of_x)
            store_tile(sums, 64, total)
            for row in range(sixteens):
                for token in range(tokens):
                    at, of_x = totals + 64 * ((row * count + tile) * tokens + token), record + size * token + SCALE
                    new = load(f32x16, sums + 64 * (row * tokens + token))
                    store(at, load(f32x16, at) + new if by_group else fma(new, load(f32x16, of_x), load(f32x16, at)))

    return add_superblock


def _at_once(format: Format, multiplier: str, tokens: int, sixteens: int, digits: int, together: int):
    """add_superblock(tier, rows, weights, record, left, sums, totals, lines, scratch): ``_by_dots`` for one tile, which
    unpacks a part of the codes just before their products, so that a CPU that reorders instructions does both at a time. rows:
    the addresses of ``sixteens`` x 16 rows in memory."""
    groups, size = SUPERBLOCK // group_of(format), record_bytes(digits)
    many, (by_group, add_dots) = 16 // groups, _adding(format, multiplier, digits, together)
    less, raised = _taken_back(format, multiplier, digits)
    (load_rows, _), (load_tile, store_tile) = several_of(sixteens), several_of(tokens * sixteens)
    (parts, fours), write = parts_of(format), write_codes(format, less.value, True)
    each, apart = groups // parts, 64 * len(fours)
    some, share = groups // 4, -(-16 * sixteens * format.nbytes(SUPERBLOCK) // groups)

    @inner(forceinline=True)
    def fetch(line, ahead, group):  # a few at a time: many at once wait for each other, and all loads with them
        while line < ahead + share * (group - group % some + some):
            prefetch_far(line)
            line += 64
        return line

    @inner
    def add_superblock(tier, rows, weights, record, left, sums, totals, lines, scratch, ahead):
        for n in range(sixteens):
            write_scales(format_, tier, raised, rows + 128 * n, left, weights + n * UNPACKED, lines, scratch)
        store(sums, broadcast(f32x16, 0))
        total, line = load_tile(sums, 0), ahead
        for part in range(parts):
            line = fetch(line, ahead, each * part)
            for n in range(sixteens):
                write(tier, rows + 128 * n, weights + n * UNPACKED + apart * part, part)
            for group in range(each * part, min(each * (part + 1), (left + many - 1) // many)):
                line = fetch(line, ahead, group)
                of, x, of_x = weights + 64 * many * group, record + 16 * many * group, record + SUMS + 4 * many * group
                scale, minimum = load_rows(of + SCALES, UNPACKED), load_rows(of + MINIMA, UNPACKED)
                total = add_dots(tier, total, x, size, weights + 256 * many * group, UNPACKED, scale, minimum, of_x)
        store_tile(sums, 64, total)
        for i in range(sixteens * tokens):
            at, new, before = totals + 64 * i, load(f32x16, sums + 64 * i), load(f32x16, totals + 64 * i)
            of_x = record + size * (i % tokens) + SCALE
            store(at, before + new if by_group else fma(new, load(f32x16, of_x), before))

    format_ = Static(format)
    return add_superblock


@task
def kernel(format: Static, tier: Static, multiplier: Static, activations: Static, wide: Static, how: Static, together: Static):
    """The task described in kit.cpu.linear, for at least ``wide`` tokens; how: "alone", if of few tiles each unpacks codes,
    "words" (see ``in_words``) or "". ``x`` is the address of the activations' records, whose scales are each of ``together``
    activations."""
    digits, wide = WORD if how.value == "words" else DIGITS[activations.value], int(wide.value)
    size = record_bytes(digits)
    amx, (_, high), group = multiplier.value == "amx", TILES[multiplier.value], group_of(format.value)
    of = format.value, multiplier.value, wide, high, digits, int(together.value)
    add_superblock = _by_tiles(format.value) if amx else _by_dots(*of)
    less, raised = _taken_back(format.value, multiplier.value, digits)
    alone, words = how.value == "alone", how.value == "words"
    widen = widen_pairs_of(_signed(format.value, multiplier.value, digits))
    step = wide if alone else _TOKENS
    add_one = _at_once(*of) if alone else None

    def tiles(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        sixteens, end, first, until = columns // 16, blocks + rows * row_bytes, task * share, min(rows, (task + 1) * share)
        scratch, lines, weights, sums, totals = _scratch(), _lines(), _weights(), _sums(), _totals()
        found, copies = _found(), _copies()
        if amx:
            configure(group, scratch)
        for row in range(first, until, ROWS):
            height = min(ROWS, until - row)
            for token in range(0, tokens, step):
                start = min(token, tokens - wide)
                some = min(step, tokens - start)
                count, last = (some + wide - 1) // wide, some - wide
                for i in range(ROWS // 16 * count * wide):
                    store(totals + 64 * i, broadcast(f32x16, 0))
                superblock, records = blocks + row * row_bytes, x + start * size
                out = y + start * y_stride + 4 * row
                ahead = blocks + (row + height) * row_bytes  # the next piece, in the order of its addresses
                for left in range(sixteens, 0, -16):
                    fetched = 16 * high * superblock_bytes(format)
                    for r in range(0, height, 16 * high):
                        for n in range(high):  # the last row again where there are no more
                            at, behind = superblock + (r + 16 * n) * row_bytes, height - r - 16 * n
                            into = weights + n * UNPACKED
                            if alone:
                                find_rows(format, at, row_bytes, behind, end, copies + 6144 * n, found + 128 * n)
                            else:
                                unpack(format, tier, less, raised, at, row_bytes, behind, left, end, into, lines, scratch)
                        for n in range(0, 64 * 64 if words else 0, 64):
                            widen(weights + n, weights + WIDENED + 2 * n)
                        if alone:
                            to = totals + r * 4 * wide
                            add_one(tier, found, weights, records, left, sums, to, lines, scratch, ahead)
                        else:
                            to, at = totals + r * 4 * wide * count, out + 4 * r
                            add_superblock(tier, weights, records, last, count, left, sums, to, at, y_stride, ahead, fetched)
                        ahead += fetched
                    superblock += superblock_bytes(format)
                    records += tokens * size
                for t in range(wide * count):
                    at = start + min(t // wide * wide, last) + t % wide
                    for r in range(0, height, 16):
                        copy_some(totals + 4 * (r * wide * count + 16 * t), height - r, y + at * y_stride + 4 * (row + r))
        if amx:
            release()

    return tiles


@inner
def copy_some(source, count, target):
    """Copy up to 16 numbers."""
    if count >= 16:
        store(target, load(f32x16, source))
    else:
        copy(source, 4 * count, target)
