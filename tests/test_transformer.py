"""Logits against an independent float64 forward pass and against llama.cpp; what a pass reads; the KV cache."""

import threading

import gguf
import llama_cpp
import model_files
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference_model import forward

import kit
from kit.errors import ModelError
from kit.gguf import pagecache
from kit.lab.synthetic.geometry import decode_order
from kit.model import cpu_ops
from kit.model.forward import Ops
from kit.model.kvcache import KV_TYPES, FixedState, KVCache, SequenceCache
from kit.model.linear import LINEAR
from kit.model.plan import Plan

PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 500, 40)]


@pytest.fixture(scope="module")
def reference(folder):
    """Name of a model -> its float64 logits after each token of PROMPT, computed once."""
    known = {}

    def of(name):
        if name not in known:
            known[name] = forward(PROMPT, *model_files.plain(model_files.write(folder, name)))
        return known[name]

    return of


def model_of(folder, name, **options):
    return kit.Transformer(kit.Weights(kit.open(model_files.write(folder, name)), kit.HashMap()), **options)


def error(got, expected):
    """RMS of the difference over the standard deviation of what is right."""
    return np.sqrt(np.mean((np.asarray(got) - expected) ** 2)) / expected.std()


def decode(model, prompt, prefill):
    """Logits after each token from the ``prefill``-th on: a prefill, then one token at a time."""
    cache = model.new_cache()
    first = model.step(prompt[:prefill], cache)
    return torch.stack([first, *(model.step([token], cache) for token in prompt[prefill:])])


@pytest.mark.parametrize("name", model_files.MODELS)
def test_prefill_and_decode_equal_float64(folder, reference, name):
    model, expected = model_of(folder, name), reference(name)
    assert error(model.logits(PROMPT), expected) < 1e-5
    assert error(decode(model, PROMPT, 30), expected[29:]) < 1e-5
    assert error(decode(model, PROMPT[:20], 1), expected[:20]) < 1e-5


@pytest.fixture
def rounded_gelu(monkeypatch):
    """GELU as ggml computes it on a CPU: from a table, float16 to float16. It alone is 4e-4 of the logits' spread."""
    gelu = lambda x: F.gelu(x.half().float(), approximate="tanh").half().float()  # noqa: E731
    monkeypatch.setitem(cpu_ops.ACTIVATIONS, "gelu", lambda gate, up: gelu(gate) * up)
    monkeypatch.setitem(cpu_ops.UNGATED, "gelu", gelu)


@pytest.mark.parametrize("name", [name for name in model_files.MODELS if name != "partial"])  # llama.cpp refuses it
def test_equals_llama_cpp(folder, rounded_gelu, name):
    """With F32 weights and a prompt within the window, since llama.cpp ignores the window of llama and phi files."""
    prompt = PROMPT[:16] if name in ("tiny-mistral", "tiny-phi3") else PROMPT
    theirs = llama_cpp.logits(model_files.write(folder, name), prompt, 512)
    tolerance = 2e-4 if "gemma" in name else 1e-5  # a last bit of float16 now and then, carried on from layer to layer
    assert error(model_of(folder, name).logits(prompt), theirs) < tolerance


@pytest.mark.parametrize("name", model_files.FAMILIES)
def test_families_equal_llama_cpp(folder, rounded_gelu, name):
    """Prefill, and tokens one by one: latent attention (MLA) absorbed and not, mixtures by sigmoid, bias and groups, shared
    experts, dense layers first; LayerNorm, one input of attention and feed-forward layer, none gated."""
    tolerance = 2e-4 if name in ("starcoder2", "phi2") else 1e-5  # GELU's last bit of float16
    theirs = llama_cpp.logits(model_files.write(folder, name), PROMPT, 512)
    model = model_of(folder, name)
    assert error(model.logits(PROMPT), theirs) < tolerance
    assert error(decode(model, PROMPT, 30), theirs[29:]) < tolerance


