"""Peers: the same tokens from processes of their own; what cannot run is a row with its reason."""

import multiprocessing
import re
import shutil
import sys
import time
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
from invented import MACHINE
from llama_cpp import needed
from model_files import write

import kit
from benchmarks import _engines
from kit.errors import ModelError, ReportError
from kit.lab.engines import llama_cpp
from kit.lab.engines import processes as engines
from kit.lab.explaining import answer, peers
from kit.lab.explaining.study import Study
from kit.lab.measuring import measurements, state
from kit.lab.predicting import divergence, quality
from kit.lab.predicting.ways import BLOCKS
from kit.system import usable_cores


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models"), "tiny-llama")


@pytest.mark.slow
def test_the_same_tokens_in_turn(path):
    needed()
    before = psutil.Process().children()
    table = peers.compare(path, ["kit", "llama.cpp, mmap"], prompt=[5, 6, 7], tokens=6, rounds=2, text=40)
    assert (table.agree == 5).all() and not table.reason.any()
    assert (table[["imports", "load", "first", "prefill", "speed", "resident", "beyond imports", "mapped"]] > 0).all(axis=None)
    assert [len(samples) for samples in table.samples] == [2, 2]
    assert psutil.Process().children() == before
    assert table.kl["kit"] < 1e-3 * table.kl["llama.cpp, mmap"], "float32 loses nothing to float32, eight bits do"
    assert (table.same > 0.5).all() and table.kl_error["llama.cpp, mmap"] < table.kl["llama.cpp, mmap"]


def test_a_context_that_llama_cpp_cannot_make_is_an_error(path, monkeypatch):
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(llama_cpp.library(), "llama_init_from_model", lambda *_: None)
    with pytest.raises(ModelError, match="cannot make a context of 512 positions"):
        llama_cpp.Llama(path)


SPEEDS = pd.DataFrame({
    "speed": [20.0, 40.0, 30.0], "samples": [[20.0, 20.0]] * 3, "kl": [1e-9, 0.0321, 0.03], "kl_error": [1e-10, 0.001, 0.02],
    "others": 0.0, "reason": "",
}, ["kit", "kit, int8 activations", peers.PEER])  # fmt: skip


