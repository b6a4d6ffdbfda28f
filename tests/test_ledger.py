"""The ledger: no claim left out, verdicts by the stated rule, links to cells, hostile text, the picture."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import cells
import documented
import nbformat
import pandas as pd
import pytest
from click.testing import CliRunner
from contradictions import wrong_ratios
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import ReportError
from kit.lab.claims import book, records
from kit.lab.claims import runs as several
from kit.lab.claims import table as claims
from kit.lab.claims.session import Session
from kit.lab.commands import cli
from kit.lab.measuring import disk, drift
from kit.lab.report import index
from kit.lab.report import run as runs
from kit.lab.tables import shown
from kit.system.files import read_yaml
from kit.system.paths import ROOT, data_file

EMPTY = dict(run_id="r", quantity="q", unit="s")


def record(claim="", verdict="", **given):
    given = {"accept": [0, 2], "interval": [1.0, 1.0]} | given
    given = EMPTY | {"samples": [1.0], "notebook": "01_first_token"} | given
    return records.Record(claim=claim, verdict=verdict, reason="because" if verdict else "", **given)


def entry(verdicts, claim="cold-inference", **given):
    parts = tuple(book.ClaimPart(record(claim, verdict, **given), "") for verdict in verdicts)
    return book.Entry(claims.get(claim), parts)


def write(folder, *rows, name="01_first_token"):
    for row in rows:
        records.append(folder / f"{name}.jsonl", row)


def test_an_empty_folder_lists_every_claim_and_its_notebook(tmp_path):
    entries = book.read(tmp_path)
    assert [e.claim.id for e in entries] == list(claims.load())
    assert all(e.verdict == claims.NO_RECORD and e.claim.notebook in e.missing for e in entries)
    assert sum(book.tally(entries).values()) == len(entries)


@given(st.lists(st.sampled_from(list(claims.VERDICTS)), max_size=6))
def test_the_rule(verdicts):
    """Written out, not by an order: bounds first, then what failed, then what held only in ratio."""
    judged = set(verdicts) - {"not measurable here"}
    if not verdicts:
        expected = "no record"
    elif not judged:
        expected = "not measurable here"
    elif "impossible" in judged:
        expected = "impossible"
    elif "contradicts its own figures" in judged:
        expected = "contradicts its own figures"
    elif "not reproduced" in judged:
        expected = "not reproduced"
    elif "undecided here" in judged:
        expected = "undecided here"
    else:
        expected = "reproduced" if judged == {"reproduced"} else "reproduced in ratio"
    found = entry(verdicts)
    assert found.verdict == expected
    assert (found.decisive.record.verdict if found.decisive else "no record") == expected


def test_the_part_that_can_be_compared_decides_among_equals():
    parts = tuple(
        book.ClaimPart(record("first-token-preload", "impossible", unit=unit, quantity=unit), "") for unit in ("GB", "s", "B")
    )
    assert book.Entry(claims.get("first-token-preload"), parts).decisive.record.unit == "s"


def test_links_lead_to_the_cell_that_wrote_the_record(tmp_path):
    write(tmp_path, record(), record("cold-inference", "reproduced"))
    (tmp_path / "01_first_token.html").write_text("")
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now")
    run.notebooks["01_first_token"] = runs.NotebookOutcome("ok", "", 3, 1.0, [0, 1, 2], "now", "d")
    run.save()
    found = {e.claim.id: e for e in book.read(tmp_path)}["cold-inference"]
    assert found.parts[0].link == "01_first_token.html#cell-2"


def test_a_failed_notebook_and_one_without_a_verdict_say_so(tmp_path):
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now")
    run.notebooks["01_first_token"] = runs.NotebookOutcome("failed", "MemoryError", 7, 1.0, [], "now", "d")
    run.notebooks["04_attention"] = runs.NotebookOutcome("ok", "", 7, 1.0, [], "now", "d")
    run.save()
    missing = {e.claim.id: e.missing for e in book.read(tmp_path)}
    assert "cell 7" in missing["cold-inference"] and "MemoryError" in missing["cold-inference"]
    assert missing["blas-500"].startswith("04_attention ")


def test_its_own_records_do_not_count(tmp_path):
    write(tmp_path, record("cold-inference", "reproduced", notebook="08_claims"), name="08_claims")
    assert all(not e.parts for e in book.read(tmp_path))


@pytest.mark.parametrize(("claim", "unit", "expected"), [
    ("tile-295-5", "s", (0.005, 0.005)), ("tile-295-5", "x", (59.0, 59.0)), ("attention-blas-speedup", "x", (10, 20)),
    ("cold-inference", "x", None), ("hypothesis-stats", "s", None),
])  # fmt: skip
def test_the_reported_figure_in_the_unit_of_a_record(claim, unit, expected):
    assert book.reported_in(claims.get(claim), unit) == (pytest.approx(expected) if expected else None)


def test_the_notebook_reads_the_book(tmp_path, invented_machine):
    """Its table has every part, counts each claim once, and its records repeat the count."""
    write(tmp_path, record("cold-inference", "reproduced"), record("cold-inference", "impossible", how="computed"))
    given = dict(quantity="a layer", samples=[100.0], upper=10.0, upper_source="b", notebook="06")
    write(tmp_path, record("layer-50s", "impossible", **given), name="06")
    write(tmp_path, record(quantity="hits", unit="hits", samples=[-5.0], how="counted"))
    ran = cells.run("08_claims", out=tmp_path)
    assert len(ran["ledger"]) == len(claims.load()) + 1 and len(ran["whole"]) == len(claims.load())
    assert "2 are impossible (1 " in ran.words["hows"] and "2 warnings" in ran.words["answer"]
    assert [text.partition(":")[0] for _, text in ran["warned"]] == ["hits", "a layer"]
    assert re.findall(r"\d+", *ran.titles["picture"]) == ["1", "2", str(len(claims.load()) - 2)]
    counts = {row.quantity: row.median for row in records.read([tmp_path / "08_claims.jsonl"])}
    assert counts["claims: impossible"] == 2 and sum(counts.values()) == len(claims.load())


def test_two_values_of_one_quantity_that_cannot_both_be_true_are_found(tmp_path, invented_machine):
    for name, samples in (("05_tile_decode", [0.302, 0.3, 0.31]), ("06_compressed_inference", [0.471, 0.47, 0.475])):
        write(tmp_path, record(quantity="one tile", samples=samples, notebook=name), name=name)
        write(tmp_path, record(quantity="near", samples=[samples[0] / 3 + 1], notebook=name), name=name)
        write(tmp_path, record(quantity="one tile", unit="x", samples=[1.0], notebook=name), name=name)
        write(tmp_path, record(quantity="tiny", samples=[samples[0] ** 9], notebook=name), name=name)
    ran = cells.run("08_claims", "twice", out=tmp_path)
    assert [re.findall(r"^[^:]+|\d+ ms", text) for text in ran["disagree"]] == [["one tile", "302 ms", "471 ms"]]
    assert "3 quantities" in ran.words["twice"] and "1 disagree" in ran.words["twice"]
    (warned,) = records.read([tmp_path / "08_claims.jsonl"])
    assert warned.status == records.WARNED and warned.reason.endswith(ran["disagree"][0])


def table_in(folder, table, **formats):
    """A notebook whose one cell shows a table as pages do."""
    output = nbformat.v4.new_output("display_data", {"text/html": shown(table, **formats).to_html()})
    cell = nbformat.v4.new_code_cell("", id="c", outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "t.ipynb")
    return wrong_ratios(folder / "t.ipynb")


@pytest.mark.parametrize(("column", "right", "wrong"), [
    ("first / before", [4.0, 0.5], [4.0, 0.52]), ("step", [None, 8 / 3], [None, 3 / 8]),
    ("times this machine's", [2.0, 1.5], [2.0, 3.0]),
    ("times as fast", ["1x (measured)", "4x (predicted)"], ["1x (measured)", "4x (measured)"]),
])  # fmt: skip
def test_a_ratio_that_is_not_the_quotient_of_its_row_is_found(tmp_path, column, right, wrong):
    index = pd.MultiIndex.from_tuples([("a", "none"), ("a", "this")], names=["who", "which"])
    table = pd.DataFrame({"first, s": [8e-6, 3e-6], "before, s": [2e-6, 6e-6]}, index)
    table["seconds"], table["GB/s needed"] = table["first, s"], [4.0, 3.0]
    table["predicted, s"], table["measured, s"] = [8.0, 2.0], [6.0, 3.0]
    assert table_in(tmp_path, table.assign(**{column: right}), seconds="{:.2e}") == []
    assert [line.partition(":")[0] for line in table_in(tmp_path, table.assign(**{column: wrong}), seconds="{:.2e}")] == ["c"]


def test_a_column_of_ratios_without_a_rule_is_found(tmp_path):
    table = pd.DataFrame({"times the wind": [1.5], "gain": [2.0], "hits": ["3 of 4"]}, ["way"])
    assert len(table_in(tmp_path, table)) == 1 and len(table_in(tmp_path, table, gain="{:.1f}x")) == 2


def test_what_several_notebooks_show_is_measured_once(tmp_path):
    first, second = (Session(name, profile="smoke", out=tmp_path) for name in ("05_tile_decode", "06_compressed_inference"))
    first.machine = second.machine = type("M", (), {"id": "m"})
    assert first.once("one tile", "s", lambda: [1.0, 2.0]) == second.once("one tile", "s", lambda: [5.0]) == [1.0, 2.0]
    assert second.once("one tile", "ms", lambda: [5.0]) == [5.0]


def test_a_run_has_one_disk(tmp_path, monkeypatch):
    first, second = (Session(name, profile="smoke", out=tmp_path) for name in ("01_first_token", "07_memory_frontier"))
    first.machine = second.machine = type("M", (), {"id": "m"})
    told = [disk.Disk(None, "no way"), disk.Disk(2.3, "past it", (2.1, 2.3))]
    monkeypatch.setattr("kit.lab.measuring.disk.speed", lambda path: told.pop(0))
    assert first.disk(tmp_path).gbps is None  # not known, so it is asked again
    assert first.disk(tmp_path) == second.disk(tmp_path) == disk.Disk(2.3, "past it", (2.1, 2.3)) and not told


def test_a_part_of_the_row_judges_with_the_parameters_of_the_run(tmp_path):
    lab = Session("01_first_token", profile="smoke", out=tmp_path, prompt_tokens=7)
    lab.machine = type("M", (), {"id": "m"})
    given = claims.get("first-token-preload").parts
    measured = lab.verdict("first-token-preload", [500.0, 510.0, 520.0], "because")
    assert "prompt of 7" in measured.quantity and (measured.unit, measured.accept) == (given[0]["unit"], given[0]["accept"])
    assert measured.verdict == "reproduced in ratio" and "because" in measured.reason
    assert lab.verdict("simd", [0.5], part=1).reason.startswith(claims.get("simd").parts[1]["text"])
    assert lab.verdict("fix-pinned", [1.0], "t", quantity="another").quantity == "another"


# --- several runs ------------------------------------------------------------------------------------------------------


def run_of(folder, *rows, profile="quick", machine="m"):
    folder.mkdir()
    for claim, quantity, word in rows:
        given = {"quantity": quantity, "parameters": {"profile": profile, "model": ""}, "machine_id": machine}
        write(folder, record(claim, word, **given))
    return folder


def test_one_verdict_that_flips_between_two_runs_is_found(tmp_path):
    a = run_of(tmp_path / "a", ("cold-inference", "q", "reproduced"), ("layer-50s", "q", "reproduced"))
    b = run_of(tmp_path / "b", ("cold-inference", "q", "impossible"), ("layer-50s", "q", "undecided here"))
    rows = {row.claim: row for row in several.compare([a, b])}
    assert rows["cold-inference"].flips and rows["cold-inference"].verdicts == ("reproduced", "impossible")
    assert rows["layer-50s"].differs and not rows["layer-50s"].flips
    assert not rows["tile-295-5"].differs and rows["tile-295-5"].verdicts == ("no record",) * 2
    found = CliRunner().invoke(cli.main, ["verify", str(a), str(b)])
    assert found.exit_code == 1 and found.output.count("FLIPS") == 1
    assert "layer-50s" in found.output and "tile-295-5" not in found.output
    one = CliRunner().invoke(cli.main, ["verify", str(a), str(a)])
    assert one.exit_code == 2 and "one run" in one.output


@pytest.mark.parametrize(("words", "state"), [
    (("reproduced", "impossible"), "flips"), (("reproduced", "impossible", "no record"), "flips"),
    (("no record", "no record"), "judged in none"), (("reproduced", "undecided here"), "open"),
    (("reproduced", "no record", "undecided here"), "open"), (("reproduced", "no record"), "differs"),
    (("undecided here", "not measurable here"), "differs"), (("undecided here", "undecided here"), "same"),
    (("reproduced", "reproduced"), "same"), (("reproduced in ratio", "reproduced"), "flips"),
])  # fmt: skip
def test_what_several_runs_say_of_a_claim_has_one_state(words, state):
    row = several.ComparedClaim("c", "", words, "undecided here")
    assert (row.state, row.flips, row.differs) == (state, state == "flips", len({*words}) > 1)


def test_one_part_has_its_reason_in_the_claim_s_row_and_several_have_rows_of_their_own(tmp_path):
    parts = ("q", "reproduced"), ("other", "reproduced")
    folders = [run_of(tmp_path / name, *(("cold-inference", *part) for part in parts[:1] + parts[1:] * (name == "b")))
               for name in ("a", "b")]  # fmt: skip
    whole, *below = [row for row in several.compare(folders) if row.claim == "cold-inference"]
    assert whole.reason == "" and [row.quantity for row in below] == ["q", "other"]
    assert all(row.reason for row in below)
    only = run_of(tmp_path / "c", ("cold-inference", "q", "reproduced"))
    [alone] = [row for row in several.compare([folders[0], only]) if row.claim == "cold-inference"]
    assert alone.reason == below[0].reason and alone.quantity == ""


def test_parameters_in_another_order_are_the_same(tmp_path):
    one = record("cold-inference", "reproduced", quantity="q", parameters={"seed": 0, "profile": "quick"})
    other = replace(one, parameters={"profile": "quick", "seed": 0})
    assert several.aligned([[one], [other]]) == [[one, other]]


def test_a_spread_without_a_kind_of_quantity_is_refused(tmp_path):
    folders = [run_of(tmp_path / name, ("cold-inference", "q", "reproduced")) for name in "ab"]
    (tmp_path / "drift.yaml").write_text("# why\n")
    with pytest.raises(ReportError, match=f"no quantity of the kind {next(kind for kind in drift.KINDS)}: name runs"):
        several.keep(tmp_path / "drift.yaml", folders)
    assert (tmp_path / "drift.yaml").read_text() == "# why\n"


def test_machines_are_compared_claim_by_claim(tmp_path):
    a = run_of(tmp_path / "a", ("cold-inference", "q", "reproduced"))
    b = run_of(tmp_path / "b", ("cold-inference", "q", "not reproduced"), machine="other")
    found = CliRunner().invoke(cli.main, ["verify", str(a), str(b), "--across"])
    assert found.exit_code == 0 and "m (1)" in found.output and "other (1)" in found.output and "FLIPS" in found.output
    assert CliRunner().invoke(cli.main, ["verify", str(a), str(a), "--across"]).exit_code == 2


def test_the_spread_that_verdicts_allow_for_is_that_of_the_committed_runs(tmp_path):
    """Of every machine with two committed runs or more; the others borrow, and a run says whose (kit.lab.measuring.drift)."""
    machines = {path.parent: sorted(path.parent.glob("quick*")) for path in (ROOT / "results" / "reference").glob("*/quick")}
    machines = {path.name: folders for path, folders in sorted(machines.items()) if len(folders) > 1}
    rows, text = read_yaml(data_file("drift.yaml")), data_file("drift.yaml").read_text()
    assert {row["machine"] for row in rows} == set(machines)
    for machine, folders in machines.items():
        found, mine = several.spreads(folders), [row for row in rows if row["machine"] == machine]
        assert {row["runs"] for row in mine} == {len(folders)}
        assert {row["id"]: {name: row[name] for name in found["time"]} for row in mine} == found
        (tmp_path / "drift.yaml").write_text(text)
        several.keep(tmp_path / "drift.yaml", folders)
        assert sorted((tmp_path / "drift.yaml").read_text().splitlines()) == sorted(text.splitlines())


def test_the_committed_page_of_pooled_runs_is_what_its_commands_print(monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = (ROOT / "results" / "reference" / "pooled.md").read_text().split("\n    $ ")[1:]
    assert len(blocks) == 3
    for block in blocks:
        command, *lines = block.splitlines()
        words = [word for part in shlex.split(command)[1:] for word in sorted(map(str, Path().glob(part))) or [part]]
        told = CliRunner().invoke(cli.main, words).output.splitlines()
        assert [line.rstrip() for line in told] == [line.removeprefix("    ") for line in lines if line.startswith("    ")]


def test_a_part_that_flips_below_a_claim_that_does_not_is_found(tmp_path):
    """The claim is impossible in both runs; one of its parts is judged both ways."""
    always = ("cold-inference", "bound", "impossible")
    a = run_of(tmp_path / "a", always, ("cold-inference", "part", "reproduced"))
    b = run_of(tmp_path / "b", always, ("cold-inference", "part", "not reproduced"))
    rows = [row for row in several.compare([a, b]) if row.claim == "cold-inference"]
    assert [(row.quantity, row.flips) for row in rows] == [("", False), ("bound", False), ("part", True)]
    told = CliRunner().invoke(cli.main, ["verify", str(a), str(b)]).output
    assert told.index("cold-inference") < told.index("    part"), "a part stands below its claim"
    assert f"{len(claims.load()) - 1} judged in none" in told
    found = CliRunner().invoke(cli.main, ["verify", str(a), str(b), "--json"])
    assert not documented.undocumented("verify", json.loads(found.output))
    assert found.exit_code == 1 and sum(row["flips"] for row in json.loads(found.output)["rows"]) == 1


def test_runs_of_two_experiments_are_not_compared(tmp_path):
    a = run_of(tmp_path / "a", ("cold-inference", "q", "reproduced"))
    b = run_of(tmp_path / "b", ("cold-inference", "q", "reproduced"), profile="smoke")
    for compared in (several.compare, several.machine_rows):
        with pytest.raises(ReportError, match="differ in their profile: 'quick', 'smoke'"):
            compared([a, b])
    write(b, record("cold-inference", "reproduced", parameters={"profile": "quick", "model": "", "device": "cuda"}), name="03")
    c = run_of(tmp_path / "c", ("cold-inference", "q", "reproduced"), profile="smoke")
    with pytest.raises(ReportError, match="differ in their device: 'cpu and cuda', 'cpu'"):
        several.compare([b, c])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportError, match="empty holds no verdicts"):
        several.compare([a, tmp_path / "empty"])
    write(tmp_path / "empty", record("layer-50s", "reproduced", notebook="06", machine_id="m", parameters={"profile": "quick"}))
    with pytest.raises(ReportError, match="no notebook in common"):
        several.compare([a, tmp_path / "empty"])


def test_runs_of_two_models_are_compared_by_what_no_model_changes(tmp_path):
    """A counting slip made one claim N with one model and Q with another, and the two could not be compared."""
    folders = []
    for name, word in (("a", "reproduced in ratio"), ("b", "not reproduced")):
        (tmp_path / name).mkdir()
        given = {"parameters": {"profile": "quick", "model": f"{name}.gguf"}, "machine_id": "m", "quantity": "q"}
        write(tmp_path / name, record("cold-inference", word, how="counted", **given), record("simd", word, **given))
        folders.append(tmp_path / name)
    rows = {row.claim: row for row in several.compare(folders)}
    assert rows["cold-inference"].flips and rows["simd"].state == "judged in none"
    told = CliRunner().invoke(cli.main, ["verify", *map(str, folders)])
    assert told.exit_code == 1 and "different models: " in told.output


def test_the_front_page_and_the_notebook_count_alike(tmp_path):
    """One book: the page's verdict bar has the numbers of the ledger."""
    write(tmp_path, record("cold-inference", "reproduced"), record("cold-inference", "impossible"))
    write(tmp_path, record("cache-4gb-feasible", "undecided here"))
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now", planned=["01_first_token"])
    run.notebooks["01_first_token"] = runs.NotebookOutcome("ok", "", 3, 1.0, [0, 1, 2, 3], "now", "d")
    run.save()
    text = index.write(run).read_text()
    bar = {word: int(count) for count, word in re.findall(r'<li class="tone-[^"]*"><b>(\d+)</b> ([a-z ]+)</li>', text)}
    assert bar == {word: count for word, count in book.tally(book.read(tmp_path)).items() if count}
    assert bar["impossible"] == bar["undecided here"] == 1 and sum(bar.values()) == len(claims.load())
