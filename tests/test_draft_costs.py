"""Whether a draft pays: the prediction, the bytes of an MTP head, and kit explain --draft."""

import json
from pathlib import Path
from types import SimpleNamespace

import documented
import model_files
import mtp_files
import numpy as np
import pytest
from click.testing import CliRunner

import kit
from kit.errors import ModelError
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.commands import cli
from kit.lab.drafts import costs, explain, heads, page, words
from kit.lab.drafts.predicted import Costs, best, break_even, speed_up, tokens_per_pass
from kit.lab.engines.bounds_of import Roof
from kit.model import drafts
from kit.model.drafters import drafter_of
from kit.model.drafts import Drafting, Timed

COSTS = Costs((0.1, 0.11, 0.12, 0.14, 0.15), draft=0.02, catch_up=0.005, back=0.08)


def test_a_speed_up_is_what_a_simulation_of_passes_gives():
    draw = np.random.default_rng(0)
    for chance, drafted, share, again in ((0.7, 4, 1.0, False), (0.3, 2, 1.0, True), (0.9, 3, 0.4, False), (0.7, 4, 1.0, True)):
        tokens = spent = 0.0
        for _ in range(20_000):
            if draw.random() >= share:
                tokens, spent = tokens + 1, spent + 0.1
                continue
            taken = next((n for n in range(drafted) if draw.random() >= chance), drafted)
            tokens += taken + 1
            read = taken if again else taken == drafted  # of the tokens that the drafter reads, those after the first
            spent += 0.005 + drafted * 0.02 + 0.03 * read + COSTS.verify[drafted] + 0.08 * (taken < drafted)
        cost = COSTS._replace(read=0.03, again=again)
        assert speed_up(cost, chance, drafted, share) == pytest.approx(0.1 * tokens / spent, rel=0.02)


def test_a_prediction_from_counts_holds_where_a_text_is_easy_in_places_and_hard_in_others():
    """One chance for all tokens is then off: drafts of 4 are taken whole or not at all."""
    draw, told = np.random.default_rng(0), Drafting("x", plain=[0.1] * 5)
    for _ in range(200):
        taken = 4 * (draw.random() < 0.5)
        told.passes, told.drafted, told.accepted = told.passes + 1, told.drafted + 4, told.accepted + taken
        told.tokens, told.refused = told.tokens + taken + 1, told.refused + (taken < 4)
        told.timed.append(Timed(taken + 1, 4, 1, taken < 4, 0.005 + 4 * 0.02, COSTS.verify[4] + 0.08 * (taken < 4)))
    told.timed[0] = told.timed[0]._replace(verifying=9.0)  # while others used the cores
    row = explain._passage("code", told, COSTS)
    assert row["predicted"] == pytest.approx(row["measured"], rel=1e-6)
    chance = speed_up(COSTS, told.chance, 4)
    assert chance / row["measured"] > 1.05
    told.idle = 100
    row = explain._passage("code", told, COSTS)
    assert row["predicted"] == pytest.approx(row["measured"], rel=1e-6)
    assert explain.foreseen(COSTS, Drafting("x")) is None


def test_costs_of_an_answer_are_of_its_own_minutes(monkeypatch):
    """A page was 1.35 times off with each drafter: it timed all passes first, and those of answers were slower."""
    pace = iter(range(1, 8))  # of a round of costs and of an answer, in turn

    def now(*given):
        more = 0.01 * next(pace)
        return COSTS._replace(verify=(0.1, *(0.1 + more * n for n in range(1, 5))))

    def answered(*given):
        cost = now()
        timed = [Timed(3, 4, 1, True, cost.catch_up + 4 * cost.draft, cost.verify[4] + cost.back)] * 10
        return Drafting("x", passes=10, drafted=40, accepted=20, tokens=30, plain=[0.1] * 5, timed=timed)

    monkeypatch.setattr(costs, "one_round", now)
    monkeypatch.setattr(explain, "answered", answered)
    turns = explain.in_turn(None, None, {"code": [], "prose": [], "chat": []}, 48)
    gains = [(explain.foreseen(cost, told), explain.gained(told)) for told, cost in turns.values()]
    assert [foreseen for foreseen, _ in gains] == pytest.approx([gained for _, gained in gains])
    assert gains[0][0] / gains[2][0] > 1.1, "the costs of the first minute would not do"


