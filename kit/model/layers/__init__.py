"""The kinds of layers, a module each; ``MIXERS`` and ``FEED_FORWARD`` are their names in kit.model.architectures."""

from collections.abc import Iterator
from typing import NamedTuple

from kit.model.layers.altup import STREAMS, AltUp
from kit.model.layers.attention import Attention
from kit.model.layers.attention_and_mamba2 import AttentionAndMamba2
from kit.model.layers.bank import Bank
from kit.model.layers.both import DenseAndMixture
from kit.model.layers.compressed import Compressed
from kit.model.layers.delta_net import DeltaNet
from kit.model.layers.dense import Dense
from kit.model.layers.hyper import BALANCED, Balanced, Hyper, ResidualStreams
from kit.model.layers.kda import Kda
from kit.model.layers.kind import LayerKind, Memory, Tensor, weight_name
from kit.model.layers.latent import Latent
from kit.model.layers.mamba import Mamba
from kit.model.layers.mamba2 import Mamba2
from kit.model.layers.mixture import Mixture
from kit.model.layers.nothing import Nothing
from kit.model.layers.one_matrix import OneMatrix
from kit.model.layers.per_layer import PerLayerInput
from kit.model.layers.pooled_latent import PooledLatent
from kit.model.layers.short_conv import ShortConv
from kit.model.layers.sparse_attention import SparseAttention
from kit.model.layers.sparse_latent import SparseLatent

__all__ = [
    "BALANCED", "FEED_FORWARD", "KINDS", "MIXERS", "STREAMS", "AltUp", "Balanced", "Bank", "DeltaNet", "Hyper", "Layer",
    "Mamba2", "Memory", "PerLayerInput", "ResidualStreams",
]  # fmt: skip

MIXERS = {kind.named: kind for kind in (
    Attention, Latent, DeltaNet, Mamba2, ShortConv, AttentionAndMamba2, OneMatrix, SparseLatent, SparseAttention, Kda,
    Compressed, Mamba, PooledLatent,
    Nothing,
)}  # fmt: skip
FEED_FORWARD = {kind.named: kind for kind in (Dense, Mixture, DenseAndMixture, Nothing)}
KINDS: tuple[type[LayerKind], ...] = tuple(dict.fromkeys([*MIXERS.values(), *FEED_FORWARD.values()]))


class Layer(NamedTuple):
    """The kinds of one layer: what mixes the tokens, then a feed-forward network, each with its norms.

    ``norms``: names of norms, "" for none: before the mixer, after it, before the feed-forward network, after it; those after
    come before the residual sum. One name before both: both take the same input. A name that ends in "." is the whole name of
    its tensor, but for that. ``biased``: norms may have a bias.
    """

    mixer: object
    feed_forward: object
    norms: tuple[str, str, str, str]
    hidden_size: int
    biased: bool = False
    bare: bool = False  # norms have no weights
    per_layer: PerLayerInput | None = None
    parallel: bool = False  # both networks take x as it was before the layer, each by its own norm
    hyper: ResidualStreams | None = None  # the residual has several streams
    scaled: bool = False  # in the end x is multiplied by layer_output_scale, if the file has it

    def tensors(self) -> Iterator[Tensor]:
        """The tensors of the layer, in order of use."""
        before_mixer, after_mixer, before_ffn, after_ffn = [""] * 4 if self.bare else self.norms
        yield from self.hyper.tensors("hc_attn") if self.hyper else ()
        yield from self._norm(before_mixer)
        yield from self.mixer.tensors()
        yield from self._norm(after_mixer)
        yield from self.hyper.tensors("hc_ffn") if self.hyper else ()
        yield from self._norm(before_ffn if before_ffn != before_mixer else "")
        yield from self.feed_forward.tensors()
        yield from self._norm(after_ffn)
        if self.per_layer:
            yield from self.per_layer.tensors()
        if self.scaled:
            yield Tensor("layer_output_scale.weight", (1,), required=False)

    def widths(self) -> Iterator[int]:
        """Sizes that the CPU's recorded pass takes in vectors of sixteen."""
        for kind in filter(None, (self.mixer, self.feed_forward, self.per_layer, self.hyper)):
            yield from kind.widths()

    def _norm(self, name):
        if name:
            yield Tensor(weight_name(name), (self.hidden_size,))
            if self.biased:
                yield Tensor(f"{name}.bias", (self.hidden_size,), required=False)

    @property
    def on_cpu_alone(self) -> str:
        """What of this layer no other device runs; "" if all of it can run there."""
        if wrong := next((kind for kind in self[:2] if not kind.on_device), None):
            return f"layers of the kind {type(wrong).__name__}"
        mixer, shared = self.mixer, getattr(self.feed_forward, "shared_gated", False)
        other = self.hyper, self.per_layer, self.scaled, mixer.source is not None, mixer.gated, mixer.chunks, mixer.gate, shared
        return "gates, shared keys and values and per-layer embeddings" if any(other) else ""

    def run(self, ops, layer: int, x, embedded=None) -> None:
        """Add to x (tokens, hidden_size) what the two networks make of it. ``embedded``: of PerLayerInput."""
        if self.hyper:
            return self.hyper.run(ops, self, layer, x, embedded)
        before_mixer, after_mixer, before_ffn, after_ffn = (name and f"blk.{layer}.{weight_name(name)}" for name in self.norms)
        input = ops.norm(x, before_mixer)
        other = ops.norm(x, before_ffn) if self.parallel else input
        self.mixer.run(ops, layer, x, input, after_mixer)
        if not self.parallel and (not before_ffn or before_ffn != before_mixer):
            other = ops.norm(x, before_ffn)
        self.feed_forward.run(ops, layer, x, other, after_ffn)
        if self.per_layer:
            self.per_layer.run(ops, layer, x, embedded)
        factor = ops.vector(f"blk.{layer}.layer_output_scale.weight") if self.scaled else None
        if factor is not None:
            ops.scale(x, float(factor))
