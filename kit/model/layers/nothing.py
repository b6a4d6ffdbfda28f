"""No mixer, or no feed-forward network: in some families a layer has one of the two (Nemotron-H, Mamba-2)."""

from dataclasses import dataclass
from typing import ClassVar

from kit.model.layers.kind import Recurrent


@dataclass(frozen=True)
class Nothing(Recurrent):
    """A kind without tensors, which adds nothing and remembers nothing."""

    named = "none"
    shapes: ClassVar = {}

    @classmethod
    def of(cls, facts, layer: int) -> "Nothing":
        return cls()

    def tensors(self):
        return iter(())

    def run(self, ops, layer, x, input, after):
        """Leave x as it is."""
