"""The feed-forward layer of Gemma 4's mixtures: a dense network beside a mixture of experts, each with its own norms."""

from collections.abc import Iterator
from dataclasses import dataclass

from kit.model.layers.dense import Dense, hidden
from kit.model.layers.kind import LayerKind, Tensor, vector
from kit.model.layers.mixture import Mixture


@dataclass(frozen=True)
class DenseAndMixture(LayerKind):
    """The numbers of one layer. The router sees x normed without weights, times ``ffn_gate_inp.scale`` and hidden_size^-0.5."""

    dense: Dense
    mixture: Mixture

    named, metadata, floats = "dense and mixture", Mixture.metadata, Mixture.floats

    @classmethod
    def of(cls, facts, layer: int) -> "DenseAndMixture":
        return cls(Dense.of(facts, layer), Mixture.of(facts, layer))

    @property
    def experts(self) -> int:
        return self.mixture.experts

    @property
    def routing(self):
        return self.mixture.routing

    def tensors(self) -> Iterator[Tensor]:
        size = self.dense.hidden_size
        yield from self.dense.tensors()
        yield from vector("post_ffw_norm_1", size)
        yield Tensor("ffn_gate_inp.scale", (size,))
        yield from vector("pre_ffw_norm_2", size)
        yield from self.mixture.tensors()
        yield Tensor("ffn_down_exps.scale", (self.experts,))
        yield from vector("post_ffw_norm_2", size)

    def widths(self) -> Iterator[int]:
        yield from (*self.dense.widths(), *self.mixture.widths())

    def run(self, ops, layer, x, input, after):
        block, name = f"blk.{layer}.", f"blk.{layer}.ffn_{{}}.weight"
        y = ops.linear(name.format("down"), hidden(self.dense, ops, name, input))
        y = ops.rms_norm(y, f"{block}post_ffw_norm_1.weight")
        scored = ops.rms_norm(x, f"{block}ffn_gate_inp.scale")
        ops.scale(scored, self.dense.hidden_size**-0.5)
        mixed = self.mixture.mixed(ops, layer, x, ops.norm(x, f"{block}pre_ffw_norm_2.weight"), ops.input(scored))
        ops.plus(y, ops.rms_norm(mixed, f"{block}post_ffw_norm_2.weight"), 1.0)
        ops.add(x, ops.rms_norm(y, after))
