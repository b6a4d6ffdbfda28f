"""The machine's facts."""

import gc
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import kit
from kit import system
from kit.lab.commands.cli import main
from kit.lab.explaining import quants
from kit.lab.measuring import identity, machine, measure, pages, slices, speeds, state
from kit.lab.predicting import beforehand


def test_what_caches_give_is_no_limit_of_memory(monkeypatch):
    """With 480 MiB of caches the short probe reads those: the bound of kit generate, kit experts and kit quants was theirs."""
    monkeypatch.setattr(system, "last_level_cache", lambda: 480 << 20)
    monkeypatch.setattr(state, "probe_state", lambda: state.State(900.0, 900.0))
    monkeypatch.setattr(slices, "read_gbps", lambda seconds: 20.0)
    assert speeds.bound_of(SimpleNamespace(nbytes=[8, 8], tokens=[1, 2]), False)["read_gbps"] == 20.0
    monkeypatch.setattr(
        quants, "Process", lambda *_: SimpleNamespace(close=int, memory=int, ask=lambda **_: (1.0, []), process=None)
    )
    monkeypatch.setattr(state, "quietest", lambda once, rounds, _: ([(0.0, once(0))], 1))
    assert quants._speeds([Path("a")], [1], 1, 2, False)[2] == 20.0 == beforehand.reads().gbps
    ran = CliRunner().invoke(main, ["experts", "qwen", "--memory", "4GiB", "--disk", "2GB/s", "--json"])
    assert json.loads(ran.stdout)["read_gbps"] == 20.0


def test_a_probe_of_memory_is_larger_than_the_caches_and_writes_as_fast_as_a_way_does(monkeypatch):
    """512 MiB on a CPU with 480 MiB of them read at 32.8 GB/s, where a token from float32 or blocks had 24; the kit's
    dequantizer wrote past them at 28.6 GB/s, where a plain fill had 17.4, which was the bound."""
    gib = 1 << 30
    assert [machine._probe_bytes(cache) for cache in (gib >> 9, gib >> 5, gib >> 4, 480 << 20)] == [
        gib >> 3, gib >> 2, gib >> 1, 1920 << 20,
    ]  # fmt: skip

    def time(work, **_):
        kits = "dequantize" in getattr(getattr(work, "__code__", None), "co_names", ())
        return measure.Measurement((1e-6 if kits else 1.0,), 1.0)

    monkeypatch.setattr(measure, "time", time)
    monkeypatch.setattr(machine, "memory_available", lambda: 8 << 20)
    assert machine.probe(leave_out=("copy_gbps", "f32_gflops")).methods["write_gbps"].startswith("kit.dequantize of Q4_0")


def test_fresh_memory_is_what_this_system_has_not_what_a_hypervisor_provides(monkeypatch):
    """0.90 GB/s stood in the environment and 13 GB/s on page 01 of the same run: the first writes were to pages of the host."""
    written = iter([10.0, 1.0, 2.0])  # seconds: the first time no page is there yet

    def time(work, samples=3, **_):
        return measure.Measurement((1.0,), next(written) if samples == 0 else 1.0)

    monkeypatch.setattr(measure, "time", time)
    monkeypatch.setattr(machine, "memory_available", lambda: 8 << 20)
    found = machine.probe(leave_out=("copy_gbps", "f32_gflops"))
    assert found.fresh_gbps == max(found.samples["fresh_gbps"]) == 10 * found.samples["fresh_gbps"][0]


def test_limits_are_measured_by_large_pages_where_the_system_has_them(monkeypatch):
    """By small ones a plain read is up to 1.3 times slower (Zen 4), and what runs faster than its limit was the result."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    asked, advise = [], system.advise
    monkeypatch.setattr(system, "advise", lambda data, how: asked.append((data.nbytes, how)) or advise(data, how))
    whole = state.numbers(16 << 18).fill_(1)
    assert asked == [(16 << 20, "large")] and whole.sum() == 16 << 18
    held, large = system.page_sizes(whole.numpy())
    assert not held or large == held or not setting.exists() or "[never]" in setting.read_text()
    machine.probe(leave_out=("copy_gbps", "f32_gflops"))
    pages.passes([whole], 1)
    assert len(asked) == 3 and asked[-1] == asked[0]


def test_an_import_leaves_the_garbage_collector_as_it_was():
    for turn in (gc.enable, gc.disable, gc.enable):
        turn()
        before = gc.isenabled()
        with kit.no_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is before


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux says so")
def test_an_id_has_what_two_cpus_of_one_name_differ_in(monkeypatch):
    facts = system.cpu_facts()
    assert {"cpu family", "model", "stepping"} <= set(facts) or {"CPU part", "CPU revision"} <= set(facts)
    if list(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")):
        assert any(name.startswith("L1") for name in facts)
    ids = set()
    for name in ("", *facts):
        monkeypatch.setattr(identity, "cpu_facts", lambda name=name: facts | ({name: "another"} if name else {}))
        machine.machine_id.cache_clear()
        ids.add(machine.machine_id())
    machine.machine_id.cache_clear()
    assert len(ids) == 1 + len(facts)
