"""linear: y = W x computed from blocks; the threads of kit.cpu.threads share the rows.

A task computes ``share`` rows of y for all tokens; its strides are the bytes from one token's x and y to the next.
"""

import threading

import numpy as np
import torch

from kit.cpu import gemm, gemm_codes, gemv_codes, gemv_values, threads
from kit.cpu.activations import DIGITS, layout_of, quantize, quantizing, record_bytes, rounded
from kit.cpu.simd.tiers import tier
from kit.cpu.superblocks import SUPERBLOCK
from kit.cpu.tasks import Step
from kit.errors import QuantError
from kit.gguf.formats import FORMATS, Format
from kit.products import PRODUCTS

ACTIVATIONS = tuple(PRODUCTS)
_LEAST, _MOST = 2**14, 256  # a task takes at least so many bytes of blocks, and there are at most so many tasks
FEWEST = min(gemm.FEWEST, gemm_codes.FEWEST)  # tokens for which another kernel than that of a decode may be faster
MANY_TOKENS = 128  # whose arithmetic is worth a dequantization
_TILE = 16  # rows of several tokens: what every kernel's tiles divide


def linear(blocks: np.ndarray, qtype: str, x: torch.Tensor, activations: str = "float32") -> torch.Tensor:
    """x (tokens, columns) float32 times the matrix of ``blocks`` (rows, bytes per row) uint8: (tokens, rows) float32.

    qtype: any format of the cpu backend of kit.dequantize, or I8. activations: "int8" rounds x to eight bits, with one scale
    per as many columns as the format's ``activations`` field says; "int16" rounds to 16 bits, "float32" to 24 (errors of at
    most 2^-15 and 2^-22 of the largest of 256 columns), for up to 17 tokens, and for more where gemm_codes is faster than
    floats. For F32, F16 and BF16 weights, x is not rounded. Raises QuantError.
    """
    format = _check(blocks, qtype, x, activations)
    (rows, row_bytes), (tokens, columns) = blocks.shape, x.shape
    x, y = x.contiguous(), torch.empty(tokens, rows, dtype=torch.float32, device="cpu")
    if tokens == 1:
        threads.run_all(Activations(x).product(blocks, qtype, y, activations))
        return y
    share = _share(blocks, tokens)
    if tokens >= gemm_codes.FEWEST and _in_bytes(format, activations):
        x, share = gemm_codes.records(x, format, activations), gemm_codes.share(rows)
        kernel = gemm_codes.kernel(format, tier(), gemm_codes.multiplier(), activations)
    elif format.codes is not None and (DIGITS[activations] == 1 or tokens < 2 * gemm.FEWEST):
        x, kernel = quantize(x, *_layout(format, activations)), gemv_codes.kernel(format, tier(), activations)
    elif tokens >= gemm.FEWEST:
        x, kernel = gemm.padded(x), gemm.kernel(format, tier())
    else:
        kernel = gemv_values.kernel(format, tier())
    arguments = dict(x=x, x_stride=x.stride(0) * x.itemsize, y=y, y_stride=4 * rows, tokens=tokens)
    arguments |= dict(blocks=blocks, row_bytes=row_bytes, rows=rows, columns=columns, share=share)
    threads.run(kernel, arguments, -(-rows // share))
    return y


def in_pieces(qtype: str, x: torch.Tensor, activations: str) -> torch.Tensor | None:
    """None, or if torch multiplies as many tokens faster from dequantized pieces of the matrix, x as it is to be multiplied."""
    format = FORMATS[qtype]
    if len(x) < MANY_TOKENS or _in_bytes(format, activations):
        return None
    return rounded(x, format.activations) if DIGITS[activations] == 1 and format.codes else x


def rounds_prompts(activations: str) -> bool:
    """Whether a prompt's products round activations to this type, as those of a decode do. On tiers where products of floats
    are faster for many tokens, 16 bits are kept for a decode alone."""
    return DIGITS[activations] == 1 or gemm_codes.multiplier() in gemm_codes.FASTER[DIGITS[activations]]


def _layout(format, activations):
    """The layout of activations for kit.cpu.gemv_codes."""
    return layout_of(format, gemv_codes.digits(format, tier().value, activations))


def _in_bytes(format, activations) -> bool:
    """Whether kit.cpu.gemm_codes multiplies this many tokens."""
    return format.codes is not None and gemm_codes.multiplier() in gemm_codes.FASTER[DIGITS[activations]]


class Activations:
    """The activations of one token for the steps of a program: x, and its records, which are made once per layout."""

    def __init__(self, x: torch.Tensor):
        self.x, self._made = x, {}

    def product(self, blocks: np.ndarray, qtype: str, y: torch.Tensor, activations: str) -> list[Step]:
        """The steps after which y (1, rows) holds the product of the matrix and x, as ``linear`` computes it."""
        format = _check(blocks, qtype, self.x, activations)
        (rows, row_bytes), columns, steps = blocks.shape, self.x.shape[1], []
        if format.codes is not None:
            x, steps = self._quantized(_layout(format, activations))
            kernel = gemv_codes.kernel(format, tier(), activations)
        else:
            x, kernel = self.x, gemv_values.kernel(format, tier())
        share = _share(blocks, 1)
        arguments = dict(x=x, x_stride=0, y=y, y_stride=0, tokens=1)
        arguments |= dict(blocks=blocks, row_bytes=row_bytes, rows=rows, columns=columns, share=share)
        return [*steps, (kernel, arguments, -(-rows // share))]

    def _quantized(self, layout) -> tuple[torch.Tensor, list[Step]]:
        """x's records; adds the step that makes them if there is none."""
        (_, digits, _), columns, steps = layout, self.x.shape[1], []
        if layout not in self._made:
            self._made[layout] = records = torch.empty(
                -(-columns // SUPERBLOCK), record_bytes(digits), dtype=torch.uint8, device="cpu"
            )
            parts = dict(zip(("order", "digits", "group"), layout, strict=True)) | dict(sums=16, in_units=0)
            arguments = dict(x=self.x, columns=columns, tokens=1, records=records) | parts
            steps = [(quantizing(), arguments, 1)]
        return self._made[layout], steps


class Product:
    """``linear`` for one token, recorded once for a matrix with a fixed address: a call copies x, runs, and copies y."""

    def __init__(self, blocks: np.ndarray, qtype: str, activations: str = "float32"):
        format = FORMATS[qtype]
        with torch.inference_mode(False):
            columns = blocks.shape[1] // format.block_bytes * format.block_elements
            self._x, self._y = (torch.empty(1, n, dtype=torch.float32, device="cpu") for n in (columns, len(blocks)))
        self._program, self._one = threads.Program(), threading.Lock()
        for step in Activations(self._x).product(blocks, qtype, self._y, activations):
            self._program.add(*step)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (1, columns) float32 -> (1, rows)."""
        with self._one:
            self._x.copy_(x)
            self._program.run()
            return self._y.clone()


def _share(blocks, tokens) -> int:
    """Rows per task."""
    share = max(_LEAST, blocks.nbytes // _MOST) // max(1, blocks.shape[1]) + 1
    return share if tokens == 1 else share + -share % _TILE


def _check(blocks, qtype, x, activations) -> Format:
    """The format; QuantError if the kernels do not support the arguments."""
    format = FORMATS.get(qtype)
    if format is None or not _knows(format):
        raise QuantError(
            f"fused does not support {qtype!r}; it supports {', '.join(f.name for f in FORMATS.values() if _knows(f))}"
        )
    if activations not in ACTIVATIONS:
        raise QuantError(f"activations {activations!r} is not one of {', '.join(ACTIVATIONS)}")
    if blocks.ndim != 2 or blocks.dtype != np.uint8 or not blocks.flags.c_contiguous:
        raise QuantError(f"{qtype}: blocks must be C-contiguous uint8 (rows, bytes), not {blocks.dtype} {blocks.shape}")
    if x.ndim != 2 or x.dtype != torch.float32 or x.device.type != "cpu":
        raise QuantError(f"{qtype}: x must be float32 (tokens, columns) on the CPU, not {x.dtype} {tuple(x.shape)}")
    if blocks.shape[1] != format.nbytes(x.shape[1]) or x.shape[1] % format.block_elements:
        raise QuantError(f"{qtype}: rows of {blocks.shape[1]} bytes do not match x with {x.shape[1]} columns")
    return format


def _knows(format):
    return format.codes or format.name in gemv_values.NUMBERS
