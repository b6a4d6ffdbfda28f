"""What probes make of clocks and counters that a test sets: memory, disk, device, arithmetic, and what others use meanwhile."""

import os
from types import SimpleNamespace

import pytest
import torch

from kit.lab.measuring import arithmetic, busy, disk, gpu, identity, machine, measurements, slices, speeds
from kit.lab.measuring.busy import Busy, apart, watching
from kit.lab.measuring.measure import Measurement


@pytest.fixture
def crowded():
    """Looks count as they are made."""


class Clock:
    """Of seconds that only work, and sleep, take."""

    def __init__(self, now=4.0):
        self.now, self.slept = now, []

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize("cache, free, seconds, count, read", [
    (8, 10**6, 0.0, 4, [0, 1, 2, 3]), (20, 10**6, 0.0, 5, [0, 1, 2, 3, 4]), (1000, 10**6, 0.0, 16, [*range(16)]),
    (20, 256, 0.0, 2, [0, 1]), (20, 0, 0.0, 1, [0]), (8, 10**6, 5.5, 4, [0, 1, 2, 3, 0, 1]), (20, 0, 1.5, 1, [0, 0]),
])  # fmt: skip
def test_slices_are_four_times_the_caches_in_turn_and_the_fastest_counts(monkeypatch, cache, free, seconds, count, read):
    """Of 16 bytes each, 64 to 256 together and an eighth of what is free; a read takes a second, the first one half of that."""
    clock, log, asked = Clock(), [], []

    def part(number):
        def work():
            clock.now += 1.0 if log else 0.5
            log.append(number)

        return SimpleNamespace(nbytes=16, sum=work)

    def numbers(floats):
        asked.append(floats)
        return SimpleNamespace(zero_=lambda: SimpleNamespace(chunk=lambda rows: [part(number) for number in range(rows)]))

    for name, value in {"_SLICE": 16, "_LEAST": 64, "_MOST": 256, "time": clock, "last_level_cache": lambda: cache,
                        "memory_available": lambda: free}.items():  # fmt: skip
        monkeypatch.setattr(slices, name, value)
    monkeypatch.setattr(slices.state, "numbers", numbers)
    assert slices.read_gbps(seconds) == 16 / 0.5 / 1e9 and log == read and asked == [4 * count]


@pytest.mark.parametrize("limited, free, known, crowd, tokens, read, rate", [
    (False, 1 << 30, None, False, 3, 2.0, 1.0), (False, (1 << 30) - 1, None, False, 3, None, None),
    (True, 1 << 40, None, False, 3, None, None), (True, 1 << 40, 4.0, False, 3, 4.0, 2.0),
    (False, 1 << 40, 4.0, False, 3, 4.0, 2.0),
    (False, 1 << 40, 1.0, False, 3, 2.0, 1.0), (False, 1 << 40, 4.0, True, 3, 4.0, None),
    (False, 1 << 40, None, False, 1, 2.0, None),
])  # fmt: skip
def test_the_bound_of_a_generation_is_its_bytes_over_the_best_bandwidth(
    monkeypatch, limited, free, known, crowd, tokens, read, rate
):
    """Two tokens after the first read 4 GB together; memory gives 2 GB/s now."""
    best = known and SimpleNamespace(samples=(known / 2, known))
    monkeypatch.setattr(measurements, "shared", lambda: SimpleNamespace(best=lambda way, unit: best))
    monkeypatch.setattr(speeds.slices, "now_gbps", lambda: 2.0)
    monkeypatch.setattr(speeds, "memory_available", lambda: free)
    answer = SimpleNamespace(nbytes=[9e9, 1e9, 3e9][:tokens], tokens=[*range(tokens)])
    assert speeds.bound_of(answer, limited, crowd) == {"read_gbps": read, "decode_bound_tokens_per_second": rate}


