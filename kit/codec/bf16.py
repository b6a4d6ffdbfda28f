"""Lossless compression of bfloat16: exponents are coded in tiles, signs and mantissas stored as they are.

In trained weights the exponents have an entropy of some 2.6 bits, so about 11 of 16 bits remain: DFloat11 (Zhang et al.
2025) with rANS instead of Huffman codes.
"""

from dataclasses import dataclass

import numpy as np

from kit.codec.decoders import decode
from kit.codec.encoder import encode
from kit.codec.tiles import Tiles
from kit.errors import CodecError


@dataclass(frozen=True)
class BF16:
    """A compressed bfloat16 matrix: tiles of its exponents, and one byte of sign and mantissa for each value."""

    exponents: Tiles
    rest: np.ndarray  # (rows, columns) uint8: sign << 7 | mantissa

    @property
    def shape(self) -> tuple[int, int]:
        return self.exponents.shape

    @property
    def nbytes(self) -> int:
        """Bytes of both parts."""
        return self.exponents.nbytes + self.rest.nbytes


def pack_bf16(bits, name: str = "matrix", threads: int = 1) -> BF16:
    """Compress the bits (uint16, (rows, columns)) of a bfloat16 matrix; any bits, NaN and infinity included."""
    bits = np.asarray(bits)
    if bits.dtype != np.uint16 or bits.ndim != 2:
        raise CodecError(f"{name}: bfloat16 is coded from its bits, 2-D uint16, not {bits.ndim}-D {bits.dtype}")
    exponents = encode((bits >> 7).astype(np.uint8).view(np.int8), "kit", name, threads)
    return BF16(exponents, ((bits >> 8 & 0x80) | (bits & 0x7F)).astype(np.uint8))


def unpack_bf16(matrix: BF16, decoder: str = "interleaved", threads: int = 1) -> np.ndarray:
    """The bits, (rows, columns) uint16. CodecError as kit.codec.decode."""
    exponents = decode(matrix.exponents, decoder, threads=threads).view(np.uint8)
    rest = matrix.rest.astype(np.uint16)
    return (rest & 0x80) << 8 | exponents.astype(np.uint16) << 7 | (rest & 0x7F)
