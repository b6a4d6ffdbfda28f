"""The recorded pass of one token against float64 arithmetic and against the pass that is not recorded; its trace."""

import dataclasses
import itertools
from types import SimpleNamespace

import model_files
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_model import forward

import kit
from kit.cpu import attention, elementwise, operations, threads
from kit.cpu import routing as routing_
from kit.cpu.simd.vectors import inner
from kit.cpu.tasks import task
from kit.gguf.keys import ROOTED, SIGMOID, SOFTMAX, SPARSEMIXER
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.lab.synthetic.write import synthesize
from kit.model import plan
from kit.model.best_experts import best_experts
from kit.model.kvcache import KV_TYPES
from kit.model.layers.mixture import Routing

PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 500, 24)]
PLANNED = [
    "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-granite", "tiny-phi3", "tiny-olmo2", "tiny-smollm3",
    "tiny-gemma3", "tiny-gemma2", "llama3", "yarn", "yarn-neox", "partial",
    "tiny-qwen3moe", "tiny-gpt-oss", "granitemoe",
]  # fmt: skip


def transformer(path, **how):
    return kit.Transformer(kit.Weights(kit.open(path)), **{"linear": "fused", **how})


def decode(model, tokens, prompt=4):
    """Logits after each token but those of the prompt, one token a pass."""
    cache = model.new_cache(len(tokens))
    model.step(tokens[:prompt], cache)
    return torch.stack([model.step([token], cache) for token in tokens[prompt:]])


def unplanned(model):
    model.unplanned = "asked for by a test"
    return model


def rms(got, right):
    return np.sqrt(((got - right) ** 2).mean()) / right.std()


@pytest.mark.parametrize("name", PLANNED)
def test_every_architecture_equals_float64(folder, name):
    path = model_files.write(folder, name)
    model = transformer(path)
    assert model.unplanned == ""
    got = decode(model, PROMPT).double().numpy()
    assert rms(got, forward(PROMPT, *model_files.plain(path))[4:]) < 1e-5
    assert [span.outcome for span in model.trace.spans if span.what == "token"] == [""] + 20 * ["planned"]


def test_a_task_whose_parameters_are_in_another_order_is_given_the_same_arguments(folder, monkeypatch):
    path = model_files.write(folder, "tiny-llama")
    right = decode(transformer(path), PROMPT)
    combine = inner(attention._combine)

    def reordered(head, chunks, out, dim, sinks, parts):
        combine(head, parts, sinks, out, dim, chunks)

    monkeypatch.setattr(attention, "combine", task(lambda: reordered))
    assert torch.equal(decode(transformer(path), PROMPT), right)


def test_arguments_are_those_of_the_task():
    with pytest.raises(TypeError, match="a task of x, y, n, factor was given x, y, n"):
        threads.run(elementwise.compiled("add"), dict(x=0, y=0, n=0), 1)


def test_a_scaled_embedding_of_several_tasks(folder):
    """Regression: of a larger hidden size only the first 1,024 numbers were scaled."""
    geometry = dataclasses.replace(GEOMETRIES["tiny-granite"], name="wide", layers=1, hidden_size=1280)
    path = synthesize(folder / "wide.gguf", geometry)
    planned, right = (decode(model, PROMPT[:8]).numpy() for model in (transformer(path), unplanned(transformer(path))))
    assert rms(planned, right) < 1e-5


@pytest.mark.parametrize("name", [
    "command-r", "cohere2", "starcoder2", "phi2", "nemotron", "olmo", "stablelm", "glm4", "glm4moe", "dots1",
    "ernie4_5-moe", "tiny-deepseek2", "deepseek2-expanded", "deepseek2-lite",
    "hunyuan-dense",  # its queries and keys are normed after RoPE
])  # fmt: skip
def test_families_without_a_float64_reference_equal_the_pass_that_is_not_recorded(folder, name):
    path = model_files.write(folder, name)
    model = transformer(path)
    assert model.unplanned == ""
    right = decode(unplanned(transformer(path)), PROMPT)
    assert rms(decode(model, PROMPT).double().numpy(), right.double().numpy()) < 1e-5


