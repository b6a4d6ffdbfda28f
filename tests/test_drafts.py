"""Drafts: one pass over several tokens equals one over each, what is kept of them, greedy answers and drawn ones."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import family_files
import kind_files
import model_files
import numpy as np
import pytest
import torch

import kit
from kit.errors import ModelError
from kit.model.drafters import MOST, Drafter, Ngrams, Smaller, check_pair
from kit.model.drafts import Drafting, Timed, passes, ties
from kit.model.generate import Sampler
from kit.model.kvcache import FixedState
from kit.system import paths

PROMPT = [int(token) for token in np.random.default_rng(0).integers(3, 500, 12)]
# attention of each kind, mixtures, and recurrent layers
KINDS = ["tiny-llama", "tiny-gemma3", "tiny-gpt-oss", "tiny-qwen3moe", "tiny-phi3", "deepseek2-dense", "tiny-qwen35",
    "granitehybrid-moe"]  # fmt: skip


# what these lack: rows of a table per layer, streams, and states of other kinds
MORE = ["gemma4", "gemma4-mixture", "lfm2", "gemma3n", "kimi-linear", "jamba", "glm5-next"]


def model_of(folder, name, linear="fused", mix="Q4_K_M", **how):
    return kit.Transformer(kit.Weights(kit.open(model_files.write(folder, name, mix))), linear=linear, **how)


def one_by_one(model, cache, tokens):
    return torch.stack([model.step([token], cache) for token in tokens]) if tokens else None


@pytest.mark.parametrize("linear", ["fused", "fused-int8"])
@pytest.mark.parametrize("name", KINDS)
def test_one_pass_over_several_tokens_equals_one_over_each(folder, name, linear):
    """And what is kept of them is what these alone would have left. Where activations are rounded, bit for bit."""
    model = model_of(folder, name, linear)
    draft = [5, 9, 17, 40]
    cache, other = model.new_cache(64), model.new_cache(64)
    for each in (cache, other):
        model.step(PROMPT, each)
    right = one_by_one(model, other, draft)
    verified = model.verify(draft, cache)
    assert cache.length == other.length == len(PROMPT) + len(draft)
    assert not model.unplanned_several
    bits = linear != "fused"
    assert torch.equal(verified.logits, right) if bits else (verified.logits - right).abs().max() < 2e-4 * right.std()
    for kept in (2, 0, 4):
        cache, other = model.new_cache(64), model.new_cache(64)
        for each in (cache, other):
            model.step(PROMPT, each)
        one_by_one(model, other, draft[:kept])
        model.verify(draft, cache).keep(kept)
        assert cache.length == len(PROMPT) + kept
        got, right = model.step([7], cache), model.step([7], other)
        assert torch.equal(got, right) if bits else (got - right).abs().max() < 2e-4 * right.std()


@pytest.mark.parametrize("name", MORE)
def test_so_it_is_for_files_of_today(folder, name):
    """A recorded pass over several tokens of gemma4 multiplied by memory that nothing had written."""
    maker = family_files if name in family_files.FILES else kind_files
    model = kit.Transformer(kit.open(maker.write(folder, name)), linear="fused")
    prompt, draft = [token % 128 for token in PROMPT], [5, 9, 17]
    cache, other = model.new_cache(64), model.new_cache(64)
    for each in (cache, other):
        model.step(prompt, each)
    verified, right = model.verify(draft, cache), one_by_one(model, other, draft)
    assert (verified.logits - right).abs().max() < 1e-4 * right.std()
    other.truncate(0)
    model.step(prompt, other)
    one_by_one(model, other, draft[:2])
    verified.keep(2)
    got, right = model.step([7], cache), model.step([7], other)
    assert (got - right).abs().max() < 1e-4 * right.std()


def test_states_are_copied_on_one_thread(folder, monkeypatch):
    """Torch's others waited for cores that the kit's threads, or another program, had: 44 ms in place of 0.1."""
    model, seen, before = model_of(folder, "tiny-qwen35"), [], torch.get_num_threads()
    for name in ("copied", "restore"):
        real = getattr(FixedState, name)
        monkeypatch.setattr(FixedState, name, lambda *of, real=real: (seen.append(torch.get_num_threads()), real(*of))[1])
    torch.set_num_threads(2)
    try:
        cache = model.new_cache(64)
        model.step(PROMPT, cache)
        model.verify([5, 9, 17], cache).keep(1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 5 and set(seen) == {1}


class Own(Drafter):
    """Drafts what the model itself says, or every other time something else."""

    name = "own"

    def __init__(self, answer, wrong=3):
        self.answer, self.wrong = answer, wrong

    def propose(self, tokens, count, sampler):
        known = self.answer[len(tokens) - len(PROMPT) :][:count]
        return [(token + 1) % 500 if (len(tokens) + n) % self.wrong == 0 else token for n, token in enumerate(known)], [
            None
        ] * len(known)


@pytest.mark.parametrize("linear", ["fused", "fused-int8"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3moe", "tiny-qwen35"])
def test_greedy_answers_are_those_without_a_draft(folder, name, linear):
    model = model_of(folder, name, linear)
    cache = model.new_cache(100)
    right = kit.generate(model, PROMPT, 40, cache=cache, stop_at_end=False)
    for draft, most in ((Own(right.tokens), 4), (Own(right.tokens, 2), 3), (Own(right.tokens, 99), MOST), ("ngram", 4)):
        own = model.new_cache(100)
        got = kit.generate(model, PROMPT, 40, cache=own, stop_at_end=False, draft=draft, draft_max=most)
        assert got.tokens == right.tokens or got.draft.ties, (draft, got.draft)
        assert own.length == cache.length and sum(map(bool, got.nbytes)) == len(got.seconds)
    assert got.draft.drafted >= got.draft.accepted


@pytest.mark.parametrize("linear", ["fused", "fused-int16", "fused-int8"])
@pytest.mark.parametrize("name", KINDS)
def test_every_drafter_way_and_kind_of_layer_gives_the_ids_of_no_draft(folder, name, linear):
    """A prompt that repeats, so that text that repeats drafts too; a head's ids are in test_heads.py."""
    model, prompt = model_of(folder, name, linear, "Q8_0"), PROMPT[:5] * 3
    right = kit.generate(model, prompt, 20, stop_at_end=False).tokens
    for draft in ("ngram", model_files.write(folder, name, "Q4_K_M")):
        got = kit.generate(model, prompt, 20, stop_at_end=False, draft=draft)
        assert got.draft.drafted and (got.tokens == right or got.draft.ties), got.draft


