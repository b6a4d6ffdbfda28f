"""The architectures that the transformer runs, as rows of a table; a file's hyperparameters and needed tensors."""

from dataclasses import dataclass

from kit.errors import ModelError
from kit.gguf.names import layer_of


@dataclass(frozen=True)
class Architecture:
    """What differs between families that share RMSNorm, RoPE, grouped-query attention and SwiGLU.

    ``rope``: which two elements of a head turn together: ``"interleaved"`` (2i and 2i+1; the GGUF converter permutes
    llama's q and k for it) or ``"neox"`` (i and i + half). ``qk_norm``: RMSNorm of every query and key head before
    RoPE. ``scaled``: granite's four multipliers are read from the metadata.
    """

    rope: str = "interleaved"
    qk_norm: bool = False
    scaled: bool = False


# Biases, tied embeddings, sliding windows, RoPE scaling and experts are no columns: the file shows them by its
# tensors and metadata, and any row may have them. Files of Mistral models call themselves llama or mistral.
ARCHITECTURES = {
    "llama": Architecture(),
    "mistral": Architecture(),
    "granite": Architecture(scaled=True),
    "granitemoe": Architecture(scaled=True),
    "qwen2": Architecture(rope="neox"),
    "qwen3": Architecture(rope="neox", qk_norm=True),
    "qwen3moe": Architecture(rope="neox", qk_norm=True),
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions: the angle of pair i at position p is p * base^(-2i / dims), or less in long contexts.

    "linear" divides every frequency by ``factor``; "yarn" (Peng et al. 2023) divides the slow ones, leaves the fast
    ones and blends between; llama 3 brings its divisors as the tensor ``rope_freqs.weight``.
    """

    dims: int  # the first of each head's elements turn; 0: no positions at all
    base: float
    factor: float
    yarn: bool
    original_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class Config:
    """Hyperparameters of one file (keys of the GGUF specification); widths and lengths count elements."""

    architecture: str
    family: Architecture
    vocabulary: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int  # of one expert, where there are experts
    context: int
    norm_eps: float
    rope: RopeConfig
    window: int  # a query sees this many positions, its own included; 0: all
    experts: int  # 0: a dense model
    experts_used: int
    shared_intermediate_size: int  # of the expert that every token passes; 0: none
    embedding_scale: float
    residual_scale: float
    attention_scale: float
    logit_scale: float  # logits are divided by it
    tied: bool  # the output projection is the embedding

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor that a forward pass needs, in the order in which it reads them."""
        q, kv, width = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden_size
        block = {"attn_norm": (width,), "attn_q": (q, width), "attn_k": (kv, width), "attn_v": (kv, width)}
        if self.family.qk_norm:
            block |= {"attn_q_norm": (self.head_dim,), "attn_k_norm": (self.head_dim,)}
        block |= {"attn_output": (width, q), "ffn_norm": (width,)}
        if self.experts:
            block |= {"ffn_gate_inp": (self.experts, width)} | self._ffn(
                "_exps", self.intermediate_size, (self.experts,)
            )
        if self.shared_intermediate_size:
            block |= self._ffn("_shexp", self.shared_intermediate_size)
        if not self.experts:
            block |= self._ffn("", self.intermediate_size)
        shapes = {"token_embd.weight": (self.vocabulary, width)}
        for layer in range(self.layers):
            shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in block.items()}
        shapes["output_norm.weight"] = (width,)
        return shapes if self.tied else shapes | {"output.weight": (self.vocabulary, width)}

    def optional_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of what a file may have besides: biases of the projections, llama 3's RoPE frequencies."""
        biases = {
            name.removesuffix("weight") + "bias": shape[:1]
            for name, shape in self.tensors().items()
            if name.startswith("blk.") and len(shape) == 2 and "gate_inp" not in name
        }
        return biases | {"rope_freqs.weight": (self.rope.dims // 2,)}

    def _ffn(self, suffix, intermediate_size, lead=()):
        into, out = (*lead, intermediate_size, self.hidden_size), (*lead, self.hidden_size, intermediate_size)
        return {f"ffn_gate{suffix}": into, f"ffn_up{suffix}": into, f"ffn_down{suffix}": out}


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

    def _read(self, key, default, kind, wanted):
        key = f"{self.file.architecture}.{key}"
        value = self.file.metadata.get(key, default)
        if value is _REQUIRED:
            raise ModelError(f"{self.file.path}: the metadata key {key!r} is missing; the forward pass needs it")
        if not isinstance(value, (str, int, float)) and len(set(value)) == 1:
            value = value[0]  # one value a layer, all alike
        if not isinstance(value, kind):
            raise ModelError(f"{self.file.path}: the metadata key {key!r} should be {wanted}, it is {value!r:.60}")
        if kind is int and value < (default is _REQUIRED):
            raise ModelError(f"{self.file.path}: the metadata key {key!r} should be at least 1, it is {value}")
        return value


def read_config(file) -> Config:
    """The hyperparameters of ``file`` (a GGUFFile), checked against its tensor table; no tensor data is read.

    Raises ModelError for an architecture that is not in the table, a key that is missing or senseless, and a tensor
    that is missing or of another shape than the keys say.
    """
    family = ARCHITECTURES.get(file.architecture)
    if family is None:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{file.path}: architecture {file.architecture!r} is not supported; the kit runs {known}")
    keys = _Keys(file)
    hidden_size, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", hidden_size // heads)
    experts = keys.count("expert_count", 0)
    expert_width = keys.count("expert_feed_forward_length", 0) if experts else 0
    positions = keys.flag("rope.scaling.finetuned", True) or not family.scaled  # granite's "no positions" is this flag
    embedding = file.tensors.get("token_embd.weight")

    def multiplier(key, default):
        return keys.number(key, 0) or default if family.scaled else default  # 0 is "none", as in llama.cpp

    config = Config(
        architecture=file.architecture,
        family=family,
        vocabulary=embedding.shape[0] if embedding else 0,
        layers=keys.count("block_count"),
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=keys.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=expert_width or keys.count("feed_forward_length"),
        context=keys.count("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(file, keys, keys.count("rope.dimension_count", head_dim) if positions else 0),
        window=keys.count("attention.sliding_window", 0),
        experts=experts,
        experts_used=keys.count("expert_used_count") if experts else 0,
        shared_intermediate_size=keys.count("expert_shared_feed_forward_length", 0),
        embedding_scale=multiplier("embedding_scale", 1.0),
        residual_scale=multiplier("residual_scale", 1.0),
        attention_scale=multiplier("attention.scale", head_dim**-0.5),
        logit_scale=multiplier("logit_scale", 1.0),
        tied="output.weight" not in file.tensors,
    )
    _check(file, config, keys.count("attention.value_length", head_dim), keys.count("expert_gating_func", 0))
    return config


def _rope(file, keys, dims) -> RopeConfig:
    scaling = keys.text("rope.scaling.type", "linear")  # with a factor of 1 unless the file has one
    if scaling not in ("none", "linear", "yarn"):
        raise ModelError(f"{file.path}: RoPE scaling {scaling!r} is not supported; the kit knows none, linear, yarn")
    factor = keys.number("rope.scaling.factor", 0) or keys.number("rope.scale_linear", 0) or 1.0  # the old key
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


def _check(file, config, value_dim, gating):
    for sound, problem in (
        (gating in (0, 1), f"experts chosen by function {gating} where softmax (1) was expected"),
        (value_dim == config.head_dim, f"values of {value_dim} elements and keys of {config.head_dim}"),
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
