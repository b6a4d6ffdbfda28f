"""load: a transformers model and its tokenizer from a GGUF file, whose matrices are read in place."""

import functools
import os

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kit.cache.policies.base import Policy
from kit.errors import ModelError
from kit.gguf.reader import GGUFFile
from kit.gguf.reader import open as open_file
from kit.hf.config import config_of, skeleton
from kit.hf.norm import replace_norms
from kit.hf.passes import Passes
from kit.hf.stored import Source, StoredWeight
from kit.hf.tables import parts_of, table_of
from kit.hf.tokenizer import GGUFTokenizer, tokenizer_of
from kit.lab.trace import Trace

_DIVISORS = "rope_freqs.weight"


def load(
    path: str | os.PathLike | GGUFFile,
    weights: str = "blocks",
    cache: Policy | None = None,
    trace: Trace | None = None,
    device: str = "cpu",
    model_class: type[PreTrainedModel] | None = None,
):
    """(model, tokenizer) of a GGUF file of any architecture that transformers maps; float32 on the CPU, weights frozen.

    weights: "blocks" (products from the file's blocks), "blocks-int8" (the same with activations rounded to 8 bits, as in
    llama.cpp) or "float32" (dequantized once and kept). ``cache``: a policy such as kit.LRU("4 GiB") for dequantized float32
    weights. ``trace``: gets a span for each product, look-up and pass. The tokenizer is None for a file without a
    vocabulary. Raises ModelError, which names the file and the tensor.
    """
    if torch.device(device).type != "cpu":
        raise ModelError(f"kit.hf.load runs on the CPU, not on {device!r}; the kit's own pass (kit.Transformer) runs on CUDA")
    file = path if isinstance(path, GGUFFile) else open_file(path)
    model = model_over(Source.of(file, weights, cache, trace), model_class, forget=trace is None)
    tokenizer = tokenizer_of(file)
    if isinstance(tokenizer, GGUFTokenizer) and model.can_generate():
        ends = sorted(tokenizer.own.end_tokens) or None
        model.generation_config.update(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id or (ends and ends[0]))
    return model, tokenizer


def model_over(source: Source, model_class: type[PreTrainedModel] | None = None, forget: bool = False) -> PreTrainedModel:
    """The model alone, over an existing Source; ``forget``: see kit.hf.passes."""
    file = source.weights.file
    model = skeleton(file, config_of(file), model_class)
    fill(model, file, source)
    replace_norms(model)
    Passes(source, forget).listen(model)
    model.save_pretrained = functools.partial(_refuse_to_save, file.path)
    return model


def _refuse_to_save(path, *_, **__):
    raise ModelError(f"the weights are those of {path} and are not saved again; save the adapter that you trained")


def fill(model: PreTrainedModel, file: GGUFFile, source: Source) -> None:
    """Give every parameter of a model on the meta device its weight from the file: a StoredWeight if its module only needs
    products or rows, else the numbers. ModelError for a tensor without a parameter, or a parameter without a tensor."""
    table = table_of(file, model)
    wanted = dict.fromkeys(model.state_dict(keep_vars=True))
    tensors: dict[str, list[str]] = {}
    for name in file.tensors:
        if name == _DIVISORS:
            continue
        target = table.target(name)
        if target not in wanted:
            raise ModelError(f"{file.path}: transformers has no place in {type(model).__name__} for the tensor {name!r}")
        tensors.setdefault(target, []).append(name)
    absent = wanted.keys() - tensors.keys()
    if missing := absent - model.all_tied_weights_keys.keys() - set(model.all_tied_weights_keys.values()):
        raise ModelError(f"{file.path}: no tensor of the file is {min(missing)!r} of {type(model).__name__}")
    for target, names in tensors.items():
        _set(model, target, _weight(model, table, target, names, source))
    model.tie_weights(missing_keys=set(absent), recompute_mapping=False)
    model._move_missing_keys_from_meta_to_device(set(), None, None, None)  # buffers that are computed and not stored
    model._initialize_missing_keys(is_quantized=False)
    if _DIVISORS in file.tensors:
        _divide_frequencies(model, source.weights.load(_DIVISORS).float(), file)


def _divide_frequencies(model, divisors, file):
    """Apply Llama 3.1's RoPE scaling, which llama.cpp's converter stores as divisors and not in the metadata."""
    found = [buffers for module in model.modules() if (buffers := module._buffers).get("inv_freq") is not None]
    if not found or any(buffers["inv_freq"].shape != divisors.shape for buffers in found):
        raise ModelError(f"{file.path}: {_DIVISORS!r} of shape {tuple(divisors.shape)} fits no frequencies of the model")
    for buffers in found:
        for name in buffers.keys() & {"inv_freq", "original_inv_freq"}:
            buffers[name] = buffers[name] / divisors


def _weight(model, table, target, names, source):
    """The weight ``target`` of the model from the tensors ``names`` of the file."""
    place = model.get_parameter_or_buffer(target)
    shapes = {name: source.weights.shape(name) for name in names}
    if min(map(len, shapes.values())) > 1 and _needs_products(model, target, place) and (found := parts_of(table, shapes)):
        value = StoredWeight(source, found[0], place.dtype, transposed=found[1])
    else:
        arrays = {name: source.weights.load(name).float().numpy() for name in names}
        value = torch.tensor(table.convert(arrays)[target], dtype=place.dtype)
    if value.shape != place.shape:
        where = f"{source.weights.file.path}: {' + '.join(names)}"
        raise ModelError(f"{where} has shape {tuple(value.shape)}, {target!r} of the model {tuple(place.shape)}")
    return value


def _needs_products(model, target, place):
    """Whether the module uses the weight only for products, look-ups and single experts."""
    module = model.get_submodule(target.rpartition(".")[0])
    return isinstance(module, (torch.nn.Linear, torch.nn.Embedding, Conv1D)) or (place.ndim == 3 and "experts" in target)


def _set(model, target, value):
    path, _, leaf = target.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._buffers:
        module._buffers[leaf] = value
    else:
        setattr(module, leaf, torch.nn.Parameter(value, requires_grad=False))
    getattr(module, leaf)._is_hf_initialized = True  # otherwise transformers initializes it with random numbers
