"""Small F32 files of families whose kinds of layers choose positions, or have states of their own (as family_files)."""

from pathlib import Path

import numpy as np
from family_files import FFN, File, H, V

_EXPERTS = dict(
    expert_count=8, expert_used_count=2, expert_feed_forward_length=64, expert_shared_count=1, expert_weights_scale=1.5,
    expert_weights_norm=True, expert_gating_func=2, leading_dense_block_count=1,
)  # fmt: skip
_LATENT = dict(
    attention__kv_lora_rank=32, attention__key_length=64, attention__value_length=32, attention__key_length_mla=48,
    attention__value_length_mla=16, rope__dimension_count=32, attention__q_lora_rank=32,
)  # fmt: skip
_INDEX = dict(attention__indexer__head_count=16, attention__indexer__key_length=64, attention__indexer__top_k=8)


def latent(file, layer, queries=True, plain=16, rank=32, turned=32, value=16):
    """Latent attention with absorbed projections."""
    if queries:
        file.layer(layer, attn_q_a=(32, H), attn_q_a_norm=32, attn_q_b=(4 * (plain + turned), 32))
    else:
        file.layer(layer, attn_q=(4 * (plain + turned), H))
    file.layer(
        layer, attn_kv_a_mqa=(rank + turned, H), attn_kv_a_norm=rank, attn_k_b=(4, rank, plain), attn_v_b=(4, value, rank)
    )
    file.layer(layer, attn_output=(H, 4 * value))


def network(file, layer, **more):
    """A dense network in the first layer, mixtures after it."""
    if layer:
        file.mixture(layer, **dict(biased=True, shared=64) | more)
    else:
        file.network(layer, FFN)


def sparse(architecture, types=(1, 1, 1), **keys):
    """Latent attention to what an indexer chooses; where ``types`` has 0 to what the layer before has chosen."""
    file = File(architecture, len(types), attention__head_count_kv=1, **_LATENT | _EXPERTS | _INDEX | keys)
    if architecture == "glm-dsa":
        file.keys(attention__indexer__types=list(types))
    for layer, chooses in enumerate(types):
        file.layer(layer, attn_norm=H, ffn_norm=H)
        latent(file, layer)
        if chooses:
            file.layer(layer, indexer__attn_q_b=(16 * 64, 32), indexer__attn_k=(64, H), indexer__k_norm=64)
            file.tensor(f"blk.{layer}.indexer.k_norm.bias", 64)
            file.layer(layer, indexer__proj=(16, H))
        network(file, layer)
    return file.ends()


def kimi(architecture, kinds=(0, 0, 1, 0, 1), full=False, **keys):
    """Kimi delta attention where a layer has no KV heads, latent attention elsewhere."""
    file = File(architecture, len(kinds), kda__head_dim=32, ssm__conv_kernel=4, **_LATENT | _EXPERTS | keys)
    file.keys(attention__head_count_kv=list(kinds))
    if architecture == "kimi-linear":
        del file.metadata["kimi-linear.attention.q_lora_rank"]
    for layer, attends in enumerate(kinds):
        file.layer(layer, attn_norm=H, ffn_norm=H)
        if attends:
            latent(file, layer, queries=architecture != "kimi-linear")
            if architecture == "bailingmoe3":
                file.layer(layer, attn_gate=(4, H))
        else:
            file.layer(layer, **{f"attn_{part}": (128, H) for part in "qkv"}, attn_output=(H, 128))
            for part in "qkv":
                file.tensor(f"blk.{layer}.ssm_conv1d_{part}.weight", 1, 128, 1, 4, spread=0.5)
            for part in "fg":
                file.layer(layer, **{f"ssm_{part}_a": (128 if full else 32, H)})
                if not full:
                    file.layer(layer, **{f"ssm_{part}_b": (128, 32)})
            file.layer(layer, ssm_dt__bias=128, ssm_beta=(4, H), ssm_norm=32)
            rate = np.exp(file.random.normal(0, 0.5, (4, 1))).astype(np.float32)
            file.tensors[f"blk.{layer}.ssm_a"] = rate if full else -rate
        network(file, layer)
    return file.ends(tied=full)


