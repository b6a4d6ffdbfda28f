"""How large the states of recurrent.py are, and how many positions choice.py chooses; this module imports no kernel, because
``kit inspect`` asks it."""

from typing import NamedTuple

BLOCK = 32  # values of a block
LARGEST = 256  # values of a head of a delta net, its keys, and streams of a residual


def state_shape(heads: int, keys: int, values: int) -> tuple[int, int, int, int]:
    """Shape of the matrices of a layer as they are stored; a new sequence has zeros."""
    return heads, -(-values // BLOCK), keys, BLOCK


class Choice(NamedTuple):
    """A query attends to the positions of the ``top`` best units of ``each`` positions, and to those after the last complete
    unit. ``factor``: of the scores."""

    top: int
    each: int = 1
    factor: float = 1.0

    def units(self, positions: int) -> int:
        """Complete units among so many positions."""
        return positions // self.each

    def takes_all(self, positions: int) -> bool:
        """Whether the last of so many positions attends to all."""
        return self.units(positions) <= self.top

    def count(self, positions: int) -> int:
        """How many of so many positions the last one attends to."""
        return positions if self.takes_all(positions) else self.top * self.each + positions % self.each

    @property
    def room(self) -> int:
        """The most positions that ``count`` gives."""
        return (self.top + 1) * self.each
