"""A matrix in the place of attention, which mixes no tokens (as NVIDIA's Puzzle replaces layers, Bercovich et al. 2024)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kit.model.layers.kind import Recurrent, Tensor, matrix


@dataclass(frozen=True)
class OneMatrix(Recurrent):
    """The numbers of one layer, which remembers nothing."""

    hidden_size: int

    named = "one matrix"
    shapes: ClassVar = {}

    @classmethod
    def of(cls, facts, layer: int) -> "OneMatrix":
        return cls(facts.hidden_size)

    def tensors(self) -> Iterator[Tensor]:
        yield from matrix("attn_output", self.hidden_size, self.hidden_size)

    def run(self, ops, layer, x, input, after):
        ops.add_linear(x, f"blk.{layer}.attn_output.weight", input, after)