def test_a_prediction_takes_each_pass_at_its_own_width():
    """It took the mean of the widths: 1.27 times off where drafts of 2 and 6 tokens alternate, over a curve with a step."""
    cost = Costs((1.0, 1.27, 1.33, 1.47, 1.48, 2.6, 2.68), draft=0.1, catch_up=0.05, back=0.2)
    passes = [Timed(3, 2, 1, False, 0.25, 1.33), Timed(7, 6, 1, False, 0.65, 2.68)] * 5
    told = Drafting("x", passes=10, drafted=40, accepted=40, tokens=50, plain=[1.0] * 5, timed=passes)
    assert explain.foreseen(cost, told) == pytest.approx(explain.gained(told), rel=1e-6)


class Clock:
    """The time module of a world in which passes take what ``cost`` says."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def takes(self, seconds, result=None):
        self.now += seconds
        return result

    def slow(self, target, name, cost):
        """Let a method take cost(its first argument) more."""
        own = getattr(target, name)

        def method(first, *rest, **named):
            self.now += cost(first)
            return own(first, *rest, **named)

        setattr(target, name, method)


@pytest.mark.parametrize("draft", ["smaller", "hybrid", "mtp", "ngram"])
def test_a_prediction_is_what_is_measured_where_each_pass_takes_its_time(folder, tmp_path, monkeypatch, draft):
    """It was 1.1 times off: a draft that was refused reads one token of what the model chose, not two, and a head reads all."""
    name = "tiny-qwen35" if draft in ("mtp", "hybrid") else "tiny-llama"
    path = model_files.write(folder, name, "F32")
    if draft == "mtp":
        path = mtp_files.with_head(path, tmp_path / "head.gguf")
    model, clock = kit.Transformer(kit.open(path), linear="fused"), Clock()
    drafts_of = {"ngram": "ngram", "mtp": "mtp"}.get(draft, model_files.write(folder, name, "Q4_K_M"))
    drafter = drafter_of(model, drafts_of, explain.DRAFTED)
    for module in (costs, drafts):
        monkeypatch.setattr(module, "time", clock)
    for each, unit in ((model, 1.0), *([(drafter._model, 0.3)] if draft != "ngram" else [])):
        clock.slow(each, "step", lambda tokens, unit=unit: unit * (1 + 0.4 * (len(tokens) - 1)))
        clock.slow(each, "verify", lambda tokens, unit=unit: unit * (1 + 0.4 * (len(tokens) - 1)))
    clock.slow(drafter, "propose", lambda tokens: 0.05)
    ids = [int(token) for token in np.random.default_rng(0).integers(3, 500, 60)]
    ids = ids[:8] * 8 if draft == "ngram" else ids
    cache = model.new_cache(256)
    model.step(ids, cache)
    cost = costs.typical(costs.verification(model, cache, ids))._replace(**costs.drafting(model, drafter, ids))
    told = explain.answered(model, drafter, ids, 100)
    row = explain._passage("code", told, cost)
    assert len(told.timed) >= 10 and (cost.read > 0.1) == (draft != "ngram")
    assert row["predicted"] == pytest.approx(row["measured"], rel=0.01), (told, cost)


def test_a_model_without_a_draft_leaves_page_12_its_own_pair(tmp_path):
    """`kit reproduce --model mine.gguf` ended with a page that failed."""
    lab = kit.Session("12_drafts", "smoke", out=str(tmp_path))
    own = kit.Session("12_drafts", "smoke", "mine.gguf", out=str(tmp_path))
    assert page.pair_of(own) == page.pair_of(lab)
    with pytest.raises(ModelError, match=r"small\.gguf drafts for no model"):
        page.pair_of(lab, "small.gguf")


def test_page_12_says_whose_pair_it_is(tmp_path, tiny_file):
    """It said "Your model has no draft here" of a run whose model is the pair's own."""
    name = str(tiny_file.path)
    lab = kit.Session("12_drafts", "smoke", name, out=str(tmp_path))
    assert page.without_draft(lab, "", lab.path()) == page.without_draft(lab, name, Path("other.gguf")) == ""
    assert "give one by `-p draft=FILE`" in page.without_draft(lab, "", Path("other.gguf"))
    assert page.without_draft(kit.Session("12_drafts", "smoke", out=str(tmp_path)), "", Path("other.gguf")) == ""


