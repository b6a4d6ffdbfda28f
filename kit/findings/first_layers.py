"""The first layers of a model: what can be measured of a model that is too large, or too slow, to measure whole."""

import pandas as pd

from kit.gguf.cut import cut
from kit.gguf.names import layer_of
from kit.gguf.reader import GGUFFile
from kit.lab.system import memory_available


def what_fits(file, room: float | None = None, most: int | None = None) -> GGUFFile:
    """The first layers (``most`` at most) whose float32 weights take up to ``room`` bytes (half of the free memory), one at
    least; the tensors that belong to no layer count too."""
    room = 0.5 * memory_available() if room is None else room
    nbytes = pd.Series({name: 4 * tensor.elements for name, tensor in file.tensors.items()})
    by_layer = nbytes.groupby(nbytes.index.map(layer_of)).sum().sort_index().cumsum()
    fitting = int((by_layer[by_layer.index >= 0] <= room).sum())
    return cut(file, range(max(1, min(fitting, most or fitting))))
