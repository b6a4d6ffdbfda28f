"""Mamba (Gu & Dao 2023), the first one, also of FalconMamba and Jamba: each channel has a few numbers of state."""

from collections.abc import Iterator
from dataclasses import dataclass

from kit.cpu.shapes import state_shape
from kit.model.layers.delta_net import DeltaNet
from kit.model.layers.kind import STATE, Recurrent, Tensor, matrix, vector


@dataclass(frozen=True)
class Mamba(Recurrent):
    """The numbers of one layer. A product with each token gives the step, of low rank, and what is learned and asked (B, C)."""

    hidden_size: int
    inner: int  # channels
    keys: int  # numbers of state of a channel
    rank: int  # of the step
    width: int  # tokens that the convolution sees
    normed: bool = False  # step, B and C are normed
    weighted: bool = False  # with weights

    named, metadata, spans = "mamba", (r"ssm\..+",), {"convolution": STATE, "mamba": STATE}
    floats, drawn = DeltaNet.floats, DeltaNet.drawn | {"ssm_d": (0, 0.5)}

    @classmethod
    def of(cls, facts, layer: int) -> "Mamba":
        keys, weighted = facts.keys, facts.family.mamba_norms
        inner, state, rank, width = (
            keys.count(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank", "conv_kernel")
        )
        normed = weighted or keys.flag("ssm.dt_b_c_rms", False)
        return cls(facts.hidden_size, inner, state, rank, width, normed, weighted)

    def tensors(self) -> Iterator[Tensor]:
        yield from matrix("ssm_in", 2 * self.inner, self.hidden_size)
        yield Tensor("ssm_conv1d.weight", (self.inner, self.width))
        yield Tensor("ssm_conv1d.bias", (self.inner,), required=False)
        yield from matrix("ssm_x", self.rank + 2 * self.keys, self.inner)
        if self.weighted:
            for part, size in (("dt", self.rank), ("b", self.keys), ("c", self.keys)):
                yield from vector(f"ssm_{part}_norm", size)
        yield Tensor("ssm_dt.weight", (self.inner, self.rank))
        yield Tensor("ssm_dt.bias", (self.inner,))
        yield Tensor("ssm_a", (self.inner, self.keys))
        yield Tensor("ssm_d", (self.inner,))
        yield from matrix("ssm_out", self.hidden_size, self.inner)

    def widths(self) -> Iterator[int]:
        yield from (self.inner, self.rank, self.keys if self.normed else 0)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what is remembered: the convolution's last inputs, and the channels' numbers."""
        return {"inputs": (self.width - 1, self.inner), "matrices": state_shape(1, self.keys, self.inner)}

    def run(self, ops, layer, x, input, after):
        block = f"blk.{layer}."
        own, z = ops.linear(f"{block}ssm_in.weight", input).split(self.inner, 1)
        own = ops.convolve(layer, own, taps="ssm_conv1d", silu=True)
        parts = ops.linear(f"{block}ssm_x.weight", ops.input(own)).split([self.rank, self.keys, self.keys], 1)
        if self.normed:
            names = (f"{block}ssm_{part}_norm.weight" if self.weighted else "" for part in ("dt", "b", "c"))
            parts = [ops.rms_norm(part, name) for part, name in zip(parts, names, strict=True)]
        step, b, c = parts
        step = ops.linear(f"{block}ssm_dt.weight", ops.input(step))
        a, d = (ops.vector(f"{block}ssm_{part}") for part in "ad")
        mixed = ops.recur(layer, own, step, b, c, z, what="mamba", span="mamba", shape=(self.inner,), a=a, d=d)
        ops.add_linear(x, f"{block}ssm_out.weight", ops.input(mixed), after)
