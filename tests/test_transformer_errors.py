"""Each bad input gives one clear error that names the problem and the remedy."""

import model_files
import numpy as np
import pytest
import torch

import kit
from kit import system
from kit.errors import ModelError, TokenizerError
from kit.model import kvcache


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return model_files.write(tmp_path_factory.mktemp("models"), "tiny-llama")


@pytest.fixture(scope="module")
def model(source):
    return kit.Transformer(kit.Weights(kit.open(source), kit.HashMap()), max_context=16)


def changed(source, tmp_path, change):
    """A model over the copy of ``source`` that ``change(metadata, tensors)`` has edited."""
    path = model_files.rewrite(source, tmp_path / "changed.gguf", change)
    return kit.Transformer(kit.Weights(kit.open(path), kit.HashMap()))


def test_an_empty_prompt(model):
    for call in (lambda: model.logits([]), lambda: model.step([], model.new_cache()), lambda: kit.generate(model, [])):
        with pytest.raises(ModelError, match="the prompt is empty"):
            call()


def test_a_prompt_longer_than_the_context(model):
    with pytest.raises(ModelError, match=r"17 tokens do not fit the context of 16.*the model has 2048"):
        model.logits([5] * 17)
    cache = model.new_cache()
    model.step([5] * 16, cache)
    with pytest.raises(ModelError, match="17 tokens do not fit the context of 16"):
        model.step([5], cache)
    assert cache.length == 16


@pytest.mark.parametrize("token", [-1, 512, 2**40])
def test_a_token_outside_the_vocabulary(model, token):
    with pytest.raises(ModelError, match=rf"token {token} is outside the vocabulary of 512"):
        model.logits([1, token])


@pytest.mark.parametrize("tokens", [[5.5], [3, float("nan")], "hello", [None], torch.tensor([2.0]), np.array([1.0])], ids=str)
def test_tokens_that_are_no_ids(model, tokens):
    """5.5 was taken for 5."""
    for call in (model.logits, lambda ids: model.step(ids, model.new_cache())):
        with pytest.raises(ModelError, match="tokens are ids, whole numbers, not "):
            call(tokens)
    same = [model.logits(ids) for ids in ([5, 6], np.array([5, 6]), torch.tensor([5, 6]), (np.uint16(5), 6))]
    assert all(torch.equal(each, same[0]) for each in same)


@pytest.mark.parametrize(("options", "says"), [
    ({"max_tokens": 1.5}, "max_tokens is '1.5', expected a whole number"), ({"max_tokens": None}, "max_tokens is 'None'"),
    ({"max_tokens": 1, "top_k": 1.5}, "top_k is '1.5'"), ({"max_tokens": 1, "seed": "x"}, "seed is 'x'"),
    ({"max_tokens": 1, "temperature": "1"}, "temperature is '1', expected a number"),
    ({"max_tokens": 1, "top_p": None}, "top_p is None, expected a number"),
], ids=str)  # fmt: skip
def test_an_option_of_generate_that_is_no_number(model, options, says):
    """max_tokens=1.5 was never reached: it generated up to the context's end."""
    with pytest.raises(ModelError, match=says):
        kit.generate(model, [5], **options)
    for prompt in ([5.5], None, [None]):
        with pytest.raises(ModelError, match="tokens are ids, whole numbers, not "):
            kit.generate(model, prompt, 1)
    same = [kit.generate(model, prompt, np.int64(2)).tokens for prompt in ([5, 6], np.array([5, 6]), torch.tensor([5, 6]))]
    assert same[0] == same[1] == same[2] and len(same[0]) == 2


def test_a_cache_of_fewer_than_no_positions(model):
    with pytest.raises(ModelError, match="context -3 is not possible: give 1 to 2048"):
        model.new_cache(-3)


@pytest.mark.parametrize("context", [0, 2049])
def test_a_context_that_the_model_does_not_have(source, context):
    with pytest.raises(ModelError, match=rf"context {context} is not possible: give 1 to 2048"):
        kit.Transformer(kit.Weights(kit.open(source)), max_context=context)


@pytest.mark.parametrize(
    "option,known", [("attention", "blas"), ("linear", "matmul"), ("kv_dtype", "float16")], ids=lambda value: str(value)
)
def test_an_unknown_choice_lists_the_known(source, option, known):
    with pytest.raises(ModelError, match=rf"'magic' is not known; choose one of .*{known}"):
        kit.Transformer(kit.Weights(kit.open(source)), **{option: "magic"})


