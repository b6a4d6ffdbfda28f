"""dequantize: blocks of any format to numbers of any dtype, by any backend."""

import functools
import importlib

import numpy as np

from kit.cpu.buffers import ARENA
from kit.errors import QuantError, known
from kit.gguf.formats import DTYPES, FORMATS, Format

# A backend is a module with knows(format), DEVICE (of its results) and run(blocks, format, out). blocks: C-contiguous bytes
# (numpy array, or tensor on DEVICE). out: a contiguous tensor, or a numpy array where DEVICE is "cpu".
BACKENDS = {
    "reference": "kit.quants.reference",
    "plain": "kit.quants.plain",
    "cpu": "kit.cpu.dequantize",
    "triton": "kit.cuda.dequantize",
}
_module = functools.cache(importlib.import_module)


def dequantize(data, qtype, dtype="float32", backend: str = "cpu", out=None):
    """Dequantize ``data``: (*leading, bytes of a row) uint8 -> tensor or array of shape (*leading, weights of a row).

    data: numpy array or tensor of whole ggml blocks; it may be a read-only view of a mapped file.
    qtype: a name in FORMATS ("Q4_K") or a member of gguf.GGMLQuantizationType.
    dtype: "float32", "float16", "bfloat16" or a torch dtype give a tensor; np.float32 and np.float16 give a numpy array
    without importing torch. 16-bit results are the float32 result rounded to nearest even.
    backend: a name in BACKENDS; "reference" is gguf-py, which defines the right result; "plain" reads the
    format's row in numpy, for stepping through.
    out: a contiguous tensor or array of the result's shape and dtype. Without it, a large result reuses the memory of an
    earlier result of its size that is no longer referenced, because filling fresh memory takes several times as long.
    Raises QuantError for anything else.
    """
    format = known("format", getattr(qtype, "name", qtype), FORMATS, QuantError)
    in_numpy = isinstance(dtype, (type, np.dtype))
    name = np.dtype(dtype).name if in_numpy else str(dtype).removeprefix("torch.")
    known("dtype", name, DTYPES, QuantError)
    module = _module(known("backend", backend, BACKENDS, QuantError))
    if not module.knows(format):
        knows = ", ".join(sorted(other.name for other in FORMATS.values() if module.knows(other)))
        raise QuantError(f"backend {backend!r} cannot dequantize {format.name}; it supports {knows}")
    blocks, shape = _blocks(data, format, module.DEVICE)
    if out is None:
        out = _empty(shape, np.dtype(dtype) if in_numpy else dtype_named(dtype), module.DEVICE)
    else:
        _check_out(out, shape, name, module.DEVICE)
    if blocks.nbytes:
        module.run(blocks, format, out)
    return out


def dtype_named(dtype):
    """The torch dtype of a name in DTYPES, or of a torch dtype; QuantError lists the known names."""
    import torch

    name = str(dtype).removeprefix("torch.")
    known("dtype", name, DTYPES, QuantError)
    return getattr(torch, name)


def _empty(shape, dtype, device):
    if device == "cpu":
        return ARENA.weights.empty(shape, dtype)
    if isinstance(dtype, np.dtype):
        raise QuantError(f"numpy arrays are in main memory, but the backend works on {device}: give a torch dtype")
    import torch

    return torch.empty(shape, dtype=dtype, device=device)


def _is_tensor(data) -> bool:
    """Whether ``data`` is a torch tensor; torch is not imported for a numpy array."""
    if isinstance(data, np.ndarray):
        return False
    import torch

    return isinstance(data, torch.Tensor)


def _blocks(data, format: Format, device: str):
    """``data`` as C-contiguous bytes (a numpy array, or a tensor that is on ``device``), and the shape of its weights."""
    tensor = _is_tensor(data)
    is_bytes = str(data.dtype) == "torch.uint8" if tensor else isinstance(data, np.ndarray) and data.dtype == np.uint8
    if not is_bytes or not data.ndim:
        raise QuantError(f"{format.name}: blocks must be a uint8 array or tensor of at least one axis, not {_told(data)}")
    *leading, row_bytes = data.shape
    if row_bytes % format.block_bytes:
        raise QuantError(
            f"{format.name}: a row of {row_bytes} bytes is not a whole number of blocks of {format.block_bytes} bytes"
        )
    if not tensor:
        data = np.ascontiguousarray(data)
    elif data.device.type == "cpu":
        data = data.contiguous().numpy()
    elif data.device.type == device:
        data = data.contiguous()
    else:
        raise QuantError(f"{format.name}: blocks on {data.device.type}, but the backend works on {device}: move them first")
    return data, (*leading, row_bytes // format.block_bytes * format.block_elements)


def _check_out(out, shape, dtype: str, device: str) -> None:
    def refuse(actual):
        wanted = f"a contiguous {dtype} tensor{' or array' * (device == 'cpu')} of shape {tuple(shape)} on {device}"
        raise QuantError(f"out must be {wanted}, not {actual}")

    if isinstance(out, np.ndarray):
        contiguous, where = out.flags.c_contiguous and out.flags.writeable, "cpu"
    elif _is_tensor(out):
        contiguous, where = out.is_contiguous(), out.device.type
    else:
        refuse(_told(out))
    if out.shape != shape or str(out.dtype).removeprefix("torch.") != dtype or where != device or not contiguous:
        refuse(f"{_told(out)} on {where}{'' if contiguous else ', not contiguous'}")


def _told(value) -> str:
    """A value's type, and its dtype and shape if it has them, for an error message."""
    told = type(value).__name__
    return f"{told} of {value.dtype}, shape {tuple(value.shape)}" if hasattr(value, "dtype") else told
