"""Parts of a model file over the same blocks: some of its layers, renumbered, which run as a model; some rows of matrices."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, islice

from kit.gguf.metadata import MetadataArray
from kit.gguf.names import layer_of
from kit.gguf.reader import GGUFFile
from kit.system import memory_available


def cut(file: GGUFFile, layers: Sequence[int]) -> GGUFFile:
    """``file`` with ``layers`` alone, in rising order, as layers 0, 1, ...; what lies outside all layers stays. It shares the
    file's map: closing one closes both."""
    whole = file.metadata.get(f"{file.architecture}.block_count", 0)
    of, count = parts_of(file, whole - file.metadata.get(f"{file.architecture}.nextn_predict_layers", 0))
    numbers, part = {layer: number for number, layer in enumerate(layers)}, copy.copy(file)
    part.tensors, part._views = {}, {}
    for name, info in file.tensors.items():
        if (layer := layer_of(name)) >= 0:
            if layer not in numbers:
                continue
            name = f"blk.{numbers[layer]}.{name.split('.', 2)[2]}"
        part.tensors[name] = info._replace(name=name)
    part.metadata = {}
    for key, value in file.metadata.items():
        listed = value if isinstance(value, MetadataArray) and len(value) == whole else None
        part.metadata[key] = [listed[layer] for layer in layers] if listed is not None else value
    own = {"block_count": len(layers), "nextn_predict_layers": 0}
    if (key := f"{file.architecture}.leading_dense_block_count") in part.metadata:
        own["leading_dense_block_count"] = sum(layer < part.metadata[key] for layer in layers)
    part.metadata |= {f"{file.architecture}.{key}": value for key, value in own.items()}
    part.metadata |= {_LAYERS: [of[layer] for layer in layers if layer < count], _OF: count}
    return part


_LAYERS, _OF = "kit.cut.layers", "kit.cut.of"


def parts_of(file, layers: int) -> tuple[list[int], int]:
    """(the numbers that the ``layers`` of a file have in the whole model, how many layers that has): of a part made by ``cut``
    what it was made of. Rules by period ("every fourth layer attends to all positions") count these numbers."""
    return list(file.metadata.get(_LAYERS, range(layers))), file.metadata.get(_OF, layers)


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
    """Layers that stand for all of a file: each combination of formats and shapes at least once, then more, evenly spread,
    while ``used(layers)`` (bytes a token, say) stays within ``most``. All layers where they stay within it."""
    if used(list(every)) <= most:
        return list(every)
    kinds: dict[int, list] = {layer: [] for layer in every}
    for info in file.tensors.values():
        if info.layer in kinds:
            kinds[info.layer].append((info.name.partition(f"blk.{info.layer}.")[2], info.qtype, info.shape))
    alike: dict[tuple, int] = {}
    for layer, found in kinds.items():
        alike.setdefault(tuple(sorted(found)), layer)
    chosen, others = sorted(alike.values()), sorted(set(every) - set(alike.values()))
    spread = [others[int((at + 0.5) * len(others) / 16)] for at in range(min(16, len(others)))]
    for layer in dict.fromkeys(spread):
        if used(sorted([*chosen, layer])) <= most:
            chosen.append(layer)
    return sorted(chosen)
