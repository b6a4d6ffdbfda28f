"""Attention on the thread pool, with keys and values in the cache's own type. For one query, a task takes one chunk of
positions; for several, one block of queries.

The history stays in float32, float16 or q8_0. A tile of it becomes float32 in the L1 cache, once for all rows that share it
(query heads, and the queries of a block). The task of a chunk writes its largest score, the sum of its weights and the weighted
values; ``combine`` joins the chunks.
"""

import math

import torch
from numba import types

from kit.cpu import threads
from kit.cpu.attention_many import CHUNK, ROOM, ROWS, attend_many, block_of, capped, supports
from kit.cpu.buffers import ARENA
from kit.cpu.elementwise import as_bits, exp_of_negative
from kit.cpu.history import LANES, TILE, History, as_floats, greatest_of, tile_positions
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.sums import fma, reduce_add, reduce_add4
from kit.cpu.simd.tiers import tier
from kit.cpu.simd.vectors import Static, bitcast, broadcast, extract, f32x16, inner, select
from kit.cpu.tasks import Step, task

f32, u32 = types.float32, types.uint32
HEADS = 8  # query heads that share a key, of a task: of a latent all do, for one thread too many
_scores, _tile, _mixed, _sums = stack(4 * CHUNK * ROWS), stack(TILE), stack(4 * ROOM), stack(8 * ROWS)


