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


def latent(file, layer, queries=True, plain=16, rank=32, turned=32, value=16, heads=4):
    """Latent attention with absorbed projections."""
    if queries:
        file.layer(layer, attn_q_a=(32, H), attn_q_a_norm=32, attn_q_b=(heads * (plain + turned), 32))
    else:
        file.layer(layer, attn_q=(heads * (plain + turned), H))
    file.layer(layer, attn_kv_a_mqa=(rank + turned, H), attn_kv_a_norm=rank)
    file.layer(layer, attn_k_b=(heads, rank, plain), attn_v_b=(heads, value, rank), attn_output=(H, heads * value))


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
            index(file, layer)
        network(file, layer)
    return file.ends()


def index(file, layer):
    """What chooses positions for latent attention."""
    file.layer(layer, indexer__attn_q_b=(16 * 64, 32), indexer__attn_k=(64, H), indexer__k_norm=64)
    file.tensor(f"blk.{layer}.indexer.k_norm.bias", 64)
    file.layer(layer, indexer__proj=(16, H))


def hy_v4(types=(1, 0, 1, 0)):
    """Four streams that are not mixed; latent attention with sinks and a gate for each number to what an indexer chooses, or
    without ``types`` to all."""
    file = File(
        "hy_v4", 4, attention__head_count_kv=1, hyper_connection__count=4, hyper_connection__epsilon=1e-2,
        hyper_connection__magnitude=1.5, swiglu_clamp_exp=[0.5] * 4, **_LATENT | _EXPERTS,
    )  # fmt: skip
    if types:
        file.keys(attention__indexer__types=list(types), **_INDEX)

    def streams(name, count):
        file.tensor(f"{name}_fn.weight", count, 4 * H, spread=0.05)
        file.tensor(f"{name}_base.weight", count, spread=0.5)
        file.tensor(f"{name}_scale.weight", count // 4, mean=1)

    for layer in range(4):
        streams(f"blk.{layer}.hc_attn", 8)
        streams(f"blk.{layer}.hc_ffn", 8)
        file.layer(layer, attn_norm=H, ffn_norm=H, attn_sinks=4, attn_gate=(64, H))
        latent(file, layer)
        if types and types[layer]:
            index(file, layer)
        network(file, layer)
    streams("output_hc", 4)
    return file.ends()


def dots3note(local=(1, 0, 1, 0, 1)):
    """Latent attention to what an indexer chooses, or where ``local`` has 1 to a window, with sizes of its own; a gate for each
    head, and a norm of the elements of keys with RoPE."""
    file = File(
        "dots3note", len(local), attention__head_count_kv=1, attention__head_count=[8 if each else 4 for each in local],
        attention__kv_lora_rank_swa=64, attention__key_length_swa=96, attention__value_length_swa=64,
        attention__key_length_mla_swa=64, attention__value_length_mla_swa=32, attention__sliding_window=6,
        attention__sliding_window_pattern=[bool(each) for each in local], rope__freq_base_swa=500.0,
        attention__indexer__types=[1 - each for each in local], **_LATENT | _EXPERTS | _INDEX,
    )  # fmt: skip
    for layer, each in enumerate(local):
        file.layer(layer, attn_norm=H, ffn_norm=H, attn_k_norm=32, attn_gate=(8 if each else 4, H))
        latent(file, layer, **dict(plain=32, rank=64, value=32, heads=8) if each else {})
        if not each:
            index(file, layer)
        network(file, layer)
    return file.ends()


def kda(file, layer, full=False):
    """Kimi delta attention; its gates come from two matrices of low rank each, or from one (``full``)."""
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
            kda(file, layer, full)
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


def mamba(architecture="mamba", normed=False, kinds=(0, 0, 0), **keys):
    """Mamba-1; where ``kinds`` has 1 attention without RoPE, in Jamba, whose every second layer is a mixture."""
    jamba = architecture == "jamba"
    file = File(architecture, len(kinds), ssm__conv_kernel=4, ssm__inner_size=2 * H, ssm__state_size=16,
                ssm__time_step_rank=16, **keys)  # fmt: skip
    file.keys(**dict(feed_forward_length=64) if jamba else dict(feed_forward_length=0, attention__head_count=0))
    if normed and not jamba:
        file.keys(ssm__dt_b_c_rms=True)
    if jamba:
        file.keys(attention__head_count_kv=[2 * kind for kind in kinds], expert_count=8, expert_used_count=2)
    for layer, attends in enumerate(kinds):
        file.layer(layer, attn_norm=H)
        if attends:
            file.attention(layer, norm="")
        else:
            file.layer(layer, ssm_in=(4 * H, H), ssm_conv1d__bias=2 * H, ssm_x=(48, 2 * H), ssm_dt=(2 * H, 16))
            file.tensor(f"blk.{layer}.ssm_conv1d.weight", 2 * H, 4, spread=0.5)
            file.layer(layer, ssm_dt__bias=2 * H, ssm_out=(H, 2 * H))
            file.tensors[f"blk.{layer}.ssm_a"] = -np.exp(file.random.normal(0, 0.5, (2 * H, 16))).astype(np.float32)
            file.tensors[f"blk.{layer}.ssm_d"] = file.random.normal(0, 0.5, 2 * H).astype(np.float32)
            if jamba:
                file.layer(layer, ssm_dt_norm=16, ssm_b_norm=16, ssm_c_norm=16)
        if jamba:
            file.layer(layer, ffn_norm=H)
            file.mixture(layer) if layer % 2 else file.network(layer, 64)
    return file.ends(tied=True)


def llama4(layers=4, **keys):
    """Three layers of chunks, and one without RoPE that attends to all; every second layer is a mixture."""
    file = File("llama4", layers, context_length=10000, attention__head_count_kv=2, attention__key_length=32,
                attention__value_length=32, rope__dimension_count=32, interleave_moe_layer_step=2, expert_count=8,
                expert_used_count=2, expert_feed_forward_length=64, **keys)  # fmt: skip
    for layer in range(layers):
        file.layer(layer, attn_norm=H, ffn_norm=H)
        file.attention(layer, norm="")
        file.mixture(layer, shared=64) if layer % 2 else file.network(layer)
    return file.ends()


# Standard deviations; llama.cpp divides their squares by FFN - 1, the authors by FFN.
_CUT = 1.6448533535003662 * (FFN / (FFN - 1)) ** 0.5


def gemma3n(layers=6):
    """Four alternating streams; five of six layers have a window; those from the 21st on attend to
    others' keys and values."""
    local = [layer % 5 < 4 for layer in range(layers)]
    file = File(
        "gemma3n", layers, attention__head_count_kv=2, attention__key_length=32, attention__value_length=32,
        rope__freq_base=1e6, rope__freq_base_swa=1e4, rope__dimension_count=32, attention__sliding_window=8,
        attention__shared_kv_layers=max(0, layers - 20), embedding_length_per_layer_input=256, altup__active_idx=0,
        altup__num_inputs=4, final_logit_softcapping=30.0,
    )  # fmt: skip
    file.metadata["gemma3n.attention.sliding_window_pattern"] = np.array(local)
    file.metadata["gemma3n.activation_sparsity_scale"] = [_CUT] * min(10, layers) + [-np.inf] * max(0, layers - 10)
    file.tensor("per_layer_token_embd.weight", V, layers * 256, spread=0.5)
    file.tensor("per_layer_model_proj.weight", layers * 256, H)
    file.tensor("per_layer_proj_norm.weight", 256)
    for name in ("altup_proj", "altup_unembd_proj"):
        file.tensor(f"{name}.weight", 3, H, H)
    for layer in range(layers):
        file.layer(layer, attn_norm=H, post_attention_norm=H, ffn_norm=H, post_ffw_norm=H)
        file.attention(layer)
        file.network(layer)
        file.layer(layer, altup_router_norm=H, altup_router=(4, H), altup_predict_coef=(16, 4), altup_correct_coef=(4, 4))
        file.layer(layer, laurel_l=(64, H), laurel_r=(H, 64), laurel_post_norm=H, inp_gate=(256, H), proj=(H, 256))
        file.layer(layer, post_norm=H)
        file.tensor(f"blk.{layer}.altup_correct_scale.weight", H, mean=1, spread=0.05)
    return file.ends(tied=True)


def step35(layers=5):
    """A gate for each head, of which layers with a window have more; RoPE of the others turns half as much, and its frequencies
    are divided; activated gates are limited."""
    local, limits = [layer % 4 > 0 for layer in range(layers)], [0.0, 0.3, 0.0, 0.5, 0.3]
    file = File(
        "step35", layers, attention__head_count=[8 if near else 4 for near in local], attention__head_count_kv=[2] * layers,
        attention__key_length=32, attention__value_length=32, rope__dimension_count=32, rope__freq_base=1e6,
        rope__freq_base_swa=1e4, attention__sliding_window=8, expert_count=8, expert_used_count=2,
        expert_feed_forward_length=64, expert_shared_feed_forward_length=64, expert_weights_scale=3.0, expert_weights_norm=True,
        expert_gating_func=2, leading_dense_block_count=1, swiglu_clamp_exp=limits, swiglu_clamp_shexp=limits[::-1],
    )  # fmt: skip
    file.metadata["step35.attention.sliding_window_pattern"] = np.array(local)
    file.tensors["rope_freqs.weight"] = np.linspace(1, 8, 16).astype(np.float32)
    for layer, near in enumerate(local):
        heads = 8 if near else 4
        file.layer(layer, attn_norm=H, ffn_norm=H, attn_q=(heads * 32, H), attn_k=(64, H), attn_v=(64, H), attn_q_norm=32)
        file.layer(layer, attn_k_norm=32, attn_gate=(heads, H), attn_output=(H, heads * 32))
        network(file, layer)
    return file.ends()


def mimo2(local=(0, 1, 1, 0, 1)):
    """Values are smaller than keys and have a factor; layers with a window have more heads, and sinks; a layer's projections
    may be one matrix."""
    file = File(
        "mimo2", len(local), attention__head_count=[8 if near else 4 for near in local],
        attention__head_count_kv=[4 if near else 2 for near in local], attention__key_length=64, attention__value_length=32,
        attention__value_scale=0.6, rope__dimension_count=16, rope__freq_base=1e6, rope__freq_base_swa=1e4,
        attention__sliding_window=8, expert_count=8, expert_used_count=2, expert_feed_forward_length=64,
    )  # fmt: skip
    file.metadata["mimo2.attention.sliding_window_pattern"] = np.array(local, bool)
    for layer, near in enumerate(local):
        heads, kv = (8, 4) if near else (4, 2)
        file.layer(layer, attn_norm=H, ffn_norm=H)
        if layer == 2:
            file.layer(layer, attn_qkv=(heads * 64 + kv * 96, H))
        else:
            file.layer(layer, attn_q=(heads * 64, H), attn_k=(kv * 64, H), attn_v=(kv * 32, H))
        file.layer(layer, attn_output=(H, heads * 32), **dict(attn_sinks=heads) if near else {})
        network(file, layer, shared=0)
    return file.ends()


def phimoe(long=False):
    """LayerNorm, and shares that are softmaxes over near scores; ``long``: with LongRoPE, of which files have another scale."""
    file = File("phimoe", 3, feed_forward_length=64, attention__head_count_kv=2, rope__dimension_count=32,
                expert_count=8, expert_used_count=2)  # fmt: skip
    if long:
        file.keys(rope__scaling__original_context_length=4096, rope__scaling__attn_factor=1.19)
        for which, most in (("long", 4), ("short", 2)):
            file.tensors[f"rope_factors_{which}.weight"] = np.linspace(1, most, 16).astype(np.float32)
    for layer in range(3):
        file.layer(layer, attn_norm=H, ffn_norm=H, attn_norm__bias=H, ffn_norm__bias=H)
        file.attention(layer, norm="", attn_q__bias=128, attn_k__bias=64, attn_v__bias=64, attn_output__bias=H)
        file.mixture(layer)
        scores = f"blk.{layer}.ffn_gate_inp.weight"
        file.tensors[scores][1::2] = 1.001 * file.tensors[scores][::2]  # each has one that is near
    file.ends().tensor("output_norm.bias", H, mean=False)
    file.tensor("output.bias", V)
    return file


def kimi_k3(kinds=(0, 1, 0, 0, 1), **keys):
    """As kimi, with a bank of the inputs of each second layer; experts take and give a latent; bounded activations."""
    file = kimi("kimi-k3", kinds, kda__gate_lower_bound=-5.0, expert_latent_length=64, attn_res__block_size=2,
                activation__situ_beta=4.0, activation__situ_linear_beta=25.0, **keys)  # fmt: skip
    for layer, attends in enumerate(kinds):
        for name in ("attn", "ffn"):
            file.tensor(f"blk.{layer}.{name}_res_score.weight", H, spread=0.03)
        if attends:
            file.layer(layer, attn_gate=(64, H))
        else:
            del file.tensors[f"blk.{layer}.ssm_g_a.weight"], file.tensors[f"blk.{layer}.ssm_g_b.weight"]
            file.layer(layer, ssm_g=(128, H))
            file.tensors[f"blk.{layer}.ssm_a"] = file.tensors[f"blk.{layer}.ssm_a"].ravel()
        if layer:
            file.layer(layer, ffn_routed_down=(64, H), ffn_routed_norm=64, ffn_routed_up=(H, 64))
            file.layer(layer, ffn_gate_exps=(8, 64, 64), ffn_up_exps=(8, 64, 64), ffn_down_exps=(8, 64, 64))
    file.tensor("output_res_score.weight", H, spread=0.03)
    return file


def afmoe(layers=5):
    """A gate for each number of attention; norms before and after both networks."""
    file = File(
        "afmoe", layers, attention__head_count_kv=2, attention__key_length=32, attention__value_length=32,
        attention__sliding_window=8, **_EXPERTS,
    )  # fmt: skip
    for layer in range(layers):
        file.layer(layer, attn_norm=H, post_attention_norm=H, ffn_norm=H, post_ffw_norm=H, attn_gate=(128, H))
        file.attention(layer)
        network(file, layer)
    return file.ends()


def glm5_next(kinds=(0, 1, 0, 1), types=(1, 1, 1, 0)):
    """Kimi delta attention, and latent attention without RoPE to pools of four positions of which an index chooses the best
    two; four balanced streams whose mean is the end."""
    file = File(
        "glm5-next", len(kinds), attention__kv_lora_rank=32, attention__key_length=32, attention__value_length=32,
        attention__key_length_mla=32, attention__value_length_mla=16, rope__dimension_count=0, attention__q_lora_rank=32,
        attention__layer_norm_epsilon=1e-6, ssm__conv_kernel=4, kda__head_dim=32, kda__gate_lower_bound=-5.0,
        attention__indexer__kpool=4, hyper_connection__count=4, hyper_connection__sinkhorn_iterations=4,
        hyper_connection__epsilon=1e-6, swiglu_clamp_exp=0.5, **_EXPERTS | _INDEX,
    )  # fmt: skip
    file.keys(attention__head_count_kv=list(kinds), attention__indexer__types=list(types))
    for layer, attends in enumerate(kinds):
        for name in ("hc_attn", "hc_ffn"):
            file.tensor(f"blk.{layer}.{name}_fn.weight", 24, 4 * H, spread=0.05)
            file.tensor(f"blk.{layer}.{name}_base.weight", 24, spread=0.5)
            file.tensor(f"blk.{layer}.{name}_scale.weight", 3, mean=1)
        file.layer(layer, attn_norm=H, ffn_norm=H)
        if attends:
            latent(file, layer, plain=32, turned=0)
        else:
            kda(file, layer)
            file.tensors[f"blk.{layer}.ssm_a"] = file.tensors[f"blk.{layer}.ssm_a"].ravel()
        if attends and types[layer]:
            index(file, layer)
            file.layer(layer, indexer_compressor_gate=(64, H))
            file.tensor(f"blk.{layer}.indexer_compressor_ape.weight", 4, 64, spread=0.5)
        network(file, layer)
    return file.ends()


_PLAIN = (step35, afmoe, mimo2, phimoe, gemma3n, llama4, mamba, deepseek4, qwen4exp, dots3note, hy_v4)
FILES = {each.__name__: each for each in _PLAIN} | {
    "glm5-next": glm5_next,
    "kimi-k3": kimi_k3,
    "phimoe-long": lambda: phimoe(long=True),
    "gemma3n-shared": lambda: gemma3n(22),
    "falcon-mamba": lambda: mamba(normed=True),
    "jamba": lambda: mamba("jamba", kinds=(0, 1, 0, 0)),
    "qwen4exp-ngrams": lambda: qwen4exp(flat=True, ngrams=True),
    "kimi-linear": lambda: kimi("kimi-linear"),
    "bailingmoe3": lambda: kimi("bailingmoe3", full=True, kda__gate_lower_bound=-5.0, expert_shared_feed_forward_length=64),
    "glm-dsa": lambda: sparse("glm-dsa", (1, 0, 1, 0)),
    "deepseek32": lambda: sparse("deepseek32"),
    "hy_v4-dense": lambda: hy_v4(()),
}


def write(folder: Path, name: str, qtype: str = "F32") -> Path:
    """The file of that name in ``folder``, written once."""
    path = folder / f"kind-{name}-{qtype}.gguf"
    return path if path.exists() else FILES[name]().write(path, qtype)
