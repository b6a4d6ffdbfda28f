"""Traces that no decode makes, on which policies are told apart."""

import numpy as np

from kit.cache.traces import Requests


def zipf(objects: int, length: int, alpha: float = 1.0, size: int = 1, seed: int = 0) -> Requests:
    """Independent draws, the k-th most popular object with probability proportional to k^-alpha; 0 is uniform."""
    weight = np.arange(1, objects + 1, dtype=float) ** -alpha
    drawn = np.random.default_rng(seed).choice(objects, length, p=weight / weight.sum())
    return numbered(drawn, size)


def shifting(objects: int, length: int, working: int, every: int, size: int = 1, seed: int = 0) -> Requests:
    """Uniform draws from a window of ``working`` objects that moves on by half of itself after ``every`` accesses."""
    start = np.arange(length) // every * (working // 2)
    drawn = (start + np.random.default_rng(seed).integers(0, working, length)) % objects
    return numbered(drawn, size)


def numbered(drawn, size) -> Requests:
    return Requests([f"object.{i}" for i in drawn.tolist()], [size] * len(drawn), list(range(len(drawn))))


def mixture_of_experts(
    layers: int = 24, experts: int = 32, used: int = 4, tokens: int = 200, skew: float = 1.0, locality: float = 0.3,
    expert_bytes: int = 16 << 20, dense_bytes: int = 32 << 20, seed: int = 0,
) -> Requests:  # fmt: skip
    """Decode of a mixture of experts: each layer accesses its dense weights, then ``used`` of its ``experts``.

    The k-th most popular expert of a layer is chosen with a probability proportional to k^-``skew``. With probability
    ``locality`` a layer uses the experts of the previous token again.
    """
    draw = np.random.default_rng(seed)
    share = np.arange(1, experts + 1, dtype=float) ** -skew
    share /= share.sum()
    orders = [draw.permutation(experts) for _ in range(layers)]
    chosen = [order[draw.choice(experts, used, replace=False, p=share)] for order in orders]
    keys, sizes, numbers = [], [], []
    for token in range(tokens):
        for layer, order in enumerate(orders):
            if draw.random() >= locality:
                chosen[layer] = order[draw.choice(experts, used, replace=False, p=share)]
            keys.append(f"blk.{layer}.attn.weight")
            sizes.append(dense_bytes)
            keys.extend(f"blk.{layer}.ffn_exps.weight[{expert}]" for expert in sorted(chosen[layer].tolist()))
            sizes.extend([expert_bytes] * used)
        numbers.extend([token] * (len(keys) - len(numbers)))
    return Requests(keys, sizes, numbers)
