"""Products of several experts at once: those of a prompt have a few tokens each, and to ask for each took a quarter of it."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch

from kit.cpu.linear import Activations
from kit.gguf.names import layer_of
from kit.trace import Span

_ROWS = 2048  # tokens of a group's experts: what they take and give stays in a last-level cache


class GroupOfExperts(NamedTuple):
    """Some ``experts``, rising, and the tokens of each one after another: ``sizes`` of them. ``token``: their numbers (rows,),
    ``share``: of the expert in each (rows, 1). Its text is what stands in brackets after a stack's name."""

    experts: list[int]
    sizes: list[int]
    token: torch.Tensor
    share: torch.Tensor

    def __str__(self):
        return ",".join(map(str, self.experts))


def groups(chosen: torch.Tensor, share: torch.Tensor, alone: Callable[[int], bool]) -> Iterator[GroupOfExperts]:
    """The experts of all tokens, from chosen and share (tokens, used). ``alone``: whether an expert with so many tokens is a
    group by itself."""
    experts, order = chosen.ravel().sort(stable=True)
    token, share = order // chosen.shape[1], share.ravel()[order, None]
    experts, sizes = (each.tolist() for each in experts.unique_consecutive(return_counts=True))
    first, at, rows, alone = 0, 0, 0, cache(alone)
    for place, size in enumerate(sizes):
        rows += size
        following = sizes[place + 1] if place + 1 < len(sizes) else 0
        if not following or rows + following > _ROWS or alone(size) or alone(following):
            own = slice(first, place + 1)
            yield GroupOfExperts(experts[own], sizes[own], token[at : at + rows], share[at : at + rows])
            first, at, rows = place + 1, at + rows, 0


class ProductsOfGroup:
    """The products of a group, of blocks and of what ``activations`` says."""

    def __init__(self, group: GroupOfExperts, activations: str):
        self._group, self._how = group, activations
        self._x = self._activations = None  # of the last input, which gate and up share

    def linear(self, ops, stack: str, x: torch.Tensor) -> torch.Tensor:
        """``Ops.linear`` of each expert's matrix and its tokens of x (rows, columns): (rows, out)."""
        start, blocks, qtype = ops.begin(), ops.weights.blocks(stack), ops.weights.info(stack).qtype
        if x is not self._x:
            self._x, self._activations = x, Activations.several(x, self._group.sizes)
        y = self._activations.products(blocks, self._group.experts, qtype, self._how)
        vectors = ops.vector(stack.replace("weight", "bias"))
        if vectors is not None:
            sizes = torch.tensor(self._group.sizes, dtype=torch.int64, device="cpu")
            ops.plus(y, vectors[self._group.experts].repeat_interleave(sizes, 0), 1.0)
        ops.trace.later(self._spans(stack, ops.trace.token, blocks[0].nbytes, start, ops.begin()))
        return y

    def _spans(self, stack: str, token: int, nbytes: int, start: int, end: int) -> Callable[[], Iterator[Span]]:
        """One for each expert, of the time that its tokens have in that of all."""

        def made():
            begun, rows = start, sum(self._group.sizes)
            for expert, size in zip(self._group.experts, self._group.sizes, strict=True):
                done = begun + (end - start) * size // rows
                yield Span("linear", f"{stack}[{expert}]", layer_of(stack), token, nbytes, begun, done, "")
                begun = done

        return made
