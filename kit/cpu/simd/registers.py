"""Several vectors at once: the tile of sums that a matrix product keeps in registers."""

import itertools

from numba import types
from numba.core.cgutils import pack_array, unpack_tuple
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import FLOAT32, I32, emits, every
from kit.cpu.simd.isa import emit_dot4, emit_in_order, emit_pairs, emit_widened, most_pairs
from kit.cpu.simd.vectors import Vector, f32x4, f32x16, i16x32, i32x16, u8x64

_i64 = types.int64


def _load(builder, kind, address, offset=0):
    return builder.load(emit.pointer(builder, address, kind, offset), align=4)


def _spread(builder, address, offset=0, kind=f32x16.llvm):
    """The float32 at an address in every lane."""
    return emit.broadcast(builder, _load(builder, FLOAT32, address, offset), kind)


def several_of(count: int, kind: Vector = f32x16):
    """Two primitives for tuples of ``count`` vectors of a kind: load(address, stride), and store(address, stride, tuple)."""
    several = types.UniTuple(kind, count)

    def places(builder, address, stride):
        return [emit.strided(builder, address, stride, i) for i in range(count)]

    @intrinsic
    def load_several(_, address, stride):
        def code(builder, address, stride):
            return pack_array(builder, [_load(builder, kind.llvm, at) for at in places(builder, address, stride)])

        return emits(several(_i64, _i64), code)

    @intrinsic
    def store_several(_, address, stride, vectors):
        def code(builder, address, stride, vectors):
            for at, vector in zip(places(builder, address, stride), unpack_tuple(builder, vectors), strict=True):
                builder.store(vector, emit.pointer(builder, at, kind.llvm), align=4)

        return emits(types.void(_i64, _i64, several), code)

    return load_several, store_several


@intrinsic
def add_products(_, sums, rows, tokens):
    """add_products(s, w, x): to each of the sums of a tile, row after row, a row's vector times a token's."""

    def code(builder, *tuples):
        s, w, x = (unpack_tuple(builder, vectors) for vectors in tuples)
        pairs = ((row, token) for row in w for token in x)
        return pack_array(builder, [emit.fma(builder, *pair, c) for pair, c in zip(pairs, s, strict=True)])

    return emits(sums(sums, rows, tokens), code)


@intrinsic
def add_multiples(_, sums, vector, address, stride):
    """add_multiples(s, v, address, stride): s[0] + a * v, s[1] + b * v ... with float32 numbers that lie ``stride`` bytes
    apart."""

    def code(builder, sums, vector, address, stride):
        places = (emit.strided(builder, address, stride, i) for i in range(sums.type.count))
        pairs = zip(unpack_tuple(builder, sums), places, strict=True)
        return pack_array(builder, [emit.fma(builder, _spread(builder, at, 0, vector.type), vector, old) for old, at in pairs])

    return emits(sums(sums, vector, _i64, _i64), code)


@intrinsic
def add_each(_, sums, others):
    """add_each(s, o): s[0] + o[0], s[1] + o[1] ..."""

    def code(builder, *tuples):
        pairs = zip(*(unpack_tuple(builder, vectors) for vectors in tuples), strict=True)
        return pack_array(builder, [builder.fadd(*pair) for pair in pairs])

    return emits(sums(sums, others), code)


