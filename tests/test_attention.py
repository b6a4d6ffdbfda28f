"""Every attention variant against its definition in float64; a mask that looks ahead must not pass."""

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.cpu import simd
from kit.cpu.attention import attend
from kit.cpu.history import History
from kit.model import attention
from kit.model.attention import ATTENTION
from kit.model.kvcache import KVCache


def defined(q, k, v, scale, window, cap=0.0, sinks=None):
    """Attention from its definition, one query at a time, float64 numpy."""
    heads, tokens, dim = q.shape
    positions = k.shape[1]
    out = np.empty((heads, tokens, dim))
    for head in range(heads):
        shared = head // (heads // k.shape[0])
        for token in range(tokens):
            own = positions - tokens + token
            seen = [s for s in range(positions) if s <= own and (not window or s > own - window)]
            score = scale * (k[shared, seen] @ q[head, token])
            score = cap * np.tanh(score / cap) if cap else score
            score = np.append(score, -np.inf if sinks is None else sinks[head])
            weight = np.exp(score - score.max())
            out[head, token] = (weight / weight.sum())[:-1] @ v[shared, seen]
    return out


def random_case(tokens, past, kv_heads, group, dim, seed):
    rng = np.random.default_rng(seed)
    shapes = (kv_heads * group, tokens), (kv_heads, past + tokens), (kv_heads, past + tokens)
    return [rng.standard_normal((*shape, dim)).astype(np.float32) for shape in shapes]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(ATTENTION)),
    tokens=st.integers(1, 9),
    past=st.integers(0, 40),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    dim=st.sampled_from([2, 8, 16, 64, 80]),
    window=st.integers(0, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_definition(name, tokens, past, kv_heads, group, dim, window, seed):
    q, k, v = random_case(tokens, past, kv_heads, group, dim, seed)
    expected = defined(*(x.astype(np.float64) for x in (q, k, v)), dim**-0.5, window)
    got = ATTENTION[name](*map(torch.from_numpy, (q, k, v)), dim**-0.5, window)
    assert got.dtype == torch.float32 and got.shape == q.shape
    assert np.abs(got.numpy() - expected).max() < 1e-5  # float32's rounding of scores, for heads of 80 elements


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("tokens,past", [(1, 1100), (300, 0), (270, 530)])
def test_blocks_of_queries_and_keys_join(tokens, past, window):
    """Longer than the blocks of blas and chunked, from a cache that is a strided view of a larger buffer."""
    q, k, v = random_case(tokens, past, 2, 2, 16, seed=1)
    buffers = [np.full((2, 2000, 16), np.nan, np.float32) for _ in "kv"]
    for buffer, x in zip(buffers, (k, v), strict=True):
        buffer[:, : past + tokens] = x
    k_view, v_view = (torch.from_numpy(buffer)[:, : past + tokens] for buffer in buffers)
    by_token = torch.from_numpy(np.ascontiguousarray(q.transpose(1, 0, 2))).transpose(0, 1)
    expected = defined(*(x.astype(np.float64) for x in (q, k, v)), 0.25, window)
    for name in ("loop", "strided", "blas", "sdpa", "chunked", "fused"):
        got = ATTENTION[name](by_token, k_view, v_view, 0.25, window).numpy()
        assert np.abs(got - expected).max() < 1e-6, name


def test_a_reversed_mask_fails(monkeypatch):
    """The definition tells a mask that hides the past from one that hides the future."""
    q, k, v = random_case(5, 2, 1, 2, 8, seed=0)
    expected = defined(*(x.astype(np.float64) for x in (q, k, v)), 0.3, 0)
    hidden = attention.hidden
    monkeypatch.setattr(attention, "hidden", lambda *args: hidden(*args).flip(0))
    for name in ("blas", "chunked", "sdpa"):
        got = ATTENTION[name](*map(torch.from_numpy, (q, k, v)), 0.3).numpy()
        assert not np.allclose(got, expected, atol=1e-3), name


@pytest.mark.parametrize("name", ["loop", "strided", "blas", "sdpa", "chunked"])
def test_the_future_is_not_seen(name):
    """Changing the last position's key and value changes no query but the last."""
    q, k, v = map(torch.from_numpy, random_case(6, 3, 2, 2, 8, seed=3))
    before = ATTENTION[name](q, k, v, 0.3)
    k, v = k.clone(), v.clone()
    k[:, -1], v[:, -1] = 50.0, -50.0
    after = ATTENTION[name](q, k, v, 0.3)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def test_large_scores_do_not_overflow():
    q, k, v = (100 * torch.from_numpy(x) for x in random_case(4, 4, 1, 1, 8, seed=5))
    for name, variant in ATTENTION.items():
        assert variant(q, k, v, 1.0).isfinite().all(), name


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["float32", "float16", "q8_0"]),
    tokens=st.sampled_from([1, 2, 21, 130]),
    past=st.integers(0, 570),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    dim=st.sampled_from([32, 64, 96]),
    window=st.sampled_from([0, 1, 300]),
    cap=st.sampled_from([0.0, 2.0]),
    sunk=st.booleans(),
    tier_name=st.sampled_from(simd.available()),
)
def test_queries_straight_from_a_cache(kind, tokens, past, kv_heads, group, dim, window, cap, sunk, tier_name):
    """The history as the cache holds it, never converted in memory, against the definition on what the cache reads back."""
    q, k, v = map(torch.from_numpy, random_case(tokens, past, kv_heads, group, dim, seed=past))
    sinks = torch.linspace(-4, 9, kv_heads * group) if sunk else None
    with simd.using(tier_name):
        cache = KVCache(kv_heads, dim, 800, kind)
        cache.write(0, *(x.transpose(0, 1) for x in (k, v)))
        read = cache.read(past + tokens)
        got = attend(q, *cache.histories(), kv_heads, past + tokens, dim**-0.5, window, cap, sinks)
    expected = defined(*(x.double().numpy() for x in (q, *read)), dim**-0.5, window, cap, sinks)
    assert np.abs(got.numpy() - expected).max() < 2e-6


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["float32", "float16", "q8_0"]),
    tokens=st.sampled_from([1, 2, 3]),
    past=st.sampled_from([0, 15, 255, 300]),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([7, 8, 9, 28, 29, 65, 128, 131]),
    dim=st.sampled_from([32, 576]),
    sunk=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_many_heads_share_a_key(kind, tokens, past, kv_heads, group, dim, sunk, seed):
    """As of an absorbed latent: more than a task takes, of a chunk and of a block of queries, and no multiple of it."""
    q, k, v = map(torch.from_numpy, random_case(tokens, past, kv_heads, group, dim, seed))
    sinks = torch.linspace(-4, 9, kv_heads * group) if sunk else None
    cache = KVCache(kv_heads, dim, past + tokens, kind)
    cache.write(0, *(x.transpose(0, 1) for x in (k, v)))
    read = cache.read(past + tokens)
    got = attend(q, *cache.histories(), kv_heads, past + tokens, dim**-0.5, sinks=sinks)
    expected = defined(*(x.double().numpy() for x in (q, *read)), dim**-0.5, 0, sinks=sinks)
    assert np.abs(got.numpy() - expected).max() < 2e-6