def test_a_latent_is_all_history(folder):
    """Absorbed, a position holds one latent and the rotated key a layer, in any type of history; expanded, heads twice."""
    model, expanded = model_of(folder, "tiny-deepseek2"), model_of(folder, "deepseek2-expanded")
    assert model.new_cache().bytes_per_position == 3 * (64 + 32) * 4
    assert expanded.new_cache().bytes_per_position == 3 * 2 * 4 * 80 * 4
    right = model.logits(PROMPT[:20])
    for kind, tolerance in (("float16", 1e-3), ("q8_0", 2e-2)):
        rounded = model_of(folder, "tiny-deepseek2", kv_dtype=kind)
        assert error(decode(rounded, PROMPT[:20], 15), right[14:].numpy()) < tolerance


@pytest.mark.parametrize("attention", ["loop", "strided", "sdpa", "chunked", "blas"])
def test_every_attention_takes_a_latent(folder, attention):
    right = model_of(folder, "tiny-deepseek2").logits(PROMPT[:24]).numpy()
    assert error(model_of(folder, "tiny-deepseek2", attention=attention).logits(PROMPT[:24]), right) < 1e-5


@pytest.mark.parametrize("name", ["tiny-gemma2", "tiny-gemma3", "olmo3", "tiny-gpt-oss"])
def test_past_the_window_it_equals_llama_cpp(folder, rounded_gelu, name):
    """600 positions, most in one prefill and the last one by one; the window is 512 in gemma3 and 16 in the others."""
    prompt = (PROMPT * 15)[:600]
    theirs = llama_cpp.logits(model_files.write(folder, name), prompt, 512)
    model = model_of(folder, name)
    assert error(decode(model, prompt, 596), theirs[595:]) < (2e-4 if "gemma" in name else 1e-5)


def test_large_activations_are_clamped_in_gpt_oss(folder):
    """With large gates, unlike those of a generated file; without the clamp the logits differ."""

    def change(metadata, tensors):
        for name in [name for name in tensors if "ffn_gate_exps.w" in name or "ffn_up_exps.w" in name]:
            tensors[name] = tensors[name] * 40

    path = model_files.rewrite(model_files.write(folder, "tiny-gpt-oss"), folder / "large.gguf", change)
    expected = forward(PROMPT[:12], *model_files.plain(path))
    model = kit.Transformer(kit.Weights(kit.open(path), kit.NoCache()))
    assert error(model.logits(PROMPT[:12]), expected) < 1e-5
    assert error(llama_cpp.logits(path, PROMPT[:12]), expected) < 1e-5
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cpu_ops.ACTIVATIONS, "clamped", lambda gate, up: gate * torch.sigmoid(1.702 * gate) * (up + 1))
        assert error(model.logits(PROMPT[:12]), expected) > 0.1


@pytest.mark.parametrize("attention", ["python", "loop", "strided", "sdpa", "chunked", "blas"])
@pytest.mark.parametrize("name", ["tiny-granite", "tiny-mistral", "tiny-gemma2", "tiny-gpt-oss"])
def test_every_attention_gives_the_same_logits(folder, reference, name, attention):
    tokens = 6 if attention == "python" else 24
    if attention == "sdpa" and name in ("tiny-gemma2", "tiny-gpt-oss"):
        with pytest.raises(kit.KitError, match="attention 'sdpa' does not support: choose one of python, loop"):
            model_of(folder, name, attention=attention).logits(PROMPT[:3])
        return
    model = model_of(folder, name, attention=attention)
    assert error(model.logits(PROMPT[:tokens]), reference(name)[:tokens]) < 1e-5


@pytest.mark.parametrize("linear", LINEAR)
def test_every_linear_gives_the_same_logits(folder, reference, linear):
    model = model_of(folder, "tiny-qwen2", linear=linear)
    tolerance = {"fused-int8": 0.05, "fused-int16": 2e-4}.get(linear, 1e-5)  # which round the activations
    assert error(decode(model, PROMPT[:8], 5), reference("tiny-qwen2")[4:8]) < tolerance


