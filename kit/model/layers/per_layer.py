"""Gemma's per-layer embeddings: each layer has a small embedding of its own for each token, and adds a gated part of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from kit.model.layers.kind import Tensor, matrix, vector


@dataclass(frozen=True)
class PerLayerInput:
    """What a layer does after its feed-forward network; ``size``: of a token's embedding for one of ``layers`` layers."""

    hidden_size: int
    layers: int
    size: int
    activation: str = "gelu"

    def model_tensors(self, vocabulary: int) -> Iterator[Tensor]:
        """The tensors outside all layers."""
        yield Tensor("per_layer_token_embd.weight", (vocabulary, self.layers * self.size))
        yield Tensor("per_layer_model_proj.weight", (self.layers * self.size, self.hidden_size))
        yield Tensor("per_layer_proj_norm.weight", (self.size,))

    def tensors(self) -> Iterator[Tensor]:
        yield from matrix("inp_gate", self.size, self.hidden_size)
        yield from matrix("proj", self.hidden_size, self.size)
        yield from vector("post_norm", self.hidden_size)

    def widths(self) -> Iterator[int]:
        yield self.size

    def embedded(self, ops, x):
        """The embeddings of all layers (tokens, layers, size): a row of their table and a projection of x, averaged."""
        rows = ops.embed("per_layer_token_embd.weight", self.size**0.5).unflatten(1, (self.layers, self.size))
        projected = ops.linear("per_layer_model_proj.weight", ops.input(x))
        ops.scale(projected, self.hidden_size**-0.5)
        projected = projected.unflatten(1, (self.layers, self.size))
        ops.plus(rows, ops.rms_norm(projected, "per_layer_proj_norm.weight"), 1.0)
        ops.scale(rows, 0.5**0.5)
        return rows

    def run(self, ops, layer, x, embedded):
        ops.add(x, self.made(ops, layer, x, embedded))

    def made(self, ops, layer, x, embedded):
        """What is added to x (tokens, hidden_size)."""
        block, row = f"blk.{layer}.", embedded[:, layer]
        row = row if row.is_contiguous() else ops.join((row[:, None],), self.size)[:, 0]  # a copy that a recording makes too
        own = ops.activate(self.activation, ops.linear(f"{block}inp_gate.weight", ops.input(x)), row)
        return ops.rms_norm(ops.linear(f"{block}proj.weight", own), f"{block}post_norm.weight")
