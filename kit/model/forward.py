"""The forward pass of all architectures, written over the operations of an Ops object."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kit.model.config import Config, HeadConfig, SidecarConfig
from kit.model.kvcache import FixedState
from kit.model.layers.rope import RopeConfig


class Ops(ABC):
    """The operations of one pass; CpuOps and DeviceOps carry them out, and Plan records them.

    x is the residual stream (tokens, hidden_size) float32. An *input* of a linear layer has a form of the implementation's
    own: ``input``, ``norm`` and ``activate`` return it, ``linear`` and ``experts`` take it. All other values are
    tensors, of which the pass itself only takes views.
    """

    # Operations that see the positions or the states of a sequence: (layer, tensors with the tokens first). They are the only
    # ones, and what runs several sequences at once does each row of these by itself.
    OF_SEQUENCE = "rotate attend index index_blocks index_pools ngram_rows choose compress convolve recur".split()

    keeps = False  # whether ``keep`` wants the states of all tokens

    def __init__(self, model):
        self.config, self.weights, self.trace, self.ropes = model.config, model.weights, model.trace, model.ropes

    # ---- what all implementations do alike

    def norm(self, x: torch.Tensor, name: str):
        """The family's norm of x with the weight ``name``, or x itself for an empty name, as an input."""
        return self.input(self.rms_norm(x, name) if name else x)

    def rms_norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """The family's norm (RMSNorm, or LayerNorm) over the last axis of x with the weight ``name``, or "" for none."""
        start = self.begin()
        y = self.normed(x, self.vector(name), self.vector(name.replace("weight", "bias")))
        self.end("norm", start, name)
        return y

    def linear(self, name: str, input, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """W input + bias (if the file has one), (tokens, out); with ``add_to`` it is scaled and added to that instead."""
        start = self.begin()
        y = self.product(name, input)
        bias = self.vector(name.replace("weight", "bias"))
        if bias is not None:
            self.plus(y, bias, 1.0)
        self.end("linear", start, name, nbytes=self.nbytes(name))
        if add_to is not None:
            self.add(add_to, y)
        return y

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """x += residual_scale * y."""
        self.plus(x, y, self.config.residual_scale)

    def rotate(self, layer: int, *heads: torch.Tensor, index: bool = False, back: bool = False) -> None:
        """RoPE of a layer that has it, in place: of queries and, if there are some, keys (tokens, heads, head_dim), or of those
        of its index; or ``back``, of what attention gives."""
        start, mixer = self.begin(), self.config.layers[layer].mixer
        rope = mixer.index_rope if index else mixer.back_rope if back else mixer.rope
        for x, own in zip(heads, (rope, rope.of_keys), strict=False):
            if own.dims + own.still:
                self.turn(x, own)
        self.end("rope", start, layer=layer)

    def add_linear(self, x: torch.Tensor, name: str, input, norm: str) -> None:
        """x += W input, or x += RMSNorm(W input) with the weight ``norm``."""
        if norm:
            self.add(x, self.rms_norm(self.linear(name, input), norm))
        else:
            self.linear(name, input, add_to=x)

    def layer_norm(self, x: torch.Tensor, name: str, eps: float) -> torch.Tensor:
        """LayerNorm over the last axis of x, with the weight and the bias of ``name``, whatever the family's norm is."""
        start, y = self.begin(), self.new(*x.shape)
        self.do("norm", x, y, eps, *(self.vector(f"{name}.{part}") for part in ("weight", "bias")))
        self.end("norm", start, f"{name}.weight")
        return y

    def convolve(
        self, layer: int, x, before=None, after=None, *, taps: str, silu=False, state="inputs", apart: int = 1
    ) -> torch.Tensor:
        """A short convolution of x (tokens, channels) in a layer; before, after: factors of x and of the result.

        taps: the name of its weights, without ``blk.N.``; silu: whether that activation follows; state: which of the layer's
        states has the last inputs; apart: tokens from one tap to the next."""
        start, state = self.begin(), self.state(layer)[state]
        name, out = f"blk.{layer}.{taps}", self.new(*x.shape)
        weights, bias = self.vector(f"{name}.weight"), self.vector(f"{name}.bias")
        weights = weights.reshape(-1, weights.shape[-1]).T.contiguous()
        if apart > 1:
            near = weights.new_zeros((len(weights) - 1) * apart + 1, weights.shape[1])
            near[::apart] = weights
            weights = near
        self.do("convolution", x, weights, state, out, bias, before, after, silu)
        self.end("convolution", start, f"{name}.weight", nbytes=2 * state.nbytes)
        return out

    def recur(self, layer: int, *tensors: torch.Tensor, what: str, span: str, shape: tuple, **operands) -> torch.Tensor:
        """What an operation ``what`` that carries on the matrices of a layer gives for tensors with the tokens first: (tokens,
        *shape). ``operands``: its others, but for ``state`` and ``out``."""
        start, state, out = self.begin(), self.state(layer)["matrices"], self.new(len(tensors[0]), *shape)
        self.do(what, *tensors, state=state, out=out, **operands)
        self.end(span, start, layer=layer, nbytes=2 * state.nbytes)
        return out

    def make(self, what: str, *operands, shape: tuple = (), span: str, **constants) -> torch.Tensor | None:
        """What an operation ``what`` that sees no state gives, of that shape; of one that writes to an operand None."""
        start, out = self.begin(), [self.new(*shape)] if shape else []
        self.do(what, *operands, *out, **constants)
        self.end(span, start)
        return out[0] if out else None

    def gate(self, y: torch.Tensor, name: str, input) -> torch.Tensor:
        """y * sigmoid(w . input) of each token, in place, with the vector ``name`` for w."""
        start, x, w = self.begin(), self.values(input), self.vector(name)
        self.do("gate", x, w, y)
        self.end("gate", start, name, nbytes=w.nbytes)
        return y

    # ---- what each does in its own way; without one of these a class makes no object

    @abstractmethod
    def begin(self) -> int:
        """Where a span of the trace begins."""

    @abstractmethod
    def end(self, what: str, start: int, tensor: str = "", layer: int = -1, nbytes: int = 0, outcome: str = "") -> None:
        """Add the span that began at ``start``."""

    @abstractmethod
    def new(self, *shape: int) -> torch.Tensor:
        """Float32 for results."""

    @abstractmethod
    def do(self, name: str, *operands, **constants) -> None:
        """Do an operation of kit.cpu.operations."""

    @abstractmethod
    def state(self, layer: int) -> FixedState:
        """What a recurrent layer remembers of the sequence."""

    @abstractmethod
    def values(self, input) -> torch.Tensor:
        """The tensor that an input was made of."""

    @abstractmethod
    def vector(self, name: str) -> torch.Tensor | None:
        """A vector of the file, or of a stack of them (``name[3]``), None where there is none."""

    @abstractmethod
    def input(self, x: torch.Tensor):
        """x in the form that ``product`` takes."""

    @abstractmethod
    def product(self, name: str, input) -> torch.Tensor:
        """W input."""

    @abstractmethod
    def nbytes(self, name: str) -> int:
        """Bytes of weights that ``product`` reads."""

    @abstractmethod
    def normed(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The family's norm of x over its last axis."""

    @abstractmethod
    def plus(self, x: torch.Tensor, y: torch.Tensor, factor: float) -> None:
        """x += factor * y."""

    @abstractmethod
    def scale(self, x: torch.Tensor, factor: float) -> None:
        """x *= factor."""

    @abstractmethod
    def clamp(self, x: torch.Tensor, limit: float, below: bool = True) -> None:
        """x limited to -limit to limit, or from above alone, in place."""

    @abstractmethod
    def turn(self, x: torch.Tensor, rope: RopeConfig) -> None:
        """RoPE of x (tokens, heads, head_dim), in place."""

    @abstractmethod
    def embed(self, name: str, factor: float) -> torch.Tensor:
        """The tokens' rows of the embedding ``name`` times ``factor``, (tokens, elements)."""

    @abstractmethod
    def attend(self, layer: int, q: torch.Tensor, k=None, v=None) -> torch.Tensor:
        """KV cache and attention of q, k, v (tokens, heads, head_dim): (tokens, heads * head_dim). Without k and v the layer
        attends to what another one has written."""

    @abstractmethod
    def index(self, layer: int, keys: torch.Tensor) -> None:
        """Remember the tokens' keys (tokens, elements) in the index of a layer."""

    @abstractmethod
    def ngram_rows(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """The rows that the tokens, of which x has a row each, choose of the n-gram table of a layer, (tokens, elements)."""

    @abstractmethod
    def index_blocks(self, layer: int, keys: torch.Tensor) -> None:
        """Remember in the index of a layer the means of blocks of its tokens' keys (tokens, elements), normed by
        ``indexer.k_norm``, with RoPE at the first position of a block."""

    @abstractmethod
    def index_pools(self, layer: int, keys: torch.Tensor, gates: torch.Tensor) -> None:
        """Remember in the index of a layer the sums of pools of its tokens' keys (tokens, elements) by the softmax of their
        gates, to which those of ``indexer_compressor_ape`` are added."""

    @abstractmethod
    def compress(self, layer: int, rows: torch.Tensor, scores: torch.Tensor, *, name: str) -> None:
        """Remember one row for every so many positions of a layer, as kit.cpu.compress makes them of the tokens' rows and
        scores, (tokens, n) each, normed and with RoPE at the first position. ``name``: of its tensors; those of the indexer
        go to the index."""

    @abstractmethod
    def choose(self, layer: int, q: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Choose the positions to which ``attend`` of this layer, and of those after it without an index, attends: by the index
        of the layer, q (tokens, heads, elements) and weights (tokens, heads), or 1."""

    @abstractmethod
    def by_head(self, name: str, x: torch.Tensor, rows: bool = False) -> torch.Tensor:
        """``linear`` of each head with a matrix of its own, ``name[head]``: x (tokens, heads, in) -> (tokens, heads, out).
        ``rows``: they are equal parts of the rows of one."""

    @abstractmethod
    def join(self, parts: Sequence[torch.Tensor], size: int) -> torch.Tensor:
        """The parts (tokens, heads, elements) of each head one after another, and zeros up to ``size`` elements."""

    @abstractmethod
    def activate(self, activation: str, gate: torch.Tensor, up: torch.Tensor | None = None):
        """activation(gate), times up if there is one, as an input."""

    @abstractmethod
    def experts(self, router: str, stacks: list[str], input, scored=None) -> Iterator[tuple[int, Any, Any]]:
        """The experts that ``router`` chooses, whose matrices lie in ``stacks``: (expert, the input of its tokens, its share).
        ``scored``: the input of the router, if it is another.
        A recorded pass does not know which they are: there ``expert`` is the place among the chosen."""

    @abstractmethod
    def mix(self, x: torch.Tensor, y: torch.Tensor, share) -> None:
        """x += share * y, for the tokens of an expert."""

    @abstractmethod
    def keep(self, state: torch.Tensor) -> None:
        """Keep the states after the last norm (tokens, hidden_size) for an MTP head, where the sequence has room for them."""

    @abstractmethod
    def before(self) -> torch.Tensor:
        """What a drafter reads of what was kept of the position before each token, (tokens, ``config.read_size``)."""

    @abstractmethod
    def zeros(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros of the shape of x."""


def matrices(name: str, heads: int, rows: bool) -> list[str]:
    """The names of the matrices of ``by_head``."""
    return [f"{name}[{head}/{heads}]" if rows else f"{name}[{head}]" for head in range(heads)]


def forward(ops: Ops, config: Config, wanted: slice) -> torch.Tensor:
    """Logits (wanted tokens, vocabulary) of the tokens of ``ops``."""
    if type(config) in DRAFTERS:
        return DRAFTERS[type(config)](ops, config, wanted)
    x = ops.embed("token_embd.weight", config.embedding_scale)
    embedded = config.per_layer.embedded(ops, x) if config.per_layer else None
    x = config.hyper.begin(ops, x) if config.hyper else x
    for number, layer in enumerate(config.layers):
        layer.run(ops, number, x, embedded)
    norm = f"{config.family.last_norm}.weight"
    if config.hyper or not ops.keeps:
        output = config.hyper.end(ops, x[wanted]) if config.hyper else ops.norm(x[wanted], norm)
    else:
        state = ops.rms_norm(x, norm)
        ops.keep(state)
        output = ops.input(state[wanted])
    return scaled(ops.linear(config.output, output), config)


def predict(ops: Ops, config: HeadConfig, wanted: slice) -> torch.Tensor:
    """The same of an MTP head (DeepSeek-AI 2024, V3): a token and the state before it are joined, and one layer attends."""
    embedded = ops.rms_norm(ops.embed(config.embedding, config.embedding_scale), config.part("enorm"))
    before = ops.rms_norm(ops.before(), config.part("hnorm"))
    joined = ops.join((embedded[:, None], before[:, None]), 2 * config.hidden_size)[:, 0]
    x = ops.linear(config.part("eh_proj"), ops.input(joined))
    config.layers[-1].run(ops, config.number, x)
    state = ops.rms_norm(x[wanted], config.norm)
    ops.keep(state)
    return scaled(ops.linear(config.output, ops.input(state)), config)


def assist(ops: Ops, config: SidecarConfig, wanted: slice) -> torch.Tensor:
    """The same of a drafter in a file of its own, whose layers attend to the keys and values of the model."""
    x = ops.linear("nextn.pre_projection.weight", ops.input(ops.before()))
    for number, layer in enumerate(config.layers):
        layer.run(ops, number, x)
    state = ops.norm(x[wanted], f"{config.family.last_norm}.weight")
    ops.keep(ops.linear("nextn.post_projection.weight", state))
    return ops.linear(config.output, state)


DRAFTERS = {HeadConfig: predict, SidecarConfig: assist}


def scaled(logits: torch.Tensor, config: Config) -> torch.Tensor:
    """Logits divided by the scale, with the soft cap; in place."""
    if config.logit_scale != 1:
        logits = logits.div_(config.logit_scale)
    return logits.div_(config.logit_cap).tanh_().mul_(config.logit_cap) if config.logit_cap else logits
