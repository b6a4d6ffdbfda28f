"""The ggml block formats as data: one row a format with its name, its id, the layout of a block and the meaning of its bits.

A row of a tensor is a whole number of blocks. ``layout`` is the block as a packed little-endian numpy dtype with the
field names of ggml-common.h: ``raw.view(FORMATS["Q4_K"].layout)["dmin"]`` reads a field, and ``.byteswap()`` of such a
view turns blocks of a big-endian file into native ones. A field has the width at which ggml reads it, which is wider
than the struct declares for ``qh`` of Q5_0 and Q5_1, ``qs`` of IQ2_XXS, ``signs`` of IQ3_XXS and ``scales`` of IQ1_M.

``codes`` and ``scales`` define a weight. Every backend, and the encoder of synthetic files, reads them:

    weight[i] = scale[i // group] * code[i] (+- minimum[i // group])        in float32, rounded after each operation
"""

import re
from dataclasses import dataclass
from math import gcd

import numpy as np


def place(i, run: int, bits: int):
    """(byte, lowest bit) of integer ``i`` of a plane that begins at bit 0: numbers or arrays. Numba compiles it, too."""
    return i // (run * (8 // bits)) * run + i % run, i // run % (8 // bits) * bits


@dataclass(frozen=True)
class Plane:
    """Integers of ``bits`` each, packed into the bytes of a field; unsigned, except 8-bit ones in a field of signed bytes.

    "qs 32x4": the low 4 bits of 32 bytes are integers 0 to 31, their high 4 bits the next 32, and the next 32 bytes hold
    the next 64. "qs[7::8] 8x4>>4" reads bytes 7, 15, 23 ... of the field, from bit 4 up. Steps of scales may list
    ``places`` instead: (byte, bit) of the first of each ``run`` integers, which are in as many bytes, a multiple of four.
    """

    field: str
    run: int
    bits: int
    start: int = 0
    step: int = 1
    shift: int = 0
    places: tuple[tuple[int, int], ...] = ()

    def place(self, i: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(byte of the field, lowest bit) of integers ``i``."""
        if self.places:
            byte, shift = np.array(self.places)[i // self.run].T
            return byte + i % self.run, shift
        byte, shift = place(i, self.run, self.bits)
        return self.start + self.step * byte, self.shift + shift


@dataclass(frozen=True)
class Bits:
    """Integers of ``bits`` each, ``count`` in a little-endian word of ``word`` bytes. The first begins at bit ``shift``, each
    other one ``apart`` bits above the one before. Words are ``step`` bytes apart, the first at byte ``start`` of the field.

    ``Bits("qs", 7, word=4, count=4, start=4, step=8)`` has four integers of 7 bits in a word of 4 bytes at byte 4, 12, 20 ...
    """

    field: str
    bits: int
    word: int = 1
    count: int = 1
    start: int = 0
    step: int | None = None  # ``word`` if not given
    apart: int | None = None  # ``bits`` if not given; 0: ``count`` integers are the same bits
    shift: int = 0

    def __post_init__(self):
        for name, default in (("step", self.word), ("apart", self.bits)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)


@dataclass(frozen=True)
class Grid:
    """Codes by rows of gguf-py's grid of the format, 4 or 8 (``lanes``) weights each. ``index``: the bits of a row's number,
    the lowest first. For each eight weights ``signs`` has a bit a weight that makes it negative, or seven, and the eighth makes
    their number even; or ``minus`` one bit: the weights are eight times the row, less 1 where it is set, plus 1 where not.
    """

    lanes: int
    index: tuple[Bits, ...]
    signs: Bits | None
    minus: Bits | None


@dataclass(frozen=True)
class Numbers:
    """Numbers in a block: ``values[n]``, or ``(n - less) * times``. ``planes`` hold the bits of n, the lowest ones first; or
    the numbers are rows of a ``grid``, whose ``less`` is the bias alone: the least power of two above every code, for a larger
    one costs products accuracy.

    What neither can describe is read by ``function``, which every backend defines under that name.
    """

    planes: tuple[Plane, ...] = ()
    less: float = 0
    times: float = 1
    values: tuple[int, ...] = ()
    grid: Grid | None = None
    function: str = ""

    def below(self, plane: int) -> int:
        """Bits of n that the planes before ``plane`` hold."""
        return sum(other.bits for other in self.planes[:plane])

    @property
    def listed(self) -> bool:
        """Whether planes list their places."""
        return any(plane.places for plane in self.planes)

    @property
    def bits(self) -> int:
        """The bits of all planes."""
        return self.below(len(self.planes))


@dataclass(frozen=True)
class Scales:
    """The scale of ``group`` weights: d times a number of ``steps``, or d alone; and with dmin their minimum, likewise.

    The steps of the minima follow those of the scales. d and dmin are float16. With ``table``, d is one byte a group and
    the scale is TABLES[table][byte]. Other layouts are read by ``function``, as in Numbers.
    """

    group: int
    d: str = "d"
    dmin: str = ""
    sign: int = 0  # of the minimum: +1 (added), -1 (subtracted), or 0 for none
    steps: Numbers | None = None
    table: str = ""
    function: str = ""


@dataclass(frozen=True)
class Format:
    """One ggml type: name, id, weights in a block, layout of a block; codes and scales if the kit itself dequantizes it."""

    name: str
    id: int
    block_elements: int
    layout: np.dtype
    codes: Numbers | None = None
    scales: Scales | None = None

    def __post_init__(self):
        if self.codes:
            parts = [(self.codes, self.block_elements)]
            if steps := self.scales.steps:
                parts.append((steps, self.groups * (2 if self.scales.dmin else 1)))
            elif not (self.scales.table or self.scales.function or self.groups == 1):
                raise ValueError(f"{self.name}: one scale a block, but groups of {self.scales.group} of its weights: add steps")
            for numbers, count in parts:
                if numbers.listed and (numbers is self.codes or not self._fours(numbers, count)):
                    raise ValueError(f"{self.name}: {numbers.planes} do not list places of {count} unsigned steps in fours")
                for plane, (byte, shift, *_) in zip(numbers.planes, self.bit_fields(numbers, np.arange(count)), strict=True):
                    end = self.at(plane.field) + self.layout[plane.field].itemsize
                    if byte.max() >= end or shift.max() + plane.bits > 8:
                        raise ValueError(f"{self.name}: {count} integers do not fit {plane}")

    def _fours(self, numbers: Numbers, count: int) -> bool:
        """Whether all planes list places of integers that fit a byte, four or more at a time."""
        fours = all(plane.run % 4 == 0 and plane.run * len(plane.places) == count for plane in numbers.planes)
        return fours and numbers.bits <= 8 and not any(map(self.signed, numbers.planes))

    def __hash__(self):
        return hash(self.name)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.layout.itemsize

    @property
    def bits_per_weight(self) -> float:
        """Storage of a weight in bits, its share of the scales included."""
        return 8 * self.block_bytes / self.block_elements

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` weights, a multiple of ``block_elements``."""
        return elements // self.block_elements * self.block_bytes

    @property
    def groups(self) -> int:
        """Groups in a block, each with its scale."""
        return self.block_elements // self.scales.group

    @property
    def activations(self) -> int:
        """Activations that share a scale when they are rounded to eight bits, as those of ggml's ``vec_dot_type``: 32 (Q8_0,
        Q8_1) for blocks of fewer than 256 weights, else 256 (Q8_K)."""
        return 32 if self.block_elements < 256 else 256

    @property
    def bias(self) -> int:
        """The number which, added to any code, gives 0 to 255."""
        if self.codes.values:
            return -min(self.codes.values)
        return 128 if any(map(self.signed, self.codes.planes)) else self.codes.less

    def at(self, field: str) -> int:
        """Offset of a field in the block, bytes."""
        return self.layout.fields[field][1]

    def bit_fields(self, numbers: Numbers, i: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, int, int]]:
        """The plan by which every backend unpacks integers ``i``, those of a block and of the blocks behind it. A plane gives
        (byte, shift, mask, below): ``(bytes[byte] >> shift & mask) << below``, bytes being int8. They are all or-ed."""
        places, (block, i) = [], np.divmod(i, self.block_elements)
        for n, plane in enumerate(numbers.planes):
            byte, shift = plane.place(i)
            mask = -1 if self.signed(plane) else (1 << plane.bits) - 1
            places.append((block * self.block_bytes + self.at(plane.field) + byte, shift, mask, numbers.below(n)))
        return places

    def alignment(self, plane: Plane) -> int:
        """1, 2 or 4: alignment in bytes of the plane's first byte in every block, when the first block is aligned to 4."""
        return gcd(self.block_bytes, self.at(plane.field) + plane.start, 4)

    def signed(self, plane: Plane) -> bool:
        """Whether a plane's integers are signed."""
        return plane.bits == 8 and self.layout.fields[plane.field][0].base.kind == "i"


