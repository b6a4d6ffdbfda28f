"""The recorded pass of one token against float64 arithmetic and against the pass that is not recorded; its trace."""

import dataclasses
import itertools

import model_files
import numpy as np
import pytest
import torch
from reference_model import forward

import kit
from kit.cpu import attention, elementwise, threads
from kit.cpu.simd.vectors import inner
from kit.cpu.tasks import task
from kit.model import plan
from kit.model.kvcache import KV_TYPES
from kit.synthetic.geometry import GEOMETRIES
from kit.synthetic.write import synthesize

PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 500, 24)]
PLANNED = [
    "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-granite", "tiny-phi3", "tiny-olmo2", "tiny-smollm3",
    "tiny-gemma3", "tiny-gemma2", "llama3", "yarn", "yarn-neox", "partial",
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


def test_queries_and_keys_are_normed_after_rope_as_in_the_pass_that_is_not_recorded(folder):
    path = model_files.write(folder, "hunyuan-dense")
    recorded = transformer(path)
    assert recorded.unplanned == ""
    assert rms(*(decode(model, PROMPT).numpy() for model in (recorded, unplanned(transformer(path))))) < 1e-5


@pytest.mark.parametrize("name", ["command-r", "cohere2", "starcoder2", "phi2", "nemotron", "olmo", "stablelm"])
def test_layer_norm_clamps_and_activations_without_a_gate_are_recorded(folder, name):
    path = model_files.write(folder, name)
    model = transformer(path)
    assert model.unplanned == ""
    right = decode(unplanned(transformer(path)), PROMPT)
    assert rms(decode(model, PROMPT).double().numpy(), right.double().numpy()) < 1e-5


@pytest.mark.parametrize("kv_dtype", KV_TYPES)
@pytest.mark.parametrize("linear", ["fused", "fused-int8"])
def test_long_contexts_equal_the_pass_that_is_not_recorded(folder, linear, kv_dtype, monkeypatch):
    """More positions than one chunk of attention, and than the table of cosines."""
    monkeypatch.setattr(plan, "_TABLE", 16)
    path = model_files.write(folder, "tiny-llama", "Q4_K_M")
    tokens = (PROMPT * 20)[: attention.CHUNK + 40]
    made = [make(transformer(path, linear=linear, kv_dtype=kv_dtype)) for make in (lambda model: model, unplanned)]
    got, right = (decode(model, tokens, attention.CHUNK - 20).double().numpy() for model in made)
    assert rms(got, right) < (1e-4 if linear == "fused" else 3e-2)  # a rounding to eight bits may fall the other way


def test_the_trace_has_the_same_spans_in_order_of_time(folder):
    path = model_files.write(folder, "tiny-gemma3")
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
    [
        ("tiny-qwen3moe", {}, "experts"),
        ("tiny-llama", dict(linear="dequantized"), "do not read blocks"),
        ("tiny-llama", dict(attention="blas"), "not fused"),
    ],
)
def test_what_cannot_be_recorded_says_why_and_runs(folder, name, how, reason):
    path = model_files.write(folder, name)
    model = transformer(path, **how)
    assert reason in model.unplanned
    got = decode(model, PROMPT[:8]).double().numpy()
    assert rms(got, forward(PROMPT[:8], *model_files.plain(path))[4:]) < 1e-5
    assert {span.outcome for span in model.trace.spans if span.what == "token"} == {""}


def test_nothing_is_recorded_that_a_vector_does_not_fit(folder):
    model = transformer(model_files.write(folder, "tiny-llama"))
    for change in (dict(head_dim=20), dict(hidden_size=40)):
        model.config = dataclasses.replace(model.config, **change)
        assert plan.obstacle(model)
