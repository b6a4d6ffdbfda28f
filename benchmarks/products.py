"""One token times matrices that no cache holds, by format: GB/s compared with what memory gives to reads, processes in turn."""

import sys

import numpy as np
import pandas as pd
import torch

from benchmarks._turns import alternately, running, serve, times
from kit.cpu.linear import linear
from kit.gguf.formats import FORMATS
from kit.lab.exactness import random_blocks

NAMES = ("Q4_K", "Q6_K", "Q8_0", "Q5_0", "Q5_K", "Q4_0", "F16", "BF16", "F32")
LEAST, HOPED = 0.85, 0.95
ROWS, COLUMNS = 4096, 4096


def run(only: str = "", samples: int = 5, total: int = 256 << 20) -> pd.DataFrame:
    """One row a format and accuracy: GB/s, and the share of the read bandwidth (samples in turn), its interval and goals.

    only: the formats whose name holds this. total: bytes of the matrices of a format.
    """
    rows = [
        _row(name, accuracy, samples, total)
        for name in NAMES
        if only in name
        for accuracy in ("int8", "float32")
        if accuracy == "float32" or FORMATS[name].codes is not None
    ]
    return pd.DataFrame(rows).set_index("what")


def _row(name, accuracy, samples, total) -> dict:
    command = "-m", "benchmarks.products"
    each = {"ours": ((*command, name, accuracy, str(total)), {}), "read": ((*command, str(total)), {})}
    with running(each) as sides:
        seconds = alternately(sides, samples)
    blocks = _count(name, total) * FORMATS[name].nbytes(ROWS * COLUMNS)
    share = times(seconds["read"] / total, seconds["ours"] / blocks)
    return {
        "what": f"product, {name}, {accuracy}, of read", "GB/s": blocks / np.median(seconds["ours"]) / 1e9,
        "read GB/s": np.median(total / seconds["read"]) / 1e9, **share, "least": LEAST, "hoped": HOPED,
        "missed": "missed" if share["ratio"] < LEAST else "",
    }  # fmt: skip


def _count(name, total) -> int:
    return max(2, total // FORMATS[name].nbytes(ROWS * COLUMNS))


def side(*arguments):
    """What a process of this benchmark runs: a pass over memory, or one token times every matrix of a format."""
    *what, total = arguments
    return _products(*what, int(total)) if what else torch.ones(int(total) // 4).sum


def _products(name, accuracy, total):
    pool = random_blocks(name, 4096)
    blocks = np.resize(pool, (ROWS * COLUMNS // FORMATS[name].block_elements, pool.shape[1])).reshape(ROWS, -1)
    matrices, x = [blocks.copy() for _ in range(_count(name, total))], torch.randn(1, COLUMNS)
    return lambda: [linear(matrix, name, x, accuracy) for matrix in matrices]


if __name__ == "__main__":
    serve(side(*sys.argv[1:]))
