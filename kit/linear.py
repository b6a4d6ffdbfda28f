"""Linear layers: y = W x, where W comes out of a Weights object. One table; what the transformer calls by name."""

from collections.abc import Callable
from typing import NamedTuple

import numba
import torch

from kit.errors import ModelError


class Linear(NamedTuple):
    """One way to apply a weight. ``apply(weights, name, x)``: x (tokens, in) float32 -> (tokens, out) float32, never x
    itself. ``nbytes(weights, name)``: the weight bytes that one application must read, for the GB/s beside a speed."""

    apply: Callable
    nbytes: Callable


def _matmul(weights, name, x):
    """One matrix product with the decoded weight; a 16-bit weight takes x in its own type."""
    weight = weights[name]
    return (x.to(weight.dtype) @ weight.T).float()


@numba.njit(cache=True, nogil=True)
def _columns(weight, x, out):
    """Column by column, so the inner loop strides by the length of a row: what the reports' projections did."""
    rows, columns = weight.shape
    for token in range(x.shape[0]):
        for row in range(rows):
            out[token, row] = 0.0
        for column in range(columns):
            factor = x[token, column]
            for row in range(rows):
                out[token, row] += weight[row, column] * factor


def _strided(weights, name, x):
    """Loops over the decoded weight's columns, one thread."""
    weight = weights[name].float()
    out = torch.empty(x.shape[0], weight.shape[0])
    _columns(weight.numpy(), x.numpy(), out.numpy())
    return out


def _decoded(weights, name):
    return weights.nbytes(name)


LINEAR = {
    "matmul": Linear(_matmul, _decoded),
    "strided": Linear(_strided, _decoded),
}


def linear_named(name: str) -> Linear:
    """The implementation of that name; ModelError with the known names for any other."""
    if name not in LINEAR:
        raise ModelError(f"linear {name!r} is not known; choose one of {', '.join(LINEAR)}")
    return LINEAR[name]