def test_a_prompt_leaves_torch_one_thread_but_for_its_own_products(folder, monkeypatch):
    """torch's other threads spin when they are done, on the cores of the kit's."""
    seen, before, rms_norm = [], torch.get_num_threads(), cpu_ops.rms_norm
    monkeypatch.setattr(cpu_ops, "rms_norm", lambda *given: seen.append(torch.get_num_threads()) or rms_norm(*given))
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda x, y: seen.append(torch.get_num_threads()) or x.matmul(y))
    torch.set_num_threads(3)
    try:
        for linear, threads in (("fused-int8", {1}), ("dequantized", {1, 3}), ("matmul", {3})):
            seen.clear()
            model_of(folder, "tiny-granite", linear=linear).logits(PROMPT)
            assert set(seen) == threads and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_optional_tensors_are_used(folder, reference):
    """A bias on the output projection and an expert that every token passes change the logits as float64 says."""
    path = model_files.rewrite(model_files.write(folder, "granitemoe"), folder / "shared.gguf", model_files.shared_expert)
    expected = forward(PROMPT[:12], *model_files.plain(path))
    model = kit.Transformer(kit.Weights(kit.open(path)))
    assert error(model.logits(PROMPT[:12]), expected) < 1e-5
    assert error(reference("granitemoe")[:12], expected) > 0.01


def test_half_precision_weights_stay_close(folder, reference):
    """float16 and bfloat16 weights: the error of their rounding, 11 and 8 bits."""
    file = kit.open(model_files.write(folder, "tiny-llama"))
    for dtype, low, high in (("float16", 1e-5, 2e-3), ("bfloat16", 2e-3, 3e-2)):
        model = kit.Transformer(kit.Weights(file, kit.HashMap(), dtype=dtype))
        assert low < error(model.logits(PROMPT), reference("tiny-llama")) < high


@pytest.mark.parametrize("name", ["tiny-granite", "tiny-llama", "tiny-phi3", "tiny-gemma3", "tiny-olmo2", "tiny-qwen2"])
def test_a_pass_reads_each_tensor_once_in_order(folder, name):
    """The cyclic scan of the cache investigations: all tensors, each once, the embedding only where it is the output."""
    model = model_of(folder, name)
    cache = model.new_cache()
    model.step(PROMPT[:5], cache)
    model.step([7], cache)
    frame = model.trace.frame()
    expected = model.config.order_of_use(model.file.tensors)
    assert set(model.file.tensors) - set(expected) == (set() if model.config.tied else {"token_embd.weight"})
    assert [name for name, _ in decode_order(model_files.MODELS[name], "F32")] == expected
    for token in (0, 1):
        assert list(frame[(frame.what == "access") & (frame.token == token)].tensor) == expected
    linear = frame[(frame.what == "linear") & (frame.token == 1)]
    assert linear.nbytes.sum() == sum(model.weights.nbytes(tensor) for tensor in linear.tensor)


def test_norms_and_biases_are_read_once_where_matrices_stay_in_the_file(folder):
    model = kit.Transformer(kit.open(model_files.write(folder, "tiny-granite")))
    first, second = model.logits(PROMPT), (model.trace.clear(), model.logits(PROMPT))[1]
    assert torch.equal(first, second)
    spans = [span for span in model.trace.spans if span.what in ("access", "read", "dequantize")]
    assert {(span.what, span.outcome) for span in spans if span.tensor != "token_embd.weight"} == {("access", "hit")}
    assert len({span.tensor for span in spans if span.what == "access"}) == 2 * len(model.config.layers) + 1


def test_an_embedding_row_is_all_that_is_decoded(folder):
    model = model_of(folder, "tiny-llama")
    model.logits([3, 4, 5])
    frame = model.trace.frame()
    rows = frame[(frame.what == "dequantize") & (frame.tensor == "token_embd.weight")]
    assert list(rows.nbytes) == [3 * 256 * 4]


def test_spans_nest_within_their_token(folder):
    model = model_of(folder, "tiny-granite")
    cache = model.new_cache()
    for batch in (PROMPT[:4], [5], [6]):
        model.step(batch, cache)
    frame = model.trace.frame()
    for token, group in frame.groupby("token"):
        whole = group[group.what == "token"].iloc[0]
        parts = group[group.what.isin(["embed", "norm", "linear", "rope", "attention"])]
        assert (parts.start >= whole.start).all() and (parts.end <= whole.end).all()
        assert parts.seconds.sum() <= whole.seconds, token
    assert list(frame[frame.what == "token"].token) == [0, 1, 2]


