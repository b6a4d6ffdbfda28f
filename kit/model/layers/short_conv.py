"""The gated short convolution of LFM2 (Liquid AI 2025): out_proj(C * conv(B * X)), of the last few tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

from kit.model.layers.kind import STATE, Recurrent, Tensor, matrix


@dataclass(frozen=True)
class ShortConv(Recurrent):
    """The numbers of one layer."""

    hidden_size: int
    width: int  # tokens that the convolution sees

    named, metadata, spans = "short convolution", (r"shortconv\..+",), {"convolution": STATE}
    floats, drawn = ("shortconv.conv.weight",), {"shortconv.conv.weight": (0, 0.4)}

    @classmethod
    def of(cls, facts, layer: int) -> "ShortConv":
        return cls(facts.hidden_size, facts.keys.count("shortconv.l_cache"))

    def tensors(self) -> Iterator[Tensor]:
        yield from matrix("shortconv.in_proj", 3 * self.hidden_size, self.hidden_size)
        yield Tensor("shortconv.conv.weight", (self.hidden_size, self.width))
        yield from matrix("shortconv.out_proj", self.hidden_size, self.hidden_size)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what is remembered: the convolution's last inputs."""
        return {"inputs": (self.width - 1, self.hidden_size)}

    def run(self, ops, layer, x, input, after):
        block = f"blk.{layer}.shortconv."
        b, c, own = ops.linear(f"{block}in_proj.weight", input).chunk(3, 1)
        ops.add_linear(x, f"{block}out_proj.weight", ops.input(ops.convolve(layer, own, b, c, taps="shortconv.conv")), after)