def test_a_run_measures_its_peers_once(path, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(peers, "compare", lambda path, *_, **__: asked.append(path) or SPEEDS)
    other = tmp_path / "other.gguf"
    other.symlink_to(path)
    first, second = (SimpleNamespace(out=tmp_path, notebook=name, model="") for name in ("01", "04"))
    shown = [peers.of_run(lab, name).loc["kit", "tok/s"] for lab, name in ((first, path), (second, path), (second, other))]
    assert shown == [20.0] * 3 and asked == [path, other]
    peers.of_run(second, other)
    assert asked == [path, other, other]  # a notebook that runs again measures again
    peers.of_run(first, other)
    monkeypatch.setattr(measurements, "settings", lambda: "cores=1")
    peers.of_run(first, other)  # of another setting
    other.unlink()
    shutil.copy(write(tmp_path, "tiny-qwen2"), other)
    peers.of_run(second, other)  # of another file with its name
    monkeypatch.setattr(peers, "machine_id", lambda: "another")
    peers.of_run(first, other)
    assert asked == [path] + 5 * [other]
    assert str(tmp_path) not in (second.out / "peers.json").read_text()  # a run is shared


def test_no_speed_of_a_trained_model_stands_without_its_quality(path, tmp_path, monkeypatch):
    """The exact way first; generated weights have none to lose, and nothing is measured of them."""
    asked = []
    monkeypatch.setattr(peers, "compare", lambda *_, text, **__: asked.append(text) or SPEEDS)
    beside = peers.of_run(SimpleNamespace(out=tmp_path, notebook="07", model=str(path)), path)
    assert asked == [1041] and beside[peers.TIMES].tolist() == pytest.approx([2 / 3, 4 / 3, 1])
    short, said = peers.short(beside), peers.told(beside)
    losses = ["1e-09 ± 1e-10", "0.032 ± 0.001", "less than 0.07"]  # an error that rivals the value is no value
    assert [*short[peers.KL]] == losses and "± nats" not in short and "reason" not in short
    assert re.findall(r"(\d+) tok/s \(KL (.*?) nats", said) == [*zip(("20", "40", "30"), losses, strict=True)]
    beside = peers.of_run(SimpleNamespace(out=tmp_path, notebook="07", model=""), path)
    assert asked[1] == 0 and "KL" not in peers.told(beside.assign(**{peers.KL: float("nan")}))
    assert "tok/s" not in peers.told(beside[:0])


def test_the_exact_logits_of_a_text_are_computed_once_a_run(path, monkeypatch):
    """Page 07 computed them for its engines, and again for its ways: twenty seconds of a run with a model of 1.5e9 weights."""
    asked, row = [], dict.fromkeys(divergence.COLUMNS, 0.5)
    compare = lambda window, truth, others, progress: asked.append([*others]) or dict.fromkeys(others, row)  # noqa: E731
    monkeypatch.setattr(divergence, "compare", compare)
    names = ["kit", "kit, int8 activations"]
    assert [*peers._lost(path, names, 40, None, [quality.EXACT, "float16", "int8 activations"])] == names
    with kit.open(path) as file:
        assert [*quality.quality(file, [quality.EXACT, "float16"], 40).index] == [quality.EXACT, "float16"]
    assert len(asked) == 1 and quality.EXACT in asked[0]


def test_the_speeds_of_a_run_are_in_its_store_and_the_shared_one(path, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "compare", lambda *_, **__: SPEEDS)
    peers.of_run(SimpleNamespace(out=tmp_path, notebook="07", model=""), path)
    with kit.open(path) as file:
        digest = measurements.digest_of(file)
    for store in measurements.of_run(tmp_path), measurements.shared():
        found = store.known(BLOCKS.label, digest)
        assert found.samples == (0.05, 0.05) and found.by == "07"
        assert store.known(peers.PEER, digest).median == 1 / 20


def test_a_busy_run_has_one_value_of_an_engine_and_a_command_measures_it_again(path, tmp_path, monkeypatch):
    """Page 09 measured all engines again on a busy machine, though it showed the ways of page 07."""
    monkeypatch.setattr(peers, "installed", lambda: [*SPEEDS.index])
    monkeypatch.setattr(peers, "compare", lambda *_, **__: SPEEDS.assign(others=1.9, gbps=[[9.0]] * 3))
    peers.of_run(SimpleNamespace(out=tmp_path, notebook="07", model=""), path)
    monkeypatch.setattr(peers, "compare_file", lambda *_, **__: SPEEDS.assign(others=0.0, speed=2.0))
    store = measurements.of_run(tmp_path)
    with kit.open(path) as file:
        assert {row.by for row in peers.readings(file, "09", store, busy=True).values()} == {"07"}
        assert {row.by for row in peers.readings(file, "09", store).values()} == {"09"}


def burn(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def burner():
    """A process that computes until it is killed, however long its test has to wait; it ends with this one."""
    return multiprocessing.get_context("spawn").Process(target=burn, args=(3600,), daemon=True)


def test_a_comparison_on_a_busy_machine_is_none(monkeypatch):
    """Threads of llama.cpp that spin starved beside other processes: "29.55 times llama.cpp's speed" was on an index."""
    busy = peers.beside(SPEEDS.assign(others=1.9))
    assert busy[peers.TIMES].isna().all() and (busy["reason"] == peers.BUSY_TOLD).all()
    assert "1.9 cores" in peers.told(busy) and "tok/s" not in peers.told(busy)
    assert peers.beside(SPEEDS)[peers.TIMES].notna().all()


def test_a_burner_beside_it_is_seen_and_its_own_engines_are_not():
    other = burner()
    other.start()
    try:
        while psutil.Process(other.pid).cpu_times().user < 0.3:
            time.sleep(0.05)
        inner = lambda: state.watched(lambda: burn(0.7), [psutil.Process(other.pid)])  # noqa: E731
        (_, without, _), others, disturbed = state.watched(inner)
    finally:
        other.kill()
    assert disturbed and others > state.BUSY and without < others - 0.1


def test_what_cannot_run_is_named(path, monkeypatch):
    monkeypatch.setattr(llama_cpp, "available", lambda: False)
    monkeypatch.delenv("IK_LLAMA_CPP", raising=False)
    monkeypatch.setitem(peers.ENGINES, "none", engines.Engine(None, missing=lambda: "not there"))
    names = ["llama.cpp, mmap", _engines.IK, "none", "none, another way"]
    reasons = peers.compare(path, names, prompt=[5], tokens=2).reason
    assert reasons["none"] == "none: not there" and reasons["none, another way"] == "see none"
    assert reasons["llama.cpp, mmap"] == "llama.cpp, mmap: not installed: pip install xllamacpp"
    assert reasons[_engines.IK] == "ik_llama.cpp: no build of ik_llama.cpp is named: set IK_LLAMA_CPP to its libllama.so"
    assert "llama.cpp, mmap" not in peers.installed() and "kit" in peers.installed()


def test_transformers_needs_memory_for_float32(path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(_engines, "memory_available", lambda: 1)
    with pytest.raises(ReportError, match=r"needs about .* 1 B are free"):
        peers.ENGINES["transformers"].start(path, 8)


@pytest.mark.slow
def test_an_engine_of_the_benchmarks_runs_in_a_process_of_its_own(path):
    pytest.importorskip("transformers")
    table = peers.compare(path, ["kit", "kit in transformers"], prompt=[5, 6, 7], tokens=4, rounds=1)
    assert (table.agree == 3).all() and not table.reason.any()


def test_a_process_that_dies_says_why(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"nothing")
    with pytest.raises(ReportError, match=r"kit: .*m\.gguf"):
        peers.Process("kit", tmp_path / "m.gguf", 8).ask(load=True)


@pytest.mark.timeout(20)
def test_a_process_may_say_more_than_a_pipe_holds(tmp_path, monkeypatch):
    talker = tmp_path / "python"
    talker.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('x' * 10**6)\nprint('[0.5, []]', flush=True)\ninput()")
    talker.chmod(0o755)
    monkeypatch.setattr(engines.sys, "executable", str(talker))
    process = peers.Process("kit", tmp_path, 8)
    process.close()
    assert process.imports == 0.5


def test_a_burner_beside_kit_explain_leaves_llama_cpp_out(path, tmp_path, monkeypatch, measured_load):
    """Its threads would spin and starve: it is not run, what the kit's ways took is marked, and the answer says so."""
    asked = []

    def compared(path, text, engines, share, **_):
        asked[:] = engines
        others = state.watched(lambda: burn(0.3))[1]
        return pd.DataFrame({"samples": [[20.0, 21.0, 22.0]] * len(engines), "others": others}, engines)

    monkeypatch.setattr(peers, "compare_file", compared)
    monkeypatch.setattr(peers, "installed", lambda: ["kit", "kit, int8 activations", peers.PEER])
    monkeypatch.setattr(llama_cpp, "available", lambda: True)
    burners = [burner() for _ in range(usable_cores())]
    for each in burners:
        each.start()
    try:
        while min(psutil.Process(each.pid).cpu_times().user for each in burners) < 0.2:
            time.sleep(0.05)
        with kit.open(path) as file:
            study = Study(file, lambda: MACHINE, memory=2 << 20, tokens=2)
            study.store = measurements.of_run(tmp_path)
            there, digest = answer.peer(study), measurements.digest_of(file)
    finally:
        for each in burners:
            each.kill()
    assert asked == ["kit", "kit, int8 activations"]
    assert {row.busy for row in study.engines.values()} == {True} and there is None
    kept = study.store.known(BLOCKS.label, digest)
    assert kept is None, "no other page reads what a busy machine gave"


def test_engines_have_a_share_of_time_and_give_way(path, monkeypatch):
    """On a busy machine they took 819 s behind one line: no engine starts and no third round begins after their share."""
    clock, asked = [0.0], []

    class Slow:
        def __init__(self, name, *given):
            clock[0] += 30.0
            self.name, self.imports, self.base, self.process = name, 30.0, 0, psutil.Process()

        def ask(self, steps=0, **request):
            clock[0] += 8.0
            asked.append(self.name) if steps else None
            return 1.0, [1] * (steps + 1)

        memory = mapped = lambda self, *path: 0
        close = lambda self: None  # noqa: E731

    monkeypatch.setattr(peers, "Process", Slow)
    monkeypatch.setattr(peers.time, "monotonic", lambda: clock[0])
    table = peers.compare(path, ["a", "b", "c"], [1], tokens=3, rounds=5, share=50.0)
    assert asked == ["a", "b"] * 3 and list(table.reason.str.contains("50 s")) == [False, False, True]
    asked.clear()
    peers.compare(path, ["a", "b", "c"], [1], tokens=3, rounds=5)
    assert asked == ["a", "b", "c"] * 5
