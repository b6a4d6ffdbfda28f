"""Four alternating streams of the residual (Baykal et al. 2023, AltUp) with a low-rank residual (Laurel), as in Gemma 3n."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kit.model.layers.hyper import ResidualStreams
from kit.model.layers.kind import Tensor, matrix, vector, weight_name

STREAMS = 4
_RANK = 64  # of Laurel, in every such model


@dataclass(frozen=True)
class AltUp(ResidualStreams):
    """A layer predicts all streams from what a router makes of the first, its networks take the first, and the difference of
    what they give to the prediction corrects all."""

    hidden_size: int

    streams: ClassVar[int] = STREAMS

    def model_tensors(self) -> Iterator[Tensor]:
        for name in ("altup_proj", "altup_unembd_proj"):
            yield Tensor(f"{name}.weight", (STREAMS - 1, self.hidden_size, self.hidden_size))

    def tensors(self, name: str) -> Iterator[Tensor]:
        size = self.hidden_size
        if name == "hc_attn":
            yield from vector("altup_router_norm", size)
            yield from matrix("altup_router", STREAMS, size)
            yield Tensor("altup_predict_coef.weight", (STREAMS * STREAMS, STREAMS))
            yield from matrix("laurel_l", _RANK, size)
            yield from matrix("laurel_r", size, _RANK)
            yield from vector("laurel_post_norm", size)
        else:
            yield Tensor("altup_correct_coef.weight", (STREAMS, STREAMS))
            yield from vector("altup_correct_scale", size)

    def widths(self) -> Iterator[int]:
        yield self.hidden_size

    def begin(self, ops, x):
        """The embedding, and three products of it in its size."""
        return ops.join([part[:, None] for part in (x, *self._others(ops, "altup_proj", [x] * 3, x))], 4 * x.shape[1]).flatten(
            1
        )

    def end(self, ops, x):
        """The mean of the first stream and of products of the others in its size, normed."""
        first, *rest = (self._stream(ops, x, stream) for stream in range(STREAMS))
        others = self._others(ops, "altup_unembd_proj", rest, first)
        for other in others:
            ops.plus(first, other, 1.0)
        ops.scale(first, 1 / STREAMS)
        return ops.norm(first, "output_norm.weight")

    def run(self, ops, layer, number, x, embedded) -> None:
        """``layer``: kit.model.layers.Layer, whose networks run."""
        block, size = f"blk.{number}.", (len(x), STREAMS, self.hidden_size)
        before_mixer, after_mixer, before_ffn, after_ffn = (f"{block}{weight_name(name)}" for name in layer.norms)
        streams, first = x.unflatten(1, size[1:]), self._stream(ops, x, 0)
        weight = ops.vector(f"{block}altup_predict_coef.weight")
        predicted = ops.make("predict", streams, self._logits(ops, block, first), weight, shape=size, span="streams")
        y = self._stream(ops, predicted.flatten(1), 0)
        normed = ops.rms_norm(y, before_mixer)
        input = ops.input(normed)
        low = ops.linear(f"{block}laurel_r.weight", ops.input(ops.linear(f"{block}laurel_l.weight", input)))
        layer.mixer.run(ops, number, y, input, after_mixer)
        for part in (normed, ops.rms_norm(low, f"{block}laurel_post_norm.weight")):
            ops.plus(y, part, 1.0)
        ops.scale(y, 0.5**0.5)
        layer.feed_forward.run(ops, number, y, ops.norm(y, before_ffn), after_ffn)
        weight = ops.vector(f"{block}altup_correct_coef.weight")
        ops.make("correct", predicted, y, self._logits(ops, block, y), weight, streams, span="streams")
        own = ops.make("first", streams, ops.vector(f"{block}altup_correct_scale.weight"), shape=y.shape, span="streams")
        ops.make("others", streams, layer.per_layer.made(ops, number, own, embedded), span="streams")

    def _logits(self, ops, block, x):
        """What the router makes of a stream (tokens, n): (tokens, 4)."""
        normed = ops.rms_norm(x, f"{block}altup_router_norm.weight")
        ops.scale(normed, 1 / self.hidden_size)
        return ops.linear(f"{block}altup_router.weight", ops.input(normed))

    def _stream(self, ops, x, stream: int):
        """A copy of one stream, (tokens, n)."""
        return ops.join((x.unflatten(1, (STREAMS, self.hidden_size))[:, stream : stream + 1],), self.hidden_size).flatten(1)

    def _others(self, ops, name, parts, like):
        """A product of each of three parts, in the size of ``like``."""
        products = [ops.linear(f"{name}.weight[{number}]", ops.input(part)) for number, part in enumerate(parts)]
        return [ops.make("sized", y, like, shape=like.shape, span="streams") for y in products]
