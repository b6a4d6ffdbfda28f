"""First token: the arithmetic of phases and bounds, and a run of all ways on a tiny file."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.claims.records import read
from kit.findings import n01_first_token as first_token
from kit.findings.session import Session
from kit.lab import machine
from kit.lab import peaks as devices
from kit.synthetic.write import cached_model

MACHINE = machine.Machine("m", "cpu", 2, 2**34, 2**34, 20.0, 10.0, 15.0, 100.0, 5.0)
INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda t: (t[0], t[0] + t[1])), max_size=12)


def spans(intervals, what):
    return pd.DataFrame([(what, float(a), float(b)) for a, b in intervals], columns=["what", "start", "end"])


@given(INTERVALS, INTERVALS, INTERVALS)
def test_each_instant_belongs_to_one_phase(dequantize, read, answer):
    """Counted independently: unit steps on a line, each claimed by the first phase that covers it."""
    frame = pd.concat([spans(dequantize, "dequantize"), spans(read, "read"), spans(answer, "answer")])
    owner = [None] * 81
    for phase, intervals in (("compute", answer), ("read", read), ("dequantize", dequantize)):  # later ones win
        for start, end in intervals:
            owner[start:end] = [phase] * (end - start)
    expected = {phase: owner.count(phase) for phase in ("dequantize", "read", "compute")}
    found = first_token.phases(frame)
    assert {phase: found[phase] for phase in expected} == pytest.approx(expected)


def test_0_075_s_needs_more_than_the_reports_machine_has():
    limits = first_token.needed(first_token.elements_of("granite-3.3-8b"), 0.075, devices.load())
    assert limits.iloc[0]["least seconds a token"] == pytest.approx(8_170_864_640 * 4 / 120e9)
    assert limits.iloc[0]["times too slow"] > 3.6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = cached_model("tiny-granite", mix="Q4_K_M", folder=tmp_path_factory.mktemp("models"))
    return path, [first_token.measure(path, way, [1, 7, 3]) for way in first_token.WAYS for _ in range(2)]


def test_every_way_gives_the_same_token(runs):
    same = first_token.equality(runs[1])
    assert same["token"].nunique() == 1
    assert same["rms / std"].max() < 1e-4


def test_lazy_ways_miss_every_tensor_once_and_warm_ones_hit(runs):
    path, measured = runs
    import kit

    tensors = len(kit.open(path).tensors)
    for run in measured:
        if run.way == "fused":  # only the norms are dequantized and kept
            expected = (0, 5)
        else:
            expected = (tensors, 0) if first_token.WAYS[run.way].keeps_all else (0, tensors)
        assert (run.hits, run.misses) == expected, run.way
        assert run.seconds > 0 and run.held_bytes > 0


def test_all_tables_and_figures_and_verdicts_come_out(runs, tmp_path, monkeypatch):
    import kit

    path, measured = runs
    monkeypatch.setattr(machine, "of_run", lambda folder: MACHINE)
    lab = Session("01_first_token", profile="smoke", out=str(tmp_path))
    file = kit.open(path)
    predicted = first_token.predict(file, MACHINE, 3, first_token.disk_gbps(path))
    limits = first_token.needed(first_token.elements_of("granite-3.3-8b"), 0.075, devices.with_this_machine(MACHINE))
    assert list(first_token.table(measured, predicted).index) == [way.label for way in first_token.WAYS.values()]
    bounds = first_token.table(measured, predicted)["bound"]
    least = predicted["seconds"]
    assert bounds["warm"] == least["compute"]
    assert (
        bounds["lazy, fast"]
        == bounds["preloaded"]
        == pytest.approx(least["read"] + least["dequantize"] + least["compute"])
    )
    assert bounds["preloaded while reading"] < bounds["preloaded"] and bounds["fused"] < bounds["preloaded"]
    assert np.isfinite(first_token.steps(measured)["times faster"]).all()
    for figure in (
        first_token.bars(measured), first_token.gantt(measured), first_token.needed_figure(limits, 0.075)
    ):  # fmt: skip
        figure.canvas.draw()
    first_token.judge(lab, file, measured, predicted, limits, {})
    judged = {record.claim for record in read([lab.out / "01_first_token.jsonl"]) if record.verdict}
    assert judged == {"first-token-preload", "cold-inference", "parallel-dequant", "cache-4gb-feasible"}
    assert lab.verdicts().loc["cache-4gb-feasible", "verdict"] == "impossible"


def test_what_does_not_fit_in_memory_is_left_out_with_its_reason(runs, tmp_path, monkeypatch):
    import kit
    from kit.findings.n01_first_token import ways

    path, measured = runs
    monkeypatch.setattr(machine, "of_run", lambda folder: MACHINE)
    monkeypatch.setattr(ways, "memory_available", lambda: 1000)
    file = kit.open(path)
    left_out = {way: reason for way, reason in first_token.ways_that_fit(file).items() if reason}
    assert set(left_out) == {"preload", "parallel", "overlapped", "warm"}
    assert all("need" in reason and "1000 B are free" in reason for reason in left_out.values())
    lazy = first_token.measure(path, "lazy", [1, 7, 3])
    assert lazy.held_bytes == 0 and lazy.misses == len(file.tensors)
    rest = [run for run in measured if run.way not in left_out]
    lab = Session("01_first_token", profile="smoke", out=str(tmp_path))
    predicted = first_token.predict(file, MACHINE, 3, 1.0)
    limits = first_token.needed(first_token.elements_of("granite-3.3-8b"), 0.075, devices.load())
    first_token.judge(lab, file, rest, predicted, limits, left_out)
    first_token.gantt(rest), first_token.steps(rest), first_token.table(rest, predicted)
    assert (lab.verdicts().loc["parallel-dequant", "verdict"] == "not measurable here").all()