def test_the_end_of_a_text_ends_a_draft(folder):
    model = model_of(folder, "tiny-llama")
    right = kit.generate(model, PROMPT, 12, stop_at_end=False)
    end, told = right.tokens[5], Drafting("own")
    cache = model.new_cache(64)
    got, stop = [], right.tokens.index(end)
    for new, _, _ in passes(model, cache, PROMPT, Sampler(), Own(right.tokens, 99), 4, [end], 12, told):
        got += new
        if new[-1] == end:
            break
    assert got == right.tokens[: stop + 1] and cache.length == len(PROMPT) + stop


@pytest.mark.parametrize("certain", [True, False])
def test_drawn_tokens_have_the_distribution_of_the_model(certain):
    """20,000 tokens: chi-square of the first, and of those after a draft that was not taken."""
    generator = torch.Generator().manual_seed(1)
    logits, other = torch.randn(12, generator=generator) * 1.5, torch.randn(12, generator=generator)
    sampler = Sampler(0.8, seed=3)
    chances, drafts = sampler.chances(logits), sampler.chances(other)
    counts, taken = np.zeros(12), 0
    for _ in range(20_000):
        token = 4 if certain else sampler.draw(drafts)
        own, accepted = sampler.verified(logits, token, None if certain else drafts)
        counts[own] += 1
        taken += accepted
        assert accepted == (own == token)
    expected = chances.numpy() * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 37.4  # chi-square of 11 degrees of freedom: once in 10,000
    expected = float(chances[4]) if certain else float(torch.minimum(chances, drafts).sum())
    assert abs(taken / 20_000 - expected) < 0.015


def test_a_draft_that_loses_is_switched_off_and_says_so(folder, monkeypatch):
    """By a clock that goes on by one at every look, and by ten while the draft is made."""
    passed = [0.0]

    def perf_counter():
        passed[0] += 1.0
        return passed[0]

    class Slow(Own):
        def propose(self, *of):
            passed[0] += 10.0
            return super().propose(*of)

    monkeypatch.setattr("kit.model.drafts.time", SimpleNamespace(perf_counter=perf_counter))
    model = model_of(folder, "tiny-llama")
    right = kit.generate(model, PROMPT, 80, stop_at_end=False)
    got = kit.generate(model, PROMPT, 80, stop_at_end=False, draft=Slow(right.tokens, 1))
    assert got.tokens == right.tokens and 0 < got.draft.off < 80 and "switched off after" in got.draft.told()
    # it said "1.8 times ... switched off, because the model alone is faster": by passes after it, in another minute
    assert got.draft.loses and len(got.draft.plain) < 80 - got.draft.off
    counts = {"passes": 10, "drafted": 20, "accepted": 15, "refused": 5, "tokens": 25}
    good = Drafting("x", 3 << 20, **counts, timed=[Timed(4, 2, 1, True, 0.01, 0.01)] * 10, plain=[0.1] * 5)
    assert not good.loses and "switched" not in good.told() and "75%" in good.told() and good.chance == 0.75
    assert "5.00 ms" in good.told() and "3.00 MiB" in good.told()
    slow = Drafting("x", 0, **counts, timed=[Timed(4, 2, 1, True, 0.9, 0.9)] * 10, plain=[0.1] * 5)
    assert slow.loses and "reads no weights" in slow.told()
    slow.stays = True
    assert not slow.loses


