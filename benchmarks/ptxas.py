"""Triton's kernels by Triton's own ptxas, for GPUs that this machine lacks: registers of a thread, bytes of its stack.

No GPU runs. Attention on a GPU is torch's own.
"""

import pandas as pd
from tqdm import tqdm

from benchmarks._gpu_kernels import dequantizer, gemv, packers, tile_decoder
from kit.gguf.formats import FORMATS

PLACE = "static"  # the folder of records: no machine takes part
GPUS = {"sm_80": "A100", "sm_89": "RTX 4090", "sm_90": "H100", "sm_120": "RTX 5090"}
SHAPE = 4096, 12800  # of a matrix
MANY = "Q4_K", "Q6_K", "Q8_0", "Q4_0"  # whose products of several tokens are compiled, too


def run(only: str = "") -> pd.DataFrame:
    """One row a kernel (its format, or its name, and what it does); columns "sm_80 registers", "sm_80 stack" and so on.
    ``only``: the rows so named."""
    rows = []
    for (name, does), case in tqdm([row for row in _cases() if only in " ".join(row[0])], "compile", disable=None):
        compiled = {gpu: case.compile(int(gpu.removeprefix("sm_"))) for gpu in GPUS}
        rows.append({"kernel": name, "does": does})
        for gpu, found in compiled.items():
            rows[-1] |= {f"{gpu} registers": found.registers, f"{gpu} stack": found.spilled}
    return pd.DataFrame(rows).set_index(["kernel", "does"])


def _cases():
    names = [name for name, format in FORMATS.items() if format.codes]
    for name in names:
        yield (name, "dequantize"), dequantizer(name, "bfloat16")
    for name in (*names, "F32", "F16", "BF16", "I8"):
        yield (name, "product"), gemv(name, *SHAPE)
    for name in MANY:
        yield (name, "product of 8 tokens"), gemv(name, *SHAPE, 8)
    for case in (*packers(SHAPE[0]), *tile_decoder(1)):
        yield (case.name.partition(",")[0], "alone"), case
