"""Engines in turn and the meter of an answer: speeds, ratios and faults of passes that a test sets."""

from types import SimpleNamespace

import pytest

from kit.errors import EngineError
from kit.lab.engines import options, turns
from kit.lab.engines.base import Pass
from kit.lab.engines.meter import Received, Report, tokens_of
from kit.lab.engines.turns import Compared, Series
from kit.lab.measuring import state

EMPTY = Pass(1.0, 0, 4, problem="the answer is empty")


def series(*seconds, **more):
    """Of passes of four tokens; None: no speed."""
    passes = [EMPTY if each is None else Pass(4 * each, 4, 4) for each in seconds]
    return Series("decode", 4, 0, passes, **more)


@pytest.mark.parametrize("seconds, median, interval", [
    ((None,), None, False), ((2.0,), 2.0, False), ((2.0, None), 2.0, False), ((1.0, 3.0), 2.0, True),
    ((1.0, 9.0, 3.0), 3.0, True),
])  # fmt: skip
def test_a_series_is_the_median_of_what_is_a_speed(seconds, median, interval):
    found = series(*seconds)
    assert found.seconds == median and bool(found.interval) is interval
    told = found.to_json()
    assert (told["seconds"], told["tokens_per_second"]) == (median, median and 1 / median)
    assert told["tokens_received"] == 4 * sum(each is not None for each in seconds) and told["tokens_asked"] == 4 * len(seconds)
    assert told["problems"] == [EMPTY.problem] * (None in seconds) and len(told["samples"]) == len(found.per_token)


def test_a_series_is_named_as_llama_bench_does_and_busy_beyond_a_quarter_of_a_core():
    assert [Series(*each).name for each in (("decode", 64, 0), ("prompt", 512, 0), ("decode", 64, 4096))] == [
        "tg64", "pp512", "tg64 @ d4096"]  # fmt: skip
    assert [series(1.0, others=others).busy for others in (0.25, 0.26)] == [False, True]


@pytest.mark.parametrize("times, low, high, words", [
    (1.2, 1.1, 1.3, "1.20 (1.10 to 1.30) times as fast as `old`, in 5 rounds: faster."),
    (0.8, 0.7, 0.9, "0.80 (0.70 to 0.90) times as fast as `old`, in 5 rounds: slower."),
    (1.1, 1.0, 1.2, "as fast as `old`"), (0.9, 0.8, 1.0, "as fast as `old`"), (1.0, 0.9, 1.1, "as fast as `old`"),
])  # fmt: skip
def test_an_interval_that_holds_1_is_no_difference(times, low, high, words):
    found = Compared("old", "new", "tg64", times, low, high, 5)
    assert f"`new` is {words}" in found.told and found.to_json()["says"] == found.told
    assert ("times as fast" in found.told) is (words[0] in "01")


def test_a_ratio_is_of_rounds_that_both_have():
    both = {"old": series(2.0, 2.0, None, 3.0), "new": series(1.0, 4.0, 1.0, None)}
    found = turns.ratio("old", "new", both)
    assert (found.times, found.rounds, found.test) == (1.25, 2, "tg4") and found.low < 0.5 and found.high > 2.0
    assert turns.ratio("old", "new", {"old": series(2.0, None), "new": series(1.0, 1.0)}) is None


class Engine:
    def __init__(self, label, log):
        self.label, self.log = label, log

    def decode(self, tokens, depth):
        self.log.append(self.label)
        return Pass(float(len(self.log)), tokens, tokens, depth)


@pytest.mark.parametrize("busiest, strict, refused", [(0.25, True, False), (0.3, True, True), (0.3, False, False)])
def test_engines_alternate_and_a_busy_machine_compares_nothing(monkeypatch, busiest, strict, refused):
    log = []
    asked = [Engine(label, log) for label in ("a", "b")]

    def quietest(one, rounds, engines):
        assert engines is asked and rounds == 3
        return [(0.1, one(0)), (busiest, one(1)), (0.0, one(2))], 5

    monkeypatch.setattr(state, "quietest", quietest)
    read = iter([20.0, None, 10.0]).__next__
    if refused:
        with pytest.raises(EngineError, match=r"0\.3 cores during the quietest 3 of 5 rounds"):
            turns.in_turn(asked, "decode", 8, 16, rounds=3, strict=strict, read=read)
        return
    found = turns.in_turn(asked, "decode", 8, 16, rounds=3, strict=strict, read=read)
    assert "".join(log) == "abbaab" and [each.seconds for each in found["b"].passes] == [2.0, 3.0, 6.0]
    assert (found["a"].others, found["a"].gbps, found["a"].depth, found["a"].asked) == (busiest, (20.0, 10.0), 16, 8)
    assert turns.in_turn(asked, "decode", 8, rounds=3)["a"].gbps == ()


