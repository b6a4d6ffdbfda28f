"""Where the experts of a mixture are in its files, and where each matrix goes in a slot."""

from typing import NamedTuple

from kit.errors import CacheError
from kit.gguf.names import key_of, layer_of
from kit.model.readers import Read
from kit.system.rows import PAGE


class Stack(NamedTuple):
    """The matrices of a layer's experts: their file, the first one's offset, bytes and rows of each, place in a slot."""

    layer: int
    part: int
    offset: int
    each: int
    rows: int
    place: int


class SlotLayout:
    """Where the experts of a file lie, and where in a slot of ``size`` bytes: whole pages as in the file."""

    def __init__(self, file):
        self.stacks: dict[str, Stack] = {}
        self.experts, self.used = 0, 1
        ends: dict[int, int] = {}
        for name, info in file.tensors.items():
            if "_exps." in name and len(info.shape) == 3:
                layer, each = layer_of(name), info.nbytes // info.shape[0]
                place = ends.get(layer, 0)
                self.stacks[name] = Stack(layer, info.part, info.offset, each, info.shape[1], place)
                ends[layer] = place + (-(-each // PAGE) + 1) * PAGE
                self.experts = max(self.experts, info.shape[0])
        if not ends:
            raise CacheError(f"{file.path}: this model has no experts, so slots do not apply: leave out experts=")
        self.size, self.layers = max(ends.values()), len(ends)
        self.used = int(file.metadata.get(f"{file.architecture}.expert_used_count", 1))
        self.least = (self.used + 1) * self.size  # a layer's experts in use, and one that is kept
        self.matrix = max(stack.each for stack in self.stacks.values())
        self._by_layer: dict[int, list[Stack]] = {}
        for stack in self.stacks.values():
            self._by_layer.setdefault(stack.layer, []).append(stack)
        self._keys = {layer: [key_of(layer, expert) for expert in range(self.experts)] for layer in self._by_layer}
        self._places: dict[str, tuple[str, Stack, int]] = {}
        self.bytes = {layer: sum(stack.each for stack in stacks) for layer, stacks in self._by_layer.items()}

    def find(self, name: str) -> tuple[str, Stack, int]:
        """(expert's key, stack, expert) of a matrix ``stack[3]``."""
        place = self._places.get(name)
        if place is None:
            stack, _, expert = name[:-1].rpartition("[")
            where, number = self.stacks[stack], int(expert)
            place = self._places[name] = self._keys[where.layer][number], where, number
        return place

    def reads(self, layer: int, expert: int, slot: memoryview, name: str) -> list[Read]:
        """The reads that bring an expert into its slot."""
        reads = []
        for _, part, offset, each, _, place in self._by_layer[layer]:
            start = offset + expert * each
            first, last = start // PAGE * PAGE, -(-(start + each) // PAGE) * PAGE
            reads.append(Read(part, first, slot[place : place + last - first], start + each - first, name))
        return reads
