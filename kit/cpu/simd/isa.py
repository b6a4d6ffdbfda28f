"""Primitives with a tier: the CPU's instruction where the tier has one, and otherwise the same result in plain LLVM."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kit.cpu.simd.vectors import Vector, f32x16
from kit.cpu.tasks import features

VNNI = {"avxvnni"}, {"avx512vnni", "avx512vl"}  # either gives dot products of bytes in 256 bits


def call_intrinsic(builder, name: str, result: ir.Type, args):
    """A call of the LLVM intrinsic ``name``."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def opaque(builder, value):
    """The same vector or integer, of which LLVM knows nothing."""
    register = "=x,0" if isinstance(value.type, ir.VectorType) else "=r,0"
    return builder.asm(ir.FunctionType(value.type, [value.type]), "", register, [value], side_effect=False)


def _like(kind: ir.Type, bits: ir.Type):
    """A function from an integer to the constant of it in every lane of ``kind``, whose lanes are ``bits`` wide."""
    if isinstance(kind, ir.VectorType):
        return lambda value: ir.Constant(ir.VectorType(bits, kind.count), [value] * kind.count)
    return lambda value: ir.Constant(bits, value)


def _with_lanes(kind: ir.Type, element: ir.Type) -> ir.Type:
    return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element


_I16, _I32, _F32, _F16 = ir.IntType(16), ir.IntType(32), ir.FloatType(), ir.HalfType()


@intrinsic
def half_to_float(_, tier, bits):
    """half_to_float(tier, h): IEEE half precision (the bits, a uint16 or a vector of them) as float32, exactly."""
    result = Vector(types.float32, bits.lanes) if isinstance(bits, Vector) else types.float32

    def emit(context, builder, signature, args):
        half = args[1]
        wide, narrow = _with_lanes(half.type, _F32), _with_lanes(half.type, _F16)
        if tier.value != "plain" and isinstance(bits, Vector):
            return builder.fpext(builder.bitcast(half, narrow), wide)
        if tier.value == "avx512":
            # fpext of one lane would be inserted into a register that waits for an older result; this clears it first
            clear, word = ir.Constant(ir.VectorType(_I16, 16), [0] * 16), ir.VectorType(_F32, 16)
            every, current, first = ir.Constant(_I16, -1), ir.Constant(_I32, 4), ir.Constant(_I32, 0)
            args = [builder.insert_element(clear, half, first), ir.Constant(word, [0.0] * 16), every, current]
            return builder.extract_element(call_intrinsic(builder, "llvm.x86.avx512.mask.vcvtph2ps.512", word, args), first)
        if tier.value == "avx2":
            # fpext of one half would be inserted into a register that waits for an older result
            first, zeros = ir.Constant(_I32, 0), ir.Constant(ir.VectorType(_I16, 8), [0] * 8)
            half = builder.extract_element(opaque(builder, builder.insert_element(zeros, half, first)), first)
        if tier.value != "plain":
            return builder.fpext(builder.bitcast(half, narrow), wide)
        # exponent and fraction moved to float32's places are the number times 2^-112, subnormal halves included
        word, constant = _with_lanes(half.type, _I32), _like(half.type, _I32)
        half = builder.zext(half, word)
        magnitude = builder.shl(builder.and_(half, constant(0x7FFF)), constant(13))
        scaled = builder.fmul(builder.bitcast(magnitude, wide), builder.bitcast(constant(0x77800000), wide))
        infinite = builder.icmp_unsigned(">=", magnitude, constant(0x7C00 << 13))
        exponent = builder.select(infinite, constant(0x7F800000), constant(0))
        sign = builder.shl(builder.and_(half, constant(0x8000)), constant(16))
        return builder.bitcast(builder.or_(builder.or_(builder.bitcast(scaled, word), exponent), sign), wide)

    return result(tier, bits), emit


@intrinsic
def float_to_half(_, tier, vector):
    """float_to_half(tier, v): float32 lanes rounded to nearest even to half precision (bits, uint16 lanes)."""
    result = Vector(types.uint16, vector.lanes)

    def emit(context, builder, signature, args):
        value = args[1]
        if tier.value == "avx512" and vector.lanes == 16:  # LLVM does not stream what has the type of a half
            nearest, kept, every = ir.Constant(_I32, 8), ir.Constant(result.llvm, None), ir.Constant(_I16, -1)
            return call_intrinsic(builder, "llvm.x86.avx512.mask.vcvtps2ph.512", result.llvm, [value, nearest, kept, every])
        if tier.value != "plain":
            return builder.bitcast(builder.fptrunc(value, _with_lanes(value.type, _F16)), result.llvm)
        word, constant = _with_lanes(value.type, _I32), _like(value.type, _I32)
        bits = builder.bitcast(value, word)
        magnitude = builder.and_(bits, constant(0x7FFFFFFF))
        odd = builder.and_(builder.lshr(magnitude, constant(13)), constant(1))
        rebiased = builder.add(builder.add(magnitude, constant(0x0FFF - (112 << 23))), odd)
        # below 2^-14 adding 0.5 lets the adder round at 2^-24, the step of subnormal halves
        half = builder.bitcast(constant(0x3F000000), value.type)
        subnormal = builder.sub(
            builder.bitcast(builder.fadd(builder.bitcast(magnitude, value.type), half), word), constant(0x3F000000)
        )
        small = builder.icmp_unsigned("<", magnitude, constant(0x38800000))
        finite = builder.select(small, subnormal, builder.lshr(rebiased, constant(13)))
        nan = builder.icmp_unsigned(">", magnitude, constant(0x7F800000))
        large = builder.icmp_unsigned(">=", magnitude, constant(0x47800000))
        special = builder.select(nan, constant(0x7E00), constant(0x7C00))
        sign = builder.and_(builder.lshr(bits, constant(16)), constant(0x8000))
        return builder.trunc(builder.or_(builder.select(large, special, finite), sign), result.llvm)

    return result(tier, vector), emit


