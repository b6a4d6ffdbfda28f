"""Small files of families of today, F32, with the names, shapes and keys of llama.cpp's converters; nothing of kit.model."""

from pathlib import Path

import gguf
import numpy as np

from kit.gguf import writer
from kit.gguf.reader import TensorInfo
from kit.lab.synthetic.geometry import GEOMETRIES

H, V, FFN = 128, 512, 192
_EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 64}


class File:
    """The metadata and tensors of a file, drawn in the order in which they are named."""

    def __init__(self, architecture: str, layers: int, **keys):
        own = dict(block_count=layers, context_length=4096, vocab_size=V, embedding_length=H, feed_forward_length=FFN,
            attention__head_count=4, attention__layer_norm_rms_epsilon=1e-6, rope__freq_base=1e4)  # fmt: skip
        self.architecture, self.random = architecture, np.random.default_rng(layers)
        self.metadata = {"general.architecture": architecture} | GEOMETRIES["tiny-llama"].vocabulary.metadata()
        self.tensors = {}
        self.keys(**own | keys)
        self.tensor("token_embd.weight", V, H, spread=0.5)

    def keys(self, **keys):
        self.metadata |= {f"{self.architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}

    def tensor(self, name, *shape, mean=None, spread=None):
        """A matrix that keeps the size of its input, a norm around 1, or a vector around 0."""
        mean = ("norm" in name or name.endswith(".scale")) and len(shape) == 1 if mean is None else mean
        spread = (0.05 if mean else 0.1 if len(shape) == 1 else 0.7 / shape[-1] ** 0.5) if spread is None else spread
        self.tensors[name] = self.random.normal(mean, spread, shape).astype(np.float32)

    def layer(self, layer, **shapes):
        """Weights of a layer: ``attn_q=(rows, columns)``, a vector by its size."""
        for name, shape in shapes.items():
            name = name.replace("__", ".")
            ending = "" if name.endswith((".scale", ".bias")) else ".weight"
            self.tensor(f"blk.{layer}.{name}{ending}", *(shape if isinstance(shape, tuple) else (shape,)))

    def ends(self, tied=False, norm="output_norm"):
        self.tensor(f"{norm}.weight", H)
        if not tied:
            self.tensor("output.weight", V, H)
        return self

    def attention(self, layer, kv=2, dim=32, norm="head", **more):
        self.layer(layer, attn_q=(4 * dim, H), attn_k=(kv * dim, H), attn_v=(kv * dim, H))
        if norm:
            q, k = (dim, dim) if norm == "head" else (4 * dim, kv * dim)
            self.layer(layer, attn_q_norm=q, attn_k_norm=k)
        self.layer(layer, attn_output=(H, 4 * dim), **more)

    def mamba2(self, layer, inner=256, state=16, groups=1, heads=4, norm=True):
        channels = inner + 2 * groups * state
        self.layer(layer, ssm_in=(inner + channels + heads, H), ssm_conv1d=(channels, 4), ssm_conv1d__bias=channels)
        self.layer(layer, ssm_dt__bias=heads, ssm_out=(H, inner), **{"ssm_norm": (groups, inner // groups)} if norm else {})
        self.tensors[f"blk.{layer}.ssm_a"] = -np.exp(self.random.normal(0, 0.5, (heads, 1))).astype(np.float32)
        self.tensors[f"blk.{layer}.ssm_d"] = self.random.normal(0, 0.5, (heads, 1)).astype(np.float32)

    def network(self, layer, size=FFN, suffix="", gated=True):
        names = {f"ffn_{part}{suffix}": (size, H) for part in ("gate", "up")[not gated :]}
        self.layer(layer, **names, **{f"ffn_down{suffix}": (H, size)})

    def mixture(self, layer, biased=False, shared=0, gated=False, joined=False, own_gates=True):
        self.layer(layer, ffn_gate_inp=(8, H))
        parts = ("gate", "up")[not own_gates :]
        names = {"ffn_gate_up_exps": (8, 128, H)} if joined else {f"ffn_{part}_exps": (8, 64, H) for part in parts}
        self.layer(layer, **names, ffn_down_exps=(8, H, 64), **{"exp_probs_b__bias": 8} if biased else {})
        if shared:
            self.network(layer, shared, "_shexp", own_gates)
        if gated:
            self.layer(layer, ffn_gate_inp_shexp=H)

    def write(self, path: Path, qtype: str = "F32") -> Path:
        """``qtype``: of matrices, but for routers, norms by group and convolutions."""
        kinds = {
            name: "I32"
            if tensor.dtype == np.int32
            else "F32"
            if tensor.ndim < 2
            or "gate_inp" in name
            or "_norm" in name
            or tensor.shape[-1] % 32
            or (name.endswith("_ape.weight") and self.architecture == "glm5-next")
            else qtype
            for name, tensor in self.tensors.items()
        }
        specs = [TensorInfo.new(name, kinds[name], tensor.shape) for name, tensor in self.tensors.items()]
        quantize = lambda name, tensor: (  # noqa: E731
            tensor if kinds[name] == "I32" else gguf.quants.quantize(tensor, gguf.GGMLQuantizationType[kinds[name]])
        )
        return writer.write(path, self.metadata, specs, (quantize(*each) for each in self.tensors.items()))


def lfm2(architecture="lfm2"):
    experts = _EXPERTS | {"leading_dense_block_count": 1, "expert_gating_func": 2} if architecture == "lfm2moe" else {}
    heads = [0, 2, 0, 2]
    file = File(architecture, 4, shortconv__l_cache=3, attention__head_count_kv=heads, **experts)
    for layer, kv in enumerate(heads):
        file.layer(layer, attn_norm=H, ffn_norm=H)
        if kv:
            file.attention(layer)
        else:
            file.layer(layer, shortconv__conv=(H, 3), shortconv__in_proj=(3 * H, H), shortconv__out_proj=(H, H))
        if experts and layer:
            file.mixture(layer, biased=True)
        else:
            file.network(layer)
    return file.ends(tied=True, norm="token_embd_norm")


def gemma4(embedded=32, shared=3, unread=True, values=True, experts=False):
    """E2B: embedded per layer, the last layers share keys and values; 31B: neither, values are keys in global layers; 26B: a
    mixture beside the dense network. Two local layers, one global, of larger heads."""
    layers = 6
    local, dims = [n % 3 < 2 for n in range(layers)], {True: 32, False: 64}
    kvs = [2 if each else 1 for each in local]
    file = File(
        "gemma4", layers, attention__key_length=64, attention__value_length=64, attention__key_length_swa=32,
        attention__value_length_swa=32, rope__freq_base=1e6, rope__freq_base_swa=1e4, rope__dimension_count=64,
        rope__dimension_count_swa=32, final_logit_softcapping=30.0, attention__sliding_window=8, attention__head_count_kv=kvs,
        attention__shared_kv_layers=shared, embedding_length_per_layer_input=embedded, **_EXPERTS if experts else {},
    )  # fmt: skip
    file.metadata["gemma4.attention.sliding_window_pattern"] = np.array(local)
    file.tensors["rope_freqs.weight"] = np.array([1] * 8 + [1e30] * 24, np.float32)
    if embedded:
        file.tensor("per_layer_token_embd.weight", V, layers * embedded, spread=0.5)
        file.tensor("per_layer_model_proj.weight", layers * embedded, H)
        file.tensor("per_layer_proj_norm.weight", embedded)
    for layer, near in enumerate(local):
        dim = dims[near]
        file.layer(layer, attn_norm=H, post_attention_norm=H, ffn_norm=H, post_ffw_norm=H, layer_output_scale=1)
        file.attention(layer, kvs[layer], dim)
        file.tensors[f"blk.{layer}.attn_q_norm.weight"] /= dim**0.5  # scores are not divided by it, as learned norms know
        file.network(layer)
        drop = ("attn_k", "attn_v", "attn_k_norm") if layer >= layers - shared and not unread else ()
        for part in (*drop, *(("attn_v",) if not values and not near else ())):
            del file.tensors[f"blk.{layer}.{part}.weight"]
        if experts:
            norms = {name: H for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")}
            file.mixture(layer, joined=True)
            file.layer(layer, **norms, ffn_gate_inp__scale=H, ffn_down_exps__scale=8)
        if embedded:
            file.layer(layer, inp_gate=(embedded, H), proj=(H, embedded), post_norm=H)
    return file.ends(tied=True)


def plain(architecture, norms=("attn_norm", "ffn_norm"), layers=3, kv=2, norm="", mixture=None, tied=False, first=0, **keys):
    """Attention and a feed-forward layer in each of ``layers``, of which those from ``first`` on are mixtures."""
    experts = {} if mixture is None else _EXPERTS
    file = File(architecture, layers, attention__head_count_kv=kv, rope__dimension_count=32, **experts | keys)
    for layer in range(layers - keys.get("nextn_predict_layers", 0)):
        file.layer(layer, **dict.fromkeys(norms, H))
        file.attention(layer, kv, norm=norm)
        if mixture is None or layer < first:
            file.network(layer)
        else:
            file.mixture(layer, **mixture)
    return file.ends(tied)


def biased(file, layers=3):
    """With biases of queries, keys and values."""
    for layer in range(layers):
        file.layer(layer, attn_q__bias=128, attn_k__bias=64, attn_v__bias=64)
    return file


def bailingmoe2():
    """Fused projections, groups of experts, and a layer that predicts a further token."""
    file = plain("bailingmoe2", layers=4, norm="head", mixture=dict(biased=True, shared=64), first=1, nextn_predict_layers=1,
        leading_dense_block_count=1, expert_shared_count=1, expert_shared_feed_forward_length=64, expert_gating_func=2,
        expert_weights_scale=2.5, expert_weights_norm=True, expert_group_count=4, expert_group_used_count=2)  # fmt: skip
    for layer in range(3):
        parts = [file.tensors.pop(f"blk.{layer}.attn_{part}.weight") for part in "qkv"]
        file.tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)
    file.layer(3, attn_norm=H, attn_qkv=(256, H), attn_q_norm=32, attn_k_norm=32, attn_output=(H, 128), ffn_norm=H)
    file.mixture(3, biased=True, shared=64)
    file.layer(3, nextn__eh_proj=(H, 2 * H), nextn__enorm=H, nextn__hnorm=H, layer_output_norm=H)
    return file


_MAMBA2 = dict(ssm__conv_kernel=4, ssm__inner_size=256, ssm__state_size=16, ssm__time_step_rank=4, ssm__group_count=1)


def mamba2():
    file = File("mamba2", 3, feed_forward_length=0, attention__head_count=0, **_MAMBA2)
    for layer in range(3):
        file.layer(layer, attn_norm=H)
        file.mamba2(layer)
    return file.ends(tied=True)


def falcon_h1():
    """Attention and Mamba-2 of the same input; the norm before the feed-forward network has no ending in files, and that of
    Mamba-2 is in some."""
    file = File("falcon-h1", 3, attention__head_count_kv=2, attention__key_length=32, attention__value_length=32, **_MAMBA2)
    for layer in range(3):
        file.layer(layer, attn_norm=H)
        file.mamba2(layer, norm=layer == 1)
        file.attention(layer, norm="")
        file.tensor(f"blk.{layer}.ffn_norm", H)
        file.network(layer)
    return file.ends()


def nemotron_h(architecture="nemotron_h", kinds="MFAMF"):
    """A layer is a mixer (Mamba-2 or attention) or a feed-forward network."""
    experts = _EXPERTS | dict(
        expert_shared_feed_forward_length=96, expert_shared_count=1, expert_weights_norm=True, expert_weights_scale=2.5,
        expert_gating_func=2, expert_group_count=1, expert_group_used_count=1,
    )  # fmt: skip
    file = File(
        architecture, len(kinds), attention__head_count_kv=[2 * (kind == "A") for kind in kinds], attention__key_length=32,
        attention__value_length=32, feed_forward_length=[FFN * (kind == "F") for kind in kinds], rope__dimension_count=32,
        attention__layer_norm_epsilon=1e-6, **_MAMBA2, **experts if architecture == "nemotron_h_moe" else {},
    )  # fmt: skip
    for layer, kind in enumerate(kinds):
        file.layer(layer, attn_norm=H)
        if kind == "M":
            file.mamba2(layer)
        elif kind == "A":
            file.attention(layer, norm="")
        elif architecture == "nemotron_h_moe":
            file.mixture(layer, biased=True, shared=96, own_gates=False)
        else:
            file.network(layer, gated=False)
    return file.ends()


_GROWING = dict(
    rope__scaling__type="yarn", rope__scaling__factor=16.0, rope__scaling__original_context_length=8,
    rope__scaling__yarn_log_multiplier=1.0, rope__scaling__yarn_beta_fast=32.0, rope__scaling__yarn_beta_slow=1.0,
    attention__temperature_scale=0.1,
)  # fmt: skip


_SECTIONS = dict(rope__dimension_sections=[6, 5, 5, 0], n_deepstack_layers=3)
_AFTER = ("post_attention_norm", "post_ffw_norm")
FILES = {
    "lfm2": lfm2,
    "lfm2moe": lambda: lfm2("lfm2moe"),
    "gemma4": gemma4,
    "gemma4-lean": lambda: gemma4(unread=False),
    "gemma4-dense": lambda: gemma4(embedded=0, shared=0, values=False),
    "gemma4-mixture": lambda: gemma4(embedded=0, shared=0, values=False, experts=True),
    "qwen2moe": lambda: biased(plain("qwen2moe", mixture=dict(shared=FFN, gated=True), expert_shared_feed_forward_length=FFN)),
    "olmoe": lambda: plain("olmoe", kv=4, norm="all", mixture={}, feed_forward_length=64, expert_feed_forward_length=64),
    "minimax-m2": lambda: plain("minimax-m2", norm="all", mixture=dict(biased=True), expert_gating_func=2,
                                feed_forward_length=64),
    "hunyuan-moe": lambda: plain("hunyuan-moe", norm="head", mixture=dict(shared=FFN), tied=True, expert_shared_count=1,
                                 expert_shared_feed_forward_length=FFN, feed_forward_length=64),
    "bailingmoe2": bailingmoe2,
    "qwen3vl": lambda: plain("qwen3vl", norm="head", tied=True, **_SECTIONS),
    "qwen3vlmoe": lambda: plain("qwen3vlmoe", norm="head", mixture={}, **_SECTIONS),
    "mistral3": lambda: plain("mistral3", **_GROWING),
    "mamba2": mamba2,
    "falcon-h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": lambda: nemotron_h("nemotron_h_moe"),
    "exaone4": lambda: plain("exaone4", _AFTER, norm="head"),
}  # fmt: skip
LARGE = {  # by 64 layers llama.cpp knows the model whose layers have windows
    "exaone4-32b": lambda: plain("exaone4", _AFTER, layers=64, norm="head", attention__sliding_window=8)
}


def write(folder: Path, name: str, qtype: str = "F32") -> Path:
    """The file of that name of FILES or LARGE in ``folder``, written once."""
    path = folder / f"{name}-{qtype}.gguf"
    return path if path.exists() else (FILES | LARGE)[name]().write(path, qtype)
