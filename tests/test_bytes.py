"""The bytes that a token reads, by `kit explain` and `kit generate`, against the sum of what llama.cpp's graph reads."""

import json
import re
import struct
from contextlib import nullcontext
from itertools import cycle

import family_files
import hf_files
import kind_files
import llama_cpp
import model_files
import numpy as np
import pytest
from click.testing import CliRunner
from family_files import File, H, V
from gguf.constants import GGML_QUANT_SIZES
from invented import MACHINE

import kit
from kit.errors import ModelError
from kit.gguf import writer
from kit.gguf.reader import TensorInfo
from kit.lab.commands import cli
from kit.lab.exactness import random_blocks

KEYS = r"blk\.[345]\.attn_(k|v|k_norm)\."  # of gemma4's layers that attend to others' keys and values
SIZES = {**{int(kind): size for kind, size in GGML_QUANT_SIZES.items()}, 41: (128, 18), 42: (64, 18), 139: (256, 144)}


def gemma3n():
    """The last two of four layers attend to others' keys and values; a row of the embeddings by layer."""
    file = File("gemma3n", 4, attention__head_count_kv=1, attention__shared_kv_layers=2, embedding_length_per_layer_input=64)
    file.tensor("per_layer_token_embd.weight", V, 4 * 64)
    file.tensor("per_layer_model_proj.weight", 4 * 64, H)
    file.tensor("altup_proj.weight", 3, H, H)
    for layer in range(4):
        file.attention(layer, 1, attn_norm=H, ffn_norm=H, altup_router=(4, H), laurel_l=(64, H), laurel_r=(H, 64))
        file.network(layer)
    return file.ends(tied=True)


def deepseek4(**keys):
    """The first layer's experts are a row of a table, by the token."""
    file = File("deepseek4", 2, attention__head_count_kv=1, **family_files._EXPERTS, **keys)
    for layer in range(2):
        file.attention(layer, 1, attn_norm=H, ffn_norm=H)
        file.mixture(layer, shared=64)
    file.tensors["blk.0.ffn_gate_tid2eid.weight"] = np.zeros((V, 2), np.float32)
    return file.ends()


def kimi_linear():
    """A layer of Kimi's delta attention, whose convolutions and decays have four dimensions, and one of latent attention."""
    file = File("kimi-linear", 2, ssm__conv_kernel=4, kda__head_dim=32, leading_dense_block_count=1, **family_files._EXPERTS)
    file.keys(attention__head_count_kv=[0, 1], attention__kv_lora_rank=64, rope__dimension_count=16)
    convolutions = {f"ssm_conv1d_{part}": (1, H, 1, 4) for part in "qkv"}
    file.layer(0, attn_norm=H, ffn_norm=H, attn_q=(H, H), attn_k=(H, H), attn_v=(H, H), **convolutions, ssm_dt__bias=H)
    file.layer(0, ssm_f_a=(32, H), ssm_f_b=(H, 32), ssm_beta=(4, H), ssm_g_a=(32, H), ssm_g_b=(H, 32), ssm_norm=32)
    file.tensors["blk.0.ssm_a"] = -np.ones((1, 1, 4, 1), np.float32)
    file.layer(0, attn_output=(H, H))
    file.network(0)
    file.layer(1, attn_norm=H, ffn_norm=H, attn_q=(4 * 48, H), attn_kv_a_mqa=(80, H), attn_kv_a_norm=64)
    file.layer(1, attn_k_b=(4, 64, 32), attn_v_b=(4, 32, 64), attn_output=(H, H))
    file.mixture(1, biased=True, shared=64)
    return file.ends()


