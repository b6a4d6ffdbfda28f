"""The ggml block formats as data: every type that a GGUF file can name, its block laid out as in the C struct.

A row of a tensor is a whole number of blocks. ``layout`` is the block as a packed little-endian numpy dtype with the
field names of ggml-common.h: ``raw.view(FORMATS["Q4_K"].layout)["dmin"]`` reads a field, and ``.byteswap()`` of such a
view turns blocks of a big-endian file into native ones. A field has the width at which ggml reads it, which is wider
than the struct declares for ``qh`` of Q5_0 and Q5_1, ``qs`` of IQ2_XXS, ``signs`` of IQ3_XXS and ``scales`` of IQ1_M.
"""

from typing import NamedTuple

import numpy as np


class Format(NamedTuple):
    """One ggml type: its name and id, the weights in a block, and the block's layout."""

    name: str
    id: int
    block_elements: int
    layout: np.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.layout.itemsize

    @property
    def bits_per_weight(self) -> float:
        """Bits of storage for each weight, scales included."""
        return 8 * self.block_bytes / self.block_elements

    def nbytes(self, elements: int) -> int:
        """Bytes that ``elements`` weights take; elements must be a multiple of ``block_elements``."""
        return elements // self.block_elements * self.block_bytes


def _block(fields: str) -> np.dtype:
    """The packed dtype of ``"d <f2, qs 16u1"``: name and numpy type (with its count) of each field, in order."""
    return np.dtype([tuple(field.split()) for field in fields.split(", ")])


# name, id, weights a block, fields. Super-blocks of the K, IQ and TQ families hold 256 weights.
_TABLE = (
    ("F32", 0, 1, "x <f4"),
    ("F16", 1, 1, "x <f2"),
    ("Q4_0", 2, 32, "d <f2, qs 16u1"),
    ("Q4_1", 3, 32, "d <f2, m <f2, qs 16u1"),
    ("Q5_0", 6, 32, "d <f2, qh <u4, qs 16u1"),
    ("Q5_1", 7, 32, "d <f2, m <f2, qh <u4, qs 16u1"),
    ("Q8_0", 8, 32, "d <f2, qs 32i1"),
    ("Q8_1", 9, 32, "d <f4, s <f4, qs 32i1"),  # the size that gguf-py states; ggml itself now holds d and s in f16
    ("Q2_K", 10, 256, "scales 16u1, qs 64u1, d <f2, dmin <f2"),
    ("Q3_K", 11, 256, "hmask 32u1, qs 64u1, scales 12u1, d <f2"),
    ("Q4_K", 12, 256, "d <f2, dmin <f2, scales 12u1, qs 128u1"),
    ("Q5_K", 13, 256, "d <f2, dmin <f2, scales 12u1, qh 32u1, qs 128u1"),
    ("Q6_K", 14, 256, "ql 128u1, qh 64u1, scales 16i1, d <f2"),
    ("Q8_K", 15, 256, "d <f4, qs 256i1, bsums 16<i2"),
    ("IQ2_XXS", 16, 256, "d <f2, qs 16<u4"),
    ("IQ2_XS", 17, 256, "d <f2, qs 32<u2, scales 8u1"),
    ("IQ3_XXS", 18, 256, "d <f2, qs 64u1, signs 8<u4"),
    ("IQ1_S", 19, 256, "d <f2, qs 32u1, qh 8<u2"),
    ("IQ4_NL", 20, 32, "d <f2, qs 16u1"),
    ("IQ3_S", 21, 256, "d <f2, qs 64u1, qh 8u1, signs 32u1, scales 4u1"),
    ("IQ2_S", 22, 256, "d <f2, qs 32u1, signs 32u1, qh 8u1, scales 8u1"),
    ("IQ4_XS", 23, 256, "d <f2, scales_h <u2, scales_l 4u1, qs 128u1"),
    ("I8", 24, 1, "x i1"),
    ("I16", 25, 1, "x <i2"),
    ("I32", 26, 1, "x <i4"),
    ("I64", 27, 1, "x <i8"),
    ("F64", 28, 1, "x <f8"),
    ("IQ1_M", 29, 256, "qs 32u1, qh 16u1, scales 4<u2"),
    ("BF16", 30, 1, "x <u2"),
    ("TQ1_0", 34, 256, "qs 48u1, qh 4u1, d <f2"),
    ("TQ2_0", 35, 256, "qs 64u1, d <f2"),
    ("MXFP4", 39, 32, "e u1, qs 16u1"),
    ("NVFP4", 40, 64, "d 4u1, qs 32u1"),
    ("Q1_0", 41, 128, "d <f2, qs 16u1"),
)

FORMATS: dict[str, Format] = {name: Format(name, id, n, _block(fields)) for name, id, n, fields in _TABLE}
BY_ID: dict[int, Format] = {format.id: format for format in FORMATS.values()}
