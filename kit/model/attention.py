"""Causal grouped-query attention in several variants with one signature: the reports' loops and faster ones.

Every variant takes q (heads, tokens, head_dim), k and v (kv_heads, positions, head_dim), all float32, and returns
(heads, tokens, head_dim). Query t is at position ``positions - tokens + t`` and attends to the ``window`` positions up to
its own (0: all); query head h uses key/value head ``h // (heads / kv_heads)``. With ``cap``, a scaled score s becomes
``cap * tanh(s / cap)``; ``sinks`` (heads,) are scores of a further key of each head, whose value is zero.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from kit.cpu.simd.vectors import jit
from kit.errors import ModelError

QUERY_BLOCK, KEY_BLOCK = 128, 512  # the scores of a block take at most a few MB a head


def _loop(q, k, v, scale, window, cap, sinks, out):
    """The reports' manual loop: head x query x key x dim, one multiplication at a time."""
    heads, tokens, dim = q.shape
    positions = k.shape[1]
    group = heads // k.shape[0]
    weight = np.empty(positions)
    for head in range(heads):
        shared = head // group
        for token in range(tokens):
            stop = positions - tokens + token + 1
            start = max(0, stop - window) if window > 0 else 0
            largest = sinks[head]
            for key in range(start, stop):
                score = 0.0
                for i in range(dim):
                    score += float(q[head, token, i]) * float(k[shared, key, i])
                weight[key] = cap * math.tanh(score * scale / cap) if cap > 0 else score * scale
                largest = max(largest, weight[key])
            total = math.exp(sinks[head] - largest)
            for key in range(start, stop):
                weight[key] = math.exp(weight[key] - largest)
                total += weight[key]
            for i in range(dim):
                value = 0.0
                for key in range(start, stop):
                    value += weight[key] * float(v[shared, key, i])
                out[head, token, i] = value / total


def _strided(q, k, v, scale, window, cap, sinks, out):
    """The same sums column by column: the inner loop strides over the keys and loads a cache line for every element."""
    heads, tokens, dim = q.shape
    positions = k.shape[1]
    group = heads // k.shape[0]
    for head in range(heads):
        shared = head // group
        for token in range(tokens):
            stop = positions - tokens + token + 1
            start = max(0, stop - window) if window > 0 else 0
            weight = np.zeros(stop - start)
            for i in range(dim):
                query = float(q[head, token, i]) * scale
                for key in range(start, stop):
                    weight[key - start] += query * float(k[shared, key, i])
            if cap > 0:
                weight = cap * np.tanh(weight / cap)
            largest = max(weight.max(), sinks[head])
            weight = np.exp(weight - largest)
            total = weight.sum() + math.exp(sinks[head] - largest)
            for i in range(dim):
                value = 0.0
                for key in range(start, stop):
                    value += weight[key - start] * float(v[shared, key, i])
                out[head, token, i] = value / total


def _over_arrays(kernel):
    """An attention function from a kernel that fills a numpy array."""

    def attention(q, k, v, scale, window=0, cap=0.0, sinks=None):
        out = torch.empty(q.shape, dtype=torch.float32, device="cpu")
        sinks = np.full(len(q), -np.inf, np.float32) if sinks is None else sinks.float().numpy()
        kernel(q.numpy(), k.numpy(), v.numpy(), scale, window, cap, sinks, out.numpy())
        return out

    return attention


def hidden(first_query: int, queries: int, first_key: int, keys: int, window: int, device="cpu") -> torch.Tensor:
    """(queries, keys): True at keys that a query must not attend to, those after it or outside its window."""
    query = torch.arange(first_query, first_query + queries, dtype=torch.int64, device=device)[:, None]
    key = torch.arange(first_key, first_key + keys, dtype=torch.int64, device=device)
    return (key > query) | (key <= query - window) if window else key > query


def blas(q, k, v, scale, window=0, cap=0.0, sinks=None):
    """Two matrix products for each key/value head and block of queries; the heads of a group are rows of one matrix."""
    out = q.new_empty(q.shape)
    for rows, query, first, stop, result in _query_blocks(q, k, scale, window, out):
        scores = _capped(rows.flatten(1, 2) @ k[:, first:stop].mT, cap)
        if rows.shape[2] > 1:
            mask = hidden(query, rows.shape[2], first, stop - first, window, q.device)
            scores.unflatten(1, rows.shape[1:3]).masked_fill_(mask, -math.inf)
        result[:] = (_softmax(scores, sinks) @ v[:, first:stop]).view(rows.shape)
    return out


