"""dequantize: the one way from blocks to numbers, whatever the format, the backend and the dtype."""

import importlib

import numpy as np

from kit.cpu.buffers import Buffers
from kit.errors import QuantError, known
from kit.gguf.formats import FORMATS, Format

# A backend is a module with knows(format), DEVICE (where its results live) and run(blocks, format, out): blocks are
# C-contiguous bytes (numpy array, or tensor on DEVICE), out a contiguous tensor, or array where DEVICE is the CPU.
BACKENDS = {"reference": "kit.quants.reference", "cpu": "kit.cpu.dequantize", "triton": "kit.cuda.dequantize"}
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a number
_LARGE = 2**18  # bytes of blocks
_results = Buffers()


def dequantize(data, qtype, dtype="float32", backend: str = "cpu", out=None):
    """The numbers in ``data``: (*leading, bytes of a row) uint8 -> tensor or array of shape (*leading, weights of a row).

    data: numpy array or tensor of whole ggml blocks; it may be a read-only view of a mapped file.
    qtype: a name in FORMATS ("Q4_K"), or gguf's own constant of it. dtype: "float32", "float16", "bfloat16" or the torch
    dtype give a tensor; np.float32 and np.float16 give a numpy array, and torch is not imported. What is not float32 is
    the float32 result rounded to nearest even. backend: a name in BACKENDS ("reference" is gguf-py, which defines right).
    out: a contiguous tensor or array of the result's shape and dtype to write to. Without it a large result lies in memory
    of an earlier one of its size that nobody looks at any more, if there is any: fresh memory costs several times as long.
    Anything else raises QuantError.
    """
    format = known("format", getattr(qtype, "name", qtype), FORMATS, QuantError)
    in_numpy = isinstance(dtype, (type, np.dtype))
    name = np.dtype(dtype).name if in_numpy else str(dtype).removeprefix("torch.")
    known("dtype", name, DTYPES, QuantError)
    module = importlib.import_module(known("backend", backend, BACKENDS, QuantError))
    if not module.knows(format):
        knows = ", ".join(sorted(other.name for other in FORMATS.values() if module.knows(other)))
        raise QuantError(f"backend {backend!r} cannot dequantize {format.name}; it knows {knows}")
    blocks, shape = _blocks(data, format, module.DEVICE)
    if out is None:
        out = _empty(shape, np.dtype(dtype) if in_numpy else dtype_named(dtype), module.DEVICE, blocks.nbytes >= _LARGE)
    else:
        _check_out(out, shape, name, module.DEVICE)
    if blocks.nbytes:
        module.run(blocks, format, out)
    return out


def dtype_named(dtype):
    """The torch dtype of a name in DTYPES (or of itself); QuantError lists the known ones."""
    import torch

    name = str(dtype).removeprefix("torch.")
    known("dtype", name, DTYPES, QuantError)
    return getattr(torch, name)


def _empty(shape, dtype, device, large: bool):
    if isinstance(dtype, np.dtype) and device != "cpu":
        raise QuantError(f"arrays lie in main memory and the backend works on {device}: ask for a torch dtype")
    if device == "cpu" and large:
        return _results.empty(shape, dtype)
    if isinstance(dtype, np.dtype):
        return np.empty(shape, dtype)
    import torch

    return torch.empty(shape, dtype=dtype, device=device)


def _is_tensor(data) -> bool:
    """Whether it is a torch tensor; what is no numpy array must be looked at by torch."""
    if isinstance(data, np.ndarray):
        return False
    import torch

    return isinstance(data, torch.Tensor)


def _blocks(data, format: Format, device: str):
    """``data`` as C-contiguous bytes (a numpy array, or a tensor already on the device), and the shape of its weights."""
    tensor = _is_tensor(data)
    if not (tensor or isinstance(data, np.ndarray)) or str(data.dtype) not in ("uint8", "torch.uint8") or not data.ndim:
        raise QuantError(f"{format.name}: blocks must be a uint8 array or tensor of at least one axis, not {_told(data)}")
    *leading, row_bytes = data.shape
    if row_bytes % format.block_bytes:
        raise QuantError(
            f"{format.name}: a row of {row_bytes} bytes is no whole number of blocks of {format.block_bytes} bytes"
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
    wanted = f"a contiguous {dtype} tensor{' or array' * (device == 'cpu')} of shape {tuple(shape)} on {device}"
    if isinstance(out, np.ndarray):
        contiguous, where = out.flags.c_contiguous and out.flags.writeable, "cpu"
    elif _is_tensor(out):
        contiguous, where = out.is_contiguous(), out.device.type
    else:
        raise QuantError(f"out must be {wanted}, not {_told(out)}")
    if out.shape != shape or str(out.dtype).removeprefix("torch.") != dtype or where != device or not contiguous:
        layout = "" if contiguous else ", not contiguous"
        raise QuantError(f"out must be {wanted}, not {_told(out)} on {where}{layout}")


def _told(value) -> str:
    """How an error message names a value: its type, and dtype and shape where it has them."""
    told = type(value).__name__
    return f"{told} of {value.dtype}, shape {tuple(value.shape)}" if hasattr(value, "dtype") else told
