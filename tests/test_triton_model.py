"""The transformer on the device by the Triton interpreter: blocks through caches, experts, a key/value cache that grows."""

from dataclasses import replace

import model_files
import numpy as np
import pytest
import torch
import triton_worker as worker

import kit
from kit.lab.on_device.device_kvcache import DeviceKVCache
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.lab.synthetic.write import synthesize


def test_what_the_device_cannot_run_is_an_error(call, tmp_path):
    dense = synthesize(tmp_path / "tiny.gguf", "tiny-llama")
    experts = synthesize(tmp_path / "experts.gguf", "tiny-qwen3moe")
    assert "does not keep" in call(worker.refusal, dense, {"graphs": True})
    assert "CUDA graphs do not support a mixture of experts" in call(worker.refusal, experts, {"graphs": True})
    latent = synthesize(tmp_path / "latent.gguf", "tiny-deepseek2")
    assert "layers of the kind Latent run only on the CPU" in call(worker.refusal, latent, {})
    assert "choose one of float32, float16, bfloat16" in call(worker.refusal, dense, {"kv_dtype": "q8_0"})


@pytest.mark.slow
def test_the_models_logits_and_tokens(call, tmp_path):
    """With a device cache smaller than the model, blocks stream through it, and the numbers are the same."""
    path = synthesize(tmp_path / "tiny.gguf", "tiny-qwen3")
    model = kit.Transformer(kit.Weights(kit.open(path), kit.NoCache()))
    prompt = list(range(12))
    logits, tokens, stats, host, prefetched = call(worker.generate, path, prompt, 2, "300 KiB")
    np.testing.assert_allclose(logits, model.logits(prompt).numpy(), rtol=0, atol=2e-5 * float(logits.std()))
    assert tokens == kit.generate(model, prompt, max_tokens=2, stop_at_end=False).tokens
    assert stats.evictions and stats.prefetched and stats.peak_bytes <= 300 * 1024
    assert "blk.0.attn_k.weight" in prefetched
    assert host.misses == len([tensor for tensor in kit.open(path).tensors.values()])


@pytest.mark.parametrize(
    "name",
    [
        *("gemma3", "gpt-oss", "cohere2", "dots1"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in "gemma2 olmo2 phi3 smollm3 olmo phi2 glm4 hunyuan-dense".split()
        ),
    ],
)
def test_every_architecture_gives_the_cpus_logits(call, tmp_path, name):
    """Prefill past a window of four positions, then decoding; of few columns, for the interpreter's time."""
    path = few_columns(tmp_path, GEOMETRIES.get(f"tiny-{name}") or model_files.FAMILIES[name])
    model, batches = kit.Transformer(kit.Weights(kit.open(path), kit.NoCache())), ([1, 5, 9, 2, 7, 3], [4])
    cache = model.new_cache()
    for batch, logits in zip(batches, call(worker.steps, path, batches), strict=True):
        right = model.step(batch, cache).numpy()
        np.testing.assert_allclose(logits, right, rtol=0, atol=2e-5 * float(right.std()))


