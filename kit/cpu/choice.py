"""The choice of the positions to which a query attends: scores of an index, the best of them, and their keys and values side
by side (DeepSeek-AI 2025, DSA: the lightning indexer).

An index has a key for each *unit*: a position, or a block of ``each`` positions. Query t, at position ``positions - tokens +
t``, sees the units that are complete there. It attends to the ``top`` best of them and to the positions after the last complete
unit. Among equal scores the lower unit is better, so that every pass chooses alike.
"""

from typing import NamedTuple

import torch
from numba import types

from kit.cpu import threads
from kit.cpu.attention import CHUNK, ROWS, attend_steps, parts_bytes, score, span
from kit.cpu.elementwise import as_bits
from kit.cpu.history import TILE, History
from kit.cpu.shapes import Choice
from kit.cpu.simd.memory import load, stack, store
from kit.cpu.simd.tiers import tier
from kit.cpu.simd.vectors import Static, bitcast, broadcast, f32x16, i32x16, inner, select
from kit.cpu.tasks import Step, task

f32, i32, u16, u32, i64 = types.float32, types.int32, types.uint16, types.uint32, types.int64
_MOST = 2**24  # scores of a prompt that are in memory at once
_COPIED = 64  # positions of a task of ``gather``
_FEW = 4096  # scores that begin alike, of which copies are counted
_own, _tile, _counts, _found = stack(4 * CHUNK * ROWS), stack(TILE), stack(8 * 2048), stack(4 * _FEW)


class Chosen(NamedTuple):
    """The choice of some tokens, (tokens, choice.room) int32 rising, and how many positions each token has."""

    positions: torch.Tensor
    counts: list[int]

    def after(self, tokens: int) -> "Chosen":
        """Without the first tokens."""
        return Chosen(self.positions[tokens:], self.counts[tokens:])