def llama_of(folder, *qtypes, parts=("",)):
    """A llama whose matrices that are named after ``parts`` are of ``qtypes`` in turn, 18 bytes a block, and others F32."""
    plain, turn = kit.open(model_files.write(folder, "tiny-llama")), cycle(qtypes)
    of = lambda i: next(turn) if len(i.shape) > 1 and any(part in i.name for part in parts) else "F32"  # noqa: E731
    specs = [TensorInfo.new(i.name, of(i), i.shape) for i in plain.tensors.values()]
    blocks = [random_blocks(spec.qtype, spec.nbytes // (18 if spec.qtype in qtypes else 4)) for spec in specs]
    metadata = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in plain.metadata.items()}
    rows = (block.reshape(*spec.shape[:-1], -1) for block, spec in zip(blocks, specs, strict=True))
    return writer.write(folder / f"{'-'.join((*qtypes, *parts))}.gguf", metadata, specs, rows)


def of_a_fork(folder):
    """A llama with IQ4_K of ik_llama.cpp, which has the size of Q4_K."""
    data = bytearray(model_files.write(folder, "tiny-llama", "Q4_K_M").read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4 + 16
    assert struct.unpack_from("<I", data, at) == (12,)
    struct.pack_into("<I", data, at, 139)
    path = folder / "fork.gguf"
    path.write_bytes(data)
    return path


FILES = {  # how the file is written, what of it no token reads, whether a command runs it
    "qwen35": (lambda folder: model_files.write(folder, "tiny-qwen35", "Q8_0"), "", True),
    "qwen35moe": (lambda folder: model_files.write(folder, "qwen35moe", "Q8_0"), "", True),
    "minimax-m2": (lambda folder: family_files.write(folder, "minimax-m2", "Q8_0"), "", True),
    "lfm2": (lambda folder: family_files.write(folder, "lfm2", "Q8_0"), "", True),
    "gemma4": (lambda folder: family_files.write(folder, "gemma4", "Q8_0"), KEYS, True),
    "gemma3n": (lambda folder: gemma3n().write(folder / "gemma3n.gguf"), r"blk\.[23]\.attn_(k|v|k_norm)\.", False),
    "mamba": (lambda folder: kind_files.write(folder, "mamba"), "", True),
    "bloom": (lambda folder: hf_files.write(folder, "bloom"), "", True),
    "deepseek4": (lambda folder: deepseek4().write(folder / "deepseek4.gguf"), "", False),
    "deepseek4, no nextn": (
        lambda folder: deepseek4(nextn_predict_layers=1).write(folder / "deepseek4-key.gguf"), "", False),
    "bailingmoe2, nextn": (lambda folder: family_files.write(folder, "bailingmoe2"), r"blk\.3\.", True),
    "kimi-linear": (lambda folder: kimi_linear().write(folder / "kimi-linear.gguf", "Q8_0"), "", False),
    "Q1_0": (lambda folder: llama_of(folder, "Q1_0"), "", True),
    "Q2_0": (lambda folder: llama_of(folder, "Q2_0"), "", True),
    "a few of Q1_0 and Q2_0": (lambda folder: llama_of(folder, "Q1_0", "Q2_0", parts=("attn_q.", "ffn_up.")), "", True),
    "IQ4_K": (of_a_fork, "", False),
}  # fmt: skip


def tensors_of(path):
    """Name -> (shape with the rows first, bytes), read from the header by hand."""
    with kit.open(path) as file:
        names = {name: info.shape for name, info in file.tensors.items()}
    data, found = path.read_bytes(), {}
    for name, shape in names.items():
        key = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        at = data.index(key + struct.pack(f"<{len(shape)}Q", *shape[::-1])) + len(key) + 8 * len(shape)
        weights, nbytes = SIZES[struct.unpack_from("<I", data, at)[0]]
        found[name] = shape, int(np.prod(shape)) // weights * nbytes
    return found


def right(path, unread) -> float:
    """What llama.cpp's graph reads: 2 of 8 experts, a row of what is looked up, all the rest once."""
    tensors = tensors_of(path)
    looked_up = r"per_layer_token_embd|.*tid2eid" + "|token_embd.weight" * ("output.weight" in tensors)
    share = lambda name, rows: 1 / rows if re.match(looked_up, name) else 2 / 8 if "_exps." in name else 1  # noqa: E731
    return sum(nbytes * share(name, shape[0]) for name, (shape, nbytes) in tensors.items()
               if not (unread and re.match(unread, name)) and not name.startswith("rope_"))  # fmt: skip


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.machine.probe", lambda leave_out: MACHINE)
    monkeypatch.setattr("kit.lab.explaining.peers.readings", lambda *_, **__: {})
    monkeypatch.setattr("kit.lab.report.ahead.making", lambda *_, **__: nullcontext())
    monkeypatch.setattr("kit.lab.explaining.study.Study.quality", "not asked for")
    monkeypatch.setattr("kit.lab.explaining.sentences.measure_best", lambda study, best=2: study.measured)
    return lambda *arguments: CliRunner().invoke(cli.main, list(map(str, arguments)))


@pytest.mark.parametrize("name", FILES)
def test_explain_and_generate_say_what_the_graph_reads(run, folder, name):
    write, unread, runs = FILES[name]
    path = write(folder)
    needed = right(path, unread)
    told = run("explain", "--json", "--tokens", "2", path)
    assert told.exit_code == 0, told.output
    told = json.loads(told.stdout)
    assert told["answer"]["limit"]["bytes"] == pytest.approx(needed)
    blocks = next(row for row in told["holds"] if row["held_as"] == "the file's blocks")
    roof = next(row for row in told["roofline"] if row["held_as"] == "the file's blocks")
    assert blocks["bytes_per_token"] == roof["bytes_per_token"] == pytest.approx(needed)
    assert bool(told["contexts"]) == bool(told["depths"]) == (runs and name != "bloom")
    if name == "qwen35":
        assert {row["states"] for row in told["contexts"]} == {215_040}, "read and written at each token"
    if not runs:
        return
    with kit.open(path) as file:
        if name == "bloom":
            answer, remembered = kit.hf.generate(file, [5, 7, 9], 3, weights="blocks"), [0, 0]
        else:
            model = kit.Transformer(kit.Weights(file), linear="fused")
            answer = kit.generate(model, [5, 7, 9], 3, stop_at_end=False)
            memories = [layer.mixer.memory for layer in model.config.layers]
            remembered = [sum(memory.read(positions) for memory in memories) for positions in (4, 5)]
    assert answer.nbytes[1:] == pytest.approx([needed + more for more in remembered])


def test_llama_cpp_does_not_go_back_where_a_state_cannot(folder):
    with llama_cpp.opened(model_files.write(folder, "tiny-qwen35")) as llama:
        llama.logits([5, 7, 9])
        with pytest.raises(ModelError, match=r"llama.cpp cannot go back to 1 positions"):
            llama.logits([5], held=1)
        assert llama.logits([5, 7]).shape == (2, llama.vocabulary)
