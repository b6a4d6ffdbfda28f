"""linear: y = W x from blocks, rows shared out among the threads of kit.threads."""

import functools

import numpy as np
import torch

from kit import threads
from kit.errors import QuantError
from kit.fused import activations as eight_bit
from kit.fused import floating, integer
from kit.quants.formats import FORMATS
from kit.quants.kernels import KERNELS
from kit.simd.tiers import tier
from kit.simd.vectors import Static

_PIECE = 2**16  # bytes of blocks that a thread takes at a time


def linear(blocks: np.ndarray, qtype: str, x: torch.Tensor, activations: str = "float32") -> torch.Tensor:
    """x (tokens, columns) float32 times the matrix of ``blocks`` (rows, bytes of a row): (tokens, rows) float32."""
    format = FORMATS[qtype]
    rows, row_bytes = blocks.shape
    tokens, columns = x.shape
    if columns != row_bytes // format.block_bytes * format.block_elements:
        raise QuantError(f"{qtype}: rows of {row_bytes} bytes do not take {columns} activations")
    blocks, x = np.ascontiguousarray(blocks), x.contiguous()
    y = torch.empty(tokens, rows)
    share = max(1, _PIECE // row_bytes)
    if activations == "int8" and qtype in KERNELS:
        records = eight_bit.quantize(x, qtype)
        arguments = np.array(
            [blocks.ctypes.data, row_bytes, rows, columns, records.ctypes.data, y.data_ptr(), 4 * rows, tokens, share]
        )
        threads.run(_kernel8(qtype, tier()), arguments, -(-rows // share))
        return y
    arguments = np.array(
        [blocks.ctypes.data, row_bytes, rows, columns, x.data_ptr(), y.data_ptr(), 4 * columns, 4 * rows, tokens, share]
    )
    threads.run(_kernel(qtype, tier()), arguments, -(-rows // share))
    return y


@functools.cache
def _kernel(qtype, tier):
    return floating.kernel(Static(qtype), tier)


@functools.cache
def _kernel8(qtype, tier):
    return integer.kernel(Static(qtype), tier)
