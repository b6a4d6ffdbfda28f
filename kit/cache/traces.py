"""Sequences of weight accesses: recorded live, or generated from a model's tensors."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np

from kit.errors import TraceError, known
from kit.gguf.formats import DTYPES
from kit.trace import Trace


@dataclass(frozen=True)
class Requests:
    """Accesses in order: name, size (bytes, at least 0) and token number of each."""

    keys: list[str]
    sizes: list[int]
    tokens: list[int]

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, part: slice | Sequence[bool]) -> "Requests":
        """The accesses of a slice, or those where ``part`` is true."""
        columns = self.keys, self.sizes, self.tokens
        return Requests(*(column[part] if isinstance(part, slice) else [*compress(column, part)] for column in columns))

    @property
    def objects(self) -> dict[str, int]:
        """Each key with the size of its first access, in order of first access."""
        sizes: dict[str, int] = {}
        for key, size in zip(self.keys, self.sizes, strict=True):
            sizes.setdefault(key, size)
        return sizes

    @cached_property
    def working_set(self) -> int:
        """Bytes of all objects, each counted once."""
        return sum(self.objects.values())

    @cached_property
    def next_uses(self) -> list[float]:
        """For each access the index of the next access to the same key, inf when there is none."""
        upcoming, following = {}, [math.inf] * len(self)
        for index in range(len(self) - 1, -1, -1):
            key = self.keys[index]
            following[index] = upcoming.get(key, math.inf)
            upcoming[key] = index
        return following

    def share(self, fraction: float) -> int:
        """``fraction`` of the working set in bytes, at least 1."""
        return max(1, round(fraction * self.working_set))

    def counted(self) -> "Requests":
        """The same accesses with every size 1, so that a capacity counts objects."""
        return Requests(self.keys, [1] * len(self), self.tokens)


def requests(source, tokens: int = 1, dtype: str = "float32") -> Requests:
    """Accesses of a Trace, of its DataFrame, of ``[(name, bytes), ...]``, or of ``tokens`` passes over a GGUF file.

    From a trace, only spans "access" without errors are taken. For a file, each token accesses every tensor once, in file
    order, at its size in ``dtype``. TraceError for any other source.
    """
    if isinstance(source, Requests):
        return source
    if isinstance(source, Trace):
        spans = [span for span in source.spans if span.what == "access" and span.outcome != "error"]
        return Requests([s.tensor for s in spans], [s.nbytes for s in spans], [s.token for s in spans])
    if hasattr(source, "columns"):
        return _of_frame(source)
    if hasattr(source, "tensors"):
        each = known("dtype", dtype, DTYPES, TraceError)
        pairs = [(name, info.elements * each) for name, info in source.tensors.items()]
        return repeated(pairs, tokens)
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
        return repeated(source, 1)
    raise TraceError(f"{type(source).__name__} is not a trace: give a Trace, its DataFrame, a GGUF file or (name, bytes)")


def _of_frame(frame) -> Requests:
    missing = {"tensor", "nbytes"} - set(frame.columns)
    if missing:
        raise TraceError(f"the DataFrame is not a trace: it lacks the column {', '.join(sorted(missing))}")
    if "what" in frame:
        frame = frame[frame["what"] == "access"]
    if "outcome" in frame:
        frame = frame[frame["outcome"] != "error"]
    tokens = frame["token"].tolist() if "token" in frame else [0] * len(frame)
    return Requests(frame["tensor"].tolist(), frame["nbytes"].tolist(), tokens)


def repeated(pairs, tokens: int) -> Requests:
    """``tokens`` passes over ``[(name, bytes), ...]`` in that order: a cyclic scan, as of a dense model."""
    try:
        pairs = [(name, int(size)) for name, size in pairs]
    except (TypeError, ValueError):
        raise TraceError("a trace of pairs needs (name, bytes) in each item") from None
    negative = next((name for name, size in pairs if size < 0), None)
    if negative is not None:
        raise TraceError(f"{negative}: the size is negative; give bytes from 0 on")
    numbered = [token for token in range(tokens) for _ in pairs]
    return Requests([name for name, _ in pairs] * tokens, [size for _, size in pairs] * tokens, numbered)


def popular(objects: int, accesses: int, skew: float = 0.7, seed: int = 0) -> Requests:
    """Independent draws of experts of one byte, the k-th most popular with a probability proportional to k^-``skew``."""
    weight = np.arange(1, objects + 1) ** -skew
    names = [f"blk.{number % 48}.ffn_up_exps.weight[{number}]" for number in range(objects)]
    order = np.random.default_rng(seed).choice(objects, accesses, p=weight / weight.sum())
    return Requests([names[number] for number in order.tolist()], [1] * accesses, [0] * accesses)


def hottest(accesses: Requests, capacity: int) -> list[str]:
    """The most used objects for each byte of ``accesses`` that fit in ``capacity`` bytes: a fixed set."""
    sizes, counts, left, chosen = accesses.objects, Counter(accesses.keys), capacity, []
    for key in sorted(counts, key=lambda key: -counts[key] / sizes[key]):
        if sizes[key] <= left:
            chosen.append(key)
            left -= sizes[key]
    return chosen
