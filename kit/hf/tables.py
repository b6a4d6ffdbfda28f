"""The mapping from tensors of the file to weights of the model, found by running transformers' own conversion.

transformers undoes the changes of llama.cpp's converter (permuted rows of q and k, gate and up in one tensor, transposed
matrices, 1 added to a norm) by functions over whole arrays. For matrices these functions are run on arrays of row numbers;
the result shows the place of each row, and no weight is converted.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import modeling_gguf_pytorch_utils as legacy
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.integrations.gguf import get_gguf_conversion_mapping, is_gguf_arch_supported

from kit.errors import ModelError
from kit.hf.stored import Rows


def table_of(file, model):
    """The conversion table for the architecture of ``file``; transformers has two kinds."""
    return (Converters if is_gguf_arch_supported(file.architecture) else Processors)(file, model)


class Processors:
    """The tables of ``modeling_gguf_pytorch_utils``: a processor for each family, and names from gguf-py."""

    def __init__(self, file, model):
        config = model.config.get_text_config()
        self._processor = legacy.TENSOR_PROCESSORS.get(file.architecture, legacy.TensorProcessor)(config=config.to_dict())
        try:
            self._names = legacy.get_gguf_hf_weights_map(_Names.of(model, config), self._processor)
        except NotImplementedError as error:
            raise ModelError(f"{file.path}: {error}") from None

    def target(self, name: str) -> str | None:
        """The weight of the model that the tensor is, or is a part of; None for neither."""
        return self._names.get(name) or self._names.get(name.removesuffix(".weight"))

    def convert(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Weights by their names in the model, from tensors by their names in the file."""
        made: dict[str, Any] = {}
        for name, array in arrays.items():
            result = self._processor.process(
                weights=array, name=name, tensor_key_mapping=self._names, parsed_parameters={"tensors": made}
            )
            if result.name in self._names:
                made[self._names[result.name]] = result.weights
        return {name: np.asarray(array) for name, array in made.items()}


class _Names(NamedTuple):
    """A stand-in for a model, with the members that get_gguf_hf_weights_map uses."""

    config: Any
    names: tuple[str, ...]
    children: tuple

    def state_dict(self):
        return dict.fromkeys(self.names)

    def named_children(self):
        return self.children

    @classmethod
    def of(cls, model, config) -> "_Names":
        """The names of ``model``, with children down to the module that holds the list of layers."""
        children = tuple((name, cls.of(child, config)) for name, child in model.named_children() if _holds_layers(child))
        return cls(config, tuple(model.state_dict(keep_vars=True)), children)


def _holds_layers(module):
    if isinstance(module, torch.nn.ModuleList):
        return False
    return any(isinstance(child, torch.nn.ModuleList) or _holds_layers(child) for child in module.children())


class Converters:
    """The tables of ``transformers.integrations.gguf``: renamings and operations; members as in Processors."""

    def __init__(self, file, model):
        table = get_gguf_conversion_mapping(file.architecture, model.config)
        self._renamings = [row for row in table if isinstance(row, WeightRenaming)]
        self._converters = [row for row in table if isinstance(row, WeightConverter)]
        self._known = dict.fromkeys(model.state_dict(keep_vars=True))

    def target(self, name):
        renamed = rename_source_key(name, self._renamings, self._converters)[0]
        return renamed if renamed in self._known else None

    def convert(self, arrays):
        made = {}
        rows: dict[str, tuple] = {}
        for name, array in arrays.items():
            renamed, pattern = rename_source_key(name, self._renamings, self._converters)
            converter = next((row for row in self._converters if pattern in row.source_patterns), None)
            if converter is None:
                made[renamed] = array
            else:
                rows.setdefault(renamed, (converter, defaultdict(list)))[1][pattern].append(torch.from_numpy(array))
        for renamed, (converter, tensors) in rows.items():
            for operation in converter.operations:
                tensors = operation.convert(
                    tensors, source_patterns=converter.source_patterns, target_patterns=converter.target_patterns
                )
            (made[renamed],) = (np.asarray(value[0] if isinstance(value, list) else value) for value in tensors.values())
        return made


def parts_of(table, shapes: dict[str, tuple[int, ...]]) -> tuple[tuple[Rows, ...], bool] | None:
    """(parts, transposed) of the weight of the model that is made of these matrices (name -> shape).

    ``parts`` are concatenated by rows; ``transposed``: the model's weight is the transpose of that. None when the weight is
    not made of whole rows.
    """
    for columns in (2, None):  # two columns show the order of rows; some conversions need the true number of columns
        numbered, starts, start = {}, {}, 0
        for name, shape in shapes.items():
            wide = *shape[:-1], columns or shape[-1]
            starts[name] = start, wide
            numbered[name] = np.arange(start, start := start + int(np.prod(wide)), dtype=np.int64).reshape(wide)
        try:
            (out,) = table.convert(numbered).values()
        except (ValueError, IndexError, RuntimeError, KeyError):
            continue
        for transposed in (False, True):
            turned = out.T if transposed else out
            if parts := _parts(turned, starts):
                return parts, transposed
            order = turned.reshape(-1, turned.shape[-1])[0].argsort()  # of columns, by heads in a delta net's output
            if columns is None and (parts := _parts(turned[..., order], starts)):
                return tuple(part._replace(columns=torch.from_numpy(order)) for part in parts), transposed
    return None


def _parts(out, starts):
    """Parts from converted row numbers; None unless rows are whole, equal for all experts, and grouped by tensor."""
    width = next(iter(starts.values()))[1][-1]
    rows = out[..., 0]
    if out.shape[-1] != width or (out != rows[..., None] + np.arange(width)).any() or (rows % width).any():
        return None
    rows = rows.reshape(-1, rows.shape[-1])
    tensors = list(starts.items())
    which = np.searchsorted([start for start, _ in starts.values()], rows[0], side="right") - 1
    made, expected = [], []
    for index in dict.fromkeys(which.tolist()):
        name, (start, shape) = tensors[index]
        own = (rows[0, which == index] - start) // width
        expected.append(start + (np.arange(len(rows))[:, None] * shape[-2] + own) * width)
        made.append(Rows(name, None if (own == np.arange(shape[-2])).all() else torch.from_numpy(own)))
    return tuple(made) if np.array_equal(np.concatenate(expected, 1), rows) else None