def test_the_router_reads_only_the_experts_that_it_chose(folder):
    """The weight trace of a mixture of experts is not cyclic: it depends on the text."""
    model = model_of(folder, "tiny-qwen3moe")
    cache = model.new_cache()
    for token in PROMPT[:12]:
        model.step([token], cache)
    frame = model.trace.frame()
    up = frame[(frame.what == "access") & frame.tensor.str.contains(r"ffn_up_exps\.weight\[")]
    per_token = up[up.layer == 0].groupby("token").tensor.apply(tuple)
    assert all(len(set(experts)) == model.config.experts_used for experts in per_token)
    assert len(set(per_token)) > 3
    assert model.weights.nbytes(up.tensor.iloc[0]) == 256 * 256 * 4
    asked = list(frame[(frame.what == "access") & (frame.token == 3)].tensor)
    assert asked == model.config.order_of_use(set(asked)), "an expert's three matrices come together"
    stats = kit.replay(model.trace, kit.LRU("8 MiB"))
    assert 0 < stats.hits < stats.hits + stats.misses == (frame.what == "access").sum()


def test_the_first_pass_over_blocks_reads_ahead_in_order(folder, monkeypatch):
    called = []
    monkeypatch.setattr(pagecache, "read_ahead", lambda spans, ended: called.append(spans))
    model = model_of(folder, "tiny-llama", linear="fused")
    assert torch.equal(model.logits(PROMPT[:2]), model.logits(PROMPT[:2]))
    order = [model.file.raw(name).ctypes.data for name in model.config.order_of_use(model.file.tensors)]
    assert [[span.ctypes.data for span in spans] for spans in called] == [order]  # once
    model_of(folder, "tiny-llama").logits(PROMPT[:2])
    assert len(called) == 1  # what is dequantized comes through the cache


def test_pages_that_are_missing_are_read_ahead(tmp_path):
    path = tmp_path / "pages"
    path.write_bytes(bytes(2**24))
    if not pagecache.drop(path):
        pytest.skip("the file system keeps this file's pages")
    data = np.memmap(path, np.uint8, "r")
    parts = data[100 : 2**23], data[-5000:]
    assert [pagecache.resident(part) for part in parts] == [0, 0]
    pagecache.read_ahead(parts, threading.Event())
    assert [pagecache.resident(part) for part in parts] == [1, 1]


def test_reading_ahead_ends_when_the_pass_fails(folder, monkeypatch):
    read, read_ahead = [], pagecache.read_ahead

    def from_a_slow_disk(spans, ended):
        monkeypatch.setattr(pagecache, "resident", lambda part: read.append(part) or ended.wait(60))
        read_ahead(spans, ended)

    monkeypatch.setattr(pagecache, "read_ahead", from_a_slow_disk)
    file = model_of(folder, "tiny-llama").file
    with pytest.raises(ModelError), file.reading_ahead(list(file.tensors)):
        raise ModelError
    assert len(read) <= 1 and "kit-read-ahead" not in [thread.name for thread in threading.enumerate()]


# --- the KV cache


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_each_kv_type_brings_its_error(folder, reference, name):
    errors = {kind: error(decode(model_of(folder, name, kv_dtype=kind), PROMPT, 20), reference(name)[19:]) for kind in KV_TYPES}
    assert errors["float32"] < 1e-5 < errors["float16"] < 1e-3 < errors["q8_0"] < 2e-2


@pytest.mark.parametrize("kind", KV_TYPES)
def test_attention_spans_count_the_bytes_held(folder, kind):
    model = model_of(folder, "tiny-llama", kv_dtype=kind)
    cache = model.new_cache()
    model.step(PROMPT[:9], cache)
    frame = model.trace.frame()
    assert frame[frame["what"] == "attention"]["nbytes"].sum() == cache.nbytes == 9 * 2 * 2 * 2 * 64 * KV_TYPES[kind]


def test_q8_0_is_ggml_s():
    """What q8_0 gives back is what gguf-py's quantizer and dequantizer make of the same rows."""
    k = torch.randn(7, 2, 64, generator=torch.Generator().manual_seed(0))
    k[3, 1, :32] = 0
    cache = KVCache(2, 64, 16, "q8_0")
    cache.write(0, k, k)
    held, _ = cache.read(7)
    kind = gguf.GGMLQuantizationType.Q8_0
    expected = gguf.quants.dequantize(gguf.quants.quantize(k.numpy(), kind), kind)
    assert np.array_equal(held.transpose(0, 1).numpy(), expected)