@pytest.mark.parametrize("key,value,message", [
    ("general.architecture", "bloom", "architecture 'bloom' is not supported.*llama.*granite.*qwen3moe"),
    *((key, None, f"'llama.{key}' is") for key in ("block_count", "attention.layer_norm_rms_epsilon", "context_length")),
    ("attention.head_count_kv", 3, "4 heads, 3 KV heads"), ("attention.head_count", 0, "should be a count from 1 to"),
    ("block_count", "two", "should be a count"), ("rope.dimension_count", 66, "RoPE over 66 elements"),
    ("rope.scaling.type", "short", "should be one of none, linear, yarn, longrope, it is 'short'"),
    ("attention.value_length", 32, "should be 64, the size of a key, it is 32"),
    ("attention.head_count_kv", [2, 4], r"'blk.1.attn_k.weight' has shape \(128, 256\); expected \(256, 256\)"),
    ("attention.head_count_kv", [2.5, 4], "should be a list of 2 whole numbers"),
])  # fmt: skip
def test_a_key_that_is_senseless_or_missing(source, tmp_path, key, value, message):
    def change(metadata, tensors):
        name = key if key in metadata else f"llama.{key}"
        metadata.pop(name) if value is None else metadata.update({name: value})

    with pytest.raises(ModelError, match=message):
        changed(source, tmp_path, change)


def test_a_value_per_layer_counts_when_all_are_alike(source, tmp_path):
    key = "llama.attention.head_count_kv"
    model = changed(source, tmp_path, lambda metadata, tensors: metadata.update({key: [2, 2]}))
    assert [layer.mixer.kv_heads for layer in model.config.layers] == [2, 2]


@pytest.mark.parametrize("name,shape", [("blk.0.attn_k.weight", (64, 256)), ("blk.1.attn_norm.weight", (255,))])
def test_a_tensor_of_the_wrong_shape(source, tmp_path, name, shape):
    def change(metadata, tensors):
        tensors[name] = np.zeros(shape, np.float32)

    with pytest.raises(ModelError, match=rf"'{name}' has shape \({shape[0]},.*; expected \("):
        changed(source, tmp_path, change)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "blk.0.attn_norm.weight", "output.weight"])
def test_a_nan_in_the_weights_is_named_at_first_use(source, tmp_path, name, value):
    def change(metadata, tensors):
        tensors[name] = tensors[name].copy()
        tensors[name].reshape(-1)[7] = value

    model = changed(source, tmp_path, change)
    cache = model.new_cache()
    with pytest.raises(ModelError, match=rf"the tensor '{name}' holds NaN or infinite weights, the first at \("):
        model.step([5, 6], cache)
    assert cache.length == 0


def test_a_nan_in_an_embedding_row_matters_when_its_token_is_used(source, tmp_path):
    def change(metadata, tensors):
        tensors["token_embd.weight"] = tensors["token_embd.weight"].copy()
        tensors["token_embd.weight"][9, 3] = np.nan

    model = changed(source, tmp_path, change)
    assert model.logits([5, 6]).isfinite().all()
    with pytest.raises(ModelError, match=r"'token_embd.weight' holds NaN or infinite weights, the first at \(9, 3\)"):
        model.logits([5, 9])


def test_a_file_without_a_tokenizer(source, tmp_path):
    def change(metadata, tensors):
        for key in [key for key in metadata if key.startswith("tokenizer.")]:
            del metadata[key]

    model = changed(source, tmp_path, change)
    with pytest.raises(TokenizerError, match="the file has no tokenizer; give the prompt as token ids"):
        kit.generate(model, "text")
    answer = kit.generate(model, [5, 6], max_tokens=3)
    assert len(answer.tokens) == 3 and answer.text == ""


def test_ids_need_no_tokenizer_that_the_kit_knows(source, tmp_path):
    model = changed(source, tmp_path, lambda metadata, tensors: metadata.update({"tokenizer.ggml.model": "plamo2"}))
    assert len(kit.generate(model, [5, 6], max_tokens=2).tokens) == 2
    with pytest.raises(TokenizerError, match="tokenizer 'plamo2' is not supported"):
        kit.generate(model, [5, 6], max_tokens=2, on_text=print)


def test_memory_that_cannot_be_reserved(monkeypatch):
    refuse = lambda *_, **__: (_ for _ in ()).throw(OSError(12, "Cannot allocate memory"))  # noqa: E731
    monkeypatch.setattr(system.mmap, "mmap", refuse)
    with pytest.raises(ModelError, match=r"cannot reserve 32.00 MiB for a KV cache: Cannot allocate.*less context"):
        kvcache.KVCache(8, 128, 8192)


def test_an_overflow_is_told_from_bad_weights(source, tmp_path):
    """Keys beyond float16 in a float16 KV cache."""

    def change(metadata, tensors):
        tensors["blk.0.attn_v.weight"] = tensors["blk.0.attn_v.weight"] * 1e7

    path = model_files.rewrite(source, tmp_path / "large.gguf", change)
    model = kit.Transformer(kit.Weights(kit.open(path)), kv_dtype="float16")
    with pytest.raises(ModelError, match="every weight is finite: a number overflows; use float32"):
        model.logits([5, 6])
