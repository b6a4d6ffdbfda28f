"""Models that other programs have on this machine: names, kit models, the label against the content."""

import json
import re
import shutil
import time

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import kit
from kit.errors import GGUFError
from kit.gguf import stores
from kit.gguf.reader import TensorInfo
from kit.gguf.sources import absolute, resolve
from kit.gguf.trained import TRAINED
from kit.lab import labels
from kit.lab.commands.cli import main
from kit.lab.explaining import quick
from kit.lab.predicting.beforehand import Reads
from kit.lab.synthetic.write import synthesize

HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a model in each program's layout, written by hand as the program does; no variable names another folder."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HUB_CACHE", "HF_HOME", "JAN_DATA_FOLDER", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KIT_MODELS", str(tmp_path / "kit"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kit").mkdir()
    model = synthesize(tmp_path / "kit" / "own.gguf", "tiny-llama")
    ollama = tmp_path / ".ollama" / "models"
    for place, digest in {"registry.ollama.ai/library/qwen2.5-coder/1.5b": "aa", "registry.ollama.ai/library/smol/latest": "bb",
                          "registry.ollama.ai/me/mine/q4": "cc", "hf.co/owner/repo/Q4_K_M": "dd"}.items():  # fmt: skip
        manifest = ollama / "manifests" / place
        manifest.parent.mkdir(parents=True, exist_ok=True)
        layers = [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:ff"},
                  {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}]  # fmt: skip
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    (ollama / "manifests" / "registry.ollama.ai" / "library" / "smol" / "torn").write_text("{")
    (ollama / "blobs").mkdir()
    shutil.copy(model, ollama / "blobs" / "sha256-aa")
    shutil.copy(model, ollama / "blobs" / "sha256-cc")
    (ollama / "blobs" / "sha256-bb").write_bytes(b"GGUF torn")
    for place in (".lmstudio/models/owner/repo/m-Q8_0.gguf", ".local/share/Jan/data/llamacpp/models/owner/m/model.gguf",
                  ".cache/llama.cpp/owner_repo_m.gguf", ".lmstudio/models/other/repo/m-Q8_0.gguf",
                  f".cache/huggingface/hub/models--owner--repo/snapshots/{HASH}/sub/m.gguf"):  # fmt: skip
        (tmp_path / place).parent.mkdir(parents=True)
        shutil.copy(model, tmp_path / place)
    refs = tmp_path / ".cache/huggingface/hub/models--owner--repo/refs"
    refs.mkdir()
    (refs / "main").write_text(HASH)
    return tmp_path


@pytest.mark.parametrize(
    "name, place",
    [
        ("ollama:qwen2.5-coder:1.5b", ".ollama/models/blobs/sha256-aa"),
        ("ollama:smol", ".ollama/models/blobs/sha256-bb"),  # its latest
        ("ollama:me/mine:q4", ".ollama/models/blobs/sha256-cc"),
        ("ollama:mine:q4", ".ollama/models/blobs/sha256-cc"),
        ("lmstudio:owner/repo/m-Q8_0.gguf", ".lmstudio/models/owner/repo/m-Q8_0.gguf"),
        ("lmstudio:other/repo/m-Q8_0", ".lmstudio/models/other/repo/m-Q8_0.gguf"),
        ("jan:model", ".local/share/Jan/data/llamacpp/models/owner/m/model.gguf"),
        ("llama.cpp:owner_repo_m.gguf", ".cache/llama.cpp/owner_repo_m.gguf"),
        ("hf:m", f".cache/huggingface/hub/models--owner--repo/snapshots/{HASH}/sub/m.gguf"),
    ],
)
def test_a_name_of_another_program_is_its_file(home, name, place):
    assert resolve(name) == home / place and absolute(name) == name


@pytest.mark.parametrize(
    "name, message",
    [
        ("ollama:qwen2.5-coder", "ollama:qwen2.5-coder: Ollama has no such model; did you mean ollama:qwen2.5-coder:1.5b"),
        ("ollama:hf.co/owner/repo:Q4_K_M", "its file .*sha256-dd cannot be read: No such file"),
        ("lmstudio:m-Q8_0", "2 models of LM Studio have this name: lmstudio:o.*give the whole of one"),
        ("jan:nothing", "Jan has no such model"),
        ("jan:", "Jan has no such model"),
        ("jan:odel", "Jan has no such model"),  # not the whole of a part of its path
    ],
)
def test_a_name_that_is_no_model(home, name, message):
    with pytest.raises(GGUFError, match=message) as caught:
        kit.open(name)
    assert "\n" not in str(caught.value)
    ran = CliRunner().invoke(main, ["inspect", name])
    assert ran.exit_code == 2 and ran.stderr.count("\n") == 1


