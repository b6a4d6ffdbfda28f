"""First token: the arithmetic of phases and bounds, and a run of all ways on a tiny file."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented import MACHINE

import kit
from kit.claims.records import read
from kit.findings import reported
from kit.findings.n01_first_token import parallel, results, slow_end, verdicts, ways
from kit.findings.session import Session
from kit.lab import peaks
from kit.synthetic.write import cached_model

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda t: (t[0], t[0] + t[1])), max_size=12)


def spans(intervals, what):
    return pd.DataFrame([(what, float(a), float(b)) for a, b in intervals], columns=["what", "start", "end"])


@settings(deadline=None)
@given(INTERVALS, INTERVALS, INTERVALS)
def test_each_instant_belongs_to_one_phase(dequantize, read, answer):
    """Counted independently: unit steps on a line, each claimed by the first phase that covers it."""
    frame = pd.concat([spans(dequantize, "dequantize"), spans(read, "read"), spans(answer, "compute")])
    owner = [None] * 81
    for phase, intervals in (("compute", answer), ("read", read), ("dequantize", dequantize)):  # later ones win
        for start, end in intervals:
            owner[start:end] = [phase] * (end - start)
    expected = {phase: owner.count(phase) for phase in ("dequantize", "read", "compute")}
    found = ways.phases(frame)
    assert {phase: found[phase] for phase in expected} == pytest.approx(expected)


def test_0_075_s_needs_more_than_the_reports_machine_has():
    limits = ways.needed(0.075, peaks.load())
    assert limits.iloc[0]["least seconds a token"] == pytest.approx(8_170_864_640 * 4 / 120e9)
    assert limits.iloc[0]["times too slow"] > 3.6
    least = reported.least_by_width()["least ms a token"]
    assert least["float32"] == pytest.approx(272.4, abs=0.1) and least["blocks of the file"] == pytest.approx(41.2, abs=0.3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = cached_model("tiny-granite", mix="Q4_K_M", folder=tmp_path_factory.mktemp("models"))
    return path, [ways.measure(path, way, [1, 7, 3]) for _ in range(2) for way in ways.WAYS]


def test_every_way_gives_the_same_token(runs):
    same = results.equality(runs[1])
    assert same["token"].nunique() == 1
    assert same["rms / std"].max() < 1e-4


def test_lazy_ways_miss_every_tensor_once_and_warm_ones_hit(runs):
    path, measured = runs
    count = len(kit.open(path).tensors)
    for run in measured:
        if run.way in ("fused", "fused-warm"):  # only the norms are dequantized and kept
            expected = (0, 5) if run.way == "fused" else (5, 0)
        else:
            expected = (count, 0) if ways.WAYS[run.way].preload is not None else (0, count)
        assert (run.hits, run.misses) == expected, run.way
        assert run.seconds > 0 and run.held_bytes > 0


def test_ratios_are_taken_round_by_round(runs):
    """Not all cross products: two rounds of each give two ratios; a way that ran once is compared with every round."""
    measured = runs[1]
    slow, fast = results.samples(measured, "lazy"), results.samples(measured, "preload")
    assert results.ratios(measured, "lazy", "preload") == [slow[0] / fast[0], slow[1] / fast[1]]
    once = [run for run in measured if run.way != "reported"] + [run for run in measured if run.way == "reported"][:1]
    assert len(results.ratios(once, "reported", "warm")) == 2


COSTS = pd.DataFrame([("along columns", 1, 5e-9), ("along rows", 1, 1e-9)], columns=["loops", "threads", "seconds a weight"])
RATES = pd.DataFrame({"gguf-py": [0.5]}, index=pd.Index([1], name="threads"))


def test_the_slow_end_is_loops_by_prompt_plus_dequantizing():
    table = slow_end.inference(COSTS, RATES, 10**9, (1, 4)).set_index(["loops", "prompt"])["seconds"]
    assert table["along columns", 4] == pytest.approx(4 * 5 + 8) and table["along rows", 1] == pytest.approx(1 + 8)
    whole = slow_end.combinations(COSTS, RATES, 194)
    assert whole[whole["near"]][["loops", "prompt"]].values.tolist() == [["along columns", 4], ["along rows", 16]]
    assert slow_end.told(whole, 194).startswith("2 of 8 set-ups")


def test_the_parts_of_the_slow_end_are_measured(runs):
    path, measured = runs
    file = kit.open(path)
    taken = parallel.measure(path, budget=0.0, cores=2)
    assert (
        set(taken["threads"]) == {1, 2}
        and set(taken["dequantizer"]) == {"gguf-py", "the kit's"}
        and (taken["seconds"] > 0).all()
    )
    assert len(parallel.gains(taken, "gguf-py")) == 3
    costs = slow_end.loop_costs(file, samples=1)
    assert (costs["seconds a weight"] > 0).all() and set(costs["loops"]) == set(slow_end.LOOPS.values())
    found = slow_end.evidence(file, costs, parallel.speeds(taken), measured[0], 3)
    assert len(found) == 4 and (found > 0).all(axis=None)
    (parallel.figure(taken, 10.0).canvas.draw(), slow_end.figure(slow_end.combinations(COSTS, RATES, 194), 194).canvas.draw())


def test_all_tables_and_figures_and_verdicts_come_out(runs, tmp_path, monkeypatch):
    path, measured = runs
    monkeypatch.setattr("kit.lab.machine.of_run", lambda folder: MACHINE)
    lab = Session("01_first_token", profile="smoke", out=str(tmp_path))
    file = kit.open(path)
    predicted = ways.predict(file, MACHINE, 3, ways.disk_gbps(path))
    limits = ways.needed(0.075, peaks.with_this_machine(MACHINE))
    labels = [way.label for way in ways.WAYS.values()]
    assert list(results.by_phase(measured).index) == labels == list(results.against_bounds(measured, predicted).index)
    found, least = results.against_bounds(measured, predicted)["bound, s"], predicted["seconds"]
    assert found["warm"] == least["compute"] and found["fused, warm"] == least["compute from blocks"]
    in_a_row = pytest.approx(least["read"] + least["dequantize"] + least["compute"])
    assert found["lazy, fast"] == found["preloaded"] == in_a_row
    assert found["preloaded while reading"] < found["preloaded"] and found["fused"] < found["preloaded"]
    assert np.isfinite(results.steps(measured)["times faster"]).all()
    for figure in (results.bars(measured), results.gantt(measured), results.needed(limits, 0.075)):
        figure.canvas.draw()
    judge(lab, file, measured, predicted, {})
    judged = {record.claim for record in read([lab.out / "01_first_token.jsonl"]) if record.verdict}
    assert judged == {"first-token-preload", "cold-inference", "parallel-dequant", "cache-4gb-feasible"}
    assert lab.verdicts().loc["cache-4gb-feasible", "verdict"] == "impossible"
    assert "41 ms" in results.answer(measured, reported.least_by_width()["least ms a token"])


TAKEN = pd.DataFrame(
    [(name, count, number, 1.0 / count, 10**9) for name in ("gguf-py", "the kit's") for count in (1, 2) for number in range(6)],
    columns=["dequantizer", "threads", "round", "seconds", "bytes"],
)  # fmt: skip


def judge(lab, file, measured, predicted, left_out, taken=TAKEN):
    verdicts.judge_preload(lab, file, measured, predicted, left_out)
    verdicts.judge_cold(lab, file, measured, slow_end.combinations(COSTS, RATES, 194))
    verdicts.judge_parallel(lab, measured, predicted, taken, left_out)
    verdicts.judge_capacity(lab)


def test_parallel_dequantizing_is_judged_by_what_was_measured(runs, tmp_path, monkeypatch):
    path, measured = runs
    monkeypatch.setattr("kit.lab.machine.of_run", lambda folder: MACHINE)
    words = []
    for seconds in (1.0, 2.0):  # two threads take half as long; or all the longer
        lab = Session("01_first_token", profile="smoke", out=str(tmp_path))
        taken = TAKEN.assign(seconds=TAKEN["seconds"].where(TAKEN["threads"] == 1, 0.5 * seconds**2))
        verdicts.judge_parallel(lab, measured, ways.predict(kit.open(path), MACHINE, 3, 1.0), taken, {})
        words.append(set(lab.verdicts()["verdict"].iloc[:2]))
    assert words == [{"reproduced in ratio"}, {"not reproduced"}]


def test_what_does_not_fit_in_memory_is_left_out_with_its_reason(runs, tmp_path, monkeypatch):
    path, measured = runs
    monkeypatch.setattr("kit.lab.machine.of_run", lambda folder: MACHINE)
    monkeypatch.setattr(ways, "memory_available", lambda: 1000)
    file = kit.open(path)
    left_out = {way: reason for way, reason in ways.ways_that_fit(file).items() if reason}
    assert set(left_out) == {"preload", "overlapped", "warm"}
    assert all("need" in reason and "1000 B are free" in reason for reason in left_out.values())
    lazy = ways.measure(path, "lazy", [1, 7, 3])
    assert lazy.held_bytes == 0 and lazy.misses == len(file.tensors)
    rest = [run for run in measured if run.way not in left_out]
    lab = Session("01_first_token", profile="smoke", out=str(tmp_path))
    predicted = ways.predict(file, MACHINE, 3, 1.0)
    judge(lab, file, rest, predicted, left_out)
    results.gantt(rest), results.steps(rest), results.against_bounds(rest, predicted)
    assert lab.verdicts().loc["parallel-dequant", "verdict"].iloc[-1] == "not measurable here"
    assert results.answer(rest, reported.least_by_width()["least ms a token"])
