"""The gated delta net of Qwen3-Next and Qwen3.5 (Yang et al. 2024): a matrix for each head in place of positions."""

from collections.abc import Iterator
from dataclasses import dataclass

from kit.cpu.shapes import LARGEST, state_shape
from kit.model.layers.kind import STATE, Recurrent, Tensor, matrix, vector
from kit.model.layers.ngrams import NGrams


@dataclass(frozen=True)
class DeltaNet(Recurrent):
    """The numbers of one layer. Head h of the values uses key head ``h % key_heads``, or with ``grouped`` (Qwen3-Next), where
    a key head's value heads and their gates follow one another, ``h // (heads / key_heads)``."""

    hidden_size: int
    heads: int  # of values
    key_heads: int
    size: int  # elements of a head
    width: int  # tokens that the convolution sees
    grouped: bool = False
    sigmoids: bool = False  # what the heads give is multiplied by sigmoid(z); else by silu(z)
    ngrams: NGrams | None = None  # a table of rows for the last tokens, of which this layer adds some to the residual first

    named, metadata, spans = "delta net", (r"ssm\..+|ple\..+",), {"convolution": STATE, "delta net": STATE}
    floats, drawn = ("ssm_conv1d.weight",), {"ssm_conv1d.weight": (0, 0.4), "ssm_a": (0, 0.5)}  # of ssm_a the log of -a

    @classmethod
    def of(cls, facts, layer: int) -> "DeltaNet":
        keys = facts.keys
        heads, size = keys.count("ssm.time_step_rank"), keys.count("ssm.state_size")
        keys.same("ssm.inner_size", heads * size, "the elements of all heads")
        return cls(
            hidden_size=facts.hidden_size,
            heads=heads,
            key_heads=keys.count("ssm.group_count"),
            size=size,
            width=keys.count("ssm.conv_kernel"),
            grouped=facts.family.grouped,
            sigmoids=facts.family.delta_sigmoids,
            ngrams=NGrams.of(facts, layer),
        )

    @property
    def channels(self) -> int:
        """Numbers that the convolution sees of a token: queries, keys and values."""
        return (2 * self.key_heads + self.heads) * self.size

    def problems(self):
        yield self.heads % self.key_heads == 0, f"{self.heads} heads of values, {self.key_heads} of keys"
        yield self.size <= LARGEST, f"heads of {self.size} elements"
        yield from self.ngrams.problems() if self.ngrams else ()

    def tensors(self) -> Iterator[Tensor]:
        values = self.heads * self.size
        yield from self.ngrams.tensors() if self.ngrams else ()
        yield from matrix("attn_qkv", self.channels, self.hidden_size)
        yield from matrix("attn_gate", values, self.hidden_size)
        yield Tensor("ssm_conv1d.weight", (self.channels, self.width))
        for name, rows in (("ssm_ba", 2),) if self.grouped else (("ssm_beta", 1), ("ssm_alpha", 1)):
            yield from matrix(name, rows * self.heads, self.hidden_size)
        yield Tensor("ssm_dt.bias", (self.heads,))
        yield Tensor("ssm_a", (self.heads,))
        yield from vector("ssm_norm", self.size)
        yield from matrix("ssm_out", self.hidden_size, values)

    def widths(self) -> Iterator[int]:
        yield from (self.channels, self.size)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what is remembered: the convolution's last inputs, and the matrices."""
        own = {"inputs": (self.width - 1, self.channels), "matrices": state_shape(self.heads, self.size, self.size)}
        return own | (self.ngrams.shapes if self.ngrams else {})

    def run(self, ops, layer, x, input, after):
        block = f"blk.{layer}."
        qkv, z = (ops.linear(f"{block}attn_{part}.weight", input) for part in ("qkv", "gate"))
        if self.grouped:
            gates = ops.linear(f"{block}ssm_ba.weight", input).unflatten(1, (self.key_heads, 2, -1))
            beta, alpha = gates.unbind(2)
        else:
            beta, alpha = (ops.linear(f"{block}ssm_{part}.weight", input) for part in ("beta", "alpha"))
        qkv = ops.convolve(layer, qkv, taps="ssm_conv1d", silu=True)
        a, dt, weight = (ops.vector(f"{block}ssm_{part}") for part in ("a", "dt.bias", "norm.weight"))
        mixed = ops.recur(
            layer, qkv, alpha, beta, z.unflatten(1, (self.heads, -1)), what="delta net", span="delta net",
            shape=(self.heads, self.size), a=a, dt=dt, weight=weight, key_heads=self.key_heads, eps=ops.config.norm_eps,
            sigmoids=self.sigmoids,
        )  # fmt: skip
        ops.add_linear(x, f"{block}ssm_out.weight", ops.input(mixed.flatten(1)), after)
