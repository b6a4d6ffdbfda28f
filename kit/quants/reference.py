"""The reference backend: gguf-py's dequantizers, the definition of right. Slow on purpose; nothing is reordered."""

import gguf
import numpy as np
import torch
from gguf.quants import _type_traits

from kit.gguf.formats import Format

FORMATS = frozenset({"F32", "F16"} | {qtype.name for qtype in _type_traits})
DEVICE = "cpu"
_CHUNK_WEIGHTS = 2**20  # gguf-py takes several times its output as transient memory: 4 MiB of float32 a chunk bounds it


def knows(format: Format) -> bool:
    """Whether gguf-py can dequantize it."""
    return format.name in FORMATS


def run(blocks: np.ndarray, format: Format, out) -> None:
    """Dequantize C-contiguous ``blocks`` into ``out``, a bounded number at a time."""
    blocks, out = blocks.reshape(-1, format.block_bytes), torch.as_tensor(out).view(-1, format.block_elements)
    qtype, step = gguf.GGMLQuantizationType[format.name], _CHUNK_WEIGHTS // format.block_elements
    with np.errstate(all="ignore"):  # NaN and infinite scales are data here
        for start in range(0, len(blocks), step):
            row = blocks[start : start + step].reshape(1, -1)
            values = torch.tensor(gguf.quants.dequantize(row, qtype))
            out[start : start + step] = values.view(-1, format.block_elements)
