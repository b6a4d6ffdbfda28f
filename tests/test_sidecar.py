"""gemma4-assistant, a drafter in a file of its own: its logits are float64's, greedy answers stay, wrong files are one line."""

import family_files
import model_files
import mtp_files
import numpy as np
import pytest
import reference_gemma4
import reference_sidecar
import torch

import kit
from kit.errors import ModelError
from kit.model.generate import Sampler
from kit.model.sidecar import Sidecar

PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 500, 14)]  # longer than the window
TARGETS = ["gemma4", "gemma4-dense"]  # the last layers have their own keys and values, or others'


def pair(folder, name):
    target, path = family_files.write(folder, name), folder / f"{name}-assistant.gguf"
    return target, path if path.exists() else mtp_files.sidecar(target, path)


class _Told(Sampler):
    """Greedy, by drawing: so it sees the logits of each drafted token."""

    def __init__(self):
        super().__init__(1.0)
        self.seen = []

    def chances(self, logits):
        self.seen.append(logits.clone())
        return logits

    def draw(self, chances):
        return int(chances.argmax())


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", TARGETS)
def test_logits_of_a_sidecar_are_those_of_float64(folder, name, recorded):
    """Of drafts after a prompt and after further tokens, by a recorded pass and without, over a window and all positions."""
    target, path = pair(folder, name)
    model, draw = kit.Transformer(kit.open(target), linear="fused"), _Told()
    sidecar = Sidecar(model, kit.open(path), "fused")
    sidecar._model.unplanned = "" if recorded else "not here"
    cache, sequence = model.new_cache(64), reference_gemma4.Sequence(*model_files.plain(target))
    drafter = reference_sidecar.Drafter(*model_files.plain(path), sequence)
    sidecar.follow(model, cache)
    for more in (PROMPT[:5], PROMPT[5:7], PROMPT[7:]):
        model.step(more, cache)
        for token in more:
            sequence.step(len(sequence.kept[0][0]), token)
        right = drafter.drafted(30, 4)
        draw.seen.clear()
        drafted, _ = sidecar.propose([*PROMPT[: cache.length], 30], 4, draw)
        got = torch.stack(draw.seen).numpy()
        assert np.abs(got - right).max() < 1e-4 * right.std() and drafted == right.argmax(1).tolist()
    assert bool(sidecar._model._plans) == recorded


def test_a_further_turn_drafts_after_all_positions_of_the_cache(folder):
    target, path = pair(folder, "gemma4")
    model, drafts = kit.Transformer(kit.open(target), linear="fused"), []
    for turns in ([PROMPT], [PROMPT[:6], PROMPT[6:]]):
        sidecar, cache = Sidecar(model, kit.open(path), "fused"), model.new_cache(64)
        for turn in turns:
            sidecar.follow(model, cache)
            model.step(turn, cache)
        drafts.append(sidecar.propose([*turns[-1], 30], 4, Sampler())[0])
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("linear", ["fused", "fused-int16", "fused-int8"])
@pytest.mark.parametrize("name", TARGETS)
def test_greedy_answers_are_those_without_a_sidecar(folder, name, linear):
    target, path = pair(folder, name)
    model = kit.Transformer(kit.open(target), linear=linear)
    right = kit.generate(model, PROMPT, 24, stop_at_end=False)
    for most in (1, 3):
        got = kit.generate(model, PROMPT, 24, stop_at_end=False, draft=path, draft_max=most)
        assert got.tokens == right.tokens or got.draft.ties
        assert got.draft.drafted and got.draft.nbytes and got.draft.name == path.name
    assert len(kit.generate(model, PROMPT, 12, temperature=1.0, stop_at_end=False, draft=path).tokens) == 12


def test_sidecars_that_cannot_draft_are_one_line(folder, tmp_path):
    target, path = pair(folder, "gemma4")
    model, number = kit.Transformer(kit.open(target)), iter(range(9))

    def error(**more):
        wrong = mtp_files.sidecar(target, tmp_path / f"{next(number)}.gguf", **more)
        with pytest.raises(ModelError) as caught:
            kit.generate(model, PROMPT, 8, draft=wrong)
        assert "\n" not in str(caught.value) and str(caught.value).startswith(str(wrong))
        return str(caught.value)

    assert "with states of 256 elements, not of 128" in error(embedding_length_out=256)
    assert "for a model whose last layers have" in error(**{"attention.head_count_kv": [4, 4, 4, 4]})
    assert "has shape (384, 64)" not in error(feed_forward_length=128) and "of the drafter" in error(feed_forward_length=128)
    cache = model.new_cache(64)
    model.step(PROMPT, cache)
    with pytest.raises(ModelError, match="needs the state of every position"):
        kit.generate(model, PROMPT, 8, draft=path, cache=cache)
