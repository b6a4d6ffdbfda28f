"""Ways of holding weights: what a token takes and what is held, predicted from costs and a replay, then measured."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

import kit
from kit.cache import POLICIES, UNLIMITED
from kit.cache.policies.base import Policy
from kit.cache.replay import replay_hits
from kit.costs.measured import Cost
from kit.costs.order import DECODES, FUSED, Decode, Kind, Order, Program, Walk, kind_of
from kit.gguf.formats import DTYPES
from kit.lab import state
from kit.units import format_bytes

BYTES = DTYPES | {"int8": 1}  # of a weight, by what a way keeps it as
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "int8"}
SHORTS = {"tiles": "int8 tiles", "tiles, prefetched": "int8 tiles prefetched"}
NAMES = {
    "fused": "blocks as they lie",
    "fused-int8": "blocks, int8 activations",
    "pressed": "blocks, page cache too small",
    "pinned blocks": "blocks, {} pinned",
}
PRECISION = {
    "float32": "exact to float32",
    "float16": "weights rounded to 11 bits",
    "bfloat16": "weights rounded to 8 bits",
    "int8": "weights rounded to 8 bits, a scale a row",
    "fused-int8": "activations rounded to 8 bits",
}


@dataclass(frozen=True)
class Way:
    """A policy of kit.cache by name with its capacity (bytes; None: without limit), and how weights are used.

    ``linear``: "dequantized" with weights dequantized to ``dtype``, one of FUSED, or what a finding adds (tiles, "pressed").
    """

    policy: str
    capacity: int | None = None
    dtype: str = "float32"
    linear: str = "dequantized"

    @property
    def label(self) -> str:
        """In a few words, for tables."""
        if self.linear in NAMES:
            return NAMES[self.linear].format(format_bytes(self.capacity or 0))
        size = format_bytes(self.capacity or 0)
        work = "dequantized" if self.linear == "dequantized" else "unpacked"
        named = {"NoCache": f"{work} each time", "HashMap": "all kept", "Pinned": f"{size} pinned"}
        return f"{named.get(self.policy, f'{self.policy} of {size}')}, {SHORTS.get(self.linear, SHORT[self.dtype])}"

    @property
    def precision(self) -> str:
        """What is rounded on the way, in words."""
        return PRECISION.get(self.linear) or PRECISION[self.dtype]

    def cache(self) -> Policy:
        """A new policy object."""
        return UNLIMITED[self.policy]() if self.capacity is None else POLICIES[self.policy](self.capacity)


LAZY = Way("NoCache")
BLOCKS = Way("NoCache", linear="fused")
BLOCKS_INT8 = replace(BLOCKS, linear="fused-int8")


@dataclass(frozen=True)
class Prediction:
    """A token in the steady state (the first is not counted).

    ``seconds``; ``bound``: the least that its bytes take at this machine's bandwidth; ``hit_rate`` of the cache (None where
    matrices do not pass through it); ``held``: most bytes of dequantized weights at once, the one in use among them;
    ``pages``: bytes of the file that a token reads, which must stay in memory or be read again.
    """

    way: Way
    seconds: float
    bound: float
    hit_rate: float | None
    held: int
    pages: int

    @property
    def total(self) -> int:
        """Bytes of memory in use: dequantized weights and pages of the file."""
        return self.held + self.pages


class Part(NamedTuple):
    """What counts of one tensor (or expert): its kind, the bytes of its blocks, its weights."""

    kind: Kind
    blocks: int
    elements: int


def parts_of(file, order: Order) -> dict[str, Part]:
    """The tensors that a decode of an open file uses."""
    weights = kit.Weights(file)
    width = weights.dtype.itemsize
    return {
        name: Part(kind_of(weights, name), weights.blocks(name).nbytes, weights.nbytes(name) // width) for name in order.names
    }


def from_blocks(linear: str, order: Order, costs: dict[Kind, Cost]) -> Program:
    """What a token straight from the blocks costs: as the recorded program, where it is one (its norms are of the rest)."""
    return order.programs.get(linear) or Program(order.rest, {kind: cost.fused[linear] for kind, cost in costs.items()})


def predict(way: Way, parts: dict[str, Part], order: Order, costs: dict[Kind, Cost], machine) -> Prediction:
    """Costs of all uses, plus the load of each miss that a replay of ``order`` through the way's policy shows."""
    tokens = max(1, len(order.tokens) - 1)
    uses = [name for token in order.tokens[-tokens:] for name in token]
    if way.linear in FUSED:
        token = from_blocks(way.linear, order, costs)
        seconds = token.rest + sum(token.products.get(parts[name].kind, 0.0) for name in uses) / tokens
        pages = sum(parts[name].blocks for name in set(uses))
        bound = machine.seconds_to_read(sum(parts[name].blocks for name in uses) / tokens)
        vectors = sum(4 * part.elements for part in parts.values() if len(part.kind.shape) == 1)
        return Prediction(way, seconds, bound, None, vectors, pages)
    decoded = {name: part.elements * BYTES[way.dtype] for name, part in parts.items()}
    stats, hits = replay_hits(order.requests(decoded.__getitem__), way.cache())
    missed = [name for name, hit in zip(uses, hits[-len(uses) :], strict=True) if not hit]
    seconds = order.rest + sum(costs[parts[name].kind].multiply[way.dtype] for name in uses) / tokens
    seconds += sum(costs[parts[name].kind].load[way.dtype] for name in missed) / tokens
    bound = machine.seconds_to_read(sum(decoded[name] for name in uses) / tokens)
    bound += machine.seconds_to_write(sum(decoded[name] for name in missed) / tokens)
    in_use = max((decoded[name] for name in missed), default=0)
    pages = sum(parts[name].blocks for name in set(missed))
    return Prediction(way, seconds, bound, 1 - len(missed) / len(uses), stats.peak_bytes + in_use, pages)


