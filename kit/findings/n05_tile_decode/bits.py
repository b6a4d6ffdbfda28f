"""Bits a weight: what a predictor leaves of INT8 values, and how small tiles get beside zstd, by family of tensors."""

import numpy as np
import pandas as pd
import pyarrow
import torch

import kit.codec
from kit.codec import predictors, rans
from kit.codec.codings import quantize
from kit.codec.compressor import matrices_of
from kit.lab import figures
from kit.quants import dequantize

TILE = 1 << 16  # values, and bytes of INT8
SIDE = 256
GAUSSIAN = "Gaussian"
PREDICTED = {"order 0": "none", "LEFT": "left", "LEFT twice": "left2", "UP": "up"}  # column -> predictor


def sample_matrices(file, tiles: int = 8, seed: int = 0) -> dict[str, torch.Tensor]:
    """Float matrices of whole tiles, about `tiles` each: Gaussian, and one of each family of linear layers in the file."""
    rows = max(1, tiles // 4) * SIDE
    found = {GAUSSIAN: torch.randn(rows, 4 * SIDE, generator=torch.Generator().manual_seed(seed))}
    for name, (blocks, qtype) in matrices_of(file):
        family = name.partition("[")[0].removesuffix(".weight").rpartition(".")[2]
        if family not in found:
            weights = dequantize(np.ascontiguousarray(blocks[:rows]), qtype)
            found[family] = weights[: len(weights) // SIDE * SIDE, : min(4 * SIDE, weights.shape[1] // SIDE * SIDE)]
    return {name: weights for name, weights in found.items() if weights.numel()}


def tiles_of(values: np.ndarray) -> np.ndarray:
    """(tiles, 256, 256): the whole tiles of a matrix, in the order of the codec."""
    return values.reshape(len(values) // SIDE, SIDE, values.shape[1] // SIDE, SIDE).swapaxes(1, 2).reshape(-1, SIDE, SIDE)


def table(matrices: dict[str, torch.Tensor]) -> pd.DataFrame:
    """Bits a weight, one row a matrix. Entropy of INT8 values (absmax a row) and of what each predictor leaves of them; then
    sizes with everything counted: the kit tiles, zstd on the same tiles, and the reported profile, which has one scale a
    tensor."""
    rows = {}
    for source, weights in matrices.items():
        values, _ = quantize(weights, source)
        by_tensor, _ = quantize(weights, source, per="tensor")
        tiles = tiles_of(values)
        codec = pyarrow.Codec("zstd", compression_level=19)
        nbytes = {
            "kit tiles": kit.codec.encode(values).nbytes,
            "zstd -19": sum(len(codec.compress(tile.tobytes(), asbytes=True)) for tile in tiles),
            "as reported": kit.codec.encode(by_tensor, "reported").nbytes,
        }
        rows[source] = {column: _entropy(tiles, predictor) for column, predictor in PREDICTED.items()}
        rows[source] |= {column: 8 * size / values.size for column, size in nbytes.items()}
    return pd.DataFrame(rows).T.rename_axis("bits a weight")


def _entropy(tiles, predictor: str) -> float:
    """Order-0 entropy of what a predictor leaves, tile by tile, as the codec predicts."""
    left = np.empty((len(tiles), TILE), np.uint8)
    for tile, residuals in zip(tiles, left, strict=True):
        predictors.apply(np.ascontiguousarray(tile), predictors.PREDICTORS.index(predictor), residuals)
    return rans.entropy(np.bincount(left.ravel(), minlength=256))


def figure(bits: pd.DataFrame):
    """Bars: entropy by source and predictor; the dashed line is INT8 itself."""
    drawn, axes = figures.new()
    bits[list(PREDICTED)].plot.bar(ax=axes, color=figures.PALETTE, width=0.8, rot=0)
    figures.bound(axes, 8, "INT8 as it is: 8 bits")
    worst = (bits["LEFT twice"] - bits["order 0"]).idxmax()
    more = bits.loc[worst, "LEFT twice"] - bits.loc[worst, "order 0"]
    axes.set(title=f"The reported predictor costs up to {more:.2f} bits a weight", ylabel="entropy, bits a weight")
    axes.set(xlabel="", ylim=(0, 10.5))
    axes.legend(ncol=3, fontsize=8.5, loc="upper center")
    axes.tick_params(axis="x", labelsize=9)
    axes.grid(axis="x", visible=False)
    return drawn


def sentence(bits: pd.DataFrame, generated: bool) -> str:
    """What trained (or generated) weights do to the size of tiles, beside Gaussian ones."""
    gaussian, own = bits.loc[GAUSSIAN], bits.drop(index=GAUSSIAN)
    kind = "generated" if generated else "trained"
    return (
        f"INT8 tiles of the {kind} weights take {own['kit tiles'].min():.2f} to {own['kit tiles'].max():.2f} bits "
        f"({gaussian['kit tiles']:.2f} on Gaussian rows), zstd {own['zstd -19'].min():.2f} to {own['zstd -19'].max():.2f}, "
        f"the reported profile {own['as reported'].min():.2f} to {own['as reported'].max():.2f} of 8"
    )
