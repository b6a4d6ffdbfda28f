"""The hyperparameters of a file from its metadata, checked against its table of tensors."""

import math
from dataclasses import replace

from kit.errors import ModelError
from kit.gguf.names import layer_of
from kit.gguf.summary import check_model
from kit.model.architectures import ARCHITECTURES
from kit.model.config import Config, Latent, RopeConfig, Routing

_REQUIRED = object()


class _Keys:
    """Typed reads of ``<architecture>.<key>`` from a file's metadata."""

    def __init__(self, file):
        self.file = file

    def count(self, key, default=_REQUIRED) -> int:
        return self._read(key, default, int, "a count")

    def number(self, key, default=_REQUIRED) -> float:
        return float(self._read(key, default, (int, float), "a number"))

    def flag(self, key, default=_REQUIRED) -> bool:
        return self._read(key, default, bool, "true or false")

    def text(self, key, default=_REQUIRED) -> str:
        return self._read(key, default, str, "text")

    def local(self, period: int, layers: int) -> tuple[bool, ...]:
        """For each layer, whether it has the window: by the file's list of flags, its period, or the family's period."""
        found = self.file.metadata.get(f"{self.file.architecture}.attention.sliding_window_pattern", period)
        if not isinstance(found, int) and len(found) == layers:
            return tuple(map(bool, found))
        period = self.count("attention.sliding_window_pattern", period)
        return tuple(period == 0 or layer % period < period - 1 for layer in range(layers))

    def _read(self, key, default, kind, wanted):
        key = f"{self.file.architecture}.{key}"
        value = self.file.metadata.get(key, default)
        if value is _REQUIRED:
            raise ModelError(f"{self.file.path}: the metadata key {key!r} is missing; the forward pass needs it")
        if not isinstance(value, (str, int, float)) and len(set(value)) == 1:
            value = value[0]  # a list with the same value for each layer
        if not isinstance(value, kind):
            raise ModelError(f"{self.file.path}: the metadata key {key!r} should be {wanted}, it is {value!r:.60}")
        if kind is int and value < (default is _REQUIRED):
            raise ModelError(f"{self.file.path}: the metadata key {key!r} should be at least 1, it is {value}")
        return value


def read_config(file) -> Config:
    """The hyperparameters of ``file`` (a GGUFFile), checked against its tensor table; no tensor data is read.

    Raises ModelError for an unknown architecture, a missing or invalid key, and a tensor that is missing or whose shape
    contradicts the keys.
    """
    check_model(file)
    embedding = file.tensors.get("token_embd.weight")
    config = described_config(file, embedding.shape[0] if embedding else 0, "output.weight" not in file.tensors)
    _check(file, config)
    return config


