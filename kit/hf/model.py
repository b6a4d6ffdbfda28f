"""load: a transformers model and its tokenizer from a GGUF file, whose matrices are read in place."""

import functools
import os
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kit.cache.policies.base import Policy
from kit.cpu.threads import torch_alone
from kit.errors import ModelError, known
from kit.gguf import writer
from kit.gguf.metadata import MetadataArray
from kit.gguf.reader import GGUFFile, TensorInfo
from kit.gguf.uses import count, predicting_layers, unread_of
from kit.hf.engine import ENGINES, Forward
from kit.hf.held import cache_of
from kit.hf.nn import replace_norms
from kit.hf.private import compute_buffers, mark_loaded
from kit.hf.stored import Source, StoredWeight
from kit.hf.tables import parts_of, table_of
from kit.hf.tokenizer import GGUFTokenizer, tokenizer_of
from kit.model.architectures import ARCHITECTURES
from kit.model.linear import GEMV_MAX_TOKENS
from kit.trace import Trace

_ANY = "kit explain works on any file"
_DIVISORS = "rope_freqs.weight"
_UNREAD_KEYS = {  # sizes that transformers' tables leave at their defaults
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}

_UNMAPPED = {"ssm.dt_b_c_rms": "norms of what a Mamba layer takes"}  # what a flag says and transformers' tables leave out


def load(
    path: str | os.PathLike | GGUFFile,
    weights: str = "blocks",
    cache: Policy | None = None,
    trace: Trace | None = None,
    device: str = "cpu",
    model_class: type[PreTrainedModel] | None = None,
    engine: str = "auto",
    memory: int | str | None = None,
    policy: str = "LRU",
):
    """(model, tokenizer) of a GGUF file of any architecture that transformers maps; float32 on the CPU, weights frozen.

    weights: "blocks" (products from the file's blocks), "blocks-int16" and "blocks-int8" (the same with activations rounded to
    16 bits, or to 8 as in llama.cpp) or "float32" (dequantized once and kept). ``cache``: a policy such as kit.LRU("4 GiB") for
    dequantized float32 weights. ``memory``: what the whole process may use, 4,096 positions of context among it, where the kit
    has a pass for the architecture: of a larger mixture it keeps experts by ``policy``, a name in kit.model.slots.NAMES, of a
    larger dense model the first matrices. ``trace``: gets a span for each product, look-up and pass. ``engine``: "auto" (the
    kit's own pass where it has the architecture; what needs transformers' modules, such as hooks, adapters or training, runs by
    them, with a warning that says why) or "modules". The tokenizer is None for a file without a vocabulary. Raises ModelError,
    which names the file and the tensor.
    """
    if torch.device(device).type != "cpu":
        raise ModelError(f"kit.hf.load runs only on the CPU, not on {device!r}; use kit.Transformer on CUDA")
    source = Source.of(path, weights, cache, trace, memory, policy)
    tokenizer = tokenizer_of(source.weights.file)
    model = model_over(source, model_class, trace is None, engine)
    if isinstance(tokenizer, GGUFTokenizer) and model.can_generate():
        ends = sorted(tokenizer.own.end_tokens) or None
        model.generation_config.update(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id or (ends and ends[0]))
    return model, tokenizer


def model_over(
    source: Source, model_class: type[PreTrainedModel] | None = None, forget: bool = False, engine: str = "modules"
) -> PreTrainedModel:
    """The model alone, over an existing Source; ``forget``: see Passes."""
    file = source.weights.file
    config = config_of(file)
    cls = model_class or _class_of(file, config)
    with torch.device("cpu"):  # whatever the default is
        with transformers.utils.ContextManagers(cls.get_init_context(torch.float32, False, False, None)):  # on the meta device
            model = cls(config).eval()
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # one expert after another: the others dequantize all of a stack
        fill(model, source)
    replace_norms(model)
    passes = Passes(source, forget)
    if own := known("engine", engine, ENGINES, ModelError)(model, source):
        model.forward = engine = Forward(model, source, own, passes)
        model.generate = engine.generate
    else:
        model.register_forward_pre_hook(passes.before, with_kwargs=True)
        model.register_forward_hook(passes.after, with_kwargs=True, always_call=True)
    model.save_pretrained = functools.partial(_refuse_to_save, file.path)
    return model


def _refuse_to_save(path, *_, **__):
    raise ModelError(f"the weights are in {path} and are not saved again; save the adapter that you trained")


