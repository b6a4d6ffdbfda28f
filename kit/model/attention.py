"""Causal grouped-query attention in several ways, one signature: the reports' loops beside what replaces them.

Every variant takes q (heads, tokens, head_dim), k and v (kv_heads, positions, head_dim), all float32, and returns
(heads, tokens, head_dim). Query t stands at position ``positions - tokens + t`` and sees the ``window`` positions up
to its own (0: all of them); query head h reads key/value head ``h // (heads / kv_heads)``.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from kit.cpu.simd.vectors import jit
from kit.errors import ModelError

QUERY_BLOCK, KEY_BLOCK = 128, 512  # scores of one block stay within a few MB a head


def _loop(q, k, v, scale, window, out):
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
            largest = -math.inf
            for key in range(start, stop):
                score = 0.0
                for i in range(dim):
                    score += float(q[head, token, i]) * float(k[shared, key, i])
                weight[key] = score * scale
                largest = max(largest, weight[key])
            total = 0.0
            for key in range(start, stop):
                weight[key] = math.exp(weight[key] - largest)
                total += weight[key]
            for i in range(dim):
                value = 0.0
                for key in range(start, stop):
                    value += weight[key] * float(v[shared, key, i])
                out[head, token, i] = value / total


def _strided(q, k, v, scale, window, out):
    """The same sums column by column: the inner loop strides over the keys, a cache line for every element."""
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
            weight = np.exp(weight - weight.max())
            total = weight.sum()
            for i in range(dim):
                value = 0.0
                for key in range(start, stop):
                    value += weight[key - start] * float(v[shared, key, i])
                out[head, token, i] = value / total


def _over_arrays(kernel):
    """The common signature around a kernel that fills a numpy array."""

    def attention(q, k, v, scale, window=0):
        out = torch.empty(q.shape, dtype=torch.float32)
        kernel(q.numpy(), k.numpy(), v.numpy(), scale, window, out.numpy())
        return out

    return attention


def hidden(first_query: int, queries: int, first_key: int, keys: int, window: int, device=None) -> torch.Tensor:
    """True where a query may not look, (queries, keys): at later positions, and at or before its own - window."""
    query = torch.arange(first_query, first_query + queries, device=device)[:, None]
    key = torch.arange(first_key, first_key + keys, device=device)
    return (key > query) | (key <= query - window) if window else key > query


def blas(q, k, v, scale, window=0):
    """Two matrix products a key/value head and block of queries: the heads of a group are rows, nothing is repeated."""
    heads, tokens, dim = q.shape
    kv_heads, positions, _ = k.shape
    q = (q * scale).view(kv_heads, heads // kv_heads, tokens, dim)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for start in range(0, tokens, QUERY_BLOCK):
        rows = q[:, :, start : start + QUERY_BLOCK]
        group_rows = rows.flatten(1, 2)
        first, stop = _seen(positions - tokens + start, rows.shape[2], window)
        scores = group_rows @ k[:, first:stop].mT
        if rows.shape[2] > 1:
            mask = hidden(positions - tokens + start, rows.shape[2], first, stop - first, window, q.device)
            scores.unflatten(1, rows.shape[1:3]).masked_fill_(mask, -math.inf)
        out[:, :, start : start + QUERY_BLOCK] = (scores.softmax(-1) @ v[:, first:stop]).view(rows.shape)
    return out.view(heads, tokens, dim)


def _seen(first_query, queries, window):
    """The keys [first, stop) that any of ``queries`` positions from ``first_query`` sees."""
    return max(0, first_query - window + 1) if window else 0, first_query + queries


def sdpa(q, k, v, scale, window=0):
    """torch's own fused attention, grouped heads included."""
    tokens, positions = q.shape[1], k.shape[1]
    square = tokens == positions and not window
    mask = None if square or tokens == 1 else ~hidden(positions - tokens, tokens, 0, positions, window, q.device)
    if tokens == 1 and window:
        k, v = k[:, -window:], v[:, -window:]
    return F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask, is_causal=square and tokens > 1, scale=scale, enable_gqa=True
    )[0]


def chunked(q, k, v, scale, window=0):
    """Online softmax over blocks of keys (Milakov & Gimelshein 2018): memory does not grow with the context."""
    heads, tokens, dim = q.shape
    kv_heads, positions, _ = k.shape
    q = (q * scale).view(kv_heads, heads // kv_heads, tokens, dim)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for start in range(0, tokens, QUERY_BLOCK):
        rows = q[:, :, start : start + QUERY_BLOCK]
        query = positions - tokens + start
        largest = torch.full((*rows.shape[:3], 1), -math.inf, device=q.device)
        total = torch.zeros_like(largest)
        value = torch.zeros(rows.shape, device=q.device)
        first, stop = _seen(query, rows.shape[2], window)
        for key in range(first, stop, KEY_BLOCK):
            end = min(key + KEY_BLOCK, stop)
            scores = (rows.flatten(1, 2) @ k[:, key:end].mT).unflatten(1, rows.shape[1:3])
            if end > query + 1 or window:
                scores.masked_fill_(hidden(query, rows.shape[2], key, end - key, window, q.device), -math.inf)
            larger = torch.maximum(largest, scores.amax(-1, keepdim=True)).clamp_min(torch.finfo(q.dtype).min)
            shrink, weight = torch.exp(largest - larger), torch.exp(scores - larger)
            total = total * shrink + weight.sum(-1, keepdim=True)
            value = value * shrink + (weight.flatten(1, 2) @ v[:, key:end]).view(rows.shape)
            largest = larger
        out[:, :, start : start + QUERY_BLOCK] = value / total
    return out.view(heads, tokens, dim)


def fused(q, k, v, scale, window=0):
    """One query by the kit's kernel (kit.cpu.attention), on its threads; several, or what it does not take, by ``blas``."""
    from kit.cpu import attention  # brings in the kernels, which no other variant needs

    return (attention.attend if attention.takes(q, k, v) else blas)(q, k, v, scale, window)


ATTENTION = {
    "python": _over_arrays(_loop),
    "loop": _over_arrays(jit(_loop)),
    "strided": _over_arrays(jit(_strided)),
    "blas": blas,
    "sdpa": sdpa,
    "chunked": chunked,
    "fused": fused,
}


def attention_named(name: str):
    """The variant of that name; ModelError with the known names for any other."""
    if name not in ATTENTION:
        raise ModelError(f"attention {name!r} is not known; choose one of {', '.join(ATTENTION)}")
    return ATTENTION[name]
