"""Perplexity of a model on a text, over overlapping windows."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pydoc_data import topics

import numpy as np
import torch
from tqdm import tqdm

from kit import hf
from kit.cache.policies.base import Policy
from kit.errors import ModelError
from kit.gguf.uses import count
from kit.lab.measuring.intervals import error_of_mean
from kit.lab.progress import lines
from kit.model.tokenizer import tokenizer_of

_ROWS = 32  # rows of logits at a time: one row of a large vocabulary takes 1 MB


@dataclass(frozen=True)
class Perplexity:
    """``surprisal``: -log p of each scored token in nats, float64. ``seconds``: of the forward passes over ``passed``
    tokens, which include those that are only context."""

    surprisal: np.ndarray
    passed: int
    seconds: float

    @property
    def value(self) -> float:
        """The perplexity: e to the power of the mean surprisal; infinity beyond the largest float64, e to the power of 709."""
        return power(self.surprisal.mean())

    @property
    def error(self) -> float:
        """Standard error of ``value``, with tokens assumed independent."""
        return self.value * error_of_mean(self.surprisal)


class Through:
    """A model that transformers runs over the blocks of a file, as ``perplexity`` takes one."""

    def __init__(self, file, weights: str = "blocks", cache: Policy | None = None):
        self._model, _ = hf.load(file, weights, cache)
        if self._model.config.is_encoder_decoder:
            raise ModelError(f"{file.path}: a model with an encoder and a decoder continues no text, so it has no perplexity")
        self.tokenizer = tokenizer_of(file)
        self.max_context = count(file, "context_length", 2**31 - 1)

    def logits(self, tokens: Sequence[int], first: int = 0) -> torch.Tensor:
        """Logits after each of ``tokens`` from index ``first`` on, (tokens, vocabulary) float32."""
        with torch.inference_mode():
            return self._model(input_ids=torch.tensor([tokens], dtype=torch.int64, device="cpu")).logits[0, first:].float()


def power(nats: float) -> float:
    """e to the power of ``nats``; infinity where no float64 holds it."""
    return math.exp(nats) if not nats > 709 else math.inf


def english() -> str:
    """An English text that is part of every Python: the help on the language."""
    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


def encode(tokenizer, text: str, limit: int | None = None) -> list[int]:
    """At most ``limit`` token ids of ``text``, without begin and end tokens."""
    size = len(text) if limit is None else 16 * limit + 64  # mostly enough characters for so many tokens
    while len(ids := tokenizer.encode(text[:size], special=False, ends=False)) <= (limit or 0) and size < len(text):
        size *= 4  # a run of blanks is one token
    return ids[:limit]


def windows(ids: Sequence[int], bos: int | None, context: int, stride: int) -> Iterator[tuple[list[int], int]]:
    """(window, first): tokens for one forward pass, and the index of the first of them that is not yet scored.

    A window has ``context`` tokens, the first of which is ``bos`` unless that is None; windows start ``stride`` apart.
    """
    begin = [] if bos is None else [bos]
    room = context - len(begin)
    if not 1 <= stride < context:
        limit = context - 1  # no token before the first of a window predicts it
        raise ModelError(f"stride {stride} does not match windows of {context} tokens: give a stride from 1 to {limit}")
    done = 1 - len(begin)  # without bos the text's first token cannot be scored
    for start in range(0, len(ids), stride):
        stop = min(start + room, len(ids))
        if done < stop:
            yield begin + list(ids[start:stop]), len(begin) + done - start
        done = max(done, stop)


def perplexity(model, ids: Sequence[int], bos=None, context=512, stride=None, progress=False) -> Perplexity:
    """The Perplexity of ``model`` (a kit.Transformer) on ``ids``; ``stride``: half a window by default.

    ModelError when there are fewer than two tokens to score: then no error is known.
    """
    parts = list(windows(ids, bos, context, stride or max(1, context // 2)))
    if sum(len(window) - first for window, first in parts) < 2:
        raise ModelError(f"the text has {len(ids)} tokens, too few to score: give a longer one")
    surprisals, passed, seconds = [], 0, 0.0
    bar = tqdm(parts, "perplexity", disable=None if progress else True, unit="window")
    tell = lines("perplexity", "window", len(parts), progress)
    for number, (window, first) in enumerate(bar):
        tell(number)
        start = time.perf_counter()
        logits = model.logits(window, first - 1)
        seconds += time.perf_counter() - start
        passed += len(window)
        surprisals.append(surprisal(logits[:-1], window[first:]))
        bar.set_postfix_str(f"{power(np.concatenate(surprisals).mean()):.3f}, {passed / seconds:.0f} tok/s")
    return Perplexity(np.concatenate(surprisals), passed, seconds)


def surprisal(logits: torch.Tensor, targets: Sequence[int]) -> np.ndarray:
    """-log p of each target, (targets,) float64. ``logits``: (targets, vocabulary), each before its target."""
    index = torch.as_tensor(targets, dtype=torch.int64, device="cpu")
    parts = [
        rows.logsumexp(1) - rows.gather(1, index[start : start + _ROWS, None])[:, 0]
        for start in range(0, len(targets), _ROWS)
        for rows in [logits[start : start + _ROWS].double()]
    ]
    return torch.cat(parts).numpy()
