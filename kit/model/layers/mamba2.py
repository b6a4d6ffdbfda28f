"""Mamba-2 (Dao & Gu 2024), as in Granite 4: a matrix for each head in place of positions."""

from collections.abc import Iterator
from dataclasses import dataclass

from kit.cpu.shapes import state_shape
from kit.model.layers.delta_net import DeltaNet
from kit.model.layers.kind import STATE, Recurrent, Tensor, matrix


@dataclass(frozen=True)
class Mamba2(Recurrent):
    """The numbers of one layer. Head h uses keys and queries (B and C) of group ``h // (heads / groups)``."""

    hidden_size: int
    inner: int  # numbers of all heads
    heads: int
    keys: int  # of a head's matrix
    groups: int
    width: int  # tokens that the convolution sees
    normed: bool = True  # what the heads give is normed by group

    named, metadata, spans = "mamba2", (r"ssm\..+",), {"convolution": STATE, "mamba2": STATE}
    floats, drawn = DeltaNet.floats, DeltaNet.drawn | {"ssm_d": (0, 0.5)}

    @classmethod
    def of(cls, facts, layer: int) -> "Mamba2":
        keys = facts.keys
        return cls(
            hidden_size=facts.hidden_size,
            inner=keys.count("ssm.inner_size"),
            heads=keys.count("ssm.time_step_rank"),
            keys=keys.count("ssm.state_size"),
            groups=keys.count("ssm.group_count", 0) or 1,
            width=keys.count("ssm.conv_kernel"),
        )

    @property
    def channels(self) -> int:
        """Numbers that the convolution sees of a token: x of all heads, B and C of all groups."""
        return self.inner + 2 * self.groups * self.keys

    def problems(self):
        yield self.inner % self.heads == 0, f"{self.inner} numbers in {self.heads} heads"
        yield self.heads % self.groups == 0, f"{self.heads} heads in {self.groups} groups"

    def tensors(self) -> Iterator[Tensor]:
        yield from matrix("ssm_in", self.inner + self.channels + self.heads, self.hidden_size)
        yield Tensor("ssm_conv1d.weight", (self.channels, self.width))
        yield Tensor("ssm_conv1d.bias", (self.channels,), required=False)
        yield Tensor("ssm_dt.bias", (self.heads,))
        yield Tensor("ssm_a", (self.heads, 1))
        yield Tensor("ssm_d", (self.heads, 1))
        if self.normed:
            yield Tensor("ssm_norm.weight", (self.groups, self.inner // self.groups))
        yield from matrix("ssm_out", self.hidden_size, self.inner)

    def widths(self) -> Iterator[int]:
        yield from (self.inner // self.groups, self.inner // self.heads, self.keys)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what is remembered: the convolution's last inputs, and the matrices."""
        matrices = state_shape(self.heads, self.keys, self.inner // self.heads)
        return {"inputs": (self.width - 1, self.channels), "matrices": matrices}

    def run(self, ops, layer, x, input, after):
        block = f"blk.{layer}."
        z, xbc, dt = ops.linear(f"{block}ssm_in.weight", input).split([self.inner, self.channels, self.heads], 1)
        xbc = ops.convolve(layer, xbc, taps="ssm_conv1d", silu=True)
        a, bias, d = (ops.vector(f"{block}ssm_{part}") for part in ("a", "dt.bias", "d"))
        mixed = ops.recur(
            layer, xbc, dt, z.unflatten(1, (self.heads, -1)), what="mamba2", span="mamba2",
            shape=(self.heads, self.inner // self.heads), a=a, dt_bias=bias, d=d, groups=self.groups,
        ).flatten(1)  # fmt: skip
        if self.normed:
            mixed = ops.rms_norm(mixed.unflatten(1, (self.groups, -1)), f"{block}ssm_norm.weight").flatten(1)
        ops.add_linear(x, f"{block}ssm_out.weight", ops.input(mixed), after)
