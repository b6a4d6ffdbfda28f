"""A residual that begins anew every few layers, and a bank of what it was (Moonshot AI 2026, Kimi K3)."""

from collections.abc import Iterator
from dataclasses import dataclass

from kit.cpu.shapes import LARGEST
from kit.model.layers.hyper import ResidualStreams
from kit.model.layers.kind import Tensor, weight_name


@dataclass(frozen=True)
class Bank(ResidualStreams):
    """Of one layer: x is (tokens, streams * hidden_size), the residual and after it the ``banked`` inputs of earlier layers. A
    network takes the sum of these by the softmax of their scores (kit.cpu.bank). A layer that is ``new`` banks its input, and
    the residual goes on from what its mixer gives."""

    hidden_size: int
    streams: int
    banked: int
    new: bool

    @classmethod
    def of(cls, facts, layer: int) -> "Bank":
        every = facts.keys.count("attn_res.block_size")
        begins = [number % every == 0 for number in facts.numbers]
        if sum(begins) >= LARGEST:
            facts.keys.fail("attn_res.block_size", f"so large that there are less than {LARGEST} blocks", f"is {every}")
        return cls(facts.hidden_size, 1 + sum(begins), sum(begins[:layer]), begins[layer])

    def model_tensors(self) -> Iterator[Tensor]:
        yield Tensor("output_res_score.weight", (self.hidden_size,))

    def tensors(self, name: str) -> Iterator[Tensor]:
        yield Tensor(f"{_score(name)}.weight", (self.hidden_size,))

    def widths(self) -> Iterator[int]:
        yield self.hidden_size

    def begin(self, ops, x):
        """The embedding, and room for what is banked."""
        return ops.join((x[:, None],), self.streams * x.shape[1]).flatten(1)

    def run(self, ops, layer, number, x, embedded) -> None:
        """``layer``: kit.model.layers.Layer, whose networks run."""
        streams, banked = x.unflatten(1, (self.streams, self.hidden_size)), self.banked
        for network, name, norm, new in (
            (layer.mixer, "hc_attn", layer.norms[0], self.new), (layer.feed_forward, "hc_ffn", layer.norms[2], False),
        ):  # fmt: skip
            input = self._mixed(ops, streams, 1 + banked, f"blk.{number}.{_score(name)}")
            y = ops.zeros(input)
            network.run(ops, number, y, ops.norm(input, f"blk.{number}.{weight_name(norm)}"), "")
            banked += new
            ops.make("bank", streams, y, span="streams", place=banked if new else 0)

    def end(self, ops, x):
        """What the output is a product of."""
        streams = x.unflatten(1, (self.streams, self.hidden_size))
        return ops.norm(self._mixed(ops, streams, self.streams, "output_res_score"), "output_norm.weight")

    def _mixed(self, ops, streams, used: int, score: str):
        weight, shape = ops.vector(f"{score}.weight"), (len(streams), self.hidden_size)
        return ops.make("mix bank", streams, weight, shape=shape, span="streams", used=used, eps=ops.config.norm_eps)


def _score(name: str) -> str:
    """The name that files have for that of other residual streams."""
    return f"{name.removeprefix('hc_')}_res_score"