def numbers(planes: str = "", **rest) -> Numbers:
    """Numbers from text such as ``"qs 32x4, qh[8:] 32x1"``: each plane's field (or a slice of its bytes), run and bits."""
    pattern, read = re.compile(r"(\w+)(?:\[(\d+)::?(\d+)?\])? (\d+)x(\d+)(?:>>(\d+))?"), []
    for part in planes.split(", ") if planes else ():
        field, start, step, run, bits, shift = pattern.fullmatch(part).groups()
        read.append(Plane(field, int(run), int(bits), int(start or 0), int(step or 1), int(shift or 0)))
    return Numbers(tuple(read), **rest)


def grid(lanes: int, *index: Bits, signs: Bits | None = None, minus: Bits | None = None, less: float) -> Numbers:
    """Numbers by a Grid; see there."""
    return Numbers(grid=Grid(lanes, index, signs, minus), less=less)


def scales(group: int, fields: str = "d", steps: Numbers | None = None, table: str = "", function: str = "") -> Scales:
    """Scales from text: ``"d"``, ``"d + m"`` or ``"d - dmin"`` name the fields of scale and minimum."""
    d, sign, dmin = fields.split() if " " in fields else (fields, "", "")
    return Scales(group, d, dmin, {"": 0, "+": 1, "-": -1}[sign], steps, table, function)


