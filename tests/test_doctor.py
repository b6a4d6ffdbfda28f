"""The rows of kit doctor, of machines that a test makes up."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch

from kit.errors import KitError, ReportError
from kit.lab.measuring import doctor, machine
from kit.lab.measuring.doctor import Check

GIB = 1 << 30
GPU = {"name": "H100", "memory_bytes": 80 * GIB}


@pytest.mark.parametrize("free, state", [(8 * GIB, "ok"), (8 * GIB - 1, "note")])
def test_memory_that_the_quick_profile_lacks_is_a_note(monkeypatch, free, state):
    monkeypatch.setattr(doctor.system, "memory_available", lambda: free)
    assert doctor._memory().state == state


@pytest.mark.parametrize("threads, state", [(2, "ok"), (1, "note"), (3, "note")])
def test_torch_uses_every_core_or_is_told_to(monkeypatch, threads, state):
    monkeypatch.setattr(doctor.system, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    row = doctor._cores()
    assert row.state == state and ("OMP_NUM_THREADS" in row.remedy) is (state == "note")


@pytest.mark.parametrize("free, writable, state", [(100, True, "ok"), (99, True, "note"), (100, False, "bad")])
def test_a_folder_has_room_and_can_be_written(monkeypatch, tmp_path, free, writable, state):
    """Through the nearest folder that there is."""
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(free={tmp_path: free}[folder]))
    monkeypatch.setattr(doctor.os, "access", lambda folder, how: writable and folder == tmp_path)
    assert doctor._folder("results", tmp_path / "a" / "b", 100).state == state


def test_variables_are_shown_and_keys_are_not(monkeypatch):
    for name in doctor.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert "=" not in doctor._environment().finding
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("KIT_SERVER_KEY", "secret")
    monkeypatch.setenv("KIT_THREADS", "3")
    monkeypatch.setenv("OTHER", "4")
    assert doctor._environment().finding == "KIT_THREADS=3, HF_TOKEN=..., KIT_SERVER_KEY=..."


@pytest.mark.parametrize("versions, triton, gpu, llama", [
    ({}, "note", None, "note"), ({"triton": "3", "xllamacpp": "1"}, "note", None, "ok"), ({"triton": "3"}, "ok", GPU, "note"),
])  # fmt: skip
def test_what_is_optional_is_a_note_where_it_is_missing(monkeypatch, versions, triton, gpu, llama):
    monkeypatch.setattr(machine, "library_version", versions.get)
    monkeypatch.setattr(machine, "gpu", lambda: gpu)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=False))))
    assert (doctor.triton_check().state, doctor._peer().state) == (triton, llama)
    assert "triton" in versions or "pip install " in doctor.triton_check().remedy
    assert doctor.gpu_check().state == ("ok" if gpu else "note")
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=True))))
    interpreted = doctor.triton_check()
    assert interpreted.state == "note" and ("TRITON_INTERPRET" in interpreted.remedy) == ("triton" in versions)
    told = {row.subject: row.state for row in doctor._libraries()}
    assert told["numpy"] == "bad" and told["papermill"] == "note", "none of these is installed here"


@pytest.mark.parametrize("cuda", [None, "12.4"])
def test_a_torch_without_cuda_is_another_lack_than_a_missing_device(monkeypatch, cuda):
    monkeypatch.setattr(machine, "gpu", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    row = doctor.gpu_check()
    assert ("12.4" in row.finding and "nvidia-smi" in row.remedy) is bool(cuda) and row.state == "note"


def test_a_device_is_usable_or_what_it_lacks_is_said(monkeypatch):
    assert doctor.check_device("cpu") == "cpu"
    with pytest.raises(ReportError, match="there is no device 'tpu'; choose one of cpu, cuda"):
        doctor.check_device("tpu")
    for rows, right in (((Check("GPU", "ok", ""), Check("Triton", "ok", "")), True),
                        ((Check("GPU", "ok", ""), Check("Triton", "note", "none", "get it")), False)):  # fmt: skip
        monkeypatch.setattr(doctor, "gpu_check", lambda row=rows[0]: row)
        monkeypatch.setattr(doctor, "triton_check", lambda row=rows[1]: row)
        if right:
            assert doctor.check_device("cuda") == "cuda"
        else:
            with pytest.raises(ReportError, match="Triton: none; get it"):
                doctor.check_device("cuda")


def test_speeds_are_measured_where_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(doctor, "large_pages_in", lambda folder: None)
    names = ("read_gbps", "write_gbps", "copy_gbps", "host_to_device_gbps", "launch_us")
    found = SimpleNamespace(read_gbps=20.0, write_gbps=10.0, copy_gbps=15.0, f32_gflops=100.0, gpu=None)
    monkeypatch.setattr(machine, "probe", lambda: found)
    asked = [doctor.checks(("ok", "avx2"), {"tiles": ["Q4_0"]}, measure) for measure in (False, True)]
    assert [row.subject for row in asked[1][: len(asked[0])]] == [row.subject for row in asked[0]]
    assert asked[1][-1] == doctor._speed() and len(asked[1]) == len(asked[0]) + 1
    assert re.findall(r"\d[\d.]*", doctor._speed().finding)[:4] == ["20.0", "10.0", "15.0", "100"]
    found.gpu = dict.fromkeys(names, 7.0)
    assert "7.0 us per launch" in doctor._speed().finding

    def fails():
        raise KitError("too little memory")

    monkeypatch.setattr(machine, "probe", fails)
    assert doctor._speed()[:3] == ("speed", "bad", "too little memory")


@pytest.mark.parametrize(
    "share, advised, large", [(1.0, True, True), (None, True, None), (0.0, True, False), (1.0, False, None)]
)
def test_a_folder_s_pages_are_tried_with_a_file_of_two(monkeypatch, tmp_path, share, advised, large):
    sizes = []
    monkeypatch.setattr(doctor.system, "advise", lambda data, how: sizes.append(len(data)) or advised)
    monkeypatch.setattr(doctor.system, "forget", lambda file: True)
    monkeypatch.setattr(doctor.large_pages, "share", lambda data: share)
    assert doctor.large_pages_in(tmp_path / "new") is large and {*sizes} == {2 * doctor.large_pages.LARGE}
    monkeypatch.setattr(doctor.large_pages, "share", lambda data: doctor.large_pages.FEW)
    assert doctor.large_pages_in(tmp_path) is (False if advised else None)
    row = doctor._pages()
    assert ("--pages copied" in row.remedy) is advised
