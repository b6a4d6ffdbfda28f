"""dots3-note by its authors: a file's weights in transformers' modules. llama.cpp rotates other pairs of index keys."""

import model_files
import numpy as np
import torch
from transformers.models.dots3_note.configuration_dots3_note import Dots3NoteTextConfig
from transformers.models.dots3_note.modeling_dots3_note import Dots3NoteTextModel

_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj", "attn_gate": "self_attn.g_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_k_norm": "self_attn.k_rope_only_layernorm", "attn_output": "self_attn.o_proj",
    "indexer.attn_q_b": "self_attn.indexer.wq_b", "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm", "indexer.proj": "self_attn.indexer.weights_proj",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    "ffn_gate_inp": "mlp.gate",
}  # fmt: skip


def of(path, tokens: list[int]) -> np.ndarray:
    """Logits (tokens, vocabulary) float64 of a file of F32."""
    keys, tensors = model_files.as_float64(path, "dots3note")
    output, embedding = tensors.pop("output.weight"), tensors["token_embd.weight"]
    model = Dots3NoteTextModel(_config(keys, len(embedding))).double().eval()
    model.load_state_dict(_state(keys, tensors))
    with torch.no_grad():
        return (model(torch.tensor([tokens])).last_hidden_state[0] @ output.T).numpy()


def _config(keys, vocabulary) -> Dots3NoteTextConfig:
    local, heads = (list(keys[f"attention.{name}"]) for name in ("sliding_window_pattern", "head_count"))
    turned = keys["rope.dimension_count"]
    sizes = {}
    for prefix, ending in (("", ""), ("swa_", "_swa")):
        head, own = keys[f"attention.key_length_mla{ending}"], heads[local.index(bool(prefix))]
        sizes |= {
            f"{prefix}num_attention_heads": own, f"{prefix}num_key_value_heads": own, f"{prefix}head_dim": head,
            f"{prefix}q_lora_rank": keys["attention.q_lora_rank"], f"{prefix}qk_nope_head_dim": head - turned,
            f"{prefix}kv_lora_rank": keys[f"attention.kv_lora_rank{ending}"], f"{prefix}qk_rope_head_dim": turned,
            f"{prefix}v_head_dim": keys[f"attention.value_length_mla{ending}"],
            f"{prefix}rope_theta": keys[f"rope.freq_base{ending}"],
        }  # fmt: skip
    return Dots3NoteTextConfig(
        vocab_size=vocabulary, hidden_size=keys["embedding_length"], intermediate_size=keys["feed_forward_length"],
        moe_intermediate_size=keys["expert_feed_forward_length"], num_hidden_layers=keys["block_count"],
        shared_experts_intermediate_size=keys["expert_feed_forward_length"], n_shared_experts=keys["expert_shared_count"],
        n_routed_experts=keys["expert_count"], num_experts_per_tok=keys["expert_used_count"], pad_token_id=None,
        routed_scaling_factor=keys["expert_weights_scale"], norm_topk_prob=keys["expert_weights_norm"],
        first_k_dense_replace=keys["leading_dense_block_count"], max_position_embeddings=keys["context_length"],
        rms_norm_eps=keys["attention.layer_norm_rms_epsilon"], index_topk=keys["attention.indexer.top_k"],
        index_head_dim=keys["attention.indexer.key_length"], index_n_heads=keys["attention.indexer.head_count"],
        layer_types=["sliding_attention" if each else "indexed_attention" for each in local],
        sliding_window=keys["attention.sliding_window"], experts_implementation="eager", attn_implementation="eager", **sizes,
    )  # fmt: skip


def _state(keys, tensors) -> dict:
    """Projections that the file has absorbed, and factors that are in its norms, as the modules have them."""
    state = {"embed_tokens.weight": tensors.pop("token_embd.weight"), "norm.weight": tensors.pop("output_norm.weight")}
    hidden = keys["embedding_length"]
    for layer in range(keys["block_count"]):
        block, own = f"blk.{layer}.", f"layers.{layer}."
        k, v = (tensors.pop(f"{block}attn_{part}_b.weight") for part in "kv")
        state[f"{own}self_attn.kv_b_proj.weight"] = torch.cat([k.transpose(1, 2), v], 1).flatten(0, 1)
        for part in ("q", "kv"):
            norm = tensors[f"{block}attn_{part}_a_norm.weight"]
            norm /= (hidden / len(norm)) ** 0.5
        if f"{block}ffn_gate_exps.weight" in tensors:
            stacks = [tensors.pop(f"{block}ffn_{part}_exps.weight") for part in ("gate", "up")]
            state[f"{own}mlp.experts.gate_up_proj"] = torch.cat(stacks, 1)
            state[f"{own}mlp.experts.down_proj"] = tensors.pop(f"{block}ffn_down_exps.weight")
            state[f"{own}mlp.gate.e_score_correction_bias"] = tensors.pop(f"{block}exp_probs_b.bias")
    for name, tensor in tensors.items():
        _, layer, *part, kind = name.split(".")
        state[f"layers.{layer}.{_LAYER['.'.join(part)]}.{kind}"] = tensor
    return state
