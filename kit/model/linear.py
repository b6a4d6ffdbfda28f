"""Linear layers: y = W x, where W comes out of a Weights object. One table; what the transformer calls by name."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from kit.cpu.simd.vectors import jit
from kit.errors import ModelError, known
from kit.gguf.formats import FORMATS
from kit.quants import dequantize


class Linear(NamedTuple):
    """One way to apply a weight. ``apply(weights, name, x)``: x (tokens, in) float32 -> (tokens, out) float32, never x
    itself. ``nbytes(weights, name)``: the weight bytes that one application must read, for the GB/s beside a speed.
    ``own_threads``: up to GEMV_MAX_TOKENS it is on the kit's threads and not on torch's, which then keep off the cores."""

    apply: Callable
    nbytes: Callable
    own_threads: bool = False
    activations: str = ""  # what the kernel does to x, of a way that reads a file's blocks: such passes can be recorded


def _matmul(weights, name, x):
    """One matrix product with the dequantized weight; a 16-bit weight takes x in its own type."""
    weight = weights[name]
    return (x.to(weight.dtype) @ weight.T).float()


GEMV_MAX_TOKENS = 16  # up to which reading a weight costs more than its arithmetic; torch's product reads it several times
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def _decoded(weights, name, x):
    """The dequantized weight: row by row by the kit's kernel for a few tokens, in float32, a matrix product for many."""
    if len(x) > GEMV_MAX_TOKENS:
        return _matmul(weights, name, x)
    from kit.cpu.linear import linear

    weight = weights[name]
    return linear(weight.view(torch.uint8).numpy(), _NAMES[weight.dtype], x)


def _in_loops(kernel):
    """``apply`` around a kernel that fills numpy arrays, on one thread."""
    kernel = jit(kernel)

    def apply(weights, name, x):
        weight = weights[name].float()
        out = torch.zeros(x.shape[0], weight.shape[0])
        kernel(weight.numpy(), x.numpy(), out.numpy())
        return out

    return apply


def _rows(weight, x, out):
    """Row by row: the inner loop walks along memory, one multiplication at a time."""
    for token in range(x.shape[0]):
        for row in range(weight.shape[0]):
            for column in range(weight.shape[1]):
                out[token, row] += weight[row, column] * x[token, column]


def _columns(weight, x, out):
    """Column by column, so the inner loop strides by the length of a row: what the reports' projections did."""
    for token in range(x.shape[0]):
        for column in range(weight.shape[1]):
            for row in range(weight.shape[0]):
                out[token, row] += weight[row, column] * x[token, column]


def _held(weights, name):
    return weights.nbytes(name)


def _fused(weights, name, x, activations="float32"):
    """Straight from the file's blocks; the cache is not asked."""
    from kit.cpu.activations import rounded
    from kit.cpu.linear import in_pieces, linear  # brings in the kernels, which no other way needs

    blocks, qtype = weights.blocks(name), weights.info(name).qtype
    if not in_pieces(qtype, len(x), activations):
        return linear(blocks, qtype, x, activations)
    return _in_pieces(blocks, qtype, rounded(x) if activations == "int8" and FORMATS[qtype].codes else x)


_PIECE = 2**21  # numbers dequantized at a time


def _in_pieces(blocks, qtype, x):
    """By torch, from some rows at a time dequantized: no whole matrix in memory."""
    y, rows = torch.empty(len(x), len(blocks)), -(-_PIECE // x.shape[1])
    for start in range(0, len(blocks), rows):
        torch.mm(x, dequantize(blocks[start : start + rows], qtype).T, out=y[:, start : start + rows])
    return y


def _stored(weights, name):
    return weights.blocks(name).nbytes


LINEAR = {
    "decoded": Linear(_decoded, _held, own_threads=True),
    "matmul": Linear(_matmul, _held),
    "loop": Linear(_in_loops(_rows), _held),
    "strided": Linear(_in_loops(_columns), _held),
    "fused": Linear(_fused, _stored, own_threads=True, activations="float32"),
    "fused-int8": Linear(functools.partial(_fused, activations="int8"), _stored, own_threads=True, activations="int8"),
}


def linear_named(name: str | Linear) -> Linear:
    """The implementation of that name (a Linear is taken as it is); ModelError with the known names for any other."""
    return name if isinstance(name, Linear) else known("linear", name, LINEAR, ModelError)
