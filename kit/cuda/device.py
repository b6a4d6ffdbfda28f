"""The device of the Triton kernels, and pinned host memory."""

import numpy as np
import torch
import triton

from kit.errors import KitError

INTERPRETED = bool(triton.knobs.runtime.interpret)  # kernels run on the CPU
DEVICE = "cpu" if INTERPRETED else "cuda"


def require(what: str, instead: str, error: type[KitError]) -> None:
    """Raise ``error`` when there is neither a CUDA device nor the interpreter; it suggests ``instead``."""
    if not INTERPRETED and not torch.cuda.is_available():
        raise error(
            f"{what} needs a CUDA device and torch sees none: choose {instead} (`kit doctor` says what is missing), or set "
            "TRITON_INTERPRET=1 before Python starts to run its kernels slowly on the CPU"
        )


def pinned(array: np.ndarray) -> torch.Tensor:
    """A copy of ``array`` in pinned memory, from which a CUDA device copies at full speed; unpinned without a device."""
    host = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), device="cpu", pin_memory=torch.cuda.is_available())
    host.numpy()[...] = array
    return host
