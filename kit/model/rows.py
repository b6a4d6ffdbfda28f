"""Attention of several tokens to the last positions and to one row for every so many (kit.model.layers.compressed): two
products of matrices, with what a query does not see left out. And the rows themselves, as kit.cpu.compress makes them."""

import math

import torch

_MOST = 2**22  # scores in memory at once


def numbers(start: int, stop: int) -> torch.Tensor:
    """The whole numbers from ``start`` to before ``stop``, whatever torch's default type and device are."""
    return torch.arange(start, stop, dtype=torch.int64, device="cpu")


def blocks(rows, scores, held: tuple[torch.Tensor, torch.Tensor], length: int, each: int) -> torch.Tensor:
    """The results (blocks, n) of the blocks of ``each`` positions that some tokens complete after ``length`` positions.

    rows, scores: (tokens, n or 2 n). held: those of the positions before, which a block needs that is not complete, at their
    number modulo the length of each; the tokens' own are written there.
    """
    slots, width = held[0].shape
    past, size = slots - each, width // (slots // each)
    start, stop = length // each * each - past, length + len(rows)
    before = numbers(max(0, start), length) % slots
    rows, scores = (torch.cat([part[before], new]) for part, new in zip(held, (rows, scores), strict=True))
    last = numbers(max(0, start, stop - slots), stop)
    for part, new in zip(held, (rows, scores), strict=True):
        part[last % slots] = new[last - max(0, start)]
    if start < 0:
        rows, scores = (
            torch.cat([part.new_full((-start, width), none), part]) for part, none in ((rows, 0), (scores, -torch.inf))
        )
    count = max(0, len(rows) - past) // each
    values, weights = ([part[each * n : each * n + slots] for n in range(count)] for part in (rows, scores))
    if not count:
        return rows[:0, :size]
    values, weights = torch.stack(values), torch.stack(weights)
    if past:  # of the block before the first halves, of its own the second ones
        values, weights = (torch.cat([part[:, :past, :size], part[:, past:, size:]], 1) for part in (values, weights))
    return (weights.softmax(1) * values).sum(1)


def attend_rows(q, k, cache, length: int, mixer, chosen, sinks) -> torch.Tensor:
    """q (tokens, heads, size) to what ``cache`` (kit.model.kvcache.CompressedCache) holds after ``length`` positions and to the
    tokens' own keys k (tokens, 1, size), which are then held: of the shape of q. ``chosen``: kit.cpu.choice.Chosen, or None
    for all rows."""
    rows, tokens = mixer.rows, len(q)
    before = min(length, rows.window - 1)
    raw = torch.cat([cache.read_ring(range(length - before, length)), cache.write(length, k, k)])
    units = (length + tokens) // rows.every
    shared, seen = cache.read_rows(units), _seen(chosen, tokens, units, rows.every)
    out, at_once = torch.empty_like(q), max(1, _MOST // (q.shape[1] * (units + 2 * rows.window)))
    for first in range(0, tokens, at_once):
        query = numbers(first, min(tokens, first + at_once))[:, None]
        start = max(0, first + before - rows.window + 1)
        near = raw[start : before + len(query) + first]
        place = numbers(start, start + len(near)) - before  # of the tokens, whose first is 0
        hidden = (place > query) | (place <= query - rows.window)
        far = numbers(0, units) >= (query + length + 1) // rows.every
        far = far if seen is None else far | ~seen[first : first + len(query)]
        keys, hidden = torch.cat([near, shared]), torch.cat([hidden, far], 1)
        scores = torch.einsum("thd,jd->thj", q[query[:, 0]], keys) * mixer.scale
        scores = scores.masked_fill_(hidden[:, None], -math.inf)
        column = sinks[:, None].expand(len(query), -1, 1)
        out[query[:, 0]] = torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ keys
    return out


def _seen(chosen, tokens, units, every):
    """(tokens, units) bool: the rows that tokens chose; None: all."""
    if chosen is None:
        return None
    seen = torch.zeros(tokens, units + 1, dtype=torch.bool, device="cpu")  # the last is of a block that is not complete
    for token, count in enumerate(chosen.counts):
        seen[token, (chosen.positions[token, :count] // every).clamp(max=units).long()] = True
    return seen[:, :units]
