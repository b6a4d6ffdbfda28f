"""The hyperparameters of a model, and its tensors in the order in which a forward pass reads them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kit.model.architectures import Architecture


@dataclass(frozen=True)
class RopeConfig:
    """RoPE: pair i of a head is rotated by p * base^(-2i / dims) at position p; long contexts scale these frequencies.

    Linear scaling divides all frequencies by ``factor``; yarn (Peng et al. 2023) divides the low ones, keeps the high ones
    and blends between; llama 3 stores divisors in the tensor ``rope_freqs.weight``.
    """

    dims: int  # number of elements of each head that are rotated, from the first; 0: no RoPE
    base: float
    factor: float
    yarn: bool
    original_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float


class Routing(NamedTuple):
    """How a token's experts are chosen from a router's scores."""

    used: int
    sigmoid: bool  # an expert's share is the sigmoid of its score; else a softmax over all scores
    normed: bool  # the shares of the chosen are divided by their sum
    scale: float
    groups: int  # experts are chosen from the ``groups_used`` best groups alone; 1: from all
    groups_used: int


class Latent(NamedTuple):
    """Sizes of latent attention (MLA): keys and values of all heads are projections of a latent of ``rank`` elements."""

    rank: int
    query_rank: int  # of the latent of queries; 0: they have none
    plain: int  # elements of a head's query and key without RoPE
    value: int  # elements of a head's value
    absorbed: bool  # queries and outputs are projected in place of keys and values, and the latent is all history


@dataclass(frozen=True)
class Config:
    """Hyperparameters of one file; sizes count elements."""

    architecture: str
    family: Architecture
    vocabulary: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int  # of one expert in a mixture of experts
    dense_size: int  # of a feed-forward layer that is no mixture
    context: int
    norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig  # of the layers with a window
    window: int  # positions that a query of a local layer attends to, its own included; 0: all
    local: tuple[bool, ...]  # for each layer, whether it has the window
    latent: Latent | None
    experts: int  # 0: a dense model
    mixtures: tuple[bool, ...]  # for each layer, whether it is a mixture of experts
    routing: Routing
    shared_intermediate_size: int  # of the experts that all tokens use; 0: none
    embedding_scale: float
    residual_scale: float
    attention_scale: float
    attention_cap: float  # scores s become cap * tanh(s / cap); 0: none
    logit_scale: float  # logits are divided by it
    qkv_limit: float  # queries, keys and values are clamped to -limit to limit; 0: they are not
    logit_cap: float
    tied: bool  # the output projection is the embedding

    @property
    def one_history(self) -> bool:
        """Whether keys are also the values: a latent."""
        return bool(self.latent and self.latent.absorbed)

    def window_of(self, layer: int) -> int:
        """Positions that a query of this layer attends to; 0: all."""
        return self.window if self.local[layer] else 0

    def rope_of(self, layer: int) -> RopeConfig | None:
        """RoPE of this layer; None: it has none."""
        every = self.family.no_rope_every
        if (every and (layer + 1) % every == 0) or not (self.family.global_rope or self.local[layer]):
            return None
        return self.local_rope if self.local[layer] else self.rope

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
        yield "rope_freqs.weight", (self.rope.dims // 2,), False
        for layer in range(self.layers):
            for part, shape in self._block(layer):
                if part == "exp_probs_b":
                    yield f"blk.{layer}.{part}.bias", shape, False
                    continue
                yield f"blk.{layer}.{part}.weight", shape, True
                if len(shape) > 1 or self.family.layer_norm:
                    yield f"blk.{layer}.{part}.bias", shape[: max(1, len(shape) - 1)], False
        if self.family.layer_norm != "bare":
            yield "output_norm.weight", (self.hidden_size,), True
        if self.family.layer_norm:
            yield "output_norm.bias", (self.hidden_size,), False
        if not self.tied:
            yield from (
                ("output.weight", (self.vocabulary, self.hidden_size), True),
                ("output.bias", (self.vocabulary,), False),
            )

    def _block(self, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(part, shape) of the weights of a block, in order of use."""
        hidden, family = self.hidden_size, self.family
        before_attention, after_attention, before_ffn, after_ffn = family.norms if family.layer_norm != "bare" else [""] * 4
        if before_attention:
            yield before_attention, (hidden,)
        yield from self._latent() if self.latent else self._heads()
        yield from ((norm, (hidden,)) for norm in (after_attention, before_ffn) if norm and norm != before_attention)
        if self.mixtures[layer]:
            yield from (("ffn_gate_inp", (self.experts, hidden)), ("exp_probs_b", (self.experts,)))
            yield from self._ffn("_exps", self.intermediate_size, (self.experts,))
            if self.shared_intermediate_size:
                yield from self._ffn("_shexp", self.shared_intermediate_size)
        else:
            yield from self._ffn("", self.dense_size)
        if after_ffn:
            yield after_ffn, (hidden,)

    def _heads(self):
        hidden, family, head_dim = self.hidden_size, self.family, self.head_dim
        q, kv = self.heads * head_dim, self.kv_heads * head_dim
        if "attn" in family.fused:
            yield "attn_qkv", (q + 2 * kv, hidden)
        else:
            yield from (("attn_q", (q, hidden)), ("attn_k", (kv, hidden)), ("attn_v", (kv, hidden)))
        if family.qk_norm:
            each = family.qk_norm != "all"
            yield from (("attn_q_norm", (head_dim if each else q,)), ("attn_k_norm", (head_dim if each else kv,)))
        if family.sinks:
            yield "attn_sinks", (self.heads,)
        yield "attn_output", (hidden, q)

    def _latent(self):
        rank, query_rank, plain, value, absorbed = self.latent
        hidden, heads, turned = self.hidden_size, self.heads, self.rope.dims
        if query_rank:
            yield from (("attn_q_a", (query_rank, hidden)), ("attn_q_a_norm", (query_rank,)))
        yield "attn_q_b" if query_rank else "attn_q", (heads * (plain + turned), query_rank or hidden)
        yield from (("attn_kv_a_mqa", (rank + turned, hidden)), ("attn_kv_a_norm", (rank,)))
        if absorbed:
            yield from (("attn_k_b", (heads, rank, plain)), ("attn_v_b", (heads, value, rank)))
        else:
            yield "attn_kv_b", (heads * (plain + value), rank)
        yield "attn_output", (hidden, heads * value)

    def _ffn(self, suffix, size, stack=()):
        if "ffn" in self.family.fused:
            yield f"ffn_up{suffix}", (*stack, 2 * size, self.hidden_size)
        else:
            parts = ("gate", "up") if self.family.gated else ("up",)
            yield from ((f"ffn_{part}{suffix}", (*stack, size, self.hidden_size)) for part in parts)
        yield f"ffn_down{suffix}", (*stack, self.hidden_size, size)