def test_a_longer_draft_is_asked_for_where_its_passes_are_faster():
    """On text that repeats, nine tokens took 1.9 times as long as five: with every draft taken whole, still slower."""
    told = Drafting("x")
    asked = lambda *sizes: told.asked(sizes)  # noqa: E731
    assert (asked(), asked(1), asked(4, 1, 2), asked(8, 4)) == (0, 1, 4, 8)
    told.timed += [Timed(9, 8, 1, False, 0.0, second) for second in (1.9, 1.9, 30.0)]
    assert asked(1, 2, 4, 8) == 4  # which no pass has yet
    told.timed.append(Timed(1, 4, 1, True, 0.0, 1.0))
    assert (asked(1, 2, 4, 8), asked(1, 2), asked(1, 2, 4)) == (4, 2, 4)
    told.timed += [Timed(1, 4, 1, True, 0.1, 1.0)] * 2
    assert asked(1, 2, 4, 8) == 8


def test_what_is_made_for_the_first_time_is_not_timed(folder):
    """A page said 1.99 times off: a draft that reads another number of tokens for the first time records that pass."""
    model = model_of(folder, "tiny-llama", mix="F32")
    drafter = Smaller(model, model_files.write(folder, "tiny-llama", "Q4_K_M"))
    seen = []
    for end in (12, 13, 15, 17, 18, 21, 24, 25):
        drafter.propose(range(20, 20 + end), 3, Sampler())
        seen.append(drafter.settled)
    assert seen == [False, True, False, True, True, False, True, True]  # reads a prompt, 1, 2, 2, 1, 3, 3 and 1

    class Unsettled(Own):
        settled = False

    right = kit.generate(model, PROMPT, 30, stop_at_end=False)
    for draft, timed in ((Own(right.tokens), True), (Unsettled(right.tokens), False)):
        told = kit.generate(model, PROMPT, 30, stop_at_end=False, draft=draft).draft
        assert bool(told.timed) == timed and len(told.timed) <= told.passes
        assert sum(each.tokens for each in told.timed) <= told.tokens


def test_ties_are_those_within_rounding():
    draw = np.random.default_rng(0)
    for gap in (0.0, 5e-6, 2e-5, 1.0):
        logits = draw.normal(size=1000).astype(np.float32)
        logits[[7, 900]] = 5 + gap * logits.std(), 5
        best = torch.from_numpy(logits).topk(2).values
        right = bool(best[0] - best[1] < 1e-5 * torch.from_numpy(logits).std())
        assert ties(logits) == ties(logits[::-1].copy()) == right == (gap < 1e-5)


def test_ngrams_go_on_as_the_text_did():
    drafter = Ngrams()
    assert drafter.propose([1, 2, 3, 9, 1, 2, 3], 2, None)[0] == [9, 1]
    assert drafter.propose([1, 2, 3, 9, 1, 2, 3, 8, 7, 1, 2, 3], 2, None)[0] == [8, 7]
    assert drafter.propose([4, 5], 2, None) == ([], [])
    drafter.follow(None, None)
    assert drafter.propose([5, 6, 1, 2, 3], 2, None) == ([], [])  # an answer of its own: nothing of one before
    assert Ngrams().propose([7] * 4, 4, None)[0] == [7] * 2, "where few tokens are in common a draft is short"
    assert Ngrams().propose([7] * 12, 4, None)[0] == [7] * 4


def test_ngrams_go_on_in_the_place_with_the_most_in_common():
    """It was the last place that ended in the same four tokens."""
    text, other = [*range(20, 34)], [3, *range(30, 34)]
    assert Ngrams().propose([*text, 8, *other, 9, *text], 1, None)[0] == [8]


def passes_of(drafter, prompt, answer, most=8):
    """(passes, tokens drafted, taken) of an answer that is known."""
    sequence, end, counts = [*prompt, answer[0]], len(prompt) + len(answer), np.zeros(3, int)
    while len(sequence) < end:
        drafted, rest = drafter.propose(sequence, most, None)[0], answer[len(sequence) - len(prompt) :]
        taken = next((n for n, pair in enumerate(zip(drafted, rest, strict=False)) if pair[0] != pair[1]), len(drafted))
        counts += 1, len(drafted), taken
        sequence += rest[: taken + 1]
    return counts.tolist()


