"""A format's compile-time constants and look-up table for the Triton kernels."""

from functools import cache

import gguf
import numpy as np
import torch

from kit.cuda.codes import CODES, SCALES
from kit.gguf.formats import TABLES, Format


def constants_of(format: Format) -> dict[str, object]:
    """Compile-time arguments of a kernel: the format, and the device functions of its codes and scales."""
    codes = CODES["grid" if format.codes.grid else format.codes.function]
    return {"FORMAT": format, "CODES": codes, "SCALES": SCALES[format.scales.function]}


@cache
def table_of(format: Format, device: torch.device) -> torch.Tensor:
    """The look-up table on ``device``: int32, two parts, or one zero for a format without tables.

    First the codes: the values of each pair of 4-bit codes in two bytes, or ggml's grid with four bytes in a word; the bias
    is added to both, except for grids whose signs are stored apart. Then the float32 bits of the scale of each byte.
    """
    parts = []
    if format.codes.values:
        values = np.resize(np.array(format.codes.values, np.int32) + format.bias, 16)
        parts.append((values[None] | values[:, None] << 8).reshape(-1))
    elif format.codes.grid:
        quant = getattr(gguf.quants, format.name)
        quant.init_grid()
        grid = quant.grid * 8 + 8 if quant.grid.min() < 0 else quant.grid
        parts.append(grid.astype(np.uint8).reshape(-1).view(np.int32))
    if format.scales.table:
        parts.append(TABLES[format.scales.table].view(np.int32))
    return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(1, np.int32)).to(device)
