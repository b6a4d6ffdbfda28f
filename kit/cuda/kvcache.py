"""Keys and values on the device, in memory that grows with them; with them what a CUDA graph of one decoding step needs."""

import torch

from kit.errors import ModelError, known
from kit.units import format_bytes

KV_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SMALLEST = 256  # positions


class DeviceKVCache:
    """Keys and values of up to ``context`` positions, all layers: (layers, kv_heads, capacity, head_dim) each.

    Memory is taken for a power of two of positions (256 at least, ``context`` at most) and doubled when they are full.
    Graphs look at the same powers of two, so a new size needs a new graph anyway; those of the old addresses are dropped.
    ``length`` positions are filled; ``passes`` counts forward passes. ``token`` and ``position`` are what a graph reads;
    ``graphs`` maps the number of positions that a graph looks at to the graph and its logits.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, context: int, dtype: str, device: torch.device):
        kept = known("KV cache type on a device", dtype, KV_DTYPES, ModelError)
        self.keys, self.values = torch.empty(2, layers, kv_heads, 0, head_dim, dtype=kept, device=device)
        self.dtype, self.context, self.length, self.passes = dtype, context, 0, 0
        self.bytes_per_position = 2 * layers * kv_heads * head_dim * kept.itemsize
        self.token = torch.zeros(1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.graphs: dict[int, tuple] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the positions held."""
        return self.length * self.bytes_per_position

    @property
    def capacity(self) -> int:
        """Positions that there is memory for."""
        return self.keys.shape[2]

    def rounded(self, positions: int) -> int:
        """The power of two for which memory is taken, and at which a graph looks, when that many positions are held."""
        return min(self.context, max(_SMALLEST, 1 << (positions - 1).bit_length()))

    def reserve(self, positions: int) -> None:
        """Make room for that many positions; ModelError when the device has none, and then nothing has changed."""
        if positions <= self.capacity:
            return
        capacity = self.rounded(positions)
        wanted, held = (format_bytes(count * self.bytes_per_position) for count in (capacity, self.capacity))
        try:
            grown = [self._grown(old, capacity) for old in (self.keys, self.values)]
        except torch.OutOfMemoryError:
            raise ModelError(
                f"the device has no room for keys and values of {capacity} positions in {self.dtype}, "
                f"{wanted} beside the {held} held: end before them, take a kv_dtype of 16 bits, or let fewer weights stay"
            ) from None
        self.graphs.clear()
        self.keys, self.values = grown

    def _grown(self, old, capacity):
        layers, kv_heads, _, head_dim = old.shape
        # zeros, for what is masked is multiplied by zero, and would stay a NaN if it were one
        new = old.new_zeros(layers, kv_heads, capacity, head_dim)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new

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
