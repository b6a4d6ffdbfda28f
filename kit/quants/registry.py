"""dequantize: the one way from blocks to numbers, whatever the format, the backend and the dtype."""

import importlib

import gguf
import numpy as np
import torch

from kit.cpu.buffers import Buffers
from kit.errors import QuantError, known
from kit.gguf.formats import FORMATS, Format

# A backend is a module with knows(format), DEVICE (where its results live) and run(blocks, format, out): blocks are
# C-contiguous bytes (numpy array, or tensor on DEVICE), out a contiguous tensor.
BACKENDS = {"reference": "kit.quants.reference", "cpu": "kit.cpu.dequantize", "triton": "kit.cuda.dequantize"}
_LARGE = 2**18  # bytes of blocks
_results = Buffers()
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def dequantize(
    data, qtype: str | gguf.GGMLQuantizationType, dtype="float32", backend: str = "cpu", out: torch.Tensor | None = None
) -> torch.Tensor:
    """The numbers in ``data``: (*leading, bytes of a row) uint8 -> tensor of shape (*leading, weights of a row).

    data: numpy array or tensor of whole ggml blocks; it may be a read-only view of a mapped file.
    qtype: a name in FORMATS ("Q4_K"), or gguf's own constant of it. dtype: "float32", "float16", "bfloat16" or the torch
    dtype; the latter two are the float32 result rounded to nearest even. backend: a name in BACKENDS ("reference" is
    gguf-py, which defines right).
    out: a contiguous tensor of the result's shape and dtype to write to. Without it a large result lies in memory of an
    earlier one of its size that nobody looks at any more, if there is any: fresh memory costs several times as long.
    Anything else raises QuantError.
    """
    format = known("format", qtype.name if isinstance(qtype, gguf.GGMLQuantizationType) else qtype, FORMATS, QuantError)
    dtype = dtype_named(dtype)
    module = importlib.import_module(known("backend", backend, BACKENDS, QuantError))
    if not module.knows(format):
        knows = ", ".join(sorted(other.name for other in FORMATS.values() if module.knows(other)))
        raise QuantError(f"backend {backend!r} cannot dequantize {format.name}; it knows {knows}")
    blocks, shape = _blocks(data, format, module.DEVICE)
    if out is None:
        large = module.DEVICE == "cpu" and blocks.nbytes >= _LARGE
        out = _results.empty(shape, dtype) if large else torch.empty(shape, dtype=dtype, device=module.DEVICE)
    else:
        _check_out(out, shape, dtype, module.DEVICE)
    if out.numel():
        module.run(blocks, format, out)
    return out


def dtype_named(dtype) -> torch.dtype:
    """The torch dtype of a name in DTYPES (or of itself); QuantError lists the known ones."""
    return dtype if dtype in DTYPES.values() else known("dtype", dtype, DTYPES, QuantError)


def _blocks(data, format: Format, device: str):
    """``data`` as C-contiguous bytes (a numpy array, or a tensor already on the device), and the shape of its weights."""
    if not isinstance(data, (np.ndarray, torch.Tensor)) or data.dtype not in (np.uint8, torch.uint8) or not data.ndim:
        raise QuantError(f"{format.name}: blocks must be a uint8 array or tensor of at least one axis, not {_told(data)}")
    *leading, row_bytes = data.shape
    if row_bytes % format.block_bytes:
        raise QuantError(
            f"{format.name}: a row of {row_bytes} bytes is no whole number of blocks of {format.block_bytes} bytes"
        )
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data)
    elif data.device.type == "cpu":
        data = data.contiguous().numpy()
    elif data.device.type == device:
        data = data.contiguous()
    else:
        raise QuantError(f"{format.name}: blocks on {data.device.type}, but the backend works on {device}: move them first")
    return data, (*leading, row_bytes // format.block_bytes * format.block_elements)


def _check_out(out, shape, dtype, device) -> None:
    wanted = f"a contiguous {dtype} tensor of shape {tuple(shape)} on {device}"
    if not isinstance(out, torch.Tensor):
        raise QuantError(f"out must be {wanted}, not {_told(out)}")
    if out.shape != shape or out.dtype != dtype or out.device.type != device or not out.is_contiguous():
        layout = "" if out.is_contiguous() else ", not contiguous"
        raise QuantError(f"out must be {wanted}, not {_told(out)} on {out.device.type}{layout}")


def _told(value) -> str:
    """How an error message names a value: its type, and dtype and shape where it has them."""
    told = type(value).__name__
    return f"{told} of {value.dtype}, shape {tuple(value.shape)}" if hasattr(value, "dtype") else told
