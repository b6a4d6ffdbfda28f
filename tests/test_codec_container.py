"""Compressed models: written from GGUF and safetensors, whole or not at all; verified; bfloat16 without loss."""

import json
import re
import resource
from contextlib import contextmanager

import gguf
import model_files
import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.codec.codings import pack, quantize, unpack
from kit.codec.container import CompressedFile
from kit.errors import CodecError, ModelError
from kit.lab.commands.cli import main
from kit.lab.compressor import compress, verify
from kit.lab.synthetic.write import synthesize


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("codec") / "tiny.gguf", "tiny-llama")


@pytest.fixture(scope="module")
def packed(source):
    return compress(source, source.with_name("tiny.tiles.gguf"))


def bf16_file(path, weight):
    safetensors.torch.save_file({"model.layers.0.mlp.up_proj.weight": weight, "model.norm.weight": torch.ones(8)}, path)
    return path


# ---- INT8


@given(st.integers(0, 2**32 - 1), st.sampled_from(["row", "tensor"]))
@settings(max_examples=20, deadline=None)
def test_quantize_is_round_to_nearest_of_absmax(seed, per):
    weights = np.random.default_rng(seed).normal(0, 1, (7, 33)).astype(np.float32)
    values, scales = quantize(torch.from_numpy(weights), per=per)
    most = np.abs(weights).max(axis=1 if per == "row" else None, keepdims=True)
    assert np.allclose(scales, np.broadcast_to(most, (7, 1))[:, 0] / 127, rtol=1e-6)
    assert np.abs(weights - values * scales[:, None]).max() <= 0.5001 * scales.max()
    assert (np.abs(values).max(axis=1) == 127).all() if per == "row" else np.abs(values).max() == 127


def test_quantize_zeros_and_what_no_float_can_scale():
    values, scales = quantize(torch.tensor([[0.0, 0.0], [1e-44, -1e-44]]))
    assert not values.any() and np.array_equal(scales, [1, 1])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_no_number_is_named(wrong):
    weights = torch.zeros(4, 5)
    weights[2, 3] = wrong
    with pytest.raises(CodecError, match=r"attn_q.*row 2, column 3 is"):
        quantize(weights, "blk.0.attn_q.weight")


# ---- bfloat16


@given(st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 40), st.integers(1, 300)), st.booleans())
@settings(max_examples=20, deadline=None)
def test_bf16_keeps_every_bit(seed, shape, any_bits):
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2**16, shape, np.uint16)  # NaN, infinities, subnormals and all
    if not any_bits:
        bits = torch.from_numpy(random.normal(0, 0.02, shape)).bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(unpack(pack("bf16", bits.view(np.uint8), "BF16")).view(torch.uint16).numpy(), bits)


def test_bf16_takes_about_70_percent():
    bits = torch.randn(512, 1024).mul_(0.02).bfloat16().view(torch.uint16).numpy()
    assert 0.6 < pack("bf16", bits.view(np.uint8), "BF16").nbytes / bits.nbytes < 0.7


# ---- the container


def test_a_compressed_gguf_holds_the_quantized_weights(source, packed):
    with kit.open(source) as original, CompressedFile(packed) as file:
        assert file.tensors.keys() == original.tensors.keys()
        assert {k: v.shape for k, v in file.tensors.items()} == {k: v.shape for k, v in original.tensors.items()}
        assert original.metadata.items() <= file.metadata.items() and file.metadata["kit.codec.version"] == 1
        assert file.gguf.tensors["blk.1.ffn_up.weight.scales"].qtype == "F32"
        assert len(file.matrices) == 15  # 7 a layer and the output
        for name, matrix in file.matrices.items():
            values, scales = quantize(kit.dequantize(original.blocks(name), original.tensors[name].qtype))
            assert np.array_equal(unpack(matrix).numpy(), values) and np.array_equal(matrix.beside, scales)
        for name in file.tensors.keys() - file.matrices.keys():
            assert np.array_equal(file.blocks(name), original.blocks(name))
        assert sum(matrix.nbytes for matrix in file.matrices.values()) < sum(
            original.tensors[name].elements for name in file.matrices
        )