@pytest.mark.parametrize("can_be_cut, copies", [(True, 0.0), (False, 3.0)])
def test_passes_of_all_sizes_take_turns_and_leave_the_cache_as_it_was(monkeypatch, can_be_cut, copies):
    """The first round records the passes and counts nowhere."""
    clock, sizes, back, halves = Clock(), [], [], []
    monkeypatch.setattr(costs, "time", clock)
    first = lambda: 100.0 * (len(sizes) <= 4)  # noqa: E731

    def verify(tokens, cache):
        sizes.append(len(tokens))
        keep = lambda kept: halves.append((len(tokens), kept)) or clock.takes(float(kept))  # noqa: E731
        return clock.takes(10.0 * len(tokens) + first(), SimpleNamespace(keep=keep))

    model = SimpleNamespace(verify=verify, step=lambda some, cache: sizes.append(len(some)) or clock.takes(7.0 + first()))
    cache = SimpleNamespace(mark=lambda: clock.takes(3.0, "base"), back_to=back.append, can_be_cut=can_be_cut)
    found = costs.verification(model, cache, [*range(9)], most=3, rounds=2)
    assert found == [Costs((7.0, 20.0, 30.0, 40.0), back=1.0, copies=copies)] * 2, "kept: a half of 2, 3 and 4 tokens"
    assert sizes == [4, 3, 2, 1, 1, 2, 3, 4, 4, 3, 2, 1] and back == ["base"] * 12 and {*halves} == {(2, 1), (3, 1), (4, 2)}
    assert costs.typical([found[0], Costs((9.0, 22.0, 28.0, 44.0), back=5.0, copies=9.0), found[1]]) == found[0]


