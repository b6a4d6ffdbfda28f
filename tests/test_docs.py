"""The documentation: links lead somewhere, commands that it shows exist with these options, its policy is one."""

import doctest
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from types import SimpleNamespace

import cells
import click
import emulated_commands
import family_files
import model_files
import nbformat
import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from contradictions import _Page
from invented import MACHINE
from PIL import Image

import kit
import kit.cpu
from benchmarks import _pages, _records
from kit import cache
from kit.cpu import gemm_codes, linear
from kit.lab.claims import evidence
from kit.lab.claims import table as claims
from kit.lab.commands import cli
from kit.lab.explaining.answer_table import Row
from kit.lab.findings import reported
from kit.lab.measuring import machine
from kit.lab.predicting.remembered import contexts
from kit.lab.profiles import PROFILES
from kit.lab.synthetic.write import synthesize
from kit.model import architectures, layers
from kit.system.paths import ROOT
from kit.units import format_seconds

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^ {4}(?:\$ )?(kit (?!reaches )[a-z].*?)(?: {2,}.*| #.*| \|.*)?$", re.MULTILINE)
SHOWN = [(page.name, line) for page in PAGES for line in COMMAND.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page):
    prose = re.sub(r"^ {4}.*|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_a_page_says_which_commands_ran_under_emulation_as_the_record_does():
    assert emulated_commands.sentence() in " ".join((ROOT / "docs" / "platforms.md").read_text(encoding="utf-8").split())


# What of a command that is shown cannot run in a test -> what runs in its place. The rest runs as written, on a tiny file.
INSTEAD = (
    (r"^(kit (?:reproduce|sweep) .*|kit reproduce)$", r"\1 --list"),  # minutes: test_smoke and test_sweep run them
    (r"hf://\S+|gemma-3-270m|smollm2-135m|my\.gguf", "model.gguf"),  # network; 94 MB: test_gguf_sources and test_trained
    (r" --device cuda", ""),  # a GPU
    (r"^(kit (?:fetch|explain|exactness|quants|experts) .*)$", r"\1 --help"),  # half a minute each: their own tests
    (r"07_copying", "07"),  # the notebook that extending.md writes
    (r"qwen3\.gguf|(model\.gguf) --chat .*", r"model.gguf --help"),  # a chat template: test_chat
    (r"^(kit synth .*)$", r"\1 --force"),  # a tiny file has that name
)
PLACES = ("model.gguf", "mixture.gguf", "tinyllama-4.gguf", "tiny-granite-Q4_K_M.gguf")  # the files that the pages name


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("docs") / "tiny.gguf", "tiny-llama")


@pytest.fixture
def place(tiny, tmp_path, monkeypatch):
    """A folder in which every file that the pages name is a tiny one, and grid.yaml is that of docs/sweeps.md."""
    for name in PLACES:
        shutil.copy(tiny, tmp_path / name)
    grid = re.search(
        r"^ {4}profile: quick\n(?: {4}.*\n)+", (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8"), re.MULTILINE
    )[0]
    (tmp_path / "grid.yaml").write_text(textwrap.dedent(grid))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", sorted({line for _, line in SHOWN}))
def test_commands_that_are_shown_run(line, place):
    for pattern, instead in INSTEAD:
        line = re.sub(pattern, instead, line)
    result = CliRunner().invoke(cli.main, shlex.split(line)[1:])
    assert result.exit_code == 0, (line, result.output)


INLINE = sorted({found for page in PAGES for found in re.findall(r"`(kit [^`]+)`", page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("line", INLINE)
def test_commands_named_in_a_sentence_exist(line):
    command, words = cli.main, shlex.split(line)[1:]
    while isinstance(command, click.Group) and words and words[0].isalpha() and words[0].islower():
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in words if word.startswith("-")} <= known


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
OTHERS = r"(?:^ {4}(?:\$ )?|`)((?:make|pip|papermill|python -m) [^`\n]*?)(?:`| {2,}.*| #.*|$)"


@pytest.mark.parametrize(
    "line", sorted({found for page in PAGES for found in re.findall(OTHERS, page.read_text(), re.MULTILINE)})
)
def test_what_is_shown_beside_kit_exists(line):
    """Running these takes the network, minutes or a server: their targets, extras, notebooks and modules are looked up."""
    words = shlex.split(line)
    if words[0] == "make":
        done = subprocess.run([*words, "--dry-run", "--old-file=.venv/.installed"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[0] == "pip":
        assert set(re.findall(r"\[(\w+)\]", line)) <= set(EXTRAS)
    elif words[0] == "papermill":
        assert (ROOT / words[1]).exists()  # test_papermill runs one from disk and one from S3
    else:
        assert list(ROOT.glob("/".join(word for word in words[2:4] if word[0] != "-" and not word.isupper()) + "*")), line


def test_every_public_name_is_on_the_page_of_python():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in kit.__all__ if not re.search(rf"\b{name}\b", text)] == []


OWN = "DOING READING TAKEN TUNED DRAWS KILLS KILLS_LOG EXIT".split()  # what the kit or a test tells its own children
OWN = {*(f"KIT_{name}" for name in OWN), "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "PYTHONPATH"}


def test_every_variable_is_in_the_docs():
    """Each that the code or a script reads, and no other."""
    from kit.lab.measuring.doctor import VARIABLES

    users, work = ((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("environment.md", "extending.md"))
    told = set(re.findall(r"`([A-Z_]{4,})\b", users + work.partition("## Environment variables of those who")[2]))
    code = "".join(path.read_text() for room in ("kit", "benchmarks", "tests") for path in (ROOT / room).rglob("*.py"))
    pod = "".join(path.read_text() for path in (ROOT / "runpod").glob("*.sh"))
    read = set(re.findall(r"""environ\.?(?:get|setdefault)?[\[(]["']([A-Z_]{5,})["']""", code))
    read = (read | set(re.findall(r"\bKIT_[A-Z]+(?:_[A-Z]+)*", code))) - OWN
    read |= set(re.findall(r"(?:\$\{?|export |\s)([A-Z]+_[A-Z_]+|PYTHON|WORKSPACE)\b[=:}/]", pod)) - {"BASH_SOURCE"}
    assert told == read | set(VARIABLES) | set(kit.TORCH_VARIABLES)


@pytest.mark.slow
def test_the_site_builds_and_asks_nobody_for_anything(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").glob("*.html"))
    assert {page.stem for page in pages} >= {"index", "tour", "verdicts", "faq", "cli", "api"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"""(?:src=|rel="stylesheet" href=)["']?https?:[^"' >]*""", text) == [], page.name


def test_every_claim_has_a_section_that_says_what_would_change_its_verdict():
    text = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("verdicts_*.md")))
    sections = {head: body for head, body in re.findall(r"^#{2,3} (.*)\n((?:(?!#).*\n)*)", text, re.MULTILINE)}
    for claim in claims.load():
        found = [body for head, body in sections.items() if claim in head.split(", ")]
        assert len(found) == 1 and "hat would change" in found[0], claim


def test_the_walks_lead_to_lines_that_are_there():
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    text = text.partition("## Five walks")[2].partition("\n## ")[0]
    walks = [re.findall(r"^\| `([\w/]+\.py)` \| `(.+?)` \|", walk, re.MULTILINE) for walk in text.split("\n**")[1:]]
    assert len(walks) == 5 and all(1 < len(walk) <= 5 for walk in walks[:3])
    assert len(walks[3]) <= 15, "from kit explain to its measurement: 25 files in the review of 27 November 2026"
    assert len(walks[4]) > 20
    for path, line in itertools.chain(*walks):
        assert (ROOT / path).read_text(encoding="utf-8").count(line) == 1, (path, line)


def test_the_walk_of_one_token_names_every_file(folder):
    """Those whose Python runs for a token, and those that its products are compiled from."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").partition("**One token on the CPU.**")[2]
    named = set(re.findall(r"`(kit/[\w/]+\.py)`", text.partition("\n## ")[0]))
    assert all((ROOT / path).exists() for path in named)
    model = kit.Transformer(model_files.write(folder, "tiny-llama", "Q4_K_M"), linear="fused")
    cache, ran = model.new_cache(8), set()
    for token in (1, 2):
        model.step([token], cache)
    sys.setprofile(lambda frame, event, _: event == "call" and ran.add(frame.f_code.co_filename))
    try:
        model.step([3], cache)
    finally:
        sys.setprofile(None)
    ran = {Path(path).relative_to(ROOT).as_posix() for path in ran if Path(path).is_relative_to(ROOT / "kit")}
    assert "kit/model/plan.py" in ran and ran <= named
    todo, compiled = [ROOT / "kit/cpu/linear.py"], set()
    while todo:
        path = todo.pop()
        compiled.add(path.relative_to(ROOT).as_posix())
        source = path.read_text(encoding="utf-8")
        modules = re.findall(r"^\s*from (kit\.cpu[\w.]*) import (\([\w, \n]+|[\w, ]+)", source, re.MULTILINE)
        names = {f"{module}.{name.strip()}" for module, names in modules for name in names.strip("(").split(",")} | {
            each for each, _ in modules
        }
        files = [ROOT / f"{name.replace('.', '/')}.py" for name in names]
        todo += [file for file in files if file.exists() and file.relative_to(ROOT).as_posix() not in compiled]
    assert len(compiled) > 20 and compiled <= named


def test_the_worked_example_of_the_cpu_is_right():
    assert doctest.testmod(kit.cpu) == (0, 4)


def blocks(heading):
    """The indented blocks of a section of docs/extending.md; a blank line within a block belongs to it."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n(?:\n+(?= {4}))?)+", text, re.MULTILINE)]


def test_the_policy_of_the_page_is_one(monkeypatch):
    monkeypatch.setattr(cache.policy, "POLICIES", {})
    policy, test = blocks("A policy")[:2]
    namespace = {"Policy": cache.policy.Policy}
    exec(policy, namespace)
    monkeypatch.setattr(cache, "POLICIES", {"Largest": namespace["Largest"]})
    exec(test, scope := {"cache": cache})
    scope["test_largest_evicts_the_largest"]()


def test_the_kind_of_layer_of_the_page_is_right(tmp_path, monkeypatch):
    """Prompt, recorded tokens and rows of a batch, against float64."""
    module, rows = blocks("A kind of layer")
    path = tmp_path / "plain_conv.py"
    path.write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    kind = importlib.import_module("plain_conv").PlainConv
    for table, line in zip((layers.MIXERS, architectures.ARCHITECTURES), filter(None, rows.split("\n")), strict=True):
        made = eval("{" + line + "}", {"PlainConv": kind, "Architecture": architectures.Architecture})
        monkeypatch.setitem(table, *made.popitem())
    file = family_files.File("plainconv", 2, conv__width=3, attention__head_count_kv=[0, 0])
    for layer in range(2):
        size = file.metadata["plainconv.embedding_length"]
        file.layer(layer, attn_norm=size, conv_in=(size, size), conv=(size, 3), conv_out=(size, size), ffn_norm=size)
        file.network(layer)
    path, tokens = file.ends().write(tmp_path / "plain.gguf"), [5, 9, 7, 300, 4, 8, 21, 3]
    right = plain_conv_logits(*model_files.plain(path), tokens)
    model = kit.Transformer(kit.Weights(kit.open(path)), linear="fused")
    assert model.unplanned == "" and contexts(model.config)[0]["states"] == 2 * 2 * size * 4
    cache, found = model.new_cache(16), [model.logits(tokens).numpy()]
    found.append(np.stack([model.step([token], cache).numpy() for token in tokens]))
    pair = model.batch((tokens, tokens[:5]), [model.new_cache(16) for _ in range(2)], torch.arange(13)).numpy()
    for got, expected in ((found[0], right), (found[1], right), (pair[:8], right), (pair[8:], right[:5])):
        assert np.abs(got - expected).max() < 1e-4 * right.std()


def plain_conv_logits(metadata, tensors, tokens):
    """The definition in float64."""
    normed = lambda x, name: x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * tensors[name]  # noqa: E731
    silu = lambda x: x / (1 + np.exp(-x))  # noqa: E731
    x = tensors["token_embd.weight"][tokens]
    for layer in range(2):
        own = {
            name: tensors[f"blk.{layer}.{name}.weight"]
            for name in ("conv_in", "conv", "conv_out", "ffn_gate", "ffn_up", "ffn_down")
        }
        inputs = np.pad(normed(x, f"blk.{layer}.attn_norm.weight") @ own["conv_in"].T, ((2, 0), (0, 0)))
        mixed = silu(sum(inputs[place : place + len(x)] * own["conv"][:, place] for place in range(3)))
        x = x + mixed @ own["conv_out"].T
        y = normed(x, f"blk.{layer}.ffn_norm.weight")
        x = x + (silu(y @ own["ffn_gate"].T) * (y @ own["ffn_up"].T)) @ own["ffn_down"].T
    return normed(x, "output_norm.weight") @ tensors["output.weight"].T


@pytest.mark.slow
def test_the_finding_of_the_page_runs_and_its_test_can_fail(tmp_path, monkeypatch):
    row, parameters, plumbing, shows, _, test = blocks("A finding")
    claim = claims.Claim(**yaml.safe_load(row)[0])
    known = claims.load() | {claim.id: claim}
    monkeypatch.setattr(claims, "load", lambda: known)
    monkeypatch.setattr(machine, "of_run", lambda folder: MACHINE)
    path, codes = tmp_path / "07_copying.ipynb", (parameters, plumbing, shows)
    tags = [["parameters"], ["plumbing"], []]
    made = [nbformat.v4.new_code_cell(code, metadata={"tags": tag}) for code, tag in zip(codes, tags, strict=True)]
    nbformat.write(nbformat.v4.new_notebook(cells=made), path)
    model, whole = str(model_files.write(tmp_path, "tiny-llama")), cells.run
    monkeypatch.setattr(cells, "run", lambda name, **asked: whole(path, model=model, **asked))
    assert cells.run("07_copying", out=tmp_path)["pair"].ratio > 0
    exec(test, tested := {})
    ((mark,),) = [tested["test_the_verdict_follows_the_ratio"].pytestmark]
    for ratio, verdict in mark.args[1]:
        tested["test_the_verdict_follows_the_ratio"](ratio, verdict, tmp_path)
    with pytest.raises(AssertionError):
        tested["test_the_verdict_follows_the_ratio"](3.0, "reproduced in ratio", tmp_path)


@pytest.mark.parametrize("page", sorted({page for page, _ in _pages.parts()}))
def test_what_is_generated_is_what_the_records_give(page):
    """`make readme` would change nothing."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, content in ((name, content) for (of, name), content in _pages.parts().items() if of == page):
        between = text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]
        assert between.strip("\n") == content.strip("\n") != ""


@pytest.mark.parametrize("name", _pages.pictures())
def test_a_picture_shows_what_the_records_give(name):
    with Image.open(ROOT / "docs" / "images" / f"{name}.png") as image:
        shown = json.loads(image.text["Description"])
    assert shown == json.loads(json.dumps(_pages.pictures()[name][0]))


def test_readme_s_block_and_its_picture_show_one_measurement_of_each_way():
    """47.2 and 44.7 ms stood in the block, 43.9 and 40.9 ms in the picture below it."""
    rows, block = [Row(**row) for row in _pages.pictures()["explain"][0]["rows"]], _pages.block()
    told = block.split()
    for row in rows:  # a record before 0.3.0 says milliseconds
        assert row.told.partition(" ")[0] in told or format_seconds(1 / row.speed) in " ".join(told), row
    assert len(rows) >= 4


def test_pictures_are_generated_and_shown():
    made = {f"{name}.png" for name in _pages.pictures()}
    shown = {found for page in PAGES for found in re.findall(r"!\[[^]]+\]\(\S*images/(\w+\.png)\)", page.read_text())}
    assert made == shown == {path.name for path in (ROOT / "docs" / "images").iterdir()}


def prose(page) -> str:
    """A page without its generated parts, code, links' targets and headings of versions, on one line."""
    text = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"^ {4}.*$|`[^`]*`|\]\([^)]*\)", "", text, flags=re.MULTILINE).split())


NUMBER = r"\d+(?:\.\d+)*"
WRITTEN = {  # numbers that no record gives: versions, units, what a command is asked for, names
    "README.md": {"3.11", "0.3.0", "1.0", "2", "8", "3", "5", "12", "94", "0.12", "1", "2.0"},
    "docs/findings.md": {"4.9", "30.4", "30", "2025", "8", "19", "4.5", "1", "2", "3", "3.3", "8b", "5090", "1.1", "75", "120"},
}


@pytest.mark.parametrize("page", _pages.sentences())
def test_numbers_of_a_page_are_those_of_the_records(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [piece for piece in _pages.sentences()[page] if piece not in text] == []


@pytest.mark.parametrize("page", _pages.sentences())
def test_numbers_that_moved_are_written_again(page):
    """`make readme` after another run: the words stay, the numbers and the link follow."""
    text, pieces = (ROOT / page).read_text(encoding="utf-8"), _pages.sentences()[page]
    others = tuple(re.sub(_pages.AMOUNT, "9.87 s", piece) for piece in pieces)
    moved = _pages.told_again(text, others).replace(str(_pages.newest().relative_to(ROOT)), "results/reference/other/run")
    assert moved != text and all(piece in " ".join(moved.split()) for piece in others)
    with pytest.raises(ValueError, match="0 places say 'no such 5 words'"):
        _pages.told_again(text, ("no such 5 words",))


@pytest.mark.parametrize("page", ["README.md", "docs/findings.md", "docs/index.md"])
def test_a_page_leads_to_the_newest_report(page):
    found = re.findall(_pages.FRONT, (ROOT / page).read_text(encoding="utf-8"))
    assert found == [str((_pages.newest() / "index.html").relative_to(ROOT))]


@pytest.mark.parametrize("page", WRITTEN)
def test_no_other_number_is_on_the_page(page):
    """Each is computed from a record, a figure of the reports (data/*.yaml), or named here."""
    data = "".join((ROOT / "data" / name).read_text(encoding="utf-8") for name in ("claims.yaml", "evidence.yaml"))
    known = set(re.findall(NUMBER, " ".join(_pages.sentences()[page]) + data.replace(",", ""))) | WRITTEN[page]
    assert {number for number in re.findall(NUMBER, prose(page).replace(",", "")) if number not in known} == set()


def arithmetic() -> dict[str, dict[str, float]]:
    """Page about verdicts -> its numbers, as printed, with the arithmetic that gives each: no run changes them."""
    device, floats, blocks = reported.machine(), reported.float32_bytes(), reported.block_bytes()
    least = {width: 1e3 * seconds for width, seconds in reported.least_by_width().items()}
    asked, times = (5, 5, 10), evidence.get("client-latencies").value
    printed = dict(
        zip(("67", "328", "950"), (count / seconds for count, seconds in zip(asked, times, strict=True)), strict=True)
    )
    guessed = {"111": 5e3 / 45, "10.0": 5e3 / 500, "9.09": 10e3 / 1100}  # ms
    cold, later = reported.least_tokens()
    before, kept = evidence.get("token-before-cache").value, evidence.get("token-kept").value
    memory = {"120": device["read_gbps"]}
    limit, weights, held = 4 << 30, reported.elements(), 4 * reported.elements()
    return {
        "docs/verdicts_caches.md": memory | printed | guessed | {
            "0.12": device["read_gbps"] / 1e3,
            "8.171": weights / 1e9, "30.44": held / 2**30, "4.94": blocks / 1e9, "272": least["float32"],
            "136": least["float16"], "68": least["int8"], "41": least["blocks of the file"], "7.6": held / limit,
            "13.1": 100 * limit / held, "13": 100 * limit / held, "4.2": 8 * limit / weights, "4.9": 100 * (1 - 3896.3 / 4096),
            "36": 1100 * floats / 1e12, "16.3": 500 * floats / 1e12, "2.5": 500 * blocks / 1e12,
            "3.7": 1e9 * device["read_gbps"] / floats, "24": 1e9 * device["read_gbps"] / blocks, "1.9": held / (16 << 30),
            "1.6": 100 * (512 << 20) / held, "2.0": 100 * reported.attention_share(512), "2.19": 2 * 212 / 194,
            "1.02": 1 / (1 - reported.attention_share(512)),
        },
        "docs/verdicts_tiles.md": {
            "15784": 1e3 * cold, "4344": 1e3 * (cold - later), "27.5": 100 * (1 - later / cold), "15.8": cold, "78.9": 5 * cold,
            "11.4": later, "57": 5 * later, "61.5": cold + 4 * later, "308": 5 * (cold + 4 * later), "12.9": 100 * 20 / 155,
            "1.2": 0.15 * 8, "132": 0.85 * 155, "60": 150 * 0.4, "10.8": 155 * 50 * 5 / 3600, "8.0": 5 * 96 / 60,
            "6.5": 295 * 5 * cold / 3600,
        },
        "docs/verdicts.md": memory | printed | {
            "142": min(kept) - before, "175": max(kept) - before, "30.44": held / 2**30,
        },
    }  # fmt: skip


WITHOUT_A_SOURCE = {  # numbers of these pages that nothing computes: counts, names, what a test asks for
    "docs/verdicts_caches.md": {"2000", "404", "4096.3"},  # orders drawn; a status; where the log still fits
    "docs/verdicts_tiles.md": set(),
    # a page, an interval, "nearly done", a former run, a version, GB/s of another machine
    "docs/verdicts.md": {"08", "99", "1.3", "8.3", "0.2", "0.90", "13"},
}


@pytest.mark.parametrize("page", WITHOUT_A_SOURCE)
def test_a_number_of_the_pages_of_verdicts_is_that_of_its_arithmetic_or_of_the_record(page):
    """They described notebooks that no longer existed, with their numbers; 2.8% of attention stood for 2.0%."""
    numbers = set(re.findall(NUMBER, prose(page).replace(",", "")))
    for told, value in arithmetic()[page].items():
        digits = len(told.partition(".")[2])
        assert told in numbers and f"{value:.{digits}f}" == told, (told, value)
    data = "".join((ROOT / "data" / name).read_text(encoding="utf-8") for name in ("claims.yaml", "evidence.yaml"))
    known = set(re.findall(NUMBER, data.replace(",", ""))) | WITHOUT_A_SOURCE[page] | arithmetic()[page].keys()
    assert numbers - known == set()


def test_readme_names_no_commit():
    assert not re.search(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7}\b", (ROOT / "README.md").read_text(encoding="utf-8"))


def test_what_a_run_takes_is_one_number_everywhere():
    """README said 5 GB of disk for quick, and the page on your model 3."""
    amounts = lambda text: set(re.findall(r"\d+ GB", text))  # noqa: E731
    costs = {name: amounts(profile.cost) for name, profile in PROFILES.items()}
    rows = re.findall(r"^\| `(\w+)`[^|]*\|(.*)$", (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: amounts(row) for name, row in rows if name in costs} == costs
    readme = re.search(r"make reproduce .*", (ROOT / "README.md").read_text(encoding="utf-8"))[0]
    assert amounts(readme) == costs["quick"]


def test_one_version_everywhere():
    """kit_version of a record is that of the package, its metadata, the citation and the newest entry of the changelog."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(r"^## (\d+\.\d+\.\d+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {kit.__version__, project["version"], str(cited["version"]), newest[1]} == {kit.__version__}
    assert str(cited["date-released"]) == newest[2]


UNPUBLISHED = r"pip install [^\n]*gguf-kit|gguf-kit\[\w"


def test_what_is_not_published_is_installed_from_a_checkout():
    """No page, message or test tells anybody to install gguf-kit by its name from the index."""
    told = [*PAGES, *(path for room in ("kit", "tests", "notebooks", "runpod") for path in (ROOT / room).rglob("*.*"))]
    found = [path for path in told if path.suffix in (".md", ".py", ".ipynb", ".sh")]
    assert len(found) > 200
    assert [path.name for path in found if re.search(UNPUBLISHED, path.read_text(encoding="utf-8"))] == ["test_docs.py"]


def test_what_explain_prints_is_recorded_and_shown_in_whole_sections(tmp_path, monkeypatch):
    """README ended at "..." where the change was, and showed a first guess above the limit of the table."""
    printed = "a file\nFirst guess: 61.4\n(at 60 GB/s)\n\nbytes\n\nspeeds\n\nWith kit: change\n\n" + "A TABLE\n" + "row\n" * 30
    for pages in (_pages, _records):
        monkeypatch.setattr(pages, "REFERENCE", tmp_path)
    said = {"kit explain tiny": printed, "kit explain busy": "Busy machine: others used 1.0 of 2 cores\n"}
    way = {"way": "blocks", "by": "measured", "measured": 0.04, "predicted": 0.05, "least": 0.02}
    slow = way | {"way": "all kept", "by": "predicted", "predicted": 0.3}
    peer = {"name": "llama.cpp, mmap", "seconds": 0.03}
    said["kit explain tiny --json"] = json.dumps({"busy": False, "advice": [slow, way], "answer": {"peer": peer, "table": []}})
    said["kit explain busy --json"] = json.dumps({"busy": True, "advice": [], "answer": {"peer": None, "table": []}})
    run = lambda words, **_: subprocess.CompletedProcess([], 0, said[f"kit {' '.join(words[1:])}"])  # noqa: E731
    monkeypatch.setattr(_pages.subprocess, "run", run)
    monkeypatch.setattr(_pages.machine, "describe", dict)
    monkeypatch.setattr(_pages.machine, "machine_id", lambda: "some-cpu")
    assert _pages.record("tiny").parent == tmp_path / "some-cpu" / "explain"
    assert _records.explanation()[0]["ways"] == {
        "blocks": [0.04, 0.02, "measured"], "all kept": [0.3, 0.02, "predicted"], "llama.cpp, mmap": [0.03, 0.02, "measured"],
    }  # fmt: skip
    with pytest.raises(ValueError, match="nothing was recorded: other processes used the machine"):
        _pages.record("busy")
    assert _pages.explained() == (f"kit {kit.__version__} on Some", "kit explain tiny", printed)
    assert _pages.block(1).splitlines()[:10] == [
        *"    $ kit explain tiny|    a file||    bytes||    speeds||    With kit: change||    ...".split("|")
    ]
    assert _pages.block().count("    row\n") == 30


def test_docs_say_where_a_prompt_is_rounded_to_16_bits(monkeypatch):
    """For a decode that rounds, "KL 0 nats" of a prompt that does not was printed, on some CPUs."""
    said = (ROOT / "docs" / "speeds.md").read_text(encoding="utf-8")
    said = " ".join(said.split()).partition("A prompt is rounded to sixteen bits with ")[2].split(". ")
    tiers = {"AMX": "avx512", "AVX-512": "avx512", "AVX2": "avx2", "Arm": "neon", "plain x86-64": "plain"}
    assert {*gemm_codes.TILES} - {"amx"} <= {*tiers.values()}
    for name, tier in tiers.items():
        monkeypatch.setattr(gemm_codes, "tier", lambda tier=tier: SimpleNamespace(value=tier))
        monkeypatch.setattr(gemm_codes, "matrix", lambda name=name: name == "AMX")
        assert linear.rounds_alike("int8") == (tier not in gemm_codes.TILES), "with finer scales than a decode"
        assert (name in said[0], name in said[1]) == (linear.rounds_alike("int16"), not linear.rounds_alike("int16")), name


def test_the_parts_of_a_token_in_the_docs_are_those_of_page_09_of_the_run():
    """Page 09 had 4.14 ms for the output matrix, and docs/explain.md 2.09 ms, of one token."""
    record, where = _records.explanation()
    if where != _records.newest().parent.name:
        pytest.skip("the newest run and the newest explain are of two machines")
    page, part = _Page(), r"^(\w+(?: and the rest)?) +[\d.]+% +([\d.]+ (?:us|ms|s)) "
    page.feed((_records.newest() / "09_your_model.html").read_text(encoding="utf-8"))
    heads = [table for table in page.tables if any("from blocks" in row for row in table)]
    shown = {row[0]: row[-1] for table in heads for row in table if row}
    said = record["output"].partition("WHERE A TOKEN'S TIME GOES")[2].partition("\n\n")[0]
    printed = dict(re.findall(part, said, re.MULTILINE))
    assert len(printed) > 5 and {name: shown.get(name) for name in printed} == printed
