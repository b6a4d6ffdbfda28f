"""Attention and Mamba-2 side by side in one layer, of the same input (Falcon-H1, TII 2025)."""

from dataclasses import dataclass, replace

from kit.model.layers.attention import Attention
from kit.model.layers.kind import Memory
from kit.model.layers.mamba2 import Mamba2


@dataclass(frozen=True)
class AttentionAndMamba2(Attention):
    """The numbers of one layer: those of its attention, and ``mamba``."""

    mamba: Mamba2 | None = None

    named, metadata, spans = "attention and mamba2", Attention.metadata + Mamba2.metadata, Attention.spans | Mamba2.spans
    floats, drawn, on_device = Mamba2.floats, Mamba2.drawn, False

    @classmethod
    def of(cls, facts, layer: int) -> "AttentionAndMamba2":
        mamba, norm = Mamba2.of(facts, layer), f"blk.{layer}.ssm_norm.weight"
        return replace(super().of(facts, layer), mamba=replace(mamba, normed=norm in facts.stored or not facts.stored))

    @property
    def groups(self) -> int:
        return self.mamba.groups

    def tensors(self):
        yield from self.mamba.tensors()
        yield from super().tensors()

    def widths(self):
        yield from (*self.mamba.widths(), *super().widths())

    def problems(self):
        yield from (*self.mamba.problems(), *super().problems())

    @property
    def memory(self) -> Memory:
        return super().memory._replace(fixed=self.mamba.memory.fixed)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.mamba.shapes

    def run(self, ops, layer, x, input, after):
        self.mamba.run(ops, layer, x, input, after)
        super().run(ops, layer, x, input, after)
