"""Families that are one row each: prompt and token by token against llama.cpp; more in tests/test_family_files.py."""

import llama_cpp
import model_files
import numpy as np
import pytest
import row_files
import torch
from test_family_files import BEGIN, TOKENS, decode, errors, model_of

import kit
from kit.errors import ModelError
from kit.model.architectures import ARCHITECTURES
from kit.model.hyperparameters import read_config


def most(name) -> float:
    """The error that is allowed: llama.cpp takes GELU from a table of float16."""
    return 1e-3 if ARCHITECTURES[row_files.FILES[name]().architecture].activation == "gelu" else 3e-6


@pytest.mark.parametrize("name", row_files.FILES)
def test_logits_are_llama_cpps(folder, name):
    path = row_files.write(folder, name)
    model, theirs = model_of(path), llama_cpp.logits(path, TOKENS)
    assert np.median(errors(model.logits(TOKENS).numpy(), theirs)) < most(name)
    assert np.median(errors(decode(model), theirs[BEGIN - 1 :])) < most(name)


def test_what_such_a_family_may_say_and_kit_does_not_run(tmp_path):
    """A Baichuan of 40 layers has ALiBi, and a Nanbeige may run its layers several times: one line each."""
    for name, keys, says in (
        ("baichuan", dict(block_count=40), "has ALiBi, which kit does not run"),
        ("nanbeige", dict(num_loops=2), "nanbeige.num_loops.* should be 1"),
        ("hunyuan_vl", dict(rope__scaling__alpha=1000.0), "hunyuan_vl.rope.scaling.alpha"),
    ):
        file = row_files.FILES[name]()
        file.keys(**keys)
        with pytest.raises(ModelError, match=says) as caught:
            read_config(kit.open(file.write(tmp_path / f"{name}.gguf")))
        assert "\n" not in str(caught.value)


def test_logits_of_minicpm_are_multiplied_where_the_file_does_not_say_it(folder, tmp_path):
    """By 256 / hidden size, as transformers does: llama.cpp divides them."""
    source = model_files.write(folder, "minicpm")
    hidden = kit.open(source).metadata["minicpm.embedding_length"]
    lean = model_files.rewrite(source, tmp_path / "lean.gguf", lambda metadata, _: metadata.pop("minicpm.logit_scale"))
    said = model_files.rewrite(
        source, tmp_path / "said.gguf", lambda metadata, _: metadata.update({"minicpm.logit_scale": hidden / 256})
    )
    assert torch.equal(*(model_of(path).logits(TOKENS) for path in (lean, said)))
