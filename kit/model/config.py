"""The hyperparameters of a model, and its tensors in the order in which a forward pass reads them."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kit.model.architectures import Architecture
from kit.model.layers import Layer, PerLayerInput, ResidualStreams
from kit.model.layers.rope import RopeConfig


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
    def output(self) -> str:
        """The matrix that makes the logits."""
        return "token_embd.weight" if self.tied else "output.weight"

    @property
    def experts(self) -> int:
        """Experts of a mixture's layer; 0: a dense model."""
        return max(getattr(layer.feed_forward, "experts", 0) for layer in self.layers)

    @property
    def said(self) -> str:
        """How many layers, and of which mixers if there are several kinds: "32" or "24 (18 of DeltaNet, 6 of Attention)"."""
        kinds = Counter(type(layer.mixer).__name__ for layer in self.layers if any(layer.mixer.memory))
        several = ", ".join(f"{number} of {kind}" for kind, number in kinds.items())
        return f"{len(self.layers)} ({several})" if len(kinds) > 1 else str(len(self.layers))

    @property
    def experts_used(self) -> int:
        """Experts that a token uses in a mixture's layer; 0: a dense model."""
        return max(layer.feed_forward.routing.used if hasattr(layer.feed_forward, "routing") else 0 for layer in self.layers)

    @property
    def ropes(self) -> list[RopeConfig]:
        """The RoPEs of the layers, each once."""
        mixers = [layer.mixer for layer in self.layers]
        ropes = (rope for mixer in mixers for rope in (mixer.rope, mixer.index_rope, mixer.back_rope) if rope)
        return list(dict.fromkeys(each for rope in ropes for each in (rope, rope.of_keys)))

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
        order = [
            name
            for name, *_ in self.layout()
            if name.startswith(("per_layer_m", "per_layer_p", "altup_", "blk.", "output", f"{self.family.last_norm}."))
        ]
        place = {name: at for at, name in enumerate(order + ["token_embd.weight"] * self.tied)}

        def when(name):
            stack, _, expert = name.removesuffix("]").partition("[")
            router = stack.partition("ffn_")[0] + "ffn_gate_inp.weight" if "_exps." in stack else stack
            return place.get(router, -1), int(expert or 0), place.get(stack, -1)

        return sorted((name for name in names if when(name)[2] >= 0), key=when)

    @property
    def per_layer(self) -> PerLayerInput | None:
        """Per-layer embeddings; None: the model has none."""
        return self.layers[0].per_layer

    @property
    def hyper(self) -> ResidualStreams | None:
        """The residual's streams; None: it has one."""
        return self.layers[0].hyper

    def unread_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of tensors that a file may have and no token reads."""
        named = ((f"blk.{number}.{each.name}", each) for number, layer in enumerate(self.layers) for each in layer.tensors())
        return {name: each.shape for name, each in named if not each.read}

    def layout(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """(name, shape, whether it is required) of all tensors, in order of use."""
        yield "token_embd.weight", (self.vocabulary, self.hidden_size), True
        for rope in [rope for rope in self.ropes if rope.divisors][:1]:
            yield from ((name, (max(each.dims for each in self.ropes) // 2,), False) for name in rope.divisors)
        if self.per_layer:
            yield from (each[:3] for each in self.per_layer.model_tensors(self.vocabulary))
        for layer in self.layers:
            if ngrams := getattr(layer.mixer, "ngrams", None):
                yield from (each[:3] for each in ngrams.model_tensors())
        for number, layer in enumerate(self.layers):
            yield from ((f"blk.{number}.{name}", shape, needed) for name, shape, needed, read in layer.tensors() if read)
        if self.hyper:
            yield from (each[:3] for each in self.hyper.model_tensors())
        if not (self.hyper and self.hyper.normed) and self.family.layer_norm != "bare":
            yield f"{self.family.last_norm}.weight", (self.hidden_size,), True
        if self.family.layer_norm:
            yield "output_norm.bias", (self.hidden_size,), False
        if not self.tied:
            yield from (
                ("output.weight", (self.vocabulary, self.hidden_size), True),
                ("output.bias", (self.vocabulary,), False),
            )


@dataclass(frozen=True)
class HeadConfig(Config):
    """The same of a file's MTP head, the last of ``layers``, which predicts the token after the next.

    ``own``: what the head has in its section ``nextn``; it borrows the other tensors of the model's ends."""

    own: frozenset[str] = frozenset()

    @property
    def read_size(self) -> int:
        """Numbers that it reads of what was kept of the position before a token."""
        return self.hidden_size

    @property
    def number(self) -> int:
        """Of the head's layer."""
        return len(self.layers) - 1

    def part(self, name: str, borrowed: str = "") -> str:
        """The name of a tensor of the section, or that of the model's if the head has none."""
        return f"blk.{self.number}.nextn.{name}.weight" if name in self.own or not borrowed else borrowed

    @property
    def embedding(self) -> str:
        """The matrix that has a row for each token."""
        return self.part("embed_tokens", "token_embd.weight")

    @property
    def output(self) -> str:
        return self.part("shared_head_head", super().output)

    @property
    def norm(self) -> str:
        """The norm before the logits."""
        return self.part("shared_head_norm", f"{self.family.last_norm}.weight")

    def layout(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        width, matrix = self.hidden_size, (self.vocabulary, self.hidden_size)
        yield self.embedding, matrix, True
        for name, shape in (("enorm", (width,)), ("hnorm", (width,)), ("eh_proj", (width, 2 * width))):
            yield self.part(name), shape, True
        for name, shape, needed, read in self.layers[-1].tensors():
            if read:
                yield f"blk.{self.number}.{name}", shape, needed
        yield self.norm, (width,), True
        yield self.output, matrix, True


@dataclass(frozen=True)
class SidecarConfig(Config):
    """The same of a drafter in a file of its own (kit.model.sidecar), whose layers attend to what its model has written.
    ``wide``: elements of that model's states; ``sources``: of each layer the number of the model's."""

    wide: int = 0
    sources: tuple[int, ...] = ()

    @property
    def read_size(self) -> int:
        """Numbers that it reads of each token: its row of the model's embedding, and the state before it."""
        return 2 * self.wide

    def layout(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        yield "nextn.pre_projection.weight", (self.hidden_size, 2 * self.wide), True
        yield "nextn.post_projection.weight", (self.wide, self.hidden_size), True
        yield from super().layout()
