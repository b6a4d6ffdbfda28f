"""MTP heads: their logits are llama.cpp's, greedy answers stay, and what was drafted is read again as the model found it."""

import llama_cpp
import llama_heads
import model_files
import mtp_files
import numpy as np
import pytest
import torch

import kit
from kit.errors import ModelError
from kit.lab.predicting import opening
from kit.model.architectures import ARCHITECTURES
from kit.model.drafters import Head, HeadModel
from kit.model.generate import Sampler
from kit.model.hyperparameters import head_config

PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 500, 12)]
FILES = {"qwen35": "tiny-qwen35", "qwen35moe": "qwen35moe", "qwen3next": "qwen3next", "glm4moe": "glm4moe"}
ALL = "shared_head_norm", "embed_tokens", "shared_head_head"


def with_head(folder, name, own=("shared_head_norm",)):
    path = folder / f"{name}-head{len(own)}.gguf"
    return path if path.exists() else mtp_files.with_head(model_files.write(folder, FILES[name], "F32"), path, own)


def test_each_family_whose_head_runs_is_tested():
    assert set(FILES) == {name for name, row in ARCHITECTURES.items() if row.head}


@pytest.mark.parametrize("own", [(), ALL], ids=["borrowed", "own"])
@pytest.mark.parametrize("name", FILES)
def test_logits_of_a_head_are_those_of_llama_cpp(folder, tmp_path, name, own):
    """In a prompt, token by token, and of several tokens at once; so are the states of the model and of the head."""
    llama_cpp.needed()
    path = with_head(folder, name, own)
    right = llama_heads.outputs(path, PROMPT, tmp_path / "right.npz")
    assert right is not None
    model, head = (kind(kit.Weights(kit.open(path)), linear="fused") for kind in (kit.Transformer, HeadModel))
    cache = model.new_cache(64)
    cache.keep_states(model.config.hidden_size)
    model.step(PROMPT, cache)
    states = cache.kept.clone()

    def own_cache():
        own = head.new_cache(64)
        own.kept = states.clone()
        return own

    def off(got, expected):
        return float((got - torch.as_tensor(expected)).abs().max() / np.std(expected))

    whole = own_cache()
    assert off(states[1 : len(PROMPT) + 1], right["state"]) < 1e-4
    assert off(head.logits(PROMPT, 0, whole), right["logits"]) < 1e-4
    assert off(whole.kept[1 : len(PROMPT) + 1], right["after"]) < 1e-4
    single, several = own_cache(), own_cache()
    for place, token in enumerate(PROMPT):
        single.kept.copy_(states)
        assert off(head.step([token], single), right["logits"][place]) < 1e-4
    head.step(PROMPT[:8], several)
    several.kept.copy_(states)
    assert off(head.verify(PROMPT[8:], several).logits[-1], right["logits"][-1]) < 1e-4
    assert off(several.kept[len(PROMPT)], right["after"][-1]) < 1e-4
    assert not head.unplanned and not head.unplanned_several


@pytest.mark.parametrize("linear", ["fused", "fused-int16", "fused-int8"])
@pytest.mark.parametrize("name", FILES)
def test_greedy_answers_are_those_without_a_head(folder, name, linear):
    model = kit.Transformer(kit.Weights(kit.open(with_head(folder, name))), linear=linear)
    right = kit.generate(model, PROMPT, 24, stop_at_end=False)
    for most in (1, 3):
        got = kit.generate(model, PROMPT, 24, stop_at_end=False, draft="mtp", draft_max=most)
        assert got.tokens == right.tokens or got.draft.ties
        assert got.draft.drafted and got.draft.nbytes and got.draft.name == "mtp"


class _Guided(Head):
    """A head in place of whose drafts every other time the answer comes, so that some are taken; it keeps what it drafted."""

    def __init__(self, model, answer):
        super().__init__(model)
        self.answer, self.drafts = answer, {}

    def propose(self, tokens, count, sampler):
        drafted, chances = super().propose(tokens, count, sampler)
        self.drafts[len(tokens)] = list(drafted)
        known = self.answer[len(tokens) - len(PROMPT) :][: len(drafted) - len(tokens) % 2]
        return [*known, *drafted[len(known) :]], chances


@pytest.mark.parametrize("name", ["qwen35", "glm4moe"])
def test_a_head_reads_what_it_drafted_again_with_the_states_of_the_model(folder, name):
    """What it drafts after some were taken is what a head drafts that reads the whole text at once."""
    model = kit.Transformer(kit.Weights(kit.open(with_head(folder, name))), linear="fused")
    right = kit.generate(model, PROMPT, 24, stop_at_end=False).tokens
    guided = _Guided(model, right)
    got = kit.generate(model, PROMPT, 24, stop_at_end=False, draft=guided, draft_max=3)
    assert got.tokens == right and got.draft.accepted and got.draft.refused and len(guided.drafts) > 4
    for length, drafted in guided.drafts.items():
        text, fresh, cache = [*PROMPT, *right][:length], Head(model), model.new_cache(64)
        fresh.follow(model, cache)
        model.step(text[:-1], cache)
        assert fresh.propose(text, len(drafted), Sampler())[0] == drafted


