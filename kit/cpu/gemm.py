"""Many tokens times float32 activations: strips of a few rows are dequantized to the L1 cache and multiplied there.

The innermost tile is 4 rows by some tokens, whose sums stay in registers: with AVX-512's 32 registers 10 loads per 24
multiplications, with AVX2's 16 registers of half the size 7 per 12.
"""

from typing import NamedTuple

import numpy as np
import torch

from kit.cpu.kernels import dequantize_blocks
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.registers import add_products, several_of
from kit.cpu.simd.sums import reduce_add
from kit.cpu.simd.vectors import Static, Vector, broadcast, f32x8, f32x16, generated, inner
from kit.cpu.tasks import task

FEWEST = 9  # tokens for which a strip pays; a tile's must be there in any case
FASTER = ("avx2",)  # tiers whose prompts take these products: on the others torch's of dequantized pieces are faster
_HEIGHT, _ROWS = 4, 16  # rows of a tile, and of a strip


class _Plan(NamedTuple):
    """``kind``: the vectors of a tile; ``width``: its tokens. A piece has so many tokens and columns that its sums stay in the
    second-level cache, and its strip with a tile's tokens in the first."""

    kind: Vector
    width: int
    tokens: int
    columns: int

    @property
    def stride(self) -> int:
        """Bytes of a row of the strip: no power of two, so that rows share no cache set."""
        return 4 * self.columns + 64

    @property
    def sums(self) -> int:
        """Bytes of a tile's sums."""
        return 4 * self.kind.lanes * _HEIGHT * self.width


_LARGE = _Plan(f32x16, 6, 132, 512)
_PLANS = {"avx512": _LARGE, "avx2": _Plan(f32x8, 3, 264, 256), "neon": _LARGE, "plain": _LARGE}


def _tile_of(plan: _Plan):
    """_tile(strip, x, stride, columns, sums): add the products of the strip's rows and a tile's tokens at x, over some columns,
    to a tile's sums."""
    counts, kind, apart = (_HEIGHT, plan.width, _HEIGHT * plan.width), plan.kind, plan.stride
    (load_rows, _), (load_tokens, _), (load_sums, store_sums) = (several_of(count, kind) for count in counts)
    size = 4 * kind.lanes

    @inner
    def _tile(strip, x, stride, columns, sums):
        total = load_sums(sums, size)
        for column in range(0, 4 * columns, size):
            total = add_products(total, load_rows(strip + column, apart), load_tokens(x + column, stride))
        store_sums(sums, size, total)

    return _tile


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
    float32, plan = Static("float32"), _PLANS[tier.value]
    kind, width, most, across, stride, size = plan.kind, plan.width, plan.tokens, plan.columns, plan.stride, plan.sums
    _scratch, _strip, _sums = stack(256), stack(_ROWS * stride), stack(_ROWS // _HEIGHT * (most // width) * size)
    _tile, lanes = _tile_of(plan), 4 * kind.lanes

    def strips(task, blocks, row_bytes, rows, columns, x, y, x_stride, y_stride, tokens, share):
        weights, block = _block_shape(format)
        scratch, strip, sums = _scratch(), _strip(), _sums()
        for row in range(task * share, min(rows, (task + 1) * share), _ROWS):
            height = min(_ROWS, min(rows, (task + 1) * share) - row)
            for token in range(0, tokens, most):
                last = min(tokens, token + most)
                tiles = (last - token + width - 1) // width
                for at in range(0, (height + _HEIGHT - 1) // _HEIGHT * tiles * size, lanes):
                    store(sums + at, broadcast(kind, 0))
                for column in range(0, columns, across):
                    some = min(across, columns - column)
                    for r in range(height):
                        at = blocks + (row + r) * row_bytes + column // weights * block
                        if some % 16:
                            store(strip + r * stride + some // 16 * 64, broadcast(f32x16, 0))
                        dequantize_blocks(format, float32, tier, False, at, some // weights, strip + r * stride, scratch)
                    for t in range(tiles):
                        first = x + min(token + width * t, tokens - width) * x_stride + 4 * column
                        for r in range(0, height, _HEIGHT):
                            at = sums + (r // _HEIGHT * tiles + t) * size
                            _tile(strip + r * stride, first, x_stride, (some + 15) // 16 * 16, at)
                for r in range(height):
                    at = sums + r // _HEIGHT * tiles * size + r % _HEIGHT * width * lanes
                    for t in range(tiles * width):
                        first = min(token + t // width * width, tokens - width) + t % width
                        total = load(kind, at + t // width * size + t % width * lanes)
                        store(y + first * y_stride + 4 * (row + r), reduce_add(total))

    return strips