def add_dots_of(depth: int, largest: int, units: int, digits: tuple[int, ...] = (0,), signed=False, starts=False, words=False):
    """A primitive: add_dots(tier, totals, x, stride, weights, apart, scales, minima, sums).

    Returns totals + scales * dots + minima * sums, or if it ``starts`` at the sums, which are int32 then, totals + scales *
    (sums + dots); where ``units`` is not 0, dots are times a number each token has, which lies so many bytes behind its sum.
    totals: a tile of f32x16, each sixteen rows' tokens one after another. dots: of ``depth`` u8x64 at ``weights``, four weights
    of sixteen rows each, the next sixteen rows ``apart`` bytes on, and 4 * ``depth`` numbers of one digit or three, int8 at
    ``x`` + each of ``digits``, the next token's ``stride`` bytes on. With ``words`` both are int16, in twice the bytes: vectors
    hold two weights of each row, and numbers have one digit. scales, minima: an f32x16 for each sixteen rows. sums: the
    address of a float32, the next token's as for x.
    """

    at_once = most_pairs(largest, signed)

    @intrinsic
    def add_dots(_, tier, totals, x, stride, weights, apart, scales, minima, sums):
        def code(builder, _, old, x, stride, weights, apart, scales, minima, sums):
            old, scales, minima = (unpack_tuple(builder, vectors) for vectors in (old, scales, minima))
            tokens = len(old) // len(scales)

            def fma(*vectors):
                return emit.fma(builder, *vectors)

            def of(token, address):
                return emit.strided(builder, address, stride, token)

            def factors(k, digit):
                """(which total, codes, digits): what the ``k``-th vectors of weights are multiplied with."""
                rows = (emit.strided(builder, weights, apart, row) for row in range(len(scales)))
                vectors = [_load(builder, u8x64.llvm, row, 64 * k) for row in rows]
                for token in range(tokens):
                    four = emit.broadcast(builder, _load(builder, I32, of(token, x), digit + 4 * k), i32x16.llvm)
                    four = builder.bitcast(four, u8x64.llvm)
                    for at, codes in zip(range(token, len(old), tokens), vectors, strict=True):
                        yield at, codes, four

            def add(dots, digit):
                """dots with the products of a digit."""
                if words:
                    for k in range(2 * depth):
                        for at, codes, two in factors(k, digit):
                            two = (builder.bitcast(vector, i16x32.llvm) for vector in (codes, two))
                            dots[at] = emit_in_order(builder, emit_widened(builder, dots[at], *two))
                    return dots
                if at_once and tier.value == "avx2":
                    return add_pairs(dots, digit)
                for k in range(depth):
                    for at, codes, four in factors(k, digit):
                        dots[at] = emit_dot4(builder, tier, dots[at], codes, four, largest)
                return dots

            def add_pairs(dots, digit):
                """``add`` with sums of pairs, which are widened once for as many as fit 16 bits. Sums of one or two are widened
                one after another, for those of a tile do not fit AVX2's registers beside the dots."""
                for start in range(0, depth, at_once):
                    several = [factors(k, digit) for k in range(start, min(depth, start + at_once))]
                    sums = {}
                    for same in zip(*several, strict=True) if at_once < 3 else itertools.chain(*several):
                        for at, codes, four in same if at_once < 3 else [same]:
                            pairs = emit_pairs(builder, codes, four, signed)
                            sums[at] = emit_in_order(builder, builder.add(sums[at], pairs)) if at in sums else pairs
                        if at_once < 3:
                            dots[at] = emit_in_order(builder, emit_widened(builder, dots[at], sums.pop(at)))
                    for at, pairs in sums.items():
                        dots[at] = emit_in_order(builder, emit_widened(builder, dots[at], pairs))
                return dots

            def floats(dots):
                return [builder.sitofp(dot, f32x16.llvm) for dot in dots]

            def begun(token):
                return emit.broadcast(builder, _load(builder, I32, of(token, sums)), i32x16.llvm)

            def together(places):
                """The sums over up to two digits, which fit 32 bits; of three they would not."""
                first = [every(i32x16.llvm, 0)] * len(old)
                start = [begun(token) for token in range(tokens)] * len(scales) if starts else first
                dots = add([*(first if places[1:] else start)], places[0])
                for place in places[1:]:
                    dots = [builder.shl(dot, every(dot.type, 8)) for dot in dots]
                    dots = add([builder.add(*both) for both in zip(dots, start, strict=True)] if starts else dots, place)
                return floats(dots)

            dots = together(digits[-2:])
            if digits[2:]:
                dots = [fma(dot, every(dot.type, 2.0**16), rest) for dot, rest in zip(together(digits[:1]), dots, strict=True)]
            for at, dot in enumerate(dots):
                row, token = divmod(at, tokens)
                if units:
                    dot = builder.fmul(dot, _spread(builder, of(token, sums), units))
                old[at] = fma(dot, scales[row], old[at])
                if not (signed or starts):
                    old[at] = fma(_spread(builder, of(token, sums)), minima[row], old[at])
            return pack_array(builder, old)

        return emits(totals(tier, totals, *[_i64] * 4, scales, minima, _i64), code)

    return add_dots


