"""One quantity has one value in all that kit explain prints: limit, memory of a way, process, milliseconds, parts that sum."""

import re
from pathlib import Path
from types import SimpleNamespace

import model_files
import numpy as np
import pandas as pd
import pytest
from contradictions import wrong_shares

import kit
from kit.gguf.uses import bytes_used
from kit.lab.commands import explain
from kit.lab.explaining import answer, answer_table, depth, opportunities, sentences
from kit.lab.explaining.opportunities import Opportunity
from kit.lab.explaining.study import Study
from kit.lab.explaining.to_measure import earlier
from kit.lab.measuring import machine
from kit.lab.measuring.measurements import Reading
from kit.lab.measuring.minutes import Minutes
from kit.lab.predicting.beforehand import Reads
from kit.lab.predicting.ways import BLOCK_WAYS, BLOCKS
from kit.units import format_bytes, format_rate, format_seconds

PACKAGE = Path(kit.__file__).parent


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """(data by key, text, study) of one run that prints all tables; no engine runs, so this process measures the ways."""
    path = model_files.write(tmp_path_factory.mktemp("rendered"), "tiny-llama", "Q4_K_M")
    patch = pytest.MonkeyPatch()
    patch.setattr("kit.lab.explaining.peers.installed", list)
    patch.setattr("kit.lab.measuring.busy.Busy.seen", lambda self, others: self)
    with kit.open(path) as file:
        study = Study(file, machine.probe, 1 << 20, tokens=3)
        taken = [*sentences.sections(study, lambda: None, everything=True)]
        yield {key: value for key, value, _ in taken if key}, "\n".join(text for *_, text in taken if text), study
    patch.undo()


def exact(data) -> dict:
    return next(row for row in data["answer"]["reached"] if row["precision"] == "float32" and not row["holds"])


def test_one_limit(said):
    data, text, study = said
    limit = data["answer"]["table"][0]
    assert limit["kind"] == "limit" and limit["speed"] == pytest.approx(1 / study.least_now)
    printed = re.search(r"^limit of memory +(\S+)", text, re.MULTILINE)[1]
    assert float(printed.replace(",", "")) == pytest.approx(limit["speed"], rel=0.01)
    for row in data["answer"]["table"][1:]:
        assert row["of_limit"] == pytest.approx(min(1.0, row["speed"] / limit["speed"])), "share of another limit"


def test_no_first_guess_is_above_the_best_that_is_known(said, monkeypatch, capsys):
    """README guessed by 64.0 GB/s in its second line, and had read 62.9 in the best minutes known in its last."""
    study = said[2]
    probed = study.limits.machine.read_gbps
    assert Study(study.file, lambda: study.limits, study.memory, seen_gbps=2 * probed).machine.read_gbps == 2 * probed
    given = []
    monkeypatch.setattr(sentences, "sections", lambda study, *_: given.append(study) or iter(()))
    monkeypatch.setattr("kit.lab.explaining.quick.now", lambda: (study.busy, Reads(123.0)))
    explain._explain(study.file, False, False, whole=None, via="", thorough=False, memory=None)
    assert given[0].seen_gbps == 123.0 and "123.0 GB/s" in " ".join(capsys.readouterr().out.split())


def test_a_share_is_what_who_divides_finds(said, monkeypatch):
    """Of the printed numbers of every row; also of ways and llama.cpp that ran in turn, in rounds that differ."""
    _, text, study = said
    ways = "limit of memory|kit, exact|kit, int16|kit, int8"
    printed = re.findall(rf"^(?:{ways})\b.*? ([\d.,]+)(?: ± [\d.,]+)? +(\d+%)", text, re.MULTILINE)
    assert len(printed) >= 2 and wrong_shares(printed) == []
    generator, scale = np.random.default_rng(0), 1e6  # the fastest of this tiny model
    rounds = {"kit": 41.3 * scale, "llama.cpp, mmap": 34.7 * scale}
    seconds = {name: tuple(generator.lognormal(0, 0.2, 6) / speed) for name, speed in rounds.items()}
    nbytes = bytes_used(study.read)
    minutes = Minutes(nbytes, tuple(nbytes * 43.6 * scale * generator.lognormal(0, 0.2, 6) / 1e9), seconds)
    monkeypatch.setitem(vars(study), "minutes", minutes)
    monkeypatch.setitem(vars(study), "engines", {name: Reading(name, "", row, machine="") for name, row in seconds.items()})
    monkeypatch.setitem(study.measured, BLOCKS, Reading(BLOCKS.label, "", seconds["kit"]))
    monkeypatch.setitem(study.measured, BLOCK_WAYS[-1], Reading(BLOCK_WAYS[-1].label, "", (0.01 / scale,) * 3))
    rows = answer_table.ordered(answer.table(answer.of(study)))
    kinds = [row.kind for row in rows if row.of_limit is not None]
    assert kinds[0] == "limit" and {"kit", "peer"} <= {*kinds}
    cells = [(row.told, "" if row.of_limit is None else f"{row.of_limit:.0%}") for row in rows]
    assert wrong_shares(cells) == [] and len(rows) > len(kinds), "what ran faster in another minute has no share"
    assert wrong_shares([("43.6", "100%"), ("41.3 ± 6.0", "92%")]), "the check finds what a reader wrote of"