@pytest.mark.parametrize("kv_dtype", KV_TYPES)
@pytest.mark.parametrize("linear", ["fused", "fused-int8"])
def test_long_contexts_equal_the_pass_that_is_not_recorded(folder, linear, kv_dtype, monkeypatch):
    """More positions than one chunk of attention, and than the table of cosines."""
    monkeypatch.setattr(operations, "_TABLE", 16)
    path = model_files.write(folder, "tiny-llama", "Q4_K_M")
    tokens = (PROMPT * 20)[: attention.CHUNK + 40]
    made = [make(transformer(path, linear=linear, kv_dtype=kv_dtype)) for make in (lambda model: model, unplanned)]
    got, right = (decode(model, tokens, attention.CHUNK - 20).double().numpy() for model in made)
    assert rms(got, right) < (1e-4 if linear == "fused" else 3e-2)  # a rounding to eight bits may fall the other way


@pytest.mark.parametrize("kv_dtype", KV_TYPES)
@pytest.mark.parametrize("linear", ["fused", "fused-int8"])
@pytest.mark.parametrize("name", ["deepseek2-dense", "deepseek2-dense-expanded"])
def test_a_latent_gives_the_bits_of_the_pass_that_is_not_recorded(folder, name, linear, kv_dtype):
    """Absorbed, of 72 heads that share a key, and expanded, past a chunk of attention. (Experts are torch's in the other.)"""
    path = model_files.write(folder, name, "Q4_K_M")
    model, right = (transformer(path, linear=linear, kv_dtype=kv_dtype) for _ in range(2))
    assert model.unplanned == ""
    tokens = (PROMPT * 20)[: attention.CHUNK + 4]
    got, right = (decode(each, tokens, attention.CHUNK - 4) for each in (model, unplanned(right)))
    assert torch.equal(got, right)


def test_a_latent_with_biases_of_heads(folder):
    def change(metadata, tensors):
        draw = np.random.default_rng(1)
        for name in [name for name in tensors if "attn_k_b" in name or "attn_v_b" in name]:
            tensors[name.replace("weight", "bias")] = draw.standard_normal(tensors[name].shape[:2]).astype(np.float32)

    plain = model_files.write(folder, "deepseek2-dense")
    path = model_files.rewrite(plain, folder / "biased.gguf", change)
    models = transformer(path), unplanned(transformer(path)), transformer(plain)
    got, right, without = (decode(model, PROMPT) for model in models)
    assert torch.equal(got, right) and not torch.allclose(got, without, rtol=0.01)


@pytest.mark.parametrize("name", ["tiny-gemma3", "tiny-qwen3moe", "tiny-deepseek2", "deepseek2-expanded"])
def test_the_trace_has_the_same_spans_in_order_of_time(folder, name):
    path = model_files.write(folder, name)
    spans = []
    for model in (transformer(path), unplanned(transformer(path))):
        decode(model, PROMPT[:6])
        last = [span for span in model.trace.spans if span.token == 2 and span.what not in ("access", "read", "dequantize")]
        token = last.pop()
        assert token.what == "token" and all(token.start <= span.start <= span.end <= token.end for span in last)
        assert all(before.end <= after.start for before, after in itertools.pairwise(last))
        spans.append([(span.what, span.tensor, span.layer, span.nbytes, span.outcome) for span in last])
    assert spans[0] == spans[1]


def test_two_caches_and_a_truncated_one_do_not_disturb_each_other(folder):
    model = transformer(model_files.write(folder, "tiny-llama"))
    right = decode(model, PROMPT)
    first, second = model.new_cache(), model.new_cache()
    model.step(PROMPT[:4], first)
    model.step(PROMPT[:4], second)
    for at, token in enumerate(PROMPT[4:]):
        for wrong in (3, 5):
            model.step([wrong], first)
            first.truncate(first.length - 1)
        assert torch.equal(model.step([token], first), right[at])
        assert torch.equal(model.step([token], second), right[at])


@pytest.mark.parametrize(
    "name, how, reason",
    [("tiny-llama", dict(linear="dequantized"), "do not read blocks"), ("tiny-llama", dict(attention="blas"), "not fused")],
)
def test_what_cannot_be_recorded_says_why_and_runs(folder, name, how, reason):
    path = model_files.write(folder, name)
    model = transformer(path, **how)
    assert reason in model.unplanned
    got = decode(model, PROMPT[:8]).double().numpy()
    assert rms(got, forward(PROMPT[:8], *model_files.plain(path))[4:]) < 1e-5
    assert {span.outcome for span in model.trace.spans if span.what == "token"} == {""}


