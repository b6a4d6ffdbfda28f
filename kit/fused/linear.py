"""linear: y = W x from blocks, rows shared out among the threads of kit.threads."""

import functools

import numpy as np
import torch

from kit import threads
from kit.errors import QuantError
from kit.fused import floating
from kit.quants.formats import FORMATS
from kit.simd.tiers import tier
from kit.simd.vectors import Static

_PIECE = 2**16  # bytes of blocks that a thread takes at a time


def linear(blocks: np.ndarray, qtype: str, x: torch.Tensor) -> torch.Tensor:
    """x (tokens, columns) float32 times the matrix of ``blocks`` (rows, bytes of a row): (tokens, rows) float32."""
    format = FORMATS[qtype]
    rows, row_bytes = blocks.shape
    tokens, columns = x.shape
    if columns != row_bytes // format.block_bytes * format.block_elements:
        raise QuantError(f"{qtype}: rows of {row_bytes} bytes do not take {columns} activations")
    blocks, x = np.ascontiguousarray(blocks), x.contiguous()
    y = torch.empty(tokens, rows)
    share = max(1, _PIECE // row_bytes)
    arguments = np.array(
        [blocks.ctypes.data, row_bytes, rows, columns, x.data_ptr(), y.data_ptr(), 4 * columns, 4 * rows, tokens, share]
    )
    threads.run(_kernel(qtype, tier()), arguments, -(-rows // share))
    return y


@functools.cache
def _kernel(qtype, tier):
    return floating.kernel(Static(qtype), tier)
