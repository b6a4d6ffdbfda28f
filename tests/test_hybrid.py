"""Models with recurrent layers: recorded, in batches, in parts, under transformers; what they hold and what cannot be cut.

That their logits are llama.cpp's is in tests/test_transformer.py, their kernels are in tests/test_recurrent.py.
"""

import llama_cpp
import model_files
import numpy as np
import pytest
import torch

import kit
from kit.cpu.shapes import LARGEST
from kit.errors import ModelError
from kit.gguf import cut
from kit.hf.stored import StoredWeight
from kit.model.hyperparameters import read_config
from kit.model.layers import DeltaNet, Mamba2

HYBRIDS = ["tiny-qwen35", "qwen35moe", "qwen3next", "granitehybrid", "granitehybrid-moe"]
PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 500, 40)]
STATE = 215_040  # bytes of tiny-qwen35: 3 layers of 4 * (3 * (2 * 2 * 64 + 4 * 64) + 4 * 64 * 64)


def model_of(folder, name, mix="F32", linear="fused", **how):
    return kit.Transformer(kit.Weights(kit.open(model_files.write(folder, name, mix))), linear=linear, **how)


def decode(model, tokens, prompt):
    """Logits after each token from the prompt's last on, the rest one by one."""
    cache = model.new_cache(len(tokens))
    first = model.step(tokens[:prompt], cache)
    return torch.stack([first, *(model.step([token], cache) for token in tokens[prompt:])])


def unplanned(model):
    model.unplanned = "asked for by a test"
    return model


def error(got, right):
    """Median over the tokens of the RMS of the error, over the spread of the logits."""
    got, right = (np.asarray(x, np.float64) for x in (got, right))
    return np.median(np.sqrt(((got - right) ** 2).mean(-1))) / right.std()


