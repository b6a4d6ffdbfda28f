"""The limit of the same minutes: no way passes it, a share is a ratio within its rounds, and what is printed of both."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from invented import MACHINE

import kit
from kit.lab.measuring import limits, machine, measurements, minutes, state
from kit.lab.measuring.measure import interval_of
from kit.lab.measuring.minutes import Minutes, compared
from kit.lab.synthetic.write import synthesize


def drawn(generator, rounds=5, noise=0.03):
    """Rounds in which memory doubles its speed half way, and a way that reaches 70 % of it in each."""
    gbps = np.where(np.arange(rounds) < 0.6 * rounds, 32.0, 64.0) * np.exp(generator.normal(0, 0.01, rounds))
    seconds = 1e9 / (0.7 * gbps * np.exp(generator.normal(0, noise, rounds)) * 1e9)
    return Minutes(1e9, tuple(gbps), {"kit": tuple(seconds)})


def test_a_share_is_of_its_round_whatever_the_minute_gives():
    """ "36 % of the limit" was of another day's 66.5 GB/s; the minute gave 32.9, and kit read at 72 % of it."""
    told = drawn(np.random.default_rng(0))
    assert told.share("kit").median == pytest.approx(0.7, rel=0.05)
    medians = told.nbytes / np.median(told.seconds["kit"]) / 1e9 / max(told.pages)
    assert not 0.6 < medians < 0.8, "the best minute over the median of the way says something else"


def test_nothing_passes_the_limit_and_a_way_that_reads_faster_is_the_limit():
    told = Minutes(1e9, (30.0, 31.0, 32.0), {"kit": (1 / 40, 1 / 30, 1 / 31), "slow": (0.1, 0.1, 0.1)})
    assert list(told.gbps) == pytest.approx([40, 31, 32]) and told.share("kit").high <= 1
    assert told.least == pytest.approx(1 / 32)
    assert all(told.share(way).median <= 1 for way in told.seconds)


def test_the_interval_of_a_share_covers_it_as_often_as_it_says():
    generator, held = np.random.default_rng(1), 0
    for _ in range(400):
        share = drawn(generator).share("kit")
        held += share.low <= 0.7 <= share.high
    assert held >= 0.93 * 400


def test_a_comparison_whose_interval_holds_1_says_so():
    """ "1.01 times as fast as llama.cpp" stood on an index; the interval was 0.92 to 1.24."""
    for ratios in ([1.01, 0.92, 1.24, 0.97, 1.1], [1.0] * 5):  # an edge of 1 holds 1
        assert compared(ratios, "llama.cpp").startswith("as fast as llama.cpp (")
    assert compared([1.25, 1.24, 1.26, 1.25, 1.25], "x") == "1.25 times as fast as x"
    assert compared([0.5, 0.51, 0.5, 0.49, 0.5], "x").startswith("0.50 ")


@pytest.mark.parametrize("rounds", [5, 6, 9, 10])
def test_a_share_is_the_quotient_of_what_is_printed(rounds):
    """41.3 of 43.6 tokens per second was 92%, the median of the ratios; who divided found 95%."""
    generator = np.random.default_rng(rounds)
    for _ in range(50):
        told = drawn(generator, rounds, noise=0.3)
        share, median = told.share("kit"), float(np.median(told.seconds["kit"]))
        assert share.median == pytest.approx(told.least / median) == pytest.approx(told.nbytes / told.read_gbps / 1e9 / median)
        low, high = interval_of(told.nbytes / np.array(told.seconds["kit"]) / 1e9 / told.gbps)
        assert share.low <= min(low, share.median) and min(high, 1.0) <= share.high, "the interval of the rounds is in it"
    even = Minutes(1e9, (32.0, 64.0), {"kit": (1 / 22.4, 1 / 44.8)})
    assert even.share("kit").median == pytest.approx(0.7), "also where memory doubles its speed half way"


def test_a_wide_share_is_shown_with_its_interval():
    assert minutes.Share(0.72, 0.70, 0.74).told == "72% of it"
    assert minutes.Share(0.72, 0.6, 0.85).told == "72% of it (60% to 85%)"


