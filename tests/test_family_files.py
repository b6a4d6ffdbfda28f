"""Families of today against llama.cpp: prompt, token by token, exact and int8, recorded and not; each tensor has its use."""

import copy
import os
import re

import families_page
import family_files
import gguf
import llama_cpp
import model_files
import numpy as np
import pytest
import reference_gemma4
import row_files
import torch
import torch.nn.functional as F

import kit
from kit.errors import ModelError
from kit.gguf.reader import TensorInfo
from kit.model import cpu_ops
from kit.model.architectures import ARCHITECTURES
from kit.model.hyperparameters import read_config

THOROUGH = os.environ.get("KIT_EXAMPLES") == "thorough"
ROWS = [name for name in row_files.FILES if THOROUGH or name in ("exaone-moe", "falcon-40b", "minicpm3", "deci")]
TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 500, 30)]
BEGIN = 5


def model_of(path, linear="fused", recorded=True, **how):
    model = kit.Transformer(kit.Weights(kit.open(path)), linear=linear, **how)
    assert model.unplanned == ""
    model.unplanned = "" if recorded else "asked for by a test"
    return model


def decode(model, cache=None):
    """Logits after each token from the last of the prompt on."""
    cache = model.new_cache(64) if cache is None else cache
    first = model.step(TOKENS[:BEGIN], cache)
    return torch.stack([first, *(model.step([token], cache) for token in TOKENS[BEGIN:])]).numpy()


def errors(got, right):
    """RMS of the difference over the spread of the logits, for each token."""
    return np.sqrt(((got - right) ** 2).mean(1)) / right.std(1)


@pytest.fixture
def rounded_gelu(monkeypatch):
    """GELU as ggml computes it on a CPU: from a table, float16 to float16."""
    gelu = lambda x: F.gelu(x.half().float(), approximate="tanh").half().float()  # noqa: E731
    monkeypatch.setitem(cpu_ops.ACTIVATIONS, "gelu", lambda gate, up: gelu(gate) * up)


@pytest.mark.parametrize("name", family_files.FILES | family_files.LARGE)
def test_logits_are_llama_cpps(folder, rounded_gelu, name):
    path = family_files.write(folder, name)
    theirs = llama_cpp.logits(path, TOKENS, family_files.V)
    model = model_of(path, recorded=False)
    prompt, tokens = model.logits(TOKENS).numpy(), decode(model)
    most = 1e-3 if name.startswith("gemma") else 1e-4  # GELU's last bit of float16, which the first tokens do not meet
    assert np.median(errors(prompt, theirs)) < most and (prompt.argmax(1) == theirs.argmax(1)).all()
    assert np.median(errors(tokens, theirs[BEGIN - 1 :])) < most


@pytest.mark.parametrize("name", [name for name in family_files.FILES if name.startswith("gemma4")])
def test_gemma_4_equals_float64(folder, name):
    """Where llama.cpp's GELU is a table of float16."""
    path = family_files.write(folder, name)
    model, right = model_of(path), reference_gemma4.forward(TOKENS, *model_files.plain(path))
    assert errors(model.logits(TOKENS).numpy(), right).max() < 1e-4
    assert errors(decode(model), right[BEGIN - 1 :]).max() < 1e-4


def test_gemma_4_differs_from_llama_cpp_by_its_table_of_gelu_alone(folder, monkeypatch):
    """Float64 with GELU from float16 to float16 gives llama.cpp's logits. Each token is a sequence of its own, because a number
    that float32 rounds to the next float16 (every second token has one) changes all that follows."""
    path, alone = family_files.write(folder, "gemma4"), TOKENS[:12]
    with llama_cpp.opened(path, context=512, kv="float32", exact=True) as llama:
        theirs = np.concatenate([llama.logits([token]) for token in alone])
    known, gelu = model_files.plain(path), reference_gemma4._gelu
    ours = lambda: np.sort(errors(np.concatenate([reference_gemma4.forward([token], *known) for token in alone]), theirs))  # noqa: E731
    half = lambda x: x.astype(np.float16).astype(np.float64)  # noqa: E731
    assert ours()[0] > 1e-4
    monkeypatch.setattr(reference_gemma4, "_gelu", lambda x: half(gelu(half(x))))
    rounded = ours()
    assert rounded[3] < 1e-6 and np.median(rounded) < 1e-4


def written(folder, name):
    return (family_files if name in family_files.FILES else row_files).write(folder, name)


@pytest.mark.parametrize("name", [*family_files.FILES, *ROWS])
def test_a_recorded_pass_and_rows_of_a_batch_give_the_same(folder, name):
    """The recorded pass against the one that is not; two rows at once, of other lengths, against each alone."""
    path = written(folder, name)
    model = model_of(path)
    recorded, right = decode(model), decode(model_of(path, recorded=False))
    assert {span.outcome for span in model.trace.spans if span.what == "token"} == {"", "planned"}
    assert errors(recorded, right).max() < 1e-5
    rows, caches = (TOKENS[:7], TOKENS[9:20]), [model.new_cache(32) for _ in range(2)]
    both = [model.batch(rows, caches, torch.tensor([6, 17])), model.batch(([3], [4, 5]), caches, torch.tensor([0, 2]))]
    for number, (row, more) in enumerate(zip(rows, ([3], [4, 5]), strict=True)):
        alone = model.new_cache(32)
        for got, tokens in zip(both, (row, more), strict=True):
            assert errors(got[number : number + 1].numpy(), model.logits(tokens, -1, alone).numpy()).max() < 1e-5