@pytest.mark.parametrize("dtype", KV_TYPES)
def test_it_grows_in_place_and_takes_memory_only_for_what_it_holds(dtype):
    import psutil

    before = psutil.Process().memory_info().rss
    cache = SequenceCache(
        [KVCache(8, 128, 1_000_000, dtype) for _ in range(4)], 1_000_000, dtype
    )  # 8 GiB in q8_0 to 32 GiB in float32, reserved
    rows = torch.randn(3, 8, 128)
    addresses = set()
    for step in range(40):
        for layer in range(4):
            cache.write(layer, rows + step, rows)
            keys, values = cache.states[layer].read(cache.length + 3)
            if dtype == "float32":
                addresses.add((layer, keys.data_ptr(), values.data_ptr()))
        cache.advance(3)
    assert keys.shape == values.shape == (8, 120, 128)
    assert torch.allclose(keys[:, 3 * 11 : 3 * 12].transpose(0, 1), rows + 11, atol=0.4, rtol=0)
    assert dtype != "float32" or len(addresses) == 4
    assert cache.nbytes == 120 * cache.bytes_per_position == int(120 * 4 * 2 * 8 * 128 * KV_TYPES[dtype])
    assert psutil.Process().memory_info().rss - before < 100e6


def test_going_back_gives_the_same_logits(folder):
    model = model_of(folder, "tiny-llama")
    cache = model.new_cache()
    model.step(PROMPT[:10], cache)
    expected = model.step([42], cache)
    model.step([43], cache)
    cache.truncate(10)
    assert torch.allclose(model.step([42], cache), expected, atol=1e-6)


def test_a_fixed_state_is_copied_and_never_cut():
    """What a recurrent layer remembers is that of the last position: to cut it is an error, to go back to a mark is not."""
    states = [KVCache(1, 16, 8), FixedState(rows=(2, 3), sums=(4,))]
    cache = SequenceCache([states[0], states[1], states[0]], 8, "float32")
    assert not cache.can_be_cut and (cache.bytes_per_position, cache.nbytes) == (2 * 16 * 4, 10 * 4)
    states[1]["rows"].fill_(1)
    cache.advance(3)
    mark, copy = cache.mark(), SequenceCache([KVCache(1, 16, 8), FixedState(rows=(2, 3), sums=(4,))], 8, "float32")
    copy.take(cache)
    states[1]["rows"].fill_(2)
    cache.advance(2)
    with pytest.raises(ModelError, match=r"cannot go back from 5 to 4 positions.*mark\(\) at that position and back_to\(\)"):
        cache.truncate(4)
    cache.truncate(5)
    cache.back_to(mark)
    assert cache.length == copy.length == 3 and (states[1]["rows"] == 1).all() and (copy.states[1]["rows"] == 1).all()
    cache.truncate(0)
    assert cache.length == 0 and not states[1]["rows"].any()


def test_no_operation_is_forgotten_and_rows_do_not_mix():
    """A class that lacks an operation makes no object; those that see a sequence are done row by row."""
    for made in (cpu_ops.CpuOps, cpu_ops.RowsOps, Plan):
        assert not made.__abstractmethods__
    forgetful = type("Forgetful", (Ops,), {name: getattr(Plan, name) for name in Ops.__abstractmethods__ - {"attend"}})
    with pytest.raises(TypeError, match=r"abstract method '?attend"):
        forgetful(None)
    assert all(getattr(cpu_ops.RowsOps, name) is not getattr(cpu_ops.CpuOps, name) for name in Ops.OF_SEQUENCE)
    for name, operation in vars(cpu_ops.CpuOps).items():
        used = getattr(getattr(operation, "__code__", None), "co_names", ())
        if {"cache", "_tables", "_cos_sin"} & set(used) and not name.startswith("_"):  # a part of one is no operation
            alone = ("turn", "state", "keep", "before")  # the last two are of an MTP head, which rows of a batch do not have
            assert name in Ops.OF_SEQUENCE or name in alone, f"{name} sees positions: add it to Ops.OF_SEQUENCE"
