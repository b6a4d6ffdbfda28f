"""Small F32 files of families that are one row each of kit.model.architectures, with the keys of llama.cpp's loader."""

from pathlib import Path

import numpy as np
from family_files import FFN, File, H, biased, plain

_NORMED = dict(attention__layer_norm_epsilon=1e-5)
_SHARED = dict(expert_shared_count=1, expert_weights_scale=1.5)
_SIGMOID = dict(
    expert_gating_func=2, expert_weights_norm=True, expert_shared_feed_forward_length=64, leading_dense_block_count=1
)
_SECTIONS = dict(rope__dimension_sections=[4, 6, 6, 0])
_WINDOW = dict(attention__sliding_window=8)


def joined(file: File, *pairs: tuple[tuple[str, ...], str]) -> File:
    """With tensors of a layer stored as the rows of one: (("attn_q", "attn_k", "attn_v"), "attn_qkv")."""
    for parts, whole in pairs:
        for name in [name for name in file.tensors if f".{parts[0]}." in name]:
            own = [file.tensors.pop(name.replace(f".{parts[0]}.", f".{part}.")) for part in parts]
            file.tensors[name.replace(f".{parts[0]}.", f".{whole}.")] = np.concatenate(own)
    return file


ATTENTION, NETWORK = (("attn_q", "attn_k", "attn_v"), "attn_qkv"), (("ffn_gate", "ffn_up"), "ffn_up")


def without_gates(file: File) -> File:
    """With networks of two matrices."""
    for name in [name for name in file.tensors if "ffn_gate.weight" in name]:
        del file.tensors[name]
    return file


def with_biases(file: File, *parts: str) -> File:
    """With a bias for each tensor of that name: "attn_norm", "output_norm", "ffn_up"."""
    for name in [name for name in file.tensors if name.endswith(".weight") and name.split(".")[-2] in parts]:
        file.tensor(name.replace("weight", "bias"), file.tensors[name].shape[0], mean=False)
    return file


def layered(architecture: str, norms=("attn_norm", "ffn_norm"), biases=(), **keys) -> File:
    """LayerNorm with biases, and networks without gates."""
    file = without_gates(plain(architecture, norms, **_NORMED | keys))
    return with_biases(file, *norms, "output_norm", *biases)


def falcon(second: bool = False, **keys) -> File:
    """One norm for both networks (7B), or one for each (40B)."""
    norms = ("attn_norm", "attn_norm_2") if second else ("attn_norm",)
    return joined(layered("falcon", norms, kv=1, **keys), ATTENTION)


def gptneox(parallel: bool) -> File:
    biases = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
    return joined(layered("gptneox", biases=biases, kv=4, use_parallel_residual=parallel), ATTENTION)


def qwen() -> File:
    """The first Qwen: feed_forward_length counts both matrices of a gate."""
    file = plain("qwen", kv=4, feed_forward_length=2 * FFN)
    for name in [name for name in file.tensors if "ffn_" in name and "norm" not in name]:
        file.tensors[name] = file.tensors[name][..., :FFN] if "down" in name else file.tensors[name][:FFN]
    return with_biases(joined(file, ATTENTION), "attn_qkv")


def openelm() -> File:
    """Heads and networks that grow from layer to layer."""
    heads, kvs, sizes = [4, 4, 8], [2, 2, 4], [64, 96, 128]
    file = File("openelm", 3, attention__key_length=32, attention__value_length=32, rope__dimension_count=32)
    file.keys(attention__head_count=heads, attention__head_count_kv=kvs, feed_forward_length=sizes)
    for layer, (q, kv, size) in enumerate(zip(heads, kvs, sizes, strict=True)):
        file.layer(layer, attn_norm=H, ffn_norm=H, attn_qkv=((q + 2 * kv) * 32, H), attn_q_norm=32, attn_k_norm=32)
        file.layer(layer, attn_output=(H, q * 32))
        file.network(layer, size)
    return file.ends(tied=True)


def latent(architecture: str, query_rank: int = 0, gated: bool = True, **keys) -> File:
    """Latent attention whose keys and values are projected for each position."""
    file = File(architecture, 3, attention__head_count_kv=4, attention__kv_lora_rank=32, attention__key_length=48,
                attention__value_length=32, rope__dimension_count=16, **keys)  # fmt: skip
    if query_rank:
        file.keys(attention__q_lora_rank=query_rank)
    for layer in range(3):
        file.layer(layer, attn_norm=H, ffn_norm=H)
        if query_rank:
            file.layer(layer, attn_q_a=(query_rank, H), attn_q_a_norm=query_rank, attn_q_b=(4 * 48, query_rank))
        else:
            file.layer(layer, attn_q=(4 * 48, H))
        file.layer(layer, attn_kv_a_mqa=(48, H), attn_kv_a_norm=32, attn_kv_b=(4 * 64, 32), attn_output=(H, 4 * 32))
        file.network(layer, gated=gated)
    return file.ends(tied=True)


def hy_v3() -> File:
    """The choosing bias has no ending in such files."""
    file = plain("hy_v3", norm="head", mixture=dict(biased=True, shared=64), first=1, **_SIGMOID, **_SHARED)
    for layer in (1, 2):
        file.tensors[f"blk.{layer}.exp_probs_b"] = file.tensors.pop(f"blk.{layer}.exp_probs_b.bias")
    return file