def config_of(file: GGUFFile) -> transformers.PretrainedConfig:
    """The configuration by transformers' tables; ModelError when it has none for the architecture.

    transformers reads a whole file, which is slow; here it gets a small one with the metadata and the tensors' names.
    """
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: no tensor 'token_embd.weight': this is not a language model")
    vocabulary = file.tensors["token_embd.weight"].shape[0]
    with tempfile.TemporaryDirectory() as folder:
        _write_head(Path(folder, "head.gguf"), file, vocabulary)
        try:
            config = transformers.AutoConfig.from_pretrained(folder, gguf_file="head.gguf", vocab_size=vocabulary)
        except Exception as error:  # a configuration fails in as many ways as there are architectures
            why = " ".join(str(error).split()).rstrip(".")
            said = f"transformers cannot configure {file.architecture!r}: {type(error).__name__}, {why}"
            raise ModelError(f"{file.path}: {said}; the kit runs {', '.join(ARCHITECTURES)}; {_ANY}") from None
    for key, what in _UNMAPPED.items():
        if file.metadata.get(f"{file.architecture}.{key}"):
            said = f"transformers' tables leave out {file.architecture}.{key}, {what}, so its modules would give other numbers"
            raise ModelError(f"{file.path}: {said}; kit generate and kit.Transformer run it")
    text = config.get_text_config()
    for key, name in _UNREAD_KEYS.items():
        if hasattr(text, name) and (value := count(file, key)):
            setattr(text, name, value)
    if hasattr(text, "norm_topk_prob") and file.architecture in ARCHITECTURES:
        normed = ARCHITECTURES[file.architecture].normed
        text.norm_topk_prob = normed or bool(file.metadata.get(f"{file.architecture}.expert_weights_norm"))
    return config


def _write_head(path, file, vocabulary):
    layers = count(file, "block_count") - predicting_layers(file)
    metadata = {f"{file.architecture}.vocab_size": vocabulary, "tokenizer.ggml.tokens": ["<s>"]}
    metadata |= {f"{file.architecture}.block_count": layers, f"{file.architecture}.nextn_predict_layers": 0}
    for key, value in file.metadata.items():
        if not isinstance(value, MetadataArray):
            metadata.setdefault(key, value)
        elif len(value) <= 4096 and not key.startswith("tokenizer."):
            metadata[key] = value.tolist() if value.kind == "string" else value.numpy()
    specs = [TensorInfo.new(name, "F32", (1,)) for name in file.tensors]
    writer.write(path, metadata, specs, [np.zeros(1, np.float32)] * len(specs))


def _class_of(file, config):
    for name in config.architectures or ():
        return getattr(transformers, name)
    for models in (
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        transformers.MODEL_MAPPING,
    ):
        if type(config) in models:
            return models[type(config)]
    raise ModelError(f"{file.path}: transformers has no model for {type(config).__name__}; give kit.hf.load a model_class")


def fill(model: PreTrainedModel, source: Source) -> None:
    """Give every parameter of a model on the meta device its weight from the file: a StoredWeight if its module only needs
    products or rows, else the numbers. ModelError for a tensor without a parameter, or a parameter without a tensor."""
    file = source.weights.file
    table, unread = table_of(file, model), unread_of(file)
    wanted = dict.fromkeys(model.state_dict(keep_vars=True))
    tensors: dict[str, list[str]] = {}
    for name in file.tensors:
        if name == _DIVISORS or (predicting_layers(file) and unread(name)):
            continue
        target = table.target(name)
        if target not in wanted:
            raise ModelError(f"{file.path}: transformers' {type(model).__name__} has no parameter for the tensor {name!r}")
        tensors.setdefault(target, []).append(name)
    absent = wanted.keys() - tensors.keys()
    if missing := absent - model.all_tied_weights_keys.keys() - set(model.all_tied_weights_keys.values()):
        raise ModelError(f"{file.path}: the file has no tensor for {min(missing)!r} of {type(model).__name__}")
    for target, names in tensors.items():
        _set(model, target, _weight(model, table, target, names, source))
    model.tie_weights(missing_keys=set(absent), recompute_mapping=False)
    compute_buffers(model)
    if _DIVISORS in file.tensors:
        _divide_frequencies(model, source.weights.load(_DIVISORS).float(), file)


def _divide_frequencies(model, divisors, file):
    """Apply Llama 3.1's RoPE scaling, which llama.cpp's converter stores as divisors and not in the metadata."""
    rotary = [module for module in model.modules() if "inv_freq" in dict(module.named_buffers(recurse=False))]
    if not rotary or any(module.inv_freq.shape != divisors.shape for module in rotary):
        raise ModelError(
            f"{file.path}: {_DIVISORS!r} of shape {tuple(divisors.shape)} does not match the model's RoPE frequencies"
        )
    for module in rotary:
        for name in dict(module.named_buffers(recurse=False)).keys() & {"inv_freq", "original_inv_freq"}:
            setattr(module, name, getattr(module, name) / divisors)


