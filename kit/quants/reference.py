"""The reference backend: gguf-py's dequantizers, which define the right result."""

import gguf
import numpy as np
import torch
from gguf.quants import _type_traits

from kit.gguf.formats import Format

FORMATS = frozenset({"F32", "F16"} | {qtype.name for qtype in _type_traits})
DEVICE = "cpu"
_CHUNK_WEIGHTS = 2**20  # of one call: gguf-py takes several times its output as temporary memory


def knows(format: Format) -> bool:
    """Whether gguf-py can dequantize the format."""
    return format.name in FORMATS


def run(blocks: np.ndarray, format: Format, out) -> None:
    """Dequantize C-contiguous ``blocks`` into ``out``, in chunks."""
    blocks, out = blocks.reshape(-1, format.block_bytes), torch.as_tensor(out).view(-1, format.block_elements)
    qtype, step = gguf.GGMLQuantizationType[format.name], _CHUNK_WEIGHTS // format.block_elements
    with np.errstate(all="ignore"):  # NaN and infinite scales are valid input
        for start in range(0, len(blocks), step):
            row = blocks[start : start + step].reshape(1, -1)
            values = torch.tensor(gguf.quants.dequantize(row, qtype))
            out[start : start + step] = values.view(-1, format.block_elements)
