"""Latent attention to the pools of positions that an indexer chooses (GLM-5.3-Flash): whole pools, and what follows the last
complete one."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from kit.model.layers.kind import Memory, Tensor, matrix
from kit.model.layers.sparse_latent import SparseLatent


@dataclass(frozen=True)
class PooledLatent(SparseLatent):
    """The numbers of one layer. The key of a pool of ``choice.each`` positions is the sum of their index keys, each element
    by the softmax over them of gates; the index has no RoPE."""

    epsilon: float = 1e-6

    named = "pooled latent"
    floats: ClassVar = (*SparseLatent.floats, "indexer_compressor_ape.weight", "indexer_compressor_gate.weight")

    @classmethod
    def of(cls, facts, layer: int) -> "PooledLatent":
        sparse, keys = SparseLatent.of(facts, layer), facts.keys
        own = {each.name: getattr(sparse, each.name) for each in fields(SparseLatent)}
        each, key = keys.count("attention.indexer.kpool", least=2), "attention.indexer.kpool"
        keys.same(f"{key}_select_tail", True, "as in every such model")
        if sparse.choice:
            if sparse.choice.top % each:
                keys.fail(key, f"a divisor of the {sparse.choice.top} of attention.indexer.top_k", f"is {each}")
            own["choice"] = sparse.choice._replace(top=sparse.choice.top // each, each=each)  # as many positions
        return cls(**own | {"index_rope": None}, epsilon=keys.number("attention.layer_norm_epsilon", 1e-6) or 1e-6)

    def tensors(self) -> Iterator[Tensor]:
        yield from super().tensors()
        if self.index_heads:
            yield from matrix("indexer_compressor_gate", self.index_size, self.hidden_size)
            yield Tensor("indexer_compressor_ape.weight", (self.choice.each, self.index_size))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what is remembered besides positions: keys and gates of a pool that is not complete."""
        return dict.fromkeys(("keys", "gates"), (self.choice.each, self.index_size)) if self.index_heads else {}

    @property
    def memory(self) -> Memory:
        return super().memory._replace(fixed=2 * self.choice.each * self.index_size if self.index_heads else 0)

    def _choose(self, ops, layer, block, input, queries):
        if not self.index_heads:
            return
        keys = ops.linear(f"{block}indexer.attn_k.weight", input)
        keys = ops.layer_norm(keys, f"{block}indexer.k_norm", self.epsilon)
        ops.index_pools(layer, keys, ops.linear(f"{block}indexer_compressor_gate.weight", input))
        q = ops.linear(f"{block}indexer.attn_q_b.weight", queries).unflatten(1, (self.index_heads, -1))
        ops.choose(layer, q, ops.linear(f"{block}indexer.proj.weight", input))