def row(name: str, id: int, block_elements: int, fields: str, codes=None, scales=None) -> Format:
    """A Format. ``fields``: name and numpy type (with a count) of each field in order, ``"d <f2, qs 16u1"``."""
    layout = np.dtype([tuple(field.split()) for field in fields.split(", ")])
    return Format(name, id, block_elements, layout, codes, scales)


# Scales of one byte, halved because the values of E2M1 below are doubled.
_BYTE = np.arange(256)
_E4M3 = np.where(_BYTE & 0x78, 8 + (_BYTE & 7), 2 * (_BYTE & 7)) * np.exp2((_BYTE >> 3 & 15) - 11.0)
TABLES = {
    "E8M0": np.exp2(_BYTE - 128.0).astype(np.float32),
    "UE4M3": np.where(_BYTE == 127, 0, _E4M3).astype(np.float32),  # 127 is NaN elsewhere
}
_NL4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

# Q4_K, Q5_K: eight scales, then eight minima, of six bits each in twelve bytes. The last four of each have their lowest four
# bits in bytes 8 to 11, and their upper two above the first four.
_SIX_BITS = Numbers((
    Plane("scales", 4, 4, places=((0, 0), (8, 0), (4, 0), (8, 4))),
    Plane("scales", 4, 2, places=((0, 4), (0, 6), (4, 4), (4, 6))),
))  # fmt: skip

