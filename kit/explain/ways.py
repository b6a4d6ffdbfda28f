"""Ways of holding weights: what a token takes and what is held, predicted from costs and a replay, then measured."""

from dataclasses import dataclass, replace

import numpy as np

import kit
from kit.cache import LIMITED, UNLIMITED
from kit.cache.policy import Policy
from kit.explain.costs import FUSED, kind_of
from kit.explain.order import Decode, Order, Walk, is_matrix
from kit.units import format_bytes

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Way:
    """A policy of kit.cache by name with its capacity (bytes; None: without limit) and dtype, or blocks as they lie."""

    policy: str
    capacity: int | None = None
    dtype: str = "float32"
    linear: str = "matmul"

    @property
    def label(self) -> str:
        """In a few words, for tables."""
        if self.linear in FUSED:
            return "blocks as they lie" if self.linear == "fused" else "blocks, int8 activations"
        named = {"NoCache": "lazy", "HashMap": "all kept"}.get(self.policy, self.policy)
        return f"{named}{f' {format_bytes(self.capacity)}' if self.capacity else ''} {SHORT[self.dtype]}"

    def cache(self) -> Policy:
        """A new policy object."""
        return UNLIMITED[self.policy]() if self.capacity is None else LIMITED[self.policy](self.capacity)


LAZY = Way("NoCache")
BLOCKS = Way("NoCache", linear="fused")
BLOCKS_INT8 = replace(BLOCKS, linear="fused-int8")


@dataclass(frozen=True)
class Prediction:
    """A token in the steady state (the first is not counted).

    ``seconds``; ``bound``: the least that its bytes take at this machine's bandwidth; ``hit_rate`` of the cache (None where
    matrices do not pass through it); ``held``: most bytes of decoded weights at once, the one in use among them;
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
        """Bytes of memory in use: decoded weights and pages of the file."""
        return self.held + self.pages


def predict(way: Way, file, order: Order, costs, machine) -> Prediction:
    """Costs of all uses, plus the load of each miss that a replay of ``order`` through the way's policy shows."""
    weights = kit.Weights(file, dtype=way.dtype)
    cost = {name: costs[kind_of(weights, name)] for name in order.names}
    blocks = {name: weights.blocks(name).nbytes for name in order.names}
    decoded = {name: weights.nbytes(name) for name in order.names}
    tokens = max(1, len(order.tokens) - 1)
    uses = [name for token in order.tokens[-tokens:] for name in token]
    if way.linear in FUSED:
        seconds = order.rest + sum(cost[name].fused[way.linear] for name in uses) / tokens
        pages = sum(blocks[name] for name in set(uses))
        read = sum(blocks[name] for name in uses) / tokens
        vectors = sum(size for name, size in decoded.items() if not is_matrix(weights.info(name)))
        return Prediction(way, seconds, machine.seconds_to_read(read), None, vectors, pages)
    hits, held = replayed(way.cache(), order.requests(weights.nbytes))
    missed = [name for name, hit in zip(uses, hits[-len(uses) :], strict=True) if not hit]
    seconds = order.rest + sum(cost[name].multiply[way.dtype] for name in uses) / tokens
    seconds += sum(cost[name].load[way.dtype] for name in missed) / tokens
    bound = machine.seconds_to_read(sum(decoded[name] for name in uses) / tokens)
    bound += machine.seconds_to_write(sum(decoded[name] for name in missed) / tokens)
    in_use = max((decoded[name] for name in missed), default=0)
    pages = sum(blocks[name] for name in set(missed))
    return Prediction(way, seconds, bound, 1 - len(missed) / len(uses), held + in_use, pages)


def replayed(policy: Policy, accesses) -> tuple[list[bool], int]:
    """Whether each access hits, and the most bytes resident at once."""
    hits, peak = [], 0
    for key, size in zip(accesses.keys, accesses.sizes, strict=True):
        hits.append(policy.request(key, size))
        if not hits[-1]:
            policy.insert(key, size)
        peak = max(peak, policy.resident_bytes)
    return hits, peak


@dataclass(frozen=True)
class Measured:
    """A way as it was measured: seconds of each token after the first, hit rate of those tokens, bytes resident."""

    way: Way
    samples: tuple[float, ...]
    hit_rate: float | None
    resident: int

    @property
    def seconds(self) -> float:
        """Median seconds a token."""
        return float(np.median(self.samples))


def measure(way: Way, file, order: Order, tokens: int) -> Measured:
    """Decode ``tokens`` tokens (walk the tensors, where the forward pass is not known) after one that is not counted."""
    weights = kit.Weights(file, way.cache(), dtype=way.dtype)
    steps = Walk(weights, way.linear, order.tokens[0]) if order.reason else Decode(weights, way.linear, tokens + 1)
    steps.step()
    weights.trace.clear()
    for _ in range(tokens):
        steps.step()
    spans = weights.trace.frame()
    asked = spans.loc[spans["what"] == "access", "outcome"]
    hit_rate = None if way.linear in FUSED else float((asked == "hit").mean())
    return Measured(way, tuple(spans.loc[spans["what"] == "token", "seconds"]), hit_rate, weights.store.stats.resident_bytes)