def test_a_head_drafts_for_several_answers_and_drawn_ones(folder):
    model = kit.Transformer(kit.Weights(kit.open(with_head(folder, "qwen35"))), linear="fused")
    head, right = Head(model), kit.generate(model, PROMPT, 12, stop_at_end=False)
    for _ in range(2):
        assert kit.generate(model, PROMPT, 12, stop_at_end=False, draft=head).tokens == right.tokens
    assert len(kit.generate(model, PROMPT, 12, temperature=1.0, stop_at_end=False, draft="mtp").tokens) == 12
    cache = model.new_cache(64)
    first = kit.generate(model, PROMPT, 6, stop_at_end=False, draft=head, cache=cache)  # and the next goes on in its cache
    more = kit.generate(model, [first.tokens[-1]], 6, stop_at_end=False, draft=head, cache=cache)
    assert [*first.tokens, *more.tokens] == right.tokens


def test_a_head_of_a_further_turn_reads_the_states_of_that_turn(folder):
    model = kit.Transformer(kit.Weights(kit.open(with_head(folder, "glm4moe"))), linear="fused")
    head, cache, own = Head(model), model.new_cache(64), Head(model)._model
    cache.keep_states(model.config.hidden_size)
    model.step(PROMPT[:6], cache)
    head.follow(model, cache)
    model.step(PROMPT[6:], cache)
    alone = own.new_cache(64)
    alone.kept = cache.kept[6:].clone()
    right, text = [], [*PROMPT[6:], 30]
    for _ in range(6):
        right.append(int(own.step((text + right)[alone.length :], alone).argmax()))
    assert head.propose(text, 6, Sampler())[0] == right


@pytest.mark.parametrize("architecture", ["dflash", "eagle3", "gemma4-assistant"])
def test_a_drafter_in_a_file_of_its_own_is_one_line(architecture, folder, tmp_path):
    def beside(metadata, tensors):
        metadata["general.architecture"] = architecture
        for name in [name for name in tensors if name.startswith("blk.0.attn_k")]:
            del tensors[name]
        tensors["nextn.pre_projection.weight"] = np.ones((256, 512), np.float32)

    plain = model_files.write(folder, "tiny-llama", "F32")
    sidecar = model_files.rewrite(plain, tmp_path / "sidecar.gguf", beside)
    with pytest.raises(ModelError) as caught:
        kit.generate(kit.Transformer(kit.open(plain)), PROMPT, 8, draft=sidecar)
    said = str(caught.value)
    assert said.startswith(f"{sidecar}: a drafter ({architecture})") and said.endswith("give ngram or a smaller model")
    assert "\n" not in said
    with pytest.raises(ModelError, match=rf"a drafter \({architecture}\) without its model: nothing runs it alone$"):
        kit.Transformer(kit.open(sidecar))
    with kit.open(sidecar) as file:
        assert opening.via(file) == opening.OWN  # with transformers installed too, whose error names no drafter


def test_heads_that_cannot_draft_are_one_line(folder, tmp_path):
    def error(path, **given):
        model = kit.Transformer(kit.Weights(kit.open(path)))
        given = {"cache": model.new_cache(64)} | given
        with pytest.raises(ModelError) as caught:
            kit.generate(model, PROMPT, 8, draft="mtp", **given)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    plain = model_files.write(folder, "tiny-qwen35", "F32")
    assert "it has no MTP head: give ngram" in error(plain)
    other = mtp_files.with_head(model_files.write(folder, "tiny-llama", "F32"), tmp_path / "llama.gguf")
    assert "kit runs no MTP head of 'llama', only of" in error(other)

    def without(metadata, tensors):
        del tensors["blk.4.nextn.hnorm.weight"]

    def wide(metadata, tensors):
        tensors["blk.4.nextn.eh_proj.weight"] = np.ones((256, 256), np.float32)

    def alone(metadata, tensors):
        for name in [name for name in tensors if name.startswith("blk.") and not name.startswith("blk.4.")]:
            del tensors[name]

    good = with_head(folder, "qwen35")
    sidecar = model_files.rewrite(good, tmp_path / "sidecar.gguf", alone)
    with pytest.raises(ModelError, match="an MTP head without its model"):
        kit.generate(kit.Transformer(kit.open(plain)), PROMPT, 8, draft=sidecar)
    missing = model_files.rewrite(good, tmp_path / "missing.gguf", without)
    assert "'blk.4.nextn.hnorm.weight' of the MTP head is missing" in error(missing)
    wrong = model_files.rewrite(good, tmp_path / "wide.gguf", wide)
    assert "has shape (256, 256); expected shape (256, 512)" in error(wrong)
    model = kit.Transformer(kit.Weights(kit.open(good)))
    cache = model.new_cache(64)
    model.step(PROMPT, cache)
    assert "needs the state of every position" in error(good, cache=cache)
    assert head_config(kit.open(good)).number == 4
