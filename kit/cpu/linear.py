"""linear: y = W x computed from blocks; the threads of kit.cpu.threads share the rows.

A task computes ``share`` rows of y for all tokens; its strides are the bytes from one token's x and y to the next.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kit.cpu import crossings, gemm, gemm_codes, gemv_values, threads
from kit.cpu.activations import DIGITS, quantize_step, record_bytes, rounded
from kit.cpu.buffers import ARENA
from kit.cpu.crossings import FLOATS, TILES
from kit.cpu.simd.tiers import tier
from kit.cpu.superblocks import SUPERBLOCK
from kit.cpu.tasks import Each, Step, address_of
from kit.errors import QuantError
from kit.gguf.formats import FORMATS, Format
from kit.products import PRODUCTS

_LEAST, _MOST = 2**14, 256  # a task takes at least so many bytes of blocks, and there are at most so many tasks
FEWEST = min(gemm.FEWEST, gemm_codes.FEWEST)  # tokens for which another kernel than that of a decode may be faster
MANY_TOKENS = 128  # whose arithmetic is worth a dequantization
_TILE = 16  # rows of several tokens: what every kernel's tiles divide


def linear(blocks: np.ndarray, qtype: str, x: torch.Tensor, activations: str = "float32") -> torch.Tensor:
    """x (tokens, columns) float32 times the matrix of ``blocks`` (rows, bytes per row) uint8: (tokens, rows) float32.

    qtype: any format of the cpu backend of kit.dequantize, or I8. activations: "int8" rounds x to eight bits, with one scale
    per as many columns as ``gemm_codes.together`` says; "int16" rounds to 16 bits, "float32" to 24 (errors of at
    most 2^-15 and 2^-22 of the largest of 256 columns), where that is faster than floats: kit.cpu.crossings measures which
    kernel multiplies so many tokens. For F32, F16 and BF16 weights, x is not rounded. Raises QuantError.
    """
    _check(blocks, qtype, x, activations)
    x, y = x.contiguous(), ARENA.results.empty((len(x), len(blocks)), torch.float32)
    if len(x):
        threads.run_all(Activations(x).product(blocks, qtype, y, activations))
    return y


def in_pieces(qtype: str, tokens: int, activations: str) -> bool:
    """Whether torch multiplies as many tokens faster from dequantized pieces of the matrix, with ``Activations.rounded``."""
    format = FORMATS[qtype]
    return tokens >= MANY_TOKENS and not _in_bytes(format, activations) and not _in_strips(format, activations)


def rounds_alike(activations: str) -> bool:
    """Whether a prompt's products round activations to this type as those of a decode do. Eight bits of a prompt have finer
    scales; 16 bits are kept for a decode alone on tiers where products of floats are faster for many tokens."""
    return _by_codes(activations) == (DIGITS[activations] > 1)


def _in_bytes(format, activations) -> bool:
    """Whether kit.cpu.gemm_codes multiplies this many tokens."""
    return format.codes is not None and _by_codes(activations)


def _by_codes(activations) -> bool:
    return gemm_codes.multiplier(activations) in gemm_codes.FASTER[DIGITS[activations]]


def _in_strips(format, activations) -> bool:
    """Whether kit.cpu.gemm multiplies this many tokens as they are, faster than torch does."""
    return tier().value in gemm.FASTER and (DIGITS[activations] > 1 or format.codes is None)


class Activations:
    """The activations of some tokens for the steps of a program: x (tokens, columns), and its records, which are made once per
    layout. ``recorded``: the steps run again for other numbers in x. ``alike``: products have the bits of a token's alone."""

    def __init__(self, x: torch.Tensor, recorded: bool = False, alike: bool = False):
        self.x, self._recorded, self._alike, self._made = x, recorded, alike, {}

    def product(self, blocks: np.ndarray, qtype: str, y: torch.Tensor, activations: str) -> list[Step]:
        """The steps after which y (tokens, rows) holds the product of the matrix and x, as ``linear`` computes it."""
        format = _check(blocks, qtype, self.x, activations)
        (rows, row_bytes), (tokens, columns), steps, x = blocks.shape, self.x.shape, [], self.x
        name, kernel, layout = crossings.way(format, activations, tokens, self._recorded, self._alike)
        if layout:
            x, steps = self._quantized(layout)
        share = _share(name, rows, row_bytes, tokens, activations)
        arguments = dict(x=x, x_stride=4 * self.x.stride(0), y=y, y_stride=4 * y.stride(0), tokens=tokens)
        arguments |= dict(blocks=blocks, row_bytes=row_bytes, rows=rows, columns=columns, share=share)
        return [*steps, (kernel, arguments, -(-rows // share))]

    @staticmethod
    def several(x: torch.Tensor, sizes: Sequence[int]) -> "_Several":
        """``products`` of several matrices of one shape, each with tokens of its own: ``sizes``, one after another in x."""
        return _Several(x, sizes)

    def rounded(self, qtype: str, activations: str) -> torch.Tensor:
        """x as torch is to multiply it by dequantized weights."""
        format = FORMATS[qtype]
        return rounded(self.x, format.activations) if DIGITS[activations] == 1 and format.codes else self.x

    def _quantized(self, layout: dict[str, int]) -> tuple[torch.Tensor, list[Step]]:
        """x's records; adds the step that makes them if there is none."""
        (tokens, columns), steps, key = self.x.shape, [], tuple(layout.items())
        if key not in self._made:
            size = -(-columns // SUPERBLOCK), tokens, record_bytes(layout["digits"])
            self._made[key] = records = ARENA.results.empty(size, torch.uint8)
            steps = [quantize_step(self.x, columns, tokens, records, layout)]
        return self._made[key], steps


class _Several:
    """Steps that differ in numbers alone are made at a time: one by one they took a fifth of a mixture's prompt."""

    def __init__(self, x: torch.Tensor, sizes: Sequence[int]):
        self._x, self._sizes, self._records, self._layouts = x.contiguous(), np.array(sizes, np.int64), None, {}
        self._first = np.cumsum(self._sizes) - self._sizes

    def products(self, blocks: np.ndarray, places: Sequence[int], qtype: str, activations: str) -> torch.Tensor:
        """(all tokens, rows) of the matrices at some ``places`` of blocks (matrices, rows, bytes per row), as ``linear``
        computes them."""
        format, (_, rows, row_bytes), columns = _check(blocks[0], qtype, self._x, activations), blocks.shape, self._x.shape[1]
        y = ARENA.results.empty((len(self._x), rows), torch.float32)
        ways = [crossings.way(format, activations, n) for n in self._sizes.tolist()]
        at, steps, products = address_of(blocks) + np.array(places, np.int64) * blocks.strides[0], [], []
        records = self._quantized([way.layout for way in ways], steps)
        for way, own in _alike(ways):
            n = self._sizes[own]
            share = _share(way.name, rows, row_bytes, int(n[0]), activations)
            x = records[own] if way.layout else address_of(self._x) + 4 * columns * self._first[own]
            to = address_of(y) + 4 * rows * self._first[own]
            arguments = dict(x=Each(x), x_stride=4 * columns, y=Each(to), y_stride=4 * rows, tokens=Each(n))
            arguments |= dict(blocks=Each(at[own]), row_bytes=row_bytes, rows=rows, columns=columns, share=share)
            products.append((way.kernel, arguments, -(-rows // share)))
        threads.run_all([threads.together(part) for part in (steps, products) if part])
        return y

    def _quantized(self, layouts: list[dict[str, int]], steps: list[Step]) -> np.ndarray:
        """The addresses of the records of each matrix's tokens; adds to ``steps`` those that make them."""
        if layouts != self._layouts:
            columns, groups = self._x.shape[1], _alike(layouts)
            each = self._sizes * -(-columns // SUPERBLOCK)
            for layout, own in groups:
                each[own] *= record_bytes(layout["digits"]) if layout else 0
            self._layouts, self._records = layouts, ARENA.results.empty((int(each.sum()),), torch.uint8)
            self._at = address_of(self._records) + np.cumsum(each) - each
            for layout, own in groups:
                if layout:
                    x, n = address_of(self._x) + 4 * columns * self._first[own], Each(self._sizes[own])
                    steps.append(quantize_step(Each(x), columns, n, Each(self._at[own]), layout))
        return self._at


def _alike(rows: list) -> list[tuple[Any, list[int]]]:
    """(a row, the places of all that are equal to it)."""
    found = []
    for place, row in enumerate(rows):
        own = next((places for other, places in found if other is row or other == row), None)
        if own is None:
            found.append((row, [place]))
        else:
            own.append(place)
    return found


class Product:
    """``linear`` for one token, recorded once for a matrix with a fixed address: a call copies x, runs, and copies y."""

    def __init__(self, blocks: np.ndarray, qtype: str, activations: str = "float32"):
        format = FORMATS[qtype]
        with torch.inference_mode(False):
            columns = blocks.shape[1] // format.block_bytes * format.block_elements
            self._x, self._y = (torch.empty(1, n, dtype=torch.float32, device="cpu") for n in (columns, len(blocks)))
        self._program, self._one = threads.Program(), threading.Lock()
        for step in Activations(self._x, recorded=True).product(blocks, qtype, self._y, activations):
            self._program.add(*step)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (1, columns) float32 -> (1, rows)."""
        with self._one:
            self._x.copy_(x)
            self._program.run()
            return self._y.clone()


def _share(name, rows, row_bytes, tokens, activations) -> int:
    """Rows per task."""
    if name == FLOATS:
        return gemm.share(rows)
    if name == TILES:
        return gemm_codes.share(rows, activations, tokens)
    share = max(_LEAST, rows * row_bytes // _MOST) // max(1, row_bytes) + 1
    return share if tokens == 1 else share + -share % _TILE


def _check(blocks, qtype, x, activations) -> Format:
    """The format; QuantError if the kernels do not support the arguments."""
    format = FORMATS.get(qtype)
    if format is None or not _knows(format):
        raise QuantError(
            f"fused does not support {qtype!r}; it supports {', '.join(f.name for f in FORMATS.values() if _knows(f))}"
        )
    if activations not in PRODUCTS:
        raise QuantError(f"activations {activations!r} is not one of {', '.join(PRODUCTS)}")
    if blocks.ndim != 2 or blocks.dtype != np.uint8 or not blocks.flags.c_contiguous:
        raise QuantError(f"{qtype}: blocks must be C-contiguous uint8 (rows, bytes), not {blocks.dtype} {blocks.shape}")
    if x.ndim != 2 or x.dtype != torch.float32 or x.device.type != "cpu":
        raise QuantError(f"{qtype}: x must be float32 (tokens, columns) on the CPU, not {x.dtype} {tuple(x.shape)}")
    if blocks.shape[1] != format.nbytes(x.shape[1]) or x.shape[1] % format.block_elements:
        raise QuantError(f"{qtype}: rows of {blocks.shape[1]} bytes do not match x with {x.shape[1]} columns")
    return format


def _knows(format):
    return format.codes or format.name in gemv_values.NUMBERS
