"""What a hit is worth: a weight ready and read once, out of a cache or dequantized, by two dequantizers and two caches."""

import pandas as pd
import torch

import kit
from kit.cache.faults import CopyOnHit
from kit.cache.store import WeightCache
from kit.cache.traces import Requests
from kit.gguf.names import layer_of
from kit.lab import tables
from kit.lab.measure import Rounds, rounds, sampler

ALONE = "look-up alone (nothing is read)"
VIEW, COPY = "hit, a view", "hit, copied each time (reports 002, 003)"
FAST, SLOW = "miss, the kit's dequantizer", "miss, gguf-py's dequantizer"


def take(file, order: Requests, samples: int = 20, budget: float = 8.0) -> tuple[Rounds, int]:
    """Every way to have a layer's largest weight ready and read once (a product with a vector), in turn; its bytes of f32.

    Not the embedding: a copy of it would measure how fast the system hands out fresh memory.
    """
    name = max((name for name in order.objects if layer_of(name) >= 0), key=order.objects.get)
    size = order.objects[name]
    weights = {backend: kit.Weights(file, backend=backend) for backend in ("cpu", "reference")}
    value = weights["cpu"].load(name)
    x = torch.ones(value.shape[-1])
    stores = {"view": WeightCache(kit.HashMap()), "copy": CopyOnHit(kit.HashMap())}
    for store in stores.values():
        store.get(name, size, lambda: value)
    ways = {
        ALONE: lambda: stores["view"].get(name, size, None),
        VIEW: lambda: stores["view"].get(name, size, None) @ x,
        COPY: lambda: stores["copy"].get(name, size, None) @ x,
        FAST: lambda: weights["cpu"].load(name) @ x,
        SLOW: lambda: weights["reference"].load(name) @ x,
    }
    return rounds({label: sampler(way, min_sample=0)[0] for label, way in ways.items()}, samples, budget), size


def table(taken: Rounds, size: int) -> pd.DataFrame:
    """One row a way: milliseconds, GB/s of f32, times a hit that is a view, times a hit that copies."""
    rows = {
        way: (1e3 * taken.median(way), size / taken.median(way) / 1e9 if way != ALONE else float("nan"),
              *(float(pd.Series(taken.ratios(way, hit)).median()) for hit in (VIEW, COPY)))
        for way in taken.seconds
    }  # fmt: skip
    return tables.frame(rows, "way", "ms", "f32, GB/s", "times a hit, a view", "times a hit, copied")
