"""Modules for any model of torch whose weights lie in a GGUF file: a layer, an embedding, or all layers of a model."""

import os
from collections.abc import Mapping

import torch

from kit.cache.policies.base import Policy
from kit.errors import ModelError
from kit.gguf.reader import GGUFFile
from kit.gguf.reader import open as open_file
from kit.hf.stored import Part, Source, StoredWeight


class Linear(torch.nn.Linear):
    """y = x W^T + b: the tensor ``name`` of ``file`` (a path or an open one) and, where the file has it, the bias beside it.

    weights, cache: as in kit.hf.load.
    """

    def __init__(self, file: str | os.PathLike | GGUFFile, name: str, weights: str = "blocks", cache: Policy | None = None):
        source = Source.of(_opened(file), weights, cache)
        out_features, in_features = source.weights.shape(name)
        super().__init__(in_features, out_features, device="meta", bias=_bias_of(name) in source.weights.file.tensors)
        _fill(self, source, name)


class Embedding(torch.nn.Embedding):
    """Rows of the tensor ``name``, each dequantized when it is looked up."""

    def __init__(self, file: str | os.PathLike | GGUFFile, name: str, weights: str = "blocks", cache: Policy | None = None):
        source = Source.of(_opened(file), weights, cache)
        super().__init__(*source.weights.shape(name), device="meta")
        _fill(self, source, name)


def replace_linears(
    model: torch.nn.Module,
    file: str | os.PathLike | GGUFFile,
    mapping: Mapping[str, str],
    weights: str = "blocks",
    cache: Policy | None = None,
) -> torch.nn.Module:
    """Give layers of ``model`` the weights of ``file``, in place: ``mapping`` is the path of a Linear or Embedding in the model
    -> the name of its tensor. Their biases come from the file where it has them; all other parameters stay what they are.

    Raises ModelError for a path that is neither, a tensor that the file has not, or one of another shape; the model is
    unchanged then.
    """
    source = Source.of(_opened(file), weights, cache)
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


def _opened(file):
    return file if isinstance(file, GGUFFile) else open_file(file)