def test_what_generate_says_of_its_speed():
    speed = {name: 2.0 for name in ("prefill_tokens_per_second", "prefill_gb_per_second", "decode_tokens_per_second")}
    speed |= {"decode_gb_per_second": 3.0, "kernels_seconds": 1.0, "decode_bound_tokens_per_second": None, "linear": "fused"}
    speed |= {"peak_memory_bytes": 1 << 20, "cache": "all", "memory": "", "experts": None, "depths": [], "via": "kit",
        "pages": []}  # fmt: skip
    speed |= {"faster": "", "read_gbps": 7.0}
    answer = SimpleNamespace(tokens=[1], prompt=[1, 2], ttft=0.5, stopped="end")
    words = [line.split()[0] for line in speeds.lines_of(answer, speed) if line]
    assert words == ["kernels", "first", "prefill", "peak", "weights", "forward", "stopped"]
    speed |= {
        "decode_bound_tokens_per_second": 30.0,
        "depths": [{"positions": 4096, "by": "token", "token": 0.25, "products": 0.2}],
    }
    speed |= {"experts": {"hit_rate": 0.75, "hits": 3000, "misses": 1000, "bytes_loaded": 1 << 20, "waited_seconds": 1.0}}
    told = "\n".join(speeds.lines_of(SimpleNamespace(**vars(answer) | {"tokens": [1, 2]}), speed))
    for part in ("1 tokens\nlimit ", " 30.00 tok/s", "75.0% of 4,000 uses hit", "after 4,096", " 4 tok/s   products "):
        assert part in told, told


@pytest.mark.parametrize("cpu, features, memory, name", [
    ("AMD EPYC(TM) 7R13 48-Core", ["avx2"], 23.6, "amd-epyc-7r13-avx2-2c-24g-"),
    ("Intel(R) Xeon(R) Processor, @ 2.0", ["avx2", "avx512f", "avx512vnni"], 7.4, "intel-xeon-processor-avx512-2c-7g-"),
    ("Cortex", [], 1.0, "cortex-2c-1g-"),
])  # fmt: skip
def test_a_machine_is_named_by_what_it_is(monkeypatch, cpu, features, memory, name):
    for each, value in {"cpu_name": cpu, "cpu_features": features, "usable_cores": 2, "memory_limit": memory * 2**30,
                        "cpu_facts": {"model": "1"}}.items():  # fmt: skip
        monkeypatch.setattr(identity, each, lambda value=value: value)
    told, known = identity.machine_id.__wrapped__(), {*"0123456789abcdef"}
    assert told.startswith(name) and len(told) == len(name) + 4 and {*told[len(name) :]} <= known


@pytest.mark.parametrize("others, told", [(0.25, ""), (0.26, "Busy machine: others used 0.3 of 4 cores;")])
def test_a_quarter_of_a_core_is_quiet_still(monkeypatch, crowded, others, told):
    monkeypatch.setattr(busy, "usable_cores", lambda: 4)
    seen = Busy().seen(others).seen(0.1)
    assert bool(seen) is bool(told) and seen.line.startswith(told) and bool(seen.line) is bool(told)
    assert seen.facts == {"busy": bool(told), "busy_others": others} and Busy(0.12345).facts["busy_others"] == 0.12
    monkeypatch.setattr(busy, "usable_cores", lambda: 1)
    assert not told or "0.3 of 1 core;" in seen.line


@pytest.mark.parametrize("before, took, used, looks, others", [
    (True, 2.0, 1.0, [0.3], 0.5), (True, 2.0, 0.1, [0.3], 0.3), (True, 2.0, -9.0, [0.3], 0.3), (False, 2.0, 1.0, [], 0.5),
    (True, 0.09, 9.0, [0.3], 0.3), (False, 0.09, 9.0, [0.1], 7.0), (True, 0.3 / 3, 0.06, [0.3], 0.6),
])  # fmt: skip
def test_others_are_looked_at_before_and_meanwhile(monkeypatch, crowded, before, took, used, looks, others):
    """What takes less than a third of a look says nothing: a look after it does, where there was none before."""
    clock, spent, asked = Clock(0.0 if took < 1 else 4.0), iter([8.0, 8.0 + used]), []
    monkeypatch.setattr(busy, "time", clock)
    monkeypatch.setattr(busy, "_of_others", lambda: next(spent))
    monkeypatch.setattr(busy, "look", lambda seconds=0.3: asked.append(seconds) or (0.3 if seconds == 0.3 else 7.0))
    with watching(before=before) as found:
        clock.now += took
    assert found.others == pytest.approx(others) and asked == pytest.approx(looks)


@pytest.mark.parametrize("used, others", [(1.0, 0.5), (-1.0, 0.0)])
def test_a_look_is_seconds_of_cores_over_its_own(monkeypatch, used, others):
    clock, spent = Clock(), iter([8.0, 8.0 + used])
    monkeypatch.setattr(busy, "time", clock)
    monkeypatch.setattr(busy, "_of_others", lambda: next(spent))
    assert busy.look(2.0) == others and clock.slept == [2.0]


def test_what_others_used_is_without_this_process_and_all_that_it_started(monkeypatch):
    def process(children=()):
        return SimpleNamespace(cpu_times=lambda: (1.0, 2.0, 4.0, 8.0, 16.0), children=lambda recursive: children * recursive)

    monkeypatch.setattr(busy.psutil, "Process", lambda: process([process()] * 2))
    monkeypatch.setattr(busy, "seconds_of_all", lambda: 100.0)
    assert busy._of_others() == 100.0 - 3 * 15.0


