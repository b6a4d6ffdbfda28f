"""Model geometries as rows of one table, and quantization mixes as rules: a model's tensors and their types.

Hyperparameters are those of each model's published config.json; the rules are those of llama.cpp's ``llama-quantize``.
"""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from kit.errors import ModelError, known
from kit.gguf.formats import DTYPES, FORMATS
from kit.gguf.reader import TensorInfo
from kit.lab.synthetic.vocabulary import Vocabulary
from kit.model.config import Config
from kit.model.hyperparameters import described_config
from kit.model.keys import MAX_LAYERS
from kit.model.layers import KINDS


class Scaling(NamedTuple):
    """RoPE scaling of Llama 3.1: wavelengths above ``context / low`` grow by ``factor``, those below ``context / high``
    stay, those between are blended."""

    factor: float
    low: float
    high: float
    context: int

    def factors(self, base: float, head_dim: int) -> np.ndarray:
        """The divisor of each frequency, float32 (head_dim / 2): the tensor ``rope_freqs.weight``."""
        wavelength = 2 * np.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
        blend = np.clip((self.context / wavelength - self.low) / (self.high - self.low), 0, 1)
        return (1 / ((1 - blend) / self.factor + blend)).astype(np.float32)


@dataclass(frozen=True)
class Geometry:
    """Everything in a model's GGUF file except its weights. The list of tensors follows from the architecture's row.

    ``more``: further metadata keys of the architecture ("embedding_scale", "expert_count", ...); with "expert_count",
    ``intermediate_size`` is that of one expert. ``biases``: the matrices that have a bias ("attn_q", ...).
    """

    name: str
    architecture: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    vocabulary: Vocabulary
    rope_base: float = 10_000.0
    epsilon: float = 1e-5
    tied: bool = False
    biases: tuple[str, ...] = ()
    more: dict[str, float | list[int]] = field(default_factory=dict)
    rope_scaling: Scaling | None = None

    def tensors(self, mix: str = "Q4_K_M", layers: int | None = None) -> list[TensorInfo]:
        """All tensors in order of use, with the types that llama.cpp would choose for ``mix``.

        ``layers`` replaces the model's own number. Raises ModelError for an unknown mix or a bad number of layers.
        """
        rule = known("mix", mix, MIXES, ModelError)
        layers = self.layers if layers is None else layers
        if not 1 <= layers <= MAX_LAYERS:
            raise ModelError(f"{self.name}: {layers} layers are not possible: give 1 to {MAX_LAYERS}")
        config = self.config(layers)
        head = "token_embd.weight" if self.tied else "output.weight"
        return [
            TensorInfo.new(name, _qtype(rule, name, shape, name == head, layers), shape)
            for name, shape, needed in config.layout()
            if needed or self._has(name)
        ]

    def config(self, layers: int | None = None) -> Config:
        """The Config that a transformer reads from such a file."""
        described = SimpleNamespace(path=self.name, architecture=self.architecture, metadata=self._hyperparameters(layers))
        return described_config(described, self.vocabulary.size, self.tied)

    def _has(self, name: str) -> bool:
        """Whether the model has this optional tensor of its architecture."""
        if name == "rope_freqs.weight":
            return self.rope_scaling is not None
        return name.split(".")[-2] in self.biases

    def _hyperparameters(self, layers: int | None) -> dict:
        own = {
            "block_count": self.layers if layers is None else layers,
            "context_length": self.context,
            "embedding_length": self.hidden_size,
            "feed_forward_length": self.intermediate_size,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": self.epsilon,
            "rope.dimension_count": self.head_dim,
            "rope.freq_base": self.rope_base,
            "vocab_size": self.vocabulary.size,
            **self.more,
        }
        return {f"{self.architecture}.{key}": value for key, value in own.items()}

    def metadata(self, mix: str = "Q4_K_M", layers: int | None = None) -> dict:
        """Metadata of the file, tokenizer included."""
        return {
            "general.architecture": self.architecture,
            "general.type": "model",
            "general.name": f"{self.name} (random weights)",
            "general.file_type": MIXES[mix].file_type,
            "general.quantization_version": 2,
            **self._hyperparameters(layers),
            **self.vocabulary.metadata(),
        }


