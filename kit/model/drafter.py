"""What all drafters have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch


class Drafter(ABC):
    """Proposes how a sequence goes on. ``name`` is that of the option; ``nbytes``: of weights that it reads for a token."""

    name = ""
    nbytes = 0
    read = 1  # tokens that the last draft read of those after the draft before
    again = False  # whether it reads what was accepted of its draft once more
    settled = True  # whether the last draft made nothing for the first time, such as a recorded pass: its time counts

    def follow(self, model, cache) -> None:  # noqa: B027
        """Called before the pass over a prompt, with the model and what it will hold of the sequence. From here on the tokens
        that ``propose`` is given only grow, so that a draft costs what is new of them."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], count: int, sampler) -> tuple[list[int], list[torch.Tensor | None]]:
        """Up to ``count`` tokens after all ``tokens`` of a sequence, and of each the chances (vocabulary,) by which it was
        drawn, None for one that was certain."""