def test_another_folder_by_its_variable(home, monkeypatch):
    for variable, name, inside in (
        ("OLLAMA_MODELS", "ollama:smol", ""), ("LLAMA_CACHE", "llama.cpp:m.gguf", "m.gguf"),
        ("HF_HUB_CACHE", "hf:m", f"models--a--b/snapshots/{HASH}/m.gguf"),
        ("JAN_DATA_FOLDER", "jan:m", "llamacpp/models/a/m.gguf"),
    ):  # fmt: skip
        folder = home / variable
        monkeypatch.setenv(variable, str(folder))
        with pytest.raises(GGUFError, match=f"has no model on this machine .looked in {folder}"):
            resolve(name)
        if inside:
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(home / "kit" / "own.gguf", folder / inside)
            assert resolve(name) == folder / inside


def test_a_file_of_such_a_name_comes_first(home):
    (home / "ollama:smol").write_bytes(b"x")
    assert str(resolve("ollama:smol")) == "ollama:smol"


def test_kit_models_lists_each_with_its_fault(home, monkeypatch):
    monkeypatch.setattr(quick, "reads", lambda: Reads(20.0, "now"))
    start = time.process_time()
    ran = CliRunner().invoke(main, ["models", "--json"])
    seconds = time.process_time() - start
    assert ran.exit_code == 0, ran.output
    rows = {row["name"]: row for row in json.loads(ran.stdout)["rows"]}
    assert set(rows) == {
        str(home / "kit" / "own.gguf"), "ollama:qwen2.5-coder:1.5b", "ollama:smol:latest", "ollama:me/mine:q4",
        "ollama:hf.co/owner/repo:Q4_K_M", "lmstudio:owner/repo/m-Q8_0.gguf", "lmstudio:other/repo/m-Q8_0.gguf",
        "jan:owner/m/model.gguf", "llama.cpp:owner_repo_m.gguf", "hf://owner/repo/sub/m.gguf",
    }  # fmt: skip
    good = rows["jan:owner/m/model.gguf"]
    assert good["fits"] and good["bytes"] > 0 and sum(good["types"].values()) == pytest.approx(1) and not good["problem"]
    assert re.search("byte|truncated|expected", rows["ollama:smol:latest"]["problem"])
    assert "No such file" in rows["ollama:hf.co/owner/repo:Q4_K_M"]["problem"]
    assert seconds < 0.2 * len(rows) and good["tokens_per_second"] > 0
    text = CliRunner().invoke(main, ["models"]).stdout
    assert all(name in text for name in rows) and all(len(line) < 200 for line in text.splitlines())
    for name, row in rows.items():  # every command takes what it prints
        if not row["problem"] and not name.startswith("hf://"):
            kit.open(name).close()


def test_no_models(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "everywhere", dict)
    assert CliRunner().invoke(main, ["models"]).stdout.startswith("No models here: `kit fetch` lists")


def test_the_tab_key_completes_them(home):
    def completed(incomplete):
        shell = ShellComplete(main, {}, "kit", "_KIT_COMPLETE")
        return [item.value for item in shell.get_completions(["explain"], incomplete)]

    assert completed("ollama:q") == ["ollama:qwen2.5-coder:1.5b"]
    assert completed("lms") == ["lmstudio:other/repo/m-Q8_0.gguf", "lmstudio:owner/repo/m-Q8_0.gguf"]
    assert set(TRAINED) < set(completed("")) and "jan:owner/m/model.gguf" in completed("")


