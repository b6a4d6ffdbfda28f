"""The hyperparameters of a model, and its tensors in the order in which a forward pass reads them."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kit.model.architectures import Architecture
from kit.model.layers import Layer, Mixture
from kit.model.rope import RopeConfig


@dataclass(frozen=True)
class Config:
    """Hyperparameters of one file; sizes count elements. What differs by layer is held by the kinds of ``layers``."""

    architecture: str
    family: Architecture
    vocabulary: int
    layers: tuple[Layer, ...]
    hidden_size: int
    context: int
    norm_eps: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float  # logits are divided by it
    logit_cap: float
    tied: bool  # the output projection is the embedding

    @property
    def experts(self) -> int:
        """Experts of a mixture's layer; 0: a dense model."""
        return max(layer.feed_forward.experts if isinstance(layer.feed_forward, Mixture) else 0 for layer in self.layers)

    @property
    def said(self) -> str:
        """How many layers, and of which mixers if there are several kinds: "32" or "24 (18 of DeltaNet, 6 of Attention)"."""
        kinds = Counter(type(layer.mixer).__name__ for layer in self.layers)
        several = ", ".join(f"{number} of {kind}" for kind, number in kinds.items())
        return f"{len(self.layers)} ({several})" if len(kinds) > 1 else str(len(self.layers))

    @property
    def experts_used(self) -> int:
        """Experts that a token uses in a mixture's layer; 0: a dense model."""
        mixtures = (layer.feed_forward for layer in self.layers if isinstance(layer.feed_forward, Mixture))
        return max((mixture.routing.used for mixture in mixtures), default=0)

    @property
    def ropes(self) -> list[RopeConfig]:
        """The RoPEs of the layers, each once."""
        return list(dict.fromkeys(rope for layer in self.layers if (rope := layer.mixer.rope)))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor that a forward pass needs, in the order in which it reads them."""
        return {name: shape for name, shape, needed in self.layout() if needed}

    def optional_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of tensors that a file may also have: biases of the projections, llama 3's RoPE divisors."""
        return {name: shape for name, shape, needed in self.layout() if not needed}

    def order_of_use(self, names: Collection[str]) -> list[str]:
        """Those of ``names`` that each token reads whole, in order of use.

        The embedding is the last if it is the output projection, else it is left out, since a token reads one row of it.
        An expert's matrices (``stack[3]``) follow one another.
        """
        order = [name for name, *_ in self.layout() if name.startswith(("blk.", "output"))]
        place = {name: at for at, name in enumerate(order + ["token_embd.weight"] * self.tied)}

        def when(name):
            stack, _, expert = name.removesuffix("]").partition("[")
            router = stack.partition("ffn_")[0] + "ffn_gate_inp.weight" if "_exps." in stack else stack
            return place.get(router, -1), int(expert or 0), place.get(stack, -1)

        return sorted((name for name in names if when(name)[2] >= 0), key=when)

    def layout(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """(name, shape, whether it is required) of all tensors, in order of use."""
        yield "token_embd.weight", (self.vocabulary, self.hidden_size), True
        for rope in self.ropes[:1]:
            yield "rope_freqs.weight", (rope.dims // 2,), False
        for number, layer in enumerate(self.layers):
            yield from ((f"blk.{number}.{name}", shape, needed) for name, shape, needed in layer.tensors())
        if self.family.layer_norm != "bare":
            yield "output_norm.weight", (self.hidden_size,), True
        if self.family.layer_norm:
            yield "output_norm.bias", (self.hidden_size,), False
        if not self.tied:
            yield from (
                ("output.weight", (self.vocabulary, self.hidden_size), True),
                ("output.bias", (self.vocabulary,), False),
            )
