"""Every architecture that gguf-py names, as a file of two layers: run, or refused by one line that says what works."""

import json

import family_files
import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from invented import MACHINE

import kit
from kit.gguf import writer
from kit.gguf.reader import TensorInfo
from kit.gguf.uses import assumed, bytes_used, unknown_roles, uses_of
from kit.lab.commands import cli
from kit.lab.predicting.order import order_of

HIDDEN, FFN, WORDS, EXPERTS = 64, 128, 96, 4
_KEYS = {
    "block_count": 2, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": FFN, "attention.head_count": 4,
    "attention.head_count_kv": 4, "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5,
    "rope.dimension_count": 16, "vocab_size": WORDS, "expert_count": EXPERTS, "expert_used_count": 2,
    "expert_feed_forward_length": FFN,
}  # fmt: skip


def _shape(role):
    if "norm" in role:
        return (HIDDEN,)
    if role in ("token_embd", "output", "cls"):
        return WORDS, HIDDEN
    rows, columns = (HIDDEN, FFN) if "ffn_down" in role else (FFN, HIDDEN) if "ffn_" in role else (HIDDEN, HIDDEN)
    if role.endswith("ffn_gate_inp"):
        return EXPERTS, HIDDEN
    return (EXPERTS, rows, columns) if role.endswith("exps") else (rows, columns)


def family(folder, architecture):
    """A file of two layers with every tensor that gguf-py's table has for the architecture."""
    path, name = folder / f"{gguf.MODEL_ARCH_NAMES[architecture]}.gguf", gguf.MODEL_ARCH_NAMES[architecture]
    roles = [gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[architecture]]
    names = dict.fromkeys(role.format(bid=layer) for role in roles for layer in range(2 if "{bid}" in role else 1))
    specs, draw = [TensorInfo.new(f"{role}.weight", "F32", _shape(role)) for role in names], np.random.default_rng(0)
    metadata = {"general.architecture": name} | {f"{name}.{key}": value for key, value in _KEYS.items()}
    return writer.write(path, metadata, specs, [0.05 * draw.standard_normal(spec.shape, np.float32) for spec in specs])


@pytest.mark.parametrize("architecture", gguf.MODEL_ARCH, ids=gguf.MODEL_ARCH_NAMES.get)
def test_no_architecture_ends_in_a_traceback(tmp_path, architecture):
    path = family(tmp_path, architecture)
    for arguments in (["inspect", str(path)], ["generate", "--tokens", "1", "-n", "1", str(path)]):
        found = CliRunner().invoke(cli.main, arguments)
        assert found.exit_code in (0, 2) and (found.exception is None or isinstance(found.exception, SystemExit)), found.output
        if found.exit_code:
            assert found.output.startswith("kit: error: ") and found.output.count("\n") == 1, found.output
    with kit.open(path) as file:
        if "token_embd.weight" not in file.tensors:
            return
        uses, order = uses_of(file), order_of(file, 2)
        assert all((use.used, use.of) == (1, 1) for use in uses if "norm" in use.name)
        stacks = [use for use in uses if "exps." in use.name and "norm" not in use.name]
        assert all((use.used, use.of) == (2, EXPERTS) for use in stacks)
        rows = bytes_used(use for use in uses if use.is_rows)
        if order.reason:  # explain's sums: what a drawn token uses is what the roofline counts
            parts = {use.name: use.nbytes // use.of for use in uses}
            for token in order.tokens:
                assert sum(parts[name.partition("[")[0]] for name in token) + rows == pytest.approx(bytes_used(uses))


def test_what_gguf_py_does_not_name_is_explained_and_refused_in_one_line(tmp_path):
    """minimax-m3, which kit does not run: all bytes of a token but those of experts and rows that it does not read."""
    keys = {f"attention__indexer__{name}": value for name, value in (("head_count", 2), ("top_k", 2), ("block_size", 4))}
    made = family_files.File("minimax-m3", 2, attention__head_count_kv=2, **family_files._EXPERTS, **keys)
    for layer in range(2):
        made.layer(layer, attn_norm=HIDDEN, ffn_norm=HIDDEN)
        made.attention(layer)
        made.layer(layer, indexer__q_proj=(64, 128), indexer__k_proj=(32, 128), indexer__q_norm=32, indexer__k_norm=32)
        made.mixture(layer, biased=True, shared=64)
    path = made.ends().write(tmp_path / "m3.gguf")
    found = CliRunner().invoke(cli.main, ["generate", "--tokens", "1", "-n", "1", str(path)])
    assert found.exit_code == 2 and found.output.count("\n") == 1
    assert "minimax-m3" in found.output and "kit explain works on any file" in found.output
    with kit.open(path) as file:
        sizes = {name: info.nbytes for name, info in file.tensors.items()}
        idle = sum(size * 6 // 8 for name, size in sizes.items() if "exps.weight" in name)
        assert not unknown_roles(uses_of(file))
        assert bytes_used(uses_of(file)) == sum(sizes.values()) - idle - sizes["token_embd.weight"] * 511 // 512


@pytest.mark.slow
@pytest.mark.parametrize("architecture", gguf.MODEL_ARCH, ids=gguf.MODEL_ARCH_NAMES.get)
def test_every_architecture_is_explained_with_sums_that_agree(tmp_path, architecture, monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.machine.probe", lambda leave_out: MACHINE)
    monkeypatch.setattr("kit.lab.explaining.peers.readings", lambda *_, **__: {})
    path = family(tmp_path, architecture)
    found = CliRunner().invoke(cli.main, ["explain", "--json", "--tokens", "2", "--room", "1MiB", str(path)])
    if architecture == gguf.MODEL_ARCH.MMPROJ:  # no language model: no speed either
        assert found.exit_code == 2 and "not a language model" in found.output
        return
    assert found.exception is None, found.output
    told = json.loads(found.stdout)
    with kit.open(path) as file:
        uses = uses_of(file)
        if not told["runs"]:  # a decode that is recorded may use fewer: tests/test_uses.py compares those
            families = sum(row["file_bytes"] for row in told["families"])
            assert families + bytes_used(use for use in uses if use.is_rows) == pytest.approx(bytes_used(uses))
    for row in told["advice"]:
        assert row["least"] <= min(row["predicted"], row.get("measured") or np.inf) * (1 + 1e-9), row


@pytest.mark.parametrize(
    "architecture, known, unknown", [("QWEN3", True, ""), ("RWKV6", False, "time_mix"), ("RWKV7", False, "time_mix")]
)
def test_tensors_that_no_rule_knows_are_named(tmp_path, architecture, known, unknown):
    """Explain says of which tensors it only knows the size."""
    with kit.open(family(tmp_path, gguf.MODEL_ARCH[architecture])) as file:
        uses = uses_of(file)
        assert (not unknown_roles(uses)) == known
        assert any(unknown in role for role in unknown_roles(uses)) != known
        assert (assumed(file, uses) == "") == known