class Mix(NamedTuple):
    """The types of one ``llama-quantize`` mix: of plain matrices, of the output head, and of attn_v and ffn_down in the
    layers that get more bits. ``file_type`` is llama.cpp's number for the mix."""

    file_type: int
    matrix: str
    head: str
    more_bits: str


MIXES = {
    "F32": Mix(0, "F32", "F32", "F32"),
    "F16": Mix(1, "F16", "F16", "F16"),
    "BF16": Mix(32, "BF16", "BF16", "BF16"),
    "Q8_0": Mix(7, "Q8_0", "Q8_0", "Q8_0"),
    "Q4_0": Mix(2, "Q4_0", "Q6_K", "Q4_0"),
    "Q4_K_M": Mix(15, "Q4_K", "Q6_K", "Q6_K"),
}
_SENSITIVE = ("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight")
_FLOATS = ("_norm.weight", *(name for kind in KINDS for name in kind.floats))
_FALLBACK = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # for rows that are not whole super-blocks


def use_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's rule: the first and the last eighth of the layers, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _qtype(mix: Mix, name: str, shape: tuple[int, ...], is_head: bool, layers: int) -> str:
    if len(shape) == 1 or not name.endswith(".weight") or name.endswith(_FLOATS):
        return "F32"
    qtype = mix.head if is_head else mix.matrix
    if name.endswith(_SENSITIVE) and use_more_bits(int(name.split(".")[1]), layers):
        qtype = mix.more_bits
    while shape[-1] % FORMATS[qtype].block_elements:
        qtype = _FALLBACK.get(qtype, "F16")
    return qtype