@pytest.mark.parametrize("linear", ["fused", "fused-int8"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_the_recorded_pass_gives_the_bits_of_the_other(folder, name, linear):
    """And, where torch adds up the experts of the other, the same up to rounding."""
    model, other = (model_of(folder, name, "Q4_K_M", linear) for _ in range(2))
    assert model.unplanned == ""
    got, right = decode(model, PROMPT, 5), decode(unplanned(other), PROMPT, 5)
    exact = not model.config.experts
    assert torch.equal(got, right) if exact else error(got, right) < (1e-5 if linear == "fused" else 0.05)
    spans = [
        [s for s in m.trace.spans if s.token == 2 and s.what in ("convolution", "delta net", "mamba2")] for m in (model, other)
    ]
    told = [[(s.what, s.tensor, s.layer, s.nbytes) for s in each] for each in spans]
    assert told[0] == told[1] and len(told[0]) == 6
    assert sum(nbytes for *_, nbytes in told[0]) == 2 * model.new_cache(1).fixed_bytes  # read and written


@pytest.mark.parametrize("name", ["tiny-qwen35", "qwen3next", "granitehybrid"])
def test_int8_is_near_llama_cpp(folder, name):
    """Q8_0 with activations of eight bits, as llama.cpp has them. Rounding may choose another expert now and then."""
    theirs = llama_cpp.logits(model_files.write(folder, name, "Q8_0"), PROMPT)
    got = model_of(folder, name, "Q8_0", "fused-int8").logits(PROMPT)
    assert error(got, theirs) < 0.05
    assert (got.argmax(-1).numpy() == theirs.argmax(-1)).mean() >= 0.8


@pytest.mark.parametrize("name", HYBRIDS)
def test_rows_of_a_batch_give_what_each_gives_alone(folder, name):
    """Of two states, lengths and numbers of new tokens."""
    model, starts, rows = model_of(folder, name), (PROMPT[:3], PROMPT[5:18]), (PROMPT[20:24], [7])
    caches = [model.new_cache(32) for _ in starts]
    for start, cache in zip(starts, caches, strict=True):
        model.step(start, cache)
    alone = [model.new_cache(32) for _ in starts]
    for mine, theirs in zip(alone, caches, strict=True):
        mine.take(theirs)
    together = model.batch(rows, caches, torch.arange(5))
    right = torch.cat([model.logits(row, 0, cache) for row, cache in zip(rows, alone, strict=True)])
    assert error(together, right) < 1e-6
    for mine, theirs in zip(alone, caches, strict=True):
        assert mine.length == theirs.length
        assert torch.allclose(model.step([9], mine), model.step([9], theirs), atol=1e-5)


def test_a_prompt_in_parts_and_back_to_a_mark(folder):
    model = model_of(folder, "tiny-qwen35")
    right, cache = model.logits(PROMPT), model.new_cache()
    for part in (PROMPT[:7], PROMPT[7:8], PROMPT[8:30]):
        model.step(part, cache)
    mark = cache.mark()
    wrong = model.step([3, 4, 5], cache)
    cache.back_to(mark)
    assert error(model.logits(PROMPT[30:], 0, cache), right[30:]) < 1e-6
    assert not torch.allclose(wrong, right[-1])
    with pytest.raises(ModelError, match="cannot go back from 40 to 39 positions"):
        cache.truncate(39)
    cache.truncate(0)
    assert error(model.logits(PROMPT, 0, cache), right) < 1e-6


def test_what_the_states_hold_and_move(folder):
    model = model_of(folder, "tiny-qwen35")
    mixers = [layer.mixer for layer in model.config.layers]
    assert [type(mixer) for mixer in mixers[:3]] == 3 * [DeltaNet] and mixers[3].gated
    cache = model.new_cache(100)
    assert cache.fixed_bytes == cache.nbytes == sum(mixer.memory.fixed for mixer in mixers) * 4 == STATE
    assert sum(mixer.memory.read(50) for mixer in mixers) == STATE + 50 * 2 * 2 * 64 * 4  # KV in one layer of four
    assert sum(mixer.memory.written() for mixer in mixers) == STATE + 2 * 2 * 64 * 4
    assert cache.bytes_per_position == 2 * 2 * 64 * 4


def test_a_part_without_attention_is_recorded(folder):
    file = cut.cut(kit.open(model_files.write(folder, "tiny-qwen35")), [0, 1, 2])
    model, other = (kit.Transformer(kit.Weights(file), linear="fused") for _ in range(2))
    assert not any(layer.mixer.memory.position for layer in model.config.layers) and model.unplanned == ""
    assert torch.equal(decode(model, PROMPT, 5), decode(unplanned(other), PROMPT, 5))


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_part_of_a_file_keeps_each_layers_kind(folder, name):
    with kit.open(model_files.write(folder, name)) as file:
        whole = read_config(file).layers
        assert sum(isinstance(layer.mixer, DeltaNet | Mamba2) for layer in whole) == 3
        for chosen in ([1, 3], [2], [0, 2, 3]):
            assert list(read_config(cut.cut(file, chosen)).layers) == [whole[layer] for layer in chosen]


def test_layers_that_predict_further_tokens_are_skipped(folder, tmp_path):
    """A qwen35 file with a layer of nextn gives the logits of one without."""

    def change(metadata, tensors):
        metadata |= {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
        tensors |= {name.replace("blk.3.", "blk.4."): tensor for name, tensor in tensors.items() if name.startswith("blk.3.")}
        for name in ("enorm", "hnorm", "shared_head_norm"):
            tensors[f"blk.4.nextn.{name}.weight"] = np.ones(256, np.float32)
        tensors["blk.4.nextn.eh_proj.weight"] = np.ones((256, 512), np.float32)

    plain = model_files.write(folder, "tiny-qwen35")
    path = model_files.rewrite(plain, tmp_path / "nextn.gguf", change)
    got, right = (kit.Transformer(kit.Weights(kit.open(each)), linear="fused").logits(PROMPT) for each in (path, plain))
    assert torch.equal(got, right)
    assert error(got, llama_cpp.logits(path, PROMPT)) < 1e-5


@pytest.mark.parametrize(
    "name, changes, says",
    [
        ("tiny-qwen35", {"qwen35.ssm.state_size": None}, "'qwen35.ssm.state_size' is missing"),
        ("tiny-qwen35", {"qwen35.ssm.group_count": 3}, "4 heads of values, 3 of keys: the kit cannot run such a qwen35 model"),
        ("tiny-qwen35", {"qwen35.ssm.state_size": 2 * LARGEST}, "ssm.inner_size' should be 2048, the elements of all heads"),
        (
            "tiny-qwen35",
            {"qwen35.ssm.state_size": 2 * LARGEST, "qwen35.ssm.inner_size": 8 * LARGEST},
            "heads of 512 elements: the kit cannot run such",
        ),
        ("tiny-qwen35", {"qwen35.ssm.conv_kernel": 3}, r"'blk.0.ssm_conv1d.weight' has shape \(512, 4\); expected \(512, 3\)"),
        ("tiny-qwen35", {"qwen35.full_attention_interval": 2}, "'blk.1.attn_.*' has no place"),
        ("granitehybrid", {"granitehybrid.ssm.time_step_rank": 7}, "512 numbers in 7 heads: the kit cannot run such"),
        ("granitehybrid", {"granitehybrid.ssm.group_count": 3}, "8 heads in 3 groups: the kit cannot run such"),
        ("granitehybrid", {"granitehybrid.attention.head_count_kv": [0, 0, 3, 0]}, "4 heads, 3 KV heads: the kit cannot"),
    ],
)
def test_a_file_that_cannot_be_right_is_one_line(folder, tmp_path, name, changes, says):
    def change(metadata, tensors):
        for key, value in changes.items():
            metadata.pop(key) if value is None else metadata.update({key: value})

    path = model_files.rewrite(model_files.write(folder, name), tmp_path / "odd.gguf", change)
    with kit.open(path) as file, pytest.raises(ModelError, match=rf"odd\.gguf: .*{says}") as caught:
        read_config(file)
    assert "\n" not in str(caught.value)


# ---- under transformers


@pytest.mark.filterwarnings("ignore")
def test_under_transformers(folder):
    """The kit's own pass against transformers' modules; beams copy states; what cannot be cut or handed over says so."""
    path = model_files.write(folder, "tiny-qwen35")
    model, _ = kit.hf.load(path)
    modules, _ = kit.hf.load(path, engine="modules")
    kept = [name for name, weight in modules.named_parameters() if weight.ndim == 2 and not isinstance(weight, StoredWeight)]
    assert not [name for name in kept if "gate.weight" not in name or "proj" in name], "routers alone are in float32"
    prompt = torch.tensor([PROMPT[:8], PROMPT[8:16]])
    with torch.inference_mode():
        right = modules(prompt).logits
        found = model(prompt, use_cache=True)
        assert error(found.logits, right) < 1e-4
        greedy = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
        for options in (greedy, greedy | dict(num_beams=3)):
            one = model.generate(prompt[:1], **options)
            assert torch.equal(one, modules.generate(prompt[:1], **options))
        cache = getattr(found, "cache", None) or found.past_key_values
        with pytest.raises(ModelError, match="cannot go back from 8 to 7 positions"):
            cache.crop(-1)
        with pytest.raises(ModelError, match=r"its recurrent layers hold a state of the kit's own.*engine='modules'"):
            cache.layers  # noqa: B018
