"""Attention to the last positions, and to one row for every so many before (DeepSeek-AI 2026, V4): all heads share one key,
which is also the value."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from kit.cpu.shapes import Choice
from kit.model.layers.kind import ATTENDING, LayerKind, Memory, Ring, Tensor, heads_problems, heads_said, matrix, vector
from kit.model.layers.rope import RopeConfig

_RATIOS = 0, 4, 128  # positions of a row; 0: no rows. Blocks of 4 overlap, and an index chooses among them
_COMPRESSORS = "attn_compressor", "indexer_compressor"


@dataclass(frozen=True)
class Compressed(LayerKind):
    """The numbers of one layer. In keys and queries in memory the elements with RoPE come first."""

    hidden_size: int
    heads: int
    size: int  # elements of a head
    rope: RopeConfig
    window: int
    every: int
    query_rank: int
    groups: int  # of heads, each of which has an output of low rank
    output_rank: int
    stacked: bool = False  # how the file has the matrices of the groups
    choice: Choice | None = None
    index_heads: int = 0
    index_size: int = 0

    named = "compressed"
    metadata: ClassVar = (*ATTENDING, r"attention\.(indexer\..+|compress_\w+|output_(group_count|lora_rank)|sliding_window)")
    spans: ClassVar = {"attention": 1.0, "index": 1.0, "choice": 1.0, "pool": 0.5}
    floats: ClassVar = ("indexer.proj.weight", "_ape.weight")
    kv_heads, absorbed, cap, sinks, source, gated = 1, True, 0.0, True, None, False

    @classmethod
    def of(cls, facts, layer: int) -> "Compressed":
        keys, rope = facts.keys, facts.rope
        size = keys.count("attention.key_length", least=1)
        keys.same("attention.value_length", size, "because keys are the values")
        every = keys.by_layer(key := "attention.compress_ratios", facts.count, least=0)[layer]
        if every not in _RATIOS:
            keys.fail(key, f"one of {', '.join(map(str, _RATIOS))} for each layer", f"has {every}")
        base, top = keys.number("attention.compress_rope_freq_base", above=0.0), keys.count("attention.indexer.top_k", least=1)
        heads, elements = (keys.count(f"attention.indexer.{name}", least=1) for name in ("head_count", "key_length"))
        if every:
            rope = replace(rope, base=base, attention_factor=1 / (1 + 0.1 * rope.grown) if rope.yarn else 1.0)
        else:
            rope = replace(rope, factor=1.0, yarn=False, attention_factor=1.0)
        index = dict(
            choice=Choice(top, every, (heads * elements) ** -0.5), index_heads=heads, index_size=elements
        ) if every == 4 else {}  # fmt: skip
        name = f"blk.{layer}.attn_output_a.weight"
        return cls(
            hidden_size=facts.hidden_size,
            heads=facts.heads[layer],
            size=size,
            rope=rope,
            window=keys.count("attention.sliding_window", least=1),
            every=every,
            query_rank=keys.count("attention.q_lora_rank"),
            groups=keys.count("attention.output_group_count", least=1),
            output_rank=keys.count("attention.output_lora_rank"),
            stacked=name in facts.stored and len(facts.stored[name].shape) == 3,
            **index,
        )

    @property
    def head_dim(self) -> int:
        return self.size

    @property
    def scale(self) -> float:
        return self.size**-0.5

    @property
    def index_rope(self) -> RopeConfig | None:
        return self.rope if self.index_heads else None

    @property
    def back_rope(self) -> RopeConfig:
        """Of what attention gives: values are keys, and this takes their position away again."""
        return replace(self.rope, back=True)

    @property
    def rows(self) -> Ring:
        """What a query attends to."""
        return Ring(self.window, self.every, self.choice.top if self.choice else 0)

    def tensors(self) -> Iterator[Tensor]:
        hidden, heads, size, group = self.hidden_size, self.heads, self.size, self.heads * self.size // self.groups
        yield from matrix("attn_q_a", self.query_rank, hidden)
        yield from vector("attn_q_a_norm", self.query_rank)
        yield from matrix("attn_q_b", heads * size, self.query_rank)
        yield from matrix("attn_kv", size, hidden)
        yield from vector("attn_kv_a_norm", size)
        for name, elements in zip(
            _COMPRESSORS[: bool(self.every) + bool(self.index_heads)], (size, self.index_size), strict=False
        ):
            width = elements * (1 + self.overlaps)
            yield from matrix(f"{name}_kv", width, hidden)
            yield from matrix(f"{name}_gate", width, hidden)
            yield Tensor(f"{name}_ape.weight", (self.every, width))
            yield from vector(f"{name}_norm", elements)
        if self.index_heads:
            yield from matrix("indexer.attn_q_b", self.index_heads * self.index_size, self.query_rank)
            yield from matrix("indexer.proj", self.index_heads, hidden)
        yield from vector("attn_sinks", heads)
        parts = (self.groups, self.output_rank, group) if self.stacked else (self.groups * self.output_rank, group)
        yield Tensor("attn_output_a.weight", parts)
        yield from matrix("attn_output_b", hidden, self.groups * self.output_rank)

    def widths(self) -> Iterator[int]:
        yield from (self.size, self.rope.dims, self.query_rank, self.index_size, self.output_rank)
        yield self.heads * self.size // self.groups

    def problems(self):
        yield from heads_problems(self)
        yield self.heads % self.groups == 0, f"{self.heads} heads in {self.groups} groups"
        yield self.rope.dims % 16 == self.size % 16 == self.index_size % 16 == 0, f"keys of {self.size} elements"
        turned = self.rope.dims if self.index_heads else 0
        yield turned <= self.index_size, f"RoPE over {turned} elements of index keys of {self.index_size}"
        first = self.choice.top * self.every if self.choice else self.window
        yield first >= self.window - 1, f"a choice among {first} positions in a window of {self.window}"

    @property
    def overlaps(self) -> bool:
        """Whether a row is made of two blocks."""
        return self.every == _RATIOS[1]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what the compressors remember of blocks that are not complete."""
        if not self.every:
            return {}
        times = 1 + self.overlaps
        sizes = dict(zip(_COMPRESSORS, (self.size, self.index_size), strict=True))
        shape = {name: (times * self.every, times * size) for name, size in sizes.items() if size}
        return {f"{name}_{part}": shape[name] for name in shape for part in ("rows", "scores")}

    @property
    def memory(self) -> Memory:
        if not self.every:
            return Memory(self.size, self.window)
        fixed = sum(rows * width for rows, width in self.shapes.values())
        return Memory(self.size, self.window, fixed, index=self.index_size, choice=self.choice, every=self.every)

    @property
    def said(self) -> str:
        return heads_said(self)

    def run(self, ops, layer, x, input, after):
        block, heads = f"blk.{layer}.", self.heads
        queries = ops.norm(ops.linear(f"{block}attn_q_a.weight", input), f"{block}attn_q_a_norm.weight")
        if self.every:
            self._compress(ops, layer, input, _COMPRESSORS[0])
        if self.index_heads:
            self._compress(ops, layer, input, _COMPRESSORS[1])
            q = ops.linear(f"{block}indexer.attn_q_b.weight", queries).unflatten(1, (self.index_heads, -1))
            ops.rotate(layer, q := self.turned_first(ops, q), index=True)
            ops.choose(layer, q, ops.linear(f"{block}indexer.proj.weight", input))
        q = ops.rms_norm(ops.linear(f"{block}attn_q_b.weight", queries).unflatten(1, (heads, -1)), "")
        k = ops.rms_norm(ops.linear(f"{block}attn_kv.weight", input), f"{block}attn_kv_a_norm.weight")[:, None]
        q, k = self.turned_first(ops, q), self.turned_first(ops, k)
        ops.rotate(layer, q, k)
        mixed = ops.attend(layer, q, k, k).unflatten(1, (heads, -1))
        ops.rotate(layer, mixed, back=True)
        mixed = ops.join((mixed[..., self.rope.dims :], mixed[..., : self.rope.dims]), self.size)
        mixed = mixed.flatten(1).unflatten(1, (self.groups, -1))
        low = ops.by_head(f"{block}attn_output_a.weight", mixed, rows=not self.stacked)
        ops.add_linear(x, f"{block}attn_output_b.weight", ops.input(low.flatten(1)), after)

    def _compress(self, ops, layer, input, name):
        rows, gates = (ops.linear(f"blk.{layer}.{name}_{part}.weight", input) for part in ("kv", "gate"))
        ops.compress(layer, rows, gates, name=name)

    def turned_first(self, ops, x):
        """x (tokens, heads, elements) with its last elements, those with RoPE, before the others."""
        plain = x.shape[2] - self.rope.dims
        return ops.join((x[..., plain:], x[..., :plain]), x.shape[2])
