"""Small F32 model files for tests, one for each family and feature, written by the kit."""

from dataclasses import replace
from pathlib import Path

import numpy as np

import kit
from kit.gguf import writer
from kit.gguf.reader import TensorInfo
from kit.lab.synthetic.geometry import GEOMETRIES, Scaling
from kit.lab.synthetic.write import synthesize

_LLAMA, _QWEN2, _GRANITE = (GEOMETRIES[name] for name in ("tiny-llama", "tiny-qwen2", "tiny-granite"))


def _scaled(geometry, name, **keys):
    extra = {key.replace("__", "."): value for key, value in keys.items()}
    return replace(geometry, name=name, more=geometry.more | extra)


_LINEAR = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
_YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64}
MODELS = {
    name: GEOMETRIES[name]
    for name in GEOMETRIES
    if name.startswith("tiny-")
} | {
    "linear": _scaled(_LLAMA, "linear", **_LINEAR),
    "linear-old-key": _scaled(_LLAMA, "linear-old-key", rope__scale_linear=2.0),
    "llama3": replace(_LLAMA, name="llama3", rope_scaling=Scaling(8.0, 1.0, 4.0, 64)),
    "yarn": _scaled(_LLAMA, "yarn", **_YARN),
    "yarn-neox": _scaled(_QWEN2, "yarn-neox", **_YARN),
    "olmo3": _scaled(GEOMETRIES["tiny-olmo2"], "olmo3", attention__sliding_window=16, **_YARN),
    "gemma3-linear": _scaled(GEOMETRIES["tiny-gemma3"], "gemma3-linear", **_LINEAR),
    "internlm2": replace(_LLAMA, name="internlm2", architecture="internlm2"),
    "ernie4_5": replace(_LLAMA, name="ernie4_5", architecture="ernie4_5"),
    "seed_oss": replace(_LLAMA, name="seed_oss", architecture="seed_oss"),
    "gemma": replace(_LLAMA, name="gemma", architecture="gemma", tied=True),
    "minicpm": replace(
        _scaled(_LLAMA, "minicpm", embedding_scale=2.0, residual_scale=0.5, logit_scale=4.0), architecture="minicpm"
    ),
    "exaone": replace(_LLAMA, name="exaone", architecture="exaone"),
    "partial": _scaled(_LLAMA, "partial", rope__dimension_count=32),
    "granitemoe": replace(
        _scaled(_GRANITE, "granitemoe", expert_count=4, expert_used_count=2), architecture="granitemoe"
    ),
}  # fmt: skip

