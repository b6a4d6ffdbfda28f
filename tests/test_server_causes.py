"""Every cause of a slow server is made to happen with a real llama-server, and is then the largest.

The tests share the machine with others, so each judges by what was seen: counters of the server's own threads and group.
"""

import dataclasses
import json
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import served
from served import short  # noqa: F401

from kit.gguf.uses import bytes_used, uses_of
from kit.lab.engines.owner import Owner
from kit.lab.engines.watch import Holding, Seen, Watch
from kit.lab.explaining.causes import Window, account, largest, split
from kit.lab.explaining.running import Running
from kit.lab.measuring import pages
from kit.lab.synthetic.geometry import geometry
from kit.lab.synthetic.write import synthesize

QUIET = Seen(1.0, (0.01, 0.02), (0.98, 0.97), cores=2, others=0.02)
MEMORY = 0.06  # seconds of a token's bytes, of a token that takes 0.1


def window(seconds=0.1, reported=None, **seen):
    return Window(10, seconds, dataclasses.replace(QUIET, **seen), reported)


@pytest.mark.parametrize("cores", [2, 8, 64])
def test_an_idle_machine_of_any_size_has_no_fault(cores):
    """Every thread waits a hundredth for the scheduler: of 64 threads any one waits half of the time, and no token does."""
    rng = np.random.default_rng(cores)
    rows = []
    for _ in range(200):
        waited = rng.uniform(0, 0.03, cores)
        seen = {"waited": tuple(waited), "ran": tuple(1 - waited - rng.uniform(0, 0.02, cores)), "cores": cores}
        seen |= {"others": rng.uniform(0, 0.05), "disk": rng.uniform(0, 0.02), "faults": int(rng.integers(3)), "stolen": 0.01}
        rows.append(split(window(reported=0.1 * rng.uniform(0.97, 1.01), **seen), MEMORY))
        assert largest(account(rows[-1:])) is None, rows[-1]
    assert largest(account(rows)) is None


def test_an_interval_of_three_windows_holds_the_time_in_95_percent():
    """The range of three holds it in 75 %."""
    rows = [split(window(seconds), MEMORY) for seconds in (0.1, 0.11, 0.12)]
    found = {cause.name: cause for cause in account(rows)}
    assert found["unexplained"].low < found["unexplained"].seconds < found["unexplained"].high
    assert sum(cause.seconds for cause in found.values()) == pytest.approx(0.11)
    generator, held = np.random.default_rng(0), 0
    for _ in range(400):
        one = account([{"unexplained": seconds} for seconds in 0.1 * np.exp(generator.normal(0, 0.1, 3))])[0]
        held += 0.0 <= one.low <= 0.1 <= one.high
    assert held >= 0.925 * 400
    assert account([{"unexplained": 0.0}, {"unexplained": 0.1}, {"unexplained": 0.01}])[0].low == 0.0, "no time is below 0"


def test_a_window_begins_while_a_client_reads_so_it_lists_no_processes(monkeypatch):
    """50 ms on a machine with many: pieces that had come at once were read 52 ms apart, and became the times of tokens."""
    watch = Watch(Owner(None))
    monkeypatch.setattr("psutil.process_iter", lambda: pytest.fail("listed meanwhile"))
    watch.start()


# ---- the real server


def decode_of(url, **how):
    """The causes of a decode, and what was running."""
    with Running(url, gbps=lambda: 20.0, budget=how.pop("budget", 24.0), **how) as running:
        found = running.decode
        assert sum(cause.seconds for cause in found) == pytest.approx(
            sum(w.seconds for w in running.windows) / len(running.windows)
        )
        return {cause.name: cause for cause in found}, running


def faults(found, but=()):
    """Name -> seconds of the faults."""
    return {name: cause.seconds for name, cause in found.items() if cause.is_fault and name not in but}


def worst(found, but=()):
    rows = faults(found, but)
    return max(rows, key=rows.get)


def kept_waiting(found):
    """Threads that sleep, as those of the tests' servers do, wait longer where neighbors have the cores."""
    busy, whole = found.get("busy"), sum(cause.seconds for cause in found.values())
    return ("threads",) * bool(busy and busy.seconds > 0.05 * whole)


