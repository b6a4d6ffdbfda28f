"""One row for every so many positions of a sequence (DeepSeek-AI 2026, V4: compressed attention): a softmax over the positions,
of each channel by itself, weighs what they give.

With rows twice as wide as the result, a block takes part in two: the first halves of its rows belong to the block after it.
"""

import torch
from numba import types

from kit.cpu.elementwise import exp_of_negative
from kit.cpu.simd.memory import load, store
from kit.cpu.simd.vectors import broadcast, f32x16, inner, select
from kit.cpu.tasks import Step, task

f32 = types.float32


def step(row, score, places, held: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor, slot: int = 0, began: int = 0) -> Step:
    """Keep a token's row, and its score + places[slot % each], in ``slot`` of held, (slots, width) each; at the end of a block
    of ``each`` positions its result goes to out (1, n). places: (each, width). ``began``: a block is before it."""
    (slots, width), n, each = held[0].shape, out.shape[1], len(places)
    numbers = dict(slot=slot, slots=slots, each=each, n=n, width=width, began=began)
    return compress(), dict(row=row, score=score, places=places, rows=held[0], scores=held[1], out=out) | numbers, n // 16


@task
def compress():
    """The task of sixteen channels."""
    return _compress


def _compress(task, row, score, places, rows, scores, out, slot, slots, each, n, width, began):
    at = 64 * task
    for half in range(at, at + 4 * width, 4 * n):
        store(rows + 4 * width * slot + half, load(f32x16, row + half))
        place = load(f32x16, places + 4 * width * (slot % each) + half)
        store(scores + 4 * width * slot + half, load(f32x16, score + half) + place)
    if (slot + 1) % each:
        return
    own, past = slot + 1 - each, (slot + 1 - 2 * each) % slots
    mine = own * 4 * width + at + 4 * (width - n)
    theirs, others = past * 4 * width + at, each if width > n and began else 0
    largest = load(f32x16, scores + mine)
    for place in range(each):
        largest = _larger(largest, load(f32x16, scores + mine + 4 * width * place))
    for place in range(others):
        largest = _larger(largest, load(f32x16, scores + theirs + 4 * width * place))
    total = value = broadcast(f32x16, 0)
    for place in range(each):
        weight = exp_of_negative(load(f32x16, scores + mine + 4 * width * place) - largest)
        total, value = total + weight, value + weight * load(f32x16, rows + mine + 4 * width * place)
    for place in range(others):
        weight = exp_of_negative(load(f32x16, scores + theirs + 4 * width * place) - largest)
        total, value = total + weight, value + weight * load(f32x16, rows + theirs + 4 * width * place)
    store(out + at, value / total)


@inner
def _larger(a, b):
    return select(a > b, a, b)