@intrinsic
def sum_of_products(_, kind, vectors, address, stride, total):
    """sum_of_products(i32x16, v, address, stride, c): c + v[0] * a + v[1] * b + ..., with what lies ``stride`` bytes apart from
    the address on: vectors, or numbers (of types.float32) for all lanes."""
    of = kind.instance_type

    def code(builder, _, vectors, address, stride, result):
        for i, vector in enumerate(unpack_tuple(builder, vectors)):
            at = emit.strided(builder, address, stride, i)
            if isinstance(of, Vector):
                factor = builder.sitofp(_load(builder, of.llvm, at), result.type)
            else:
                factor = _spread(builder, at)
            result = emit.fma(builder, vector, factor, result)
        return result

    return emits(total(kind, vectors, _i64, _i64, total), code)


@intrinsic
def times_numbers(_, vectors, address, stride):
    """times_numbers(v, address, stride): v[0] * a, v[1] * b ... with float32 numbers that lie ``stride`` bytes apart."""

    def code(builder, vectors, address, stride):
        places = (emit.strided(builder, address, stride, i) for i in range(vectors.type.count))
        pairs = zip(unpack_tuple(builder, vectors), places, strict=True)
        return pack_array(builder, [builder.fmul(vector, _spread(builder, at)) for vector, at in pairs])

    return emits(vectors(vectors, _i64, _i64), code)


def emit_columns(builder, rows):
    """Four vectors of sixteen lanes from sixteen of four: their first lanes, their second ... Rows n, n + 4, n + 8 and n + 12
    share a vector, whose quarters are transposed by fours."""

    def joined(*parts):
        return emit.shuffle(builder, *parts, range(2 * parts[0].type.count))

    def woven(a, b, lanes):
        return emit.shuffle(builder, a, b, [quarter + lane for quarter in range(0, 16, 4) for lane in lanes])

    a, b, c, d = (joined(joined(rows[n], rows[n + 4]), joined(rows[n + 8], rows[n + 12])) for n in range(4))
    halves = ((woven(a, b, lanes), woven(c, d, lanes)) for lanes in ((0, 16, 1, 17), (2, 18, 3, 19)))
    return [woven(*two, lanes) for two in halves for lanes in ((0, 1, 16, 17), (2, 3, 18, 19))]


@intrinsic
def load_columns(_, address, stride):
    """load_columns(address, stride): four float32 of each of sixteen rows, which lie ``stride`` bytes apart, as four f32x16."""

    def code(builder, address, stride):
        rows = (emit.strided(builder, address, stride, row) for row in range(16))
        return pack_array(builder, emit_columns(builder, [_load(builder, f32x4.llvm, row) for row in rows]))

    return emits(types.UniTuple(f32x16, 4)(_i64, _i64), code)


def widen_pairs_of(signed: bool):
    """A primitive: widen_pairs(address, to): a u8x64 of four weights of sixteen rows as int16, two vectors of two weights of
    each row. ``signed``: they are int8."""

    @intrinsic
    def widen_pairs(_, address, to):
        def code(builder, address, to):
            both, four = i16x32.llvm, _load(builder, u8x64.llvm, address)
            for first in (0, 2):
                two = emit.shuffle(builder, four, four, [4 * row + first + n for row in range(16) for n in (0, 1)])
                builder.store(
                    (builder.sext if signed else builder.zext)(two, both), emit.pointer(builder, to, both, 32 * first)
                )

        return emits(types.void(_i64, _i64), code)

    return widen_pairs


@intrinsic
def transpose(_, vectors):
    """transpose(v): 16 vectors of lane 0 of all 16, lane 1 of all ..."""

    def code(builder, vectors):
        rows = unpack_tuple(builder, vectors)
        halves = [[lane + other for lane in range(start, start + 8) for other in (0, 16)] for start in (0, 8)]
        for _ in range(4):  # each riffles the vectors as a pack of cards
            rows = [emit.shuffle(builder, rows[i], rows[i + 8], half) for i in range(8) for half in halves]
        return pack_array(builder, rows)

    return emits(vectors(vectors), code)
