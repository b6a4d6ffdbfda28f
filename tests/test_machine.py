"""The machine's facts."""

from dataclasses import replace
from pathlib import Path

import pytest

from kit.lab import machine, state, system


def test_the_probe_is_read_back_unless_memory_became_faster_or_the_machine_is_another(tmp_path, monkeypatch):
    found = machine.of_run(tmp_path)
    for name in ("read_gbps", "write_gbps", "copy_gbps", "f32_gflops", "fresh_gbps"):
        assert getattr(found, name) == max(found.samples[name]) > 0
        assert found.methods[name]
    now = state.State(found.read_gbps, found.write_gbps)
    monkeypatch.setattr(machine.state, "probe", lambda: now)
    monkeypatch.setattr(machine, "probe", lambda: replace(found, read_gbps=1e6))
    assert machine.of_run(tmp_path) == found  # not measured again
    now = state.State(2 * found.read_gbps, found.write_gbps)
    assert machine.of_run(tmp_path).read_gbps == 1e6  # memory was slow then: it is
    assert found.seconds_to_read(found.read_gbps * 1e9) == 1.0
    path = tmp_path / "environment.json"
    path.write_text(path.read_text().replace(found.id, "someone-else"))
    monkeypatch.setattr(machine, "probe", lambda: found)
    assert machine.of_run(tmp_path) == found  # another machine's file is not believed


def test_memory_limit_is_the_cgroup_s_when_that_is_lower():
    assert 0 < system.memory_limit() <= system.psutil.virtual_memory().total


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux says so")
def test_an_id_has_what_two_cpus_of_one_name_differ_in(monkeypatch):
    facts = system.cpu_facts()
    assert {"cpu family", "model", "stepping"} <= set(facts) or {"CPU part", "CPU revision"} <= set(facts)
    if list(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")):
        assert any(name.startswith("L1") for name in facts)
    ids = set()
    for name in ("", *facts):
        monkeypatch.setattr(machine, "cpu_facts", lambda name=name: facts | ({name: "another"} if name else {}))
        machine.machine_id.cache_clear()
        ids.add(machine.machine_id())
    machine.machine_id.cache_clear()
    assert len(ids) == 1 + len(facts)
