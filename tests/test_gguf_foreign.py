"""What is no GGUF file, no language model or no whole one says what it is and what to do, in one line."""

import gzip
import io
import json
import pickle
import re
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save
from test_gguf_reader import assemble, table_row, text

import kit
from kit.errors import GGUFError, KitWarning
from kit.gguf import foreign
from kit.gguf.reader import TensorInfo
from kit.gguf.sources import absolute
from kit.gguf.writer import write
from kit.lab.commands.cli import main
from kit.lab.synthetic.write import synthesize


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def written(folder: Path, data: bytes) -> Path:
    path = folder / "a.gguf"
    path.write_bytes(data)
    return path


def zipped() -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file)  # a zip file
    assert zipfile.is_zipfile(file)
    return file.getvalue()


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.gguf"))
    return file.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4369\n"
FOREIGN = {  # what lies at the path -> words of the error
    "HTML": (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", r"a web page \(HTML\)"),
    "HTML of old": (b"\n  <HTML><HEAD>", r"a web page \(HTML\)"),
    "XML": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>', "XML.*download the file itself again"),
    "LFS": (POINTER, "a Git LFS pointer.*git lfs pull"),
    "zip": (zipped(), "a PyTorch checkpoint.*convert_hf_to_gguf"),
    "pickle": (pickle.dumps({"w": 1}), "a pickled PyTorch checkpoint"),
    "safetensors": (save({"w": torch.ones(64, 64)}), "a safetensors file.*kit compress takes it"),
    "GGJT": (struct.pack("<II", 0x67676A74, 3) + bytes(64), "GGJT.*download the model as GGUF"),
    "GGMF": (struct.pack("<II", 0x67676D66, 1) + bytes(64), "GGMF"),
    "GGML": (struct.pack("<II", 0x67676D6C, 1) + bytes(64), "GGML"),
    "GGLA": (struct.pack("<II", 0x67676C61, 1) + bytes(64), "a LoRA adapter in GGLA"),
    "gzip": (gzip.compress(b"GGUF"), "compressed by gzip.*unpack it"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(40), "compressed by zstd"),
    "tar": (tar(), "a tar archive"),
    "zeros": (bytes(4096), "zeros: a download that reserved its space"),
    "an answer": (b'{"error": "Access to model x is restricted."}', "text that begins with .*Access to model x is restricted"),
    "a short answer": (b"Entry not found", "text that begins with 'Entry not found'.*download"),
    "noise": (b"\x9d\x01\xfe\xab" * 20, "not a GGUF file$"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_gguf_file_is_named(name, tmp_path):
    data, words = FOREIGN[name]
    path = written(tmp_path, data)
    with pytest.raises(GGUFError, match=rf"byte 0: magic b.*expected b'GGUF': this is .*{words}") as told:
        kit.open(path)
    assert str(path) in str(told.value) and "\n" not in str(told.value) and str(told.value).isprintable()
    assert run("inspect", path).stderr == f"kit: error: {told.value}\n"


@pytest.mark.parametrize("given, words", [
    ("https://huggingface.co/a/b-GGUF/resolve/main/c-Q4_K_M.gguf", "is a URL: name it hf://a/b-GGUF/c-Q4_K_M.gguf"),
    ("https://huggingface.co/a/b/blob/v2/sub/c.gguf?download=true", "is a URL: name it hf://a/b@v2/sub/c.gguf"),
    ("http://example.org/c.gguf", "is a URL: download it first"), ("s3://bucket/c.gguf", "is a URL: download it first"),
])  # fmt: skip
def test_a_url_that_was_typed_as_a_file_says_what_to_type(given, words):
    rest = ", then name the file (kit inspect and kit explain read its header)" * ("first" in words)
    for command in (["generate", "--tokens", "1"], ["reproduce", "--model"]):
        ran = run(*command, given)
        assert (ran.exit_code, ran.stderr) == (2, f"kit: error: {given}: {words}{rest}\n")
    assert absolute(given) == given


# --- no language model ----------------------------------------------------------------------------------------------


def invented(path: Path, metadata: dict, names: dict) -> Path:
    infos = [TensorInfo.new(name, "F32", shape) for name, shape in names.items()]
    return write(path, metadata, infos, [np.ones(info.shape, np.float32).view(np.uint8) for info in infos])


PAIR = {"blk.0.attn_q.weight.lora_a": (8, 64), "blk.0.attn_q.weight.lora_b": (64, 8)}
OTHERS = {  # name -> metadata, tensors, words of the error
    "lora": ({"general.architecture": "llama", "general.type": "adapter"}, PAIR, "a LoRA adapter.*export-lora"),
    "lora of old": ({"general.architecture": "llama"}, PAIR, "a LoRA adapter"),
    "flux": ({"general.architecture": "flux"}, {"double_blocks.0.img_attn.qkv.weight": (96, 32)}, "a model of images or video"),
    "clip": ({"general.architecture": "clip"}, {"v.blk.0.attn_q.weight": (32, 32)}, "image or audio part.*name the file"),
    "mmproj": ({"general.architecture": "clip", "general.type": "mmproj"}, {"mm.0.weight": (32, 32)}, "image or audio part"),
    "imatrix": ({"general.type": "imatrix"}, {"blk.0.attn_q.weight.in_sum2": (1, 64)}, "an importance matrix"),
    "unknown": ({"general.architecture": "vae"}, {"decoder.conv_in.weight": (8, 32)}, "is no language model.*neither layers"),
    "a vocabulary": ({"general.architecture": "llama"}, {}, "holds no weights"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_language_model_is_named_and_gets_no_speed(name, tmp_path):
    metadata, tensors, words = OTHERS[name]
    path = invented(tmp_path / "a.gguf", metadata, tensors)
    for command in ("explain", "generate --tokens 1", "perplexity", "explain --machine apple-m1-8gb", "reproduce --model"):
        ran = run(*command.split(), path)
        assert ran.exit_code == 2 and ran.stderr.count("\n") == 1, (command, ran.output)
        assert re.search(f"{path}: .*{words}", ran.stderr), (command, ran.stderr)
    shown = run("inspect", path)
    assert shown.exit_code == 0 and re.search(words, shown.stdout, re.DOTALL)


def test_a_language_model_is_one(tmp_path):
    with kit.open(synthesize(tmp_path / "a.gguf", "tiny-llama")) as file:
        assert foreign.no_language_model(file) == ""


# --- not whole ------------------------------------------------------------------------------------------------------


def test_data_of_another_type_than_the_table_says_is_an_error_as_in_llama_cpp(tmp_path):
    """Q8_0 data named Q4_0: the next tensor begins later than the named type ends; llama.cpp refuses with the same numbers."""
    path = synthesize(tmp_path / "a.gguf", "tiny-llama", "Q8_0")
    with kit.open(path) as file:
        first = min(file.tensors.values(), key=lambda info: info.offset)
        second = min((info for info in file.tensors.values() if info.offset > first.offset), key=lambda info: info.offset)
    assert first.qtype == "Q8_0"
    data = bytearray(path.read_bytes())
    row = data.index(first.name.encode()) + len(first.name) + 4 + 8 * len(first.shape)
    assert struct.unpack_from("<I", data, row) == (8,)
    struct.pack_into("<I", data, row, 2)  # Q4_0: 18 bytes in place of 34
    path.write_bytes(data)
    expected = first.elements // 32 * 18
    words = f"'{second.name}' has offset {second.offset - first.offset:,}, expected {expected:,}, where '{first.name}' ends"
    with pytest.raises(GGUFError, match=words):
        kit.open(path)


@pytest.mark.parametrize("offsets, words", [
    ((0, 64), r"'y' has offset 64, expected 32, where 'x' ends \(F32, 8\)"),
    ((32, 64), "'x' has offset 32, expected 0: the table"), ((32, 0), None), ((0, 32), None),
])  # fmt: skip
def test_bytes_that_belong_to_no_tensor_are_an_error(offsets, words, tmp_path):
    rows = [table_row(name, (8,), 0, offset) for name, offset in zip((b"x", b"y"), offsets, strict=True)]
    path = written(tmp_path, assemble(rows=rows, data=bytes(96)))
    if words:
        with pytest.raises(GGUFError, match=words):
            kit.open(path)
    else:
        kit.open(path).close()


@pytest.mark.parametrize("zeros, tells", [(0.5, True), (0.9, True), (0.002, False), (0, False)])
def test_zeros_at_the_end_are_a_warning_at_once(zeros, tells, tmp_path):
    """An aborted download of reserved space; rows of tokens that a vocabulary was padded with are none."""
    path = synthesize(tmp_path / "a.gguf", "tiny-llama")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - int(zeros * size))
        file.truncate(size)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        kit.open(path).close()
    assert [one.category for one in told] == [KitWarning] * tells
    if tells:
        assert "are zeros, from " in str(told[0].message) and "SHA-256" in str(told[0].message)
        ran = run("generate", path, "--tokens", "1", "-n", "1")
        assert ran.stderr.startswith(f"kit: warning: {path}: its last ")


def test_vectors_of_zeros_at_the_end_are_no_warning(tmp_path):
    """Biases that were never trained; a page of them is looked past."""
    infos = [TensorInfo.new("a.weight", "F32", (64, 64)), TensorInfo.new("a.bias", "F32", (4096,))]
    path = write(tmp_path / "a.gguf", {}, infos, [np.ones(16384, np.uint8), np.zeros(16384, np.uint8)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kit.open(path).close()


def shapes(*numbers):
    return text(b"comfy.gguf.orig_shape.w") + struct.pack(f"<IIQ{len(numbers)}i", 9, 5, len(numbers), *numbers)


def test_a_shape_that_comfyui_flattened_is_shown_and_can_be_had(tmp_path):
    """ComfyUI-GGUF stores what is no multiple of a block as rows of whole blocks, and the shape as metadata."""
    path = written(
        tmp_path, assemble([shapes(4, 2, 2, 3)], [table_row(b"w", (48,), 0, 0)], data=np.arange(48, dtype="f4").tobytes())
    )
    with kit.open(path) as file:
        assert file.original_shapes == {"w": (4, 2, 2, 3)}
        values = kit.dequantize(file.blocks("w"), "F32").reshape(file.original_shapes["w"])
        assert values[3, 1, 1, 2] == 47
    assert "4 x 2 x 2 x 3" in (shown := run("inspect", path, "--tensors").stdout) and "(stored as 48)" in shown
    assert json.loads(run("inspect", path, "--json").stdout)["tensor_table"][0]["original_shape"] == [4, 2, 2, 3]


@pytest.mark.parametrize("numbers", [(5, 2, 2, 3), (), (-4, -12)])
def test_a_shape_that_cannot_be_the_original_is_an_error(numbers, tmp_path):
    path = written(tmp_path, assemble([shapes(*numbers)], [table_row(b"w", (48,), 0, 0)], data=bytes(192)))
    with pytest.raises(GGUFError, match=r"'comfy\.gguf\.orig_shape\.w' is .*, but 'w' has 48 elements"):
        kit.open(path)


SPLIT = {"split.count": 2, "split.tensors.count": 2}


@pytest.mark.parametrize("second, words", [
    ({}, None), ({"general.architecture": "llama", "general.name": "A"}, None),
    ({"general.architecture": "qwen3"}, "is a part of another model than m-00001.*: 'general.architecture' is 'qwen3'"),
    ({"general.name": "B"}, "another model.*'general.name' is 'B', not 'A'"),
    ({"split.tensors.count": 3}, "another model.*'split.tensors.count' is 3, not 2"),
    ({"split.no": "1"}, "'split.no' is '1', expected 1"), ({"split.no": True}, "'split.no' is True, expected 1"),
    ({"split.count": 2.0}, "'split.count' is 2.0, expected 2"),
])  # fmt: skip
def test_a_part_of_another_model_is_seen_as_far_as_it_says_so(second, words, tmp_path):
    first = {"general.architecture": "llama", "general.name": "A", "split.no": 0}
    for number, own in enumerate((SPLIT | first, SPLIT | {"split.no": 1} | second), start=1):
        invented(tmp_path / f"m-0000{number}-of-00002.gguf", own, {f"blk.{number}.a": (8, 8)})
    if words:
        with pytest.raises(GGUFError, match=words):
            kit.open(tmp_path / "m-00001-of-00002.gguf")
    else:
        assert len(kit.open(tmp_path / "m-00001-of-00002.gguf").tensors) == 2
