"""The key/value cache on a CUDA device, in memory that grows, with the inputs of CUDA graphs of a decoding step."""

from collections.abc import Sequence

import torch

from kit.errors import ModelError, known
from kit.gguf.formats import DTYPES
from kit.model.kvcache import Positions
from kit.units import format_bytes

KV_DTYPES = {name: getattr(torch, name) for name in DTYPES}
_SMALLEST = 256  # least capacity, positions


class DeviceKVCache(Positions):
    """Keys and values of up to ``context`` positions: of each layer (kv_heads, capacity, head_dim), whose ``shapes`` are its
    (kv_heads, head_dim).

    The capacity is a power of two (at least 256, at most ``context``) and doubles when it is full; CUDA graphs, which hold
    addresses, are dropped then. ``token`` and ``position``: the inputs of a graph. ``graphs``: number of positions that a
    graph attends to -> (graph, its logits).
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], context: int, dtype: str, device: torch.device):
        kept = known("KV cache type on a device", dtype, KV_DTYPES, ModelError)
        self.keys, self.values = (
            [torch.empty(heads, 0, dim, dtype=kept, device=device) for heads, dim in shapes] for _ in "kv"
        )
        super().__init__(context, dtype, 2 * sum(heads * dim for heads, dim in shapes) * kept.itemsize)
        self.token = torch.zeros(1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.graphs: dict[int, tuple] = {}

    @property
    def capacity(self) -> int:
        """Positions that fit the allocated memory."""
        return self.keys[0].shape[1]

    def rounded(self, positions: int) -> int:
        """The capacity, and the number of positions that a graph attends to, for so many positions."""
        return min(self.context, max(_SMALLEST, 1 << (positions - 1).bit_length()))

    def reserve(self, positions: int) -> None:
        """Allocate memory for so many positions; ModelError when the device has too little, the cache is unchanged then."""
        if positions <= self.capacity:
            return
        capacity = self.rounded(positions)
        wanted, held = (format_bytes(count * self.bytes_per_position) for count in (capacity, self.capacity))
        try:
            grown = [[self._grown(layer, capacity) for layer in old] for old in (self.keys, self.values)]
        except torch.OutOfMemoryError:
            raise ModelError(
                f"the GPU has too little memory for a KV cache of {capacity} positions in {self.dtype}, "
                f"{wanted} more than the {held} in use: use a shorter context, a 16-bit kv_dtype, or a smaller weight cache"
            ) from None
        self.graphs.clear()
        self.keys, self.values = grown

    def _grown(self, old, capacity):
        kv_heads, _, head_dim = old.shape
        # zeros: masked values are multiplied by zero, and a NaN would remain
        new = old.new_zeros(kv_heads, capacity, head_dim)
        new[:, : self.length] = old[:, : self.length]
        return new

    def append(self, layer: int, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: int):
        """Write k and v (tokens, kv_heads, head_dim) at ``positions``; returns the layer's first ``seen`` keys and values."""
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(1, positions, k.transpose(0, 1).to(keys.dtype))
        values.index_copy_(1, positions, v.transpose(0, 1).to(values.dtype))
        return keys[:, :seen], values[:, :seen]
