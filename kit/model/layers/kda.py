"""Kimi delta attention (Moonshot AI 2025, Kimi Linear; Ling 3): a delta net whose matrix decays by each element of a key."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kit.cpu.shapes import LARGEST, state_shape
from kit.model.layers.kind import STATE, Recurrent, Tensor, matrix, vector

_PARTS, _LEAST = "qkv", 1e-6


@dataclass(frozen=True)
class Kda(Recurrent):
    """The numbers of one layer. Each of queries, keys and values has a convolution of its own."""

    hidden_size: int
    heads: int
    size: int  # elements of a head
    width: int  # tokens that a convolution sees
    bound: float  # the least log of a decay; 0: it has none
    one_gate: bool  # the gate comes from one matrix
    full_gates: bool  # decay and gate come from one matrix each; else from two, by ``size`` elements
    least: float = 0.0  # added to the squares of a query or key by which it is divided; 0: the epsilon of norms
    shapes_stored: tuple = ()  # of tensors that files have with axes of one element: (name, shape)

    named, spans = "kimi delta", {"convolution": STATE, "delta net": STATE}
    metadata = (r"ssm\.conv_kernel|kda\..+",)
    floats = tuple(f"ssm_conv1d_{part}.weight" for part in _PARTS)
    drawn = {name: (0, 0.4) for name in floats} | {"ssm_a": (0, 0.5)}

    @classmethod
    def of(cls, facts, layer: int) -> "Kda":
        keys, family = facts.keys, facts.family
        heads, size = facts.heads[layer], keys.count("kda.head_dim")
        keys.same("kda.safe_gate", True, "as in every such model")
        bound = keys.number("kda.gate_lower_bound", least=-math.inf) if family.full_gates else 0.0
        if family.bound_optional:
            bound = keys.number(key := "kda.gate_lower_bound", 0.0, least=-math.inf)
            if key in keys and not bound:
                keys.fail(key, "below 0, as the log of a decay is", "is 0")
        least = _LEAST if family.streams == "averaged" else 0.0
        width = keys.count("ssm.conv_kernel")
        plain = {f"ssm_conv1d_{part}.weight": (heads * size, width) for part in _PARTS} | {"ssm_a": (heads, 1)}
        stored = tuple((name, facts.shape_of(layer, name, shape)) for name, shape in plain.items())
        return cls(facts.hidden_size, heads, size, width, bound, family.one_gate, family.full_gates, least, stored)

    def problems(self):
        yield self.size <= LARGEST and self.size % 16 == 0, f"heads of {self.size} elements"
        yield self.bound <= 0, f"a lowest value of {self.bound:g} for the log of a decay, which is below 0"

    def tensors(self) -> Iterator[Tensor]:
        inner, hidden, shapes = self.heads * self.size, self.hidden_size, dict(self.shapes_stored)
        for part in _PARTS:
            yield from matrix(f"attn_{part}", inner, hidden)
        for part in _PARTS:
            name = f"ssm_conv1d_{part}.weight"
            yield Tensor(name, shapes[name])
        yield from self._gate("ssm_f", inner)
        yield Tensor("ssm_dt.bias", (inner,))
        yield Tensor("ssm_a", shapes["ssm_a"])
        yield from matrix("ssm_beta", self.heads, hidden)
        yield from matrix("ssm_g", inner, hidden) if self.one_gate else self._gate("ssm_g", inner)
        yield from vector("ssm_norm", self.size)
        yield from matrix("attn_output", hidden, inner)

    def _gate(self, name, inner):
        if self.full_gates:
            yield from matrix(f"{name}_a", inner, self.hidden_size)
        else:
            yield from matrix(f"{name}_a", self.size, self.hidden_size)
            yield from matrix(f"{name}_b", inner, self.size)

    def widths(self) -> Iterator[int]:
        yield from (self.size, self.heads * self.size)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what is remembered: the last inputs of each convolution, and the matrices."""
        inputs = {part: (self.width - 1, self.heads * self.size) for part in _PARTS}
        return inputs | {"matrices": state_shape(self.heads, self.size, self.size)}

    def run(self, ops, layer, x, input, after):
        block = f"blk.{layer}."
        q, k, v = (
            ops.convolve(
                layer, ops.linear(f"{block}attn_{part}.weight", input), taps=f"ssm_conv1d_{part}", silu=True, state=part
            )
            for part in _PARTS
        )
        decay = self._gated(ops, f"{block}ssm_f", input)
        z = ops.linear(f"{block}ssm_g.weight", input) if self.one_gate else self._gated(ops, f"{block}ssm_g", input)
        beta, eps = ops.linear(f"{block}ssm_beta.weight", input), ops.config.norm_eps
        a, dt, weight = (ops.vector(f"{block}ssm_{part}") for part in ("a", "dt.bias", "norm.weight"))
        mixed = ops.recur(
            layer, q, k, v, decay, beta, z, what="kda", span="delta net", shape=(self.heads, self.size), a=a.flatten(), dt=dt,
            weight=weight, bound=self.bound, eps=eps, least=self.least or eps,
        )  # fmt: skip
        ops.add_linear(x, f"{block}attn_output.weight", ops.input(mixed.flatten(1)), after)

    def _gated(self, ops, name, input):
        y = ops.linear(f"{name}_a.weight", input)
        return y if self.full_gates else ops.linear(f"{name}_b.weight", ops.input(y))
