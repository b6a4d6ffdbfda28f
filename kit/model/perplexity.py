"""Perplexity: how surprised a model is by a text, token by token, over windows that overlap."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pydoc_data import topics

import numpy as np
import torch
from tqdm import tqdm

from kit.errors import ModelError

_ROWS = 32  # of logits at a time: a row of a large vocabulary takes a megabyte


@dataclass(frozen=True)
class Perplexity:
    """``surprisal``: -log p of each scored token, nats, float64. ``seconds``: what the forward passes took for ``passed``
    tokens, those among them that only gave context."""

    surprisal: np.ndarray
    passed: int
    seconds: float

    @property
    def value(self) -> float:
        """e to the mean surprisal: the number of equally likely tokens that the model hesitates between."""
        return math.exp(self.surprisal.mean())

    @property
    def error(self) -> float:
        """One standard error of ``value``, tokens taken as independent."""
        return self.value * standard_error(self.surprisal)


def standard_error(samples: np.ndarray) -> float:
    """Of the mean of ``samples``; NaN for fewer than two."""
    return float(samples.std(ddof=1) / math.sqrt(len(samples))) if len(samples) > 1 else math.nan


def english() -> str:
    """A text that every Python carries: the help on its own language."""
    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


def encode(tokenizer, text: str, limit: int | None = None) -> list[int]:
    """Token ids of ``text`` without those that begin and end it, ``limit`` at most."""
    text = text if limit is None else text[: 16 * limit + 64]  # words are seldom longer: no need to encode a library
    return tokenizer.encode(text, special=False, ends=False)[:limit]


def windows(ids: Sequence[int], bos: int | None, context: int, stride: int) -> Iterator[tuple[list[int], int]]:
    """(window, first): tokens for one forward pass, and the place in it of the first that no window before has scored.

    A window has ``context`` tokens, begins with ``bos`` unless that is None, and starts ``stride`` later than the last.
    """
    begin = [] if bos is None else [bos]
    room = context - len(begin)
    if not 1 <= stride < context:
        limit = context - 1  # the first token of a window has nothing before it that predicts it
        raise ModelError(f"windows of {context} tokens cannot start {stride} apart; give a stride from 1 to {limit}")
    done = 1 - len(begin)  # nothing stands before the first token of all
    for start in range(0, len(ids), stride):
        stop = min(start + room, len(ids))
        if done < stop:
            yield begin + list(ids[start:stop]), len(begin) + done - start
        done = max(done, stop)


def perplexity(model, ids: Sequence[int], bos=None, context=512, stride=None, progress=False) -> Perplexity:
    """Of ``ids`` under ``model`` (a kit.Transformer); ``stride``: half a window unless given.

    ModelError when there is no token to score.
    """
    parts = list(windows(ids, bos, context, stride or max(1, context // 2)))
    if not parts:
        raise ModelError(f"a text of {len(ids)} tokens has none to score; give a longer one")
    found, passed, seconds = [], 0, 0.0
    bar = tqdm(parts, "perplexity", disable=None if progress else True, unit="window")
    for window, first in bar:
        start = time.perf_counter()
        logits = model.logits(window, first - 1)
        seconds += time.perf_counter() - start
        passed += len(window)
        found.append(surprisal(logits[:-1], window[first:]))
        bar.set_postfix_str(f"{math.exp(np.concatenate(found).mean()):.3f}, {passed / seconds:.0f} tok/s")
    return Perplexity(np.concatenate(found), passed, seconds)


def surprisal(logits: torch.Tensor, targets: Sequence[int]) -> np.ndarray:
    """-log p of each target, float64, from the logits before it (targets, vocabulary)."""
    index = torch.as_tensor(targets)
    parts = [
        rows.logsumexp(1) - rows.gather(1, index[start : start + _ROWS, None])[:, 0]
        for start in range(0, len(targets), _ROWS)
        for rows in [logits[start : start + _ROWS].double()]
    ]
    return torch.cat(parts).numpy()
