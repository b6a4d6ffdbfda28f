"""The codings of a matrix as int8 tiles and a second array beside them: "int8" (quantized) and "bf16" (lossless).

In trained weights the exponents of bfloat16 have an entropy of some 2.6 bits, so about 11 of 16 bits remain: DFloat11 (Zhang
et al. 2025) with rANS instead of Huffman codes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from kit.codec.decoders import decode
from kit.codec.encoder import encode
from kit.codec.tiles import Tiles
from kit.errors import CodecError
from kit.gguf.formats import FORMATS
from kit.quants import dequantize

_CHUNK_WEIGHTS = 1 << 24  # weights that are dequantized at a time: 64 MiB of float32


class Coding(NamedTuple):
    """``split(blocks, qtype, name)``: the matrix that goes to tiles, int8 (rows, columns), and the array ``beside``.

    ``nbytes``: bytes of a weight in the unpacked matrix. ``part``, ``part_qtype``,
    ``part_dtype``: name, ggml type and numpy type of ``beside``, which has the first ``part_axes`` axes of the matrix.
    """

    split: Callable
    nbytes: int
    part: str
    part_qtype: str
    part_dtype: str
    part_axes: int


@dataclass(frozen=True)
class Coded:
    """A compressed matrix. ``coding``: a name in CODINGS; ``beside``: see there."""

    coding: str
    tiles: Tiles
    beside: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.tiles.shape

    @property
    def nbytes(self) -> int:
        """Bytes of tiles and ``beside``."""
        return self.tiles.nbytes + self.beside.nbytes


def pack(coding: str, blocks: np.ndarray, qtype: str, name: str = "matrix", threads: int = 1) -> Coded:
    """Compress ggml blocks (rows, bytes of a row). For bf16, of type BF16: any bits, NaN and infinity included."""
    values, beside = CODINGS[coding].split(blocks, qtype, name)
    return Coded(coding, encode(values, "kit", name, threads), beside)


def unpack(matrix: Coded, decoder: str = "interleaved", threads: int = 1, out=None) -> torch.Tensor:
    """The int8 values (in `out`, if given) or the bfloat16 weights, (rows, columns). CodecError as kit.codec.decode."""
    values = decode(matrix.tiles, decoder, out, threads)
    if matrix.coding == "int8":
        return torch.from_numpy(values)
    rest = matrix.beside.astype(np.uint16)
    bits = (rest & 0x80) << 8 | values.view(np.uint8).astype(np.uint16) << 7 | (rest & 0x7F)
    return torch.from_numpy(bits).view(torch.bfloat16)


def quantize(rows: torch.Tensor, name: str = "matrix", per: str = "row") -> tuple[np.ndarray, np.ndarray]:
    """(int8 (rows, columns), float32 scales (rows,)) of a float matrix: weight = scale * q, rounded to nearest even.

    q lies in [-127, 127]; the largest weight of a row gives its scale. `per`: "row", or "tensor" for equal scales (report
    004). CodecError names the position of a NaN or an infinity.
    """
    rows = rows.float()
    most = rows.abs().amax(dim=1) if rows.shape[1] else rows.new_zeros(rows.shape[0])
    if not most.isfinite().all():
        row = int((~most.isfinite()).nonzero()[0])
        column = int((~rows[row].isfinite()).nonzero()[0])
        raise CodecError(
            f"{name}: the weight in row {row}, column {column} is {rows[row, column]:.0f}: fix the source file first"
        )
    if per == "tensor":
        most = most.max().expand(rows.shape[0])
    scales = most / 127
    scales[scales < torch.finfo(torch.float32).tiny] = 1  # rows of zeros, or of numbers too small to be scaled
    return (rows / scales[:, None]).round_().to(torch.int8).numpy(), scales.numpy()


def _split_int8(blocks, qtype, name):
    """The quantized matrix and its scales, float32 (rows,); some rows are dequantized at a time."""
    columns = blocks.shape[1] // FORMATS[qtype].block_bytes * FORMATS[qtype].block_elements
    values, scales = np.empty((len(blocks), columns), np.int8), np.empty(len(blocks), np.float32)
    rows = max(1, _CHUNK_WEIGHTS // columns)
    for first in range(0, len(blocks), rows):
        part = slice(first, first + rows)
        values[part], scales[part] = quantize(dequantize(blocks[part], qtype), name)
    return values, scales


def _split_bf16(blocks, qtype, name):
    """The exponents, and sign << 7 | mantissa, uint8 (rows, columns)."""
    bits = np.ascontiguousarray(blocks).view("<u2")
    return (bits >> 7).astype(np.uint8).view(np.int8), (bits >> 8 & 0x80 | bits & 0x7F).astype(np.uint8)


CODINGS = {"int8": Coding(_split_int8, 1, "scales", "F32", "<f4", 1), "bf16": Coding(_split_bf16, 2, "rest", "I8", "u1", 2)}