def attend(
    q, keys: History, values: History, kv_heads: int, positions: int, scale: float, window=0, cap=0.0, sinks=None
) -> torch.Tensor:
    """Attention as in every variant of kit.model.attention, for keys and values as a cache holds them and heads of a multiple
    of 16 elements: q (heads, tokens, head_dim) float32 -> (heads, tokens, head_dim)."""
    heads, tokens, dim = q.shape
    q, out = q.transpose(0, 1).contiguous(), ARENA.results.empty((tokens, heads, dim), torch.float32)
    sinks = None if sinks is None else sinks.float().contiguous()
    if tokens == 1:
        parts = torch.empty(parts_bytes(heads, dim, positions), dtype=torch.uint8, device="cpu")
        threads.run_all(attend_steps(q, keys, values, kv_heads, out, parts, span(window, positions), scale, cap, sinks))
        return out.transpose(0, 1)
    group = heads // kv_heads
    arguments = _arguments(q, keys, values, group, scale, cap) | dict(out=out, heads=heads, sinks=sinks)
    most, per = block_of(group, dim, tokens)
    arguments |= dict(window=window, positions=positions, tokens=tokens)
    kernel = attend_many if supports(min(most, group) * min(per, tokens), dim) else attend_block
    threads.run(kernel(keys.kind, tier()), arguments, kv_heads * -(-group // most) * -(-tokens // per))
    return out.transpose(0, 1)


def fits(dim: int) -> bool:
    """Whether ``attend`` supports this head size."""
    return dim % LANES == 0 and dim <= ROOM


def attend_steps(q, keys, values, kv_heads, out, parts: torch.Tensor, span, scale, cap, sinks) -> tuple[Step, Step]:
    """The two steps of one query per head: all chunks of a ``span``, then their sum. q and out: (1, heads, dim); parts: memory
    of ``parts_bytes``."""
    _, heads, dim = q.shape
    group, chunks = heads // kv_heads, span["chunks"]
    chunk = _arguments(q, keys, values, group, scale, cap) | dict(parts=parts) | span
    join = dict(parts=parts, sinks=sinks, out=out, dim=dim, chunks=chunks)
    kernel, shares = attend_chunk(keys.kind, tier()), kv_heads * shares_of(group)
    return (kernel, chunk, shares * chunks), (combine(), join, heads)


def span(window: int, positions: int) -> dict[str, int]:
    """The positions to which the last one attends, and their number of chunks, as arguments."""
    first = max(0, positions - window) if window else 0
    return dict(first=first, positions=positions, chunks=-(-(positions - first) // CHUNK))


def parts_bytes(heads: int, dim: int, positions: int) -> int:
    """Bytes of what the tasks write for up to so many positions: for each head and chunk the weighted values, and a cache line
    with the largest score and the sum of weights."""
    return heads * -(-positions // CHUNK) * (4 * dim + 64)


def shares_of(group: int) -> int:
    """Number of tasks into which the query heads of one key/value head are divided, per chunk."""
    return -(-group // HEADS)


def _arguments(q: torch.Tensor, keys: History, values: History, group: int, scale: float, cap: float) -> dict:
    numbers = dict(q=q, group=group, dim=q.shape[-1], scale=as_bits(scale), cap=as_bits(cap))
    return keys.arguments("k") | values.arguments("v") | numbers


_shares_of, _block_of = inner(shares_of), inner(block_of)


@task
def attend_chunk(kind: Static, tier: Static):
    """The task for some of the query heads of a key/value head (``shares_of``) and one chunk of positions. The task's number
    counts ``chunks``."""

    def attend_chunk(
        task, q, k, k_head, k_stride, v, v_head, v_stride, parts, group, dim, scale, cap, first, positions, chunks
    ):
        chunk, share, head = task % chunks, task // chunks % _shares_of(group), task // chunks // _shares_of(group)
        start, rows, at = first + chunk * CHUNK, min(HEADS, group - share * HEADS), group * head + share * HEADS
        count = min(CHUNK, positions - start)
        weights, scratch = _scores(), _tile()
        size, apart = 4 * dim + 64, (4 * dim + 64) * chunks  # from a part to the next chunk's, and to the next head's
        out = parts + apart * at + size * chunk
        q += 4 * dim * at
        k += k_head * head + k_stride * start
        score(kind, tier, q, 0, rows, rows, dim, k, k_stride, count, weights, scratch, scale)
        for n in range(rows):
            if cap:
                _cap(weights + 4 * CHUNK * n, count, bitcast(f32, u32(cap)))
            _weigh(weights + 4 * CHUNK * n, count, f32(-math.inf), out + apart * n + 4 * dim)
            _multiply(out + apart * n, dim, f32(0))
        _mix(kind, tier, weights, rows, dim, v + v_head * head + v_stride * start, v_stride, count, out, apart, scratch)

    return attend_chunk


@task
def attend_block(kind: Static, tier: Static):
    """The task for some query heads of a key/value head and one block of queries (``block_of``): online softmax over chunks of
    positions (Milakov & Gimelshein 2018). Its number is (number of the heads) * (blocks per head) + (number of the block).
    The last of ``tokens`` has the last of ``positions``. q and out are (tokens, heads, dim). ``sinks`` as in ``combine``."""

    def attend_block(
        task, q, k, k_head, k_stride, v, v_head, v_stride, out, heads, group, dim, scale, cap, window, positions, tokens, sinks
    ):
        most, per = _block_of(group, dim, tokens)
        blocks, shares = (tokens + per - 1) // per, (group + most - 1) // most
        token, share, head = task % blocks * per, task // blocks % shares, task // blocks // shares
        some, at = min(most, group - share * most), group * head + share * most
        rows, query = min(per, tokens - token) * some, positions - tokens + token
        stop, first = query + rows // some, max(0, query + 1 - window) if window else 0
        weights, scratch, mixed, sums, token_bytes = _scores(), _tile(), _mixed(), _sums(), 4 * dim * heads
        place = token * token_bytes + 4 * dim * at
        for n in range(rows):
            _multiply(mixed + 4 * dim * n, dim, f32(0))
            store(sums + 8 * n, _sink(sinks, at + n % some))
            store(sums + 8 * n + 4, f32(1) if sinks else f32(0))
        for start in range(first, stop, CHUNK):
            count = min(CHUNK, stop - start)
            key, value = k + k_head * head + k_stride * start, v + v_head * head + v_stride * start
            score(kind, tier, q + place, token_bytes, rows, some, dim, key, k_stride, count, weights, scratch, scale)
            for n in range(rows):
                mine, own = weights + 4 * CHUNK * n, query + n // some
                largest, total = load(f32, sums + 8 * n), load(f32, sums + 8 * n + 4)
                if cap:
                    _cap(mine, count, bitcast(f32, u32(cap)))
                _hide(mine, max(0, own + 1 - start), count)
                if window:
                    _hide(mine, 0, min(count, own + 1 - window - start))
                _weigh(mine, count, largest, sums + 8 * n)
                shrink = extract(exp_of_negative(broadcast(f32x16, largest - load(f32, sums + 8 * n))), 0)
                store(sums + 8 * n + 4, load(f32, sums + 8 * n + 4) + shrink * total)
                if start > first and shrink != 1:
                    _multiply(mixed + 4 * dim * n, dim, shrink)
            _mix(kind, tier, weights, rows, dim, value, v_stride, count, mixed, 4 * dim, scratch)
        for n in range(rows):
            total, to = load(f32, sums + 8 * n + 4), _row(n, out + place, token_bytes, some, dim)
            for at in range(0, 4 * dim, 64):
                store(to + at, load(f32x16, mixed + 4 * dim * n + at) * (f32(1) / total))

    return attend_block


@task
def combine():
    """The task that joins the chunks of a query head. ``sinks``: 0, or the address of one extra score per head whose value is
    zero."""
    return _combine


def _combine(head, parts, sinks, out, dim, chunks):
    size, largest = 4 * dim + 64, _sink(sinks, head)
    first = parts + head * chunks * size
    out += 4 * dim * head
    for chunk in range(chunks):
        most = load(f32, first + chunk * size + 4 * dim)
        largest = most if most > largest or most != most else largest
    for at in range(0, 4 * dim, 64):
        store(out + at, broadcast(f32x16, 0))
    total = extract(exp_of_negative(broadcast(f32x16, _sink(sinks, head) - largest)), 0) if sinks else f32(0)
    for chunk in range(chunks):
        part = first + chunk * size
        share = extract(exp_of_negative(broadcast(f32x16, load(f32, part + 4 * dim) - largest)), 0)
        total += share * load(f32, part + 4 * dim + 4)
        for at in range(0, 4 * dim, 64):
            store(out + at, fma(load(f32x16, part + at), broadcast(f32x16, share), load(f32x16, out + at)))
    for at in range(0, 4 * dim, 64):
        store(out + at, load(f32x16, out + at) * (f32(1) / total))


# ---- the loops


@inner
def _sink(sinks, head):
    """The score of a head's sink."""
    return load(f32, sinks + 4 * head) if sinks else f32(-math.inf)


@inner
def score(kind, tier, q, token_bytes, rows, group, dim, k, k_stride, positions, weights, scratch, scale):
    """Write scale q . k of some positions, CHUNK numbers per row; rows are ``group`` heads of a token, then those of the next
    token."""
    vectors, factor = dim // LANES, bitcast(f32, u32(scale))
    tile = min(CHUNK, tile_positions(kind, vectors))
    for at in range(0, positions, tile):
        some = min(tile, positions - at)
        key, stride = as_floats(kind, tier, k + k_stride * at, k_stride, some, vectors, scratch)
        for n in range(0, rows, 2):
            m = min(n + 1, rows - 1)  # the last of an odd number of rows is its own neighbor
            one, other = _row(n, q, token_bytes, group, dim), _row(m, q, token_bytes, group, dim)
            mine, theirs = weights + 4 * (CHUNK * n + at), weights + 4 * (CHUNK * m + at)
            _dot_products(one, other, key, stride, vectors, some, mine, theirs, factor)


@inner
def _mix(kind, tier, weights, rows, dim, v, v_stride, positions, out, apart, scratch):
    """Add the weighted values of some positions to each row's result; rows are ``apart`` bytes apart."""
    vectors = dim // LANES
    fours, tile = vectors & -4, min(CHUNK, tile_positions(kind, vectors))
    for at in range(0, positions, tile):
        some = min(tile, positions - at)
        value, stride = as_floats(kind, tier, v + v_stride * at, v_stride, some, vectors, scratch)
        for n in range(0, rows - 1, 2):
            mine, to = weights + 4 * (CHUNK * n + at), out + apart * n
            for e in range(0, 64 * fours, 256):
                _add_four(mine, mine + 4 * CHUNK, value + e, stride, some, to + e, to + apart + e)
            for e in range(64 * fours, 64 * vectors, 64):
                _add_values(mine, value + e, stride, some, to + e)
                _add_values(mine + 4 * CHUNK, value + e, stride, some, to + apart + e)
        if rows % 2:
            n = rows - 1
            for e in range(0, 64 * vectors, 64):
                _add_values(weights + 4 * (CHUNK * n + at), value + e, stride, some, out + apart * n + e)


@inner
def _row(n, x, token_bytes, group, dim):
    """The address of a row of q or of the result."""
    return x + n // group * token_bytes + n % group * 4 * dim


@inner
def _hide(scores, first, stop):
    """Set the scores of positions that a query must not attend to to -infinity."""
    for position in range(first, stop):
        store(scores + 4 * position, f32(-math.inf))


@inner
def _multiply(numbers, n, factor):
    """Multiply n numbers by a factor; a factor of 0 writes zeros."""
    for at in range(0, 4 * n, 64):
        store(numbers + at, load(f32x16, numbers + at) * factor if factor else broadcast(f32x16, 0))


@inner
def _dot_products(q, other, k, stride, vectors, positions, scores, other_scores, scale):
    """scale q . k of each position for two heads, four positions at a time."""
    whole = positions & -4
    for position in range(0, whole, 4):
        a = b = c = d = e = f = g = h = broadcast(f32x16, 0)
        key = k + position * stride
        for at in range(0, 64 * vectors, 64):
            x, y, z = load(f32x16, q + at), load(f32x16, other + at), load(f32x16, key + at)
            a, b = fma(x, z, a), fma(y, z, b)
            z = load(f32x16, key + stride + at)
            c, d = fma(x, z, c), fma(y, z, d)
            z = load(f32x16, key + 2 * stride + at)
            e, f = fma(x, z, e), fma(y, z, f)
            z = load(f32x16, key + 3 * stride + at)
            g, h = fma(x, z, g), fma(y, z, h)
        store(scores + 4 * position, reduce_add4(a, c, e, g) * scale)
        store(other_scores + 4 * position, reduce_add4(b, d, f, h) * scale)
    for position in range(whole, positions):
        a = b = broadcast(f32x16, 0)
        for at in range(0, 64 * vectors, 64):
            z = load(f32x16, k + position * stride + at)
            a, b = fma(load(f32x16, q + at), z, a), fma(load(f32x16, other + at), z, b)
        store(scores + 4 * position, reduce_add(a) * scale)
        store(other_scores + 4 * position, reduce_add(b) * scale)


@inner
def _cap(scores, positions, cap):
    """Replace scores by ``capped`` ones, in place."""
    for at in range(0, 4 * positions, 64):
        store(scores + at, capped(load(f32x16, scores + at), cap))


@inner
def _weigh(scores, positions, least, largest_and_sum):
    """Replace scores by weights, in place: the largest becomes 1. Writes (max of the scores and ``least``, sum of weights)."""
    width = (positions + LANES - 1) // LANES * LANES
    for position in range(positions, width):
        store(scores + 4 * position, f32(-math.inf))
    most = broadcast(f32x16, least)
    for at in range(0, 4 * width, 64):
        x = load(f32x16, scores + at)
        most = select(x > most, x, most)
    largest, sums = greatest_of(most, most), broadcast(f32x16, 0)
    for at in range(0, 4 * width, 64):
        weight = exp_of_negative(load(f32x16, scores + at) - largest)
        store(scores + at, weight)
        sums = sums + weight
    store(largest_and_sum, largest)
    store(largest_and_sum + 4, reduce_add(sums))


@inner
def _add_four(weights, others, v, stride, positions, out, other_out):
    """Add 64 weighted elements of the values to the results of two heads."""
    a, c, e, g = load(f32x16, out), load(f32x16, out + 64), load(f32x16, out + 128), load(f32x16, out + 192)
    b, d = load(f32x16, other_out), load(f32x16, other_out + 64)
    f, h = load(f32x16, other_out + 128), load(f32x16, other_out + 192)
    for position in range(positions):
        x, y = broadcast(f32x16, load(f32, weights + 4 * position)), broadcast(f32x16, load(f32, others + 4 * position))
        value = v + position * stride
        z = load(f32x16, value)
        a, b = fma(z, x, a), fma(z, y, b)
        z = load(f32x16, value + 64)
        c, d = fma(z, x, c), fma(z, y, d)
        z = load(f32x16, value + 128)
        e, f = fma(z, x, e), fma(z, y, f)
        z = load(f32x16, value + 192)
        g, h = fma(z, x, g), fma(z, y, h)
    for at, (mine, theirs) in enumerate(((a, b), (c, d), (e, f), (g, h))):
        store(out + 64 * at, mine)
        store(other_out + 64 * at, theirs)


@inner
def _add_values(weights, v, stride, positions, out):
    """Add 16 weighted elements of the values to the result of one head."""
    a = load(f32x16, out)
    for position in range(positions):
        a = fma(load(f32x16, v + position * stride), broadcast(f32x16, load(f32, weights + 4 * position)), a)
    store(out, a)