@pytest.mark.parametrize("value", [5, [], ["x"], {}, None, True, 1e999])
def test_a_wrong_kind_of_value_of_another_program_hides_its_model_only(home, value):
    """A number in place of a digest or of LM Studio's folder was a traceback of `kit models`, and of completion."""
    (home / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": value}))
    wrong = home / ".ollama" / "models" / "manifests" / "registry.ollama.ai" / "library" / "wrong"
    wrong.mkdir()
    for number, told in enumerate(([{"mediaType": stores._MODEL, "digest": value}], value, [value])):
        (wrong / str(number)).write_text(json.dumps({"layers": told}))
    (wrong / "deep").write_text("[" * 100_000)
    assert {"ollama:smol:latest", "lmstudio:owner/repo/m-Q8_0.gguf"} < set(stores.everywhere())
    assert not any(name.startswith("ollama:wrong") for name in stores.everywhere())


def test_a_file_of_two_names_says_so_and_one_that_cannot_be_opened_fits_nowhere(home):
    """A link to a part of a split model fitted, by the bytes of that part."""
    kit_folder = home / "kit"
    (kit_folder / "second.gguf").hardlink_to(kit_folder / "own.gguf")
    (kit_folder / "soft.gguf").symlink_to(kit_folder / "own.gguf")
    (kit_folder / "torn.gguf").write_bytes((kit_folder / "own.gguf").read_bytes()[:3000])
    rows = {
        row["path"].rpartition("/")[2]: row for row in json.loads(CliRunner().invoke(main, ["models", "--json"]).stdout)["rows"]
    }
    assert rows["own.gguf"]["problem"] == "" and rows["own.gguf"]["fits"] is True
    for name in ("second.gguf", "soft.gguf"):
        assert rows[name]["problem"] == f"the same file as {kit_folder}/own.gguf" and rows[name]["types"]
    assert rows["torn.gguf"]["fits"] is rows["torn.gguf"]["fits_now"] is None and rows["torn.gguf"]["problem"]


# --- the label against the content ----------------------------------------------------------------------------------


class Table:
    """What a label is read from: a name, metadata, tensors."""

    def __init__(self, path, types, file_type=None):
        self.path, self.metadata = path, {} if file_type is None else {"general.file_type": file_type}
        rows = [TensorInfo.new(f"blk.{i}.ffn_up.weight", kind, (columns, columns)) for i, (kind, columns) in enumerate(types)]
        self.tensors = {info.name: info for info in [*rows, TensorInfo.new("output.weight", "Q6_K", (512, 512))]}


def test_columns_that_no_block_divides_are_the_reason():
    label = labels.label_of(Table("m-Q4_K_M.gguf", [("Q5_0", 896), ("Q5_0", 896), ("Q4_K", 512)], 15))
    nbytes = [info.nbytes for info in Table("", [("Q5_0", 896), ("Q5_0", 896), ("Q4_K", 512)]).tensors.values()][:3]
    share = nbytes[2] / sum(nbytes)
    assert label.leading == "Q4_K" and label.share == pytest.approx(share) and label.metadata == "Q4_K_M"
    assert all(part in label.told for part in (f"{share:.0%}", f"(Q5_0 {1 - share:.0%})", "because 896 columns"))


def test_other_types_by_design_have_no_reason():
    told = labels.label_of(Table("m.Q4_K_M.gguf", [("Q4_K", 512), ("Q6_K", 512)])).told
    assert "because" not in told and "(Q6_K 59%)" in told


@pytest.mark.parametrize(
    "name, file_type, label, leading",
    [
        ("Qwen3-8B-UD-Q4_K_XL.gguf", None, "Q4_K_XL", "Q4_K"),
        ("a_q8_0.gguf", None, "Q8_0", "Q8_0"),
        ("a-F16-IQ4_XS-00001-of-00002.gguf", None, "IQ4_XS", "IQ4_XS"),
        ("gpt-oss-MXFP4_MOE.gguf", None, "MXFP4_MOE", "MXFP4"),
        ("a-IQ2_M.gguf", None, "IQ2_M", "IQ2_S"),
        ("sha256-aa", 7, "Q8_0", "Q8_0"),
        ("IQ40-XQ4_K.gguf", 1, "F16", "F16"),
        ("plain.gguf", None, None, None),
        ("plain.gguf", 1024, None, None),  # GUESSED
        ("plain.gguf", 99999, None, None),
        ("plain.gguf", "Q8_0", None, None),
    ],
)
def test_labels(name, file_type, label, leading):
    found = labels.label_of(Table(name, [("Q4_K", 512)], file_type))
    assert (found and (found.name, found.leading)) == (label and (label, leading))


def test_a_name_that_its_metadata_contradicts():
    label = labels.label_of(Table("m-Q8_0.gguf", [("Q4_K", 512)], 15))
    assert (label.name, label.share, label.metadata) == ("Q8_0", 0.0, "Q4_K_M") and label.told.endswith(" Q4_K_M")


def test_every_label_of_llama_quantize_stands_for_a_format():
    from gguf import LlamaFileType

    for kind in LlamaFileType:
        if kind.name != "GUESSED":
            assert labels._LABEL.fullmatch(kind.name.partition("_")[2]), kind
            assert labels.leading_type(kind.name.partition("_")[2]) in labels.FORMATS, kind
