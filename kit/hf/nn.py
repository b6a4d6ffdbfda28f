"""torch modules whose weights are tensors of a GGUF file: a linear layer, an embedding, or layers of an existing model."""

import os
from collections.abc import Mapping

import torch

from kit.cache.policies.base import Policy
from kit.errors import ModelError
from kit.gguf.reader import GGUFFile
from kit.hf.stored import Part, Source, StoredWeight


class Linear(torch.nn.Linear):
    """y = x W^T + b, with W the tensor ``name`` of ``file`` (a path or an open file) and b its bias, if the file has one.

    weights, cache: see kit.hf.load.
    """

    def __init__(self, file: str | os.PathLike | GGUFFile, name: str, weights: str = "blocks", cache: Policy | None = None):
        source = Source.of(file, weights, cache)
        out_features, in_features = source.weights.shape(name)
        super().__init__(in_features, out_features, device="meta", bias=_bias_of(name) in source.weights.file.tensors)
        _fill(self, source, name)


class Embedding(torch.nn.Embedding):
    """An embedding: rows of the tensor ``name``, dequantized when they are looked up."""

    def __init__(self, file: str | os.PathLike | GGUFFile, name: str, weights: str = "blocks", cache: Policy | None = None):
        source = Source.of(file, weights, cache)
        super().__init__(*source.weights.shape(name), device="meta")
        _fill(self, source, name)


def replace_linears(
    model: torch.nn.Module,
    file: str | os.PathLike | GGUFFile,
    mapping: Mapping[str, str],
    weights: str = "blocks",
    cache: Policy | None = None,
) -> torch.nn.Module:
    """Replace the weights of layers of ``model`` in place. ``mapping``: path of a Linear or Embedding -> name of its tensor.

    Biases are replaced if the file has them; all other parameters stay. Raises ModelError for a path of another module, a
    tensor that is missing, or one of another shape; the model is unchanged then.
    """
    source = Source.of(file, weights, cache)
    layers = {}
    for path, name in mapping.items():
        layer = dict(model.named_modules()).get(path)
        if not isinstance(layer, (torch.nn.Linear, torch.nn.Embedding)):
            raise ModelError(f"{path!r} of {type(model).__name__} is {type(layer).__name__}, expected a Linear or an Embedding")
        if source.weights.shape(name) != tuple(layer.weight.shape):
            raise ModelError(
                f"{source.weights.file.path}: {name!r} has shape {source.weights.shape(name)}, {path!r} of the model "
                f"{tuple(layer.weight.shape)}"
            )
        layers[path] = layer, name
    for layer, name in layers.values():
        _fill(layer, source, name)
    return model


def _fill(layer, source: Source, name: str) -> None:
    layer.weight = torch.nn.Parameter(StoredWeight(source, (Part(name),)), requires_grad=False)
    if getattr(layer, "bias", None) is not None and _bias_of(name) in source.weights.file.tensors:
        layer.bias = torch.nn.Parameter(source.weights.load(_bias_of(name)).flatten(), requires_grad=False)


def _bias_of(name):
    return name.removesuffix("weight") + "bias"
