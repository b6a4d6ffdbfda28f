"""Phi-3.5-MoE by its authors: a file's weights in transformers' modules. llama.cpp has another norm and another router."""

import model_files
import numpy as np
import torch
from transformers import PhimoeConfig, PhimoeForCausalLM

_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}, "ffn_gate_inp": "mlp.router",
}  # fmt: skip
_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def of(path, tokens: list[int]) -> np.ndarray:
    """Logits (tokens, vocabulary) float64 of a file of F32."""
    metadata, tensors = model_files.plain(path)
    keys = {key.partition(".")[2]: value for key, value in metadata.items() if key.startswith("phimoe.")}
    rope = {"rope_type": "default", "rope_theta": keys["rope.freq_base"]}
    if "rope_factors_long.weight" in tensors:
        factors = {f"{which}_factor": tensors.pop(f"rope_factors_{which}.weight").tolist() for which in ("long", "short")}
        rope |= factors | {"rope_type": "longrope", "short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122}
        rope |= {"original_max_position_embeddings": keys["rope.scaling.original_context_length"]}
    config = PhimoeConfig(
        vocab_size=len(tensors["token_embd.weight"]), hidden_size=keys["embedding_length"],
        intermediate_size=keys["feed_forward_length"], num_hidden_layers=keys["block_count"],
        num_attention_heads=keys["attention.head_count"], num_key_value_heads=keys["attention.head_count_kv"],
        rms_norm_eps=keys["attention.layer_norm_rms_epsilon"], num_local_experts=keys["expert_count"], sliding_window=None,
        num_experts_per_tok=keys["expert_used_count"], attention_bias=True, lm_head_bias=True, rope_parameters=rope,
        experts_implementation="eager",
        max_position_embeddings=keys["context_length"],
    )  # fmt: skip
    state = {}
    for name, tensor in tensors.items():
        *blk, part, kind = name.split(".")
        own = f"model.layers.{blk[1]}.{_LAYER.get(part, part)}" if blk else _MODEL[part]
        state[f"{own}.{kind}"] = torch.tensor(tensor)
    for layer in range(keys["block_count"]):
        own = f"model.layers.{layer}."
        gate, up, down = (state.pop(f"{own}ffn_{part}_exps.weight") for part in ("gate", "up", "down"))
        state |= {f"{own}mlp.experts.gate_up_proj": torch.cat([gate, up], 1), f"{own}mlp.experts.down_proj": down}
    model = PhimoeForCausalLM(config).double().eval()
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()
