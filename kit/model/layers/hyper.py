"""A residual of several streams (hyper-connections, Zhu et al. 2024): in the form of low rank that Qwen 4's trial has, and with
a balanced mixture of the streams (DeepSeek-AI 2026, V4: mHC)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kit.model.layers.kind import Tensor, weight_name

BALANCED = 4  # streams of the balanced form


def begin(ops, x, streams: int):
    """All streams begin as the embedding."""
    return ops.join((x[:, None],) * streams, streams * x.shape[1]).flatten(1)


class ResidualStreams:
    """What all forms share. x is (tokens, streams * hidden_size); ``normed``: no norm is before the output."""

    normed: ClassVar[bool] = False

    def model_tensors(self) -> Iterator[Tensor]:
        """Those outside all layers."""
        yield from self.tensors("output_hc", inject=False)

    def run(self, ops, layer, number, x, embedded) -> None:
        """The networks of a kit.model.layers.Layer on x. ``embedded``: of PerLayerInput."""
        if ngrams := getattr(layer.mixer, "ngrams", None):
            ngrams.run(ops, number, x)
        for network, name, norm in ((layer.mixer, "hc_attn", layer.norms[0]), (layer.feed_forward, "hc_ffn", layer.norms[2])):
            input, inject = self.before(ops, x, f"blk.{number}.{name}")
            y = ops.zeros(input)
            network.run(ops, number, y, ops.norm(input, norm and f"blk.{number}.{weight_name(norm)}"), "")
            self.after(ops, x, y, inject)


@dataclass(frozen=True)
class Hyper(ResidualStreams):
    """What is before and after each network of a layer; x is (tokens, streams * hidden_size).

    With n = RMSNorm of each stream * weight: a network's input is the mean over the streams of n * sigmoid(up(silu(down(n) /
    streams))), and what it gives is added to each stream times 2 sigmoid(inject(n) / streams).
    """

    hidden_size: int
    streams: int
    rank: int
    flat: bool = False  # norms are stored as one axis

    normed: ClassVar[bool] = True

    def tensors(self, name: str, inject: bool = True) -> Iterator[Tensor]:
        """Those of one network: ``name`` is "hc_attn", "hc_ffn", or "output_hc", which has no ``inject``."""
        whole = self.streams * self.hidden_size
        yield Tensor(f"{name}_norm.weight", (whole,) if self.flat else (self.streams, self.hidden_size))
        yield Tensor(f"{name}_down.weight", (self.rank, whole))
        yield Tensor(f"{name}_up.weight", (whole, self.rank))
        if inject:
            yield Tensor(f"{name}_inject.weight", (self.streams, whole))

    def widths(self) -> Iterator[int]:
        yield from (self.hidden_size, self.rank)

    def begin(self, ops, x):
        return begin(ops, x, self.streams)

    def before(self, ops, x, name: str):
        """(input of a network (tokens, hidden_size), logits by which its result is added, or None where there is no inject)."""
        streams = x.unflatten(1, (self.streams, self.hidden_size))
        weight = ops.vector(f"{name}_norm.weight").reshape(self.streams, self.hidden_size)
        start = ops.begin()
        normed = ops.normed(streams, weight, None)
        ops.end("norm", start, f"{name}_norm.weight")
        own = ops.input(normed.flatten(1))
        low = ops.linear(f"{name}_down.weight", own)
        ops.scale(low, 1 / self.streams)
        gates = ops.linear(f"{name}_up.weight", ops.activate("silu", low))
        gates = gates.unflatten(1, (self.streams, self.hidden_size))
        mixed = ops.make("mix streams", normed, gates, shape=(len(x), self.hidden_size), span="streams")
        inject = None if name == "output_hc" else ops.linear(f"{name}_inject.weight", own)
        return mixed, inject

    def after(self, ops, x, y, inject) -> None:
        """Add what a network gave, y (tokens, hidden_size), to each stream of x."""
        ops.make("spread", x.unflatten(1, (self.streams, self.hidden_size)), y, inject, span="streams")

    def end(self, ops, x):
        """What the output is a product of."""
        return ops.input(self.before(ops, x, "output_hc")[0])


@dataclass(frozen=True)
class Balanced(ResidualStreams):
    """The same with three numbers of each stream, products of all streams normed as one, as kit.cpu.streams.shares has them: a
    network's input is the sum of the streams times the first, and what it gives is added to each stream times the second, after
    the streams were mixed by the third: a matrix whose rows and columns sum to 1, by ``turns`` divisions."""

    hidden_size: int
    turns: int
    epsilon: float
    averaged: bool = False  # the end is the mean of the streams, without tensors
    magnitude: float = (
        0.0  # the streams are not mixed, and the second number is a sigmoid times that and the epsilon; 0: they are
    )

    streams: ClassVar[int] = BALANCED

    def model_tensors(self) -> Iterator[Tensor]:
        yield from () if self.averaged else super().model_tensors()

    def tensors(self, name: str, inject: bool = True) -> Iterator[Tensor]:
        """As those of Hyper."""
        count = BALANCED * (2 if self.magnitude else 2 + BALANCED) if inject else BALANCED
        yield Tensor(f"{name}_fn.weight", (count, BALANCED * self.hidden_size))
        yield Tensor(f"{name}_base.weight", (count,))
        yield Tensor(f"{name}_scale.weight", ((2 if self.magnitude else 3) if inject else 1,))

    def widths(self) -> Iterator[int]:
        yield self.hidden_size

    def begin(self, ops, x):
        return begin(ops, x, BALANCED)

    def before(self, ops, x, name: str):
        """(input of a network (tokens, hidden_size), the numbers of the streams)."""
        logits = ops.linear(f"{name}_fn.weight", ops.input(ops.rms_norm(x, "")))
        of = [ops.vector(f"{name}_{part}.weight") for part in ("scale", "base")]
        shares = ops.make(
            "share streams", logits, *of, shape=logits.shape, span="streams", turns=self.turns, epsilon=self.epsilon,
            magnitude=self.magnitude,
        )  # fmt: skip
        streams = x.unflatten(1, (BALANCED, self.hidden_size))
        return ops.make("weigh streams", streams, shares, shape=(len(x), self.hidden_size), span="streams"), shares

    def after(self, ops, x, y, shares) -> None:
        """Mix the streams of x, if they are, and add what a network gave, y (tokens, hidden_size)."""
        ops.make(
            "add unmixed" if self.magnitude else "mix balanced",
            x.unflatten(1, (BALANCED, self.hidden_size)),
            y,
            shares,
            span="streams",
        )

    def end(self, ops, x):
        """What the output is a product of."""
        if not self.averaged:
            return ops.norm(self.before(ops, x, "output_hc")[0], "output_norm.weight")
        parts = x.unflatten(1, (BALANCED, self.hidden_size)).split(1, 1)
        first, *others = (ops.join((part,), self.hidden_size).flatten(1) for part in parts)
        for other in others:
            ops.plus(first, other, 1.0)
        ops.scale(first, 1 / BALANCED)
        return ops.norm(first, "output_norm.weight")