def _weight(model, table, target, names, source):
    """The weight ``target`` of the model from the tensors ``names`` of the file."""
    place = model.get_parameter_or_buffer(target)
    shapes = {name: source.weights.shape(name) for name in names}
    if min(map(len, shapes.values())) > 1 and _needs_products(model, target, place) and (parts := parts_of(table, shapes)):
        value = StoredWeight(source, parts[0], place.dtype, transposed=parts[1])
    else:
        arrays = {name: source.weights.load(name).float().numpy() for name in names}
        value = torch.tensor(table.convert(arrays)[target], dtype=place.dtype, device="cpu")
    if value.shape != place.shape:
        where = f"{source.weights.file.path}: {' + '.join(names)}"
        raise ModelError(f"{where} has shape {tuple(value.shape)}, but {target!r} of the model has {tuple(place.shape)}")
    return value


def _needs_products(model, target, place):
    """Whether the module uses the weight only for products, look-ups and single experts."""
    module = model.get_submodule(target.rpartition(".")[0])
    return isinstance(module, (torch.nn.Linear, torch.nn.Embedding, Conv1D)) or (place.ndim == 3 and "experts" in target)


def _set(model, target, value):
    path, _, leaf = target.rpartition(".")
    module = model.get_submodule(path)
    buffer = leaf in dict(module.named_buffers(recurse=False))
    setattr(module, leaf, value if buffer else torch.nn.Parameter(value, requires_grad=False))
    mark_loaded(getattr(module, leaf))


_HERE = threading.local()  # of the pass that this thread runs


class Passes:
    """Hooks before and after each pass. After the first one a file of small pages is read again (kit.gguf.large_pages).

    A pass of few tokens runs on the kit's threads, so torch is limited to one thread meanwhile.
    ``trace.token`` is 0 for a prompt and counts the tokens decoded after it. ``forget``: clear the trace at each pass, for a
    model whose user gave no trace.
    """

    def __init__(self, source: Source, forget: bool = False):
        self.trace, self._own, self.forget = source.weights.trace, source.linear.own_threads, forget
        self._source = source  # None once the pages of its file were looked at

    @torch.compiler.disable
    def before(self, model, args, kwargs):
        """Count the token, limit torch's threads."""
        ids, held = kwargs.get("input_ids", args[0] if args else None), cache_of(kwargs)
        if self.forget:
            self.trace.clear()
        self.trace.token = self.trace.token + 1 if held is not None and _continues(held) else 0
        _HERE.alone = torch_alone() if self._own and ids is not None and ids.numel() <= GEMV_MAX_TOKENS else nullcontext()
        _HERE.alone.__enter__()
        _HERE.start = time.perf_counter_ns()

    @torch.compiler.disable
    def after(self, model, args, kwargs, output):
        """Add a span for the pass, restore torch's threads; ModelError for logits that are no numbers."""
        self.trace.add("token", _HERE.start, time.perf_counter_ns())
        _HERE.alone.__exit__(None, None, None)
        if self._source:  # the first pass has mapped the pages
            self._source.weights.file.enlarge_pages(self.trace)
            self._source = None
        logits = getattr(output, "logits", None)
        if logits is not None and not logits.is_meta and logits[..., -1, :].sum().isnan():
            where = _first_overflow(model, kwargs.get("input_ids", args[0] if args else None))
            raise ModelError(
                f"the logits are NaN: a number overflows {str(model.dtype).removeprefix('torch.')}, first in {where}; "
                "keep the model in float32, or use bfloat16"
            )


def _continues(cache):
    try:
        return cache.get_seq_length() > 0
    except ValueError:  # states and no lengths, as of Mamba
        return cache.has_previous_state()


@torch.no_grad()
def _first_overflow(model, ids) -> str:
    """The first module whose output is not finite when the tokens are passed once more."""
    paths = []

    def look(path):
        def hook(module, args, output):
            parts = output if isinstance(output, tuple) else (output,)
            if not paths and any(
                part.is_floating_point() and not part.isfinite().all() for part in parts if torch.is_tensor(part)
            ):
                paths.append(path)

        return hook

    hooks = [module.register_forward_hook(look(path)) for path, module in model.named_modules() if path]
    try:
        with suppress(Exception):  # a model that takes more than tokens
            type(model).forward(model, ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return paths[0] if paths else "a module that a pass over these tokens alone does not show"
