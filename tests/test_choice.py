"""kit.cpu.choice against numpy: which positions are chosen, and attention to them, in every type of a cache."""

import numpy as np
import pytest
import torch

from kit.cpu import threads
from kit.cpu.choice import Chosen, attend_chosen, best_step, choose
from kit.cpu.shapes import Choice
from kit.model.attention import blas
from kit.model.kvcache import KVCache


def cache_of(kv_heads, size, rows, kind, one=False):
    """A KVCache with random rows (positions, kv_heads, size), and what it gives back."""
    cache = KVCache(kv_heads, size, len(rows), kind, one)
    cache.write(0, rows, rows)
    return cache, cache.read(len(rows))[0]


def definition(q, keys, positions, choice, weights):
    """The positions of the last query, as numpy says it."""
    units = positions // choice.each
    scores = np.maximum(np.einsum("hd,ud->hu", q.astype(np.float64), keys[:units].astype(np.float64)), 0)
    scores = (weights[:, None] * scores).sum(0)
    best = np.sort(np.argsort(-scores, kind="stable")[: choice.top])
    tail = np.arange(units * choice.each, positions)
    return np.concatenate([(best[:, None] * choice.each + np.arange(choice.each)).ravel(), tail])


@pytest.mark.parametrize("kind", ["float32", "float16", "q8_0"])
@pytest.mark.parametrize("top, each, positions", [(1, 1, 1), (8, 1, 7), (8, 1, 8), (8, 1, 9), (5, 4, 23), (5, 4, 24),
                                                  (37, 1, 700), (3, 4, 1100)])  # fmt: skip
def test_the_best_units_are_chosen(kind, top, each, positions):
    random = np.random.default_rng(positions)
    choice, heads, size, tokens = Choice(top, each, 0.25), 70, 64, min(positions, 3)
    rows = torch.from_numpy(random.standard_normal((positions, 1, size), np.float32))
    cache, keys = cache_of(1, size, rows[: max(1, positions // each)], kind)
    q = torch.from_numpy(random.standard_normal((tokens, heads, size), np.float32))
    weights = torch.from_numpy(random.standard_normal((tokens, heads), np.float32))
    chosen = choose(q, cache.histories()[0], positions, choice, weights)
    assert (chosen is None) == (positions // each <= top)
    for token in range(tokens if chosen else 0):
        here = positions - tokens + token + 1
        right = definition(q[token].numpy(), keys[0].numpy(), here, choice, weights[token].numpy())
        found = chosen.positions[token, : chosen.counts[token]].numpy()
        assert np.array_equal(found, right)


@pytest.mark.parametrize("units", [16, 17, 300, 5000, 40000])
@pytest.mark.parametrize("kind", ["normal", "ties", "alike", "negative", "no numbers"])
def test_the_best_of_any_scores(units, kind):
    """Few begin alike, or more than are copied; of what is no number as many are chosen, and each once."""
    random = np.random.default_rng(units)
    scores = random.standard_normal(units).astype(np.float32)
    scores = {"normal": scores, "ties": scores.round().clip(0), "alike": 1 + scores.clip(0, 1) / 8, "negative": -abs(scores),
              "no numbers": np.where(scores > 1, np.nan, np.where(scores < -1, -np.inf, scores))}[kind]  # fmt: skip
    padded = torch.full((1, -(-units // 256) * 256), torch.inf)
    padded[0, :units] = torch.from_numpy(scores.astype(np.float32))
    for top in {1, 7, units // 3, units - 1}:
        choice, found = Choice(top), torch.full((1, top + 1), -1, dtype=torch.int32)
        threads.run_all([best_step(padded, found, 1, choice, units)])
        rank = np.where(np.isnan(scores), np.inf, scores)  # above all numbers
        assert np.array_equal(found[0, :top], np.sort(np.argsort(-rank, kind="stable")[:top])) and found[0, top] == -1


def test_among_equal_scores_the_first_are_chosen():
    """Scores of relu are often exactly 0."""
    keys = -torch.ones(600, 1, 16)
    keys[[7, 300, 301, 599]] = 1.0
    cache, _ = cache_of(1, 16, keys, "float32")
    chosen = choose(torch.ones(1, 2, 16), cache.histories()[0], 600, Choice(6))
    assert chosen.positions[0, :6].tolist() == [0, 1, 7, 300, 301, 599] and chosen.counts == [6]


@pytest.mark.parametrize("kind", ["float32", "float16", "q8_0"])
@pytest.mark.parametrize("kv_heads, one", [(1, True), (2, False)])
def test_attention_to_the_chosen_is_attention_to_them_alone(kind, kv_heads, one):
    random = np.random.default_rng(3)
    rows = torch.from_numpy(random.standard_normal((700, kv_heads, 96), np.float32))
    cache, keys = cache_of(kv_heads, 96, rows, kind, one)
    q = torch.from_numpy(random.standard_normal((3, 8, 96), np.float32))
    counts = [2, 300, 257]
    positions = torch.from_numpy(np.stack([np.sort(random.permutation(700)[:300]) for _ in counts]).astype(np.int32))
    got = attend_chosen(q, *cache.histories(), kv_heads, Chosen(positions, counts), 0.1)
    for token, count in enumerate(counts):
        own = keys[:, positions[token, :count].long()]
        right = blas(q[token : token + 1].transpose(0, 1), own, own, 0.1)
        assert torch.allclose(got[token], right[:, 0], atol=1e-5)