def test_pages_are_read_where_that_says_something_of_memory(monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.pages.views", lambda file: None)
    assert minutes.reader(object()) is None, "the CPU's caches hold the file"
    parts = [torch.ones(1 << 18), torch.ones(1 << 16)]
    monkeypatch.setattr("kit.lab.measuring.pages.views", lambda file: parts)
    assert 0 < minutes.reader(object())() < 1e5


# --- every probe of a run counts, for every limit ---------------------------------------------------------------------------


def test_all_five_limits_are_the_best_known_by_one_rule(monkeypatch):
    monkeypatch.setattr(state, "watched", lambda work, with_=(): (work(), 0.0, False))
    fields = [*machine.LIMITS]
    fast = replace(MACHINE, samples={name: [2 * getattr(MACHINE, name)] for name in fields},
                   **{name: 2 * getattr(MACHINE, name) for name in fields})  # fmt: skip
    limits.known(lambda: fast, "kit explain")
    later = limits.known(lambda: MACHINE, "00")
    for name in fields:
        assert getattr(later.machine, name) == 2 * getattr(MACHINE, name), name
        assert later.machine.methods[name].startswith("the best known")
    assert later.now == MACHINE.read_gbps, "now stays now"
    left_out = replace(MACHINE, copy_gbps=None)
    assert limits.known(lambda: left_out, "kit explain").machine.copy_gbps is None, "what nobody reads is not asked for"


def test_a_probe_of_the_state_beats_no_limit_of_its_run(tmp_path, monkeypatch):
    """Writing at 58 GB/s between measurements, over a limit of 31.5, once stood in the records of one run."""
    mine = replace(MACHINE, id=machine.machine_id())
    monkeypatch.setattr(state, "in_caches", lambda: False)
    machine.keep(tmp_path, mine)
    limits.seen(tmp_path, state.State(read_gbps=25.0, fill_gbps=18.0))
    kept = machine.kept(tmp_path)
    assert (kept.read_gbps, kept.write_gbps) == (25.0, 18.0) and kept.copy_gbps == mine.copy_gbps
    limits.seen(tmp_path, state.State(read_gbps=5.0, fill_gbps=5.0))
    assert machine.kept(tmp_path) == kept
    assert {row.samples for row in measurements.shared()} == {(25.0,), (18.0,)}
    limits.seen(tmp_path, state.State(read_gbps=99.0, fill_gbps=5.0), quiet=False)
    assert machine.kept(tmp_path).read_gbps == 99.0 and len(list(measurements.shared())) == 2, "busy: of this run alone"
    monkeypatch.setattr(state, "in_caches", lambda: True)
    limits.seen(tmp_path, state.State(read_gbps=999.0, fill_gbps=999.0))
    assert machine.kept(tmp_path).read_gbps == 99.0, "what the caches hold says nothing of memory"
    assert json.loads((tmp_path / machine.ENVIRONMENT).read_text())["write_gbps"] == 18.0


def test_the_part_of_an_error_that_is_memory_s_is_told_and_the_rest():
    """Predictions stood at 0.66 times what was measured, of costs from a minute in which memory was faster."""
    factors = {"blocks": 0.8, "kept": 0.6, "pinned": 0.4, "from the disk": 9.0}
    beside = {"blocks": (41.0, 40.0, 42.0), "kept": (50.0, 50.0), "pinned": (25.0, 25.0)}
    told = minutes.error_of_memory(factors, [60.0, 40.0], beside)
    numbers = [
        "50",
        "41",
        "0.82",
        "20",
    ]  # 41 of 50 GB/s: a way that the disk brings has no part in it; 0.8 / 0.82, 0.6, 0.4 / 0.5
    assert re.findall(r"[\d.]*\d", told) == numbers and "too fast" in told
    nothing = (math.nan, math.nan)
    assert minutes.error_of_memory(factors, nothing, beside) == "" == minutes.error_of_memory(factors, [50.0], {})
    assert minutes.error_of_memory(factors, [50.0], {"kept": nothing, "pinned": ()}) == ""


def test_an_error_of_predictions_is_told_in_words_with_the_worst_by_name():
    """A page had "0.88 times what was measured in the median, 0.55 at worst"; which way that was, its picture did not show."""
    assert minutes.error_of({"a": 0.88, "b": 0.55, "c": 1.26}) == "typically 12% too fast, at worst 45% too fast (b)"
    assert minutes.error_of({"a": 1.004, "b": 0.9, "c": 1.5}) == "typically within 1%, at worst 50% too slow (c)"
    assert minutes.error_of({"a": 1.05}, "too low", "too high") == "typically 5% too high, at worst 5% too high (a)"


def test_a_small_file_says_nothing_of_memory_s_speed(tmp_path):
    with kit.open(synthesize(tmp_path / "tiny.gguf", "tiny-llama", "F32")) as file:
        assert math.isnan(minutes.now_gbps(file))