@intrinsic
def float_to_bfloat(_, vector):
    """float_to_bfloat(v): float32 lanes rounded to nearest even to bfloat16 (bits, uint16 lanes); NaN is 0x7FC0."""
    result = Vector(types.uint16, vector.lanes)

    def emit(context, builder, signature, args):
        word, constant = _with_lanes(args[0].type, _I32), _like(args[0].type, _I32)
        bits = builder.bitcast(args[0], word)
        odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
        rounded = builder.lshr(builder.add(builder.add(bits, constant(0x7FFF)), odd), constant(16))
        nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(nan, constant(0x7FC0), rounded), result.llvm)

    return result(vector), emit


@intrinsic
def floats_to_bfloats(_, tier, a, b):
    """floats_to_bfloats(tier, a, b): the same for two f32x16, by AVX512-BF16, which takes subnormals for zero; u16x32."""
    result = Vector(types.uint16, 32)

    def emit(context, builder, signature, args):
        kind = ir.FunctionType(result.llvm, [f32x16.llvm] * 2)  # LLVM does not stream what has the type of a bfloat
        return builder.asm(kind, "vcvtne2ps2bf16 $1, $2, $0", "=v,v,v", args[1:], side_effect=False)

    return result(tier, a, b), emit


@intrinsic
def bfloat_to_float(_, bits):
    """bfloat_to_float(b): bfloat16 bits (uint16 lanes) as float32."""
    result = Vector(types.float32, bits.lanes)

    def emit(context, builder, signature, args):
        constant = _like(args[0].type, _I32)
        word = builder.shl(builder.zext(args[0], _with_lanes(args[0].type, _I32)), constant(16))
        return builder.bitcast(word, result.llvm)

    return result(bits), emit


@intrinsic
def lookup(_, tier, table, index):
    """lookup(tier, table, i): table[i] lane by lane; 16 bytes or 32 words each, every index below 16 or 32."""

    def emit(context, builder, signature, args):
        if tier.value == "avx512" and table.lanes == 32:
            return call_intrinsic(builder, "llvm.x86.avx512.permvar.hi.512", args[1].type, args[1:])
        if tier.value != "plain" and table.lanes == 16:
            name = "llvm.aarch64.neon.tbl1.v16i8" if tier.value == "neon" else "llvm.x86.ssse3.pshuf.b.128"
            return call_intrinsic(builder, name, args[1].type, args[1:])
        result = ir.Constant(args[1].type, ir.Undefined)
        for lane in range(table.lanes):
            place = ir.Constant(_I32, lane)
            picked = builder.extract_element(args[1], builder.extract_element(args[2], place))
            result = builder.insert_element(result, picked, place)
        return result

    return table(tier, table, index), emit


@intrinsic
def dot4(_, tier, total, a, b):
    """dot4(tier, total, a, b): total (int32 lanes) + the sums of four products each of a (uint8) and b (int8) lanes.

    Exact for every a and b. 16 int32 lanes take 64 bytes each of a and b; 8 take 32, 4 take 16.
    """

    def emit(context, builder, signature, args):
        return emit_dot4(builder, tier, *args[1:])

    return total(tier, total, a, b), emit


def emit_dot4(builder, tier, total, a, b, largest=255, signed=False):
    """The code of ``dot4``; tier: the type; largest: of the numbers in a, a power of two less one; if ``signed``, they are
    int8, for tiers without vectors of more than 128 bits."""
    lanes = total.type.count
    if tier.value == "avx512":
        return call_intrinsic(builder, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total.type, [total, a, b])
    if tier.value == "avx2" and lanes % 8 == 0:
        return _in_parts(builder, 8, (total, a, b), lambda *part: _eight_lanes(builder, *part, largest))
    if tier.value == "neon" and "dotprod" in features():
        return _in_parts(builder, 4, (total, a, b), lambda *part: _four_lanes(builder, *part, signed or largest < 128))
    # in 32 bits, where nothing saturates (AVX2's multiply-add of bytes does)
    word = ir.VectorType(_I32, 4 * lanes)
    product = builder.mul(builder.sext(a, word) if signed else builder.zext(a, word), builder.sext(b, word))
    for step in range(4):
        every = ir.Constant(ir.VectorType(_I32, lanes), [4 * lane + step for lane in range(lanes)])
        total = builder.add(total, builder.shuffle_vector(product, product, every))
    return total


