"""Linear layers y = W x over a weight source: the table of variants that a Transformer uses by name."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from kit.cpu.simd.vectors import jit
from kit.cpu.threads import torch_alone
from kit.errors import ModelError, known
from kit.gguf.names import blocks_of
from kit.products import PRODUCTS
from kit.quants import dequantize


class Variant(NamedTuple):
    """A variant of the linear layer.

    ``apply(weights, name, x)``: x (tokens, in) float32 -> a new tensor (tokens, out) float32. ``nbytes(weights, name)``:
    bytes of weights that one application reads. ``own_threads``: it runs on the kit's threads, so torch's must be
    idle but for its own products. ``activations``: the type of activations in a variant that reads blocks, else "".
    """

    apply: Callable
    nbytes: Callable
    own_threads: bool = False
    activations: str = ""


def _matmul(weights, name, x):
    """One torch product with the dequantized weight; x is converted to the weight's type."""
    weight = weights[name]
    with torch_alone(False):
        return (x.to(weight.dtype) @ weight.T).float()


GEMV_MAX_TOKENS = 16  # up to this many tokens the kit's kernel, which reads a weight once, is faster than torch's product
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def _dequantized(weights, name, x):
    """The dequantized weight, by the kit's kernel for a few tokens, by a torch product for many."""
    if len(x) > GEMV_MAX_TOKENS:
        return _matmul(weights, name, x)
    from kit.cpu.linear import linear

    weight = weights[name]
    return linear(weight.view(torch.uint8).numpy(), _NAMES[weight.dtype], x)


def _in_loops(kernel):
    """An ``apply`` from a kernel that adds to a numpy array, on one thread."""
    kernel = jit(kernel)

    def apply(weights, name, x):
        weight = weights[name].float()
        out = x.new_zeros(x.shape[0], weight.shape[0])
        kernel(weight.numpy(), x.numpy(), out.numpy())
        return out

    return apply


def _rows(weight, x, out):
    """Row by row: the inner loop reads consecutive weights."""
    for token in range(x.shape[0]):
        for row in range(weight.shape[0]):
            for column in range(weight.shape[1]):
                out[token, row] += weight[row, column] * x[token, column]


def _columns(weight, x, out):
    """Column by column, as in the reports' projections: the inner loop strides by the length of a row."""
    for token in range(x.shape[0]):
        for column in range(weight.shape[1]):
            for row in range(weight.shape[0]):
                out[token, row] += weight[row, column] * x[token, column]


def _held(weights, name):
    return weights.nbytes(name)


def _fused(weights, name, x, activations):
    """From the file's blocks, without the cache."""
    from kit.cpu.linear import Activations, in_pieces, linear  # here, because other variants do not need the kernels

    blocks, qtype = weights.blocks(name), weights.info(name).qtype
    if not in_pieces(qtype, len(x), activations):
        return linear(blocks, qtype, x, activations)
    return by_rows(blocks, lambda rows: dequantize(rows, qtype), Activations(x).rounded(qtype, activations))


_PIECE = 2**21  # weights in floating point at a time


def by_rows(matrix, numbers: Callable, x: torch.Tensor) -> torch.Tensor:
    """x (tokens, in) float32 -> (tokens, out) by torch products with ``numbers(some rows)``, float32, so that never the whole
    matrix (out, ...) is in memory as floats."""
    y, rows = x.new_empty(len(x), len(matrix)), -(-_PIECE // x.shape[1])
    for start in range(0, len(matrix), rows):
        weights = numbers(matrix[start : start + rows])
        with torch_alone(len(x) <= GEMV_MAX_TOKENS):
            torch.mm(x, weights.T, out=y[:, start : start + rows])
    return y


def _stored(weights, name):
    return blocks_of(weights.file, name).nbytes


LINEAR = {
    "dequantized": Variant(_dequantized, _held, own_threads=True),
    "matmul": Variant(_matmul, _held),
    "loop": Variant(_in_loops(_rows), _held),
    "strided": Variant(_in_loops(_columns), _held),
    **{
        row.linear: Variant(functools.partial(_fused, activations=name), _stored, own_threads=True, activations=name)
        for name, row in PRODUCTS.items()
    },
}


def linear_named(name: str | Variant) -> Variant:
    """The variant of that name (a Variant is returned as it is); ModelError lists the known names."""
    return name if isinstance(name, Variant) else known("linear", name, LINEAR, ModelError)