def test_threads_write_the_same_file(source, packed, tmp_path):
    assert compress(source, tmp_path / "two.gguf", threads=2).read_bytes() == packed.read_bytes()


def test_tied_output_and_experts_are_linear_layers(tmp_path):
    path = synthesize(tmp_path / "moe.gguf", "tiny-qwen3moe")
    packed = compress(path, tmp_path / "moe.tiles.gguf")
    with CompressedFile(packed) as file, kit.open(path) as original:
        assert ("token_embd.weight" in file.matrices) == ("output.weight" not in original.tensors)
        stack = next(name for name in original.tensors if "_exps" in name)
        assert f"{stack}[1]" in file.matrices
        assert file.tensors[stack].shape == original.tensors[stack].shape
    verify(packed, source=path)


@pytest.mark.parametrize("coding", ["int8", "bf16"])
def test_a_compressed_safetensors_file(tmp_path, coding):
    """The values of round to nearest in eight bits, and every bit of bfloat16."""
    weight = torch.randn(40, 24)
    weight = weight.bfloat16() if coding == "bf16" else weight.half()
    path = bf16_file(tmp_path / "model.safetensors", weight)
    packed = compress(path, tmp_path / "out.gguf", coding=coding)
    assert verify(packed, source=path) == (3, 1)
    with CompressedFile(packed) as file:
        unpacked = unpack(file.matrices["model.layers.0.mlp.up_proj.weight"])
    assert torch.equal(unpacked, weight if coding == "bf16" else torch.as_tensor(quantize(weight)[0]))


@pytest.mark.parametrize("coding", ["int8", "bf16"])
def test_nan_in_a_file(tmp_path, coding):
    weight = torch.randn(40, 24).bfloat16()
    weight[3, 4] = float("nan")
    path = bf16_file(tmp_path / "model.safetensors", weight)
    with pytest.raises(CodecError, match=r"up_proj\.weight"):
        compress(path, tmp_path / "out.gguf", coding)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("tensors, coding, message", [
    ({"up.weight": torch.zeros(0, 4)}, "int8", "empty"), ({"up.weight": torch.zeros(4, 4)}, "bf16", "use int8"),
    ({"up.weight": torch.zeros(4, 4)}, "zip", "int8, bf16"), ({"norm.weight": torch.zeros(4)}, "int8", "nothing to compress"),
    ({"bias": torch.zeros(4, dtype=torch.bool)}, "int8", "BOOL"),
])  # fmt: skip
def test_files_that_cannot_be_compressed(tmp_path, tensors, coding, message):
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CodecError, match=message):
        compress(tmp_path / "model.safetensors", tmp_path / "out.gguf", coding)
    assert not (tmp_path / "out.gguf").exists()


@given(st.binary(max_size=100))
@settings(max_examples=30, deadline=None)
def test_any_bytes_are_no_safetensors(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CodecError, match=r"model\.safetensors"):
        compress(path, path.with_suffix(".gguf"))


def test_files_that_are_not_ours(source, packed, tmp_path):
    with pytest.raises(CodecError, match="is not a compressed model"):
        CompressedFile(source)
    with pytest.raises(CodecError, match="compressed already"):
        compress(packed, tmp_path / "again.gguf")
    with pytest.raises(CodecError, match="no folder"):
        compress(source, tmp_path / "nowhere" / "out.gguf")