@pytest.fixture(scope="module")
def server(smollm2):
    with served.started(smollm2, "-t 2 -c 1024") as running:
        yield running


@pytest.mark.slow
def test_too_many_threads(smollm2):
    with served.started(smollm2, "-t 8 -c 512") as running:
        found, ran = decode_of(running.url)
    assert worst(found, but=("busy",)) == "threads" and found["threads"].remedy.startswith("-t "), found
    assert all(window.seen.workers > 2 for window in ran.windows), "more than the cores"
    if max(window.seen.others for window in ran.windows) < 0.5:  # else a neighbor keeps some of the eight from their share
        assert worst(found) == "threads", found
        assert ran.windows[0].seen.workers == 8 and "8 threads on" in found["threads"].evidence


@pytest.mark.slow
def test_a_busy_neighbor(server):
    with served.neighbors(3):
        found, _ = decode_of(server.url)
    assert worst(found) == "busy" and "python" in found["busy"].evidence, found


@pytest.mark.slow
def test_a_quota(server):
    files = {"v1": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "8000"}, "v2": {"cpu.max": "8000 100000"}}
    with served.group("cpu", **files) as group:
        (group / "cgroup.procs").write_text(str(server.process.pid))
        try:
            found, ran = decode_of(server.url)
        finally:
            (group.parent / "cgroup.procs").write_text(str(server.process.pid))
    assert worst(found, but=("busy",)) == "quota" and ran.windows[0].seen.quota == pytest.approx(0.08), found
    if max(window.seen.others for window in ran.windows) < 0.5:
        assert worst(found) == "quota", found


@pytest.mark.slow
@pytest.mark.parametrize("spin", [False, True])
def test_two_threads_that_sleep_at_every_part_of_a_token(smollm2, monkeypatch, spin):
    """So a server lost 18 of 47 ms on an idle machine: its environment had OMP_WAIT_POLICY=passive."""
    spins = {"GOMP_SPINCOUNT": "300000"} if spin else {}
    monkeypatch.setattr(served, "PASSIVE", served.PASSIVE | {"AWS_SECRET_KEY": "passive"} | spins)
    with served.started(smollm2, "-t 2 -c 256") as running:
        found, ran = decode_of(running.url)
    woken = [each.seen.woken for each in ran.windows]
    total = sum(cause.seconds for name, cause in found.items() if name != "busy")
    if spin:
        assert not any(woken) and ran.owner.sleepy == () and "threads" not in found
        return
    assert all(woken) and set(ran.owner.sleepy) == {"OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT=0"}
    assert worst(found, but=("busy",)) == "threads" and found["threads"].seconds > 0.05 * total, found
    assert "OMP_WAIT_POLICY=passive" in found["threads"].remedy and "times per token" in found["threads"].evidence


@pytest.mark.slow
def test_with_nothing_wrong_only_what_the_neighbors_take(smollm2):
    """One thread waits for no other one. Two that spin are as well, and take seconds a token beside neighbors."""
    with served.started(smollm2, "-t 1 -c 256") as running:
        found, ran = decode_of(running.url)
    total = sum(cause.seconds for cause in found.values())
    assert all(seconds < 0.1 * total for seconds in faults(found, but=("busy", "pages")).values()), found
    seen = [each.seen for each in ran.windows]
    if all(each.others < 0.1 and max(each.waited) < 0.05 for each in seen):
        assert faults(found).get("busy", 0.0) < 0.1 * total


@pytest.mark.slow
@pytest.mark.parametrize("limit, flags, remedy", [(88, "-t 2 -c 128", ""), (190, "-t 2 -c 3072", "-c ")])
def test_a_memory_limit_below_the_file_and_a_context_that_pushes_weights_out(smollm2, tmp_path, limit, flags, remedy):
    file, text = served.copied(smollm2, tmp_path), str(limit << 20)
    v1 = {"memory.limit_in_bytes": text, "memory.swappiness": "0"}  # another test may have made swap
    with served.group("memory", v1=v1, v2={"memory.max": text, "memory.swap.max": "0"}) as group:
        with served.started(file, flags, served.inside(group)) as running:
            found, ran = decode_of(running.url)
            assert worst(found, but=("busy", *kept_waiting(found))) == "disk", (found, ran.holding)
            assert ran.windows[0].seen.faults > 0 and ran.holding.limit == limit << 20
            assert found["disk"].remedy.startswith(remedy) and ran.facts.pushed == bool(remedy), (found["disk"], ran.holding)


