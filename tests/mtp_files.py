"""Files with an MTP head: a copy of a model's last layer that attends, with the tensors of section nextn and seeded weights;
and drafters of gemma4 in files of their own."""

import numpy as np
from model_files import rewrite

from kit.gguf.names import layer_of


def with_head(source, target, own: tuple[str, ...] = ("shared_head_norm",), seed: int = 0):
    """A copy of ``source`` whose last layer is there once more and predicts the token after the next. ``own``: which of
    shared_head_norm, embed_tokens and shared_head_head the head has for itself."""
    draw = np.random.default_rng(seed)

    def change(metadata, tensors):
        name = metadata["general.architecture"]
        last, width, vocabulary = metadata[f"{name}.block_count"] - 1, metadata[f"{name}.embedding_length"], 0
        vocabulary = len(tensors["token_embd.weight"])
        metadata |= {f"{name}.block_count": last + 2, f"{name}.nextn_predict_layers": 1}
        for each in [each for each in tensors if layer_of(each) == last]:
            tensors[each.replace(f"blk.{last}.", f"blk.{last + 1}.")] = tensors[each]
        shapes = {"eh_proj": (width, 2 * width), "enorm": (width,), "hnorm": (width,), "shared_head_norm": (width,)}
        shapes |= {"embed_tokens": (vocabulary, width), "shared_head_head": (vocabulary, width)}
        for each, shape in shapes.items():
            if each in ("eh_proj", "enorm", "hnorm", *own):
                values = draw.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape)
                tensors[f"blk.{last + 1}.nextn.{each}.weight"] = values.astype(np.float32)

    return rewrite(source, target, change)


def sidecar(source, target, seed: int = 0, local=(True, True, True, False), **more):
    """A gemma4-assistant for the gemma4 file ``source``, with the keys, names and shapes of llama.cpp's converter. ``local``:
    of each layer, whether it has a window; ``more``: other values of keys."""
    draw, width, heads, inner = np.random.default_rng(seed), 64, 4, 96

    def change(metadata, tensors):
        own = {key.removeprefix("gemma4."): value for key, value in metadata.items() if key.startswith("gemma4.")}
        wide, vocabulary = own["embedding_length"], len(tensors["token_embd.weight"])
        windows, kvs = own["attention.sliding_window_pattern"], own["attention.head_count_kv"]
        kv = {near: kvs[len(kvs) - 1 - windows[::-1].index(near)] for near in (True, False)}
        own = {key: value for key, value in own.items() if key.startswith(("rope.", "attention.")) or key == "context_length"}
        own |= {
            "block_count": len(local), "nextn_predict_layers": len(local), "embedding_length": width,
            "embedding_length_out": wide, "feed_forward_length": inner, "attention.head_count": heads,
            "attention.head_count_kv": [kv[near] for near in local], "attention.sliding_window_pattern": list(local),
            "attention.shared_kv_layers": len(local),
        }  # fmt: skip
        for key in [key for key in metadata if key.startswith("gemma4.")]:
            del metadata[key]
        metadata |= {f"gemma4-assistant.{key}": value for key, value in (own | more).items()}
        metadata["general.architecture"] = "gemma4-assistant"
        divisors = tensors["rope_freqs.weight"]
        tensors.clear()
        tensors["rope_freqs.weight"] = divisors
        shapes = {
            "token_embd": (vocabulary, width), "output_norm": (width,),
            "nextn.pre_projection": (width, 2 * wide), "nextn.post_projection": (wide, width),
        }  # fmt: skip
        for layer, near in enumerate(local):
            dim = own[f"attention.key_length{'_swa' if near else ''}"]
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in {
                "attn_norm": (width,), "attn_q": (heads * dim, width), "attn_output": (width, heads * dim),
                "attn_q_norm": (dim,), "post_attention_norm": (width,), "layer_output_scale": (1,), "ffn_norm": (width,),
                "ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner), "post_ffw_norm": (width,),
            }.items()}  # fmt: skip
        for name, shape in shapes.items():
            drawn = draw.normal(1.0, 0.1, shape) if len(shape) == 1 else draw.normal(0.0, 0.7 / shape[-1] ** 0.5, shape)
            drawn = drawn / shape[0] ** 0.5 if name.endswith("attn_q_norm") else drawn
            tensors[f"{name}.weight"] = drawn.astype(np.float32)

    return rewrite(source, target, change)
