"""gemma4-assistant: a drafter in a file of its own, whose layers attend to what its model has written of a sequence.

It has no memory. A step takes a token's row of the model's embedding beside the model's state before that token, and gives
logits and the state for the next step, at the same position: nothing is written there before the model verifies the draft.
"""

from dataclasses import replace
from pathlib import Path

import torch

from kit.errors import ModelError
from kit.model.architectures import ARCHITECTURES, SIDECARS
from kit.model.config import Config, SidecarConfig
from kit.model.drafter import Drafter
from kit.model.hyperparameters import Facts, check_tensors
from kit.model.keys import MAX_LAYERS, ModelKeys
from kit.model.kvcache import SequenceCache, state_of
from kit.model.layers.kind import Before
from kit.model.transformer import Transformer
from kit.model.weights import Weights


def sidecar_config(file, model: Config) -> SidecarConfig:
    """The hyperparameters of an open file that drafts for a model. ModelError for one that was made for another model."""
    keys, family = ModelKeys(file), ARCHITECTURES[SIDECARS[file.architecture]]
    wide, embedding = keys.count("embedding_length_out"), file.tensors.get("token_embd.weight")
    if wide != model.hidden_size:
        raise ModelError(f"{file.path}: it drafts for a model with states of {wide} elements, not of {model.hidden_size}")
    facts = Facts(file, family, embedding.shape[0] if embedding else 0, heads=keys.count("block_count", most=MAX_LAYERS))
    layers = [facts.layer(number) for number in range(facts.count)]
    sources = tuple(_source(file, layer.mixer, model) for layer in layers)
    config = SidecarConfig(
        architecture=file.architecture,
        family=family,
        vocabulary=facts.vocabulary,
        layers=tuple(layer._replace(mixer=_to_others(layer.mixer), per_layer=None) for layer in layers),
        hidden_size=facts.hidden_size,
        context=keys.count("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        embedding_scale=1.0,
        residual_scale=1.0,
        logit_scale=1.0,
        logit_cap=0.0,
        tied=True,
        wide=wide,
        sources=sources,
    )
    check_tensors(file, config, "the drafter")
    return config


def _to_others(mixer):
    return replace(mixer, source=0, window=0, chunks=Before(mixer.window))


def _source(file, mixer, model: Config) -> int:
    """The model's layer to whose keys and values one attends: the last with a window, or without one."""
    alike = [number for number, layer in enumerate(model.layers) if bool(layer.mixer.window) == bool(mixer.window)]
    sizes = [(each.kv_heads, each.head_dim) for each in (mixer, *(model.layers[number].mixer for number in alike[-1:]))]
    if len(set(sizes)) > 1 or not alike:
        raise ModelError(f"{file.path}: it drafts for a model whose last layers have {mixer.said}, which this one has not")
    return alike[-1]


class _Beside(SequenceCache):
    """What a model holds of a sequence, for a drafter that reads it. ``given``: what the next step reads of its token;
    ``left``: the state after it."""

    def __init__(self, model: SequenceCache, sources):
        super().__init__([model.states[source] for source in sources], model.context, model.dtype)
        self.given = self.left = None
        self.kept = model.kept

    def before(self, tokens):
        return self.given

    def keep(self, state, tokens):
        self.left = state.clone()


class SidecarModel(Transformer):
    """The layers of such a file; ``step`` takes a cache of ``beside`` alone."""

    def __init__(self, file, model: Transformer, linear="fused-int8"):
        self.reads = lambda file: sidecar_config(file, model.config)
        super().__init__(Weights(file), linear=linear)

    def new_cache(self, context=None):
        context = context or self.max_context
        states = [state_of(layer.mixer, context, self.kv_dtype) for layer in self.config.layers]
        return SequenceCache(states, context, self.kv_dtype)

    def beside(self, cache: SequenceCache) -> SequenceCache:
        """What a model's cache holds, as this one reads it."""
        return _Beside(cache, self.config.sources)


class Sidecar(Drafter):
    """Such a file as a drafter for ``model``. ModelError where it is made for another."""

    def __init__(self, model: Transformer, file, linear="fused-int8"):
        self._target, self._model, self._cache, self._held = model, SidecarModel(file, model, linear), None, None
        self.name, self.settled = Path(str(file.path)).name, False
        self.nbytes = sum(file.tensors[name].nbytes for name in self._model.config.tensors())

    def follow(self, model, cache):
        cache.keep_states(model.config.hidden_size)
        self._before = cache.length  # positions of earlier turns, of which ``propose`` is given no tokens
        if self._held is not cache:
            self._held, self._cache, self._ready = cache, self._model.beside(cache), False

    def propose(self, tokens, count, sampler):
        held, cache, drafted, chances = self._before + len(tokens) - 1, self._cache, [], []
        if held + 1 > self._model.max_context:
            return [], []
        token, state = tokens[-1], self._held.kept[held]
        for _ in range(count):
            cache.length, cache.given = held, torch.cat([self._embedded(token), state])[None]
            logits = self._model.step([token], cache)
            chance = None if sampler.temperature == 0 else sampler.chances(logits)
            token, state = int(logits.argmax()) if chance is None else sampler.draw(chance), cache.left[-1]
            drafted.append(token)
            chances.append(chance)
        self.settled, self._ready = self._ready, True
        return drafted, chances

    def _embedded(self, token):
        """The token's row of the model's embedding, as the model reads it."""
        rows = self._target.weights.rows("token_embd.weight", torch.tensor([token], dtype=torch.int64, device="cpu"))
        return rows[0].float() * self._target.config.embedding_scale
