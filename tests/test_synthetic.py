"""Synthetic files against independent readers: gguf-py, llama.cpp, tokenizers; and what happens when writing fails."""

import errno
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import kit
from kit.errors import GGUFError, ModelError
from kit.lab import profiles
from kit.lab.measuring import doctor
from kit.lab.synthetic import write as synthetic
from kit.lab.synthetic.encode import encode
from kit.lab.synthetic.geometry import GEOMETRIES, MIXES
from kit.lab.synthetic.write import cached_model, synthesize
from kit.system import files
from kit.system.paths import ROOT

TINY = [name for name in GEOMETRIES if name.startswith("tiny-")]


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("mix", MIXES)
def test_gguf_py_reads_what_the_table_says_and_weights_are_normal(tmp_path, name, mix):
    path = synthesize(tmp_path / "m.gguf", name, mix)
    expected = [spec[:3] for spec in GEOMETRIES[name].tensors(mix)]
    found = gguf.GGUFReader(path)
    assert [(t.name, t.tensor_type.name, tuple(map(int, t.shape[::-1]))) for t in found.tensors] == expected
    for tensor in found.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        if tensor.name.endswith("ssm_conv1d.weight"):
            assert tensor.tensor_type.name == "F32" and values.std() == pytest.approx(0.4, rel=0.1)
        elif tensor.name.endswith("ssm_a"):
            assert -10 < values.min() and values.max() < 0
        elif len(tensor.shape) > 1:
            assert abs(values.mean()) < 4 * 0.02 / values.size**0.5 + 1e-4
            assert values.std() == pytest.approx(0.02, rel=0.05) and 0.05 < np.abs(values).max() < 0.15
        elif tensor.name.endswith("norm.weight"):
            assert 0.7 < values.min() < 0.95 and 1.05 < values.max() < 1.3
        elif tensor.name.endswith("attn_sinks.weight"):
            assert 0.7 < values.min() < values.max() < 1.3
        else:
            assert tensor.name.endswith(".bias") and np.abs(values).max() < 0.1
    with kit.open(path) as file:
        assert all(np.array_equal(file.raw(t.name), t.data.reshape(-1).view(np.uint8)) for t in found.tensors)


@pytest.mark.parametrize("qtype, tolerance", [("F32", 0), ("F16", 2e-3), ("BF16", 8e-3), ("Q8_0", 0.02), ("Q6_K", 0.05),
                                              ("Q5_0", 0.1), ("Q4_K", 0.15), ("Q4_0", 0.2)])  # fmt: skip
def test_encode_is_a_quantizer(qtype, tolerance):
    """Error relative to the values' standard deviation; one wrongly packed bit makes it about 1."""
    values = 0.02 * np.random.default_rng(1).standard_normal((40, 512), np.float32)
    values[0], values[1] = 0, np.abs(values[1])
    decoded = gguf.quants.dequantize(encode(values, qtype), gguf.GGMLQuantizationType[qtype]).reshape(values.shape)
    assert np.sqrt(np.mean((decoded - values) ** 2)) <= tolerance * 0.02
    assert not decoded[0].any()


def test_a_tensor_is_the_same_whatever_surrounds_it(tmp_path):
    short, long = (kit.open(synthesize(tmp_path / f"{n}.gguf", "tiny-qwen2", layers=n)) for n in (8, 9))
    shared = [name for name in short.tensors if short.tensors[name].qtype == long.tensors[name].qtype]
    assert len(shared) > 60 and all(np.array_equal(short.raw(name), long.raw(name)) for name in shared)


def test_the_seed_decides_every_byte(tmp_path):
    first, again, other = (synthesize(tmp_path / f"{i}.gguf", "tiny-llama", seed=seed) for i, seed in enumerate((3, 3, 4)))
    assert first.read_bytes() == again.read_bytes()
    first, other = kit.open(first), kit.open(other)
    assert not any(np.array_equal(first.raw(name), other.raw(name)) for name in first.tensors)
    assert len({first.raw(name).tobytes() for name in first.tensors}) == len(first.tensors)


def test_no_two_rows_of_the_embedding_are_equal(tmp_path):
    """Equal rows would be equal logits, and greedy decoding a matter of chance."""
    file = kit.open(synthesize(tmp_path / "m.gguf", "tiny-granite"))
    assert len(np.unique(file.blocks("token_embd.weight"), axis=0)) == 512


