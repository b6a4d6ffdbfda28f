"""The reference backend: gguf-py's dequantizers, which define the right result."""

import gguf
import numpy as np
import torch

from kit.gguf.formats import Format


def _dequantizes(qtype: gguf.GGMLQuantizationType) -> bool:
    """Whether gguf-py does: asked by a block of zeros, since it has no list of what it can."""
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[qtype][1]), np.uint8), qtype)
    except NotImplementedError:
        return False
    return True


FORMATS = frozenset(qtype.name for qtype in gguf.GGML_QUANT_SIZES if _dequantizes(qtype))
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