MARGIN = 0.15  # of the spread of a router's scores: three times what rounding to eight bits changes


def choices(monkeypatch, model, rows):
    """(logits after each row, its least margin over all tokens and routers, what was chosen) of rows of two tokens. A margin is
    the gap between the last expert that is taken and the next one, in spreads of the scores."""
    seen, right = [], cpu_ops.CpuOps.route

    def route(self, name, x):
        share, chosen = right(self, name, x)
        scores = self.linear(name, x)
        routing = self.config.layers[int(name.split(".")[1])].feed_forward.routing
        bias = self.vector(name.replace("ffn_gate_inp.weight", routing.bias))
        ranks = scores if bias is None else scores.sigmoid() + bias
        best = ranks.sort(-1, descending=True).values
        seen.append(((best[:, routing.used - 1] - best[:, routing.used]) / ranks.std(-1), chosen.sort(-1).values))
        return share, chosen

    with monkeypatch.context() as patch:
        patch.setattr(cpu_ops.CpuOps, "route", route)
        logits = model.batch(rows, [model.new_cache(2) for _ in rows], torch.arange(1, 2 * len(rows), 2))
    if not seen:
        return logits, torch.full((len(rows),), torch.inf), None
    margins = torch.stack([margin for margin, _ in seen]).amin(0).view(-1, 2).amin(1)
    return logits, margins, torch.stack([chosen for _, chosen in seen], 1).view(len(rows), -1)


@pytest.mark.parametrize("name", ["lfm2moe", "gemma4", "gemma4-mixture", "qwen2moe", "bailingmoe2"])
def test_quantized_exact_and_rounded_to_eight_bits(folder, monkeypatch, name):
    """Q8_0 matrices: products from blocks equal those of dequantized weights, and int8 is as near as rounding is.

    Of random prompts those are taken whose experts no rounding turns. In another one an expert changes by a hair: of five
    tokens of gemma4-mixture on AVX2 the last took experts 1 and 3 in layer 4 with a gap of 1.4% of the spread, rounded 3 and 7,
    and the logits were 0.39 apart."""
    path = family_files.write(folder, name, "Q8_0")
    dequantized = kit.Transformer(kit.Weights(kit.open(path)), linear="dequantized")
    assert errors(decode(model_of(path)), decode(dequantized)).max() < 1e-4
    rows = np.random.default_rng(1).integers(3, 500, (160, 2)).tolist()
    right, margins, wanted = choices(monkeypatch, dequantized, rows)
    clear = [rows[number] for number in (margins > MARGIN).nonzero().flatten()][:8]
    assert len(clear) >= 2, "no prompt without near ties: draw more"
    right = right[margins > MARGIN][: len(clear)]
    for linear, most in (("fused", 1e-4), ("fused-int16", 2e-3), ("fused-int8", 5e-2)):
        got, _, chosen = choices(monkeypatch, model_of(path, linear=linear), clear)
        assert wanted is None or torch.equal(chosen, wanted[margins > MARGIN][: len(clear)])
        apart = errors(got.numpy(), right.numpy())
        assert np.median(apart) < most and apart.max() < 3 * most, linear


@pytest.mark.parametrize("name", ["lfm2", "gemma4"])
def test_going_back_and_a_copy_give_what_a_new_sequence_gives(folder, name):
    model = model_of(family_files.write(folder, name))
    cache, copy = model.new_cache(64), model.new_cache(64)
    model.step(TOKENS[:BEGIN], cache)
    mark = cache.mark()
    right = model.step([7], cache)
    model.step([9], cache)
    cache.back_to(mark)
    copy.take(cache)
    assert torch.equal(model.step([7], cache), right) and torch.allclose(model.step([7], copy), right, atol=1e-5)
    if not cache.can_be_cut:
        with pytest.raises(ModelError, match="recurrent layers cannot go back from 6 to 3"):
            cache.truncate(3)
    cache.truncate(0)
    assert torch.allclose(model.step(TOKENS[:BEGIN], cache), model.logits(TOKENS[:BEGIN])[-1], atol=1e-5)


def test_what_layers_share_is_held_once_and_unread_tensors_change_nothing(folder):
    """gemma4: the last layers attend to others' keys and values, and their own may be in the file."""
    full, lean = (model_of(family_files.write(folder, name)) for name in ("gemma4", "gemma4-lean"))
    assert [layer.mixer.source for layer in full.config.layers] == [None] * 3 + [1, 1, 2]
    per = 2 * 4 * (2 * 32 + 2 * 32 + 64)
    assert full.new_cache(8).bytes_per_position == per == sum(layer.mixer.memory.held(1) for layer in full.config.layers)
    unread = full.config.unread_tensors()
    known = set(unread) & set(full.file.tensors)
    assert known == set(full.file.tensors) - set(lean.file.tensors) and len(known) == 9
    assert not set(full.config.order_of_use(full.file.tensors)) & set(unread)


