"""Rows of a table that the last tokens choose by a hash (n-gram embeddings, as in Qwen 4's trial): memory that a token reads a
few rows of, added to the residual's streams before a layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kit.model.layers.kind import Tensor

TABLE = "per_layer_token_embd.weight"
_MASK = 2**64 - 1


@dataclass(frozen=True)
class NGrams:
    """The numbers of the layer that has them. For n = 2 to ``most`` tokens, the products of the tokens and the multipliers
    are combined by exclusive or; each of ``heads`` rows is that number modulo a size, plus an offset."""

    hidden_size: int
    streams: int
    most: int  # tokens of the longest n-gram
    heads: int  # rows for each n
    size: int  # elements of a row
    width: int  # taps of the convolution, ``most`` tokens apart
    end: int  # the token that ends a text: it and what is before it count as this token
    multipliers: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rows: int  # of the table
    flat: bool = False  # norms are stored as one axis

    @classmethod
    def of(cls, facts, layer: int) -> "NGrams | None":
        """None for a layer without."""
        keys = facts.keys
        if not facts.family.streams or "ple.layers" not in keys:
            return None
        layers = keys.numbers("ple.layers", length=1, least=0, most=facts.whole - 1, whole=True)
        most, heads = keys.count("ple.ngram_size", least=2, most=8), keys.count("ple.heads_per_ngram", most=64)
        total, of_each = (most - 1) * heads, dict(least=0, most=float(_MASK), whole=True)
        offsets, sizes = (keys.numbers(f"ple.head_{name}", length=total, **of_each) for name in ("offsets", "vocab_sizes"))
        if not sizes.all():
            keys.fail("ple.head_vocab_sizes", "numbers of at least 1", "has 0")
        multipliers = keys.numbers("ple.layer_multipliers", length=most, **of_each)
        read = dict(
            size=keys.count("embedding_length_per_layer_input"), width=keys.count("ple.conv_kernel"),
            end=keys.count("ple.eos_token_id", least=0),
        )  # fmt: skip
        keys.count("ple.image_token_id", 0)
        if facts.numbers[layer] != layers[0]:
            return None
        offsets, sizes, multipliers = (tuple(map(int, each)) for each in (offsets, sizes, multipliers))
        rows = max(offset + size for offset, size in zip(offsets, sizes, strict=True))
        stored = facts.stored[TABLE].shape[0] if TABLE in facts.stored else rows
        norm = f"blk.{layer}.ple_norm_key.weight"
        flat = norm in facts.stored and len(facts.stored[norm].shape) == 1
        streams = keys.count("hyper_connection.count", least=2)
        own = dict(multipliers=multipliers, offsets=offsets, sizes=sizes, rows=max(rows, stored), flat=flat)
        return cls(facts.hidden_size, streams, most, heads, **read, **own)

    def problems(self):
        read = len(self.sizes) * self.size
        yield read == self.hidden_size, f"{len(self.sizes)} rows of {self.size} elements for {self.hidden_size}"

    def model_tensors(self) -> Iterator[Tensor]:
        """Those outside all layers."""
        yield Tensor(TABLE, (self.rows, self.size))

    def tensors(self) -> Iterator[Tensor]:
        whole, norm = self.streams * self.hidden_size, (self.streams, self.hidden_size)
        yield Tensor("ple_key.weight", (whole, self.hidden_size))
        yield Tensor("ple_value.weight", (self.hidden_size, self.hidden_size))
        for name in ("key", "query", "conv"):
            yield Tensor(f"ple_norm_{name}.weight", (whole,) if self.flat else norm)
        yield Tensor("ple_conv1d.weight", (whole, self.width))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what is remembered: the last tokens plus 1, 0 for none, and the convolution's last inputs."""
        return {"tokens": (self.most - 1,), "ngrams": ((self.width - 1) * self.most, self.streams * self.hidden_size)}

    def chosen(self, tokens: Sequence[int], before: Sequence[int]) -> np.ndarray:
        """The rows of the table of each token, (tokens, rows) int64; ``before``: the tokens before them, -1 for none."""
        seen, found = [*map(int, before), *map(int, tokens)], []
        for at in range(len(before), len(seen)):
            own, ended = [seen[at]], False
            for token in reversed(seen[at - self.most + 1 : at]):
                ended = ended or token in (-1, self.end)
                own.append(self.end if ended else token)
            mixed, rows = (own[0] * self.multipliers[0]) & _MASK, []
            for n in range(1, self.most):
                mixed ^= (own[n] * self.multipliers[n]) & _MASK
                rows += [mixed % self.sizes[head] + self.offsets[head] for head in range((n - 1) * self.heads, n * self.heads)]
            found.append(rows)
        return np.array(found, np.int64).reshape(len(tokens), -1)

    def run(self, ops, layer: int, x) -> None:
        """Add to each stream of x (tokens, streams * hidden_size) a gated part of the rows' value, and its convolution."""
        block, shape = f"blk.{layer}.", (self.streams, self.hidden_size)
        rows = ops.input(ops.ngram_rows(layer, x))
        normed = lambda y, name: ops.normed(  # noqa: E731
            y.unflatten(1, shape), ops.vector(f"{block}ple_norm_{name}.weight").reshape(shape), None
        )
        key, query = normed(ops.linear(f"{block}ple_key.weight", rows), "key"), normed(x, "query")
        gated = ops.make(
            "gate streams", key, query, ops.linear(f"{block}ple_value.weight", rows), shape=key.shape, span="streams"
        )
        mixed = ops.convolve(
            layer, normed(gated.flatten(1), "conv").flatten(1), taps="ple_conv1d", silu=True, state="ngrams", apart=self.most
        )
        ops.plus(x, gated.flatten(1), 1.0)
        ops.plus(x, mixed, 1.0)
