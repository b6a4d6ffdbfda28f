"""The forward pass of all architectures, written over the operations of an Ops object."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kit.model.config import Config
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
    OF_SEQUENCE = (
        "rotate",
        "attend",
        "index",
        "index_blocks",
        "ngram_rows",
        "choose",
        "compress",
        "convolve",
        "delta_net",
        "kda",
        "mamba2",
    )

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

    def delta_net(self, layer: int, qkv, alpha, beta, z: torch.Tensor) -> torch.Tensor:
        """The gated delta net of a layer with its norm and gate, as kit.cpu.recurrent.delta_net: of the shape of z."""
        mixer, state = self.config.layers[layer].mixer, self.state(layer)["matrices"]
        start, out = self.begin(), self.new(*z.shape)
        a, dt, weight = (self.vector(f"blk.{layer}.ssm_{part}") for part in ("a", "dt.bias", "norm.weight"))
        eps = self.config.norm_eps
        self.do("delta net", qkv, alpha, beta, a, dt, state, z, weight, mixer.key_heads, eps, out, mixer.sigmoids)
        self.end("delta net", start, layer=layer, nbytes=2 * state.nbytes)
        return out

    def kda(self, layer: int, q, k, v, decay, beta, z: torch.Tensor) -> torch.Tensor:
        """Kimi delta attention of a layer with its norm and gate, as kit.cpu.kda.kda: (tokens, heads, size)."""
        mixer, state = self.config.layers[layer].mixer, self.state(layer)["matrices"]
        start, out = self.begin(), self.new(len(q), mixer.heads, mixer.size)
        dt, a, weight = (self.vector(f"blk.{layer}.ssm_{part}") for part in ("dt.bias", "a", "norm.weight"))
        eps = self.config.norm_eps
        self.do("kda", q, k, v, decay, dt, a.flatten(), beta, state, z, weight, mixer.bound, eps, mixer.least or eps, out)
        self.end("delta net", start, layer=layer, nbytes=2 * state.nbytes)
        return out

    def mix_streams(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """The mean over the streams of x * sigmoid(gates), both (tokens, streams, n): (tokens, n)."""
        start, out = self.begin(), self.new(len(x), x.shape[2])
        self.do("mix streams", x, gates, out)
        self.end("streams", start)
        return out

    def gate_streams(self, key: torch.Tensor, query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """value (tokens, n) for each stream, gated by key . query of it, (tokens, streams, n), as kit.cpu.streams.gate_step."""
        start, out = self.begin(), self.new(*key.shape)
        self.do("gate streams", key, query, value, out)
        self.end("streams", start)
        return out

    def spread(self, x: torch.Tensor, y: torch.Tensor, logits: torch.Tensor) -> None:
        """x (tokens, streams, n) += 2 sigmoid(logits / streams) y, y (tokens, n) and logits (tokens, streams)."""
        start = self.begin()
        self.do("spread", x, y, logits)
        self.end("streams", start)

    def share_streams(self, logits: torch.Tensor, name: str, turns: int, epsilon: float) -> torch.Tensor:
        """Numbers of four streams by the scale and the base of ``name``, as kit.cpu.streams.shares_step, shaped as logits."""
        start, out = self.begin(), self.new(*logits.shape)
        scale, base = (self.vector(f"{name}_{part}.weight") for part in ("scale", "base"))
        self.do("share streams", logits, scale, base, out, turns=turns, epsilon=epsilon)
        self.end("streams", start)
        return out

    def weigh_streams(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """The sum of the streams of x (tokens, 4, n) by their shares: (tokens, n)."""
        start, out = self.begin(), self.new(len(x), x.shape[2])
        self.do("weigh streams", x, shares, out)
        self.end("streams", start)
        return out

    def mix_balanced(self, x: torch.Tensor, y: torch.Tensor, shares: torch.Tensor) -> None:
        """Mix the streams of x (tokens, 4, n) in place, and add y (tokens, n), by their shares."""
        start = self.begin()
        self.do("mix balanced", x, y, shares)
        self.end("streams", start)

    def gate_heads(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """x (tokens, heads, n) times the sigmoid of a gate of each head (tokens, heads)."""
        start, y = self.begin(), self.new(*x.shape)
        self.do("gate heads", x, gates, y)
        self.end("gate", start)
        return y

    def mamba2(self, layer: int, xbc, dt, z: torch.Tensor) -> torch.Tensor:
        """Mamba-2 of a layer with its gate, as kit.cpu.recurrent.mamba2: of the shape of z."""
        mixer, state = self.config.layers[layer].mixer, self.state(layer)["matrices"]
        start, out = self.begin(), self.new(*z.shape)
        a, bias, d = (self.vector(f"blk.{layer}.ssm_{part}") for part in ("a", "dt.bias", "d"))
        self.do("mamba2", xbc, dt, a, bias, d, state, z, mixer.groups, out)
        self.end("mamba2", start, layer=layer, nbytes=2 * state.nbytes)
        return out

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
    def zeros(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros of the shape of x."""


def matrices(name: str, heads: int, rows: bool) -> list[str]:
    """The names of the matrices of ``by_head``."""
    return [f"{name}[{head}/{heads}]" if rows else f"{name}[{head}]" for head in range(heads)]


def forward(ops: Ops, config: Config, wanted: slice) -> torch.Tensor:
    """Logits (wanted tokens, vocabulary) of the tokens of ``ops``."""
    x = ops.embed("token_embd.weight", config.embedding_scale)
    x = config.hyper.begin(ops, x) if config.hyper else x
    embedded = config.per_layer.embedded(ops, x) if config.per_layer else None
    for number, layer in enumerate(config.layers):
        layer.run(ops, number, x, embedded)
    x = x[wanted]
    output = config.hyper.end(ops, x) if config.hyper else ops.norm(x, f"{config.family.last_norm}.weight")
    return scaled(ops.linear("token_embd.weight" if config.tied else "output.weight", output), config)


def scaled(logits: torch.Tensor, config: Config) -> torch.Tensor:
    """Logits divided by the scale, with the soft cap; in place."""
    if config.logit_scale != 1:
        logits = logits.div_(config.logit_scale)
    return logits.div_(config.logit_cap).tanh_().mul_(config.logit_cap) if config.logit_cap else logits
