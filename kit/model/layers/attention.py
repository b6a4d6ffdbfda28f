"""Attention by heads: queries over the keys and values of all positions or of a window (GQA: Ainslie et al. 2023)."""

from collections.abc import Iterator
from dataclasses import dataclass

from kit.model.layers.kind import (
    ATTENDING,
    Before,
    Chunks,
    LayerKind,
    Memory,
    Tensor,
    gated,
    heads_problems,
    heads_said,
    matrix,
    vector,
)
from kit.model.layers.rope import RopeConfig

_UNNORMED = 128  # experts of the one Llama 4 without norms of queries and keys


@dataclass(frozen=True)
class Attention(LayerKind):
    """The numbers of one layer; query head h uses key/value head ``h // (heads / kv_heads)``."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeConfig | None  # None: the layer has no RoPE
    window: int  # positions that a query attends to, its own included; 0: all, or those of its chunk
    scale: float
    cap: float = 0.0  # scores s become cap * tanh(s / cap); 0: none
    limit: float = 0.0  # queries, keys and values are clamped to -limit to limit; 0: they are not
    # of queries and keys: by "head", over "all" heads, or by head "after" RoPE; "bare": after it without weights
    qk_norm: str = ""
    fused: bool = False  # attn_qkv is the rows of q, k and v
    sinks: bool = False  # a further logit of each head in the softmax, without a value
    value_size: int = 0  # elements of a value, which is padded to those of a key; 0: as many
    value_scale: float = 1.0  # a factor of values
    value_norm: bool = False  # values are normed by head, without weights
    has_values: bool = True  # False: values are the keys before their norm and RoPE
    source: int | None = None  # the layer whose keys and values it attends to; None: its own
    chunks: Chunks | Before | None = None
    gate: str = ""  # of what it gives, a sigmoid of a product with the input: by "head", by "element"
    gated: bool = False  # attn_q has a query and a gate for each head, whose sigmoid multiplies what the head gives

    named, metadata, spans, on_device = "attention", ATTENDING, {"attention": 1.0}, True

    @classmethod
    def of(cls, facts, layer: int) -> "Attention":
        """From the metadata (kit.model.hyperparameters.Facts) and the architecture's row."""
        family, keys = facts.family, facts.keys
        value = {}
        if family.values_sized:
            size = keys.count("attention.value_length", facts.head_dim, least=1)
            value = dict(value_size=size, value_scale=keys.number("attention.value_scale", 0) or 1.0)
        else:
            keys.same("attention.value_length", facts.head_dim, "the size of a key")
        if family.local_sized:
            keys.same("attention.value_length_swa", facts.local_dim, "the size of a key")
        return cls(
            hidden_size=facts.hidden_size,
            heads=facts.heads[layer],
            kv_heads=facts.kv_heads[layer],
            head_dim=facts.head_dims[layer],
            rope=facts.rope_of(layer),
            window=0 if family.chunk else facts.windows[layer],
            scale=family.scale or facts.attention_scale(facts.head_dims[layer]),
            cap=facts.soft_cap("attn_logit_softcapping", family.soft_caps[0]),
            limit=keys.number("attention.clamp_kqv", 0) if family.clamped else 0.0,
            qk_norm="" if family.qk_norm == "bare" and facts.experts == _UNNORMED else family.qk_norm,
            fused="attn" in family.fused or f"blk.{layer}.attn_qkv.weight" in facts.stored,
            sinks=bool(family.sinks) and (family.sinks == "always" or f"blk.{layer}.attn_sinks.weight" in facts.stored),
            value_norm=family.value_norm,
            has_values=not family.values_are_keys or f"blk.{layer}.attn_v.weight" in facts.stored or not facts.stored,
            source=facts.sources[layer],
            chunks=Chunks(family.chunk) if family.chunk and facts.windows[layer] else None,
            gate=family.gate,
            gated=family.output_gated,
            **value,
        )

    def tensors(self) -> Iterator[Tensor]:
        q, kv, hidden = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden_size
        size = self.value_size or self.head_dim
        if self.fused:
            yield from matrix("attn_qkv", q + kv + self.kv_heads * size, hidden)
        else:
            yield from matrix("attn_q", (1 + self.gated) * q, hidden)
            yield from self._own(*matrix("attn_k", kv, hidden))
            if self.has_values:
                yield from self._own(*matrix("attn_v", self.kv_heads * size, hidden))
        if self.qk_norm and self.qk_norm != "bare":
            each = self.qk_norm != "all"
            yield from vector("attn_q_norm", self.head_dim if each else q)
            yield from self._own(*vector("attn_k_norm", self.head_dim if each else kv))
        if self.sinks:
            yield from vector("attn_sinks", self.heads)
        if self.gate:
            yield from matrix("attn_gate", self.heads * (size if self.gate == "element" else 1), hidden)
        yield from matrix("attn_output", hidden, self.heads * size)

    def _own(self, *tensors):
        """Tensors that no token reads in a layer which attends to another's keys and values."""
        return (each if self.source is None else each._replace(required=False, read=False) for each in tensors)

    def widths(self) -> Iterator[int]:
        yield from (self.head_dim, self.heads * self.head_dim, self.rope.dims if self.rope else 0, self.value_size)

    def problems(self):
        yield from heads_problems(self)
        whole = not self.rope or not self.rope.growth or self.rope.dims + self.rope.still == self.head_dim
        yield self.value_size <= self.head_dim, f"values of {self.value_size} elements, keys of {self.head_dim}"
        yield whole, "queries that grow with the position, of which RoPE turns a part"

    @property
    def memory(self) -> Memory:
        window, chunked = self.chunks.size if self.chunks else self.window, isinstance(self.chunks, Chunks)
        return Memory(2 * self.kv_heads * self.head_dim, window, chunked=chunked, shared=self.source is not None)

    @property
    def said(self) -> str:
        return heads_said(self)

    def run(self, ops, layer, x, input, after):
        block = f"blk.{layer}."
        if self.source is None:
            q, k, v, gate = self._heads(ops, block, input)
            if self.rope:
                ops.rotate(layer, q, k)
            if self.qk_norm == "after":
                q, k = _normed(ops, block, q, k)
            if self.qk_norm == "bare" and self.rope and self.rope.dims:
                q, k = ops.rms_norm(q, ""), ops.rms_norm(k, "")
            mixed = ops.attend(layer, q, k, v)
        else:
            mixed = self._to_others(ops, layer, block, input)
        if self.value_size:
            mixed = ops.join((mixed.unflatten(1, (self.heads, -1))[..., : self.value_size],), self.value_size).flatten(1)
        if self.gated:
            mixed = ops.activate("sigmoid", gate, mixed)
        else:
            mixed = gated(ops, self.gate, f"{block}attn_gate.weight", input, mixed, self.heads)
        ops.add_linear(x, f"{block}attn_output.weight", mixed, after)

    def _to_others(self, ops, layer, block, input):
        """Attention to the keys and values of the layer ``source``."""
        q = ops.linear(f"{block}attn_q.weight", input).unflatten(1, (self.heads, -1))
        q = ops.rms_norm(q, f"{block}attn_q_norm.weight")
        ops.rotate(layer, q)
        return ops.attend(layer, q)

    def _heads(self, ops, block, input):
        """q, k and v, (tokens, heads, head_dim) each, before RoPE; and the gate (tokens, heads * head_dim), or None."""
        gate = None
        if self.fused:
            sizes = [self.heads * self.head_dim, self.kv_heads * self.head_dim]
            sizes.append(self.kv_heads * (self.value_size or self.head_dim))
            q, k, v = ops.linear(f"{block}attn_qkv.weight", input).split(sizes, 1)
        else:
            q, k = (ops.linear(f"{block}attn_{part}.weight", input) for part in "qk")
            v = ops.linear(f"{block}attn_v.weight", input) if self.has_values else k
        if self.limit:
            for part in (q, k, v):
                ops.clamp(part, self.limit)
        if self.qk_norm == "all":
            q, k = _normed(ops, block, q, k)
        q, k, v = (part.unflatten(1, (heads, -1)) for part, heads in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads)))
        if self.value_scale != 1:
            ops.scale(v, self.value_scale)
        if self.value_size:
            v = ops.join((v,), self.head_dim)
        if self.gated:
            q, gate = (ops.join((part,), self.head_dim) for part in q.split(self.head_dim, 2))
            gate = gate.flatten(1)
        if self.value_norm:
            v = ops.rms_norm(v, "")
        if self.qk_norm == "head":
            q, k = _normed(ops, block, q, k)
        return q, k, v, gate


def _normed(ops, block, q, k):
    return ops.rms_norm(q, f"{block}attn_q_norm.weight"), ops.rms_norm(k, f"{block}attn_k_norm.weight")
