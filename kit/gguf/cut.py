"""Parts of a model file over the same blocks: some of its layers, renumbered, which run as a model; some rows of matrices."""

import copy
from collections.abc import Sequence
from weakref import WeakValueDictionary

from kit.gguf.metadata import MetadataArray
from kit.gguf.names import layer_of
from kit.gguf.reader import GGUFFile


def cut(file: GGUFFile, layers: Sequence[int]) -> GGUFFile:
    """``file`` with ``layers`` alone, in rising order, as layers 0, 1, ...; what lies outside all layers stays. It shares the
    file's map: closing one closes both."""
    whole = file.metadata.get(f"{file.architecture}.block_count", 0)
    model = whole - file.metadata.get(f"{file.architecture}.nextn_predict_layers", 0)
    of, count = parts_of(file, model)
    numbers, part = {layer: number for number, layer in enumerate(layers)}, copy.copy(file)
    part.tensors, part._views, part._swapped = {}, {}, WeakValueDictionary()
    for name, info in file.tensors.items():
        if (layer := layer_of(name)) >= 0:
            if layer not in numbers:
                continue
            name = f"blk.{numbers[layer]}.{name.split('.', 2)[2]}"
        part.tensors[name] = info._replace(name=name)
    part.metadata = {}
    for key, value in file.metadata.items():
        listed = value if isinstance(value, MetadataArray) and len(value) in (whole, model) else None
        part.metadata[key] = value if listed is None else [listed[layer] for layer in layers if layer < len(listed)]
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
