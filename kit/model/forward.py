"""The forward pass of all architectures, written over the operations of an Ops object."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kit.model.config import Config


class Ops:
    """The operations of one pass; CpuOps and DeviceOps carry them out, and Plan records them.

    x is the residual stream (tokens, hidden_size) float32. An *input* of a linear layer has a form of the implementation's
    own: ``input``, ``norm`` and ``activate`` return it, ``linear`` and ``experts`` take it. All other values are
    tensors, of which the pass itself only takes views.
    """

    def __init__(self, model):
        self.config, self.weights, self.trace, self.ropes = model.config, model.weights, model.trace, model.ropes

    # ---- what all implementations do alike

    def norm(self, x: torch.Tensor, name: str):
        """The family's norm of x with the weight ``name``, or x itself for an empty name, as an input."""
        return self.input(self.rms_norm(x, name) if name else x)

    def rms_norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """The family's norm (RMSNorm, or LayerNorm) over the last axis of x with the weight ``name``."""
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

    def rotate(self, layer: int, heads: Sequence[torch.Tensor]) -> None:
        """RoPE of a layer that has it, in place, on each of ``heads`` (tokens, heads, head_dim)."""
        start = self.begin()
        for x in heads:
            self.turn(x, self.config.rope_of(layer))
        self.end("rope", start, layer=layer)

    # ---- what each does in its own way; a trace's span lies between ``begin`` and ``end(what, start, tensor, ...)``
    # vector(name): a vector of the file, or of a stack of them (``name[3]``), None where there is none
    # input(x): x in the form that ``product(name, input)`` = W input takes; nbytes(name): of the weights that this reads
    # normed(x, weight, bias); plus(x, y, factor): x += factor * y; turn(x, rope): RoPE, clamp(x, limit), in place

    def embed(self) -> torch.Tensor:
        """x of the tokens: scaled rows of the embedding."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """KV cache and attention of q, k, v (tokens, heads, head_dim): (tokens, heads * head_dim)."""

    def by_head(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """``linear`` of each head with a matrix of its own, ``name[head]``: x (tokens, heads, in) -> (tokens, heads, out)."""

    def join(self, parts: Sequence[torch.Tensor], size: int) -> torch.Tensor:
        """The parts (tokens, heads, elements) of each head one after another, and zeros up to ``size`` elements."""

    def activate(self, gate: torch.Tensor, up: torch.Tensor | None = None):
        """activation(gate), times up if there is one, as an input."""

    def experts(self, router: str, stacks: list[str], input) -> Iterator[tuple[int, Any, Any]]:
        """The experts that ``router`` chooses, whose matrices lie in ``stacks``: (expert, the input of its tokens, its share).
        A recorded pass does not know which they are: there ``expert`` is the place among the chosen."""

    def mix(self, x: torch.Tensor, y: torch.Tensor, share) -> None:
        """x += share * y, for the tokens of an expert."""

    def zeros(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros of the shape of x."""


def forward(ops: Ops, config: Config, wanted: slice) -> torch.Tensor:
    """Logits (wanted tokens, vocabulary) of the tokens of ``ops``."""
    x = ops.embed()
    for layer in range(config.layers):
        block = f"blk.{layer}."
        before_attention, after_attention, before_ffn, after_ffn = (
            norm and f"{block}{norm}.weight" for norm in config.family.norms
        )
        input = ops.norm(x, before_attention)
        q, k, v = (_latent if config.latent else _heads)(ops, config, block, input)
        if config.rope_of(layer):
            ops.rotate(layer, (q, k))
        if config.family.qk_norm == "after":
            q, k = _normed(ops, block, q, k)
        mixed = ops.attend(layer, q, k, v)
        if config.latent:
            mixed = _values(ops, config, block, mixed)
        _add_linear(ops, x, f"{block}attn_output.weight", ops.input(mixed), after_attention)
        if not before_ffn or before_ffn != before_attention:
            input = ops.norm(x, before_ffn)
        mixture = config.mixtures[layer]
        if mixture:
            ops.add(x, _experts(ops, config, block, input, x))
        if config.shared_intermediate_size or not mixture:
            suffix = "_shexp.weight" if mixture else ".weight"
            _add_linear(ops, x, f"{block}ffn_down{suffix}", _hidden(ops, config, block, suffix, input), after_ffn)
    output = ops.norm(x[wanted], "output_norm.weight")
    return scaled(ops.linear("token_embd.weight" if config.tied else "output.weight", output), config)


