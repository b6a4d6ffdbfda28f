"""Many tokens times float32 activations: strips of a few rows are dequantized to the L1 cache and multiplied there.

The innermost tile is 4 rows by 6 tokens: 24 sums in registers, and 10 loads per 24 multiplications.
"""

import numpy as np
import torch

from kit.cpu.kernels import dequantize_blocks
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.registers import add_products, several_of
from kit.cpu.simd.sums import reduce_add
from kit.cpu.simd.vectors import Static, broadcast, f32x16, generated, inner
from kit.cpu.tasks import task

FEWEST = 9  # tokens for which a strip pays; a tile's six must be there in any case
_HEIGHT, _WIDTH = 4, 6  # rows and tokens of a tile
_ROWS, _TOKENS, _COLUMNS = 16, 132, 512  # a piece's sums stay in the second-level cache, a strip in the first
_STRIDE = 4 * _COLUMNS + 64  # bytes of a row of the strip: no power of two, so that rows share no cache set
_SUMS = 64 * _HEIGHT * _WIDTH  # bytes of a tile's sums
_scratch, _strip = stack(256), stack(_ROWS * _STRIDE)
_sums = stack(_ROWS // _HEIGHT * (_TOKENS // _WIDTH) * _SUMS)


(load_rows, _), (load_tokens, _), (load_sums, store_sums) = map(several_of, (_HEIGHT, _WIDTH, _HEIGHT * _WIDTH))


@inner
def _tile(strip, x, stride, columns, sums):
    """Add the products of the strip's rows and six tokens at x, over some columns, to a tile's sums."""
    total = load_sums(sums, 64)
    for column in range(0, 4 * columns, 64):
        total = add_products(total, load_rows(strip + column, _STRIDE), load_tokens(x + column, stride))
    store_sums(sums, 64, total)


@generated
def _block_shape(format):
    """(weights, bytes) per block of a Static format."""
    shape = format.value.block_elements, format.value.block_bytes
    return lambda format: shape


def padded(x: torch.Tensor) -> torch.Tensor:
    """x padded with zeros to a multiple of 16 columns, plus 16 more, so that tokens do not share cache sets.

    numpy does this on the calling thread. torch would use threads that keep spinning on cores that the kernels need.
    """
    tokens, columns = x.shape
    wide = np.zeros((tokens, columns + -columns % 16 + 16), np.float32)
    wide[:, :columns] = x.numpy()
    return torch.from_numpy(wide)


@task
def kernel(format: Static, tier: Static):
    """The task described in kit.cpu.linear, for tokens >= FEWEST; x comes from ``padded``."""
    float32 = Static("float32")

    def strips(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        weights, size = _block_shape(format)
        scratch, strip, sums = _scratch(), _strip(), _sums()
        for row in range(task * share, min(rows, (task + 1) * share), _ROWS):
            height = min(_ROWS, min(rows, (task + 1) * share) - row)
            for token in range(0, tokens, _TOKENS):
                last = min(tokens, token + _TOKENS)
                tiles = (last - token + _WIDTH - 1) // _WIDTH
                for i in range((height + _HEIGHT - 1) // _HEIGHT * tiles * _HEIGHT * _WIDTH):
                    store(sums + 64 * i, broadcast(f32x16, 0))
                for column in range(0, columns, _COLUMNS):
                    some = min(_COLUMNS, columns - column)
                    for r in range(height):
                        at = blocks + (row + r) * row_bytes + column // weights * size
                        if some % 16:
                            store(strip + r * _STRIDE + some // 16 * 64, broadcast(f32x16, 0))
                        dequantize_blocks(format, float32, tier, False, at, some // weights, strip + r * _STRIDE, scratch)
                    for t in range(tiles):
                        first = x + min(token + _WIDTH * t, tokens - _WIDTH) * x_stride + 4 * column
                        for r in range(0, height, _HEIGHT):
                            at = sums + (r // _HEIGHT * tiles + t) * _SUMS
                            _tile(strip + r * _STRIDE, first, x_stride, (some + 15) // 16 * 16, at)
                for r in range(height):
                    at = sums + r // _HEIGHT * tiles * _SUMS + r % _HEIGHT * _WIDTH * 64
                    for t in range(tiles * _WIDTH):
                        first = min(token + t // _WIDTH * _WIDTH, tokens - _WIDTH) + t % _WIDTH
                        store(
                            y + first * y_stride + 4 * (row + r),
                            reduce_add(load(f32x16, at + t // _WIDTH * _SUMS + t % _WIDTH * 64)),
                        )

    return strips