def test_a_large_tensor_is_a_stream(tmp_path):
    """qwen2.5's embedding, 545 MB in float32, with rows that are not whole units, is never in memory."""
    spec = next(s for s in GEOMETRIES["qwen2.5-0.5b"].tensors("Q4_K_M") if s.name == "token_embd.weight")
    tracemalloc.start()
    nbytes = sum(len(chunk) for chunk in synthetic._stream(b"", [spec], GEOMETRIES["qwen2.5-0.5b"], 0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert nbytes == spec.nbytes > 140_000_000 and peak < 20_000_000


def test_rope_factors_are_those_of_the_model():
    row = GEOMETRIES["llama-3.1-8b"]
    spec = next(spec for spec in row.tensors(layers=1) if spec.name == "rope_freqs.weight")
    factors = np.frombuffer(b"".join(synthetic._stream(b"", [spec], row, 0)), "<f4")
    assert factors.shape == spec.shape == (64,) and factors[0] == 1 and factors[-1] == 8


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("failure, raised, message", [
    (OSError(errno.ENOSPC, "No space left on device"), GGUFError, r"m\.gguf: cannot be written: No space left"),
    (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
])  # fmt: skip
def test_a_failure_leaves_nothing_half_written(tmp_path, monkeypatch, failure, raised, message):
    (tmp_path / "m.gguf").write_bytes(b"as it was")

    def fail(values, qtype):
        raise failure

    monkeypatch.setattr(synthetic, "encode", fail)
    with pytest.raises(raised, match=message):
        synthesize(tmp_path / "m.gguf", "tiny-llama")
    assert leftovers(tmp_path) == ["m.gguf"] and (tmp_path / "m.gguf").read_bytes() == b"as it was"


def test_a_disk_too_small_is_seen_before_anything_is_written(tmp_path, monkeypatch):
    usage = files.shutil.disk_usage(tmp_path)._replace(free=500_000_000)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(GGUFError, match=r"m\.gguf: needs 4\.60 GiB, but .* has 476\.8 MiB free; ask for fewer layers"):
        synthesize(tmp_path / "m.gguf", "granite-3.3-8b")
    assert leftovers(tmp_path) == []


def test_a_cached_model_is_written_once(tmp_path):
    folder = tmp_path / "data" / "models"
    path = cached_model("tiny-llama", "Q8_0", layers=1, folder=folder)
    before = path.stat()
    assert cached_model("tiny-llama", "Q8_0", layers=1, folder=folder) == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino
    others = [cached_model("tiny-llama", "Q8_0", 2, 0, folder), cached_model("tiny-llama", "F16", 1, 0, folder),
              cached_model("tiny-llama", "Q8_0", 1, 1, folder), cached_model("tiny-qwen3", "Q8_0", 1, 0, folder)]  # fmt: skip
    assert len({path, *others}) == 5
    assert cached_model("tiny-llama", "Q8_0", None, 0, folder) == others[0]
    with pytest.raises(ModelError, match="'nope'"):
        cached_model("nope", folder=folder)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_vocabulary_has_exactly_the_models_size(name):
    row = GEOMETRIES[name]
    keys = row.vocabulary.metadata()
    tokens = keys["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == len(keys["tokenizer.ggml.token_type"]) == row.vocabulary.size
    assert row.tensors(layers=1)[0].shape[0] == len(tokens)
    for token, text in row.vocabulary.special.items():
        assert tokens[token] == text and keys["tokenizer.ggml.token_type"][token] in (2, 3)
    for which in ("bos", "eos"):
        assert tokens[keys[f"tokenizer.ggml.{which}_token_id"]] in row.vocabulary.special.values()


def test_the_merges_make_words_of_bytes():
    """Read by the library `tokenizers`: a common word is one token, and every byte can be written."""
    keys = GEOMETRIES["granite-3.3-8b"].vocabulary.metadata()
    tokens = keys["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoded = tokenizer.encode("The capital of France is é\x00")
    assert encoded.tokens[:5] == ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"] and len(encoded.tokens) == 9


@pytest.mark.parametrize("name", TINY)
def test_llama_cpp_loads_the_file_and_computes_logits(tmp_path, name):
    import llama_cpp  # this folder's; skips, and says why, where xllamacpp is not installed

    path = synthesize(tmp_path / "m.gguf", name)
    logits = llama_cpp.logits(path, [5, 6, 7], 512)
    assert logits.shape == (3, 512) and np.isfinite(logits).all() and logits.std() > 0.01
    (ids,) = llama_cpp.tokenize(path, [b" the of and"])
    tokens = kit.open(path).metadata["tokenizer.ggml.tokens"]
    words = [tokens[token].lstrip("Ġ▁") for token in ids]
    assert [word for word in words if word.isalpha()] == ["the", "of", "and"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(GGUFError, match=r"there is no folder .*nowhere"):
        synthesize(Path(tmp_path, "nowhere", "m.gguf"), "tiny-llama")


@pytest.mark.parametrize("name", ["quick", "full"])
def test_a_profile_says_the_disk_that_its_models_take(name):
    """README said 3 GB, the profile 2: the models of quick take 4.3. Page 01 runs when only its own is there, and needs room
    for its float32 weights."""
    given = profiles.get(name).models.items()
    cut = {stands: replace(GEOMETRIES[geo], layers=layers or GEOMETRIES[geo].layers) for stands, (geo, layers) in given}
    models = sum(spec.nbytes for shape in cut.values() for spec in shape.tensors("Q4_K_M"))
    first = cut["granite-3.3-8b"].tensors("Q4_K_M")
    needed = max(models, sum(spec.nbytes + 4 * spec.elements for spec in first)) / 1e9
    said = float(re.search(r"([\d.]+) GB of disk", profiles.get(name).cost)[1])
    assert needed < said < 1.25 * needed
    if name == "quick":
        assert f"{said:g} GB of disk" in (ROOT / "README.md").read_text(encoding="utf-8") and doctor._QUICK_DISK == said * 1e9