# name, id, weights a block, fields, codes, scales. Super-blocks of the K, IQ and TQ families hold 256 weights.
_TABLE = (
    row("F32", 0, 1, "x <f4"),
    row("F16", 1, 1, "x <f2"),
    row("Q4_0", 2, 32, "d <f2, qs 16u1", numbers("qs 16x4", less=8), scales(32)),
    row("Q4_1", 3, 32, "d <f2, m <f2, qs 16u1", numbers("qs 16x4"), scales(32, "d + m")),
    row("Q5_0", 6, 32, "d <f2, qh <u4, qs 16u1", numbers("qs 16x4, qh 1x1", less=16), scales(32)),
    row("Q5_1", 7, 32, "d <f2, m <f2, qh <u4, qs 16u1", numbers("qs 16x4, qh 1x1"), scales(32, "d + m")),
    row("Q8_0", 8, 32, "d <f2, qs 32i1", numbers("qs 32x8"), scales(32)),
    row("Q8_1", 9, 32, "d <f4, s <f4, qs 32i1"),  # the size that gguf-py states; ggml itself now holds d and s in f16
    row("Q2_K", 10, 256, "scales 16u1, qs 64u1, d <f2, dmin <f2",
        numbers("qs 32x2"), scales(16, "d - dmin", numbers("scales 16x4"))),
    row("Q3_K", 11, 256, "hmask 32u1, qs 64u1, scales 12u1, d <f2",
        numbers("qs 32x2, hmask 32x1", less=4), scales(16, "d", numbers("scales 8x4, scales[8:] 4x2", less=32))),
    row("Q4_K", 12, 256, "d <f2, dmin <f2, scales 12u1, qs 128u1",
        numbers("qs 32x4"), scales(32, "d - dmin", _SIX_BITS)),
    row("Q5_K", 13, 256, "d <f2, dmin <f2, scales 12u1, qh 32u1, qs 128u1",
        numbers("qs 32x4, qh 32x1"), scales(32, "d - dmin", _SIX_BITS)),
    row("Q6_K", 14, 256, "ql 128u1, qh 64u1, scales 16i1, d <f2",
        numbers("ql 64x4, qh 32x2", less=32), scales(16, "d", numbers("scales 16x8"))),
    row("Q8_K", 15, 256, "d <f4, qs 256i1, bsums 16<i2"),
    row("IQ2_XXS", 16, 256, "d <f2, qs 16<u4",
        grid(8, Bits("qs", 8, word=4, count=4, step=8), signs=Bits("qs", 7, word=4, count=4, start=4, step=8), less=64),
        scales(32, "d", numbers("qs[7::8] 8x4>>4", less=-0.5, times=0.25))),
    row("IQ2_XS", 17, 256, "d <f2, qs 32<u2, scales 8u1",
        grid(8, Bits("qs", 9, word=2), signs=Bits("qs", 7, word=2, shift=9), less=64),
        scales(16, "d", numbers("scales 1x4", less=-0.5, times=0.25))),
    row("IQ3_XXS", 18, 256, "d <f2, qs 64u1, signs 8<u4",
        grid(4, Bits("qs", 8), signs=Bits("signs", 7, word=4, count=4), less=64),
        scales(32, "d", numbers("signs[3::4] 8x4>>4", less=-0.5, times=0.5))),
    row("IQ1_S", 19, 256, "d <f2, qs 32u1, qh 8<u2",
        grid(8, Bits("qs", 8), Bits("qh", 3, word=2, count=4), minus=Bits("qh", 1, word=2, count=4, apart=0, shift=15), less=9),
        scales(32, "d", numbers("qh[1::2] 8x3>>4", less=-0.5, times=0.25))),
    row("IQ4_NL", 20, 32, "d <f2, qs 16u1", numbers("qs 16x4", values=_NL4), scales(32)),
    row("IQ3_S", 21, 256, "d <f2, qs 64u1, qh 8u1, signs 32u1, scales 4u1",
        grid(4, Bits("qs", 8), Bits("qh", 1, count=8), signs=Bits("signs", 8), less=16),
        scales(32, "d", numbers("scales 1x4", less=-0.5, times=2))),
    row("IQ2_S", 22, 256, "d <f2, qs 32u1, signs 32u1, qh 8u1, scales 8u1",
        grid(8, Bits("qs", 8), Bits("qh", 2, count=4), signs=Bits("signs", 8), less=64),
        scales(16, "d", numbers("scales 1x4", less=-0.5, times=0.25))),
    row("IQ4_XS", 23, 256, "d <f2, scales_h <u2, scales_l 4u1, qs 128u1",
        numbers("qs 16x4", values=_NL4), scales(32, "d", numbers("scales_l 1x4, scales_h 1x2", less=32))),
    row("I8", 24, 1, "x i1"),
    row("I16", 25, 1, "x <i2"),
    row("I32", 26, 1, "x <i4"),
    row("I64", 27, 1, "x <i8"),
    row("F64", 28, 1, "x <f8"),
    row("IQ1_M", 29, 256, "qs 32u1, qh 16u1, scales 4<u2",
        grid(8, Bits("qs", 8), Bits("qh", 3, count=2, apart=4), minus=Bits("qh", 1, count=2, apart=4, shift=3), less=9),
        scales(16, function="iq1_m")),
    row("BF16", 30, 1, "x <u2"),
    row("TQ1_0", 34, 256, "qs 48u1, qh 4u1, d <f2", numbers(function="tq1_0", less=1), scales(256)),
    row("TQ2_0", 35, 256, "qs 64u1, d <f2", numbers("qs 32x2", less=1), scales(256)),
    row("MXFP4", 39, 32, "e u1, qs 16u1", numbers("qs 16x4", values=_E2M1), scales(32, "e", table="E8M0")),
    row("NVFP4", 40, 64, "d 4u1, qs 32u1", numbers("qs 8x4", values=_E2M1), scales(16, "d", table="UE4M3")),
    row("Q1_0", 41, 128, "d <f2, qs 16u1", numbers("qs 1x1", values=(-1, 1)), scales(128)),
    row("Q2_0", 42, 64, "d <f2, qs 16u1", numbers("qs 1x2", less=1), scales(64)),
)  # fmt: skip

FLOATS = "F32", "F16", "BF16"  # a block is a number


def described(format: Format) -> bool:
    """Whether the row says what blocks mean: weights by codes and scales, or a number."""
    return format.codes is not None or format.name in FLOATS


DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a dequantized weight
FORMATS: dict[str, Format] = {format.name: format for format in _TABLE}
BY_ID: dict[int, Format] = {format.id: format for format in _TABLE}