@pytest.mark.parametrize("faster, slower, right", [
    ((1, 2), (3, 4), True), ((1, 2), (2, 4), False), ((3, 4), (1, 2), False), (None, (1, 2), False), ((1, 2), None, False),
])  # fmt: skip
def test_a_difference_is_one_where_no_value_is_in_both(faster, slower, right):
    assert apart(faster, slower) is right


def test_ways_of_multiplying_and_their_operations(monkeypatch):
    """2 m k n each: an addition is an operation, too."""
    how = []

    def time(function, **given):
        how.append(given | {"shape": tuple(function().shape)})
        return Measurement((2.0, 1.0), 9.0)

    monkeypatch.setattr(arithmetic.measure, "time", time)
    monkeypatch.setattr("kit.cpu.peak.ways", lambda: [("int8", list, 7)])
    for name, value in {"_SIDES": (8, 16), "_TOKENS": 3, "_COLUMNS": 64, "_ROWS": 5, "_SLOW": 1.0}.items():
        monkeypatch.setattr(arithmetic, name, value)
    found = [(kind, operations) for kind, _, _, operations in arithmetic._ways()]
    squares = [(kind, 2 * side**3) for side in (8, 16) for kind in ("float32", "int8")]
    assert found == [*squares, ("int8", 7), *[(kind, 2 * 3 * 64 * 5) for kind in arithmetic.KINDS]] and how == [
        {"samples": 2, "min_sample": 0, "shape": (8, 8)}
    ]
    monkeypatch.setattr(arithmetic, "_SLOW", 0.99)
    assert [operations for *_, operations in arithmetic._ways()] == [1024, 1024], "a slow CPU is asked for one size"
    taken = lambda function, samples, min_sample: Measurement((function.seconds, 9.0 + min_sample), 9.0)  # noqa: E731
    monkeypatch.setattr(arithmetic.measure, "time", taken)
    ways = [("float32", "a", SimpleNamespace(seconds=2.0), 8), ("float32", "b", SimpleNamespace(seconds=1.0), 6),
            ("int8", "c", None, 6), ("float32", "d", SimpleNamespace(seconds=1.0), 6)]  # fmt: skip
    monkeypatch.setattr(arithmetic, "_ways", lambda: [way for way in ways if way[2]])
    assert arithmetic.probe() == {"float32": arithmetic.Rate((6.0, 6 / 9), "b")}
    ways.append(("int8", "e", SimpleNamespace(seconds=1.0), 24))  # three digits are three of its products: 8 > 6
    assert {kind: rate.best for kind, rate in arithmetic.probe().items()} == {"int8": 24.0, "int16": 12.0, "float32": 8.0}
    ways[-1] = *ways[-1][:3], 15  # 5 < 6
    assert arithmetic.probe()["float32"].method == "b"


@pytest.mark.parametrize("passes, gbps, told", [
    ([1.0, None, 3.0], 3.0, "3 GB/s from disk (past the page cache, best of 2 passes over 100 B)"),
    ([None] * 3, None, "the disk's speed is not known: this file system"),
])  # fmt: skip
def test_a_disk_is_the_best_of_its_passes(monkeypatch, tmp_path, passes, gbps, told):
    (tmp_path / "file").write_bytes(bytes(100))
    left = iter(passes)
    monkeypatch.setattr(disk, "_pass", lambda path: next(left))
    found = disk.speed(tmp_path / "file")
    assert found.gbps == gbps and found.samples == tuple(filter(None, passes)) and str(found).startswith(told)


@pytest.mark.parametrize("size, read", [(20_000, 8192), (5000, 5000), (0, None)])
def test_a_pass_reads_so_many_bytes_in_its_seconds(monkeypatch, tmp_path, size, read):
    (tmp_path / "file").write_bytes(bytes(size))
    times = iter([4.0, 6.0])
    for name, value in {"MOST": 8192, "STEP": 4096, "open_past": lambda path: os.open(path, os.O_RDONLY),
                        "time": SimpleNamespace(perf_counter=lambda: next(times))}.items():  # fmt: skip
        monkeypatch.setattr(disk, name, value)
    assert disk._pass(tmp_path / "file") == (read and read / 2.0 / 1e9)


def refuses(path):
    raise OSError


