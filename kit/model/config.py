"""The hyperparameters of a file, and its tensors in the order in which a forward pass reads them."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from kit.errors import ModelError
from kit.gguf.names import layer_of
from kit.gguf.summary import NO_WEIGHTS, check_blocks
from kit.model.architectures import ARCHITECTURES, Architecture


@dataclass(frozen=True)
class RopeConfig:
    """RoPE: pair i of a head is rotated by p * base^(-2i / dims) at position p; long contexts scale these frequencies.

    Linear scaling divides all frequencies by ``factor``; yarn (Peng et al. 2023) divides the low ones, keeps the high ones
    and blends between; llama 3 stores divisors in the tensor ``rope_freqs.weight``.
    """

    dims: int  # number of elements of each head that are rotated, from the first; 0: no RoPE
    base: float
    factor: float
    yarn: bool
    original_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class Config:
    """Hyperparameters of one file; sizes count elements."""

    architecture: str
    family: Architecture
    vocabulary: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int  # of one expert in a mixture of experts
    context: int
    norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig  # of the layers with a window
    window: int  # positions that a query of a local layer attends to, its own included; 0: all
    local: tuple[bool, ...]  # for each layer, whether it has the window
    experts: int  # 0: a dense model
    experts_used: int
    shared_intermediate_size: int  # of the expert that all tokens use; 0: none
    embedding_scale: float
    residual_scale: float
    attention_scale: float
    attention_cap: float  # scores s become cap * tanh(s / cap); 0: none
    logit_scale: float  # logits are divided by it
    logit_cap: float
    tied: bool  # the output projection is the embedding

    def window_of(self, layer: int) -> int:
        """Positions that a query of this layer attends to; 0: all."""
        return self.window if self.local[layer] else 0

    def rope_of(self, layer: int) -> RopeConfig | None:
        """RoPE of this layer; None: it has none."""
        every = self.family.no_rope_every
        if every and (layer + 1) % every == 0:
            return None
        return self.local_rope if self.local[layer] else self.rope

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor that a forward pass needs, in the order in which it reads them."""
        return {name: shape for name, shape, needed in self.layout() if needed}

    def optional_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of tensors that a file may also have: biases of the projections, llama 3's RoPE divisors."""
        return {name: shape for name, shape, needed in self.layout() if not needed}

    def order_of_use(self, names: Collection[str]) -> list[str]:
        """Those of ``names`` that each token reads whole, in order of use.

        The embedding is the last if it is the output projection, else it is left out, since a token reads one row of it.
        An expert's matrices (``stack[3]``) follow one another.
        """
        order = [name for name, *_ in self.layout() if name.startswith(("blk.", "output"))]
        place = {name: at for at, name in enumerate(order + ["token_embd.weight"] * self.tied)}

        def when(name):
            stack, _, expert = name.removesuffix("]").partition("[")
            router = stack.partition("ffn_")[0] + "ffn_gate_inp.weight" if "_exps." in stack else stack
            return place.get(router, -1), int(expert or 0), place.get(stack, -1)

        return sorted((name for name in names if when(name)[2] >= 0), key=when)

    def layout(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """(name, shape, whether it is required) of all tensors, in order of use."""
        yield "token_embd.weight", (self.vocabulary, self.hidden_size), True
        yield "rope_freqs.weight", (self.rope.dims // 2,), False
        for layer in range(self.layers):
            for part, shape in self._block():
                yield f"blk.{layer}.{part}.weight", shape, True
                if len(shape) > 1:
                    yield f"blk.{layer}.{part}.bias", shape[:-1], False
        yield "output_norm.weight", (self.hidden_size,), True
        if not self.tied:
            yield "output.weight", (self.vocabulary, self.hidden_size), True

    def _block(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(part, shape) of the weights of a block, in order of use."""
        hidden, family, head_dim = self.hidden_size, self.family, self.head_dim
        q, kv = self.heads * head_dim, self.kv_heads * head_dim
        before_attention, after_attention, before_ffn, after_ffn = family.norms
        if before_attention:
            yield before_attention, (hidden,)
        if family.fused:
            yield "attn_qkv", (q + 2 * kv, hidden)
        else:
            yield from (("attn_q", (q, hidden)), ("attn_k", (kv, hidden)), ("attn_v", (kv, hidden)))
        if family.qk_norm:
            each = family.qk_norm == "head"
            yield from (("attn_q_norm", (head_dim if each else q,)), ("attn_k_norm", (head_dim if each else kv,)))
        if family.sinks:
            yield "attn_sinks", (self.heads,)
        yield "attn_output", (hidden, q)
        yield from ((norm, (hidden,)) for norm in (after_attention, before_ffn) if norm)
        if self.experts:
            yield "ffn_gate_inp", (self.experts, hidden)
            yield from self._ffn("_exps", self.intermediate_size, (self.experts,))
        if self.shared_intermediate_size:
            yield from self._ffn("_shexp", self.shared_intermediate_size)
        if not self.experts:
            yield from self._ffn("", self.intermediate_size)
        if after_ffn:
            yield after_ffn, (hidden,)

    def _ffn(self, suffix, size, stack=()):
        if self.family.fused:
            yield f"ffn_up{suffix}", (*stack, 2 * size, self.hidden_size)
        else:
            yield from ((f"ffn_{part}{suffix}", (*stack, size, self.hidden_size)) for part in ("gate", "up"))
        yield f"ffn_down{suffix}", (*stack, self.hidden_size, size)


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
    check_blocks(file)
    if not any(info.elements for info in file.tensors.values()):
        raise ModelError(f"{file.path}: {NO_WEIGHTS}")
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
    layers, hidden_size = keys.count("block_count"), keys.count("embedding_length")
    heads = keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", hidden_size // heads)
    experts = keys.count("expert_count", 0)
    expert_size = keys.count("expert_feed_forward_length", 0) if experts else 0
    positions = keys.flag("rope.scaling.finetuned", True) or not family.scaled  # granite without RoPE sets it to false
    rope = _rope(file, keys, keys.count("rope.dimension_count", head_dim) if positions else 0)
    local_base = keys.number("rope.freq_base_swa", family.local_base) or rope.base
    window = keys.count("attention.sliding_window", 0)
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
        kv_heads=keys.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=expert_size or keys.count("feed_forward_length"),
        context=keys.count("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        local_rope=replace(rope, base=local_base, **stretch),
        window=window,
        local=keys.local(family.period, layers) if window else (False,) * layers,
        experts=experts,
        experts_used=keys.count("expert_used_count") if experts else 0,
        shared_intermediate_size=keys.count("expert_shared_feed_forward_length", 0),
        embedding_scale=multiplier("embedding_scale", math.sqrt(hidden_size) if family.root_scaled else 1.0),
        residual_scale=multiplier("residual_scale", 1.0),
        attention_scale=multiplier(
            "attention.scale", (hidden_size / heads if layers == family.hidden_scaled else head_dim) ** -0.5
        ),
        attention_cap=keys.number("attn_logit_softcapping", family.soft_caps[0]),
        logit_scale=multiplier("logit_scale", 1.0),
        logit_cap=keys.number("final_logit_softcapping", family.soft_caps[1]),
        tied=tied,
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
    keys = _Keys(file)
    value_dim, gating = keys.count("attention.value_length", config.head_dim), keys.count("expert_gating_func", 0)
    for sound, problem in (
        (gating in (0, 1, 3), f"experts are chosen by gating function {gating}, expected softmax (1)"),
        (value_dim == config.head_dim, f"values have {value_dim} elements, but keys {config.head_dim}"),
        (config.kv_heads and config.heads % config.kv_heads == 0, f"{config.heads} heads, {config.kv_heads} KV heads"),
        (config.rope.dims % 2 == 0 and config.rope.dims <= config.head_dim, f"RoPE over {config.rope.dims} elements"),
        (config.experts_used <= config.experts, f"{config.experts_used} of {config.experts} experts a token"),
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