def test_a_container_without_checksums(packed, tmp_path):
    path = tmp_path / "none.gguf"
    path.write_bytes(packed.read_bytes().replace(b"kit.codec.crc32", b"kit.codec.crc33"))
    with pytest.raises(CodecError, match=r"none\.gguf: 0 checksums for \d+ tensors"):
        verify(path)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_damaged_container_is_a_kit_error(packed, tmp_path_factory, data):
    """With any byte changed, verify raises, or the byte is padding."""
    content = bytearray(packed.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "tiny.gguf"
    path.write_bytes(content)
    try:
        verify(path)
    except kit.KitError:
        return
    with CompressedFile(path) as file, CompressedFile(packed) as right:
        for name, matrix in right.matrices.items():
            if name in file.matrices:  # a name may have changed
                assert torch.equal(unpack(file.matrices[name]), unpack(matrix))


@contextmanager
def full_disk(nbytes):
    """Limit the size of files, to simulate a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_leaves_what_was_there(source, tmp_path):
    out = tmp_path / "out.gguf"
    out.write_bytes(b"before")
    with full_disk(300_000), pytest.raises(CodecError, match=r"out\.gguf: cannot be written"):
        compress(source, out)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.gguf"] and out.read_bytes() == b"before"


# ---- the commands


def test_compress_and_verify_by_command(source, tmp_path):
    out = str(tmp_path / "out.gguf")
    result = CliRunner().invoke(main, ["compress", str(source), "-o", out])
    assert result.exit_code == 0 and "15 matrices, 22 tiles" in result.output, result.output
    assert CliRunner().invoke(main, ["compress", str(source), "-o", out]).exit_code == 2  # it exists
    result = CliRunner().invoke(main, ["codec", "verify", out, "--source", str(source), "--decoder", "scalar-table"])
    assert result.exit_code == 0 and "15 matrices" in result.output
    result = CliRunner().invoke(main, ["codec", "verify", out, "--decoder", "fast"])
    assert result.exit_code == 2 and "scalar-table" in result.output


@pytest.mark.parametrize("spelling", ["itself", "another spelling", "link", "hard link", "a link as input"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_model_is_not_replaced_by_its_lossy_copy(source, tmp_path, spelling, force):
    model, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    model.write_bytes(source.read_bytes())
    if "link" in spelling:
        (other.hardlink_to if spelling == "hard link" else other.symlink_to)(model)
    pair = {
        "itself": (model, model), "another spelling": (model, f"{tmp_path}/../{tmp_path.name}/model.gguf"),
        "a link as input": (other, model),
    }.get(spelling, (model, other))  # fmt: skip
    result = CliRunner().invoke(main, ["compress", str(pair[0]), "-o", str(pair[1]), *force])
    assert result.exit_code == 2 and "is the input itself" in result.output and result.output.count("\n") == 1
    assert model.read_bytes() == source.read_bytes()


def test_no_part_of_a_split_model_is_replaced(source, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=8)
    with kit.open(source) as file:
        for name, info in list(file.tensors.items())[:20]:
            writer.add_tensor(name, file.blocks(name), raw_dtype=gguf.GGMLQuantizationType[info.qtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("model-*.gguf"))
    before = [part.read_bytes() for part in parts]
    result = CliRunner().invoke(main, ["compress", str(parts[0]), "-o", str(parts[1]), "--force"])
    assert result.exit_code == 2 and f"{parts[1]}: is the input itself" in result.output
    assert [part.read_bytes() for part in parts] == before and len(parts) > 1


def test_a_compressed_model_runs_and_is_shown(source, packed):
    """`kit generate`, perplexity and inspect take it; the tokens are those of CompressedWeights."""
    invoke = lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))  # noqa: E731
    weights = kit.codec.CompressedWeights(kit.codec.CompressedFile(packed), kit.HashMap())
    right = kit.generate(kit.Transformer(weights), [1, 5, 9], 6, stop_at_end=False).tokens
    for cache in ([], ["--cache", "none"], ["--cache", "lru:1MiB"]):
        told = invoke("generate", packed, "--tokens", "1,5,9", "-n", 6, "--json", "--ignore-end", *cache)
        assert json.loads(told.stdout)["tokens"] == right, told.output
        assert json.loads(told.stdout)["linear"] == "compressed tiles"
    facts = json.loads(invoke("perplexity", packed, "--tokens", 64, "--json").stdout)
    plain = json.loads(invoke("perplexity", source, "--tokens", 64, "--json", "--dtype", "int8").stdout)
    assert facts["perplexity"] == pytest.approx(plain["perplexity"], rel=1e-3)
    shown = invoke("inspect", packed).output
    assert re.search(r"int8 tiles +15 +1\.311 M", shown) and "I8" not in shown and "tiles    " in shown


@pytest.mark.parametrize(
    "command",
    [["generate", "--tokens", "1", "--linear", "fused"], ["generate", "--tokens", "1", "--backend", "reference"],
     ["perplexity", "--dtype", "float16"], ["perplexity", "--linear", "fused"]],
)  # fmt: skip
def test_what_changes_nothing_of_a_compressed_model_is_refused(packed, command):
    result = CliRunner().invoke(main, [command[0], str(packed), *command[1:]])
    assert result.exit_code == 2 and re.search("on a compressed model|model is compressed", result.stderr)


@pytest.mark.parametrize("command", [["explain"], ["exactness"], ["reproduce", "--only", "08", "--model"]])
def test_what_wants_blocks_refuses_a_compressed_model_by_its_name(packed, tmp_path, command):
    out = ["--out", str(tmp_path / "run")] if "reproduce" in command else []
    result = CliRunner().invoke(main, [*command, str(packed), *out])
    assert result.exit_code == 2 and "is a compressed model (kit compress)" in result.stderr, result.output
    assert result.stderr.count("\n") == 1
    with pytest.raises(ModelError, match=r"is a compressed model.*kit\.codec\.CompressedWeights"):
        kit.Weights(kit.open(packed))
    with pytest.raises(ModelError, match="is a compressed model"):
        kit.hf.load(packed)


def test_verify_against_another_source(packed, tmp_path):
    other = synthesize(tmp_path / "other.gguf", "tiny-llama", seed=1)
    with pytest.raises(CodecError, match="the unpacked values differ"):
        verify(packed, source=other)


@pytest.mark.parametrize("quant, larger", [("Q4_K_M", True), ("F32", False)])
def test_a_result_that_is_larger_than_the_file_says_so(tmp_path, quant, larger):
    source, out = model_files.write(tmp_path, "tiny-llama", quant), tmp_path / "tiles.gguf"
    result = CliRunner().invoke(main, ["compress", str(source), "-o", str(out)])
    assert result.exit_code == 0 and (out.stat().st_size > source.stat().st_size) == larger
    assert ("The result is larger" in result.stderr) == larger


@pytest.mark.parametrize("coding, mix", [("int8", "F32"), ("bf16", "BF16")])
def test_a_big_endian_copy_of_a_compressed_model_gives_its_logits(tmp_path, coding, mix):
    """Scales were read in the other order: logits of 1e30 without a word."""
    from kit.codec import CompressedWeights

    small = compress(model_files.write(tmp_path, "tiny-llama", mix), tmp_path / "tiles.gguf", coding=coding)
    read, big = gguf.GGUFReader(small), tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(big, "llama", endianess=gguf.GGUFEndian.BIG)
    for field in list(read.fields.values())[3:]:
        if field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if field.types[1:] else None)
    for tensor in read.tensors:
        data = np.array(tensor.data)
        bits = data.view(np.uint16) if tensor.tensor_type == gguf.GGMLQuantizationType.BF16 else data
        writer.add_tensor(tensor.name, bits, raw_dtype=tensor.tensor_type)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()

    def logits(path):
        model = kit.Transformer(CompressedWeights(CompressedFile(path)))
        cache = model.new_cache(8)
        return torch.stack([model.step([5, 6, 7], cache), model.step([8], cache)])

    assert CompressedFile(big).byteorder == "big" and torch.equal(logits(big), logits(small))
    assert verify(big) == verify(small)