def scaled(logits: torch.Tensor, config: Config) -> torch.Tensor:
    """Logits divided by the scale, with the soft cap; in place."""
    if config.logit_scale != 1:
        logits = logits.div_(config.logit_scale)
    return logits.div_(config.logit_cap).tanh_().mul_(config.logit_cap) if config.logit_cap else logits


def _heads(ops, c, block, input):
    """q, k and v, (tokens, heads, head_dim) each, before RoPE."""
    if "attn" in c.family.fused:
        sizes = [count * c.head_dim for count in (c.heads, c.kv_heads, c.kv_heads)]
        q, k, v = ops.linear(f"{block}attn_qkv.weight", input).split(sizes, 1)
    else:
        q, k, v = (ops.linear(f"{block}attn_{part}.weight", input) for part in "qkv")
    if c.qkv_limit:
        for part in (q, k, v):
            ops.clamp(part, c.qkv_limit)
    if c.family.qk_norm == "all":
        q, k = _normed(ops, block, q, k)
    q, k, v = (part.unflatten(1, (-1, c.head_dim)) for part in (q, k, v))
    if c.family.qk_norm == "head":
        q, k = _normed(ops, block, q, k)
    return q, k, v


def _normed(ops, block, q, k):
    return ops.rms_norm(q, f"{block}attn_q_norm.weight"), ops.rms_norm(k, f"{block}attn_k_norm.weight")


def _latent(ops, c, block, input):
    """q, k and v of latent attention, in each the elements with RoPE first. Absorbed, all heads share one key, which is also
    the value: the latent."""
    rank, query_rank, plain, value, absorbed = c.latent
    if query_rank:
        q = ops.norm(ops.linear(f"{block}attn_q_a.weight", input), f"{block}attn_q_a_norm.weight")
        q = ops.linear(f"{block}attn_q_b.weight", q)
    else:
        q = ops.linear(f"{block}attn_q.weight", input)
    q, turned_q = q.unflatten(1, (c.heads, -1)).split([plain, c.rope.dims], -1)
    latent, turned = ops.linear(f"{block}attn_kv_a_mqa.weight", input).split([rank, c.rope.dims], 1)
    turned, norm = turned[:, None], f"{block}attn_kv_a_norm.weight"
    if absorbed:
        q, k = ops.by_head(f"{block}attn_k_b.weight", q), ops.join((turned, ops.rms_norm(latent, norm)[:, None]), c.head_dim)
        return ops.join((turned_q, q), c.head_dim), k, k
    k, v = ops.linear(f"{block}attn_kv_b.weight", ops.norm(latent, norm)).unflatten(1, (c.heads, -1)).split([plain, value], -1)
    q, k = ops.join((turned_q, q), c.head_dim), ops.join((turned.expand(-1, c.heads, -1), k), c.head_dim)
    return q, k, ops.join((v,), c.head_dim)


def _values(ops, c, block, mixed):
    """The heads' values (tokens, heads * value) from what attention mixed: padded values, or RoPE's elements and a latent."""
    mixed = mixed.unflatten(1, (c.heads, -1))
    if c.latent.absorbed:
        return ops.by_head(f"{block}attn_v_b.weight", mixed[..., c.rope.dims :]).flatten(1)
    return ops.join((mixed[..., : c.latent.value],), c.latent.value).flatten(1)


def _hidden(ops, c, block, suffix, input):
    """The input of ffn_down: the activated gate times up, or activated up."""
    if not c.family.gated:
        return ops.activate(ops.linear(f"{block}ffn_up{suffix}", input))
    if "ffn" in c.family.fused:
        return ops.activate(*ops.linear(f"{block}ffn_up{suffix}", input).chunk(2, 1))
    return ops.activate(*(ops.linear(f"{block}ffn_{part}{suffix}", input) for part in ("gate", "up")))


def _add_linear(ops, x, name, input, norm):
    """x += W input, or x += RMSNorm(W input)."""
    if norm:
        ops.add(x, ops.rms_norm(ops.linear(name, input), norm))
    else:
        ops.linear(name, input, add_to=x)


def _experts(ops, c, block, input, x):
    """Weighted sum of each token's best experts (tokens, hidden_size); reads only experts in use."""
    parts, out = ("up", "down") if "ffn" in c.family.fused else ("gate", "up", "down"), ops.zeros(x)
    stacks = [f"{block}ffn_{part}_exps.weight" for part in parts]
    for expert, rows, share in ops.experts(f"{block}ffn_gate_inp.weight", stacks, input):
        suffix = f"_exps.weight[{expert}]"
        ops.mix(out, ops.linear(f"{block}ffn_down{suffix}", _hidden(ops, c, block, suffix, rows)), share)
    return out