def plamo3() -> File:
    """The norms after a network have no ending in such files."""
    file = plain("plamo3", layers=9, norm="head", attention__key_length=32, attention__value_length=32, rope__freq_base=5e5,
                 rope__freq_base_swa=1e4, attention__sliding_window_pattern=8, **_WINDOW)  # fmt: skip
    for layer in range(9):
        file.tensor(f"blk.{layer}.post_attention_norm", H)
        file.tensor(f"blk.{layer}.post_ffw_norm", H)
    return joined(file, ATTENTION, NETWORK)


def deci() -> File:
    """A layer of each kind: attention and a network, a matrix in its place, a network alone, nothing at all."""
    heads, kvs, sizes = [4, 4, 0, 0, 4], [2, 0, 0, 0, 2], [FFN, FFN, FFN, 0, 96]
    file = File("deci", 5, attention__key_length=32, attention__value_length=32, rope__dimension_count=32)
    file.keys(attention__head_count=heads, attention__head_count_kv=kvs, feed_forward_length=sizes)
    for layer, (q, kv, size) in enumerate(zip(heads, kvs, sizes, strict=True)):
        if q:
            file.layer(layer, attn_norm=H)
        if kv:
            file.attention(layer, norm="")
        elif q:
            file.layer(layer, attn_output=(H, H))
        if size:
            file.layer(layer, ffn_norm=H)
            file.network(layer, size)
    return file.ends()


def mistral4() -> File:
    """Queries of latent attention that grow with the position."""
    file = File(
        "mistral4", 3, attention__head_count_kv=1, attention__kv_lora_rank=32, attention__key_length=48,
        attention__value_length=32, attention__key_length_mla=32, attention__value_length_mla=16, rope__dimension_count=16,
        attention__q_lora_rank=32, attention__temperature_scale=0.5, attention__temperature_length=8,
        expert_count=8, expert_used_count=2, expert_feed_forward_length=64, leading_dense_block_count=1,
        expert_weights_norm=True, expert_gating_func=1, **_SHARED,
    )  # fmt: skip
    for layer in range(3):
        file.layer(layer, attn_norm=H, ffn_norm=H, attn_q_a=(32, H), attn_q_a_norm=32, attn_q_b=(4 * 32, 32))
        file.layer(layer, attn_kv_a_mqa=(48, H), attn_kv_a_norm=32, attn_k_b=(4, 32, 16), attn_v_b=(4, 16, 32))
        file.layer(layer, attn_output=(H, 64))
        if layer:
            file.mixture(layer, shared=64)
        else:
            file.network(layer)
    return file.ends()


FILES = {
    "deci": deci,
    "mistral4": mistral4,
    "qwen2vl": lambda: biased(plain("qwen2vl", attention__layer_norm_rms_epsilon=1e-12, **_SECTIONS)),
    "paddleocr": lambda: plain("paddleocr", **_SECTIONS),
    "hunyuan_vl": lambda: plain("hunyuan_vl", norm="head", **_SECTIONS),
    "exaone-moe": lambda: plain("exaone-moe", layers=5, norm="head", mixture=dict(biased=True, shared=64), first=1,
                                **_SIGMOID, **_SHARED, **_WINDOW),
    "hy_v3": hy_v3,
    "bailingmoe": lambda: plain("bailingmoe", mixture=dict(shared=64), expert_weights_norm=True, leading_dense_block_count=0,
                                **_SHARED),
    "deepseek": lambda: plain("deepseek", mixture=dict(shared=64), first=1, leading_dense_block_count=1, **_SHARED),
    "deepseek2-ocr": lambda: plain("deepseek2-ocr", kv=4, mixture=dict(shared=64), first=1, leading_dense_block_count=1,
                                   **_SHARED),
    "mellum": lambda: plain("mellum", layers=5, norm="head", mixture={}, **_WINDOW),
    "dbrx": lambda: joined(plain("dbrx", ("attn_norm", "attn_output_norm"), mixture={}, attention__clamp_kqv=0.8,
                                 feed_forward_length=64, **_NORMED), ATTENTION),
    "arcee": lambda: without_gates(plain("arcee")),
    "maincoder": lambda: plain("maincoder", norm="head"),
    "baichuan": lambda: plain("baichuan", layers=32, kv=4),
    "xverse": lambda: plain("xverse"),
    "nanbeige": lambda: plain("nanbeige"),
    "orion": lambda: with_biases(plain("orion", **_NORMED), "attn_norm", "ffn_norm", "output_norm"),
    "pangu-embedded": lambda: with_biases(plain("pangu-embedded"), "attn_output"),
    "chatglm": lambda: with_biases(joined(plain("chatglm"), ATTENTION, NETWORK), "attn_qkv"),
    "jais2": lambda: layered("jais2", biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")),
    "plamo": lambda: plain("plamo", ("attn_norm",)),
    "plamo3": plamo3,
    "openelm": openelm,
    "plm": lambda: latent("plm", gated=False),
    "minicpm3": lambda: latent("minicpm3", query_rank=32),
    "qwen": qwen,
    "falcon": falcon,
    "falcon-40b": lambda: falcon(second=True),
    "codeshell": lambda: layered("codeshell", biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")),
    "gptneox": lambda: gptneox(True),
    "gptneox-sequential": lambda: gptneox(False),
}  # fmt: skip


def write(folder: Path, name: str, qtype: str = "F32") -> Path:
    """The file of that name in ``folder``, written once."""
    path = folder / f"row-{name}-{qtype}.gguf"
    return path if path.exists() else FILES[name]().write(path, qtype)
