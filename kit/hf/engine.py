"""Forward: a transformers model's forward by the kit's own pass; by its modules where something needs them, with a line why."""

import inspect
import itertools
import warnings
import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
import torch.nn.modules.module as torch_modules
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from kit.cpu.threads import torch_alone
from kit.errors import KitWarning, ModelError
from kit.hf.held import CACHE, CACHE_NAMES, Held, cache_of
from kit.hf.stored import Source, StoredWeight
from kit.model.architectures import ARCHITECTURES
from kit.model.linear import GEMV_MAX_TOKENS
from kit.model.transformer import Transformer

_TAKES = {"input_ids", "attention_mask", "position_ids", *CACHE_NAMES[:2], "use_cache", "logits_to_keep", "return_dict"}
_EPS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [getattr(torch_modules, f"_global{name}") for name in _HOOKS]
_PLANNED_ROWS = 2  # up to so many rows a recorded pass each is faster than one pass of all over tensors


def own_pass(model: PreTrainedModel, source: Source) -> Transformer | None:
    """The kit's own pass for that model, whose modules get its scale of attention; None where the kit has none, or (with a
    warning) where it refuses the file."""
    file, classes = source.weights.file, MODEL_FOR_CAUSAL_LM_MAPPING
    if file.architecture not in ARCHITECTURES or classes.get(type(model.config), None) is not type(model):
        return None
    if not hasattr(getattr(model, "model", None), "layers"):  # falcon, mamba: modules of other names, not compared
        return None
    try:
        own = Transformer(source.weights, linear=source.linear)
    except ModelError as error:
        said = f"kit.hf uses transformers' modules, whose numbers the kit cannot compare: {error}"
        warnings.warn(said, KitWarning, stacklevel=3)
        return None
    for layer, (mixer, *_) in zip(model.model.layers, own.config.layers, strict=False):
        if hasattr(module := getattr(layer, "self_attn", None), "scaling"):
            module.scaling = mixer.scale  # transformers reads no key of it, and a few sizes of gemma have another
    return own


def _by_modules(model, source):
    """No pass of the kit; ModelError where the modules would give other numbers."""
    if (own := own_pass(model, source)) and (wrong := differences(model, own)):
        raise ModelError(f"{own.file.path}: {wrong}; leave out engine='modules', so that the kit's own pass runs")
    return None


ENGINES = {"auto": own_pass, "modules": _by_modules}


def differences(model, own) -> str:
    """The numbers that the two passes do not share, in words; "" for none."""
    wrong = " and ".join(_differences(model, own))
    return wrong and f"transformers reads from this file another {wrong} than the kit, so its modules would give other numbers"


def _differences(model, own) -> list[str]:
    """The numbers that the two passes do not share: transformers' tables read less of a file's metadata."""
    c, theirs, layers = own.config, model.config, DynamicCache(config=model.config).layers
    attending = [layer for layer, kinds in enumerate(own.config.layers) if kinds.mixer.memory.position]
    if attending != [layer for layer, module in enumerate(model.model.layers) if hasattr(module, "self_attn")]:
        return ["list of layers that attend"]
    mixers = [c.layers[layer].mixer for layer in attending]
    windows = [getattr(layers[layer], "sliding_window", 0) for layer in attending]
    scales = [_scale(model.model.layers[layer].self_attn) for layer in attending]
    numbers = {
        "scale of attention": (scales, [mixer.scale for mixer in mixers]),
        "attention window": ([each or c.context for each in windows], [mixer.window or c.context for mixer in mixers]),
        "cap of scores": ([getattr(theirs, "attn_logit_softcapping", 0) or 0] * len(mixers), [mixer.cap for mixer in mixers]),
        "cap of logits": (getattr(theirs, "final_logit_softcapping", 0) or 0, c.logit_cap),
        "epsilon of norms": (next(getattr(theirs, name) for name in _EPS if hasattr(theirs, name)), c.norm_eps),
        "number of experts a token": (c.experts and theirs.num_experts_per_tok, c.experts_used),
    }
    wrong = [what for what, (a, b) in numbers.items() if not np.allclose(a, b, 1e-5, 0)]
    return wrong + ["RoPE"] * any(not _same_rope(model, own, layer) for layer in attending)


def _scale(attention) -> float:
    return getattr(attention, "scaling", 0) or attention.head_dim**-0.5


