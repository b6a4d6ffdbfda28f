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
