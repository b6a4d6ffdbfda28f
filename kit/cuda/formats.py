"""The block formats of the triton backend as a table: device function, sub-blocks, bias, look-up table."""

from typing import NamedTuple

import gguf
import numpy as np

from kit.cuda import codes


class Codes(NamedTuple):
    """One format: its device function, sub-blocks a block, the bias of its codes, and its look-up table (or None)."""

    function: object
    subs: int
    bias: int = 0
    table: np.ndarray | None = None


def _pair_table(name: str) -> np.ndarray:
    """(256,) int32: 128 + the values of a byte's low and high nibble, in two bytes."""
    values = np.array(getattr(gguf.quants, name).kvalues, np.int32) + 128
    return (values[None] | values[:, None] << 8).reshape(-1)


def _grid_table(name: str, scale: int = 1, offset: int = 0) -> np.ndarray:
    """int32: four bytes of ggml's grid a word, each times ``scale`` plus ``offset``."""
    quant = getattr(gguf.quants, name)
    quant.init_grid()
    return (quant.grid * scale + offset).astype(np.uint8).reshape(-1).view(np.int32)


CODES = {
    "Q4_0": Codes(codes.q4_0, 1, 8),
    "Q4_1": Codes(codes.q4_1, 1),
    "Q5_0": Codes(codes.q5_0, 1, 16),
    "Q5_1": Codes(codes.q5_1, 1),
    "Q8_0": Codes(codes.q8_0, 1, 128),
    "Q2_K": Codes(codes.q2_k, 16),
    "Q3_K": Codes(codes.q3_k, 16, 4),
    "Q4_K": Codes(codes.q4_k, 8),
    "Q5_K": Codes(codes.q5_k, 8),
    "Q6_K": Codes(codes.q6_k, 16, 32),
    "TQ1_0": Codes(codes.tq1_0, 1, 1),
    "TQ2_0": Codes(codes.tq2_0, 1, 1),
    "IQ4_NL": Codes(codes.iq4_nl, 1, 128, _pair_table("IQ4_NL")),
    "IQ4_XS": Codes(codes.iq4_xs, 8, 128, _pair_table("IQ4_NL")),
    "MXFP4": Codes(codes.mxfp4, 1, 128, _pair_table("MXFP4")),
    "NVFP4": Codes(codes.nvfp4, 4, 128, _pair_table("NVFP4")),
    "IQ2_XXS": Codes(codes.iq2_xxs, 8, 128, _grid_table("IQ2_XXS")),
    "IQ2_XS": Codes(codes.iq2_xs, 16, 128, _grid_table("IQ2_XS")),
    "IQ2_S": Codes(codes.iq2_s, 16, 128, _grid_table("IQ2_S")),
    "IQ3_XXS": Codes(codes.iq3_xxs, 8, 128, _grid_table("IQ3_XXS")),
    "IQ3_S": Codes(codes.iq3_s, 8, 128, _grid_table("IQ3_S")),
    "IQ1_S": Codes(codes.iq1_s, 8, 9, _grid_table("IQ1_S", 8, 8)),
    "IQ1_M": Codes(codes.iq1_m, 16, 9, _grid_table("IQ1_M", 8, 8)),
}
