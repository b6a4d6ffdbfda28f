"""Keys and values on the device, at addresses that stay; with them what a CUDA graph of one decoding step needs."""

import torch

from kit.errors import ModelError

KV_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class DeviceKVCache:
    """Keys and values of up to ``context`` positions, all layers: (layers, kv_heads, context, head_dim) each.

    ``length`` positions are filled; ``passes`` counts forward passes. ``token`` and ``position`` are what a graph reads;
    ``graphs`` maps the number of positions that a graph looks at to the graph and its logits.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, context: int, dtype: str, device: torch.device):
        if dtype not in KV_DTYPES:
            raise ModelError(f"KV cache type {dtype!r} is not known on a device; choose one of {', '.join(KV_DTYPES)}")
        shape = (layers, kv_heads, context, head_dim)
        self.keys = torch.zeros(shape, dtype=KV_DTYPES[dtype], device=device)
        self.values = torch.zeros_like(self.keys)
        self.dtype, self.context, self.length, self.passes = dtype, context, 0, 0
        self.token = torch.zeros(1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.graphs: dict[int, tuple] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the positions held."""
        return 2 * self.keys[:, :, : self.length].nbytes

    def append(self, layer: int, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: int):
        """Write k and v (tokens, kv_heads, head_dim) at ``positions``; the first ``seen`` positions of the layer."""
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(1, positions, k.transpose(0, 1).to(keys.dtype))
        values.index_copy_(1, positions, v.transpose(0, 1).to(values.dtype))
        return keys[:, :seen], values[:, :seen]

    def advance(self, tokens: int) -> None:
        """Close a pass: ``tokens`` more positions are held."""
        self.length += tokens
        self.passes += 1

    def truncate(self, length: int) -> None:
        """Forget the positions from ``length`` on."""
        self.length = min(self.length, length)
