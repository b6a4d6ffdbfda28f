"""Sampler: choose the next token from logits, greedily or at random."""

import math

import torch

from kit.errors import ModelError


class Sampler:
    """Greedy at temperature 0, else random at ``temperature``: among the ``top_k`` most probable tokens (0: all) and, of
    these, the fewest with a total probability of ``top_p``. The same seed gives the same tokens.

    The order top-k, top-p, temperature is llama.cpp's. Raises ModelError for a value out of range.
    """

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0):
        for sound, problem in (
            (0 <= temperature < math.inf, f"temperature is {temperature}, expected 0 (greedy) or more"),
            (top_k >= 0, f"top_k is {top_k}, expected 0 (off) or more"),
            (0 < top_p <= 1, f"top_p is {top_p}, expected more than 0 and at most 1 (off)"),
        ):
            if not sound:
                raise ModelError(f"cannot sample: {problem}")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """A token id from logits (vocabulary,); greedy sampling takes the lowest id of equal logits."""
        if self.temperature == 0:
            return int(logits.argmax())
        values, ids = logits.double().sort(descending=True, stable=True)
        values = values[: self.top_k or None]
        if self.top_p < 1:
            mass = values.softmax(0).cumsum(0)
            values = values[: int((mass < self.top_p).sum()) + 1]
        chances = (values / self.temperature).softmax(0)
        return int(ids[torch.multinomial(chances, 1, generator=self._generator)])
