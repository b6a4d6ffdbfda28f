"""Gemma 3n by its authors: a file's weights in transformers' modules."""

import math

import model_files
import numpy as np
import torch
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

_MODEL = {
    "token_embd": "embed_tokens", "per_layer_token_embd": "embed_tokens_per_layer", "output_norm": "norm",
    "per_layer_model_proj": "per_layer_model_projection", "per_layer_proj_norm": "per_layer_projection_norm",
}  # fmt: skip
_LAYER = {
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}, "altup_router_norm": "altup.router_norm",
    "altup_router": "altup.modality_router", "altup_predict_coef": "altup.prediction_coefs",
    "altup_correct_coef": "altup.correction_coefs", "laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm", "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}  # fmt: skip


def _name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, _ = name.split(".")
        if part == "altup_correct_scale":
            return f"layers.{layer}.altup.correct_output_scale"
        return f"layers.{layer}.{_LAYER[part]}.weight"
    return f"{_MODEL[name.removesuffix('.weight')]}.weight"


def _kept(deviations):
    """The shares of a normal distribution below so many standard deviations above its mean."""
    return [(1 + math.erf(each / 2**0.5)) / 2 for each in deviations]


def forward(tokens: list[int], keys: dict, tensors: dict[str, np.ndarray]) -> np.ndarray:
    """Logits (tokens, vocabulary) float64. ``keys``: without the prefix; ``tensors``: by their names in the file."""
    layers = keys["block_count"]
    config = Gemma3nTextConfig(
        vocab_size=len(tensors["token_embd.weight"]), vocab_size_per_layer_input=len(tensors["per_layer_token_embd.weight"]),
        hidden_size=keys["embedding_length"], intermediate_size=keys["feed_forward_length"], num_hidden_layers=layers,
        hidden_size_per_layer_input=keys["embedding_length_per_layer_input"], head_dim=keys["attention.key_length"],
        num_attention_heads=keys["attention.head_count"], num_key_value_heads=keys["attention.head_count_kv"],
        rms_norm_eps=keys["attention.layer_norm_rms_epsilon"], sliding_window=keys["attention.sliding_window"],
        num_kv_shared_layers=keys["attention.shared_kv_layers"], laurel_rank=64, altup_num_inputs=4,
        layer_types=[f"{'full' if n % 5 == 4 else 'sliding'}_attention" for n in range(layers)],
        activation_sparsity_pattern=_kept(keys["activation_sparsity_scale"]), final_logit_softcapping=30.0,
    )  # fmt: skip
    model = Gemma3nForCausalLM(config).double().eval()
    state = {}
    for name, tensor in tensors.items():
        if name.startswith("altup_"):
            which = "altup_projections" if name == "altup_proj.weight" else "altup_unembed_projections"
            state |= {f"model.{which}.{number}.weight": torch.tensor(each) for number, each in enumerate(tensor)}
        else:
            state[f"model.{_name(name)}"] = torch.tensor(tensor)
    missing, unexpected = model.load_state_dict(state, strict=False)
    shared = [f"layers.{layer}.self_attn" for layer in range(layers - keys["attention.shared_kv_layers"], layers)]
    assert missing == ["lm_head.weight"] and all(any(own in name for own in shared) for name in unexpected)
    model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def of(path, tokens: list[int]) -> np.ndarray:
    """The same of a file of F32."""
    metadata, tensors = model_files.plain(path)
    keys = {key.partition(".")[2]: value for key, value in metadata.items() if key.startswith("gemma3n.")}
    return forward(tokens, keys, tensors)
