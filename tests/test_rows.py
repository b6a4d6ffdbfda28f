"""Families that are one row each: prompt and token by token against llama.cpp, and each tensor has its use."""

import os

import llama_cpp
import model_files
import numpy as np
import pytest
import row_files
import torch
from test_family_files import BEGIN, TOKENS, changed, decode, errors, model_of

import kit
from kit.errors import ModelError
from kit.model.architectures import ARCHITECTURES
from kit.model.hyperparameters import read_config

THOROUGH = os.environ.get("KIT_EXAMPLES") == "thorough"
SOME = [name for name in row_files.FILES if THOROUGH or name in ("exaone-moe", "falcon-40b", "minicpm3", "deci")]


def most(name) -> float:
    """The error that is allowed: llama.cpp takes GELU from a table of float16."""
    return 1e-3 if ARCHITECTURES[row_files.FILES[name]().architecture].activation == "gelu" else 3e-6


@pytest.mark.parametrize("name", row_files.FILES)
def test_logits_are_llama_cpps(folder, name):
    path = row_files.write(folder, name)
    model, theirs = model_of(path), llama_cpp.logits(path, TOKENS)
    assert np.median(errors(model.logits(TOKENS).numpy(), theirs)) < most(name)
    assert np.median(errors(decode(model), theirs[BEGIN - 1 :])) < most(name)


@pytest.mark.parametrize("name", SOME)
def test_the_recorded_pass_and_rows_of_a_batch_give_the_same(folder, name):
    path = row_files.write(folder, name)
    model = model_of(path)
    assert errors(decode(model), decode(model_of(path, recorded=False))).max() < 1e-5
    rows, caches = (TOKENS[:7], TOKENS[9:20]), [model.new_cache(32) for _ in range(2)]
    both = model.batch(rows, caches, torch.tensor([6, 17])).numpy()
    alone = np.concatenate([model.logits(row, -1).numpy() for row in rows])
    assert errors(both, alone).max() < 1e-5


@pytest.mark.parametrize("name", SOME)
def test_every_tensor_is_needed_and_another_is_refused(folder, name):
    file = kit.open(row_files.write(folder, name))
    config = read_config(file)
    free = {*config.optional_tensors(), *config.unread_tensors(), "output.weight"}
    free |= {tensor for tensor in file.tensors if tensor.endswith(("attn_norm_2.weight", "exp_probs_b"))}
    for tensor in sorted(set(file.tensors) - free):
        with pytest.raises(ModelError, match=f"the tensor '{tensor}' (is missing|has shape)|the tensor '.*' has no place"):
            read_config(changed(file, without=[tensor]))
    with pytest.raises(ModelError, match=f"the tensor 'blk.1.attn_q.scale' has no place in a {config.architecture} model"):
        read_config(changed(file, more=["blk.1.attn_q.scale"]))


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
