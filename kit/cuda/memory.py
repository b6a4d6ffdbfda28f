"""Memory on both sides of the bus."""

import numpy as np
import torch


def pinned(array: np.ndarray) -> torch.Tensor:
    """A copy of ``array`` in host memory from which a CUDA device reads by itself; in ordinary memory without a device."""
    host = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), pin_memory=torch.cuda.is_available())
    host.numpy()[...] = array
    return host
