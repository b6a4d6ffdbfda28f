"""INT8 weights: w ~ scale * q with q in [-127, 127], one absmax scale an output row, or one a tensor (report 004)."""

import numpy as np
import torch

from kit.errors import CodecError


def quantize(rows: torch.Tensor, name: str = "matrix", per: str = "row") -> tuple[np.ndarray, np.ndarray]:
    """(int8 (rows, columns), float32 scales (rows,)) of a float matrix, rounded to nearest even.

    `per` is "row" or "tensor" (all scales are equal then). CodecError for a NaN or an infinity: it names the place.
    """
    rows = rows.float()
    most = rows.abs().amax(dim=1) if rows.shape[1] else torch.zeros(rows.shape[0])
    if not most.isfinite().all():
        row = int((~most.isfinite()).nonzero()[0])
        column = int((~rows[row].isfinite()).nonzero()[0])
        raise CodecError(f"{name}: the weight in row {row}, column {column} is {rows[row, column]:.0f}: mend the source first")
    if per == "tensor":
        most = most.max().expand(rows.shape[0])
    scales = most / 127
    scales[scales < torch.finfo(torch.float32).tiny] = 1  # a row of zeros, or of nothing that a float can scale
    return (rows / scales[:, None]).round_().to(torch.int8).numpy(), scales.numpy()
