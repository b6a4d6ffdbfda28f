"""The measured cost of one use of a tensor: from the cache, after a load, or from the file's blocks.

Tensors of one kind cost the same, so only a few of each are measured. They are used one after another in the order of a
decode, so that threads, mapped pages, reused memory and CPU caches are in the same state as in a decode.
"""

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np

import kit
from kit.costs.order import FUSED, Kind, kind_of, use_of
from kit.cpu.threads import torch_alone
from kit.gguf import formats
from kit.gguf.cut import fewer_rows
from kit.lab.kept import once_a_run

DTYPES = tuple(formats.DTYPES)
_SAMPLES = 3  # tensors of a kind, and walks over them
_ENOUGH = 0.6  # seconds after which no further walk begins, once one has been counted
_MOST = 1 << 26  # weights of the samples of a kind
_TOGETHER = 1 << 30  # bytes of dequantized weights held at once while measuring, give or take a tensor
_PIECE = 1 << 28  # bytes of a matrix that are timed; the time grows with its rows


@dataclass(frozen=True)
class Cost:
    """Seconds of one use of a tensor for one token; a vector is only fetched. ``multiply``: dtype -> with the weight in the
    cache. ``load``: dtype -> further seconds of a miss. ``fused``: linear variant of FUSED -> from the blocks."""

    load: dict[str, float]
    multiply: dict[str, float]
    fused: dict[str, float]


@once_a_run
def measure_costs(file, names, dtypes=DTYPES) -> dict[Kind, Cost]:
    """The cost of every kind among ``names``: medians over up to _SAMPLES tensors of the kind (fewer of large ones), in as many
    walks."""
    plain, by_kind = kit.Weights(file), defaultdict(list)
    for name in names:
        by_kind[kind_of(plain, name)].append(name)
    few = {kind: max(1, min(_SAMPLES, _MOST // math.prod(kind.shape))) for kind in by_kind}
    kinds = {name: kind for kind, members in by_kind.items() for name in members[: few[kind]]}
    chosen = {name: kinds[name] for name in names if name in kinds}
    ways = [(dtype, "dequantized", held) for dtype in dtypes for held in (False, True)]
    ways += [(dtypes[0], linear, False) for linear in FUSED]
    seconds = {(dtype, *how): _walked(file, chosen, dtype, *how) for dtype, *how in ways}
    costs = {}
    for kind in by_kind:
        kept = {dtype: seconds[dtype, "dequantized", True][kind] for dtype in dtypes}
        load = {dtype: max(0.0, seconds[dtype, "dequantized", False][kind] - kept[dtype]) for dtype in dtypes}
        costs[kind] = Cost(load, kept, {linear: seconds[dtypes[0], linear, False][kind] for linear in FUSED})
    return costs


def between(before: dict[Kind, Cost], after: dict[Kind, Cost]) -> dict[Kind, Cost]:
    """The mean of what uses cost before and after something else: memory is faster in one minute than in the next."""

    def mean(some, other):
        return {key: (seconds + other[key]) / 2 for key, seconds in some.items()}

    return {kind: Cost(*map(mean, vars(cost).values(), vars(after[kind]).values())) for kind, cost in before.items()}


def _walked(file, kinds: dict[str, Kind], dtype, linear, held: bool) -> dict[Kind, float]:
    """Median seconds of a use by kind, over up to _SAMPLES walks after a warm-up. ``kinds``: of the names."""
    plain, taken, part = kit.Weights(file), defaultdict(list), fewer_rows(file, _PIECE // formats.DTYPES[dtype])
    ends = accumulate(map(plain.nbytes, kinds))
    for _, batch in groupby(zip(kinds, ends, strict=True), lambda pair: pair[1] // _TOGETHER):
        weights = kit.Weights(part, kit.HashMap() if held else None, dtype=dtype)
        uses = [(kinds[name], kinds[name].shape[0] / kind_of(weights, name).shape[0], use_of(weights, linear, name))
                for name, _ in batch]  # fmt: skip
        began = time.perf_counter()
        for walk in range(_SAMPLES + 1):
            if walk > 1 and time.perf_counter() - began > _ENOUGH:
                break
            weights.trace.clear()
            with torch_alone():
                for kind, more, use in uses:
                    start = time.perf_counter()
                    use()
                    taken[kind] += [more * (time.perf_counter() - start)] * (walk > 0)
    return {kind: float(np.median(seconds)) for kind, seconds in taken.items()}
