"""Primitives with a tier: the CPU's instruction where the tier has one, and otherwise the same result in plain LLVM."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kit.cpu.simd import emit
from kit.cpu.simd.emit import FLOAT16, FLOAT32, I16, I32, I64, emits, every, like
from kit.cpu.simd.vectors import Vector, f32x16
from kit.cpu.tasks import features

VNNI = {"avxvnni"}, {"avx512vnni", "avx512vl"}  # either gives dot products of bytes in 256 bits


def has_vnni() -> bool:
    """Whether the CPU has dot products of bytes in 256-bit vectors."""
    return any(needs <= features() for needs in VNNI)


@intrinsic
def half_to_float(_, tier, bits):
    """half_to_float(tier, h): IEEE half precision (the bits, a uint16 or a vector of them) as float32, exactly."""
    result = Vector(types.float32, bits.lanes) if isinstance(bits, Vector) else types.float32
    return emits(result(tier, bits), lambda builder, _, half: emit_half_to_float(builder, tier, half))


def emit_half_to_float(builder, tier, half):
    """The code of ``half_to_float``. tier: its type."""
    wide, narrow, word = (like(half.type, element) for element in (FLOAT32, FLOAT16, I32))
    if tier.value != "plain" and isinstance(half.type, ir.VectorType):
        return builder.fpext(builder.bitcast(half, narrow), wide)
    if tier.value == "avx512":
        # fpext of one lane would be inserted into a register that waits for an older result; this clears it first
        clear, floats = ir.Constant(ir.VectorType(I16, 16), [0] * 16), ir.VectorType(FLOAT32, 16)
        all_lanes, current, first = ir.Constant(I16, -1), ir.Constant(I32, 4), ir.Constant(I32, 0)
        args = builder.insert_element(clear, half, first), every(floats, 0.0), all_lanes, current
        return builder.extract_element(emit.call(builder, "llvm.x86.avx512.mask.vcvtph2ps.512", floats, *args), first)
    if tier.value == "avx2":
        # fpext of one half would be inserted into a register that waits for an older result
        first, zeros = ir.Constant(I32, 0), ir.Constant(ir.VectorType(I16, 8), [0] * 8)
        half = builder.extract_element(emit.opaque(builder, builder.insert_element(zeros, half, first)), first)
    if tier.value != "plain":
        return builder.fpext(builder.bitcast(half, narrow), wide)
    # exponent and fraction moved to float32's places are the number times 2^-112, subnormal halves included
    half = builder.zext(half, word)
    magnitude = builder.shl(builder.and_(half, every(word, 0x7FFF)), every(word, 13))
    scaled = builder.fmul(builder.bitcast(magnitude, wide), builder.bitcast(every(word, 0x77800000), wide))
    infinite = builder.icmp_unsigned(">=", magnitude, every(word, 0x7C00 << 13))
    exponent = builder.select(infinite, every(word, 0x7F800000), every(word, 0))
    sign = builder.shl(builder.and_(half, every(word, 0x8000)), every(word, 16))
    return builder.bitcast(builder.or_(builder.or_(builder.bitcast(scaled, word), exponent), sign), wide)


@intrinsic
def float_to_half(_, tier, vector):
    """float_to_half(tier, v): float32 lanes rounded to nearest even to half precision (bits, uint16 lanes)."""
    result = Vector(types.uint16, vector.lanes)

    def code(builder, _, value):
        if tier.value == "avx512" and vector.lanes == 16:  # LLVM does not stream what has the type of a half
            nearest, kept, all_lanes = ir.Constant(I32, 8), ir.Constant(result.llvm, None), ir.Constant(I16, -1)
            return emit.call(builder, "llvm.x86.avx512.mask.vcvtps2ph.512", result.llvm, value, nearest, kept, all_lanes)
        if tier.value != "plain":
            return builder.bitcast(builder.fptrunc(value, like(value.type, FLOAT16)), result.llvm)
        word = like(value.type, I32)
        bits = builder.bitcast(value, word)
        magnitude = builder.and_(bits, every(word, 0x7FFFFFFF))
        odd = builder.and_(builder.lshr(magnitude, every(word, 13)), every(word, 1))
        rebiased = builder.add(builder.add(magnitude, every(word, 0x0FFF - (112 << 23))), odd)
        # below 2^-14 adding 0.5 lets the adder round at 2^-24, the step of subnormal halves
        half = builder.bitcast(every(word, 0x3F000000), value.type)
        sum_ = builder.bitcast(builder.fadd(builder.bitcast(magnitude, value.type), half), word)
        subnormal = builder.sub(sum_, every(word, 0x3F000000))
        small = builder.icmp_unsigned("<", magnitude, every(word, 0x38800000))
        finite = builder.select(small, subnormal, builder.lshr(rebiased, every(word, 13)))
        nan = builder.icmp_unsigned(">", magnitude, every(word, 0x7F800000))
        large = builder.icmp_unsigned(">=", magnitude, every(word, 0x47800000))
        special = builder.select(nan, every(word, 0x7E00), every(word, 0x7C00))
        sign = builder.and_(builder.lshr(bits, every(word, 16)), every(word, 0x8000))
        return builder.trunc(builder.or_(builder.select(large, special, finite), sign), result.llvm)

    return emits(result(tier, vector), code)


@intrinsic
def float_to_bfloat(_, vector):
    """float_to_bfloat(v): float32 lanes rounded to nearest even to bfloat16 (bits, uint16 lanes); NaN is 0x7FC0."""
    result = Vector(types.uint16, vector.lanes)

    def code(builder, value):
        word = like(value.type, I32)
        bits = builder.bitcast(value, word)
        odd = builder.and_(builder.lshr(bits, every(word, 16)), every(word, 1))
        rounded = builder.lshr(builder.add(builder.add(bits, every(word, 0x7FFF)), odd), every(word, 16))
        nan = builder.fcmp_unordered("uno", value, value)
        return builder.trunc(builder.select(nan, every(word, 0x7FC0), rounded), result.llvm)

    return emits(result(vector), code)


@intrinsic
def floats_to_bfloats(_, tier, a, b):
    """floats_to_bfloats(tier, a, b): the same for two f32x16 with AVX512-BF16, which treats subnormals as zero; u16x32."""
    result = Vector(types.uint16, 32)

    def code(builder, _, a, b):
        kind = ir.FunctionType(result.llvm, [f32x16.llvm] * 2)  # LLVM does not stream what has the type of a bfloat
        return builder.asm(kind, "vcvtne2ps2bf16 $1, $2, $0", "=v,v,v", [a, b], side_effect=False)

    return emits(result(tier, a, b), code)


@intrinsic
def bfloat_to_float(_, bits):
    """bfloat_to_float(b): bfloat16 bits (uint16 lanes) as float32."""
    result = Vector(types.float32, bits.lanes)

    def code(builder, value):
        word = like(value.type, I32)
        return builder.bitcast(builder.shl(builder.zext(value, word), every(word, 16)), result.llvm)

    return emits(result(bits), code)


@intrinsic
def lookup(_, tier, table, index):
    """lookup(tier, table, i): table[i] lane by lane; 16 bytes or 32 words each, every index below 16 or 32."""

    def code(builder, _, table, index):
        lanes = table.type.count
        if tier.value == "avx512" and lanes == 32:
            return emit.call(builder, "llvm.x86.avx512.permvar.hi.512", table.type, table, index)
        if tier.value != "plain" and lanes == 16:
            name = "llvm.aarch64.neon.tbl1.v16i8" if tier.value == "neon" else "llvm.x86.ssse3.pshuf.b.128"
            return emit.call(builder, name, table.type, table, index)
        result = ir.Constant(table.type, ir.Undefined)
        for place in (ir.Constant(I32, lane) for lane in range(lanes)):
            picked = builder.extract_element(table, builder.extract_element(index, place))
            result = builder.insert_element(result, picked, place)
        return result

    return emits(table(tier, table, index), code)


@intrinsic
def dot4(_, tier, total, a, b):
    """dot4(tier, total, a, b): total (int32 lanes) plus, per lane, the sum of four products of a (uint8) and b (int8).

    Exact for every a and b. 16 int32 lanes take 64 bytes each of a and b; 8 take 32, 4 take 16.
    """
    return emits(total(tier, total, a, b), lambda builder, _, *args: emit_dot4(builder, tier, *args))


def emit_dot4(builder, tier, total, a, b, largest=255, signed=False):
    """The code of ``dot4``. tier: its type. largest: the largest number in a, a power of two less one. ``signed``: a is int8,
    on tiers whose vectors have at most 128 bits."""
    lanes = total.type.count
    if tier.value == "avx512":
        return emit.call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total.type, total, a, b)
    if tier.value == "avx2" and lanes % 8 == 0:
        return _in_parts(builder, 8, (total, a, b), lambda *part: _eight_lanes(builder, *part, largest))
    if tier.value == "neon" and "dotprod" in features():
        return _in_parts(builder, 4, (total, a, b), lambda *part: _four_lanes(builder, *part, signed or largest < 128))
    # in 32 bits, where nothing saturates (AVX2's multiply-add of bytes does)
    word = ir.VectorType(I32, 4 * lanes)
    product = builder.mul(builder.sext(a, word) if signed else builder.zext(a, word), builder.sext(b, word))
    for step in range(4):
        total = builder.add(total, emit.shuffle(builder, product, product, range(step, 4 * lanes, 4)))
    return total


def emit_lookup(builder, tier, table: list[int], index):
    """The code that takes a number below 16 to ``table``'s byte, lane by lane of uint8. tier: its type."""
    table = [*table, *[0] * (16 - len(table))]

    def constants(kind):
        return ir.Constant(kind, table * (kind.count // 16))

    def look_up(part):
        count = part.type.count
        name = {64: "avx512.pshuf.b.512", 32: "avx2.pshuf.b", 16: "ssse3.pshuf.b.128"}[count]
        name = "llvm.aarch64.neon.tbl1.v16i8" if tier.value == "neon" else f"llvm.x86.{name}"
        return emit.call(builder, name, part.type, constants(part.type), part)

    if tier.value != "plain":
        return _in_parts(builder, {"avx512": 64, "avx2": 32, "neon": 16}[tier.value], (index,), look_up)
    result = every(index.type, 0)
    for number, value in enumerate(table):
        result = builder.select(builder.icmp_unsigned("==", index, every(index.type, number)), every(index.type, value), result)
    return result


def _in_parts(builder, lanes: int, vectors, compute):
    """Apply ``compute`` to parts of the vectors: so many lanes of the first, and the same fraction of the others."""

    def part(vector, first):
        size = lanes * vector.type.count // vectors[0].type.count
        return emit.shuffle(builder, vector, vector, range(first * size // lanes, (first + lanes) * size // lanes))

    parts = [compute(*(part(v, first) for v in vectors)) for first in range(0, vectors[0].type.count, lanes)]
    while len(parts) > 1:
        both = range(2 * parts[0].type.count)
        parts = [emit.shuffle(builder, *two, both) for two in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def emit_opaque_on_arm(builder, tier, vector):
    """The same vector; on tier "neon" in a register, through a barrier for LLVM's optimizer."""

    def keep(part):
        return builder.asm(ir.FunctionType(part.type, [part.type]), "", "=w,0", [part], side_effect=False)

    width = 32 if isinstance(vector.type.element, ir.FloatType) else vector.type.element.width
    return _in_parts(builder, 128 // width, (vector,), keep) if tier.value == "neon" else vector


@intrinsic
def opaque(_, value):
    """opaque(v): the same number or vector, through a barrier that LLVM's optimizer cannot look through."""
    return emits(value(value), emit.opaque)


@intrinsic
def opaque_on_arm(_, tier, vector):
    """opaque_on_arm(tier, v): v, on tier "neon" through the barrier. Without it LLVM widens each lane again, or each number
    before it is broadcast."""
    return emits(vector(tier, vector), lambda builder, _, value: emit_opaque_on_arm(builder, tier, value))


def _four_lanes(builder, total, a, b, signed: bool):
    """With Arm's dot products of int8 and int8, or of uint8 and int8. Without I8MM, a = (a - 128) + 64 + 64: three signed dot
    products."""

    def dot(kind, total, a):
        return emit.call(builder, f"llvm.aarch64.neon.{kind}.v4i32.v16i8", total.type, total, a, b)

    if signed or "i8mm" in features():
        return dot("sdot" if signed else "usdot", total, a)
    half, flip = (every(a.type, number) for number in (64, 128))
    return dot("sdot", dot("sdot", dot("sdot", total, builder.xor(a, flip)), half), half)


def _eight_lanes(builder, total, a, b, largest: int):
    """With VNNI in 256-bit vectors if the CPU has it, else with AVX2's multiply-add.

    The multiply-add saturates at 16 bits, so a is split into two parts that cannot: the low seven bits (2 * 127 * -128 fits)
    and, if it can be set, the highest bit (2 * 128 * -128 just fits).
    """
    if has_vnni():
        return emit.call(builder, "llvm.x86.avx512.vpdpbusd.256", total.type, total, a, b)
    for bits in filter(None, (0x7F & largest, 0x80 & largest)):
        total = emit_widened(builder, total, emit_pairs(builder, builder.and_(a, every(a.type, bits)), b))
    return total


def most_pairs(largest: int, signed: bool) -> int:
    """How many results of ``emit_pairs`` add up in 16 bits, for codes of at most ``largest`` or int8; 0: not one, or VNNI adds
    four products in 32 bits."""
    return 0 if has_vnni() else 1 if signed else (2**15 - 1) // (2 * 128 * largest)


def emit_pairs(builder, a, b, signed=False):
    """Sums of two products in 16 bits with AVX2's multiply-add: a is uint8 of at most 127, or int8 if ``signed``, and then no
    number in b is -128."""

    def part(a, b):
        if signed:
            b = emit.call(builder, "llvm.x86.avx2.psign.b", b.type, b, a)
            a = emit.call(builder, "llvm.abs.v32i8", a.type, a, ir.Constant(ir.IntType(1), 0))
        return emit.call(builder, "llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(I16, 16), a, b)

    return _in_parts(builder, 32, (a, b), part)


def emit_in_order(builder, vector):
    """The same vector of 32 bytes or more, in registers, through a barrier for LLVM's optimizer: it would add up in a tree,
    whose sums do not fit AVX2's registers."""
    return _in_parts(builder, 256 // vector.type.element.width, (vector,), lambda part: emit.opaque(builder, part, True))


def emit_widened(builder, total, pairs, times=None):
    """total plus the sums of two neighbors each of ``pairs``, or of their products with ``times``, in 32 bits."""

    def part(total, pairs, times):
        return builder.add(total, emit.call(builder, "llvm.x86.avx2.pmadd.wd", total.type, pairs, times))

    return _in_parts(builder, 8, (total, pairs, times or every(pairs.type, 1)), part)


@intrinsic
def gather(_, table, slots):
    """gather(address, slots): the 32-bit words at these indices of a table in memory, lane by lane.

    Indices leave the register in pairs of 64 bits. On Zen 5, whose gather is microcode, that takes an eighth less time.
    """

    def code(builder, address, slots):
        base, count = emit.pointer(builder, address, I32), slots.type.count // 2
        pairs = builder.bitcast(slots, ir.VectorType(I64, count))
        result = ir.Constant(slots.type, ir.Undefined)
        for i in range(count):
            both = builder.extract_element(pairs, ir.Constant(I32, i))
            halves = builder.zext(builder.trunc(both, I32), I64), builder.lshr(both, ir.Constant(I64, 32))
            for j, place in enumerate(halves):
                entry = builder.load(builder.gep(base, [place]))
                result = builder.insert_element(result, entry, ir.Constant(I32, 2 * i + j))
        return result

    return emits(slots(table, slots), code)


@intrinsic
def expand(_, mask, words):
    """expand(mask, v): the first lanes of v in the lanes that the mask sets, in order; zero elsewhere (AVX-512)."""

    def code(builder, mask, value):
        name = f"llvm.x86.avx512.mask.expand.v{words.lanes}i32"
        return emit.call(builder, name, words.llvm, value, ir.Constant(value.type, None), mask)

    return emits(words(mask, words), code)


@intrinsic
def bits_set(_, number):
    """bits_set(n): the number of bits of an integer that are set."""

    def code(builder, value):
        return builder.zext(emit.call(builder, f"llvm.ctpop.i{value.type.width}", value.type, value), I64)

    return emits(types.int64(number), code)