_GRANITE = Vocabulary("gpt2", "refact", 49159, {0: "<|end_of_text|>"}, bos=0, eos=0)
_LLAMA2 = Vocabulary("llama", "default", 32000, {0: "<unk>", 1: "<s>", 2: "</s>"}, bos=1, eos=2, add_bos=True)
_LLAMA3 = Vocabulary(
    "gpt2", "llama-bpe", 128256, {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>"}, 128000, 128001, add_bos=True
)
_QWEN = Vocabulary(
    "gpt2", "qwen2", 151936, {151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"}, 151643, 151645
)
_QWEN35 = replace(_QWEN, pre="qwen35", size=248320, bos=248044, eos=248046, special={
    248044: "<|endoftext|>", 248045: "<|im_start|>", 248046: "<|im_end|>"
})  # fmt: skip
_GEMMA3 = Vocabulary("llama", "default", 262144, {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>"}, bos=2, eos=1, add_bos=True)
_GEMMA2 = replace(_GEMMA3, size=256000)
_PHI3 = replace(_LLAMA2, size=32064, special=_LLAMA2.special | {32000: "<|endoftext|>"}, eos=32000)
_OLMO2 = Vocabulary("gpt2", "dbrx", 100352, {100257: "<|endoftext|>"}, 100257, 100257)
_SMOLLM3 = Vocabulary("gpt2", "smaug-bpe", 128256, {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>"}, 128000, 128001)
_DEEPSEEK = Vocabulary("gpt2", "deepseek-llm", 102400, {100000: "<|begin of sentence|>", 100001: "<|end of sentence|>"},
                       100000, 100001, add_bos=True)  # fmt: skip
_GPT_OSS = Vocabulary("gpt2", "gpt-4o", 201088, {199998: "<|startoftext|>", 199999: "<|endoftext|>"}, 199998, 199999)


def _granite_scales(attention: float, logit: float) -> dict[str, float]:
    return {"attention.scale": attention, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": logit}


_LLAMA31_SCALING = Scaling(factor=8.0, low=1.0, high=4.0, context=8192)

_GPT_OSS_KEYS = {
    "expert_count": 32, "expert_used_count": 4, "expert_feed_forward_length": 2880, "attention.sliding_window": 128,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096,
}  # fmt: skip
_DEEPSEEK_KEYS = {
    "leading_dense_block_count": 1, "expert_count": 64, "expert_used_count": 6, "expert_feed_forward_length": 1408,
    "expert_shared_count": 2, "expert_weights_scale": 1.0, "expert_gating_func": 1, "rope.dimension_count": 64,
    "attention.kv_lora_rank": 512, "attention.key_length": 576, "attention.value_length": 512,
    "attention.key_length_mla": 192, "attention.value_length_mla": 128, "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_log_multiplier": 0.0707,
}  # fmt: skip
_QWEN35_KEYS = {
    "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 4, "ssm.conv_kernel": 4,
    "ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 16, "ssm.inner_size": 2048,
}  # fmt: skip
_ATTENTION_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output")
_EXPERT_BIASES = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")

_PUBLISHED = (
    Geometry("granite-3.3-8b", "granite", 40, 4096, 12800, 32, 8, 128, 131072, _GRANITE, 1e7, tied=True,
             more=_granite_scales(0.0078125, 16.0)),
    Geometry("granite-3.3-2b", "granite", 40, 2048, 8192, 32, 8, 64, 131072, _GRANITE, 1e7, tied=True,
             more=_granite_scales(0.015625, 8.0)),
    Geometry("tinyllama-1.1b", "llama", 22, 2048, 5632, 32, 4, 64, 2048, _LLAMA2),
    Geometry("llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 131072, _LLAMA3, 5e5,
             rope_scaling=_LLAMA31_SCALING),
    Geometry("qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 32768, _QWEN, 1e6, 1e-6, tied=True,
             biases=_ATTENTION_BIASES[:3]),
    Geometry("qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 40960, _QWEN, 1e6, 1e-6, tied=True),
    Geometry("qwen3.5-2b", "qwen35", 24, 2048, 6144, 8, 2, 256, 262144, _QWEN35, 1e7, 1e-6, tied=True, more=_QWEN35_KEYS),
    Geometry("qwen3-30b-a3b", "qwen3moe", 48, 2048, 768, 32, 4, 128, 40960, _QWEN, 1e6, 1e-6,
             more={"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768}),
    Geometry("gemma-3-1b", "gemma3", 26, 1152, 6912, 4, 1, 256, 32768, _GEMMA3, 1e6, 1e-6, tied=True,
             more={"attention.sliding_window": 512}),
    Geometry("gemma-2-2b", "gemma2", 26, 2304, 9216, 8, 4, 256, 8192, _GEMMA2, epsilon=1e-6, tied=True,
             more={"attention.sliding_window": 4096}),
    Geometry("phi-3-mini-4k", "phi3", 32, 3072, 8192, 32, 32, 96, 4096, _PHI3, more={"attention.sliding_window": 2047}),
    Geometry("olmo-2-1b", "olmo2", 16, 2048, 8192, 16, 16, 128, 4096, _OLMO2, 5e5, 1e-6),
    Geometry("smollm3-3b", "smollm3", 36, 2048, 11008, 16, 4, 128, 65536, _SMOLLM3, 5e6, 1e-6, tied=True),
    Geometry("gpt-oss-20b", "gpt-oss", 24, 2880, 2880, 64, 8, 64, 131072, _GPT_OSS, 1.5e5, more=_GPT_OSS_KEYS,
             biases=_ATTENTION_BIASES + _EXPERT_BIASES),
    Geometry("deepseek-v2-lite", "deepseek2", 27, 2048, 10944, 16, 1, 576, 163840, _DEEPSEEK, epsilon=1e-6,
             more=_DEEPSEEK_KEYS),
)  # fmt: skip


def _tiny(of: str, name: str = "", more: dict | None = None, **changes) -> Geometry:
    """The family of a published model at a size for tests: 2 layers of 256, 4 heads and 2 KV heads of 64, 512 tokens."""
    model = next(row for row in _PUBLISHED if row.name == of)
    special = dict(enumerate(model.vocabulary.special.values()))
    ids = {text: token for token, text in special.items()}
    vocabulary = replace(
        model.vocabulary, size=512, special=special,
        bos=ids[model.vocabulary.special[model.vocabulary.bos]], eos=ids[model.vocabulary.special[model.vocabulary.eos]],
    )  # fmt: skip
    sizes = dict(layers=2, hidden_size=256, intermediate_size=512, heads=4, kv_heads=2, head_dim=64, context=2048)
    changes = sizes | {"name": name or f"tiny-{model.architecture}", "vocabulary": vocabulary} | changes
    return replace(model, **changes, more=model.more | (more or {}))


_EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}
_TINY_DEEPSEEK = _EXPERTS | {  # as in V3: sigmoid routing with a bias and groups, a latent of queries
    "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 4,
    "expert_group_used_count": 2, "rope.dimension_count": 32, "attention.q_lora_rank": 128, "attention.kv_lora_rank": 64,
    "attention.key_length": 96, "attention.value_length": 64, "attention.key_length_mla": 80, "attention.value_length_mla": 64,
}  # fmt: skip
_TINY_QWEN35 = {
    "rope.dimension_count": 16, "rope.dimension_sections": [3, 3, 2, 0], "ssm.state_size": 64, "ssm.group_count": 2,
    "ssm.time_step_rank": 4, "ssm.inner_size": 256,
}  # fmt: skip
_WINDOW = {"attention.sliding_window": 16}

_TINY = (
    _tiny("tinyllama-1.1b"),
    _tiny("granite-3.3-2b"),
    _tiny("qwen2.5-0.5b"),
    _tiny("qwen3-0.6b"),
    _tiny("tinyllama-1.1b", "tiny-mistral", _WINDOW),
    _tiny("qwen3-0.6b", "tiny-qwen3moe", _EXPERTS, architecture="qwen3moe", intermediate_size=256),
    _tiny("qwen3.5-2b", more=_TINY_QWEN35, layers=4),
    _tiny("gemma-3-1b", layers=6),
    _tiny("gemma-2-2b", more=_WINDOW | {"attn_logit_softcapping": 0.1, "final_logit_softcapping": 0.5}),
    _tiny("phi-3-mini-4k", more=_WINDOW),
    _tiny("olmo-2-1b"),
    _tiny("smollm3-3b", layers=4),
    _tiny("deepseek-v2-lite", more=_TINY_DEEPSEEK, biases=("exp_probs_b",), layers=3, kv_heads=1, head_dim=96),
    _tiny("gpt-oss-20b", more=_EXPERTS | _WINDOW, intermediate_size=256),
)

GEOMETRIES: dict[str, Geometry] = {row.name: row for row in (*_PUBLISHED, *_TINY)}


def geometry(name: str | Geometry) -> Geometry:
    """The row called ``name`` (a Geometry passes through). Raises ModelError that lists the known ones."""
    return name if isinstance(name, Geometry) else known("geometry", name, GEOMETRIES, ModelError)


def decode_order(geometry, mix: str = "Q4_K_M", layers: int | None = None) -> list[tuple[str, int]]:
    """``[(name, bytes in float32), ...]`` of a model (kit.lab.synthetic.geometry), in the order of use in a decode step."""
    elements = {spec.name: spec.elements for spec in geometry.tensors(mix, layers)}
    order = geometry.config(layers).order_of_use(elements)
    return [(name, elements[name] * DTYPES["float32"]) for name in order]
