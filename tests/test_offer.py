"""kit generate's last line: what int8 activations would give, where it was measured that they gain and what they lose."""

import json

import model_files
import pytest
from click.testing import CliRunner

import kit
from kit.lab.commands.cli import main
from kit.lab.explaining import offer
from kit.lab.measuring import measurements
from kit.lab.predicting import quality
from kit.lab.predicting.ways import BLOCK_WAYS, BLOCKS

KL = {"kl": 0.018, "kl_error": 0.0004}


@pytest.fixture
def model(tmp_path, monkeypatch):
    """An open file with a tokenizer, and a models folder of its own."""
    monkeypatch.setenv("KIT_MODELS", str(tmp_path / "models"))
    return kit.open(model_files.write(tmp_path, "tiny-llama"))


def measured(monkeypatch, file, rows, exact=0.05, rounded=0.04, others=0.0, **more):
    """Qualities and speeds as explain and page 07 keep them, whose processes set torch's variables, as commands do."""
    kit.tune_torch()
    monkeypatch.setattr(quality, "kept", lambda file: rows)
    for way, seconds in ((BLOCKS, exact), (BLOCK_WAYS[1], 0.045), (BLOCK_WAYS[-1], rounded)):
        key = way.label, measurements.digest_of(file), (seconds,) * 3, "s", measurements.settings(), others
        measurements.shared().add(measurements.Reading(*key, **more))


BOTH = {"int8 activations": KL, "llama.cpp, mmap 0.3": KL | {"kl": 0.0177}}


def test_it_is_said_with_its_measurements(model, monkeypatch):
    measured(monkeypatch, model, BOTH)
    said = offer.faster(model)
    assert said.startswith("--linear fused-int8 decodes 1.25 times as fast here (measured on 20")
    assert said.count("0.018 ± 0.0004") == 2 and "llama.cpp" in said
    measurements.shared().add(measurements.Reading(f"{measurements.QUALITY}float16", "any file", (0.0,), "nats"))
    command = ["generate", str(model.path), "--tokens", "1,2", "-n", "3"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0 and done.stderr.splitlines()[-1] == f"faster       {said}"
    done = CliRunner().invoke(main, [*command, "--linear", "fused-int8", "--json"])
    assert json.loads(done.stdout)["faster"] == ""


@pytest.mark.parametrize("rows, times", [
    ({}, {}), ({"int8 activations": KL}, {}), ({"llama.cpp, mmap 0.3": KL}, {}),
    (BOTH | {"int8 activations": KL | {"kl": 0.03}}, {}), (BOTH, {"rounded": 0.049}), (BOTH, {"others": 1.0}),
    (BOTH, {"machine": "another"}),
], ids=["nothing measured", "no peer", "no int8", "loses more", "gains nothing", "on a busy machine", "elsewhere"])  # fmt: skip
def test_it_is_not_said(model, monkeypatch, rows, times):
    measured(monkeypatch, model, rows, **times)
    assert offer.faster(model) == ""


def test_where_int8_loses_more_than_llama_cpp_int16_is_said(model, monkeypatch):
    sixteen = {"int16 activations": KL | {"kl": 4.7e-7, "kl_error": 4e-8}}
    measured(monkeypatch, model, BOTH | {"int8 activations": KL | {"kl": 0.03}} | sixteen)
    assert offer.faster(model).startswith("--linear fused-int16 decodes 1.11 ")
