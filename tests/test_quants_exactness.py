"""The table of exactness and its command: right is told from wrong, on random blocks and on a file's own."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import kit
from kit.cpu import dequantize as cpu
from kit.cpu import simd
from kit.gguf import writer
from kit.gguf.formats import FORMATS
from kit.gguf.reader import TensorInfo
from kit.lab.commands.cli import main
from kit.lab.exactness import exactness, random_blocks, sample
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.lab.synthetic.write import synthesize
from kit.quants import reference


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("model") / "tiny.gguf", GEOMETRIES["tiny-llama"], layers=1)


@pytest.fixture
def one_step_off(monkeypatch):
    """A cpu backend whose first number is the next one up."""
    run = cpu.run

    def wrong(blocks, format, out):
        run(blocks, format, out)
        flat = out.view(-1)
        flat[0] = torch.nextafter(flat[0], torch.tensor(torch.inf, dtype=out.dtype))

    monkeypatch.setattr(cpu, "run", wrong)


def test_equal_in_every_tier_that_runs():
    table = exactness(["Q4_0", "F16"], dtypes=["float32", "float16"], tiers=simd.available())
    assert list(table.columns) == ["qtype", "backend", "tier", "dtype", "weights", "equal", "ulp", "relative"]
    assert table.equal.all() and (table.ulp == 0).all() and (table.relative == 0).all()
    assert set(table.tier) == set(simd.available()) and len(table) == 4 * len(simd.available())
    assert table.set_index("qtype").weights.loc["Q4_0"].iloc[0] == 64 * 32


@pytest.mark.parametrize("dtype, relative", [("float32", 2**-23), ("float16", 2**-10), ("bfloat16", 2**-7)])
def test_one_step_off_is_one_ulp(one_step_off, dtype, relative):
    wrong = exactness(["Q4_K"], dtypes=[dtype]).iloc[0]
    assert not wrong.equal and wrong.ulp == 1 and 0 < wrong.relative <= relative


def test_the_sign_of_zero_and_nan_count(monkeypatch):
    blocks = {"F32": np.zeros((1, 4), np.uint8)}
    for value, ulp, relative in ((-0.0, 0, 0), (float("nan"), 0x7FC00000, float("inf")), (2.0, 2**30, 2)):
        monkeypatch.setattr(cpu, "run", lambda blocks, format, out, value=value: out.fill_(value))
        row = exactness(blocks=blocks, dtypes=["float32"]).iloc[0]
        assert not row.equal and row.ulp == ulp and row.relative == relative


@pytest.mark.parametrize("name", sorted(reference.FORMATS))
def test_random_blocks_hold_no_nan_and_no_infinity(name):
    blocks = random_blocks(name, 500)
    assert blocks.shape == (500, FORMATS[name].block_bytes)
    assert kit.dequantize(blocks, name, backend="reference").isfinite().all()
    assert len(np.unique(blocks)) > 200  # all the rest is random


def test_sample_takes_rows_of_every_tensor(model):
    with kit.open(model) as file:
        blocks = sample(file, rows=2)
        wanted = {}
        for info in file.tensors.values():
            rows = min(2, info.shape[0]) if len(info.shape) > 1 else 1
            wanted[info.qtype] = wanted.get(info.qtype, 0) + rows * info.shape[-1]
        counts = {name: len(found) * FORMATS[name].block_elements for name, found in blocks.items()}
    assert counts == wanted and len(counts) > 1


def test_command_on_a_file(model, tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_MODELS", str(tmp_path))
    done = CliRunner().invoke(main, ["exactness", str(model), "--json", "--quality", "16"])
    told = json.loads(done.stdout)
    assert {row["precision"]: row["kl"] > 0 for row in told["quality"]}.items() >= {
        "float32": False,
        "INT8 tiles": True,
    }.items()
    text = CliRunner().invoke(main, ["exactness", str(model), "--quality", "16"]).stdout
    assert all(f"{row['perplexity']:.2f} ± " in text for row in told["quality"]) and "--kv q8_0" in text
    rows = told["exactness"]
    assert done.exit_code == 0 and {row["dtype"] for row in rows} == {"float32", "float16", "bfloat16"}
    assert {row["qtype"] for row in rows} >= {"Q4_K", "F32"} and all(row["equal"] for row in rows)


def test_formats_that_are_not_compared_are_named(tmp_path):
    specs = [TensorInfo.new("blk.0.a.weight", "Q2_0", (4, 64)), TensorInfo.new("blk.0.b.weight", "Q8_0", (4, 32))]
    blocks = [random_blocks(spec.qtype, 4) for spec in specs]
    path = writer.write(tmp_path / "some.gguf", {"general.architecture": "llama"}, specs, blocks)
    done = CliRunner().invoke(main, ["exactness", str(path), "--quality", "0", "--json"])
    told = json.loads(done.stdout)
    assert (
        done.exit_code == 1 and told["not_compared"] == ["Q2_0, tensors: 1"] and all(row["equal"] for row in told["exactness"])
    )


def test_command_fails_when_something_differs(one_step_off, model):
    done = CliRunner().invoke(main, ["exactness", str(model), "--quality", "0"])
    assert done.exit_code == 1 and "1 ulp" in done.stdout


@pytest.mark.parametrize("arguments, says", [
    (["--tier", "avx9"], "cannot run the SIMD tier 'avx9'"), (["--backend", "gpu"], "backend 'gpu' is not known"),
    (["none.gguf"], "none.gguf"),
])  # fmt: skip
def test_command_errors(arguments, says):
    done = CliRunner().invoke(main, ["exactness", *arguments])
    assert done.exit_code == 2 and says in done.output and "Traceback" not in done.output
