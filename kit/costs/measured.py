"""What one use of a tensor costs here: loading it into each dtype, multiplying by it, using its blocks as they lie."""

import itertools
import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tqdm import tqdm

import kit
from kit.costs.order import is_matrix
from kit.lab import measure
from kit.model.linear import LINEAR

DTYPES = ("float32", "float16", "bfloat16")
FUSED = ("fused", "fused-int8")


class Kind(NamedTuple):
    """Tensors of one kind cost the same: ggml type and shape (of one expert, where there is a stack)."""

    qtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """Seconds of one use: ``load`` (blocks to fresh memory) and ``multiply`` (one token) by dtype, ``fused`` by linear.

    A vector only loads; its other costs are 0.
    """

    load: dict[str, float]
    multiply: dict[str, float]
    fused: dict[str, float]


def kind_of(weights, name: str) -> Kind:
    """The kind of ``name``, or of ``stack[expert]``."""
    info = weights.info(name)
    return Kind(info.qtype, info.shape[-2:])


def measure_costs(file, names, dtypes=DTYPES, samples: int = 3, progress: bool = False) -> dict[Kind, Cost]:
    """The cost of every kind among ``names``: medians over tensors of that kind, taken in turn.

    A decode uses each weight once, so each sample takes another tensor where there is one: no cache keeps it warm.
    """
    weights = kit.Weights(file)
    by_kind: dict[Kind, list[str]] = {}
    for name in names:
        by_kind.setdefault(kind_of(weights, name), []).append(name)
    bar = tqdm(by_kind.items(), "costs", file=sys.stderr, disable=not (progress and sys.stderr.isatty()))
    return {kind: _cost(file, members, dtypes, samples) for kind, members in bar}


def _cost(file, names, dtypes, samples) -> Cost:
    load, multiply, plain, some = {}, {}, kit.Weights(file), names[:samples]
    x = torch.randn(1, plain.info(names[0]).shape[-1], generator=torch.Generator().manual_seed(0))
    matrix = is_matrix(plain.info(names[0]))
    for dtype in dtypes:
        load[dtype] = _median(kit.Weights(file, dtype=dtype).load, names, samples)
        held = kit.Weights(file, kit.HashMap(), dtype=dtype)
        held.preload(some)
        multiply[dtype] = _median(_apply(held, "decoded", x), some, samples) if matrix else 0.0
    fused = {how: _median(_apply(plain, how, x), names, samples) if matrix else load[dtypes[0]] for how in FUSED}
    return Cost(load, multiply, fused)


def _apply(weights, linear, x):
    return lambda name: LINEAR[linear].apply(weights, name, x)


def _median(use, names, samples) -> float:
    turn = itertools.cycle(names)
    return measure.time(lambda: use(next(turn)), samples=samples, min_sample=0).median