def test_one_memory_of_a_way_and_one_process(said):
    data, text, study = said
    fits = re.search(r"Yes: (.*?), (.*?) of blocks and (.*?) for the process", " ".join(text.split()))
    assert fits[1] == format_bytes(study.room.nbytes + study.room.beside) and fits[3] == format_bytes(study.room.beside)
    first = data["advice"][0]
    assert format_bytes(first["memory"]) == fits[1], "the same way has one memory in both tables"
    assert {*re.findall(r"([\d.]+ \w+) for the process", " ".join(text.split()))} == {fits[3]}


def test_one_time_of_a_token_and_parts_that_sum_to_it(said):
    data, text, _ = said
    token = exact(data)["seconds"]
    assert sum(row["seconds"] for row in data["parts"]) == pytest.approx(token)
    assert f"WHERE A TOKEN'S TIME GOES: {format_seconds(token)} ({format_rate(1 / token)} tok/s), kit, exact" in text
    whole = sum(row["from blocks"] for row in data["families"] if row["from blocks"] == row["from blocks"])
    assert whole == pytest.approx(token), "the table of --all has the same parts"
    assert data["advice"][0]["measured"] == pytest.approx(token)
    measured = [row for row in data["depths"] if row["by"] == "measured"]
    assert measured[0]["token"] == pytest.approx(token), "a token near 64 positions is the answer's"


def test_a_depth_is_the_sum_of_its_parts_and_grows_or_says_why(said):
    data, text, _ = said
    for row in data["depths"]:
        parts = [value for key, value in row.items() if key not in ("positions", "by", "token")]
        assert sum(parts) == pytest.approx(row["token"])
    measured = [row["token"] for row in data["depths"] if row["by"] == "measured"]
    assert measured == sorted(measured) or "was not slower than one after" in " ".join(text.split())


def test_a_token_s_time_has_tokens_per_second_next_to_it(said):
    """The answer speaks of tokens per second; the tables had milliseconds alone, and the reader divided."""
    data, text, _ = said
    heads = [line.split() for line in text.splitlines() if re.match(r"(positions before|way) .*(token|measured)", line)]
    assert len(heads) == 2 and all("tok/s" in head for head in heads)
    depth_row = next(row for row in data["depths"] if row["by"] == "measured")
    line = next(line for line in text.splitlines() if line.startswith(f"{depth_row['positions']:,}, measured"))
    assert line.split()[-1] == format_rate(1 / depth_row["token"])


def test_no_rate_is_written_with_an_exponent():
    """`At most 4.14e+03 tokens per second`."""
    wrong = re.compile(r"\{[^{}/]*(per_second|speed|bound|fast|slow|rate)['\"\])]*:[<>0-9]*\.\dg}")
    found = [f"{path.name}: {line.strip()}" for path in PACKAGE.rglob("*.py") for line in path.read_text("utf-8").splitlines()
             if wrong.search(line) and "1000" not in line and path.name != "units.py"]  # fmt: skip
    assert not found, found


def test_weights_take_one_time_at_all_depths():
    """A token after 4,096 positions took 56 ms and after 64 took 65 ms, because the machine had changed between them."""
    rows = [{"positions": 64, "by": "measured", "attention": 0.001, depth.REST: 0.064, "token": 0.065},
            {"positions": 4096, "by": "measured", "attention": 0.015, depth.REST: 0.041, "token": 0.056}]  # fmt: skip
    near, far = depth.anchored(rows)
    assert near[depth.REST] == far[depth.REST] == pytest.approx(0.0525)
    assert far["token"] == pytest.approx(0.0675) and far["token"] > near["token"]
    near, far = depth.anchored(rows, 0.0412)
    assert near["token"] == pytest.approx(0.0412) and far["token"] == pytest.approx(0.0552)
    assert "4,096" in depth.falls(rows) and not depth.falls([near, far])
    assert depth.anchored([]) == []


