"""Latent attention (MLA, DeepSeek-AI 2024): keys and values of all heads are projections of one latent."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kit.model.layers.kind import ATTENDING, LayerKind, Memory, Tensor, gated, heads_problems, heads_said, matrix, vector
from kit.model.layers.rope import RopeConfig


@dataclass(frozen=True)
class Latent(LayerKind):
    """The numbers of one layer. In a query or key the elements with RoPE come first."""

    hidden_size: int
    heads: int
    rope: RopeConfig
    scale: float
    rank: int  # elements of the latent
    query_rank: int  # of the latent of queries; 0: they have none
    plain: int  # elements of a head's query and key without RoPE
    value: int  # elements of a head's value
    absorbed: bool  # queries and outputs are projected in place of keys and values, and the latent is all history
    turns: bool = True  # False: the elements for RoPE are not rotated
    gate: str = ""  # of what attention gives, a sigmoid of a product with the input: by "head", by "element"
    window: int = 0  # positions that a query attends to, its own included; 0: all
    turned_norm: bool = False  # the elements of a key with RoPE are normed before it
    sinks: bool = False  # a further logit of each head in the softmax, without a value

    named, metadata, spans = "latent", ATTENDING, {"attention": 1.0}
    cap = 0

    @classmethod
    def of(cls, facts, layer: int) -> "Latent":
        """Files of 2025 and later have the sizes of a head as ``_mla``, because the latent is the one head there."""
        keys, family = facts.keys, facts.family
        absorbed = keys.count("attention.key_length_mla", 0) > 0
        sizes = [_sizes(facts, "_mla" if absorbed else "", local) for local in ("", "_swa")[: 1 + (family.period < 0)]]
        window = facts.windows[layer] if family.period else 0
        rank, plain, value = sizes[window > 0]
        rope = facts.local_rope if window else facts.rope
        if (family.period or family.index_last) and rope.yarn:
            keys.fail("rope.scaling.type", "absent, because no such model has YaRN", "is 'yarn'")
        rope, sharper = facts.sharpened(rope)
        if family.latent_grows and (growth := keys.number("attention.temperature_scale", 0)):
            length = keys.count("attention.temperature_length", least=1)
            rope = replace(rope, growth=growth, every=length, still=rank if absorbed else plain)
        return cls(
            hidden_size=facts.hidden_size,
            heads=facts.heads[layer],
            rope=rope,
            scale=facts.attention_scale(plain + rope.dims, sharper),  # a query has that many elements before absorption
            rank=rank,
            query_rank=keys.count("attention.q_lora_rank", 0),
            plain=plain,
            value=value,
            absorbed=absorbed,
            turns=not family.latent_still,
            gate=""
            if family.one_gate and facts.stored and f"blk.{layer}.attn_gate.weight" not in facts.stored
            else family.gate,
            window=window,
            turned_norm=family.qk_norm == "turned",
            sinks=family.sinks == "always",
        )

    @property
    def kv_heads(self) -> int:
        return 1 if self.absorbed else self.heads

    @property
    def head_dim(self) -> int:
        return (self.rank if self.absorbed else self.plain) + self.rope.dims

    def tensors(self) -> Iterator[Tensor]:
        hidden, heads, turned, rank = self.hidden_size, self.heads, self.rope.dims, self.rank
        if self.query_rank:
            yield from matrix("attn_q_a", self.query_rank, hidden)
            yield from vector("attn_q_a_norm", self.query_rank)
        yield from matrix("attn_q_b" if self.query_rank else "attn_q", heads * (self.plain + turned), self.query_rank or hidden)
        yield from matrix("attn_kv_a_mqa", rank + turned, hidden)
        yield from vector("attn_kv_a_norm", rank)
        if self.turned_norm:
            yield from vector("attn_k_norm", turned)
        if self.absorbed:
            yield from matrix("attn_k_b", heads, rank, self.plain)
            yield from matrix("attn_v_b", heads, self.value, rank)
        else:
            yield from matrix("attn_kv_b", heads * (self.plain + self.value), rank)
        if self.sinks:
            yield from vector("attn_sinks", heads)
        if self.gate:
            yield from matrix("attn_gate", heads * (self.value if self.gate == "element" else 1), hidden)
        yield from matrix("attn_output", hidden, heads * self.value)

    def widths(self) -> Iterator[int]:
        yield from (self.rank, self.query_rank, self.plain, self.value, self.head_dim, self.rope.dims)

    def problems(self):
        yield from heads_problems(self)

    @property
    def memory(self) -> Memory:
        return Memory((2 - self.absorbed) * self.kv_heads * self.head_dim, self.window)

    @property
    def said(self) -> str:
        return heads_said(self)

    def run(self, ops, layer, x, input, after):
        block = f"blk.{layer}."
        queries = input
        if self.query_rank:
            queries = ops.norm(ops.linear(f"{block}attn_q_a.weight", input), f"{block}attn_q_a_norm.weight")
        self._choose(ops, layer, block, input, queries)
        q, k, v = self._heads(ops, block, input, queries)
        if self.turns:
            ops.rotate(layer, q, k)
        mixed = self._values(ops, block, ops.attend(layer, q, k, v))
        mixed = gated(ops, self.gate, f"{block}attn_gate.weight", input, mixed, self.heads)
        ops.add_linear(x, f"{block}attn_output.weight", mixed, after)

    def _choose(self, ops, layer, block, input, queries):
        """Choose the positions to attend to; here all. ``queries``: what queries are a product of, as an input."""

    def _heads(self, ops, block, input, queries):
        """q, k and v. Absorbed, all heads share one key, which is also the value: the latent."""
        rank, heads, turned_dims = self.rank, self.heads, self.rope.dims
        q = ops.linear(f"{block}{'attn_q_b' if self.query_rank else 'attn_q'}.weight", queries)
        q, turned_q = q.unflatten(1, (heads, -1)).split([self.plain, turned_dims], -1)
        latent, turned = ops.linear(f"{block}attn_kv_a_mqa.weight", input).split([rank, turned_dims], 1)
        turned = ops.rms_norm(turned, f"{block}attn_k_norm.weight") if self.turned_norm else turned
        turned, norm = turned[:, None], f"{block}attn_kv_a_norm.weight"
        if self.absorbed:
            q = ops.by_head(f"{block}attn_k_b.weight", q)
            k = self._joined(ops, turned, ops.rms_norm(latent, norm)[:, None])
            return self._joined(ops, turned_q, q), k, k
        kv = ops.linear(f"{block}attn_kv_b.weight", ops.norm(latent, norm)).unflatten(1, (heads, -1))
        k, v = kv.split([self.plain, self.value], -1)
        q, k = ops.join((turned_q, q), self.head_dim), ops.join((turned.expand(-1, heads, -1), k), self.head_dim)
        return q, k, ops.join((v,), self.head_dim)

    def _joined(self, ops, turned, rest):
        """The elements for RoPE, if there are any, before the others."""
        return ops.join((turned, rest) if self.rope.dims else (rest,), self.head_dim)

    def _values(self, ops, block, mixed):
        """Values (tokens, heads * value) from what attention mixed: padded values, or RoPE's elements and a latent."""
        mixed = mixed.unflatten(1, (self.heads, -1))
        if self.absorbed:
            return ops.by_head(f"{block}attn_v_b.weight", mixed[..., self.rope.dims :]).flatten(1)
        return ops.join((mixed[..., : self.value],), self.value).flatten(1)


def _sizes(facts, ending: str, local: str) -> tuple[int, int, int]:
    """(rank, elements of a key without RoPE, elements of a value) as the keys say: ``local``, of layers with a window."""
    keys, dims = facts.keys, facts.rope.dims
    rank = keys.count(f"attention.kv_lora_rank{local}")
    if ending:
        keys.same(f"attention.key_length{local}", rank + dims, "the latent and its elements with RoPE")
        keys.same(f"attention.value_length{local}", rank, "the latent")
    plain = keys.count(f"attention.key_length{ending}{local}", *() if local else (facts.head_dim,)) - dims
    return rank, plain, keys.count(f"attention.value_length{ending}{local}")