def _same_rope(model, own, layer) -> bool:
    buffers, kinds = vars(model.model.rotary_emb), getattr(model.config, "layer_types", None)
    per_layer = f"{kinds[layer]}_" if kinds and "inv_freq" not in model.model.rotary_emb._buffers else ""
    theirs = model.model.rotary_emb.get_buffer(f"{per_layer}inv_freq")
    scale, rope = buffers.get(f"{per_layer}attention_scaling", 1.0), own.config.layers[layer].mixer.rope
    ours = own.ropes[rope].cos_sin(1, 1).flatten() if rope else torch.empty(0, dtype=torch.float32, device="cpu")
    return ours.shape == theirs.shape and torch.allclose(ours, torch.polar(torch.full_like(theirs, scale), theirs), 1e-4, 1e-7)


class Forward:
    """Stands in ``model.forward``. ``passes``: the hooks of a pass by the modules, see kit.hf.model.

    At each prompt modules and dense weights are compared with those at loading, at each token hooks are looked for.
    """

    def __init__(self, model: PreTrainedModel, source: Source, own: Transformer, passes):
        self._model, self._source, self._passes, self._own = model, source, passes, own
        self._as_loaded, self._said, self._wrong = _parts_of(model), set(), differences(model, own)

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name not in ("_own", "_hooks")}

    @cached_property
    def _own(self):
        return Transformer(self._source.weights, linear=self._source.linear)

    @cached_property
    def _hooks(self):
        return [hooks for _, kinds in _hooked(self._model) for hooks in kinds]

    @property
    def __signature__(self):
        return inspect.signature(self._by_modules)

    @property
    def _by_modules(self):
        return type(self._model).forward.__get__(self._model)

    def generate(self, *args, **kwargs):
        """Stands in ``model.generate``: torch's other threads would spin between passes, on the cores that the kit's want."""
        with torch_alone():
            return type(self._model).generate(self._model, *args, **kwargs)

    @torch.compiler.disable
    def __call__(self, *args, **kwargs):
        """transformers' CausalLMOutputWithPast for the arguments of the model's own forward."""
        ids = kwargs.get("input_ids")
        with torch_alone(ids is None or ids.numel() <= GEMV_MAX_TOKENS):  # modules leave products of a prompt to torch
            return self._pass(args, kwargs)

    def _pass(self, args, kwargs):
        given = dict(zip(self.__signature__.parameters, args, strict=False)) | kwargs
        cache = cache_of(given)
        if not (reason := self._obstacle(given, cache)):
            return self._by_the_kit(given, cache)
        path = self._own.file.path
        if self._wrong:
            raise ModelError(f"{path}: {reason}, which needs transformers' modules; but {self._wrong}")
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(f"kit.hf uses transformers' modules, which are slower: {path}: {reason}", KitWarning, stacklevel=4)
        if isinstance(cache, Held):
            cache.hand_over()
        output = None
        self._passes.before(self._model, args, kwargs)
        try:
            output = self._by_modules(*args, **kwargs)
        finally:
            self._passes.after(self._model, args, kwargs, output)
        return output

    # ---- whether

    def _obstacle(self, given, cache) -> str:
        """Why this pass needs the modules, "" if it does not."""
        model, ids = self._model, given.get("input_ids")
        for name, value in given.items():
            if name not in _TAKES and value is not None and value is not False:
                return f"{name} was given"
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or not ids.numel() or ids.device.type != "cpu":
            return "input_ids are no rows of tokens on the CPU"
        if model.training:
            return "it is in training mode"
        if model.config.output_attentions or model.config.output_hidden_states:
            return "its configuration asks for attentions or hidden states"
        if not isinstance(cache, Held):
            if cache is not None and (type(cache) is not DynamicCache or cache.offloading or cache.get_seq_length()):
                return f"a {type(cache).__name__} that the kit did not fill holds the keys and values"
            if reason := self._changed():
                return reason
        elif cache.model is not self._own or len(cache.rows) != len(ids):
            return "the keys and values are another model's, or of another number of rows"
        if any(self._hooks) or any(_GLOBAL_HOOKS):
            return f"there is a hook on {next((path for path, hooks in _hooked(model) if any(hooks)), 'every module')}"
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in model.parameters()):
            return "its weights have gradients"
        return self._odd(ids, given.get("attention_mask"), given.get("position_ids"), cache)

    def _odd(self, ids, mask, positions, cache) -> str:
        past = cache.get_seq_length() if isinstance(cache, Held) else 0
        columns, pads = past + ids.shape[1], [0] * len(ids)
        if mask is not None:
            if mask.shape != (len(ids), columns):
                return "the attention mask is not one of (rows, columns)"
            pads = _pads(mask)
            if not mask[:, -1].all() or (mask[:, 1:] < mask[:, :-1]).any():
                return "the attention mask hides a token after others"
        if past and pads != cache.pads:
            return "the attention mask changed"
        if columns - min(pads) > self._own.max_context:
            return f"there are more tokens than its context of {self._own.max_context}"
        if positions is None and any(pads):
            return "there is padding without position_ids, which counts as tokens"
        if positions is not None:
            expected = (
                torch.arange(past, columns, dtype=torch.int64, device="cpu")
                - torch.tensor(pads, dtype=torch.int64, device="cpu")[:, None]
            )
            if positions.ndim != 2 or not ((positions == expected) | (expected < 0)).all():
                return "the positions do not count the tokens"
        return ""

    def _changed(self) -> str:
        if self._model.dtype is not torch.float32:
            return f"its numbers are {str(self._model.dtype).removeprefix('torch.')}"
        now, then = _parts_of(self._model), self._as_loaded
        if now == then:
            return ""
        return f"{next(path for path in now | then if now.get(path) != then.get(path))} was changed or replaced"

    # ---- the pass

    def _by_the_kit(self, given, cache):
        ids, mask, own = given["input_ids"], given.get("attention_mask"), self._own
        if self._passes.forget:
            own.trace.clear()
        hidden = [0] * len(ids)
        if cache is None or not cache.get_seq_length():
            hidden = hidden if mask is None else _pads(mask)
            cache = Held.over(cache, own, hidden)
        asked = given.get("logits_to_keep", 0)
        kept = range(ids.shape[1])[-asked:] if isinstance(asked, int) else asked.tolist()
        tokens = [row[skip:] for row, skip in zip(ids.tolist(), hidden, strict=True)]
        wanted = [[column - skip for column in kept if column >= skip] for skip in hidden]
        by_row = self._logits(tokens, cache.rows, wanted)
        if any(hidden):
            by_row = [F.pad(rows, (0, 0, len(kept) - len(rows), 0)) for rows in by_row]
        logits = by_row[0] if len(by_row) == 1 else torch.cat(by_row)  # a megabyte or more: one copy takes as long as a matrix
        use = given.get("use_cache")
        use = cache_of(given) is not None or (self._model.config.use_cache if use is None else use)
        output = CausalLMOutputWithPast(logits=logits.view(len(ids), len(kept), -1), **{CACHE: cache if use else None})
        as_tuple = given.get("return_dict", self._model.config.return_dict) is False
        return output.to_tuple() if as_tuple else output

    def _logits(self, tokens, caches, wanted) -> Sequence[torch.Tensor]:
        """Of each row the logits after its ``wanted`` tokens, (wanted, vocabulary)."""
        own = self._own
        if len(tokens) == 1 or (len(tokens) <= _PLANNED_ROWS and all(len(row) == 1 for row in tokens)):
            by_row = [own.logits(row, min(kept), cache) for row, cache, kept in zip(tokens, caches, wanted, strict=True)]
            whole = all(kept == [*range(min(kept), len(row))] for row, kept in zip(tokens, wanted, strict=True))
            return by_row if whole else [rows[[n - min(kept) for n in kept]] for rows, kept in zip(by_row, wanted, strict=True)]
        starts = itertools.accumulate(map(len, tokens), initial=0)
        index = [start + number for start, kept in zip(starts, wanted) for number in kept]  # noqa: B905
        return own.batch(tokens, caches, torch.tensor(index, dtype=torch.int64, device="cpu")).split(
            [len(kept) for kept in wanted]
        )


def _pads(mask) -> list[int]:
    return (mask.shape[1] - mask.bool().sum(1)).tolist()


def _hooked(model):
    """(path, its dicts of hooks) of every module but the model itself, whose own hooks run anyway."""
    return [(path, [vars(module)[kind] for kind in _HOOKS]) for path, module in model.named_modules() if path]


def _parts_of(model) -> dict[str, object]:
    """What a pass of the kit takes for granted: modules' classes and weights' check sums, or names, by path."""
    parts = {}
    for path, module in model.named_modules():
        if path:
            parts[path] = "another forward" if "forward" in vars(module) else type(module).__qualname__
        for name, weight in module.named_parameters(recurse=False):
            if isinstance(weight, StoredWeight):
                held = *(part.name for part in weight.parts), weight.dtype
            else:
                held = zlib.crc32(weight.detach().contiguous().view(torch.uint8).numpy()), weight.dtype
            parts[f"{path}.{name}"] = held
    return parts
