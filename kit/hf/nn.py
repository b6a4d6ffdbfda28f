"""torch modules over tensors of a GGUF file, RMSNorm by one compiled loop, and both in place of an existing model's."""

import os
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from kit.cache.policies.base import Policy
from kit.cpu.norm import rms_norm
from kit.errors import ModelError
from kit.gguf.reader import GGUFFile
from kit.hf.stored import Rows, Source, StoredWeight

_EPS = ("eps", "variance_epsilon", "epsilon")


class Linear(torch.nn.Linear):
    """y = x W^T + b, with W the tensor ``name`` of ``file`` (a path or an open file) and b its bias, if the file has one.

    weights, cache: see kit.hf.load. ModelError for a tensor that is no matrix, or is not there.
    """

    def __init__(self, file: str | os.PathLike | GGUFFile, name: str, weights: str = "blocks", cache: Policy | None = None):
        source = Source.of(file, weights, cache)
        out_features, in_features = _matrix(source, name)
        super().__init__(in_features, out_features, device="meta", bias=_bias_of(name) in source.weights.file.tensors)
        _fill(self, source, name)


class Embedding(torch.nn.Embedding):
    """An embedding: rows of the tensor ``name``, dequantized when they are looked up."""

    def __init__(self, file: str | os.PathLike | GGUFFile, name: str, weights: str = "blocks", cache: Policy | None = None):
        source = Source.of(file, weights, cache)
        super().__init__(*_matrix(source, name), device="meta")
        _fill(self, source, name)


class RMSNorm(torch.nn.Module):
    """y = x / sqrt(mean of x^2 + eps) * (weight + offset), in the type of x, by one loop instead of eight torch calls."""

    def __init__(self, weight: torch.nn.Parameter, eps: float, offset: int):
        super().__init__()
        self.weight, self.eps, self.offset = weight, eps, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if torch.compiler.is_compiling() or (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)):
            return F.rms_norm(x.float(), weight.shape, weight.float() + self.offset, self.eps).type_as(x)
        if x.dtype is weight.dtype is torch.float32:
            return rms_norm(x, weight, self.eps, self.offset)
        return rms_norm(x.float(), weight.float(), self.eps, self.offset).to(x.dtype)


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
    layers, modules = {}, dict(model.named_modules())
    for path, name in mapping.items():
        layer = modules.get(path)
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


def replace_norms(model: torch.nn.Module) -> None:
    """Put RMSNorm in the place of every module that gives its numbers: asked once a class and width, on random numbers."""
    known = {}
    for path, module in list(model.named_modules()):
        eps = next((getattr(module, name) for name in _EPS if isinstance(getattr(module, name, None), float)), None)
        names = [name for name, _ in module.named_parameters()]
        if eps is None or names != ["weight"] or module.weight.ndim != 1 or list(module.buffers()):
            continue
        kind = type(module), len(module.weight), eps
        if kind not in known:
            known[kind] = next((offset for offset in (0, 1) if _same(module, RMSNorm(module.weight, eps, offset))), None)
        if known[kind] is not None:
            model.set_submodule(path, RMSNorm(module.weight, eps, known[kind]))


@torch.no_grad()
def _same(module, ours):
    x = torch.randn(3, len(ours.weight), generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
    try:
        expected = module(x)
    except Exception:  # a module that is not called with one tensor; it is kept
        return False
    return isinstance(expected, torch.Tensor) and expected.shape == x.shape and torch.allclose(ours(x), expected, 1e-5, 1e-6)


def _matrix(source: Source, name: str) -> tuple[int, int]:
    """(out, in) of a matrix; ModelError for another tensor."""
    shape = source.weights.shape(name)
    if len(shape) != 2:
        one = f": name one expert, {name}[0]" if len(shape) == 3 else ""
        raise ModelError(f"{source.weights.file.path}: {name!r} has shape {shape}, expected a matrix (out, in){one}")
    return shape


def _fill(layer, source: Source, name: str) -> None:
    layer.weight = torch.nn.Parameter(StoredWeight(source, (Rows(name),)), requires_grad=False)
    if getattr(layer, "bias", None) is not None and _bias_of(name) in source.weights.file.tensors:
        layer.bias = torch.nn.Parameter(source.weights.load(_bias_of(name)).flatten(), requires_grad=False)


def _bias_of(name):
    return name.removesuffix("weight") + "bias"
