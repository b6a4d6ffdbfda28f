"""Tiny GGUF files of architectures that transformers maps, in quantized blocks, written from its own tables of names."""

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import quantize
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

_SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=128)
_KV = _SIZES | dict(num_key_value_heads=2, max_position_embeddings=64)
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2)  # their width is not in transformers' table: its default

# name in transformers' tables -> (configuration class, its arguments)
MODELS = {
    "llama": ("LlamaConfig", _KV),
    "gemma2": ("Gemma2Config", _KV | dict(head_dim=256, sliding_window=8)),
    "gemma3": ("Gemma3TextConfig", _KV | dict(head_dim=256, sliding_window=8)),
    "qwen2": ("Qwen2Config", _KV),
    "qwen3": ("Qwen3Config", _KV | dict(head_dim=128)),
    "falcon": ("FalconConfig", _SIZES | dict(num_kv_heads=1, new_decoder_architecture=False, multi_query=True)),
    "starcoder2": ("Starcoder2Config", _KV),
    "stablelm": ("StableLmConfig", _KV | dict(use_qkv_bias=True)),
    "gpt2": ("GPT2Config", dict(n_embd=64, n_layer=2, n_head=4, n_positions=1024, vocab_size=128)),
    "nemotron": ("NemotronConfig", _KV),
    "phi3": ("Phi3Config", _KV | dict(pad_token_id=0)),
    "bloom": ("BloomConfig", dict(hidden_size=64, n_layer=2, n_head=4, vocab_size=128)),
    "mamba": ("MambaConfig", dict(hidden_size=64, num_hidden_layers=2, state_size=32, vocab_size=128, time_step_rank=32)),
    "t5": ("T5Config", dict(d_model=64, d_ff=96, d_kv=16, num_layers=2, num_heads=4, vocab_size=128,
                            feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0)),
    "qwen2_moe": ("Qwen2MoeConfig", _KV | _EXPERTS),
    "qwen3_moe": ("Qwen3MoeConfig", _KV | _EXPERTS | dict(head_dim=16)),
    "minimax_m2": ("MiniMaxM2Config", _KV | dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, rotary_dim=8)),
    "lfm2": ("Lfm2Config", _KV | dict(conv_L_cache=3, layer_types=["conv", "full_attention"],
                                      block_auto_adjust_ff_dim=False)),
}  # fmt: skip
_WRITTEN = {  # what llama.cpp's converter writes and transformers takes from its own defaults: metadata of a real file
    "qwen3": {"attention.key_length": 128},
    "qwen2_moe": {"expert_feed_forward_length": 1408, "expert_shared_feed_forward_length": 5632},
    "qwen3_moe": {"expert_feed_forward_length": 768},
    "stablelm": {"rope.dimension_count": 4},
    "falcon": {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 1, "feed_forward_length": 256},
    "nemotron": {"rope.dimension_count": 8, "attention.layer_norm_epsilon": 1e-5},
}
ARCHITECTURES = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "minimax_m2": "minimax-m2"}
_TYPES = [gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "F16", "Q4_1")]
_TRANSPOSED = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")  # what GPT-2 keeps as Conv1D


def model_class(config):
    """The class for generation with that configuration."""
    autos = transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM
    return next(auto._model_mapping[type(config)] for auto in autos if type(config) in auto._model_mapping)


def write(folder: Path, name: str, change=None) -> Path:
    """The file of ``MODELS[name]``, random weights; ``change(metadata, tensors)`` edits dicts of values and float arrays."""
    path = folder / f"{name}.gguf"
    kind, arguments = MODELS[name]
    config = getattr(transformers, kind)(**arguments)
    architecture = ARCHITECTURES.get(name, name)
    metadata, tensors = _metadata(config, name), _tensors(config, architecture)
    if change:
        change(metadata, tensors)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_array("tokenizer.ggml.tokens", [f"<{token}>" for token in range(128)])
    for number, key in enumerate(("padding", "bos", "eos")):
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", number)
    for key, value in metadata.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        kinds.get(type(value), writer.add_string)(f"{architecture}.{key}", value)
    for number, (key, array) in enumerate(tensors.items()):
        if array.ndim > 1 and array.shape[-1] % 32 == 0 and "conv" not in key and key != "ssm_a":
            kind = _TYPES[number % len(_TYPES)]
            writer.add_tensor(key, quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(key, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config, name):
    values = {"rope_theta": 1e6 if name == "gemma3" else 10000.0}
    if name == "lfm2":
        values |= {"num_key_value_heads": [0, 2], "rms_norm_eps": 1e-5}
    wanted = {key: attribute for key, attribute in GGUF_CONFIG_MAPPING[name].items() if attribute}
    named = {key: values.get(attribute, getattr(config, attribute, None)) for key, attribute in wanted.items()}
    named |= _WRITTEN.get(name, {})
    return {key: value for key, value in named.items() if isinstance(value, (int, float, list))}


def _tensors(config, architecture):
    with torch.device("meta"):
        model = model_class(config)(config)
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config.to_dict())
    names = get_gguf_hf_weights_map(model, processor, num_layers=2)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    tied = model.all_tied_weights_keys
    rng = np.random.default_rng(0)
    tensors = {}
    for key, target in names.items():
        if target not in shapes or target in tied:
            continue
        shape = _stored_shape(key, shapes[target], architecture)
        noise = rng.standard_normal(shape, np.float32)
        key += ".weight" if key.endswith("_exps") else ""
        tensors[key] = -np.exp(noise) if "ssm_a" in key else 1 + noise / 10 if "norm.weight" in key else noise / 5
    return tensors


def _stored_shape(key, shape, architecture):
    """The shape that llama.cpp's converter writes to the file."""
    if key.endswith(("ffn_gate_exps", "ffn_up_exps")):
        return shape[0], shape[1] // 2, shape[2]
    if architecture == "gpt2" and key.endswith(_TRANSPOSED):
        return shape[::-1]
    if "conv" in key or "inp_shexp" in key:
        return tuple(size for size in shape if size > 1)
    return shape
