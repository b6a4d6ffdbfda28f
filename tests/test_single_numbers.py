"""Numbers of a file that are rare: YaRN that stretches nothing, a layer that predicts and is not counted, gemma's 27B."""

import warnings

import family_files
import llama_cpp
import model_files
import numpy as np
import pytest
import torch

import kit
from kit.errors import ModelError

TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 500, 40)]


def error(got, right):
    return float(np.sqrt(((got - right) ** 2).mean(1)).max() / right.std())


def changed(folder, name, label, **keys):
    """A file with other metadata; the keys have "__" for "."."""

    def change(metadata, tensors):
        architecture = metadata["general.architecture"]
        metadata.update({f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()})

    return model_files.rewrite(model_files.write(folder, name), folder / f"{label}.gguf", change)


@pytest.mark.parametrize("factor", [0.5, 0.25, 1.0, 4.0])
@pytest.mark.parametrize("name", ["yarn", "yarn-neox", "olmo3", "tiny-gpt-oss"])
def test_yarn_of_any_factor_gives_llama_cpps_logits(folder, name, factor):
    """Below 1 the magnitude stays 1 (Peng et al. 2023, and llama.cpp's get_mscale)."""
    path = changed(folder, name, f"{name}-{factor}", rope__scaling__factor=factor)
    assert error(kit.Transformer(path).logits(TOKENS).numpy(), llama_cpp.logits(path, TOKENS)) < 1e-4


def test_a_layer_that_predicts_and_is_not_counted_is_refused(folder):
    def change(metadata, tensors):
        del metadata["glm4moe.nextn_predict_layers"]
        tensors["blk.2.nextn.eh_proj.weight"] = np.zeros((256, 512), np.float32)
        tensors["blk.2.nextn.enorm.weight"] = tensors["blk.2.nextn.hnorm.weight"] = np.ones(256, np.float32)

    path = model_files.rewrite(model_files.write(folder, "glm4moe"), folder / "predicting.gguf", change)
    with pytest.raises(ModelError, match=r"belongs to a layer that predicts .* convert the model again"):
        kit.Transformer(path)


def test_a_layer_that_is_counted_and_predicts_nothing_is_refused(folder):
    """kit left the last layers of such a deepseek4 out, llama.cpp runs them: logits differed by 0.6."""
    path = changed(folder, "glm4moe", "counted", nextn_predict_layers=1)
    with pytest.raises(ModelError, match=r"nextn_predict_layers counts layer 2, which has no tensor of nextn"):
        kit.Transformer(path)


@pytest.mark.parametrize("name, layers", [("tiny-gemma2", 46), ("tiny-gemma3", 62)])
def test_the_27b_of_gemma_has_its_scale_of_attention_in_every_engine(folder, name, layers):
    """hidden_size / heads in place of the heads' size: gemma-2-27b and gemma-3-27b are known by their number of layers."""

    def change(metadata, tensors):
        architecture = metadata["general.architecture"]
        old = metadata[f"{architecture}.block_count"]
        metadata[f"{architecture}.block_count"] = layers
        if architecture == "gemma2":  # what transformers takes for granted
            metadata |= {"gemma2.attn_logit_softcapping": 50.0, "gemma2.final_logit_softcapping": 30.0}
        for each, tensor in [*tensors.items()]:
            if each.startswith("blk."):
                number, rest = int(each.split(".")[1]), each.split(".", 2)[2]
                tensors |= {f"blk.{layer}.{rest}": tensor for layer in range(number + old, layers, old)}

    path = model_files.rewrite(model_files.write(folder, name), folder / f"{name}-27b.gguf", change)
    theirs, ids = llama_cpp.logits(path, TOKENS[:12]), torch.tensor([TOKENS[:12]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = [kit.hf.load(path, engine=engine)[0](ids).logits[0].numpy() for engine in ("auto", "modules")]
    for logits in (kit.Transformer(path).logits(TOKENS[:12]).numpy(), *runs):
        assert error(logits, theirs) < 2e-2  # many layers of random weights, and GELU of float16; 0.2 with the other scale
    assert error(runs[0], runs[1]) < 1e-3


def test_qwen3vl_rotates_the_pairs_that_no_section_covers(folder):
    """As its authors' code: the interleaved sections overwrite what the text's position gives. ggml takes a fourth position for
    them, which is 0: with their frequencies at 0 the logits are llama.cpp's."""

    def change(metadata, tensors):
        metadata["qwen3vl.rope.dimension_sections"] = [8, 4, 4, 0]

    path = model_files.rewrite(family_files.write(folder, "qwen3vl"), folder / "sections.gguf", change)
    tokens = TOKENS * 4
    model, theirs = kit.Transformer(path), llama_cpp.logits(path, tokens)
    assert error(model.logits(tokens).numpy(), theirs) > 1e-3
    (rope,) = model.ropes.values()
    rope._frequencies[[13, 14]] = 0  # of sixteen: 1 and 2 of each three up to 12 are the second and third section's
    assert error(model.logits(tokens).numpy(), theirs) < 1e-4


def test_a_refusal_names_transformers_where_it_maps_the_family():
    """The list against transformers' own."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    from kit.model.architectures import ARCHITECTURES
    from kit.model.hyperparameters import BY_TRANSFORMERS

    inner = {"general", "tokenizer", "umt5", "gpt_oss", "minimax_m2", "qwen2_moe", "qwen3_moe"}
    assert set(GGUF_CONFIG_MAPPING) - inner - set(ARCHITECTURES) | {"t5encoder"} == BY_TRANSFORMERS
