"""Attention by heads to the blocks of positions that an index chooses (Qwen 4's trial, QSA): whole blocks, and what follows the
last complete one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kit.cpu.shapes import Choice
from kit.model.layers.attention import Attention
from kit.model.layers.kind import Memory, matrix, vector
from kit.model.layers.rope import RopeConfig


@dataclass(frozen=True)
class SparseAttention(Attention):
    """The numbers of one layer. The key of a block is the mean of its positions' index keys, normed, with RoPE at the first; a
    query attends to the ``choice.top`` blocks of the highest scores, the sum over the index heads of max(0, q . key)."""

    choice: Choice | None = None
    index_heads: int = 0
    index_size: int = 0
    index_rope: RopeConfig | None = None

    named, on_device = "sparse attention", False
    metadata: ClassVar = (*Attention.metadata, r"attention\.(indexer\..+|compress_ratios)")
    spans: ClassVar = Attention.spans | {"index": 1.0, "choice": 1.0}

    @classmethod
    def of(cls, facts, layer: int) -> "SparseAttention":
        attention, keys, key = Attention.of(facts, layer), facts.keys, "attention.compress_ratios"
        if attention.window:
            keys.fail("attention.sliding_window", "absent, because no such model has a window", f"is {attention.window}")
        own = {name: getattr(attention, name) for name in Attention.__dataclass_fields__}
        size, heads = (keys.count(f"attention.indexer.{name}", least=1) for name in ("key_length", "head_count"))
        top, ratios = keys.count("attention.indexer.top_k", least=1), keys.by_layer(key, facts.count, [0] * facts.count, 0)
        each = ratios[layer]
        if not each:
            return cls(**own, index_heads=heads, index_size=size)
        if each == 1 or top % each or any(other not in (0, each) for other in ratios):
            keys.fail(key, f"0 and one number of more than 1 that divides the {top} of attention.indexer.top_k", f"is {ratios}")
        choice = Choice(top // each, each, size**-0.5)
        return cls(**own, choice=choice, index_heads=heads, index_size=size, index_rope=attention.rope)

    def tensors(self) -> Iterator:
        yield from super().tensors()
        index = [
            *matrix("indexer.q_proj", self.index_heads * self.index_size, self.hidden_size),
            *matrix("indexer.k_proj", self.index_size, self.hidden_size),
            *vector("indexer.q_norm", self.index_size),
            *vector("indexer.k_norm", self.index_size),
        ]
        yield from (each if self.choice else each._replace(required=False, read=False) for each in index)

    def widths(self) -> Iterator[int]:
        yield from (*super().widths(), self.index_size)

    def problems(self):
        yield from super().problems()
        yield self.index_size % 16 == 0, f"index keys of {self.index_size} elements"
        turned = self.index_rope.dims if self.index_rope else 0
        yield turned <= self.index_size, f"RoPE over {turned} elements of index keys of {self.index_size}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what is remembered besides positions: the index keys of a block that is not complete."""
        return {"block": (self.choice.each, self.index_size)} if self.choice else {}

    @property
    def memory(self) -> Memory:
        if not self.choice:
            return super().memory
        fixed = self.choice.each * self.index_size
        return super().memory._replace(index=self.index_size, choice=self.choice, fixed=fixed)

    def run(self, ops, layer, x, input, after):
        if self.choice:
            block = f"blk.{layer}.indexer."
            ops.index_blocks(layer, ops.linear(f"{block}k_proj.weight", input))
            q = ops.linear(f"{block}q_proj.weight", input).unflatten(1, (self.index_heads, -1))
            q = ops.rms_norm(q, f"{block}q_norm.weight")
            ops.rotate(layer, q, index=True)
            ops.choose(layer, q)
        super().run(ops, layer, x, input, after)
