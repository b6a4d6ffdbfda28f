"""The machine's state from clocks and counters that a test sets: every number of it is worked out by hand."""

import math
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from kit.errors import ReportError
from kit.lab.measuring import state
from kit.lab.measuring.state import BUSY, Bandwidths, State


@pytest.mark.parametrize("map_gbps, mapped", [(None, 3.0), (4.0, 1.5)])
def test_a_least_time_is_bytes_over_bytes_a_second(map_gbps, mapped):
    given = Bandwidths()
    given.read_gbps, given.write_gbps, given.map_gbps = 2.0, 3.0, map_gbps
    assert (given.seconds_to_read(6e9), given.seconds_to_write(6e9), given.seconds_to_read_map(6e9)) == (3.0, 2.0, mapped)


@pytest.mark.parametrize("read, fill, near", [
    (20.0, 10.0, True), (16.1, 10.0, True), (24.9, 10.0, True), (20.0, 8.1, True), (16.0, 10.0, False), (25.0, 10.0, False),
    (20.0, 8.0, False), (20.0, 12.5, False),
])  # fmt: skip
def test_a_quarter_more_is_another_state(read, fill, near):
    assert State(20.0, 10.0).near(State(read, fill)) is near


def test_a_state_is_the_best_of_three_passes_over_bytes(monkeypatch):
    passes = iter([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
    monkeypatch.setattr(state, "timeit", SimpleNamespace(
        repeat=lambda work, number, repeat: [sum(next(passes) for _ in range(number)) for _ in range(repeat)]))  # fmt: skip
    source = SimpleNamespace(nbytes=6e9, sum=None)
    monkeypatch.setattr(state, "_buffers", lambda: (source, SimpleNamespace(zero_=None)))
    assert state.probe_state() == State(6.0, 1.5) and not [*passes]
    assert State(12.3456, 0.98765).to_dict() == {"read_gbps": 12.3, "fill_gbps": 0.988}


def test_a_probe_has_its_bytes_and_is_none_where_half_of_them_are_cached(monkeypatch):
    monkeypatch.setattr(state, "_PROBE_BYTES", 4096)
    source, target = state._buffers.__wrapped__()
    assert source.nbytes == target.nbytes == 4096 and source.dtype == torch.float32 and source.sum() == 1024 == target.numel()
    assert not target.any() and state.numbers(1000).shape == (1000,)
    for cache, held in ((2047, False), (2048, False), (2049, True)):
        monkeypatch.setattr(state.system, "last_level_cache", lambda cache=cache: cache)
        assert state.in_caches() is held


@pytest.mark.parametrize("start, seconds, used, others, disturbed", [
    (4.0, 2.0, 1.0, 0.5, True), (4.0, 2.0, 0.5, 0.25, False), (0.0, 0.1, 0.05, 0.5, True), (0.0, 0.05, 0.05, 1.0, False),
    (4.0, 1.0, -1.0, 0.0, False), (0.0, 0.0, 1e-9, 1.0, False),
])  # fmt: skip
def test_others_are_seconds_of_cores_over_seconds(monkeypatch, start, seconds, used, others, disturbed):
    """A tenth of a second is the least that says something, and a quarter of a core is quiet still."""
    clock, spent, own = iter([start, start + seconds]), iter([start, start + used]), []
    monkeypatch.setattr(state, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(state, "seconds_of_others", lambda processes: own.append(processes) or next(spent))
    assert state.watched(lambda: "done", ["engine"]) == ("done", pytest.approx(others), disturbed)
    assert own[0] is own[1] and own[0][1:] == ["engine"] and own[0][0].pid


@pytest.mark.parametrize("seen, rounds, share, kept, taken", [  # seen: (cores of others, whether they disturbed) of each take
    ([(0.0, False)] * 2, 2, math.inf, [(0.0, 0), (0.0, 1)], 2),
    ([(9.0, False)] * 2, 2, math.inf, [(0.0, 0), (0.0, 1)], 2),
    ([(BUSY, True), (2.0, True), (0.0, False)], 2, math.inf, [(BUSY, 0), (0.0, 2)], 3),
    ([(others, True) for others in (3.0, 2.0, 4.0, 5.0, 1.0, 9.0)], 3, math.inf, [(3.0, 0), (2.0, 1), (1.0, 4)], 6),
    ([(0.0, False)] * 4, 9, 3.0, [(0.0, number) for number in range(4)], 4),  # the fourth begins as the share ends
    ([(0.0, False)] * 3, 9, 1.0, [(0.0, number) for number in range(3)], 3),  # three at least
])  # fmt: skip
def test_the_quietest_rounds_are_kept_in_their_order(monkeypatch, seen, rounds, share, kept, taken):
    """Each take is a second of a clock."""
    clock, looks = [0.0], iter(seen)

    def watched(work, with_):
        clock[0] += 1
        return work(), *next(looks)

    monkeypatch.setattr(state, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(state, "watched", watched)
    assert state.quietest(lambda number: number, rounds, share=share) == (kept, taken)


@pytest.mark.parametrize("looks, tries, others", [
    ([(0.4, False)], 3, 0.0), ([(2.0, True), (0.4, False)], 3, 0.0), ([(2.0, True), (1.5, True)], 2, 1.5),
])  # fmt: skip
def test_a_disturbed_measurement_is_taken_again_as_often_as_told(monkeypatch, looks, tries, others):
    left, taken = iter(looks), []
    monkeypatch.setattr(state, "watched", lambda work: (work(), *next(left)))
    assert state.undisturbed(lambda: taken.append(1) or len(taken), tries) == (len(looks), others)


@pytest.mark.parametrize("total, used", [
    (namedtuple("Linux", "user system idle iowait guest")(10.0, 5.0, 100.0, 20.0, 3.0), 15.0),  # user has the guest's
    (namedtuple("Other", "user system idle")(10.0, 5.0, 100.0), 15.0),
])  # fmt: skip
def test_used_is_neither_idle_nor_waiting_nor_counted_twice(monkeypatch, total, used):
    monkeypatch.setattr(state.psutil, "cpu_times", lambda: total)
    own = [SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=2.0, system=1.0, children_user=7.0))] * 2
    assert state.seconds_of_all() == used and state.seconds_of_others(own) == used - 6.0


def test_a_look_at_others_lasts_a_tenth_of_a_second(monkeypatch, measured_load):
    slept = []
    monkeypatch.setattr(state, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(state, "watched", lambda work: (work(), 0.7, True))
    assert state.cores_used_by_others() == 0.7 and slept == [0.1]


@pytest.mark.parametrize("asked, seconds", [
    ("", 10.0), (" 3 ", 3.0), ("0", 0.0), ("-1", None), ("inf", None), ("1e999", None), ("nan", None), ("soon", None),
])  # fmt: skip
def test_patience_is_seconds(monkeypatch, asked, seconds):
    monkeypatch.setenv("KIT_PATIENCE", asked)
    if seconds is not None:
        assert state.patience() == seconds
        return
    with pytest.raises(ReportError, match=f"KIT_PATIENCE={asked}: give seconds"):
        state.patience()


@pytest.mark.parametrize("patience, loads, sleeps, others", [
    (60, [1.5, 1.5, 0.0], [2.0, 2.0], None), (60, [BUSY], [], None), (5, [1.5] * 4, [2.0, 2.0, 1.0], 1.5),
    (4, [1.0, 1.0, 2.5], [2.0, 2.0], 2.5), (0, [1.0], [], 1.0),
])  # fmt: skip
def test_waiting_ends_with_the_others_or_with_patience(patience, loads, sleeps, others):
    slept, left = [], iter(loads)
    told = state.settle(patience, lambda: next(left), slept.append)
    assert slept == sleeps and not [*left]
    assert told == "" if others is None else (told.others == others and f"{others:.1f} cores" in told)
