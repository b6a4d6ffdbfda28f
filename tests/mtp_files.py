"""Files with an MTP head: a copy of a model's last layer that attends, with the tensors of section nextn and seeded weights."""

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