@pytest.mark.slow
def test_depth(tmp_path):
    """Few weights and many heads: after 1,024 positions keys and values are most of what a token reads."""
    wide = dataclasses.replace(
        geometry("tiny-llama"), hidden_size=256, heads=16, kv_heads=16, head_dim=64, layers=4, context=2048
    )
    file = synthesize(tmp_path / "wide.gguf", wide)
    with served.started(file, "-t 2 -c 1200") as running:
        with Running(running.url, gbps=lambda: 20.0, budget=60.0) as ran:
            found = {cause.name: cause for cause in ran.deep["causes"]}
            assert ran.deep["positions"] == 1024 and ran.bytes_at(1024) > 3 * ran.bytes_at(48)
    assert worst(found, but=("busy", "threads")) == "depth", found  # threads: those of this server sleep, and a token is short
    assert ("-ctk q8_0" in found["depth"].remedy) != ("shorter context" in found["depth"].remedy)
    assert "after 1,024 positions" in found["depth"].evidence


@pytest.mark.slow
def test_a_model_that_was_unloaded_between_requests(smollm2):
    with served.started(smollm2, "-t 2 -c 256 --sleep-idle-seconds 1") as running:
        time.sleep(2.5)
        with Running(running.url, gbps=lambda: 20.0, budget=8.0) as ran:
            assert largest(ran.load).name == "load", (ran.load, ran.first, ran.prompts)


@pytest.mark.slow
def test_small_pages_are_seen_and_cost_what_the_map_is_slower(smollm2, monkeypatch):
    """A file on a tmpfs is mapped by pages of 4 KiB. How much slower these read depends on the machine, so it is given."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    monkeypatch.setattr(pages, "speed", lambda file: pages.MapSpeed(5.0, 20.0, 0.0))
    monkeypatch.setattr("kit.lab.measuring.state.watched", lambda work: (work(), 0.0, False))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        with served.started(shutil.copy(smollm2, folder), "-t 2 -c 256") as running:
            found, ran = decode_of(running.url)
    assert ran.holding.large == 0.0 and ran.holding.resident == 1.0
    assert ran.pages == pytest.approx(3 * bytes_used(uses_of(ran.file)) / 20e9)
    assert worst(found, but=("busy", "threads")) == "pages"  # threads: those of this server sleep
    assert found["pages"].evidence.startswith("0% of the map")


def test_large_pages_cost_nothing(monkeypatch):
    monkeypatch.setattr(pages, "speed", lambda file: 1 / 0)
    ran = SimpleNamespace(file=True, owner=SimpleNamespace(mapped=True), holding=Holding(resident=1.0, large=0.95))
    assert Running.pages.func(ran) == 0.0
    ran.holding = Holding(resident=0.7, large=0.0)
    assert Running.pages.func(ran) == 0.0, "to read the file would bring it into memory"


@pytest.mark.slow
def test_a_proxy_that_delays(server):
    with served.serving(served.proxy(server.url, each=lambda number: time.sleep(0.4))) as url:
        found, ran = decode_of(url)
    assert worst(found, but=("busy",)) == "overhead", found
    assert "the model's file" not in ran.owner.missing


@pytest.mark.slow
@pytest.mark.parametrize("remembers", [True, False])
def test_a_second_turn_that_computes_all_again(server, remembers):
    """By the server's own count, so that no time decides."""

    class Forgets(served.proxy(server.url)):
        @property
        def body(self):
            asked = json.loads(super().body or b"{}")
            return json.dumps(asked | {"cache_prompt": False}).encode() if asked else b""

    with served.serving(served.proxy(server.url) if remembers else Forgets) as url:
        with Running(url, gbps=lambda: 20.0, budget=120.0) as ran:
            turn, found = ran.turns, {cause.name: cause for cause in ran.second_turn}
            assert turn["again"] == (0 if remembers else turn["positions"] - turn["new"] - 1), turn
            assert ("reprocess" in found) == (not remembers)
            assert remembers or "--cache-reuse" in found["reprocess"].remedy