def described_config(file, vocabulary: int, tied: bool) -> Config:
    """The Config from ``file.architecture`` and ``file.metadata`` alone; the file need not exist yet."""
    family = ARCHITECTURES.get(file.architecture)
    if family is None:
        raise ModelError(
            f"{file.path}: architecture {file.architecture!r} is not supported; the kit runs {', '.join(ARCHITECTURES)}; "
            "kit explain works on any file"
        )
    keys = _Keys(file)
    if family.qk_norm == "stored":
        stored = "blk.0.attn_q_norm.weight" in getattr(file, "tensors", ())
        family = replace(family, qk_norm="head" if stored else "")
    layers = keys.count("block_count") - keys.count("nextn_predict_layers", 0)  # those predict further tokens
    hidden_size, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    kv_heads, head_dim = keys.count("attention.head_count_kv", heads), keys.count("attention.key_length", hidden_size // heads)
    experts = keys.count("expert_count", 0)
    expert_size = keys.count("expert_feed_forward_length", 0) if experts else 0
    positions = keys.flag("rope.scaling.finetuned", True) or not family.scaled  # granite without RoPE sets it to false
    rope = _rope(file, keys, keys.count("rope.dimension_count", head_dim) if positions else 0)
    local_base = keys.number("rope.freq_base_swa", family.local_base) or rope.base
    window = keys.count("attention.sliding_window", 0)
    latent, sharper = _latent(keys, head_dim, rope.dims) if family.latent else None, 1.0
    if latent:
        kv_heads, head_dim = (1, latent.rank + rope.dims) if latent.absorbed else (heads, latent.plain + rope.dims)
        rope, sharper = _sharpened(keys, rope)
    width = latent.plain + rope.dims if latent else head_dim  # of a query before absorption
    dense, step = keys.count("leading_dense_block_count", 0), keys.count("interleave_moe_layer_step", 1)
    stretch = {} if family.local_scaled else {"factor": 1.0, "yarn": False, "attention_factor": 1.0}

    def multiplier(key, default):
        return keys.number(key, 0) or default if family.scaled else default  # 0 means none, as in llama.cpp

    return Config(
        architecture=file.architecture,
        family=family,
        vocabulary=vocabulary,
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=expert_size or keys.count("feed_forward_length"),
        dense_size=keys.count("feed_forward_length", expert_size),
        context=keys.count("context_length"),
        norm_eps=keys.number(f"attention.layer_norm_{'' if family.layer_norm else 'rms_'}epsilon"),
        rope=rope,
        local_rope=replace(rope, base=local_base, **stretch),
        window=window,
        local=keys.local(family.period, layers) if window else (False,) * layers,
        experts=experts,
        latent=latent,
        mixtures=tuple(experts > 0 and layer >= dense and (layer + 1) % step == 0 for layer in range(layers)),
        routing=_routing(keys, family, experts),
        shared_intermediate_size=keys.count("expert_shared_feed_forward_length", 0)
        or keys.count("expert_shared_count", 0) * expert_size,
        embedding_scale=multiplier("embedding_scale", math.sqrt(hidden_size) if family.root_scaled else 1.0),
        residual_scale=multiplier("residual_scale", 1.0),
        attention_scale=multiplier(
            "attention.scale", sharper * (hidden_size / heads if layers == family.hidden_scaled else width) ** -0.5
        ),
        attention_cap=keys.number("attn_logit_softcapping", family.soft_caps[0]),
        logit_scale=1 / (keys.number("logit_scale", 0) or 1.0) if family.logits_multiplied else multiplier("logit_scale", 1.0),
        qkv_limit=keys.number("attention.clamp_kqv", 0),
        logit_cap=keys.number("final_logit_softcapping", family.soft_caps[1]),
        tied=tied,
    )


def _latent(keys, key_length, turned) -> Latent:
    """Files of 2025 and later have the sizes of a head as ``_mla``, for there the latent stands as the one head."""
    absorbed = keys.count("attention.key_length_mla", 0) > 0
    ending = "_mla" if absorbed else ""
    return Latent(
        rank=keys.count("attention.kv_lora_rank"),
        query_rank=keys.count("attention.q_lora_rank", 0),
        plain=keys.count(f"attention.key_length{ending}", key_length) - turned,
        value=keys.count(f"attention.value_length{ending}"),
        absorbed=absorbed,
    )


def _sharpened(keys, rope) -> tuple[RopeConfig, float]:
    """(RoPE, factor of the scores) of DeepSeek's YaRN: what others multiply the rotated vectors by multiplies all scores."""
    if not rope.yarn:
        return rope, 1.0
    grown, multiplier = math.log(rope.factor), keys.number("rope.scaling.yarn_log_multiplier", 0)
    if multiplier:
        rope = replace(rope, attention_factor=rope.attention_factor / (1 + 0.1 * grown))
    length = rope.attention_factor * (1 + 0.1 * grown)
    return rope, (length * (1 + multiplier * grown)) ** 2


def _routing(keys, family, experts) -> Routing:
    return Routing(
        used=keys.count("expert_used_count") if experts else 0,
        sigmoid=(keys.count("expert_gating_func", 0) or family.gating) == 2,
        normed=family.normed or keys.flag("expert_weights_norm", False),
        scale=keys.number("expert_weights_scale", 0) or 1.0,
        groups=keys.count("expert_group_count", 0) or 1,
        groups_used=keys.count("expert_group_used_count", 0) or 1,
    )


def _rope(file, keys, dims) -> RopeConfig:
    scaling = keys.text("rope.scaling.type", "linear")  # with factor 1 if the file has no factor
    if scaling not in ("none", "linear", "yarn"):
        raise ModelError(f"{file.path}: RoPE scaling {scaling!r} is not supported; the kit knows none, linear, yarn")
    factor = keys.number("rope.scaling.factor", 0) or keys.number("rope.scale_linear", 0) or 1.0  # old files: scale_linear
    return RopeConfig(
        dims=dims,
        base=keys.number("rope.freq_base", 10000.0),
        factor=1.0 if scaling == "none" else factor,
        yarn=scaling == "yarn",
        original_context=keys.count("rope.scaling.original_context_length", keys.count("context_length")),
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _check(file, config):
    keys, routing = _Keys(file), config.routing
    value_dim, gating = keys.count("attention.value_length", config.head_dim), keys.count("expert_gating_func", 0)
    for sound, problem in (
        (gating in (0, 1, 2, 3), f"experts are chosen by gating function {gating}, expected softmax (1) or sigmoid (2)"),
        (config.latent or value_dim == config.head_dim, f"values have {value_dim} elements, but keys {config.head_dim}"),
        (config.kv_heads and config.heads % config.kv_heads == 0, f"{config.heads} heads, {config.kv_heads} KV heads"),
        (config.rope.dims % 2 == 0 and config.rope.dims <= config.head_dim, f"RoPE over {config.rope.dims} elements"),
        (routing.used <= config.experts, f"{routing.used} of {config.experts} experts a token"),
        (config.experts % routing.groups == 0, f"{config.experts} experts in {routing.groups} groups"),
    ):
        if not sound:
            raise ModelError(f"{file.path}: {problem}: the kit cannot run such a {config.architecture} model")
    needed = config.tensors()
    known = needed | config.optional_tensors()
    for name in file.tensors:
        if name not in known and 0 <= layer_of(name) < config.layers:
            message = f"the tensor {name!r} has no place in a {config.architecture} model that the kit can run"
            raise ModelError(f"{file.path}: {message}; ignoring it would give wrong logits")
    for name, shape in known.items():
        tensor = file.tensors.get(name)
        if tensor is None and name in needed:
            raise ModelError(f"{file.path}: the tensor {name!r} is missing; expected shape {shape}")
        if tensor is not None and tensor.shape != shape:
            raise ModelError(f"{file.path}: the tensor {name!r} has shape {tensor.shape}; expected {shape}")