def choose(q, keys: History, positions: int, choice: Choice, weights=None, told=None) -> Chosen | None:
    """The positions to which the last ``len(q)`` of so many ``positions`` attend; None if those are all, for each of them.

    q: (tokens, heads, size) float32; weights: (tokens, heads), None for 1. A unit's score is the sum over the heads of weight *
    max(0, q . key) * choice.factor. ``told``: called after each step, of the scores and of the best, with "index" and
    "choice".
    """
    tokens, told = len(q), told or (lambda what: None)
    if choice.takes_all(positions):
        return None
    row = scores_row(positions, choice)
    chosen = torch.empty(tokens, choice.room, dtype=torch.int32, device="cpu")
    at_once = max(1, _MOST // row)
    scores = torch.empty(min(tokens, at_once), row, dtype=torch.float32, device="cpu")
    for first in range(0, tokens, at_once):
        some, seen = q[first : first + at_once], positions - tokens + min(tokens, first + at_once)
        own = None if weights is None else weights[first : first + at_once]
        threads.run_all([scores_step(some, keys, scores, choice, seen, own)])
        told("index")
        threads.run_all([best_step(scores, chosen[first:], len(some), choice, seen)])
        told("choice")
    return Chosen(chosen, [choice.count(positions - tokens + token + 1) for token in range(tokens)])


def attend_chosen(q, keys: History, values: History, kv_heads: int, chosen: Chosen, scale, cap=0.0, sinks=None) -> torch.Tensor:
    """Attention of q (tokens, heads, head_dim) to the positions of a choice: of the same shape."""
    out = torch.empty_like(q := q.contiguous())
    sides, first = (keys,) if values.memory is keys.memory else (keys, values), chosen.positions
    rooms = [room_for(side, kv_heads, first.shape[1], q.shape[2]) for side in sides]
    parts = torch.empty(parts_bytes(*q.shape[1:], first.shape[1]), dtype=torch.uint8, device="cpu")
    gathered = [History(side.kind, room, *strides(room)) for side, room in zip(sides, rooms, strict=True)]
    for token, count in enumerate(chosen.counts):
        steps = [gather_step(*each, kv_heads, first[token], count) for each in zip(sides, gathered, strict=True)]
        one = slice(token, token + 1)
        each = attend_steps(q[one], gathered[0], gathered[-1], kv_heads, out[one], parts, span(0, count), scale, cap, sinks)
        threads.run_all([*steps, *each])
    return out


def room_for(history: History, kv_heads: int, positions: int, dim: int) -> torch.Tensor:
    """Memory for so many positions of a layer, of the type that the history has: (kv_heads, positions, bytes of a head)."""
    return torch.empty(kv_heads, positions, bytes_of(history.kind, dim), dtype=torch.uint8, device="cpu")


def bytes_of(kind: str, dim: int) -> int:
    """Bytes of a head at one position."""
    return {"float32": 4 * dim, "float16": 2 * dim, "q8_0": 34 * dim // 32}[kind]


def strides(room: torch.Tensor) -> tuple[int, int]:
    """Bytes from one head, and from one position, to the next."""
    return room.stride(0), room.stride(1)


def scores_row(positions: int, choice: Choice) -> int:
    """Floats of a token's scores, whole chunks."""
    return max(1, -(-choice.units(positions) // CHUNK)) * CHUNK


# ---- steps


def scores_step(q, keys: History, scores, choice: Choice, positions: int, weights=None) -> Step:
    """Scores of all units that a token sees, into scores (at least tokens, ``scores_row``). q: (tokens, heads, size)."""
    tokens, heads, size = q.shape
    chunks = max(1, -(-choice.units(positions) // CHUNK))
    arguments = dict(
        q=q, k=keys.memory, k_stride=keys.stride, weights=weights, scores=scores, row=4 * scores.stride(0), heads=heads,
        dim=size, factor=as_bits(choice.factor), positions=positions, tokens=tokens, each=choice.each, chunks=chunks,
    )  # fmt: skip
    return score_units(keys.kind, tier()), arguments, tokens * chunks


def best_step(scores, chosen, tokens: int, choice: Choice, positions: int) -> Step:
    """The positions of the best units, into chosen (tokens, choice.room) int32, one task per token."""
    arguments = dict(
        scores=scores, row=4 * scores.stride(0), chosen=chosen, room=4 * chosen.stride(0),
        top=choice.top, positions=positions, tokens=tokens, each=choice.each,
    )  # fmt: skip
    return best_units(), arguments, tokens


def gather_step(source: History, target: History, kv_heads: int, chosen, count: int) -> Step:
    """Copy ``count`` chosen positions of all heads, one after another."""
    pieces = max(1, -(-count // _COPIED))
    arguments = source.arguments("k") | target.arguments("to")
    arguments |= dict(nbytes=target.stride, chosen=chosen, count=count, pieces=pieces)
    return gather(), arguments, kv_heads * pieces


def pieces_of(count: int) -> int:
    """Tasks of ``gather`` for one head."""
    return max(1, -(-count // _COPIED))


# ---- kernels


@task
def score_units(kind: Static, tier: Static):
    """The task of a token and a chunk of units; its number counts ``chunks``."""

    def score_units(task, q, k, k_stride, weights, scores, row, heads, dim, factor, positions, tokens, each, chunks):
        token, start = task // chunks, CHUNK * (task % chunks)
        count = min(CHUNK, (positions - tokens + token + 1) // each - start)
        own, scratch, out, times = _own(), _tile(), scores + row * token + 4 * start, bitcast(f32, u32(factor))
        width = 4 * ((count + 15) // 16 * 16)
        for at in range(0, width, 64):
            store(out + at, broadcast(f32x16, 0))
        for first in range(0, heads if count > 0 else 0, ROWS):
            rows = min(ROWS, heads - first)
            place = q + 4 * dim * (heads * token + first)
            one = 0x3F800000  # the bits of 1
            score(kind, tier, place, 0, rows, rows, dim, k + k_stride * start, k_stride, count, own, scratch, one)
            for n in range(rows):
                share = load(f32, weights + 4 * (heads * token + first + n)) * times if weights else times
                for at in range(0, width, 64):
                    x = load(f32x16, own + 4 * CHUNK * n + at)
                    x = select(x > 0, x, broadcast(f32x16, 0))
                    store(out + at, load(f32x16, out + at) + x * share)

    return score_units


@task
def best_units():
    """The task of a token."""
    return _best_units


def _best_units(token, scores, row, chosen, room, top, positions, tokens, each):
    seen = positions - tokens + token + 1
    units, scores, out = seen // each, scores + row * token, chosen + room * token
    if units <= top:
        for position in range(seen):
            store(out + 4 * position, i32(position))
        return
    counts, found, copied, number, prefix, left = _counts(), _found(), False, units, i64(0), top
    for turn in range(3):  # the bits of the top-th score, eleven, eleven and ten at a time
        shift, bits = (21, 11) if turn == 0 else (10, 11) if turn == 1 else (0, 10)
        for n in range(1 << bits):
            store(counts + 8 * n, i64(0))
        for n in range(number):
            key = i64(load(u32, found + 4 * n)) if copied else _order(scores + 4 * n)
            if key >> (shift + bits) == prefix:
                at = counts + 8 * ((key >> shift) & ((1 << bits) - 1))
                store(at, load(i64, at) + 1)
        n = (1 << bits) - 1
        while load(i64, counts + 8 * n) < left:
            left -= load(i64, counts + 8 * n)
            n -= 1
        prefix = (prefix << bits) | n
        if turn == 0 and load(i64, counts + 8 * n) <= _FEW:
            copied, number = True, _copy(scores, units, prefix, shift, found)
    for first in range(0, units, 16):
        if not _some_from(scores + 4 * first, prefix):
            continue
        for n in range(first, min(units, first + 16)):
            key = _order(scores + 4 * n)
            if key > prefix or (key == prefix and left > 0):
                left -= key == prefix
                for position in range(n * each, (n + 1) * each):
                    store(out, i32(position))
                    out += 4
    for position in range(units * each, seen):
        store(out, i32(position))
        out += 4


@inner
def _copy(scores, units, prefix, shift, found):
    """Copy the keys that begin with a prefix, and return their number."""
    count = 0
    for first in range(0, units, 16):
        if _some_from(scores + 4 * first, prefix << shift):
            for n in range(first, min(units, first + 16)):
                key = _order(scores + 4 * n)
                if key >> shift == prefix:
                    store(found + 4 * count, u32(key))
                    count += 1
    return count


@inner
def _some_from(at, least):
    """Whether one of the sixteen numbers there has an ``_order`` of at least that."""
    bits = load(i32x16, at)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the same, less 2^31
    return bitcast(u16, order >= broadcast(i32x16, i32(least - 0x80000000))) != 0


@inner
def _order(at):
    """The bits of a float32 as an integer from 0 that orders as the numbers do."""
    bits = i64(load(u32, at))
    return bits ^ 0xFFFFFFFF if bits >> 31 else bits | 0x80000000


@task
def gather():
    """The task of a head and a piece of the chosen positions."""
    return _gather


def _gather(task, k, k_head, k_stride, to, to_head, to_stride, nbytes, chosen, count, pieces):
    head, first = task // pieces, _COPIED * (task % pieces)
    for n in range(first, min(count, first + _COPIED)):
        source, target = k + k_head * head + k_stride * i64(load(i32, chosen + 4 * n)), to + to_head * head + to_stride * n
        for at in range(0, nbytes & -64, 64):
            store(target + at, load(f32x16, source + at))
        for at in range(nbytes & -64, nbytes, 2):
            store(target + at, load(types.uint16, source + at))
