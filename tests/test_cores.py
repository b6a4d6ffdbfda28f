"""The cores told apart: files of /sys laid out as Linux has them, and an arithmetic probe against a definition."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kit.cpu import peak, simd, threads
from kit.lab.engines.options import counts_of
from kit.lab.measuring import arithmetic
from kit.system import cores as module
from kit.system import groups
from kit.system.cores import Cores, cores, numbers


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that lays out a machine: (package, core) of each CPU, and the files of its kinds."""

    def lay(places, files=(), quotas=(), allowed=None):
        for cpu, (package, core) in enumerate(places):
            folder = tmp_path / "system" / "cpu" / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "physical_package_id").write_text(f"{package}\n")
            (folder / "core_id").write_text(f"{core}\n")
        for name, text in dict(files).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed or range(len(places))), raising=False)
        monkeypatch.setattr(groups, "quotas", lambda process="self": list(quotas))
        return cores(tmp_path)

    return lay


def test_hyper_threads_share_a_core(machine):
    found = machine([(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0)])
    assert found == Cores(6, 3, 3, None) and found.useful == 3 and found.counts() == [1, 2, 3, 4, 6]


def test_performance_cores_of_a_hybrid_cpu(machine):
    """Two P-cores with two threads each and four E-cores, as Intel's kernel driver lists them."""
    places = [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
    found = machine(places, {"cpu_core/cpus": "0-3\n", "cpu_atom/cpus": "4-7\n"})
    assert found == Cores(8, 6, 2, None) and found.useful == 2 and "performance cores" in found.told
    assert machine(places, {"cpu_core/cpus": "0-3\n"}, allowed={4, 5}) == Cores(2, 2, 2, None)  # pinned to E-cores


def test_cores_of_an_arm_by_their_capacity(machine):
    files = {f"system/cpu/cpu{cpu}/cpu_capacity": f"{1024 if cpu > 3 else 400}\n" for cpu in range(6)}
    assert machine([(0, cpu) for cpu in range(6)], files) == Cores(6, 6, 2, None)


def test_a_quota_gives_less_time_than_there_are_cores(machine):
    found = machine([(0, cpu) for cpu in range(8)], quotas=[6.0, 2.4])
    assert found.quota == 2.4 and found.useful == 2 and 2 in found.counts()
    assert "control group" in found.told and "2.4" in found.told


@pytest.mark.parametrize(
    ("quota", "threads"), [(0.1, 1), (0.5, 1), (1.2, 1), (1.5, 2), (1.9, 2), (2.5, 3), (7.6, 8), (40.0, 8)]
)
def test_one_number_of_threads_for_a_quota(machine, quota, threads):
    """The kernels take the nearest; what to try took one less, and the advice to a server a third number at the halves."""
    found, [taken] = machine([(0, cpu) for cpu in range(8)], quotas=[quota]), groups.cores()
    assert found.useful == threads == min(8, taken)


def test_hidden_files_count_each_cpu(machine, tmp_path):
    found = machine([], allowed={0, 3})
    assert found == Cores(2, 2, 2, None)


def test_lists_of_numbers():
    assert numbers("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11} and numbers("") == set()


def test_all_counts_are_those_of_this_machine(monkeypatch):
    monkeypatch.setattr("kit.lab.engines.options.cores", lambda: Cores(12, 6, 4, None))
    assert counts_of("all") == [1, 2, 4, 6, 8, 12] and counts_of("4, 2,4") == [2, 4] and counts_of(None) == []
    assert module.cores().logical >= 1


def test_a_rate_is_operations_over_seconds(monkeypatch):
    """A clock that ticks a second: each way's rate is its number of operations, and the largest wins."""
    seconds = type("Taken", (), {"samples": (1.0, 2.0)})
    calls = []
    monkeypatch.setattr(arithmetic.measure, "time", lambda function, **how: calls.append(function()) or seconds)
    monkeypatch.setattr(arithmetic, "_SLOW", 2.0)
    monkeypatch.setattr(arithmetic, "_SIDES", (64, 128))
    monkeypatch.setattr(arithmetic, "_TOKENS", 32)
    monkeypatch.setattr(arithmetic, "_ROWS", 64)
    monkeypatch.setattr("kit.cpu.peak.ways", list)
    rates = arithmetic.probe()
    assert rates["float32"].best == 2 * 32 * 2048 * 64 and "kit's product" in rates["float32"].method
    squares = [each for each in calls if isinstance(each, torch.Tensor) and each.dtype == torch.int32]
    assert {tuple(each.shape) for each in squares} == {(64, 64), (128, 128)}


@pytest.mark.parametrize("name", simd.available())
def test_multiply_adds_of_registers(name, monkeypatch):
    """Every sum has every turn's product, of numbers that differ by task, and as many of them count as the peak says."""
    monkeypatch.setattr(peak, "_TURNS", 3)
    rng, turned = np.random.default_rng(0), []
    with simd.using(name):

        def run(task, arguments, tasks):
            memory = arguments["memory"].reshape(tasks, -1)
            numbers = memory if turned else memory.view(np.float32)
            numbers[:] = rng.integers(0, 8, numbers.shape)
            before = memory.copy()
            threads.run(task, arguments | {"memory": memory}, tasks)
            turned.append((before, memory))

        monkeypatch.setattr(peak, "threads", SimpleNamespace(count=threads.count, run=run))
        found = [(kind, operations) for kind, function, operations in peak.ways() if not function()]
        kinds = [(kind, *peak._vectors(name, kind), peak._factors(kind)) for kind, _ in found]
    assert [kind for kind, _ in found] == ([] if name == "plain" else ["float32", "int8", "int16"][: len(found)])
    for (kind, total, factor, many), (_, operations), (before, after) in zip(kinds, found, turned, strict=True):
        sum_type, factor_type = (np.dtype(str(each.element)) for each in (total, factor))
        a, b = (
            np.stack([before[:, at + 64 * n :][:, : factor.lanes * factor_type.itemsize] for n in range(many)], 1)
            for at in (1024, 1024 + 64 * many)
        )
        a, b = (np.ascontiguousarray(each).view(factor_type).astype(np.float64) for each in (a, b))
        products = (a[:, :, None] * b[:, None]).reshape(len(a), -1, total.lanes, factor.lanes // total.lanes).sum(3)
        sums = [
            each.view(sum_type).reshape(len(a), -1, 64 // sum_type.itemsize)[:, :, : total.lanes] for each in (before, after)
        ]
        count = operations // (2 * 3 * factor.lanes * len(a))
        added = (sums[1].astype(np.float64) - sums[0])[:, :count]
        expected = np.broadcast_to(3 * products, added.shape)
        if kind == "float32":
            expected, added = sums[0][:, :count] + expected, sums[1][:, :count]
        np.testing.assert_allclose(added, expected, rtol=1e-5)


def test_a_slow_cpu_is_asked_for_one_size(monkeypatch):
    monkeypatch.setattr(arithmetic.measure, "time", lambda function, **how: type("Taken", (), {"samples": (1.0,)}))
    assert "512 x 512" in arithmetic.probe()["float32"].method
