"""kit inspect and kit synth as a user meets them."""

import json
import struct
import subprocess
import sys

import documented
import model_files
import pytest
from click.testing import CliRunner
from test_gguf_reader import assemble, split_model, table_row, text

import kit
from kit.lab.commands.cli import main
from kit.lab.synthetic.geometry import GEOMETRIES, MIXES
from kit.lab.synthetic.write import synthesize


def run(*arguments):
    """(exit code, standard output, standard error) of `kit ...`."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny-granite")


def test_inspect_says_what_the_file_holds(model):
    code, out, err = run("inspect", model, "--tensors", "--metadata")
    assert code == 0 and not err
    lines = out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    specs = GEOMETRIES["tiny-granite"].tensors()
    for row in (["embedding_scale", "12"], ["residual_scale", "0.22"], ["Q4_K", str(sum(s.qtype == "Q4_K" for s in specs))]):
        assert any(line.split()[:2] == row for line in lines)
    assert f"({sum(spec.elements for spec in specs):,})" in out and "20 in 2 layers" in out and "<512 x string>" in out
    for spec in specs:
        (line,) = [line for line in lines if line.startswith(spec.name + " ")]
        assert line.split()[1:-2] == [spec.qtype, *" x ".join(map(str, spec.shape)).split()]
        assert line.split()[-2] == str(spec.nbytes)


def test_inspect_as_json(model):
    code, out, _ = run("inspect", model, "--json")
    facts = json.loads(out)
    assert set(facts) == documented.keys("inspect")
    specs = GEOMETRIES["tiny-granite"].tensors()
    elements = sum(spec.elements for spec in specs)
    assert code == 0 and facts["parameters"] == elements
    assert facts["working_sets"]["float32"]["bytes"] == 4 * elements
    assert facts["working_sets"]["float16"]["bytes"] == 2 * elements
    assert facts["working_sets"]["blocks"]["bytes"] == sum(spec.nbytes for spec in specs)
    assert facts["hyperparameters"]["logit_scale"] == 8
    assert [row["name"] for row in facts["tensor_table"]] == [spec.name for spec in specs]


def test_inspect_says_what_does_not_fit(model, monkeypatch):
    elements = sum(spec.elements for spec in GEOMETRIES["tiny-granite"].tensors())
    monkeypatch.setattr("kit.system.memory_limit", lambda: 3 * elements)
    monkeypatch.setattr("kit.system.memory_available", lambda: elements)
    sets = json.loads(run("inspect", model, "--json")[1])["working_sets"]
    assert {name: (row["fits_in_memory"], row["fits_in_free_memory"]) for name, row in sets.items()} == {
        "blocks": (True, True), "float16": (True, False), "float32": (False, False)}  # fmt: skip
    assert " 75% " in run("inspect", model)[1]


def test_inspect_is_harmless_on_a_terminal(tmp_path):
    evil = b"\x1b[31m\r\n\x07\xe2\x80\xae" + b"n" * 200
    pair = text(b"general.architecture") + struct.pack("<I", 8) + text(b"a\x1b[2J")
    key = text(b"a\x1b[2J." + evil) + struct.pack("<I", 8) + text(evil)
    floats = text(b"nan") + struct.pack("<IIQf", 9, 6, 1, float("nan"))
    (tmp_path / "x.gguf").write_bytes(assemble([pair, key, floats], [table_row(evil, (1,), 99, 0)], bytes(32)))
    code, out, _ = run("inspect", tmp_path / "x.gguf", "--tensors", "--metadata")
    assert code == 0 and r"\x1b[31m\r\n\x07\u202e" in out and "UNKNOWN_99" in out
    assert all(char == "\n" or char.isprintable() for char in out) and all(len(line) <= 100 for line in out.splitlines())
    assert json.loads(run("inspect", tmp_path / "x.gguf", "--json")[1])["metadata"]["nan"] == [None]


def test_inspect_of_a_split_file_and_of_an_empty_one(tmp_path):
    _, out, _ = run("inspect", split_model(tmp_path, [["a"], ["b"]]))
    assert "2 parts: " in out and "2 in 0 layers" in out
    (tmp_path / "none.gguf").write_bytes(assemble())
    code, out, _ = run("inspect", tmp_path / "none.gguf", "--tensors")
    assert code == 0 and "holds no weights" in out and "layers" not in out and "fits" not in out


def test_synth_writes_refuses_and_replaces(tmp_path):
    path = tmp_path / "m.gguf"
    code, out, _ = run("synth", "tiny-qwen3", "--mix", "Q8_0", "--layers", "1", "--seed", "7", "-o", path)
    assert code == 0 and str(path) in out
    assert path.read_bytes() == synthesize(tmp_path / "n.gguf", "tiny-qwen3", "Q8_0", 1, 7).read_bytes()
    code, _, err = run("synth", "tiny-qwen3", "-o", path)
    assert code == 2 and "exists already; --force replaces it" in err
    assert run("synth", "tiny-qwen3", "-o", path, "--force")[0] == 0
    with kit.open(path) as file:
        assert file.tensors["blk.1.ffn_down.weight"].qtype == "Q6_K"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["gpt-5"], "geometry 'gpt-5' is not known; choose one of granite-3.3-8b"),
        (["tiny-llama", "--mix", "Q9"], "mix 'Q9' is not known; choose one of F32"),
        (["tiny-llama", "--layers", "0"], "0 layers are not possible"),
        (["tiny-llama", "-o", "nowhere/m.gguf"], "there is no folder nowhere"),
        (["tiny-llama", "-o", ".", "--force"], "cannot be written"),
    ],
)
def test_synth_errors_are_one_line_and_leave_nothing(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("synth", *arguments)
    assert code == 2 and message in err and err.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_synth_help_lists_the_table():
    _, out, _ = run("synth", "--help")
    assert all(name in out for name in (*GEOMETRIES, *MIXES)) and "8.171 G weights, 4.60 GiB" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_help_of_the_commands_imports_nothing_heavy_and_a_file_is_inspected_without_torch(folder):
    """Importing torch takes longer than the rest of `kit inspect`."""
    code = """
import sys, kit.lab.commands.inspect, kit.lab.commands.synth
early = {"numpy", "torch"} & {*sys.modules}
kit.lab.commands.inspect.command([sys.argv[1]], standalone_mode=False)
sys.exit(str(early | {"torch", "numba"} & {*sys.modules} or ""))"""
    command = [sys.executable, "-c", code, model_files.write(folder, "tiny-qwen35", "Q8_0")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.stderr.strip() and "210.0 KiB" in done.stdout, done.stderr