def _in_parts(builder, lanes: int, vectors, compute):
    """``compute`` of so many lanes of the first vector, and of as large a part of the others, at a time."""

    def part(vector, first):
        size = lanes * vector.type.count // vectors[0].type.count
        every = list(range(first * size // lanes, (first + lanes) * size // lanes))
        return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, size), every))

    parts = [compute(*(part(v, first) for v in vectors)) for first in range(0, vectors[0].type.count, lanes)]
    while len(parts) > 1:
        every = ir.Constant(ir.VectorType(_I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [builder.shuffle_vector(*two, every) for two in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def emit_kept(builder, tier, vector):
    """A vector as it is, but of tier "neon" in registers: LLVM knows no more from what it was made."""

    def keep(part):
        return builder.asm(ir.FunctionType(part.type, [part.type]), "", "=w,0", [part], side_effect=False)

    width = 32 if isinstance(vector.type.element, ir.FloatType) else vector.type.element.width
    return _in_parts(builder, 128 // width, (vector,), keep) if tier.value == "neon" else vector


@intrinsic
def kept(_, tier, vector):
    """kept(tier, v): v, which LLVM takes as it is. It would widen each lane anew, or each number before it is spread."""
    return vector(tier, vector), lambda context, builder, signature, args: emit_kept(builder, tier, args[1])


def _four_lanes(builder, total, a, b, signed: bool):
    """By Arm's dot products: of int8 and int8, or of uint8 and int8, for which a CPU without I8MM takes three of the first:
    a - 128 is an int8, and 128 is 64 and 64."""

    def dot(kind, total, a):
        return call_intrinsic(builder, f"llvm.aarch64.neon.{kind}.v4i32.v16i8", total.type, [total, a, b])

    if signed or "i8mm" in features():
        return dot("sdot" if signed else "usdot", total, a)
    half, flip = (ir.Constant(a.type, [number] * 16) for number in (64, 128))
    return dot("sdot", dot("sdot", dot("sdot", total, builder.xor(a, flip)), half), half)


def _eight_lanes(builder, total, a, b, largest: int):
    """By VNNI in 256 bits where the CPU has it, else by AVX2's multiply-add.

    That of bytes saturates at 16 bits, so a is taken in two parts with which it cannot: the low seven bits (2 * 127 * -128
    fits) and, where it can be set, the highest (2 * 128 * -128 just fits).
    """
    if any(needs <= features() for needs in VNNI):
        return call_intrinsic(builder, "llvm.x86.avx512.vpdpbusd.256", total.type, [total, a, b])
    bytes_, words = (ir.VectorType(ir.IntType(bits), 256 // bits) for bits in (8, 16))
    for bits in filter(None, (0x7F & largest, 0x80 & largest)):
        part = builder.and_(a, ir.Constant(bytes_, [bits] * 32))
        pairs = call_intrinsic(builder, "llvm.x86.avx2.pmadd.ub.sw", words, [part, b])
        fours = call_intrinsic(builder, "llvm.x86.avx2.pmadd.wd", total.type, [pairs, ir.Constant(words, [1] * 16)])
        total = builder.add(total, fours)
    return total


@intrinsic
def look_up(_, table, slots):
    """look_up(address, slots): the 32-bit words at these places of a table, lane by lane.

    Lanes leave the register in pairs, as 64 bits. On Zen 5, which runs a gather as microcode, that is an eighth faster.
    """
    pair = ir.IntType(64)

    def emit(context, builder, signature, args):
        base = builder.inttoptr(args[0], _I32.as_pointer())
        pairs = builder.bitcast(args[1], ir.VectorType(pair, slots.lanes // 2))
        result = ir.Constant(args[1].type, ir.Undefined)
        for i in range(slots.lanes // 2):
            both = builder.extract_element(pairs, ir.Constant(_I32, i))
            halves = builder.zext(builder.trunc(both, _I32), pair), builder.lshr(both, ir.Constant(pair, 32))
            for j, place in enumerate(halves):
                entry = builder.load(builder.gep(base, [place]))
                result = builder.insert_element(result, entry, ir.Constant(_I32, 2 * i + j))
        return result

    return slots(table, slots), emit


@intrinsic
def expand(_, mask, words):
    """expand(mask, v): the first lanes of v in the lanes that the mask sets, in order; zero elsewhere (AVX-512)."""

    def emit(context, builder, signature, args):
        name = f"llvm.x86.avx512.mask.expand.v{words.lanes}i32"
        return call_intrinsic(builder, name, words.llvm, [args[1], ir.Constant(args[1].type, None), args[0]])

    return words(mask, words), emit


@intrinsic
def bits_set(_, number):
    """bits_set(n): how many bits of an integer are set."""

    def emit(context, builder, signature, args):
        kind = args[0].type
        return builder.zext(call_intrinsic(builder, f"llvm.ctpop.i{kind.width}", kind, args), ir.IntType(64))

    return types.int64(number), emit
