"""Latent attention to the positions that an indexer chooses (DeepSeek-AI 2025, V3.2: DSA; GLM-5)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from kit.cpu.shapes import Choice
from kit.model.layers.kind import Memory, Tensor, matrix
from kit.model.layers.latent import Latent
from kit.model.layers.rope import RopeConfig

_LONG = 1_048_576  # positions of GLM-5.2, whose first files do not say which layers choose
_EPSILON = 1e-6  # of the LayerNorm of an index key; no file says it


@dataclass(frozen=True)
class SparseLatent(Latent):
    """The numbers of one layer: those of latent attention, and of its index.

    A query attends to the ``choice.top`` positions of the highest scores, sum over the index heads of weight * max(0, q . key):
    to all as long as there are no more. A layer without an index (``index_heads`` 0) takes the choice of the last that has one,
    or attends to a window.
    """

    choice: Choice | None = None
    index_heads: int = 0
    index_size: int = 0
    index_rope: RopeConfig | None = None
    index_last: bool = False  # RoPE turns the last elements of index keys, and their LayerNorm has the epsilon of all norms

    named, metadata = "sparse latent", (*Latent.metadata, r"attention\.indexer\..+")
    spans: ClassVar = Latent.spans | {"index": 1.0, "choice": 1.0}
    floats: ClassVar = ("indexer.proj.weight",)

    @classmethod
    def of(cls, facts, layer: int) -> "SparseLatent":
        """From the metadata; a part of a file (kit.gguf.cut) may lack the layer that chooses, and attends to all."""
        latent, keys = Latent.of(facts, layer), facts.keys
        own = {name: getattr(latent, name) for name in Latent.__dataclass_fields__}
        if facts.family.index_last and "attention.indexer.top_k" not in keys:
            return cls(**own)
        size, heads = (keys.count(f"attention.indexer.{name}", least=1) for name in ("key_length", "head_count"))
        choice = Choice(keys.count("attention.indexer.top_k", least=1), factor=(heads * size) ** -0.5)
        types = index_types(facts)
        if latent.window or not any(types[: layer + 1]):
            return cls(**own)
        if not types[layer]:
            return cls(**own, choice=choice)
        rope = replace(latent.rope.of_keys, layout=facts.family.index_layout)
        return cls(
            **own, choice=choice, index_heads=heads, index_size=size, index_rope=rope, index_last=facts.family.index_last
        )

    def tensors(self) -> Iterator[Tensor]:
        yield from super().tensors()
        if self.index_heads:
            yield from matrix("indexer.attn_q_b", self.index_heads * self.index_size, self.query_rank)
            yield from matrix("indexer.attn_k", self.index_size, self.hidden_size)
            yield from (Tensor(f"indexer.k_norm.{part}", (self.index_size,)) for part in ("weight", "bias"))
            yield from matrix("indexer.proj", self.index_heads, self.hidden_size)

    def widths(self) -> Iterator[int]:
        yield from (*super().widths(), self.index_size)

    def problems(self):
        yield from super().problems()
        yield self.absorbed, "an indexer without absorbed projections of the latent"
        yield self.query_rank > 0, "an indexer without a latent of queries"
        yield self.index_size % 16 == 0, f"index keys of {self.index_size} elements"
        turned = self.index_rope.dims if self.index_rope else 0
        yield turned <= self.index_size, f"RoPE over {turned} elements of index keys of {self.index_size}"

    @property
    def memory(self) -> Memory:
        return super().memory._replace(index=self.index_size, choice=self.choice)

    def _choose(self, ops, layer, block, input, queries):
        """Remember the index key of each token, and choose."""
        if not self.index_heads:
            return
        epsilon = ops.config.norm_eps if self.index_last else _EPSILON
        key = ops.layer_norm(ops.linear(f"{block}indexer.attn_k.weight", input), f"{block}indexer.k_norm", epsilon)
        q = ops.linear(f"{block}indexer.attn_q_b.weight", queries).unflatten(1, (self.index_heads, -1))
        q, key = (self._last_first(ops, part) if self.index_last else part for part in (q, key[:, None]))
        ops.rotate(layer, q, key, index=True)
        ops.index(layer, key[:, 0])
        ops.choose(layer, q, ops.linear(f"{block}indexer.proj.weight", input))

    def _last_first(self, ops, x):
        """With the elements for RoPE before the others: of a query and a key alike, so that their product is the same."""
        return ops.join(x.split([self.index_size - self.index_rope.dims, self.index_rope.dims], -1)[::-1], self.index_size)


def index_types(facts) -> list[bool]:
    """Whether each layer of the file chooses itself."""
    keys, key = facts.keys, "attention.indexer.types"
    if not facts.family.index_types:
        return [True] * facts.count
    if facts.family.period:
        own = [not window for window in facts.windows]
        if key in keys and list(map(bool, said := _said(facts, key))) != own:
            keys.fail(key, "1 for the layers without a window, and for no other", f"is {list(map(int, said))}")
        return own
    if key in keys:
        said = _said(facts, key)
        if not said[0] and not facts.numbers[0]:
            keys.fail(key, "1 for the first layer, which has no choice to take", "is 0 there")
        return list(map(bool, said))
    pooled = facts.family.mixer == "pooled latent"
    every = pooled or keys.count("context_length") < _LONG  # else the first two choose, and the first of each four after them
    return [every or number < 2 or (number - 2) % 4 == 0 for number in facts.numbers]


def _said(facts, key: str):
    """The numbers of that list, one for each layer of the file."""
    return facts.keys.numbers(key, length=facts.count, least=0, most=1, whole=True, what="0 or 1 each")
