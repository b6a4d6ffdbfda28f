"""Predictions for machines that are not here."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import kit
from kit.errors import ReportError
from kit.gguf import writer
from kit.gguf.uses import Use, bytes_used, uses_of
from kit.lab.commands import cli
from kit.lab.explaining import elsewhere, sentences
from kit.lab.explaining.elsewhere import GUESS, KEPT, LAZY, LOCKED, MAPPED, READ
from kit.lab.findings import reported
from kit.lab.measuring.machine import peaks
from kit.lab.synthetic.geometry import GEOMETRIES, Geometry
from kit.lab.synthetic.write import cached_model
from kit.model.hyperparameters import read_config
from kit.units import format_bytes

M4 = "apple-m4-16gb"


def test_every_machine_has_sources_and_guesses_that_say_so():
    rows = peaks().dropna(subset="memory_gib")
    assert len(elsewhere.machines()) == rows["memory_gib"].map(len).sum()  # no chip twice with the same memory
    assert rows["source"].str.startswith(("Apple", "LPDDR")).all() and (rows["read_gbps"] > 60).all()
    for name in elsewhere.machines():
        figures = elsewhere.machine(name).figures
        guessed = {figure for figure, (_, why) in figures.items() if why.startswith(GUESS)}
        own = {"cpu_gbps"} if not name.startswith("apple-m4-") or "pro" in name or "max" in name else set()
        assert guessed == set(figures) - {"read_gbps", "cpu_gbps"} | own, name
        assert figures["cpu_gbps"][0] < figures["read_gbps"][0]
    assert elsewhere.machine(M4, 1 << 30).figures["room_gib"] == (1.0, "as given")
    with pytest.raises(ReportError, match=r"'apple-m9' is not known; choose one of apple-.* in all\); did you mean apple-"):
        elsewhere.machine("apple-m9")


def test_the_list_of_machines_has_each_name():
    told = CliRunner().invoke(cli.main, ["explain", "any", "--machine", "list"]).stdout
    chips = [line.replace(",", "").split() for line in told.splitlines()]
    names = [f"{chip}-{size}" for chip, *sizes in chips for size in sizes]
    assert sorted(names) == sorted(elsewhere.machines())
    told = CliRunner().invoke(cli.main, ["explain", "any", "--machine", "list", "--json"]).stdout
    assert json.loads(told)["machines"] == sorted(elsewhere.machines()), "--json was a text"


@pytest.mark.parametrize("words", [
    *(f"any {how} {other}" for how in ("--quick", f"--machine {M4}") for other in ("--tokens 16", "--skew 1", "--thorough")),
    *(f"any --quick {other}" for other in ("--report x", "--figure x.png", "--engine kit", f"--machine {M4}", "--all")),
    "http://127.0.0.1:1 --quick",
])  # fmt: skip
def test_an_option_without_effect_is_refused(words):
    """What runs nothing took --tokens and --skew, silently, and with --report wrote nothing."""
    done, other = CliRunner().invoke(cli.main, ["explain", *words.split()]), re.findall(r" (--\w+)", words)[-1]
    said = f"leave out {other}" if words.startswith("any") else "leave out a server"
    assert done.exit_code == 2 and said in done.stderr


def test_what_fits_is_read_from_memory_and_what_does_not_from_where_it_lies():
    uses = [Use(f"blk.{layer}.ffn_up.weight", 1_600_000_000, 1_000_000_000) for layer in range(3)]
    there = elsewhere.machine(M4, 4_000_000_000)
    found = elsewhere.ways(there, uses, (1.0, 0.5))
    assert found.loc[[MAPPED, LOCKED, READ], "predicted"].round(6).tolist() == [round(3 / 103, 6)] * 3
    assert found.loc[[MAPPED, READ], "comes in"].tolist() == [3 / 0.73, 3 / 2.7] and found.loc[MAPPED, "least"] == 3 / 120
    assert found["fits"].to_dict() == {MAPPED: True, LOCKED: True, READ: True, KEPT: False, LAZY: True}
    # 19.2 GB of float32 go through the compressor, their half to the swap and back; 5.6 GB of that half cannot stay
    assert found.loc[KEPT, "predicted"] == pytest.approx(19.2 / 103 + 19.2 / 4 + 2 * 9.6 / 2.7, rel=1e-6)
    assert found.loc[KEPT, "least"] == pytest.approx(5.6 / 2.7, rel=1e-6)
    found = elsewhere.ways(elsewhere.machine(M4, 2_000_000_000), uses, (1.0, 0.5))
    assert found.loc[MAPPED, "predicted"] == pytest.approx(3 / 103 + 3 / 0.73)  # all go round
    assert found.loc[LOCKED, "predicted"] == pytest.approx(3 / 103 + 1 / 0.73)
    assert found.loc[READ, "predicted"] == pytest.approx(3 / 103 + 3 / 4 + 2 * 3 / 2.7)
    assert found.loc[[MAPPED, LOCKED, READ], "least"].tolist() == pytest.approx([1 / 2.7] * 3)
    assert found.loc[LOCKED, "held"] == 2e9
    told = elsewhere.says(there, found, (1.0, 0.5))
    assert all(part in told for part in ("do not fit", "to 100%", "to 50%", "swap"))


def test_a_mixture_brings_in_what_its_tokens_choose():
    uses = [Use("blk.0.ffn_up_exps.weight", 16_000_000_000, 8_000_000_000, 8, 128)]
    found = elsewhere.ways(elsewhere.machine(M4, 4_000_000_000), uses, (1.0, 1.0))
    assert found.loc[MAPPED, "predicted"] == pytest.approx(0.5 / 103 + 0.25 / 0.73)


def test_the_reports_machine_holds_their_blocks_and_not_their_float32():
    found = elsewhere.ways(elsewhere.machine(M4), reported.uses(), (1.0, 0.9))
    assert found.loc[MAPPED, "fits"] and not found.loc[KEPT, "fits"]
    assert found.loc[MAPPED, "least"] == pytest.approx(reported.least_seconds(reported.block_bytes()), rel=1e-3)
    assert found.loc[KEPT, "predicted"] > 100 * found.loc[MAPPED, "predicted"]


PUBLISHED = [  # machine, uses of a token, seconds of a token that somebody measured with llama.cpp, where
    ("apple-m4-16gb", reported.uses("llama-3.1-8b"), 1 / 20.87, "brand-o/normiebench, issue 3 (Metal)"),
    ("apple-m1-max-64gb", reported.uses("llama-3.1-8b"), 1 / 46.2, "brand-o/normiebench, issue 40 (Metal)"),
    ("apple-m1-8gb", [Use("w", 6_740_000_000, int(68.2e9 * 0.0557))], 0.0712, "llama.cpp, pull request 1642 (CPU; its bytes)"),
]


@pytest.mark.parametrize("name, uses, seconds, where", PUBLISHED)
def test_a_token_from_blocks_that_fit_takes_what_people_measured(name, uses, seconds, where):
    """docs/faq.md says by how much."""
    predicted = elsewhere.ways(elsewhere.machine(name), list(uses), (1.0, 1.0)).loc[MAPPED, "predicted"]
    assert 1.0 <= seconds / predicted <= 1.15, where


def counted(page: np.ndarray) -> int:
    """Bits of a page of 1,024 words, word by word."""
    places, bits = [None] * 16, 0
    for word in map(int, page):
        place = word // 1024 % 16
        if word == 0:
            bits += 2
            continue
        bits += 6 if places[place] == word else 16 if places[place] and places[place] // 1024 == word // 1024 else 34
        places[place] = word
    return bits


def test_the_compressor_against_one_that_goes_word_by_word():
    random = np.random.default_rng(0)
    near = 0x3F800000 + random.integers(0, 1 << 14, 1024)
    pages = np.stack([random.integers(0, 1 << 32, 1024), near, random.integers(0, 3, 1024), np.zeros(1024)]).astype(np.uint32)
    expected = [min(1.0, counted(page) / 32768) for page in pages]
    assert [elsewhere.wkdm(page) for page in pages] == pytest.approx(expected, rel=1e-12)
    assert elsewhere.wkdm(pages) == pytest.approx(np.mean(expected)) and expected[0] == 1 > expected[1] > expected[3] == 1 / 16
    assert elsewhere.wkdm(pages[0, :5]) == 1.0  # less than a page


def test_explain_for_a_machine_that_is_not_here(monkeypatch):
    path = cached_model("tiny-llama", "Q4_K_M")
    monkeypatch.setattr("kit.lab.measuring.machine.probe", lambda: pytest.fail("nothing is measured"))
    run = lambda *more: CliRunner().invoke(cli.main, ["explain", str(path), "--machine", *more])  # noqa: E731
    text = run(M4).output
    assert f"PREDICTED FOR {M4}" in text and "120 GB/s" in text and text.count("a guess:") == 5
    told = json.loads(run(M4, "--memory", "64KiB", "--json").output)
    assert {row["way"]: row["fits"] for row in told["ways"]} == dict.fromkeys((MAPPED, LOCKED, READ, KEPT, LAZY), False)
    with kit.open(path) as file:
        found = elsewhere.ways(elsewhere.machine(M4, 64 << 10), uses_of(file), elsewhere.compressibility(file))
    assert [row["predicted"] for row in told["ways"]] == pytest.approx(found["predicted"].tolist())
    assert run("apple-m9").exit_code == 2 and "apple-m1-8gb" in run("apple-m9").output


def test_explain_on_a_mac_says_what_becomes_of_what_does_not_fit(monkeypatch):
    with kit.open(cached_model("tiny-llama", "Q4_K_M")) as file:
        study = SimpleNamespace(room=SimpleNamespace(fits=False), file=file)
        assert sentences.mac(study) == ""
        monkeypatch.setattr(sentences, "cpu_facts", lambda: {"memory": "unified"})
        assert "these blocks to 100%" in sentences.mac(study)
        study.room.fits = True
        assert sentences.mac(study) == ""


_LARGE = {  # a mixture with a table of n-grams, as Qwen 4's trial has them
    "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 4,
    "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.time_step_rank": 32, "ssm.group_count": 16,
    "expert_count": 512, "expert_used_count": 10, "expert_feed_forward_length": 384, "hyper_connection.count": 4,
    "expert_shared_feed_forward_length": 384, "hyper_connection.low_rank": 128, "attention.indexer.head_count": 16,
    "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048, "ple.layers": [2], "ple.ngram_size": 3,
    "attention.compress_ratios": [4 * (layer % 4 == 3) for layer in range(48)], "ple.heads_per_ngram": 8,
    "ple.conv_kernel": 4, "ple.eos_token_id": 2, "embedding_length_per_layer_input": 160,
    "ple.layer_multipliers": np.array([3, 5, 7], np.uint64), "ple.head_vocab_sizes": np.full(16, 20_000_000, np.uint64),
    "ple.head_offsets": np.arange(16, dtype=np.uint64) * 20_000_000,
}  # fmt: skip


def test_a_mixture_of_125_billion_weights_with_a_table_that_is_read_by_rows(tmp_path, monkeypatch):
    """For a machine of 128 GB and for this one, from a file of zeros: a token reads sixteen rows of the table, which may stay
    on the disk."""
    monkeypatch.setattr("kit.lab.measuring.machine.probe", lambda: pytest.fail("nothing is measured"))
    monkeypatch.setattr(elsewhere, "compressibility", lambda file: (1.0, 1.0))
    words = GEOMETRIES["qwen3-30b-a3b"].vocabulary
    large = Geometry("large", "qwen4exp", 48, 2560, 384, 16, 2, 256, 262144, words, 1e7, 1e-6, more=_LARGE)
    specs, path = large.tensors("Q4_K_M"), tmp_path / "large.gguf"
    head = writer.header(large.metadata("Q4_K_M"), specs)
    with path.open("wb") as handle:
        handle.write(head)
        handle.seek(len(head) + sum(writer.padded(spec.nbytes) for spec in specs) - 1)
        handle.write(b"\1")
    assert 120e9 < sum(spec.elements for spec in specs) < 130e9
    with kit.open(path) as file:
        uses = uses_of(file)
        config = read_config(file)
    table = next(use for use in uses if use.name == "per_layer_token_embd.weight")
    assert (table.used, table.of) == (16, 320_000_000) and table.nbytes > 25 << 30
    blocks = sum(use.nbytes for use in uses)
    assert bytes_used([table]) < 1e-6 * table.nbytes and bytes_used(uses) < 0.05 * blocks
    found = CliRunner().invoke(cli.main, ["explain", str(path), "--machine", "apple-m4-max-128gb", "--json"])
    assert found.exit_code == 0, found.output
    ways = {row["way"]: row for row in json.loads(found.stdout)["ways"]}
    assert ways[MAPPED]["fits"] and ways[MAPPED]["held_bytes"] < blocks - table.nbytes * 0.99
    assert not elsewhere.ways(elsewhere.machine(M4), uses, (1.0, 1.0)).loc[MAPPED, "fits"]
    study = SimpleNamespace(uses=uses, room=SimpleNamespace(limit=16 << 30, fits=False, beside=1 << 30), whole=0, runs=False)
    told = sentences.fits(study)
    assert told.startswith("No: ") and format_bytes(sum(use.nbytes for use in uses if use.is_rows)) in told
    assert sum(layer.mixer.memory.read(32_768) for layer in config.layers) < bytes_used(uses)
