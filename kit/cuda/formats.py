"""What the kernels must know of a format when they are compiled, and the table in which they look up."""

import gguf
import numpy as np

from kit.cuda.codes import CODES, SCALES
from kit.gguf.formats import TABLES, Format


def constants_of(format: Format) -> dict[str, object]:
    """The format, and the device functions of its codes and scales."""
    return {"FORMAT": format, "CODES": CODES[format.codes.function], "SCALES": SCALES[format.scales.function]}


def look_up_table(format: Format) -> np.ndarray:
    """int32: what two codes of four bits stand for, in two bytes, or ggml's grid, four bytes a word, raised by the bias in
    both cases (grids with signs are not); then the bits of the scales that a byte stands for. A zero where there is nothing."""
    parts = []
    if format.codes.values:
        values = np.array(format.codes.values, np.int32) + format.bias
        values = np.resize(values, 16)
        parts.append((values[None] | values[:, None] << 8).reshape(-1))
    elif format.codes.function.startswith("iq"):
        quant = getattr(gguf.quants, format.name)
        quant.init_grid()
        grid = quant.grid * 8 + 8 if quant.grid.min() < 0 else quant.grid
        parts.append(grid.astype(np.uint8).reshape(-1).view(np.int32))
    if format.scales.table:
        parts.append(TABLES[format.scales.table].view(np.int32))
    return np.concatenate(parts) if parts else np.zeros(1, np.int32)