@settings(max_examples=60, deadline=None)
@given(
    groups=st.sampled_from([1, 2, 4]), size=st.integers(3, 40), used=st.integers(1, 6), groups_used=st.integers(1, 4),
    gating=st.sampled_from([SOFTMAX, SIGMOID, ROOTED, SPARSEMIXER]), given_=st.booleans(),
    normed=st.booleans(), biased=st.booleans(), seed=st.integers(0, 2**32 - 1),
    equal=st.sampled_from([None, 1, 40]),
)  # fmt: skip
def test_experts_are_chosen_as_by_torch(groups, size, used, groups_used, gating, given_, normed, biased, seed, equal):
    """The choice, the shares, and the arguments that it sets: an expert's address, and the bits of its share. ``equal``: scores
    are a few whole numbers times that, of which many are equal; sigmoids of the largest are 1. ``given_``: they are chosen
    already, and shares alone come from the scores."""
    if gating == SPARSEMIXER:  # which no table, group or bias goes with
        groups, given_, biased, normed = 1, False, False, False
    experts, groups_used = groups * size, min(groups, groups_used)
    routing = Routing(min(used, groups_used * size), gating, normed, 1.5, groups, groups_used)
    draw = np.random.default_rng(seed)
    scores, bias = (torch.from_numpy(x.astype(np.float32)) for x in draw.standard_normal((2, experts)))
    if equal:
        scores, bias = (scores.round() * equal).clamp(min=-80), bias.round()
    share, right = (x[0] for x in best_experts(scores[None], routing, bias if biased else None))
    right, order = right.sort()
    chosen = right.numpy().copy() if given_ else np.zeros(routing.used, np.int64)
    shares = np.zeros(routing.used, np.float32)
    out = np.zeros(2, np.int64)
    padded = torch.cat([scores, torch.full((16,), torch.nan)])[None, :experts]
    last = routing.used - 1
    words = np.array([[out.ctypes.data, last, 1000, 7], [out.ctypes.data + 8, last, 0, 0]])
    task, arguments, tasks = routing_.step(padded, chosen, shares, routing, -bias if given_ else bias if biased else None,
                                            given=given_)  # fmt: skip
    threads.run(task, arguments | dict(words=words, count=2), tasks)
    assert chosen.tolist() == right.tolist()
    assert np.allclose(shares, share[order].numpy(), rtol=2e-6)
    assert out.tolist() == [1000 + 7 * chosen[last], elementwise.as_bits(shares[last])]


def test_scores_that_are_not_numbers_choose_experts_that_there_are(folder):
    """The logits are NaN then, which is an error; before it, no address outside the file is read."""
    path = model_files.write(folder, "tiny-qwen3moe")
    model = transformer(path)
    cache = model.new_cache(8)
    model.step(PROMPT[:4], cache)
    model.step([3], cache)
    made = model._plans[cache]
    made._logits.fill_(0)
    ((step, (embedding, place)),) = made._embedded.items()
    embedding = embedding.copy()
    embedding.view(np.float32)[:] = np.nan
    made._embedded[step] = embedding, place
    with pytest.raises(kit.KitError, match="NaN"):
        model.step([3], cache)
    assert ((made._chosen >= 0) & (made._chosen < model.config.experts)).all()


def test_nothing_is_recorded_that_a_vector_does_not_fit(folder):
    model = transformer(model_files.write(folder, "tiny-llama"))
    config, (first, *others) = model.config, model.config.layers
    narrow, thin = (
        first._replace(**{name: dataclasses.replace(getattr(first, name), **change)})
        for name, change in (("mixer", dict(head_dim=20)), ("feed_forward", dict(size=40)))
    )
    for change in (dict(hidden_size=40), dict(layers=(narrow, *others)), dict(layers=(*others, thin))):
        odd = SimpleNamespace(**vars(model) | {"config": dataclasses.replace(config, **change)})
        assert plan.obstacle(odd) == "a size is no multiple of 16"