def test_opportunities_gain_and_come_by_their_gain(said, monkeypatch):
    data, text, study = said
    assert all(row["times"] >= opportunities.WORTH for row in data["opportunities"])
    assert "OPPORTUNITIES" in text and "Fine: " in text and opportunities.fine(study, [])
    rows = [Opportunity("float16", "kit's default", 0.3, "predicted", 0.1, "1.00 GiB more memory"),
            Opportunity("int8", "kit's default", 1.26, "measured", 0.03, "quality", "kit generate m.gguf"),
            Opportunity("Q3_K", "llama.cpp", 1.4, "predicted", 0.02, "quality", "kit quants m.gguf")]  # fmt: skip
    monkeypatch.setattr(opportunities, "_ways", lambda study: rows)
    monkeypatch.setattr(opportunities, "_bits", lambda study: [])
    found = opportunities.gather(study)
    assert [each.change for each in found] == ["Q3_K", "int8"], "what loses is no row"
    lines = opportunities.told(study, found).splitlines()
    assert lines[1].split() == ["1.40x", "predicted", "20.0", "ms,", "50", "tok/s", "Q3_K"]
    assert lines[4] == "    kit quants m.gguf"
    assert max(map(len, lines)) <= 80
    study.busy.others = 2.0
    assert opportunities.gather(study) == []
    study.busy.others = 0.0


def test_fewer_bits_are_predicted_where_memory_is_the_limit(said, monkeypatch):
    _, _, study = said
    monkeypatch.setattr(opportunities.answer_table, "NEAR", 0.0)
    by_name = {each.change[:4]: each for each in opportunities._bits(study)}
    assert 1 < by_name["Q3_K"].times < 2 and by_name["Q3_K"].by == "predicted"
    assert by_name["Q3_K"].command.startswith("kit quants ") and "--to Q3_K" in by_name["Q3_K"].command
    lines = opportunities.told(study, [*by_name.values()]).splitlines()
    assert max(len(line) for line in lines if "kit quants" not in line) <= 80, "the name of a way is one word"
    monkeypatch.setattr(opportunities.answer_table, "NEAR", 1.1)
    assert opportunities._bits(study) == [], "arithmetic is the limit: fewer bytes do not help"


def test_the_table_of_rounding_has_whole_names_in_80_columns():
    """It had "preci...", "int16..." and "1,024.0 positions" in 90 columns."""
    names = ["float32", "int16 activations", "int8 activations"]
    row = {"perplexity": 4.68, "perplexity_error": 0.67, "ratio": 1.0, "ratio_error": 2e-3, "kl": 2.4e-08, "kl_error": 3e-09}
    data = pd.DataFrame([row | {"same": 0.999, "tokens": 1024.0, "command": "--linear fused-int16"}] * 3, index=names)
    lines = sentences.rounding(data).splitlines()
    assert max(map(len, lines)) <= 80 and "1,024 positions" in lines[0] and lines[1].split()[0] == "precision"
    assert [line.split()[0] for line in lines[2:]] == ["exact", "int16", "int8"] and "..." not in "".join(lines)


def test_a_time_of_a_busy_page_makes_the_page_that_takes_it_busy(said, monkeypatch):
    """Page 07 said "busy, not a comparison", and the front page gave the same times as shares of the limit, with advice."""
    _, _, study = said
    seen, row = [], Reading("blocks, exact products", "", (0.1, 0.1), others=1.64, by="07_memory_frontier", machine="")
    monkeypatch.setattr("kit.lab.measuring.busy.Busy.seen", lambda self, others: seen.append(others))
    store = SimpleNamespace(known=lambda label, *given, **how: row if label == row.way else None)
    given = {"file": study.file, "predictions": study.predictions, "busy": study.busy, "cut": ()}
    taken = earlier(SimpleNamespace(store=store, by="09", **given))
    assert len(taken) == 1 and seen == [1.64]


def test_a_way_that_is_not_the_fastest_is_in_the_table(said, monkeypatch):
    """int8 had a row only where it was the fastest."""
    _, _, study = said
    for number, way in enumerate(BLOCK_WAYS, start=1):
        monkeypatch.setitem(study.measured, way, Reading(way.label, "", (number * 1e-6,) * 3))
    assert {row.name for row in answer.table(answer.of(study))} >= {"exact", "int16", "int8"}
