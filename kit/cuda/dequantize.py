"""The triton backend: dequantizes on the GPU, or on the CPU with TRITON_INTERPRET=1 set before Python starts."""

import numpy as np
import torch
import triton

from kit.cuda.dequantize_kernel import WEIGHTS_A_PROGRAM, dequantize_kernel
from kit.cuda.device import DEVICE, INTERPRETED, require  # noqa: F401 - kit.quants.registry reads DEVICE
from kit.cuda.formats import constants_of, table_of
from kit.errors import QuantError
from kit.gguf.formats import Format, described

knows = described
STORED_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

require("backend 'triton'", "backend 'cpu'", QuantError)


def run(blocks, format: Format, out) -> None:
    """Dequantize C-contiguous ``blocks`` (numpy array or tensor of uint8) into ``out`` on DEVICE."""
    out, blocks = (torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in (out, blocks))
    blocks = blocks.to(out.device)
    if blocks.data_ptr() % 16:
        blocks = blocks.clone()  # wide loads need an alignment that a slice may lack
    if format.name in STORED_FLOATS:
        out.view(-1).copy_(blocks.view(-1).view(STORED_FLOATS[format.name]))
        return
    count, at_a_time = blocks.numel() // format.block_bytes, WEIGHTS_A_PROGRAM // format.block_elements
    bits = INTERPRETED and out.dtype == torch.bfloat16
    dequantize_kernel[(triton.cdiv(count, at_a_time),)](
        blocks, table_of(format, out.device), out.view(torch.int16) if bits else out, count, **constants_of(format),
        BLOCKS=at_a_time, BITS=bits, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