@pytest.mark.parametrize("given, seconds", [
    ((3.0, 4), 1.0), ((3.0, 2), 3.0), ((3.0, 1), None), ((0.0, 4), None), ((None, 4), None), ((3.0, None), None),
])  # fmt: skip
def test_a_server_s_own_speed_is_of_the_tokens_after_the_first(given, seconds):
    assert Report(predicted_seconds=given[0], predicted=given[1]).seconds_per_token == seconds


WHOLE = {"asked": 4, "seconds": 10.0, "status": 200, "arrivals": (1.0, 2.0, 7.0), "received": 4}


@pytest.mark.parametrize("more, fault, seconds", [
    ({}, "", 2.0), ({"received": 2}, "", 6.0), ({"received": 1}, "", None), ({"arrivals": (1.0,)}, "", None),
    ({"arrivals": (1.0, 3.0)}, "", 2.0 / 3), ({"status": 500}, "an error (500)", None),
    ({"status": 0, "error": "reset"}, "an error (the connection broke: reset)", None),
    ({"error": "full"}, "an error (200: full)", None),
    ({"received": 0}, "an empty answer", None), ({"received": None}, "an empty answer", None),
    ({"ended": False}, "a stream that broke off after 4 of 4 tokens", None), ({"arrivals": (9.0, 9.2, 9.4)}, "", None),
    ({"arrivals": (9.0, 9.2, 9.5)}, "", 0.5 / 3), ({"arrivals": (9.0, 9.5)}, "", 0.5 / 3),
    ({"arrivals": (9.0, 9.4)}, "", None), ({"arrivals": (9.0, 9.0)}, "", None),
])  # fmt: skip
def test_a_speed_is_of_an_answer_that_came_whole_and_bit_by_bit(more, fault, seconds):
    """Pieces within a twentieth of its time came at once, as one of several tokens did."""
    found = Received(**WHOLE | more)
    assert found.fault == fault and found.seconds_per_token == (seconds and pytest.approx(seconds))
    at_once = found.arrivals[-1] - found.arrivals[0] < 0.5
    assert found.burst is (at_once and found.answered > 1) and found.claimed == 0.4
    assert found.first == found.arrivals[0] and Received(**WHOLE | {"arrivals": ()}).first is None
    assert found.stopped is (not fault and found.answered < 4)


@pytest.mark.parametrize("body, count", [
    (b'{"tokens": [1, 2, 3]}', 3), (b'{"tokens": []}', 0), (b'{"error": 1}', 0), (b"<html>", 0), (b"[]", 0),
    (b'{"tokens": 3}', 0),
])  # fmt: skip
def test_tokens_are_those_that_an_answer_lists(body, count):
    assert tokens_of(body) == count


@pytest.mark.parametrize("words, found", [
    (["-t", "2", "-x", "y"], {"threads": "2", "other": "y"}), ([], {}), (["-t", "1", "--threads", "3"], {"threads": "3"}),
    (["-t"], "-t has no value"), (["-z", "1"], "no option -z; it takes -t, --threads, -x$"),
])  # fmt: skip
def test_options_are_pairs_that_are_known(words, found):
    known = {"-t": "threads", "--threads": "threads", "-x": "other"}
    if isinstance(found, dict):
        assert options.taken("kit", words, known) == found
    else:
        with pytest.raises(EngineError, match=found):
            options.taken("kit", words, known)


def test_an_engine_without_options_says_so():
    with pytest.raises(EngineError, match="no option -t; it takes none"):
        options.taken("kit", ["-t", "1"], {})


@pytest.mark.parametrize(
    "text, count", [("1", 1), ("4", 4), ("5", None), ("0", None), ("-1", None), ("x", None), ("", None), ("²", None)]
)
def test_a_count_of_cores_is_from_one_to_those_that_there_are(monkeypatch, text, count):
    monkeypatch.setattr(options, "usable_cores", lambda: 4)
    if count:
        assert options.cores_of("kit", "-t", text) == count
    else:
        with pytest.raises(EngineError, match="-t"):
            options.cores_of("kit", "-t", text)


@pytest.mark.parametrize("text, counts", [
    (None, []), ("all", [1, 2]), ("4, 2,4", [2, 4]), ("8", [8]), ("9", None), ("1,9", None), ("0", None), ("1,x", None),
    ("", None),
])  # fmt: skip
def test_counts_of_threads_are_at_most_four_times_the_cores(monkeypatch, text, counts):
    known = SimpleNamespace(logical=2, told="2 cores", counts=lambda: [1, 2])
    monkeypatch.setattr(options, "cores", lambda: known)
    if counts is not None:
        assert options.counts_of(text) == counts
    else:
        with pytest.raises(EngineError, match="--threads") as refused:
            options.counts_of(text)
        assert "9" not in str(text) or "at most 8, not 9" in str(refused.value)