def test_a_disk_that_cannot_be_read_past_the_page_cache_has_no_pass(monkeypatch, tmp_path):
    monkeypatch.setattr(disk, "open_past", refuses)
    assert disk._pass(tmp_path) is None


@pytest.fixture
def device(monkeypatch):
    """A device that is this CPU: 64 bytes of a buffer, matrices of side 8; its events are a clock of milliseconds."""
    names = ("rand", "empty", "zeros", "empty_like", "float32", "uint8")
    clock, log = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            self.at = None if enable_timing else pytest.fail("an event without a time")

        def record(self):
            self.at = clock[0]

        def synchronize(self):
            log.append("waited")

        def elapsed_time(self, end):
            return end.at - self.at

    def on_cpu(function):
        def made(*sizes, **how):
            assert how["device"] == "cuda" or how["pin_memory"], "the copy of pageable memory is another limit"
            return function(*sizes, dtype=how["dtype"])

        return made

    fake = SimpleNamespace(**{name: getattr(torch, name) for name in names})
    for name in ("rand", "empty", "zeros"):
        setattr(fake, name, on_cpu(getattr(torch, name)))
    fake.cuda = SimpleNamespace(is_available=lambda: True, mem_get_info=lambda: (288, 0), Event=Event)
    monkeypatch.setattr(gpu, "torch", fake)
    for name, value in {"_FLUSH_BYTES": 16, "_BUFFER_BYTES": 64, "_LAUNCHES": 5, "_MATRIX": 8}.items():
        monkeypatch.setattr(gpu, name, value)
    return SimpleNamespace(clock=clock, log=log, fake=fake)


def test_device_work_is_timed_by_its_events(device):
    """Three calls warm it up; then a sample each, in seconds."""

    def work():
        device.log.append("work")
        device.clock[0] += 250.0

    assert gpu.time_on_device(work, 2) == [0.25, 0.25] and device.log == ["work"] * 3 + ["work", "waited"] * 2


def test_without_a_device_the_clock_of_the_cpu_times_each_call(device, monkeypatch):
    device.fake.cuda.is_available = lambda: False
    monkeypatch.setattr(gpu.measure, "time", lambda work, samples, min_sample: Measurement((work, samples, min_sample), 0.0))
    assert gpu.time_on_device("work", 3) == ["work", 3, 0]


def test_the_best_sample_of_each_limit_of_a_device_is_its_bound():
    samples = {name: [2.0, 8.0, 4.0] for name in ("read_gbps", "write_gbps", "copy_gbps", "host_to_device_gbps", "f32_gflops")}
    told = {"name": "gpu", "memory_bytes": 9, "samples": samples | {"launch_us": [2.0, 8.0]}} | dict.fromkeys(samples, 4.0)
    best = gpu.Limits.of(told)
    assert best == gpu.Limits("gpu", 9, 8.0, 8.0, 8.0, 8.0, 2.0, 8.0) and best.seconds_from_host(16e9) == 2.0


def test_limits_of_a_device_are_amounts_over_seconds(device, monkeypatch):
    monkeypatch.setattr(gpu, "time_on_device", lambda work: [work(), 4.0, 1.0, 2.0][1:])
    found = gpu.probe_device()
    right = {"read_gbps": 64, "write_gbps": 64, "copy_gbps": 128, "host_to_device_gbps": 64, "f32_gflops": 2 * 8**3}
    assert {name: found[name] for name in right} == pytest.approx({name: amount / 2 / 1e9 for name, amount in right.items()})
    assert found["launch_us"] == 2.0 / 5 * 1e6 and max(found["samples"]["read_gbps"]) == 64 / 1e9
    device.fake.cuda.mem_get_info = lambda: (128, 0)
    assert gpu.probe_device()["read_gbps"] == 32 / 2 / 1e9, "a quarter of what is free"


def test_the_better_of_both_machines_is_kept_with_its_samples():
    one, two = (machine.Machine("m", "cpu", 2, 8, 8, *limits,
    samples={"read_gbps": [limits[0]], "write_gbps": [limits[1]], "copy_gbps": [4.0, limits[3]]})
                for limits in ((2.0, 3.0, 4.0, 5.0, 6.0), (1.0, 4.0, 4.0, 9.0, 2.0)))  # fmt: skip
    best = one.best(two)
    assert [getattr(best, name) for name in ("read_gbps", "write_gbps", "copy_gbps", "f32_gflops", "fresh_gbps")] == [2, 4, 4,
        9, 6]  # fmt: skip
    assert best.samples == {"read_gbps": [2.0], "write_gbps": [4.0], "copy_gbps": [4.0, 9.0]}
    assert best.seconds_to_compute(18e9) == 2.0
