"""HY 4 by its authors: a file's weights in transformers' modules. llama.cpp rotates other pairs of elements."""

import model_files
import numpy as np
import torch
from transformers.models.hy_v4.configuration_hy_v4 import HYV4Config
from transformers.models.hy_v4.modeling_hy_v4 import HYV4Model

_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj", "attn_gate": "self_attn.gate_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_output": "self_attn.o_proj", "indexer.attn_q_b": "self_attn.indexer.wq_b", "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm", "indexer.proj": "self_attn.indexer.weights_proj",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}, "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
_BARE = {f"hc_{name}_{part}": f"{name}_hc.{part}" for name in ("attn", "ffn") for part in ("fn", "base", "scale")}
_BARE |= {"attn_sinks": "self_attn.sinks"}  # names without ".weight"


def of(path, tokens: list[int]) -> np.ndarray:
    """Logits (tokens, vocabulary) float64 of a file of F32; of one without an index, attention to all."""
    keys, tensors = model_files.as_float64(path, "hy_v4")
    output, embedding = tensors.pop("output.weight"), tensors["token_embd.weight"]
    model = HYV4Model(_config(keys, len(embedding))).double().eval()
    missing, unexpected = model.load_state_dict(_state(keys, tensors), strict=False)
    assert not unexpected and all(".indexer." in name for name in missing)
    assert bool(missing) == ("attention.indexer.top_k" not in keys)
    with torch.no_grad():
        return (model(torch.tensor([tokens])).last_hidden_state[0] @ output.T).numpy()


def _config(keys, vocabulary) -> HYV4Config:
    turned, layers = keys["rope.dimension_count"], keys["block_count"]
    types = keys.get("attention.indexer.types", [1] * layers)
    dense = keys["leading_dense_block_count"]
    return HYV4Config(
        vocab_size=vocabulary, hidden_size=keys["embedding_length"], intermediate_size=keys["feed_forward_length"],
        moe_intermediate_size=keys["expert_feed_forward_length"], num_hidden_layers=layers,
        n_shared_experts=keys["expert_shared_count"],
        num_attention_heads=keys["attention.head_count"], n_routed_experts=keys["expert_count"], pad_token_id=None,
        bos_token_id=None, eos_token_id=None, num_experts_per_tok=keys["expert_used_count"],
        routed_scaling_factor=keys["expert_weights_scale"], norm_topk_prob=keys["expert_weights_norm"],
        max_position_embeddings=keys["context_length"], rms_norm_eps=keys["attention.layer_norm_rms_epsilon"],
        q_lora_rank=keys["attention.q_lora_rank"], kv_lora_rank=keys["attention.kv_lora_rank"], qk_rope_head_dim=turned,
        qk_nope_head_dim=keys["attention.key_length_mla"] - turned, v_head_dim=keys["attention.value_length_mla"],
        index_topk=keys.get("attention.indexer.top_k", keys["context_length"]),
        index_head_dim=keys.get("attention.indexer.key_length", 64), index_n_heads=keys.get("attention.indexer.head_count", 16),
        indexer_types=["full" if each else "shared" for each in types],
        mlp_layer_types=["dense"] * dense + ["sparse"] * (layers - dense), hc_mult=keys["hyper_connection.count"],
        hc_magnitude=keys["hyper_connection.magnitude"], hc_eps=keys["hyper_connection.epsilon"],
        swiglu_limit=next(iter(keys["swiglu_clamp_exp"])), experts_implementation="eager", attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": keys["rope.freq_base"]},
    )  # fmt: skip


def _state(keys, tensors) -> dict:
    """Projections that the file has absorbed as the modules have them."""
    state = {"embed_tokens.weight": tensors.pop("token_embd.weight"), "norm.weight": tensors.pop("output_norm.weight")}
    state |= {f"hc_head.hc_{part}": tensors.pop(f"output_hc_{part}.weight") for part in ("fn", "base", "scale")}
    for layer in range(keys["block_count"]):
        block, own = f"blk.{layer}.", f"layers.{layer}."
        k, v = (tensors.pop(f"{block}attn_{part}_b.weight") for part in "kv")
        state[f"{own}self_attn.kv_b_proj.weight"] = torch.cat([k.transpose(1, 2), v], 1).flatten(0, 1)
        if f"{block}ffn_gate_exps.weight" in tensors:
            stacks = [tensors.pop(f"{block}ffn_{part}_exps.weight") for part in ("gate", "up")]
            state[f"{own}mlp.experts.gate_up_proj"] = torch.cat(stacks, 1)
            state[f"{own}mlp.experts.down_proj"] = tensors.pop(f"{block}ffn_down_exps.weight")
            state[f"{own}mlp.gate.e_score_correction_bias"] = tensors.pop(f"{block}exp_probs_b.bias")
    for name, tensor in tensors.items():
        _, layer, *part, kind = name.split(".")
        part = ".".join(part)
        state[f"layers.{layer}.{_BARE[part] if part in _BARE else f'{_LAYER[part]}.{kind}'}"] = tensor
    return state
