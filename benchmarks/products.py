"""One token times matrices that no cache holds, by format: GB/s of blocks beside what memory gives to reads, in turn."""

import numpy as np
import pandas as pd
import torch

from kit.cpu.linear import linear
from kit.gguf.formats import FORMATS
from kit.lab import measure
from kit.quants.exactness import random_blocks

NAMES = ("Q4_K", "Q6_K", "Q8_0", "Q5_0", "Q5_K", "Q4_0", "F16", "BF16", "F32")
LEAST, HOPED = 0.85, 0.95
ROWS, COLUMNS = 4096, 4096


def run(only: str = "", samples: int = 5, total: int = 256 << 20) -> pd.DataFrame:
    """One row a format and accuracy: GB/s, and the share of the read bandwidth (samples in turn), its interval and goals.

    only: the formats whose name holds this. total: bytes of the matrices of a format.
    """
    numbers = torch.ones(total // 4)
    rows = [
        _row(name, accuracy, numbers, samples)
        for name in NAMES
        if only in name
        for accuracy in ("int8", "float32")
        if accuracy == "float32" or FORMATS[name].codes is not None
    ]
    return pd.DataFrame(rows).set_index("what")


def _row(name, accuracy, numbers, samples) -> dict:
    count = max(2, numbers.nbytes // FORMATS[name].nbytes(ROWS * COLUMNS))
    pool = random_blocks(name, 4096)
    blocks = np.resize(pool, (ROWS * COLUMNS // FORMATS[name].block_elements, pool.shape[1])).reshape(ROWS, -1)
    matrices, x = [blocks.copy() for _ in range(count)], torch.randn(1, COLUMNS)

    def products():
        for matrix in matrices:
            linear(matrix, name, x, accuracy)

    pair = measure.compare(products, numbers.sum, samples, min_sample=0.1)
    share, low, high = np.array([pair.ratio, *measure.interval_of(pair.ratios)]) * count * blocks.nbytes / numbers.nbytes
    return {
        "what": f"product, {name}, {accuracy}, of read", "GB/s": count * blocks.nbytes / pair.a.median / 1e9,
        "read GB/s": numbers.nbytes / pair.b.median / 1e9, "ratio": share, "low": low, "high": high,
        "least": LEAST, "hoped": HOPED,
        "missed": "missed" if share < LEAST else "",
    }  # fmt: skip
