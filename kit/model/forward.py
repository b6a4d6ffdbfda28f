"""The forward pass of every architecture, once: what is computed is written here, how is the business of an Ops."""

from typing import Protocol

import torch

from kit.model.config import Config


class Ops(Protocol):
    """The operations of one pass: CpuOps, DeviceOps, or whatever records them to be replayed.

    x is the residual stream (tokens, hidden_size) float32. An *input* is what a linear layer takes, in a form of the
    implementation's own: it comes from ``norm``, ``activate`` or ``attend`` and goes to ``linear`` and ``rows`` alone.
    All else is tensors, of which the pass itself only takes views.
    """

    def embed(self) -> torch.Tensor:
        """x of the pass's tokens: rows of the embedding, scaled."""

    def norm(self, x: torch.Tensor, name: str):
        """The input made of RMSNorm(x) with the weight ``name``; of x itself where the name is empty."""

    def rms_norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMSNorm over the last axis with the weight ``name``, as a tensor."""

    def linear(self, name: str, input, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """W input + the bias, if the file has one: (tokens, out); or that, scaled, added to the residual stream."""

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """x += y, scaled as the residual stream wants it."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        """RoPE, the KV cache, attention: heads (tokens, heads, head_dim) -> the input of the output projection."""

    def activate(self, gate: torch.Tensor, up: torch.Tensor):
        """The input made of activation(gate) * up."""

    def route(self, name: str, input) -> tuple[torch.Tensor, torch.Tensor]:
        """(share, expert) of each token's best experts, by the router ``name``: (tokens, experts used) each."""

    def expects(self, names: list[str]) -> None:
        """The experts' weights that come next, in order: for a prefetch."""

    def rows(self, input, index: torch.Tensor):
        """The input of some of the tokens."""

    def logits(self, name: str, input) -> torch.Tensor:
        """The output projection, scaled and capped: (tokens, vocabulary)."""


def forward(ops: Ops, config: Config, wanted: slice) -> torch.Tensor:
    """Logits (wanted tokens, vocabulary) of the tokens that ``ops`` was made for."""
    x = ops.embed()
    for layer in range(config.layers):
        block = f"blk.{layer}."
        before_attention, after_attention, before_ffn, after_ffn = (
            norm and f"{block}{norm}.weight" for norm in config.family.norms
        )
        input = ops.norm(x, before_attention)
        mixed = ops.attend(layer, *_heads(ops, config, block, input))
        _add_linear(ops, x, f"{block}attn_output.weight", mixed, after_attention)
        input = ops.norm(x, before_ffn)
        if config.experts:
            ops.add(x, _experts(ops, config, block, input, x))
        if config.shared_intermediate_size or not config.experts:
            suffix = "_shexp.weight" if config.experts else ".weight"
            _add_linear(ops, x, f"{block}ffn_down{suffix}", _hidden(ops, config, block, suffix, input), after_ffn)
    output = ops.norm(x[wanted], "output_norm.weight")
    return ops.logits("token_embd.weight" if config.tied else "output.weight", output)


def _heads(ops, c, block, input):
    """q, k and v, (tokens, heads, head_dim) each, before RoPE."""
    if c.family.fused:
        sizes = [count * c.head_dim for count in (c.heads, c.kv_heads, c.kv_heads)]
        q, k, v = ops.linear(f"{block}attn_qkv.weight", input).split(sizes, 1)
    else:
        q, k, v = (ops.linear(f"{block}attn_{part}.weight", input) for part in "qkv")
    if c.family.qk_norm == "all":
        q, k = ops.rms_norm(q, f"{block}attn_q_norm.weight"), ops.rms_norm(k, f"{block}attn_k_norm.weight")
    q, k, v = (part.unflatten(1, (-1, c.head_dim)) for part in (q, k, v))
    if c.family.qk_norm == "head":
        q, k = ops.rms_norm(q, f"{block}attn_q_norm.weight"), ops.rms_norm(k, f"{block}attn_k_norm.weight")
    return q, k, v


def _hidden(ops, c, block, suffix, input):
    """The input of ffn_down: the activated gate times up."""
    if c.family.fused:
        return ops.activate(*ops.linear(f"{block}ffn_up{suffix}", input).chunk(2, 1))
    return ops.activate(*(ops.linear(f"{block}ffn_{part}{suffix}", input) for part in ("gate", "up")))


def _add_linear(ops, x, name, input, norm):
    """x += W input, or the norm of it."""
    if norm:
        ops.add(x, ops.rms_norm(ops.linear(name, input), norm))
    else:
        ops.linear(name, input, add_to=x)


def _experts(ops, c, block, input, x):
    """Each token passes its ``experts_used`` best experts; an expert is read only when some token wants it."""
    share, chosen = ops.route(f"{block}ffn_gate_inp.weight", input)
    out, experts = torch.zeros_like(x), chosen.unique().tolist()
    parts = ("up", "down") if c.family.fused else ("gate", "up", "down")
    ops.expects([f"{block}ffn_{part}_exps.weight[{expert}]" for expert in experts for part in parts])
    for expert in experts:
        token, place = (chosen == expert).nonzero(as_tuple=True)
        suffix = f"_exps.weight[{expert}]"
        hidden = _hidden(ops, c, block, suffix, ops.rows(input, token))
        y = ops.linear(f"{block}ffn_down{suffix}", hidden)
        out.index_add_(0, token, y.mul_(share[token, place, None]))
    return out
