"""The limits of a machine and of a file's map, from times that a test sets: amounts over seconds, and what is said of them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from invented import MACHINE

from kit.errors import KitWarning
from kit.lab.measuring import machine, measure, pages, state
from kit.lab.measuring.measure import Measurement
from kit.lab.measuring.pages import MapSpeed


@pytest.fixture
def timed(monkeypatch):
    """Every work takes 2 s, the first one of three samples less; on a slow CPU it is done, so that its shapes are right."""
    how = []

    def time(work, samples=7, min_sample=0.01):
        if small[0] > 0.01:
            work()
        how.append((samples, min_sample))
        return Measurement((2.0, small[0], 2.0) if samples == 3 else (2.0,) * samples, 4.0)

    small = [0.01]
    monkeypatch.setattr(measure, "time", time)
    monkeypatch.setattr(machine, "memory_available", lambda: 8 << 20)
    return SimpleNamespace(how=how, small=small)


@pytest.mark.parametrize("small, side", [(0.01, 2048), (0.011, 256)])
def test_limits_are_amounts_over_seconds(timed, small, side):
    """Of an eighth of what is free, in whole rows; 2 m k n operations; bytes that are copied are read and written."""
    timed.small[0] = small
    samples, methods = machine._measured_limits(())
    nbytes = 1 << 20
    right = {"read_gbps": nbytes, "write_gbps": nbytes, "copy_gbps": 2 * nbytes, "f32_gflops": 2 * side**3,
        "fresh_gbps": nbytes / 2}  # fmt: skip
    assert {name: max(rates) for name, rates in samples.items()} == pytest.approx(
        {name: amount / 2 / 1e9 for name, amount in right.items()}
    )
    assert set(methods) == set(right) and {*timed.how} == {(3, 0.01), (0, 0.01), (6, 0)}
    assert methods["read_gbps"] == "torch.sum over float32", "the first of two that are as fast"


def test_a_probe_takes_no_more_than_it_asks_for(timed, monkeypatch):
    monkeypatch.setattr(machine, "memory_available", lambda: 1 << 50)
    monkeypatch.setattr(machine, "_probe_bytes", lambda cache: 1 << 20)
    counts, numbers = [], state.numbers
    monkeypatch.setattr(state, "numbers", lambda count: counts.append(count) or numbers(count))
    for leave_out, buffers in (((), 2), (("copy_gbps",), 1)):
        samples, _ = machine._measured_limits(leave_out)
        assert counts == [1 << 18] * buffers and not {*leave_out} & {*samples}
        counts.clear()
    monkeypatch.setattr(measure, "time", lambda *_, **__: Measurement((2.0,) * 3, 4.0))  # an emulated CPU
    machine._measured_limits(("copy_gbps",))
    assert counts == [(64 << 20) // 4]


@pytest.mark.parametrize("gbps, cached, another, again", [
    (24.9, False, False, False), (25.0, False, False, True), (99.0, True, False, False), (1.0, False, True, True),
])  # fmt: skip
def test_a_run_s_machine_is_measured_again_where_memory_is_faster_by_a_quarter(
    monkeypatch, tmp_path, gbps, cached, another, again
):
    here = replace(MACHINE, id=machine.machine_id())
    machine.keep(tmp_path / "a" / "b", replace(here, id="another") if another else here)
    monkeypatch.setattr(state, "in_caches", lambda: cached)
    monkeypatch.setattr(state, "probe_state", lambda: state.State(gbps, 1.0))
    monkeypatch.setattr(machine, "probe", lambda: replace(here, read_gbps=30.0, write_gbps=1.0))
    found = machine.of_run(tmp_path / "a" / "b")
    assert found.read_gbps == (30.0 if again else 20.0) and found.write_gbps == (1.0 if another else 10.0)
    assert machine.kept(tmp_path / "a" / "b") == (found if again else here)
    assert machine.of_run(None).read_gbps == 30.0, "a folder is not asked for"


def test_a_damaged_record_of_a_machine_warns_whom_it_concerns(tmp_path):
    (tmp_path / machine.ENVIRONMENT).write_text("{")
    with pytest.warns(KitWarning, match="measured again") as warned:
        assert machine.kept(tmp_path) is None
    assert warned[0].filename == __file__ and machine.kept(tmp_path / "none") is None


@pytest.mark.parametrize("device", [None, {"name": "H100"}])
def test_a_machine_has_the_best_sample_of_each_limit(monkeypatch, device):
    limits = {name: [2.0, 3.0, 1.0] for name in ("read_gbps", "write_gbps", "copy_gbps", "fresh_gbps")}
    monkeypatch.setattr(machine, "_measured_limits", lambda leave_out: (limits, dict.fromkeys(limits, "told")))
    monkeypatch.setattr(machine, "gpu", lambda: device)
    monkeypatch.setattr("kit.lab.measuring.gpu.probe_device", lambda: {"read_gbps": 9.0})
    found = machine.probe(("f32_gflops",))
    assert (found.read_gbps, found.fresh_gbps, found.f32_gflops, found.methods["copy_gbps"]) == (3.0, 3.0, None, "told")
    assert found.gpu == (device and {"name": "H100", "read_gbps": 9.0}) and found.system["libraries"]["numpy"]


def test_a_device_is_the_first_one(monkeypatch):
    facts = SimpleNamespace(name="H100", total_memory=9, multi_processor_count=4, major=9, minor=1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {0: facts}.__getitem__)
    assert machine.gpu() == {"name": "H100", "memory_bytes": 9, "multiprocessors": 4, "capability": "9.1", "count": 2}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.gpu() is None


@pytest.mark.parametrize("status, commit", [("", "abc"), (" M a.py\n", "abc+"), (None, "")])
def test_a_commit_says_whether_the_tree_has_changed(monkeypatch, status, commit):
    def run(command, capture_output, text, check, timeout):
        assert capture_output and text and check and timeout > 1
        if status is None:
            raise machine.subprocess.CalledProcessError(1, command)
        return SimpleNamespace(stdout="abc\n" if "rev-parse" in command else status)

    monkeypatch.setattr(machine.subprocess, "run", run)
    assert machine.git_commit.__wrapped__() == commit


@pytest.mark.parametrize("free, cache, copied, sizes", [
    (600, 1, False, [100, 40]), (560, 1, False, [100, 40]), (400, 1, False, [100]), (396, 1, False, [60]),
    (10**6, 1, False, [160, 100]),
    (10**6, 24, False, [160, 100]), (10**6, 1, True, None), (600, 34, False, [100, 40]), (600, 35, False, [100, 40]),
    (600, 36, False, None), (600, 10**6, False, None),
])  # fmt: skip
def test_the_largest_tensors_that_have_room_are_read(monkeypatch, free, cache, copied, sizes):
    """A quarter of what is free, 300 bytes at most; at least 240, or four times the caches."""
    for name, value in {"memory_available": lambda: free, "last_level_cache": lambda: cache, "MOST": 300, "LEAST": 142}.items():
        monkeypatch.setattr(pages, name, value)
    tensors = {name: SimpleNamespace(nbytes=nbytes, is_known=name != "unknown") for name, nbytes in
               {"b": 60, "a": 100, "none": 0, "large": 162, "unknown": 98, "c": 40}.items()}  # fmt: skip
    file = SimpleNamespace(pages="copied" if copied else "mapped", tensors=tensors)
    file.raw = lambda name: np.ones(tensors[name].nbytes, np.uint8)
    found = pages.views(file)
    assert (found and [view.nbytes for view in found]) == sizes


def test_a_speed_is_the_best_of_passes_in_turn(monkeypatch):
    """Of five after one that maps the pages; a pass reads all tensors once."""
    seconds = iter([99.0, 99.0, 2.0, 4.0, 4.0, 2.0, 8.0, 8.0, 9.0, 9.0, 8.0, 1.0])
    monkeypatch.setattr(pages, "timeit", SimpleNamespace(timeit=lambda work, number: work() and number * next(seconds)))
    parts = [torch.ones(6), torch.ones(4)]
    monkeypatch.setattr(pages, "views", lambda file: parts)
    left = []
    file = SimpleNamespace(large_share=lambda: 0.5, unmap_pages=lambda: left.append(1))
    assert pages.speed(file) == MapSpeed(40 / 2 / 1e9, 40 / 1 / 1e9, 0.5) and left == [1] and not [*seconds]
    monkeypatch.setattr(pages, "views", lambda file: None)
    assert pages.speed(file) is None and left == [1]


@pytest.mark.parametrize("gbps, ratio, cost", [(10.0, 0.5, 1.0), (20.0, 1.0, 0.0), (40.0, 1.0, 0.0)])
def test_a_map_costs_what_it_takes_longer_than_a_copy(gbps, ratio, cost):
    assert (MapSpeed(gbps, 20.0, None).ratio, MapSpeed(gbps, 20.0, None).cost(20e9)) == (ratio, pytest.approx(cost))


SLOW, FAST = MapSpeed(10.0, 20.0, 0.0), MapSpeed(20.0, 20.0, 1.0)


@pytest.mark.parametrize("before, now, has, has_not", [
    (SLOW._replace(gbps=19.0), SLOW, (), ("`", "costs")), (SLOW, FAST, ("1.00 s", "`kit x`", "100%"), ("--pages",)),
    (SLOW._replace(large=pages.FEW), FAST, ("1.00 s",), ("`",)),
    (SLOW._replace(large=None), FAST._replace(large=None), ("`kit x`",), ("2 MiB",)),
    (SLOW, SLOW._replace(gbps=19.0), ("`kit x`", "95%"), ("--pages",)),
    (SLOW._replace(gbps=18.8), SLOW._replace(gbps=19.0), ("`kit x`", "95%"), ("--pages",)),
    (SLOW, SLOW._replace(gbps=10.5, large=0.2), ("52%",), ("`",)),
    (SLOW, SLOW._replace(gbps=10.6), ("`kit x`", "53%"), ("--pages",)),
    (SLOW, SLOW, ("`kit x --pages copied`", "18.63 GiB"), ()),
])  # fmt: skip
def test_pages_are_told_by_what_reading_again_gained(before, now, has, has_not):
    """A token of 20 GB takes a second longer at 10 GB/s than at 20."""
    told = pages.told(before, now, 20e9, "kit x")
    assert all(part in told for part in has) and not any(part in told for part in has_not), told
    assert "`kit x" not in told or "`kit generate FILE" in pages.told(before, now, 20e9)


def test_a_file_is_read_again_before_its_map_is_a_limit(monkeypatch):
    joined, asked = [], []
    file = SimpleNamespace(path="m.gguf", reading_again=SimpleNamespace(join=lambda: joined.append(1)))
    monkeypatch.setattr(pages, "speed", lambda file: asked.append(1) or FAST)
    found, told = pages.settled(MACHINE, file, SLOW, 20e9)
    assert found.map_gbps == 20.0 and joined == asked == [1] and "kit generate m.gguf" in told
    found, told = pages.settled(MACHINE, file, SLOW._replace(gbps=19.0), 20e9)
    assert found.map_gbps == 19.0 and asked == [1], "which was fast is not measured again"
    file.reading_again = None
    assert pages.settled(MACHINE, file, None, 20e9)[0] == MACHINE and asked == [1]