def _query_blocks(q, k, scale, window, out):
    """Blocks of queries: (scaled queries (kv_heads, group, tokens, head_dim), position of the first query, first and stop
    of the keys that any of them attends to, their part of ``out``)."""
    tokens = q.shape[1]
    queries, results = (x.view(len(k), -1, *q.shape[1:]) for x in (q * scale, out))
    for start in range(0, tokens, QUERY_BLOCK):
        rows, result = (x[:, :, start : start + QUERY_BLOCK] for x in (queries, results))
        query = k.shape[1] - tokens + start
        yield rows, query, max(0, query - window + 1) if window else 0, query + rows.shape[2], result


def _capped(scores, cap):
    return scores.div_(cap).tanh_().mul_(cap) if cap else scores


def _softmax(scores, sinks):
    """Softmax over the keys of scores (kv_heads, group * tokens, keys), and the sinks, whose share is dropped."""
    if sinks is None:
        return scores.softmax(-1)
    tokens = scores.shape[1] * len(scores) // len(sinks)
    column = sinks.repeat_interleave(tokens).view(*scores.shape[:2], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]


def sdpa(q, k, v, scale, window=0, cap=0.0, sinks=None):
    """torch's fused attention with grouped heads; it has neither caps nor sinks."""
    if cap or sinks is not None:
        needs = "soft caps or sinks, which attention 'sdpa' does not support"
        raise ModelError(f"this model needs {needs}: choose one of {', '.join(_ANY_MODEL)}")
    tokens, positions = q.shape[1], k.shape[1]
    square = tokens == positions and (not window or window >= tokens)
    mask = None if square or tokens == 1 else ~hidden(positions - tokens, tokens, 0, positions, window, q.device)
    if tokens == 1 and window:
        k, v = k[:, -window:], v[:, -window:]
    return F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask, is_causal=square and tokens > 1, scale=scale, enable_gqa=True
    )[0]


def chunked(q, k, v, scale, window=0, cap=0.0, sinks=None):
    """Online softmax over blocks of keys (Milakov & Gimelshein 2018); its memory is independent of the context."""
    out = q.new_empty(q.shape)
    for rows, query, first, stop, result in _query_blocks(q, k, scale, window, out):
        largest = rows.new_full((*rows.shape[:3], 1), -math.inf)
        total = torch.zeros_like(largest)
        if sinks is not None:
            largest, total = largest.copy_(sinks.view(*rows.shape[:2], 1, 1)), total + 1
        value = torch.zeros_like(rows)
        for key in range(first, stop, KEY_BLOCK):
            end = min(key + KEY_BLOCK, stop)
            scores = _capped(rows.flatten(1, 2) @ k[:, key:end].mT, cap).unflatten(1, rows.shape[1:3])
            if end > query + 1 or window:
                scores.masked_fill_(hidden(query, rows.shape[2], key, end - key, window, q.device), -math.inf)
            larger = torch.maximum(largest, scores.amax(-1, keepdim=True)).clamp_min(torch.finfo(q.dtype).min)
            shrink, weight = torch.exp(largest - larger), torch.exp(scores - larger)
            total = total * shrink + weight.sum(-1, keepdim=True)
            value = value * shrink + (weight.flatten(1, 2) @ v[:, key:end]).view(rows.shape)
            largest = larger
        result[:] = value / total
    return out


def fused(q, k, v, scale, window=0, cap=0.0, sinks=None):
    """The kit's kernel (kit.cpu.attention); arguments that it does not take go to the variant that ``variant_for`` names."""
    variant = variant_for("fused", q, k, v)
    if variant != "fused":
        return ATTENTION[variant](q, k, v, scale, window, cap, sinks)
    from kit.cpu.attention import attend  # here, because other variants do not need the kernel
    from kit.cpu.history import History

    return attend(q, History.of(k), History.of(v), len(k), k.shape[1], scale, window, cap, sinks)


def variant_for(name: str, q, k, v) -> str:
    """The variant that runs for ``name``: "blas" for "fused" with heads that its kernel does not take."""
    if name != "fused":
        return name
    from kit.cpu.attention import fits

    plain = all(x.dtype == torch.float32 and x.stride(2) == 1 for x in (q, k, v))
    return name if plain and fits(q.shape[2]) else "blas"


ATTENTION = {
    "python": _over_arrays(_loop),
    "loop": _over_arrays(jit(_loop)),
    "strided": _over_arrays(jit(_strided)),
    "blas": blas,
    "sdpa": sdpa,
    "chunked": chunked,
    "fused": fused,
}
_ANY_MODEL = [name for name in ATTENTION if name != "sdpa"]
