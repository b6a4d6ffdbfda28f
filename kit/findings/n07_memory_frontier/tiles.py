"""Compressed tiles on the frontier: what unpacking and multiplying cost, a token predicted, and measured."""

import functools
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import torch

import kit
from kit.cache.prefetch import Prefetcher
from kit.codec.weights import CompressedWeights
from kit.costs import ways
from kit.costs.measured import Cost, Kind
from kit.costs.order import Decode, Order
from kit.costs.uses import bytes_used
from kit.costs.ways import Measured, Part, Prediction, Way, run
from kit.gguf.names import layer_of
from kit.lab import measure

PLAIN, PREFETCHED = "tiles", "tiles, prefetched"
LINEARS = (PLAIN, PREFETCHED)


def parts_and_costs(file) -> tuple[dict[str, Part], dict[Kind, Cost]]:
    """The matrices of a CompressedFile, and what a matrix of each shape costs to unpack and to multiply by. ``elements`` are
    the bytes of an unpacked matrix, too; ``blocks`` those of its tiles."""
    weights = CompressedWeights(file)
    parts = {name: Part(Kind("I8", layer.matrix.shape), layer.matrix.nbytes) for name, layer in weights.layers.items()}
    costs = {}
    for kind, name in {part.kind: name for name, part in parts.items()}.items():
        x = torch.randn(1, kind.shape[1], generator=torch.Generator().manual_seed(0))
        layer = CompressedWeights(file, kit.HashMap()).layer(name)
        load = measure.time(weights.layers[name].load, samples=3, min_sample=0).median
        multiply = measure.time(functools.partial(layer, x), samples=3, min_sample=0).median
        costs[kind] = Cost({"int8": load}, {"int8": multiply}, {})
    return parts, costs


def order_of(order: Order, parts: dict[str, Part], tied: bool) -> Order:
    """The same decode over tiles: matrices only, and a tied embedding also at the start, where its rows are taken."""
    first = ["token_embd.weight"] * (tied and "token_embd.weight" in parts)
    tokens = [first + [name for name in token if name in parts] for token in order.tokens]
    return Order(tokens, rest=order.rest, uses=tuple(use for use in order.uses if use.name in parts))


def predict(way: Way, parts: dict[str, Part], order: Order, costs: dict[Kind, Cost], machine) -> Prediction:
    """Multiplications, and an unpacking for each miss of a replay. Prefetch adds nothing to either. The decoder and a
    multiplication each use all cores, so overlapping them saves only idle time: none in the prediction, all of the shorter one
    in the bound."""
    found = ways.predict(way, parts, order, costs, machine)
    if way.linear != PREFETCHED:
        return found
    reading = machine.seconds_to_read(bytes_used(order.uses, 1))
    return replace(found, bound=max(reading, found.bound - reading), held=found.held + 2 * layer_bytes(parts))


def layer_bytes(parts: dict[str, Part]) -> int:
    """Unpacked bytes of the largest layer, what lies outside all layers counted as one."""
    totals = Counter()
    for name, part in parts.items():
        totals[layer_of(name)] += part.elements
    return max(totals.values())


def measure_tiles(way: Way, file, tokens: int) -> Measured:
    """Decode ``tokens`` tokens from a CompressedFile the way given, after one that is not counted."""
    weights = CompressedWeights(file, way.cache())
    plan = [(name, layer.size, layer.load) for name, layer in weights.layers.items()]
    with Prefetcher(weights.store, plan) if way.linear == PREFETCHED else nullcontext():
        return run(way, weights, Decode(weights, weights.linear, tokens + 1), tokens)
