"""INT8 weights: scale * q with q in [-127, 127], one absmax scale for each output row, or one for the tensor (report 004)."""

import numpy as np
import torch

from kit.errors import CodecError


def quantize(rows: torch.Tensor, name: str = "matrix", per: str = "row") -> tuple[np.ndarray, np.ndarray]:
    """(int8 (rows, columns), float32 scales (rows,)) of a float matrix, rounded to nearest even.

    `per`: "row", or "tensor" for equal scales. CodecError names the position of a NaN or an infinity.
    """
    rows = rows.float()
    most = rows.abs().amax(dim=1) if rows.shape[1] else torch.zeros(rows.shape[0])
    if not most.isfinite().all():
        row = int((~most.isfinite()).nonzero()[0])
        column = int((~rows[row].isfinite()).nonzero()[0])
        raise CodecError(
            f"{name}: the weight in row {row}, column {column} is {rows[row, column]:.0f}: repair the source first"
        )
    if per == "tensor":
        most = most.max().expand(rows.shape[0])
    scales = most / 127
    scales[scales < torch.finfo(torch.float32).tiny] = 1  # rows of zeros, or of numbers too small to be scaled
    return (rows / scales[:, None]).round_().to(torch.int8).numpy(), scales.numpy()
