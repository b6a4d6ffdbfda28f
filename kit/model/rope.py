"""Rotary position embedding: a file's frequencies, and rotation in the two layouts of pairs."""

import math

import torch

from kit.model.layers.rope import RopeConfig


def frequencies(rope: RopeConfig, divisors: torch.Tensor | None = None) -> tuple[torch.Tensor, float]:
    """(frequencies, scale): radians per position of each pair, (dims / 2,) float64; the factor of the rotated vectors.

    ``divisors``: of the file's tensor, at least (dims / 2,). Source: Peng et al. 2023 (YaRN) and ggml's ``rope_yarn``.
    """
    pair = torch.arange(rope.dims // 2, dtype=torch.float64, device="cpu")
    base = rope.base ** (-2 * pair / rope.dims)
    if divisors is not None:
        base = base / divisors.double()[: len(base)]
    if not rope.yarn:
        return base / rope.factor, rope.attention_factor

    def pair_with(rotations):  # the pair (a real number) that makes so many rotations within the original context
        return rope.dims * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0, math.floor(pair_with(rope.beta_fast)))
    high = min(rope.dims - 1, math.ceil(pair_with(rope.beta_slow)))
    fast = 1 - ((pair - low) / max(0.001, high - low)).clamp(0, 1)
    return base * (fast + (1 - fast) / rope.factor), rope.attention_factor * (1 + 0.1 * rope.grown)


class Rope:
    """Rotates queries and keys in place: call ``cos_sin`` once a pass and ``rotate`` once a layer.

    ``layout``: "interleaved" or "neox". If ``rope.dims`` is 0, ``rotate`` does nothing. Pairs that are scaled and not rotated
    (``rope.still``) have the frequency 0; with "neox" a head has such pairs alone, or none.
    """

    def __init__(self, rope: RopeConfig, layout: str, divisors: torch.Tensor | None = None):
        self.rotate = _LAYOUTS[layout if rope.dims + rope.still else "none"]
        turning, scale = frequencies(rope, divisors)
        still = torch.zeros(rope.still // 2, dtype=torch.float64, device="cpu")
        self._frequencies = torch.cat([turning, still])
        self._scales = torch.cat([torch.full_like(turning, scale), still + 1])
        self._ahead = rope.ahead
        self._growth, self._every, self._sign = rope.growth, rope.every or rope.original_context, -1 if rope.back else 1

    def cos_sin(self, start: int, count: int) -> torch.Tensor:
        """scale * exp(i angle) of queries at ``count`` positions from ``start``: (count, 1, pairs) complex64."""
        positions = torch.arange(start, start + count, dtype=torch.float64, device="cpu")
        angles = torch.outer(self._sign * positions, self._frequencies)
        grown = 1 + self._growth * torch.log1p((positions + self._ahead) // self._every)
        return torch.polar(torch.outer(grown, self._scales), angles).to(torch.complex64)[:, None]

    def table(self, start: int, count: int) -> torch.Tensor:
        """The same for kernels, (count, 2, 2 * pairs) float32: a cosine for each element of a head, and a sine, negative for
        the first of a pair."""
        turn = self.cos_sin(start, count)[:, 0]
        pairs = torch.stack([turn.real, turn.real, -turn.imag, turn.imag], 1).unflatten(1, (2, 2))
        return (pairs.mT if self.rotate is _interleaved else pairs).flatten(2).contiguous()


def _interleaved(x, cos_sin):
    """Rotate x (tokens, heads, head_dim) float32 in place; elements 2i and 2i + 1 are one complex number."""
    head = x[..., : 2 * cos_sin.shape[-1]]
    torch.view_as_complex(head.unflatten(-1, (-1, 2))).mul_(cos_sin)


def _halves(x, cos_sin):
    """Rotate x as _interleaved does, with the pairs (i, i + dims / 2) of GPT-NeoX."""
    real, imaginary = x[..., : 2 * cos_sin.shape[-1]].chunk(2, -1)
    cos, sin = cos_sin.real, cos_sin.imag
    rotated = real * cos - imaginary * sin
    imaginary.mul_(cos).add_(real * sin)
    real.copy_(rotated)


_LAYOUTS = {"interleaved": _interleaved, "neox": _halves, "none": lambda x, cos_sin: None}