_DEEPSEEK, _MIXTURE = GEOMETRIES["tiny-deepseek2"], GEOMETRIES["tiny-qwen3moe"]
_EXPANDED = {key: value for key, value in _DEEPSEEK.more.items() if not key.endswith("_mla")}
_SIGMOID = {
    "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_gating_func": 2, "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
}  # fmt: skip
_ROUTED = replace(_MIXTURE, tied=False, more=_MIXTURE.more | _SIGMOID, layers=3, biases=("exp_probs_b",), context=64)
_LAYERED = _scaled(replace(_LLAMA, architecture="command-r", tied=True), "layered", attention__layer_norm_epsilon=1e-5)
_BIASED = replace(
    _LAYERED, biases=("attn_norm", "ffn_norm", "output_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
)
_QWEN35 = GEOMETRIES["tiny-qwen35"]
_QWEN35MOE = replace(
    _scaled(_QWEN35, "qwen35moe", expert_count=8, expert_used_count=2, expert_feed_forward_length=256,
            expert_shared_feed_forward_length=128, nextn_predict_layers=0),
    architecture="qwen35moe", tied=False,
)  # fmt: skip
_MAMBA = {"attention.head_count_kv": [0, 0, 2, 0], "ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 32,
          "ssm.time_step_rank": 8, "ssm.group_count": 1, "rope.scaling.finetuned": False}  # fmt: skip
_HYBRID = replace(_GRANITE, name="granitehybrid", architecture="granitehybrid", layers=4, biases=("ssm_conv1d",),
                  more=_GRANITE.more | _MAMBA)  # fmt: skip
FAMILIES = {row.name: row for row in (  # whose independent answer is llama.cpp's alone
    _DEEPSEEK,
    replace(_DEEPSEEK, name="deepseek2-expanded", kv_heads=4, head_dim=80, more=_EXPANDED | {"attention.key_length": 80}),
    _scaled(replace(_DEEPSEEK, heads=72), "deepseek2-dense", leading_dense_block_count=3),
    replace(_DEEPSEEK, name="deepseek2-dense-expanded", kv_heads=4, head_dim=96,
            more=_EXPANDED | {"attention.key_length": 96, "attention.value_length": 48, "leading_dense_block_count": 3}),
    _scaled(_DEEPSEEK, "deepseek2-lite", attention__q_lora_rank=0, expert_gating_func=1, expert_weights_norm=False,
            expert_weights_scale=1.0, expert_group_count=1, rope__scaling__yarn_log_multiplier=0.0),
    _scaled(replace(_LLAMA, architecture="glm4"), "glm4", rope__dimension_count=32),
    replace(_ROUTED, name="glm4moe", architecture="glm4moe", more=_ROUTED.more | {"nextn_predict_layers": 0}),
    replace(_ROUTED, name="dots1", architecture="dots1", kv_heads=4),
    _scaled(replace(_ROUTED, architecture="ernie4_5-moe"), "ernie4_5-moe", interleave_moe_layer_step=1,
            expert_shared_feed_forward_length=128, expert_gating_func=1, expert_weights_scale=1.0),
    replace(_LLAMA, name="hunyuan-dense", architecture="hunyuan-dense"),
    _scaled(_LAYERED, "command-r", logit_scale=0.0625),
    _scaled(replace(_LAYERED, architecture="cohere2", layers=4), "cohere2", attention__sliding_window=16, logit_scale=0.0625),
    _scaled(replace(_LAYERED, architecture="olmo", kv_heads=4), "olmo", attention__clamp_kqv=0.3),
    _scaled(replace(_BIASED, architecture="stablelm", tied=False, biases=_BIASED.biases[:6]), "stablelm",
            rope__dimension_count=16),
    replace(_BIASED, name="starcoder2", architecture="starcoder2"),
    _scaled(replace(_BIASED, architecture="phi2", tied=False, kv_heads=4, biases=(*_BIASED.biases, "attn_qkv", "output")),
            "phi2", rope__dimension_count=32),
    _QWEN35,
    _QWEN35MOE,
    replace(_QWEN35MOE, name="qwen3next", architecture="qwen3next", vocabulary=_QWEN2.vocabulary),
    _HYBRID,
    _scaled(_HYBRID, "granitehybrid-moe", expert_count=8, expert_used_count=2, expert_shared_feed_forward_length=128,
            ssm__group_count=2),
    replace(_BIASED, name="nemotron", architecture="nemotron", tied=False),
)}  # fmt: skip
MODELS = {name: row for name, row in MODELS.items() if name not in FAMILIES}


def write(folder: Path, name: str, mix: str = "F32") -> Path:
    """The file of ``MODELS[name]`` in ``folder``, written once."""
    path = folder / f"{name}-{mix}.gguf"
    return path if path.exists() else synthesize(path, (MODELS | FAMILIES)[name], mix)


def rewrite(source: Path, target: Path, change) -> Path:
    """Copy a model file as float32; ``change(metadata, tensors)`` edits dicts of its plain values and F32 arrays."""
    file = kit.open(source)
    metadata = {key: value if isinstance(value, (str, int, float)) else value.tolist() for key, value in file.metadata.items()}
    weights = kit.Weights(file)
    tensors = {key: weights[key].numpy() for key in file.tensors}
    change(metadata, tensors)
    specs = [TensorInfo.new(key, "F32", array.shape) for key, array in tensors.items()]
    return writer.write(target, metadata, specs, tensors.values())


def shared_expert(metadata, tensors):
    """A change of granitemoe: an expert that every token passes, with a bias, and biases of the output projection."""
    random = np.random.default_rng(1)
    metadata["granitemoe.expert_shared_feed_forward_length"] = 64
    for layer in range(2):
        for part, shape in (("gate", (64, 256)), ("up", (64, 256)), ("down", (256, 64))):
            tensors[f"blk.{layer}.ffn_{part}_shexp.weight"] = random.normal(0, 0.05, shape).astype(np.float32)
        for name in ("ffn_down_shexp", "attn_output"):
            tensors[f"blk.{layer}.{name}.bias"] = random.normal(0, 0.5, 256).astype(np.float32)


def plain(path: Path) -> tuple[dict, dict]:
    """(metadata, tensors as float64) of a file, for the reference."""
    file = kit.open(path)
    weights = kit.Weights(file)
    return dict(file.metadata.items()), {name: weights[name].numpy().astype(np.float64) for name in file.tensors}


def split(path: Path, folder: Path, at: int) -> list[Path]:
    """The file in two parts, the second from its tensor number ``at`` on: name-00001-of-00002.gguf and the next."""
    parts = [folder / f"{path.stem}-{number:05}-of-00002.gguf" for number in (1, 2)]
    with kit.open(path) as file:
        specs = list(file.tensors.values())
        for number, (part, own) in enumerate(zip(parts, (specs[:at], specs[at:]), strict=True)):
            metadata = {**(file.metadata if not number else {}), "split.no": number, "split.count": 2}
            plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in metadata.items()}
            writer.write(part, plain, own, [file.blocks(one.name) for one in own])
    return parts


def as_float64(path, family: str) -> tuple[dict, dict]:
    """(the family's keys without its name, tensors as float64 of torch) of a file of F32."""
    import torch

    metadata, tensors = plain(path)
    keys = {key.partition(".")[2]: value for key, value in metadata.items() if key.startswith(f"{family}.")}
    return keys, {name: torch.tensor(tensor, dtype=torch.float64) for name, tensor in tensors.items()}