@pytest.mark.parametrize("again, read", [(False, 2), (True, 5)])
def test_what_a_drafted_token_and_one_that_is_read_cost_by_a_drafter_of_known_times(monkeypatch, again, read):
    """0.3 s for each token that it has not read, 0.25 s for each that it drafts; each call of the first round takes 100 s more,
    and of the last one 1 s."""
    clock, calls, followed = Clock(), [], []
    monkeypatch.setattr(costs, "time", clock)

    def propose(tokens, count, sampler):
        new = len(tokens) - (calls[-1][0] if calls else 0)
        calls.append((len(tokens), count, new))
        clock.takes(0.3 * new + 0.25 * count + (100.0, 0.0, 1.0)[(len(calls) - 1) // 6])

    model = SimpleNamespace(new_cache=lambda: "cache", step=lambda *given: followed.append(given))
    drafter = SimpleNamespace(propose=propose, follow=lambda *given: followed.append(given), again=again)
    tokens = [*range(60)]
    found = costs.drafting(model, drafter, tokens, rounds=2)
    assert found == pytest.approx({"draft": 0.25, "catch_up": 0.3 + 0.5, "read": 0.3, "again": again})
    assert followed == [(model, "cache"), (tokens, "cache")]
    timed = [(count, new) for _, count, new in calls[1::2]]
    assert timed == [(1, 1), (4, 1), (1, read)] * 3 and calls[-1][0] == len(tokens), "the whole text, and no more"
    assert {(count, new) for _, count, new in calls[2::2]} == {(1, 1)}, "one of a single token before each"


def test_break_even_and_the_best_draft():
    for drafted in range(1, 5):
        even = break_even(COSTS, drafted)
        assert speed_up(COSTS, even, drafted) == pytest.approx(1, abs=1e-3) and 0 < even < 1
    assert break_even(COSTS._replace(draft=1.0), 2) is None
    assert tokens_per_pass(1.0, 4) == 5 and tokens_per_pass(0.0, 4) == 1
    assert best(COSTS, 0.0) == (0, 1.0) and best(COSTS, 1.0)[0] == 4
    assert best(COSTS, 0.9) == max(((n, speed_up(COSTS, 0.9, n)) for n in range(1, 5)), key=lambda pair: pair[1])


@pytest.mark.parametrize("own", [(), ("shared_head_norm", "embed_tokens", "shared_head_head")], ids=["borrowed", "own"])
def test_bytes_of_a_head_are_those_of_its_block_and_an_output_matrix(folder, tmp_path, own):
    plain = model_files.write(folder, "tiny-qwen35", "F32")
    with kit.open(plain) as file, kit.open(mtp_files.with_head(plain, tmp_path / "head.gguf", own)) as with_head:
        assert heads.head_of(file) is None
        head = heads.head_of(with_head)
        layer = sum(info.nbytes for name, info in file.tensors.items() if name.startswith("blk.3."))
        added = sum(info.nbytes for name, info in with_head.tensors.items() if ".nextn." in name and "_head_h" not in name)
        rows = with_head.tensors.get("blk.4.nextn.embed_tokens.weight")
        output = with_head.tensors["blk.4.nextn.shared_head_head.weight" if own else "token_embd.weight"]
        assert head["block_bytes"] == layer + added - (rows.nbytes if rows else 0)
        assert head["output_bytes"] == output.nbytes and head["draft_bytes"] == head["block_bytes"] + output.nbytes
        assert head["token_bytes"] == round(bytes_used(uses_of(file)))
        assert head["least_break_even"]["1"] == pytest.approx(head["share"], abs=1e-3)


def test_bounds_of_passes_grow_by_arithmetic_and_by_experts(folder):
    """The least: dense weights are read once; a mixture's experts are a union; states are copied for a pass over several."""
    roof = Roof(1e9, {"float32": 1e9, "int8": 1e9}, {})
    for name in ("tiny-llama", "tiny-qwen3moe", "tiny-qwen35"):
        model = kit.Transformer(kit.open(model_files.write(folder, name, "Q8_0")))
        rows = costs.bounds(model, roof, 3)
        states = 2 * model.new_cache(8).fixed_bytes
        uses = uses_of(model.file)
        assert [row["bytes"] for row in rows] == [
            round(bytes_used(uses, tokens=n) + states * (1 + (n > 1))) for n in (1, 2, 3, 4)
        ]
        assert rows[3]["operations"] == pytest.approx(4 * rows[0]["operations"]) and rows[3]["by"] == "arithmetic"
        assert (rows[1]["bytes"] > 1.1 * rows[0]["bytes"]) == (name != "tiny-llama")
        operations = 2 * bytes_used([use for use in uses if not use.is_rows], 1)  # a multiplication and an addition per weight
        for int8, rate in ((3e9, 2e9), (9e9, 3e9), (0.0, 2e9)):  # three digits of eight bits, or floats
            found = costs.bounds(model, Roof(1e15, {"float32": 2e9} | ({"int8": int8} if int8 else {}), {}), 1)
            assert [row["operations"] for row in found] == [round(operations), round(2 * operations)]
            assert [row["seconds"] for row in found] == pytest.approx([operations / rate, 2 * operations / rate])


@pytest.fixture(scope="module")
def pair(folder):
    return model_files.write(folder, "tiny-llama", "F32"), model_files.write(folder, "tiny-llama", "Q4_K_M")


def told(*words):
    done = CliRunner().invoke(cli.main, ["explain", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_explain_a_draft_in_documented_keys(pair, monkeypatch):
    monkeypatch.setattr(explain, "TOKENS", 12)
    monkeypatch.setattr(explain.bounds_of, "measured", lambda: Roof(1e9, {"float32": 1e9, "int8": 1e9}, {}))
    answer = json.loads(told(pair[0], "--draft", pair[1], "--json"))
    assert not documented.undocumented("explain --draft", answer) and documented.keys("explain --draft") == set(answer)
    assert [row["tokens"] for row in answer["curve"]] == list(range(1, 10)) and answer["curve"][0]["times"] == 1
    assert {row["name"] for row in answer["passages"]} == {"code", "prose", "chat"}
    for row in answer["passages"]:
        assert row["accepted"] <= row["drafted"] and 0 <= row["acceptance"] <= 1 and row["predicted"] > 0
    assert answer["head"] is None and answer["costs"]["draft_bytes"] < pair[0].stat().st_size


def test_explain_measures_a_head_that_kit_runs_and_counts_another(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(explain, "TOKENS", 8)
    monkeypatch.setattr(explain.bounds_of, "measured", lambda: Roof(1e9, {"float32": 1e9, "int8": 1e9}, {}))
    for name, runs in (("tiny-qwen35", True), ("tiny-llama", False)):
        path = mtp_files.with_head(model_files.write(folder, name, "F32"), tmp_path / f"{name}-head.gguf")
        answer = json.loads(told(path, "--draft", "mtp", "--json"))
        assert answer["head"]["draft_bytes"] and bool(answer["passages"]) == runs and bool(answer["costs"]) == runs
        if runs:
            assert answer["costs"]["draft_bytes"] == answer["head"]["draft_bytes"] and answer["costs"]["drafted_token"] > 0
            assert answer["passages"][0]["drafted"]


def row_of(name, acceptance, gain):
    return {"name": name, "acceptance": acceptance, "measured": gain, "predicted": 9.9}


@pytest.mark.parametrize(
    "rows, even, sentence",
    [
        ([row_of("code", 0.71, 1.2), row_of("prose", 0.48, 0.9)], 0.58,
         "A draft by small.gguf pays on code (1.2 times), does not pay on prose (0.9 times): the model accepts 71% and 48%; it "
         "breaks even at 58%."),
        ([row_of("code", 0.6, 1.04), row_of("prose", 0.5, 0.96)], 0.58,  # it "paid" by 4%, which one answer cannot tell
         "A draft by small.gguf changes nothing on code (1.04 times) and prose (0.96 times): the model accepts 60% and 50%; it "
         "breaks even at 58%."),
        ([row_of("code", 0.5, 0.8)], None,
         "A draft by small.gguf does not pay on code (0.8 times): the model accepts 50%; it would lose if all were accepted."),
        ([row_of("code", None, None)], 0.1, "A draft by small.gguf proposed nothing for code, so it changes nothing."),
    ],
)  # fmt: skip
def test_the_answer_is_one_sentence(rows, even, sentence):
    data = {"draft": "small.gguf", "passages": rows, "busy": False, "break_even": {str(explain.DRAFTED): even}, "head": None}
    assert words.answer(data) == sentence


def test_drafts_that_cannot_be_are_one_line(pair):
    for given, says in (
        ((pair[0], "--draft", "mtp"), "no MTP head"),
        ((pair[1], "--draft", pair[0]), "cannot pay"),
        ((pair[0], "--draft", "ngram", "--tokens", "4", "--all"), "leave out --everything, --tokens"),
        (("https://example.org/model.gguf", "--draft", "ngram"), "download it first"),
    ):
        done = CliRunner().invoke(cli.main, ["explain", *map(str, given)])
        assert done.exit_code == 2 and says in done.stderr and "\n" not in done.stderr.strip(), done.output
