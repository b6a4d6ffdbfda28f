"""The device of a run: how it reaches notebooks and records, one error without it; its findings, by the interpreter."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import device_worker as worker
import nbformat
import numpy as np
import papermill
import pytest
import torch
import yaml
from click.testing import CliRunner

import kit
from kit.codec.container import CompressedFile
from kit.codec.weights import CompressedWeights
from kit.lab.claims import records
from kit.lab.claims.runs import changes
from kit.lab.commands.cli import main
from kit.lab.compressor import compress
from kit.lab.measuring import machine
from kit.lab.measuring.gpu import Limits
from kit.lab.report import planning
from kit.lab.report import run as runs
from kit.lab.report.sweep import spec as specs
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.lab.synthetic.write import synthesize
from kit.system.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
TAKE_DEVICE = {"01_first_token", "03_cache_variants", "04_attention", "05_tile_decode", "06_compressed_inference",
               "07_memory_frontier"}  # fmt: skip
MISSING = r"cannot use --device cuda: (GPU|Triton): .+; .+"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


# --- one error -------------------------------------------------------------------------------------------------------


@without_gpu
def test_a_session_says_what_is_missing(tmp_path):
    with pytest.raises(kit.KitError, match=MISSING):
        kit.Session("05_tile_decode", profile="smoke", out=str(tmp_path / "run"), device="cuda")
    assert not (tmp_path / "run").exists()


@without_gpu
def test_reproduce_says_it_before_anything_runs(tmp_path):
    out = tmp_path / "run"
    answer = CliRunner().invoke(main, ["reproduce", "--profile", "smoke", "--device", "cuda", "--out", str(out)])
    assert answer.exit_code == 2 and len(answer.stderr.strip().splitlines()) == 1
    assert "cannot use --device cuda" in answer.stderr and not out.exists()


@without_gpu
def test_a_notebook_by_plain_papermill_says_it(tmp_path):
    given = {"profile": "smoke", "device": "cuda", "out": str(tmp_path)}
    source = str(NOTEBOOKS / "05_tile_decode.ipynb")
    with pytest.raises(papermill.PapermillExecutionError, match=MISSING):
        papermill.execute_notebook(source, str(tmp_path / "out.ipynb"), given, kernel_name="python3", progress_bar=False)


# --- the parameter ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_device_reaches_the_notebooks_that_take_it(device):
    jobs = planning.plan(runs.Request("smoke", device=device), NOTEBOOKS)
    assert {job.name for job in jobs if job.parameters.get("device") == device} == TAKE_DEVICE
    assert {job.name for job in jobs if "device" in job.parameters} == TAKE_DEVICE
    with pytest.raises(kit.KitError, match="use --device"):
        planning.plan(runs.Request("smoke", texts=("device=cuda",)), NOTEBOOKS)


def test_a_sweep_takes_it_as_a_parameter(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({"profile": "smoke", "notebooks": ["05"], "parameters": {"device": ["cpu", "cuda"]}}))
    assert [cell.settings["device"] for cell in specs.read(path, NOTEBOOKS)] == ["cpu", "cuda"]


def test_a_resumed_run_keeps_its_device(tmp_path):
    runs.start(tmp_path / "run", runs.Request("smoke", device="cuda"))
    assert runs.resume(tmp_path / "run", device=None).request.device == "cuda"
    with pytest.raises(kit.KitError, match="was run with --device 'cuda', not 'cpu'"):
        runs.resume(tmp_path / "run", device="cpu")
    state = tmp_path / "run" / "run.json"
    before = json.loads(state.read_text())
    del before["request"]["device"]
    state.write_text(json.dumps(before))
    assert runs.load(tmp_path / "run").request.device == "cpu", "a run from before there was a device"


def cell(name, id):
    return next(c for c in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells if c.id == id)


@pytest.mark.parametrize("name", sorted(TAKE_DEVICE))
def test_on_the_cpu_a_notebook_adds_one_line(name, tmp_path, capsys):
    lab = kit.Session(name, profile="smoke", out=str(tmp_path))
    exec(cell(name, "gpu-code").source, {"lab": lab})
    said = capsys.readouterr().out.splitlines()  # a busy machine says so in a line before it
    assert said[-1].startswith("device = cpu: not measured; `kit reproduce --device cuda` adds ")
    assert not (tmp_path / f"{name}.jsonl").read_text()


# --- records ---------------------------------------------------------------------------------------------------------


def test_limits_are_the_best_samples():
    names = [name for name in worker.LIMITS if name not in ("name", "memory_bytes")]
    limits = Limits.of(worker.LIMITS | {"samples": {name: [3.0, 5.0, 4.0] for name in names}})
    assert {name: getattr(limits, name) for name in names} == dict.fromkeys(names, 5.0) | {"launch_us": 3.0}
    assert limits.seconds_from_host(1e10) == limits.seconds_to_read(1e10) == limits.seconds_to_write(1e10) == 2


def test_records_say_where_they_were_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "of_run", machine.of_run)  # put back what the session invents in this process
    lab = worker.session(tmp_path, "05_tile_decode")
    for device, sample in (("cpu", 2.0), ("cuda", 1.0)):
        lab.record(quantity="q", unit="s", samples=[sample], device=device)
    on_cpu, on_device = records.read([lab.out / "05_tile_decode.jsonl"])
    assert on_cpu.parameters["device"] == "cpu" and "gpu" not in on_cpu.parameters
    assert (on_device.parameters["device"], on_device.parameters["gpu"]) == ("cuda", worker.LIMITS["name"])
    older = replace(on_cpu, parameters={key: on_cpu.parameters[key] for key in on_cpu.parameters if key != "device"})
    states = changes([older], [on_device])["state"]
    assert sorted(states) == ["only in A", "only in B"], "a GPU's figure is no change of the CPU's"
    assert list(changes([older], [on_cpu])["state"]) == ["same"]


# --- findings, interpreted -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def call():
    """``call(function, *args)`` runs a function of device_worker in the interpreting process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=worker.start) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A GGUF file of tiny-llama with one layer of 256 columns: K-quants, few programs."""
    geometry = replace(GEOMETRIES["tiny-llama"], layers=1, intermediate_size=256, heads=4, kv_heads=2)
    return synthesize(tmp_path_factory.mktemp("models") / "small.gguf", geometry)


def check(rows, count):
    """Check the number of records, that all are of the device, and that none is faster than its bound."""
    assert len(rows) == count
    for row in rows:
        assert row["parameters"]["device"] == "cuda" and row["parameters"]["gpu"] == worker.LIMITS["name"]
        if row["unit"] == "s" and row["samples"]:
            assert row["lower"] and row["lower"] < min(row["samples"])


@pytest.mark.slow
def test_first_token(call, small, tmp_path):
    table, rows = call(worker.first_token, small, tmp_path)
    assert (table["total, s"] > table["limit, s"]).all() and len(table) == 3
    check(rows, 4)
    assert [row["claim"] for row in rows if row["verdict"]] == ["first-token-preload"]


@pytest.mark.slow
def test_caches(call, small, tmp_path):
    table, rows = call(worker.caches, small, tmp_path)
    assert not [row for row in rows if row["status"] == "warned"], "logits as on the CPU, counts as in a replay"
    assert table.loc["Pinned", "byte hit rate"] > 0
    assert table.loc["no cache, no prefetch", "prefetched"] == 0 < table.loc["no cache", "prefetched"]
    assert table.loc["all kept", "byte hit rate"] == 1 and table.loc["LRU", "byte hit rate"] < 0.4
    check(rows, 6)


def test_decode(call, small, tmp_path):
    off, refused, points, table, rows = call(worker.decode, small, tmp_path)
    assert off < 1e-5
    assert "blocks take" in refused and "78.12 KiB" in refused
    assert [bool(missing) for _, missing in points] == [False, False, True, True]
    config = kit.Transformer(kit.Weights(kit.open(small))).config
    read = sum(t.nbytes for name, t in kit.open(small).tensors.items() if name != "token_embd.weight")
    embedding = kit.open(small).tensors["token_embd.weight"]
    read += embedding.nbytes // embedding.shape[0]  # one row
    assert points[0][0] == read + sum(layer.mixer.memory.held(1) for layer in config.layers)
    assert table["left out"].str.contains("of keys and values").tolist() == [False, False, True, True]
    check(rows, 4 + 2 + 4 + 1)
    verdicts = {(row["claim"], row["verdict"]) for row in rows if row["verdict"]}
    assert verdicts == {("blas-500", "impossible"), ("variance-45-1100", "impossible")}, "at 20 GB/s"


@pytest.mark.slow
def test_tiles(call, tmp_path):
    """One thread as report 004 has it, and a batch: each compares what it finds."""
    thread, table = call(worker.tiles, tmp_path)
    assert len(thread) == 1 and thread[0] > 0
    assert table["times the limit"].iloc[0] > 1 and table.index[0] == "one alone"


def test_frontier(call, small, tmp_path):
    table = call(worker.frontier, small, tmp_path)
    assert table["MiB held"].is_monotonic_increasing and table["predicted, s"].is_monotonic_decreasing
    assert (table["predicted, s"] < table["measured, s"]).all()
    rows = [
        row for row in records.read([tmp_path / "07_memory_frontier.jsonl"]) if row.quantity.startswith("a token on the dev")
    ]
    assert [row.median for row in rows] == table["measured, s"].tolist() and all(len(row.samples) == 1 for row in rows)


def tiny_compressed(folder, **changes):
    """A compressed model whose largest matrix is 272 x 16: the interpreter takes a step for every 128 values."""
    tiny = GEOMETRIES["tiny-llama"]
    shape = {"layers": 1, "hidden_size": 16, "intermediate_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 8} | changes
    source = synthesize(folder / "small.gguf", replace(tiny, vocabulary=replace(tiny.vocabulary, size=272), **shape))
    return compress(source, folder / "small.tiles.gguf")


@pytest.mark.slow
def test_tiles_on_the_device_give_the_cpus_logits(call, tmp_path):
    """A tied embedding: its rows come from tiles, too."""
    path = tiny_compressed(tmp_path, tied=True)
    weights = CompressedWeights(CompressedFile(path))
    model = kit.Transformer(weights, linear=weights.linear)
    cache = model.new_cache(8)
    right = [model.step(tokens, cache).numpy() for tokens in (worker.PROMPT, [2])]
    for ours, theirs in zip(call(worker.compressed, path, worker.PROMPT), right, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * theirs.std())


@pytest.mark.slow
def test_compressed_inference(call, tmp_path):
    path = tiny_compressed(tmp_path)
    weights = CompressedWeights(CompressedFile(path))
    right = kit.generate(kit.Transformer(weights, linear=weights.linear), worker.PROMPT, 2, stop_at_end=False).tokens
    tokens, seconds, held, passes = call(worker.compressed_finding, path)
    assert list(tokens) == right and len(seconds) == 2 and held > 0
    assert list(passes.index) == ["plain INT8", "tiles"] and (passes["times the least"] > 1).all()


def test_what_no_device_decodes_is_an_error(call, tmp_path):
    data = bytearray(tiny_compressed(tmp_path).read_bytes())
    info = kit.open(tmp_path / "small.tiles.gguf").tensors["blk.0.attn_q.weight.tiles"]
    data[info.offset + info.nbytes // 2] ^= 0x55
    (tmp_path / "damaged.gguf").write_bytes(data)
    assert "blk.0.attn_q.weight: tile 0 of 1" in call(worker.compressed_refusal, tmp_path / "damaged.gguf")
    compress(synthesize(tmp_path / "plain.gguf", "tiny-llama", mix="BF16"), tmp_path / "bf16.gguf", coding="bf16")
    assert "a GPU can decode only dense INT8 matrices" in call(worker.compressed_refusal, tmp_path / "bf16.gguf")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_notebooks_run_on_a_gpu(tmp_path):
    out, only = tmp_path / "run", [option for name in sorted(TAKE_DEVICE) for option in ("--only", name)]
    answer = CliRunner().invoke(main, ["reproduce", "--profile", "smoke", "--device", "cuda", "--out", str(out), *only])
    assert answer.exit_code == 0, answer.output
    for name in TAKE_DEVICE:
        assert "cuda" in {record.parameters["device"] for record in records.read([out / f"{name}.jsonl"])}
