"""Weights: a file, a dequantizer and a cache as one mapping."""

from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest
import torch

import kit
from kit.errors import ModelError
from kit.lab.synthetic.write import synthesize


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("weights") / "tiny.gguf", "tiny-granite")


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("weights") / "experts.gguf", "tiny-qwen3moe")


def reference(path):
    """Every tensor by gguf-py alone, shape (out, in)."""
    tensors = gguf.GGUFReader(path).tensors
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in tensors}


def test_every_tensor_equals_gguf_py(path):
    weights, truth = kit.Weights(kit.open(path)), reference(path)
    assert list(weights) == list(truth)
    for name, tensor in weights.items():
        np.testing.assert_array_equal(tensor.numpy(), truth[name], err_msg=name)
    assert weights.working_set == sum(array.nbytes for array in truth.values())


def test_a_hit_is_the_same_memory_and_a_miss_is_read_and_dequantized(path):
    weights = kit.Weights(kit.open(path), cache=kit.HashMap())
    name = "blk.1.ffn_up.weight"
    assert weights[name].data_ptr() == weights[name].data_ptr()
    frame = weights.trace.frame()
    assert list(frame["what"]) == ["read", "dequantize", "access", "access"]
    assert list(frame.query("what == 'access'")["outcome"]) == ["miss", "hit"]
    assert set(frame["layer"]) == {1}
    assert frame.iloc[0]["nbytes"] == weights.file.tensors[name].nbytes
    assert frame.iloc[1]["nbytes"] == weights.nbytes(name)


def test_rows_are_those_of_the_whole(path):
    weights = kit.Weights(kit.open(path))
    rows = weights.rows("token_embd.weight", torch.tensor([5, 0, 5]))
    assert torch.equal(rows, weights["token_embd.weight"][[5, 0, 5]])


def test_one_expert_of_a_stack_is_an_object_of_its_own(experts):
    weights, truth = kit.Weights(kit.open(experts), cache=kit.HashMap()), reference(experts)
    name = "blk.0.ffn_gate_exps.weight"
    third = weights[f"{name}[3]"]
    np.testing.assert_array_equal(third.numpy(), truth[name][3])
    assert weights.nbytes(f"{name}[3]") == third.nbytes == weights.nbytes(name) // len(truth[name])
    assert weights.store.stats.resident_bytes == third.nbytes


@pytest.mark.parametrize("options", [{}, {"workers": 3}, {"read_ahead": True}, {"names": ["output_norm.weight"]}])
def test_preload_makes_every_later_access_a_hit(path, options):
    weights = kit.Weights(kit.open(path), cache=kit.HashMap())
    weights.preload(**options)
    wanted = options.get("names", list(weights))
    assert weights.store.stats.misses == weights.store.stats.entries == len(wanted)
    for name in wanted:
        weights[name]
    assert weights.store.stats.hits == len(wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_narrower_dtype_is_the_rounded_float32(path, dtype):
    file = kit.open(path)
    narrow, wide = kit.Weights(file, dtype=dtype), kit.Weights(file)
    name = "blk.0.attn_v.weight"
    assert torch.equal(narrow[name], wide[name].to(getattr(torch, dtype)))
    assert narrow.nbytes(name) * 2 == wide.nbytes(name)


@pytest.mark.parametrize("use", [lambda w: w["x"], lambda w: w.nbytes("x"), lambda w: w.rows("x", torch.tensor([0]))])
def test_a_tensor_that_is_not_there_is_named_with_its_file(path, use):
    with pytest.raises(ModelError, match=r"tiny\.gguf: no tensor 'x'"):
        use(kit.Weights(kit.open(path)))


@pytest.mark.parametrize("name", [f"blk.0.ffn_gate_exps.weight[{i}]" for i in ("4000", "-1")] + ["output_norm.weight[x]"])
def test_an_expert_that_is_not_there_is_an_error(experts, name):
    with pytest.raises(ModelError, match="no tensor"):
        kit.Weights(kit.open(experts))[name]


def test_a_decode_and_a_preload_at_once(path):
    """Four threads decode while two preload: the logits are those of one thread alone, and every tensor is loaded once."""
    tokens = [1, 5, 9]
    expected = kit.Transformer(kit.Weights(kit.open(path), kit.NoCache())).logits(tokens)
    weights = kit.Weights(kit.open(path), cache=kit.HashMap())
    with ThreadPoolExecutor(6) as pool:
        preloads = [pool.submit(weights.preload) for _ in range(2)]
        decodes = [pool.submit(lambda: kit.Transformer(weights).logits(tokens)) for _ in range(4)]
        assert all(torch.equal(decode.result(), expected) for decode in decodes)
        assert [preload.result() for preload in preloads] == [None, None]
    stats = weights.store.stats
    assert stats.misses == stats.entries == len(weights) and stats.bytes_loaded == weights.working_set