def few_columns(folder, row):
    """A file of a model of this kind that the interpreter computes in little time."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "heads": 4, "kv_heads": row.kv_heads, "head_dim": 8}
    few = {"attention.sliding_window": 4, "rope.dimension_count": 4, "expert_feed_forward_length": 32, "expert_count": 4}
    more = row.more | {key: few[key] for key in few if key in row.more}
    row = replace(row, **sizes, more=more, vocabulary=replace(row.vocabulary, size=300))
    return synthesize(folder / "few.gguf", row, "F32")


def test_the_cache_grows_and_keeps_what_it_holds():
    """Capacity grows by powers of two up to the context; graphs are dropped only when the addresses change."""
    cache = DeviceKVCache(2 * [(1, 4)], 600, "float32", torch.device("cpu"))
    rows, graphs = torch.randn(600, 1, 4), []
    capacities = []
    for length in range(0, 600, 50):
        cache.reserve(length + 50)
        capacities.append(cache.capacity)
        graphs.append(cache.graphs.setdefault(cache.rounded(cache.length + 50), object()))
        for layer in range(2):
            some = rows[length : length + 50]
            keys, values = cache.append(layer, torch.arange(length, length + 50), some + layer, some - layer, length + 50)
            held = rows[: length + 50, 0]
            assert torch.equal(keys[0], held + layer) and torch.equal(values[0], held - layer)
        cache.advance(50)
    assert capacities == [256] * 5 + [512] * 5 + [600] * 2 and len(set(map(id, graphs))) == 3 and len(cache.graphs) == 1
    assert cache.nbytes == 600 * cache.bytes_per_position == 600 * 2 * 2 * 4 * 4
    cache.truncate(10)
    held = cache.keys[1].data_ptr()
    cache.reserve(600)
    assert cache.keys[1].data_ptr() == held and cache.rounded(11) == 256


def test_a_full_device_is_one_clear_error(monkeypatch):
    cache = DeviceKVCache(40 * [(8, 128)], 131072, "bfloat16", torch.device("cpu"))
    assert cache.capacity == 0, "an empty cache of granite's whole context takes nothing"
    cache.reserve(1)
    before = cache.keys
    refuse = lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "new_zeros", refuse)
    with pytest.raises(kit.KitError, match=r"of 512 positions in bfloat16, 80\.00 MiB more than the 40\.00 MiB in use"):
        cache.reserve(257)
    assert cache.keys is before and cache.capacity == 256


@pytest.mark.slow
def test_decoding_goes_on_where_the_cache_grows(call, tmp_path):
    path = few_columns(tmp_path, GEOMETRIES["tiny-llama"])
    prompt = [int(token) for token in np.random.default_rng(2).integers(0, 300, 255)]
    tokens = call(worker.generate, path, prompt, 4, "1 GiB", 300, False)[1]
    right = kit.generate(kit.Transformer(kit.Weights(kit.open(path), kit.NoCache())), prompt, max_tokens=4, stop_at_end=False)
    assert tokens == right.tokens


@pytest.mark.slow
def test_experts_through_a_small_device_cache(call, tmp_path):
    """Prefill by few tokens and by many (where an expert gets few of them), then decoding: only used experts are read."""
    path = synthesize(tmp_path / "experts.gguf", "tiny-qwen3moe")
    model = kit.Transformer(kit.Weights(kit.open(path), kit.NoCache()))
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    logits, tokens, stats, _, prefetched = call(worker.generate, path, prompt, 3, "200 KiB")
    np.testing.assert_allclose(logits, model.logits(prompt).numpy(), rtol=0, atol=2e-5 * float(logits.std()))
    assert tokens == kit.generate(model, prompt, max_tokens=3, stop_at_end=False).tokens
    assert stats.evictions and stats.peak_bytes <= 200 * 1024
    assert {name.rpartition("[")[0] for name in prefetched} >= {
        f"blk.1.ffn_{part}_exps.weight" for part in ("gate", "up", "down")
    }


def test_an_expert_that_every_token_passes(call, tmp_path):
    """With granite's multipliers and biases, one of them on the shared expert."""
    source = model_files.write(tmp_path, "granitemoe")
    path = model_files.rewrite(source, tmp_path / "shared.gguf", model_files.shared_expert)
    right = kit.Transformer(kit.Weights(kit.open(path), kit.NoCache())).logits([7, 1, 7]).numpy()
    logits = call(worker.generate, path, [7, 1, 7], 1, "1 GiB")[0]
    np.testing.assert_allclose(logits, right, rtol=0, atol=2e-5 * float(right.std()))


def test_one_expert_of_a_stack(call, tmp_path):
    path = synthesize(tmp_path / "experts.gguf", "tiny-qwen3moe")
    name = "blk.0.ffn_down_exps.weight"
    with kit.open(path) as file:
        stack, count = file.blocks(name), file.tensors[name].shape[0]
        for expert in (0, count - 1):
            blocks, nbytes = call(worker.blocks, path, f"{name}[{expert}]")
            assert np.array_equal(blocks, stack[expert]) and nbytes == blocks.nbytes
    for wrong in (f"{name}[{count}]", f"{name}[-1]", "nothing"):
        assert "no tensor" in call(worker.blocks, path, wrong)
