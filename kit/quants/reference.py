"""The reference backend: gguf-py's dequantizers, which define the right result."""

import gguf
import numpy as np

from kit.gguf.formats import Format
from kit.quants.plain import in_chunks


def _dequantizes(qtype: gguf.GGMLQuantizationType) -> bool:
    """Whether gguf-py does: asked by a block of zeros, since it has no list of what it can."""
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[qtype][1]), np.uint8), qtype)
    except NotImplementedError:
        return False
    return True


FORMATS = frozenset(qtype.name for qtype in gguf.GGML_QUANT_SIZES if _dequantizes(qtype))
DEVICE = "cpu"


def knows(format: Format) -> bool:
    """Whether gguf-py can dequantize the format."""
    return format.name in FORMATS


def run(blocks: np.ndarray, format: Format, out) -> None:
    """Dequantize C-contiguous ``blocks`` into ``out``, in chunks."""
    qtype = gguf.GGMLQuantizationType[format.name]
    in_chunks(lambda part: gguf.quants.dequantize(part, qtype), blocks, format, out)
