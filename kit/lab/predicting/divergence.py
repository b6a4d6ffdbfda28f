"""The estimator of what rounding does to the answers: KL divergence from the exact next-token distribution, with its error.

Everything that prints a KL divergence uses this module: POSITIONS positions of one English text, for a model of up to 2e9
weights. The first CONTEXT positions are not scored. After one or two tokens, a model attends to a few large numbers, which
eight bits change to another distribution (5.6 nats at the first position of Qwen2.5-Coder 1.5B, 0.0017 after the sixteenth).
One such position says nothing about a text, and its error would dominate that of the mean.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from kit.lab.measuring.intervals import error_of_mean
from kit.lab.predicting import perplexity
from kit.lab.progress import steps

POSITIONS, CONTEXT = 1024, 16  # scored, and read before them
_WORK = 2.05e12  # weights times positions: seconds, not minutes, on two cores
_FEWEST = 128  # positions of a larger model, whose error is larger for it
_AT_ONCE = 256  # tokens of a step at most: logits of so many are held, of two sources
_ROWS = 16  # rows of logits in float64 at a time


class LogitSource(NamedTuple):
    """``step(ids)``: logits (len(ids), vocabulary) after each of the next tokens of one text, float32 of torch or numpy.
    ``most``: positions to score; None: all."""

    step: Callable[[list[int]], torch.Tensor]
    most: int | None = None


COLUMNS = frozenset(("perplexity", "perplexity_error", "ratio", "ratio_error", "kl", "kl_error", "same", "tokens"))


def recorded(logits) -> LogitSource:
    """A LogitSource of logits (tokens, vocabulary) that were computed before."""
    at = iter(range(len(logits)))
    return LogitSource(lambda ids: logits[[next(at) for _ in ids]])


def tokens_for(weights: float, thorough: bool = False) -> int:
    """Number of tokens of a text for a model of this many weights: POSITIONS are scored, fewer for a larger model; 0 if even
    _FEWEST would take minutes. ``thorough``: POSITIONS for every size."""
    positions = POSITIONS if thorough else min(POSITIONS, int(_WORK / weights))
    return CONTEXT + positions + 1 if positions >= _FEWEST else 0


def window_of(tokenizer, context: int, tokens: int) -> list[int]:
    """At most ``tokens`` token ids of an English text that fit a ``context``, as the file begins a text."""
    begin = [] if tokenizer.bos is None else [tokenizer.bos]
    return begin + perplexity.encode(tokenizer, perplexity.english(), min(tokens, context) - len(begin))


def compare(
    window: list[int], truth: LogitSource, others: Mapping[str, LogitSource], progress: bool = False
) -> dict[str, dict[str, float]]:
    """Name -> the columns of predicting.quality.quality for each of ``others``. All sources take the same steps in turn."""
    first = min(CONTEXT, (len(window) - 1) // 2)  # position i has the logits after window[i], and window[i + 1] follows
    rows = {name: [] for name in others}
    size = math.ceil(len(window) / math.ceil(len(window) / _AT_ONCE))
    for start in steps(range(0, len(window) - 1, size), "quality", progress):
        ids = window[start : min(start + size, len(window) - 1)]
        right, skip = torch.as_tensor(truth.step(ids), dtype=torch.float32, device="cpu"), max(0, first - start)
        for name, (step, most) in others.items():
            if most is not None and start >= first + most:
                continue
            logits = right if step is truth.step else torch.as_tensor(step(ids), dtype=torch.float32, device="cpu")
            if skip < len(ids):
                rows[name].append(_each(right[skip:], logits[skip:], window[start + skip + 1 : start + len(ids) + 1]))
    return {name: _columns(*torch.cat(parts, 1)[:, : others[name].most].numpy()) for name, parts in rows.items()}


def _each(truth, logits, targets) -> torch.Tensor:
    """(4, targets) float64: surprisal of each target by the truth and by ``logits``, KL divergence, same token."""
    index, parts = torch.as_tensor(targets, dtype=torch.int64, device="cpu")[:, None], []
    for at in range(0, len(targets), _ROWS):
        right, ours = (side[at : at + _ROWS].double().log_softmax(1) for side in (truth, logits))
        surprisals = (-side.gather(1, index[at : at + _ROWS])[:, 0] for side in (right, ours))
        same = (right.argmax(1) == ours.argmax(1)).double()
        parts.append(torch.stack([*surprisals, (right.exp() * (right - ours)).sum(1), same]))
    return torch.cat(parts, 1)


def _columns(right, ours, divergence, same) -> dict[str, float]:
    value, ratio = perplexity.power(ours.mean()), perplexity.power((ours - right).mean())
    return {
        "perplexity": value, "perplexity_error": value * error_of_mean(ours),
        "ratio": ratio, "ratio_error": ratio * error_of_mean(ours - right),
        "kl": float(divergence.mean()), "kl_error": error_of_mean(divergence),
        "same": float(same.mean()), "tokens": len(ours),
    }  # fmt: skip
