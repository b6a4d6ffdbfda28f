"""Parts of a model file to measure in place of the whole: layers that fit in memory, layers that stand for all, some rows."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, islice

from kit.gguf.cut import cut
from kit.gguf.names import layer_of
from kit.gguf.reader import GGUFFile
from kit.system import memory_available


def what_fits(file: GGUFFile, room: float | None = None, most: int | None = None) -> GGUFFile:
    """The first layers (``most`` at most) whose float32 weights take up to ``room`` bytes (half of the free memory), one at
    least; the tensors that belong to no layer count too."""
    sizes, room = Counter(), 0.5 * memory_available() if room is None else room
    for name, info in file.tensors.items():
        sizes[layer_of(name)] += 4 * info.elements
    taken = accumulate(sizes[layer] for layer in sorted({-1, *sizes}))  # first what belongs to no layer
    fitting = sum(nbytes <= room for nbytes in islice(taken, 1, None))
    return cut(file, range(max(1, min(fitting, most or fitting))))


def fewer_rows(file: GGUFFile, most: int) -> GGUFFile:
    """``file`` with the first rows alone, of ``most`` weights, of each matrix that has more; stacks and vectors are whole."""
    part = copy.copy(file)
    part.tensors, part._views = dict(file.tensors), {}
    for name, info in file.tensors.items():
        if len(info.shape) == 2 and info.elements > most:
            rows = max(1, most // info.shape[1])
            part.tensors[name] = info._replace(shape=(rows, info.shape[1]), nbytes=info.nbytes // info.shape[0] * rows)
    return part


def sample(file: GGUFFile, every: Sequence[int], most: float, used: Callable[[list[int]], float]) -> list[int]:
    """Layers that stand for all of a file: each combination of formats and shapes once, and as many more (16 at most), evenly
    spread, as ``used(layers)`` (bytes a token, say) stays within ``most`` with. All layers where they stay within it."""
    if used(list(every)) <= most:
        return list(every)
    kinds: dict[int, list] = {layer: [] for layer in every}
    for info in file.tensors.values():
        if info.layer in kinds:
            kinds[info.layer].append((info.name.partition(f"blk.{info.layer}.")[2], info.qtype, info.shape))
    alike: dict[tuple, int] = {}
    for layer, tensors in kinds.items():
        alike.setdefault(tuple(sorted(tensors)), layer)
    chosen, others = sorted(alike.values()), sorted(set(every) - set(alike.values()))
    for count in range(min(16, len(others)), 0, -1):
        spread = (others[int((at + 0.5) * len(others) / count)] for at in range(count))  # the middles of equal parts
        if used(more := sorted([*chosen, *spread])) <= most:
            return more
    return chosen
