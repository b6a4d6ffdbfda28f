"""The machine's facts and the timing protocol."""

import time

import numpy as np

from kit.lab import machine, measure


def test_the_probe_reaches_and_is_read_back(tmp_path):
    found = machine.of_run(tmp_path)
    for name in ("read_gbps", "write_gbps", "copy_gbps", "f32_gflops", "fresh_gbps"):
        assert getattr(found, name) == max(found.samples[name]) > 0
        assert found.methods[name]
    assert machine.of_run(tmp_path) == found  # not measured again
    assert found.seconds_to_read(found.read_gbps * 1e9) == 1.0


def test_a_machine_file_of_another_machine_is_measured_anew(tmp_path):
    found = machine.of_run(tmp_path)
    path = tmp_path / "environment.json"
    path.write_text(path.read_text().replace(found.id, "someone-else"))
    assert machine.of_run(tmp_path).id == machine.machine_id()


def test_memory_limit_is_the_cgroup_s_when_that_is_lower():
    assert 0 < machine.memory_limit() <= machine.psutil.virtual_memory().total


def test_time_takes_as_many_samples_as_asked_and_keeps_the_first_call_apart():
    calls = []

    def slow_at_first():
        time.sleep(0.02 if not calls else 0.002)
        calls.append(1)

    found = measure.time(slow_at_first, samples=3, min_sample=0)
    assert len(found.samples) == 3
    assert found.first > 0.019 > found.median >= 0.002
    assert found.spread[0] <= found.median <= found.spread[1]


def test_compare_says_which_is_faster():
    pair = measure.compare(lambda: time.sleep(0.001), lambda: time.sleep(0.004), samples=5, min_sample=0)
    low, high = pair.interval
    assert 1.5 < low <= pair.ratio <= high


def test_bootstrap_interval_holds_the_median():
    values = np.random.default_rng(1).normal(5, 1, 200)
    low, high = measure.bootstrap_median(values)
    assert low < np.median(values) < high < low + 0.6