def changed(file, without=(), more=()):
    """The table of a file without some tensors and with some more, of one number."""
    other = copy.copy(file)
    other.tensors = {name: info for name, info in file.tensors.items() if name not in without}
    other.tensors |= {name: TensorInfo.new(name, "F32", (1,)) for name in more}
    return other


@pytest.mark.parametrize("name", [*family_files.FILES, *ROWS])
def test_every_tensor_is_needed_and_another_is_refused(folder, name):
    """As llama.cpp refuses a wrong number of tensors: without any one of its tensors, and with one that no kind names."""
    file = kit.open(written(folder, name))
    config = read_config(file)
    free = {*config.optional_tensors(), *config.unread_tensors(), "output.weight"}  # without which it is another valid model
    free |= {tensor for tensor in file.tensors if name.startswith("gemma4") and "attn_v" in tensor}
    free |= {tensor for tensor in file.tensors if tensor.endswith(("attn_norm_2.weight", "exp_probs_b"))}
    free |= {"blk.1.ssm_norm.weight"} if name == "falcon-h1" else set()
    free |= {tensor for tensor in file.tensors if tensor.startswith("blk.3.")} if name == "bailingmoe2" else set()
    assert len(free & set(file.tensors)) < len(file.tensors) / 2
    for tensor in sorted(set(file.tensors) - free):
        with pytest.raises(ModelError, match=r"gguf: .*the tensor '.*' (is missing|has shape|has no place)"):
            read_config(changed(file, without=[tensor]))
    for more in ("output_scale.weight", "position_embd.weight", "blk.0.attn_rel_b.weight", "blk.1.attn_q.scale"):
        with pytest.raises(ModelError, match=f"the tensor '{more}' has no place in a {config.architecture} model"):
            read_config(changed(file, more=[more]))
    with pytest.raises(ModelError, match=r"has the tensor 'blk.9.attn_norm.weight', but .*block_count says \d layers"):
        read_config(changed(file, more=["blk.9.attn_norm.weight"]))
    assert read_config(changed(file, more=["v.blk.0.attn_q.weight", "mm.0.weight", "nextn.pre_projection.weight"])) == config
    uncounted = r"'blk.1.nextn.enorm.weight' belongs to a layer that predicts further tokens, but .*nextn_predict_layers"
    with pytest.raises(ModelError, match=uncounted):
        read_config(changed(file, more=["blk.1.nextn.enorm.weight"]))


NEWER = (  # names of llama.cpp, xllamacpp 2026.10.11549, that gguf-py lacks
    "bailingmoe3 clef cohere2moe deepseek32 deepseek4 dflash dots3note eagle3 gemma-embedding2 gemma4-assistant glm5-next "
    "granite_swa graniteswitch hrm_text hy_v3 hy_v4 k2-horizon kimi-k3 laguna maple mellum minimax-01 minimax-m3 muse-glimmer "
    "nanbeige pockettts qwen3tts qwen4exp spark2_5 talkie"
).split()


def test_the_page_of_families_has_a_row_for_each_that_runs(folder):
    """As tests/families_page.py writes it; one row is measured again."""
    rows = {name: cells for name, cells in families_page.cells().items() if len(cells) == 6}
    assert list(rows) == [name for name in ARCHITECTURES if name != "mistral"], "llama.cpp does not know it"
    for name, (_, *errors, near, far) in rows.items():
        prompt, tokens, rounded = map(float, errors)
        most = 1e-3 if ARCHITECTURES[name].activation == "gelu" else 1e-4
        assert prompt < most and tokens < most and rounded < 0.05, name
        assert int(near.replace(",", "")) <= int(far.replace(",", "")), name
    files = (families_page.files()["lfm2"](folder, kind) for kind in ("F32", "Q8_0"))
    mixers, *errors, near, far = families_page.row(*files, families_page.TOKENS)
    assert [mixers, near, far] == [rows["lfm2"][0], *rows["lfm2"][4:]]
    for now, told in zip(errors, rows["lfm2"][1:4], strict=True):
        assert 0.1 < float(now) / float(told) < 10
    page = families_page.PAGE.read_text(encoding="utf-8")
    assert f"<!-- families -->\n{families_page.summary()}\n<!-- /families -->" in page
    exceptions = re.findall(r"^\| `([\w.-]+)` \| \de-\d+ \|$", page, re.MULTILINE)
    assert exceptions and {ARCHITECTURES[name].activation for name in exceptions} == {"gelu"}, "the page says so"
    refused = page.partition("## What kit does not run")[2]
    refused = set(re.findall(r"`([\w.-]+)`", refused))
    assert not set(ARCHITECTURES) & refused
    assert {*gguf.MODEL_ARCH_NAMES.values(), *NEWER} <= set(ARCHITECTURES) | refused