def qwen4exp(flat=False, ngrams=False):
    """A residual of four streams; delta nets, and attention to blocks of four positions that an index chooses. ``ngrams``: a
    table from which the last three tokens choose four rows; the token that ends a text is the eleventh of the tests'."""
    file = File(
        "qwen4exp", 4, attention__head_count_kv=2, attention__key_length=32, attention__value_length=32,
        rope__dimension_count=16, rope__dimension_sections=[3, 3, 2, 0], ssm__conv_kernel=4, ssm__inner_size=128,
        ssm__state_size=32, ssm__time_step_rank=4, ssm__group_count=2, expert_count=8, expert_used_count=2,
        expert_feed_forward_length=64, expert_shared_feed_forward_length=96, hyper_connection__count=4,
        hyper_connection__low_rank=16, attention__indexer__head_count=16, attention__indexer__key_length=32,
        attention__indexer__top_k=8, attention__compress_ratios=[0, 4, 0, 4], full_attention_interval=2,
    )  # fmt: skip

    def streams(name, inject=True):
        file.tensor(f"{name}_norm.weight", *((4 * H,) if flat else (4, H)), mean=1, spread=0.05)
        file.tensor(f"{name}_down.weight", 16, 4 * H)
        file.tensor(f"{name}_up.weight", 4 * H, 16)
        if inject:
            file.tensor(f"{name}_inject.weight", 4, 4 * H)

    if ngrams:
        file.keys(ple__layers=[2], ple__ngram_size=3, ple__heads_per_ngram=2, ple__conv_kernel=4, ple__eos_token_id=325,
                  embedding_length_per_layer_input=32, ple__layer_multipliers=np.array([2**63 + 11, 3, 5**20], np.uint64),
                  ple__head_offsets=np.array([0, 50, 100, 150], np.uint64),
                  ple__head_vocab_sizes=np.array([50, 47, 50, 43], np.uint64))  # fmt: skip
        file.tensor("per_layer_token_embd.weight", 200, 32, spread=0.5)
        file.layer(2, ple_key=(4 * H, H), ple_value=(H, H))
        for name in ("key", "query", "conv"):
            file.tensor(f"blk.2.ple_norm_{name}.weight", 4, H, mean=1, spread=0.05)
        file.tensor("blk.2.ple_conv1d.weight", 4 * H, 4, spread=0.5)
    for layer in range(4):
        streams(f"blk.{layer}.hc_attn")
        streams(f"blk.{layer}.hc_ffn")
        if layer % 2:
            file.layer(layer, attn_q=(8 * 32, H), attn_k=(64, H), attn_v=(64, H), attn_q_norm=32, attn_k_norm=32)
            file.layer(layer, attn_output=(H, 128), indexer__q_proj=(16 * 32, H), indexer__k_proj=(32, H))
            file.layer(layer, indexer__q_norm=32, indexer__k_norm=32)
        else:
            file.layer(layer, attn_qkv=(256, H), attn_gate=(128, H), ssm_dt__bias=4, ssm_beta=(4, H), ssm_alpha=(4, H))
            file.tensor(f"blk.{layer}.ssm_conv1d.weight", 256, 4, spread=0.5)
            file.layer(layer, ssm_norm=32, ssm_out=(H, 128))
            file.tensors[f"blk.{layer}.ssm_a"] = -np.exp(file.random.normal(0, 0.5, 4)).astype(np.float32)
        file.mixture(layer, shared=96, gated=True)
    streams("output_hc", inject=False)
    file.tensor("output.weight", 512, H)
    return file


def deepseek4(ratios=(0, 4, 128, 4), stacked=False):
    """Attention to a window of eight positions and to rows of four or 128, of those of four to the best four; four balanced
    streams; a table chooses the experts of the first layer. ``stacked``: the matrices of the groups of heads are a stack."""
    file = File(
        "deepseek4", len(ratios), attention__head_count_kv=1, attention__key_length=32, attention__value_length=32,
        rope__dimension_count=16, attention__q_lora_rank=32, attention__sliding_window=8, attention__output_group_count=2,
        attention__output_lora_rank=16, attention__compress_ratios=list(ratios), attention__compress_rope_freq_base=160000.0,
        attention__indexer__head_count=16, attention__indexer__key_length=64, attention__indexer__top_k=4,
        hyper_connection__count=4, hyper_connection__sinkhorn_iterations=20, hyper_connection__epsilon=1e-6, hash_layer_count=1,
        expert_count=8, expert_used_count=2, expert_feed_forward_length=64, expert_shared_count=1, expert_weights_scale=1.5,
        expert_weights_norm=True, expert_gating_func=4, swiglu_clamp_exp=0.5, rope__scaling__type="yarn",
        rope__scaling__factor=16.0, rope__scaling__original_context_length=64, embedding_length_out=4 * H,
    )  # fmt: skip

    def streams(name, count=24):
        file.tensor(f"{name}_fn.weight", count, 4 * H, spread=0.05)
        file.tensor(f"{name}_base.weight", count, spread=0.5)
        file.tensor(f"{name}_scale.weight", 3 if count == 24 else 1, mean=1)

    for layer, ratio in enumerate(ratios):
        streams(f"blk.{layer}.hc_attn")
        streams(f"blk.{layer}.hc_ffn")
        file.layer(layer, attn_norm=H, ffn_norm=H, attn_sinks=4, attn_q_a=(32, H), attn_q_a_norm=32, attn_q_b=(128, 32))
        file.layer(layer, attn_kv=(32, H), attn_kv_a_norm=32, attn_output_b=(H, 32))
        file.layer(layer, attn_output_a=(2, 16, 64) if stacked else (32, 64))
        times = 1 + (ratio == 4)
        for name, size in (("attn", 32), ("indexer", 64))[: (ratio > 0) + (ratio == 4)]:
            names = {f"{name}_compressor_{part}": (times * size, H) for part in ("kv", "gate")}
            file.layer(layer, **names, **{f"{name}_compressor_norm": size})
            file.tensor(f"blk.{layer}.{name}_compressor_ape.weight", ratio, times * size, spread=0.5)
        if ratio == 4:
            file.layer(layer, indexer__attn_q_b=(16 * 64, 32), indexer__proj=(16, H))
        file.mixture(layer, biased=layer > 0, shared=64)
        if not layer:
            experts = np.stack([file.random.permutation(8)[:2] for _ in range(V)])
            file.tensors["blk.0.ffn_gate_tid2eid.weight"] = experts.astype(np.int32)
    streams("output_hc", 4)
    return file.ends()


FILES = {
    "deepseek4": deepseek4,
    "qwen4exp": qwen4exp,
    "qwen4exp-ngrams": lambda: qwen4exp(flat=True, ngrams=True),
    "kimi-linear": lambda: kimi("kimi-linear"),
    "bailingmoe3": lambda: kimi("bailingmoe3", full=True, kda__gate_lower_bound=-5.0, expert_shared_feed_forward_length=64),
    "glm-dsa": lambda: sparse("glm-dsa", (1, 0, 1, 0)),
    "deepseek32": lambda: sparse("deepseek32"),
}


def write(folder: Path, name: str, qtype: str = "F32") -> Path:
    """The file of that name in ``folder``, written once."""
    path = folder / f"kind-{name}-{qtype}.gguf"
    return path if path.exists() else FILES[name]().write(path, qtype)