@dataclass(frozen=True)
class Measured:
    """A way as it was measured: seconds of each token after the first, hit rate of those tokens, bytes resident.

    ``disturbed``: other processes used the cores meanwhile.
    ``result``: the logits of the last token, or the products of a walk one after another: ways compare by it.
    """

    way: Way
    samples: tuple[float, ...]
    hit_rate: float | None
    resident: int
    result: torch.Tensor = field(repr=False, compare=False)
    disturbed: bool = False

    @property
    def seconds(self) -> float:
        """Median seconds a token."""
        return float(np.median(self.samples))


def measure(way: Way, file, order: Order, tokens: int, tries: int = 1) -> Measured:
    """Decode ``tokens`` tokens (walk the tensors, where the forward pass is not known) after one that is not counted; again,
    ``tries`` times in all, where other processes disturb it."""
    for _ in range(tries):
        weights = kit.Weights(file, way.cache(), dtype=way.dtype)
        with state.Watch() as watch:
            decode = DECODES[order.via]
            steps = Walk(weights, way.linear, order.tokens[0]) if order.reason else decode(weights, way.linear, tokens + 1)
            found = run(way, weights, steps, tokens)
        if not watch.busy:
            break
    return replace(found, disturbed=watch.busy)


def run(way: Way, weights, steps, tokens: int) -> Measured:
    """``tokens`` steps after one that is not counted, through any ``weights``."""
    steps.step()
    if way.linear in FUSED and isinstance(steps, Decode):  # its second token is recorded: one more, and taken back
        steps.step()
        steps.cache.truncate(1)
    weights.trace.clear()
    for _ in range(tokens):
        result = steps.step()
    spans = weights.trace.frame()
    asked = spans.loc[spans["what"] == "access", "outcome"]
    hit_rate = None if way.linear in FUSED else float((asked == "hit").mean())
    seconds = tuple(spans.loc[spans["what"] == "token", "seconds"])
    return Measured(way, seconds, hit_rate, weights.store.stats.resident_bytes, result)
