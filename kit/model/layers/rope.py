"""The numbers of rotary position embedding in a layer; kit.model.rope makes frequencies of them and rotates."""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RopeConfig:
    """RoPE: pair i of a head is rotated by p * base^(-2i / dims) at position p; long contexts scale these frequencies.

    Linear scaling divides all frequencies by ``factor``; yarn (Peng et al. 2023) divides the low ones, keeps the high ones
    and blends between; llama 3 stores divisors in a tensor, LongRoPE (Ding et al. 2024) in two: one for contexts longer than
    the original one, one for all others.
    """

    dims: int  # number of elements of each head that are rotated, from the first; 0: no RoPE
    base: float
    factor: float
    yarn: bool
    original_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    long: bool = False  # LongRoPE
    divided: bool = True  # False: the divisors are those of other layers
    growth: float = 0.0  # at position p queries are scaled by 1 + growth * log(1 + (p + ahead) // every)
    every: int = 0  # 0: the original context
    ahead: int = 0  # positions that this counts more
    layout: str = ""  # of the pairs; "": the family's
    still: int = 0  # elements after the rotated ones that are scaled so, too
    back: bool = False  # by -p

    @property
    def grown(self) -> float:
        """The logarithm of the factor, by which yarn scales vectors or scores; 0 for one below 1, which stretches nothing."""
        return math.log(max(1.0, self.factor))

    @property
    def of_keys(self) -> "RopeConfig":
        """RoPE of keys, which are not scaled so."""
        return replace(self, growth=0.0, every=0, ahead=0, still=0) if self.growth else self

    @property
    def divisors(self) -> tuple[str, ...]:
        """Tensors that the file may have, (dims / 2,) each."""
        if not self.divided:
            return ()
        return ("rope_factors_long.weight", "rope_factors_short.weight") if self.long else ("rope_freqs.weight",)

    def divisor(self, context: int) -> str:
        """The one of them for a pass over up to ``context`` positions, as llama.cpp chooses; "" for none."""
        return self.divisors[self.long and context <= self.original_context] if self.divided else ""