@pytest.mark.parametrize("tier_name", simd.available())
def test_a_much_larger_score_shrinks_what_was_added_before(tier_name):
    """Scores rise from one chunk of positions to the next by more than the kernel lets a weight be above 1."""
    q, k, v = map(torch.from_numpy, random_case(40, 300, 1, 2, 32, seed=0))
    q[:, :, 0], k[0, :, 0] = 1, torch.arange(340) / 2
    with simd.using(tier_name):
        got = attend(q, History.of(k), History.of(v), 1, 340, 32**-0.5)
    expected = defined(*(x.double().numpy() for x in (q, k, v)), 32**-0.5, 0)
    assert np.abs(got.numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("tier_name", simd.available())
def test_a_cache_rounds_as_numpy_and_gguf_py_do(tier_name):
    rows = np.random.default_rng(0).standard_normal((5, 2, 64)).astype(np.float32)
    rows[0, 0, :32] = 0
    blocks = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    right = {
        "float32": rows,
        "float16": rows.astype(np.float16).astype(np.float32),
        "q8_0": gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0),
    }
    with simd.using(tier_name):
        for kind, expected in right.items():
            cache = KVCache(2, 64, 10, kind)
            for part in (slice(0, 2), slice(2, 5)):  # in two passes
                cache.write(part.start, torch.from_numpy(rows[part]), torch.from_numpy(-rows[part]))
            k, v = cache.read(5)
            assert np.array_equal(k.transpose(0, 1).numpy(), expected) and np.array_equal(v.numpy(), -k.numpy()), kind


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_heads_of_any_size_are_cached(kind):
    rows = torch.randn(3, 2, 21)
    cache = KVCache(2, 21, 4, kind)
    cache.write(0, rows, rows)
    k, v = cache.read(3)
    assert torch.equal(k, v) and torch.equal(k, rows.transpose(0, 1).to(getattr(torch, kind)).float())
