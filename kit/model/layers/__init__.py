"""The kinds of layers, a module each; ``MIXERS`` and ``FEED_FORWARD`` are their names in kit.model.architectures."""

from collections.abc import Iterator
from typing import NamedTuple

from kit.model.layers.attention import Attention
from kit.model.layers.delta_net import DeltaNet
from kit.model.layers.dense import Dense
from kit.model.layers.kind import Memory, Tensor, vector
from kit.model.layers.latent import Latent
from kit.model.layers.mamba2 import Mamba2
from kit.model.layers.mixture import Mixture

__all__ = [
    "FEED_FORWARD",
    "MIXERS",
    "Attention",
    "DeltaNet",
    "Dense",
    "Latent",
    "Layer",
    "Mamba2",
    "Memory",
    "Mixture",
    "Tensor",
]

MIXERS = {"attention": Attention, "latent": Latent, "delta net": DeltaNet, "mamba2": Mamba2}
FEED_FORWARD = {"dense": Dense, "mixture": Mixture}


class Layer(NamedTuple):
    """The kinds of one layer: what mixes the tokens, then a feed-forward network, each with its norms.

    ``norms``: names of norms, "" for none: before the mixer, after it, before the feed-forward network, after it; those after
    come before the residual sum. One name before both: both take the same input. ``biased``: norms may have a bias.
    """

    mixer: object
    feed_forward: object
    norms: tuple[str, str, str, str]
    hidden_size: int
    biased: bool = False
    bare: bool = False  # norms have no weights

    def tensors(self) -> Iterator[Tensor]:
        """The tensors of the layer, in order of use."""
        before_mixer, after_mixer, before_ffn, after_ffn = [""] * 4 if self.bare else self.norms
        yield from self._norm(before_mixer)
        yield from self.mixer.tensors()
        yield from self._norm(after_mixer)
        yield from self._norm(before_ffn if before_ffn != before_mixer else "")
        yield from self.feed_forward.tensors()
        yield from self._norm(after_ffn)

    def _norm(self, name):
        if name:
            yield from vector(name, self.hidden_size)
            if self.biased:
                yield Tensor(f"{name}.bias", (self.hidden_size,), required=False)

    def run(self, ops, layer: int, x) -> None:
        """Add to x (tokens, hidden_size) what the two networks make of it."""
        before_mixer, after_mixer, before_ffn, after_ffn = (name and f"blk.{layer}.{name}.weight" for name in self.norms)
        input = ops.norm(x, before_mixer)
        self.mixer.run(ops, layer, x, input, after_mixer)
        if not before_ffn or before_ffn != before_mixer:
            input = ops.norm(x, before_ffn)
        self.feed_forward.run(ops, layer, x, input, after_ffn)