def test_ngrams_follow_a_text_that_is_edited():
    """A name that comes often is another in the answer. Each was refused, and then nothing was proposed until two tokens after
    it had been found elsewhere: 79 passes, and 160 of 352 tokens taken."""
    draw = np.random.default_rng(0)
    text = [int(token) for token in draw.integers(100, 160, 240)]
    text[::12] = [1] * 20
    passes, drafted, taken = passes_of(Ngrams(), [*text, 5, 6], [2 if token == 1 else token for token in text])
    assert passes < 36 and taken > 0.85 * drafted, (passes, drafted, taken)


class _Counted(list):
    """Tokens that count how many of them are read."""

    read = 0

    def __getitem__(self, at):
        self.read += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return super().__getitem__(at)

    def __iter__(self):
        self.read += len(self)
        return super().__iter__()


@pytest.mark.parametrize("kind", ["ngram", "smaller"])
def test_a_draft_costs_what_is_new_of_a_sequence(folder, kind):
    """Each call copied and compared the whole sequence: 100,000 tokens took ten billion steps."""
    model = model_of(folder, "tiny-llama", mix="F32")
    drafter = Ngrams() if kind == "ngram" else Smaller(model, model_files.write(folder, "tiny-llama", "Q4_K_M"))
    drafter.follow(model, model.new_cache(64))
    tokens, read = _Counted(), []
    for end in range(2, 42):
        tokens += [end * end % 7] * 2
        before = tokens.read
        drafter.propose(tokens, 2, Sampler())
        read.append(tokens.read - before)
    assert max(read[-3:]) <= max(read[1:4]) + 2, read


def test_the_sequence_of_an_answer_is_one_list_that_grows(folder):
    class Kept(Own):
        given = []  # noqa: RUF012

        def propose(self, tokens, count, sampler):
            self.given.append(tokens)
            return super().propose(tokens, count, sampler)

    model, draft = model_of(folder, "tiny-llama"), Kept([1] * 40)
    kit.generate(model, PROMPT, 30, stop_at_end=False, draft=draft)
    assert len(draft.given) > 3 and all(each is draft.given[0] for each in draft.given)


def test_a_smaller_model_drafts(folder):
    """Of itself with fewer layers: another file with the same tokens."""
    model = model_of(folder, "tiny-llama", mix="F32")
    small = model_files.write(folder, "tiny-llama", "Q4_K_M")
    right = kit.generate(model, PROMPT, 30, stop_at_end=False)
    got = kit.generate(model, PROMPT, 30, stop_at_end=False, draft=small, draft_max=3)
    assert got.tokens == right.tokens and got.draft.accepted > 0
    drawn = kit.generate(model, PROMPT, 30, temperature=1.0, stop_at_end=False, draft=small, draft_max=3)
    assert len(drawn.tokens) == 30 and drawn.draft.passes


def test_bad_drafts_are_one_line(folder):
    model, small = model_of(folder, "tiny-llama"), model_files.write(folder, "tiny-llama", "F32")
    for draft, most, words in (
        (small, 4, "cannot pay"), ("ngram", 0, "draft of 0 tokens"), ("ngram", 9, "give 1 to 8"), ("mtp", 4, "no MTP head"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=words) as caught:
            kit.generate(model, PROMPT, 8, draft=draft, draft_max=most)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="no room for a draft"):
        kit.generate(model, PROMPT, 8, draft="ngram", cache=model.new_cache(14))
    other = kit.open(model_files.write(folder, "tiny-qwen2", "Q4_K_M"))
    with pytest.raises(ModelError, match="another vocabulary"):
        check_pair(kit.open(small), other)


@pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal")
def test_ctrl_c_keeps_the_text_of_an_answer_with_a_draft(smollm2):
    """In a terminal: what was printed stays, then one line."""
    import pty

    own, other = pty.openpty()
    command = [sys.executable, "-m", "kit", "generate", str(smollm2), "-p", "one two three one two three one two", "-n", "2000"]
    process = subprocess.Popen(
        [*command, "--draft", "ngram", "--ignore-end"], stdin=other, stdout=other, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(paths.ROOT)},
    )  # fmt: skip
    try:
        os.close(other)
        text = os.read(own, 4096)
        while len(text.split()) < 3:
            text += os.read(own, 4096)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1].decode()
    finally:
        process.kill()
        os.close(own)
    assert process.returncode == 130 and text.strip() and said.strip().endswith("kit: interrupted"), (text, said)
    assert "Traceback" not in said
