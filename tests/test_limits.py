"""The limits of this machine: the best that quiet probes have shown, and what a file's map reads."""

import json
import re
from dataclasses import asdict, replace

import cells
import model_files
import pytest
from invented import MACHINE

import kit
from kit.lab.measuring import limits, machine, measurements, pages, state


@pytest.fixture
def cores(monkeypatch):
    """Cores that other processes use, as every watch sees them."""
    used = [0.0]
    monkeypatch.setattr(state, "watched", lambda work, with_=(): (work(), used[0], used[0] > state.BUSY))
    return used


def probed(gbps):
    return lambda: replace(MACHINE, read_gbps=gbps, samples={"read_gbps": [gbps - 1, gbps]})


def test_the_best_known_bandwidth_is_the_limit_and_a_busy_probe_is_said_to_be_one(cores):
    """ "Reads 21.8 / 12.7 / 16.5 GB/s at its best" within minutes was seen, unwarned; quiet it was 36."""
    first = limits.known(probed(36.4), "kit explain")
    assert (first.machine.read_gbps, first.now, first.others, first.at) == (36.4, 36.4, 0.0, "")
    cores[0] = 1.9
    later = limits.known(probed(12.7), "kit explain")
    assert (later.machine.read_gbps, later.now, later.at) == (36.4, 12.7, next(iter(measurements.shared())).at[:10])
    assert later.others == 1.9 and all(part in later.told for part in ("36.4 on", later.at, "12.7 GB/s now", "1.9 cores"))
    limits.known(probed(68.2), "kit explain")  # busy, and so no limit for anybody
    cores[0] = 0.0
    assert limits.known(probed(30.0), "kit explain").machine.read_gbps == 36.4
    assert limits.known(lambda: replace(probed(10.0)(), id="another"), "kit explain").machine.read_gbps == 10.0


def test_a_run_keeps_the_best_known_bandwidth(cores, tmp_path, monkeypatch):
    limits.known(probed(36.4), "kit explain")

    def of_run(folder):
        (tmp_path / "environment.json").write_text(json.dumps(asdict(probed(20.0)())))
        return probed(20.0)()

    monkeypatch.setattr(machine, "of_run", of_run)
    assert limits.of_run(tmp_path, "07").machine.read_gbps == 36.4
    kept = machine.kept(tmp_path)
    assert kept.read_gbps == max(kept.samples["read_gbps"]) == 36.4
    assert "kit explain on 20" in kept.methods["read_gbps"]
    assert len(list(measurements.shared())) == 2 * len(machine.LIMITS), "the probe of a new run is one more"
    limits.of_run(tmp_path, "08")
    assert len(list(measurements.shared())) == 2 * len(machine.LIMITS), "what another page measured is not"


def test_a_map_is_read_and_its_share_of_memory_s_speed_bounds_what_reads_it(folder, monkeypatch):
    with kit.open(model_files.write(folder, "tiny-llama")) as file:
        assert pages.speed(file) is None, "the CPU's caches hold it"
        monkeypatch.setattr(pages, "last_level_cache", lambda: 1 << 18)
        found = pages.speed(file)
        assert found.gbps > 0 and found.memory_gbps > 0 and (found.large is None or 0 <= found.large <= 1)
    slow = pages.MapSpeed(15.0, 20.0, 0.0)
    limit = pages.with_map(replace(MACHINE, read_gbps=36.0), slow)
    assert limit.map_gbps == 27.0 and limit.seconds_to_read_map(27e9) == limit.seconds_to_read(36e9) == 1.0
    assert pages.with_map(MACHINE, pages.MapSpeed(22.0, 20.0, None)).map_gbps == MACHINE.read_gbps
    assert MACHINE.seconds_to_read_map(20e9) == 1.0 and pages.with_map(MACHINE, None) == MACHINE
    assert re.findall(r"\d+%", slow.told()) == ["75%", "0%"]


def test_the_sentence_on_pages_has_no_bandwidth_and_no_advice_that_changes_nothing():
    """31.6 GB/s was "as fast as memory", which read at 66.5 a line above; pages that are large were to be read again."""
    found = [(pages.MapSpeed(19.5, 20.0, 0.9), None), (pages.MapSpeed(18.5, 20.0, 0.99), pages.MapSpeed(19.6, 20.0, 0.99)),
             (pages.MapSpeed(15.0, 20.0, 0.0), pages.MapSpeed(19.6, 20.0, 0.99)),
             (pages.MapSpeed(15.0, 20.0, 0.0), pages.MapSpeed(15.1, 20.0, 0.5)),
             (pages.MapSpeed(15.0, 20.0, 0.0), pages.MapSpeed(15.1, 20.0, 0.0))]  # fmt: skip
    fine, large, again, no_gain, small = (pages.told(before, now, 1e9, "kit generate 'my model.gguf'") for before, now in found)
    assert fine == pages.FINE and "gains nothing" in large and "`" not in large
    assert "`kit generate 'my model.gguf'` reads the file again" in again and "without a gain" in no_gain
    assert "`kit generate 'my model.gguf' --pages copied`" in small and "at 98% of the speed" in again
    assert "`kit generate FILE`" in pages.told(*found[2], 1e9) and not any("GB/s" in text for text in (fine, large, again))


def test_page_00_says_where_its_limit_is_from(tmp_path, invented_machine):
    """ "The best speed of the run" stood over 66.5 GB/s of another day, in a run whose memory read at 33."""
    best = measurements.Reading(
        measurements.READ, "", (30.0,), "GB/s", by="kit explain", machine=MACHINE.id, at="2026-11-26T01:02"
    )
    measurements.shared().add(best)
    small = {"gib": 2**-8, "side": 8}
    told = cells.run("00_start_here", until="limits-words", out=tmp_path, replace=small).words["limits-words"]
    assert "limits: 30.0 GB/s " in told and "of the run" not in told and "kit explain on 2026-11-26" in told
