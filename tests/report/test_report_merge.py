"""Several runs: what changed beyond noise, machines side by side, one file to send."""

import json
import re
import shutil
import zipfile
from dataclasses import replace

import documented
import numpy as np
import pytest
from click.testing import CliRunner

from kit.lab.claims import runs as several
from kit.lab.claims.records import Record
from kit.lab.commands.cli import main


def invoke(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def record(samples, quantity="q", verdict="", **parameters):
    return Record(run_id="r", notebook="n", quantity=quantity, unit="s", samples=list(samples), parameters=parameters,
                  verdict=verdict, reason="r" if verdict else "")  # fmt: skip


def test_noise_is_not_a_change_and_a_shift_is():
    generator = np.random.default_rng(1)
    same = changed = 0
    for _ in range(100):
        a, b = generator.normal(10, 1, (2, 9))
        same += several.changes([record(a)], [record(b)], resamples=500).iloc[0].state == "same"
        changed += several.changes([record(a)], [record(b + 5)], resamples=500).iloc[0].state == "changed"
    assert same >= 95
    assert changed >= 95


def test_the_interval_covers_the_true_difference():
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(100):
        a, b = generator.normal(10, 1, 25), generator.normal(12, 1, 25)
        low, high = several.median_difference(a, b, 0.95, 500, generator)
        hits += low <= 2 <= high
    assert 88 <= hits <= 100


def test_few_samples_are_not_called_a_change():
    assert several.changes([record([1.0])], [record([2.0])]).iloc[0].state == "too few samples"
    assert several.changes([record([1.0, 1.1, 1.2])], [record([2.0, 2.1, 2.2])]).iloc[0].state == "too few samples"
    assert several.changes([record([1.0] * 5)], [record([2.0] * 5)]).iloc[0].state == "changed"
    assert several.changes([record([3.0])], [record([3.0])]).iloc[0].state == "same"
    for some in ([1.0] * 2 + [2.0] * 3, [1.0] * 2 + [0.0] * 3):  # resampled, half of it has the other's median
        assert several.changes([record([1.0] * 5)], [record(some)]).iloc[0].state == "same"
    three, more = [record([1.0, 1.1, 1.2])], [record([2.0, 2.1, 2.2])]  # in 2 of 20 orders: one time in ten
    assert several.changes(three, more, confidence=0.9).iloc[0].state == "changed"


def test_records_pair_by_what_they_measure():
    a = [record([1.0], depth=1), record([5.0], depth=2), record([7.0], "gone")]
    b = [record([5.0], depth=2), record([1.0], depth=1), record([8.0], "new")]
    assert sorted(several.changes(a, b)[["quantity", "state"]].itertuples(index=False, name=None)) == [
        ("gone", "only in A"), ("new", "only in B"), ("q", "same"), ("q", "same"),
    ]  # fmt: skip
    there = several.changes([record([1.0], model="/a/m.gguf")], [record([1.0], model="/b/m.gguf")])
    assert list(there["state"]) == ["same"]


def test_another_verdict_matters():
    change = several.changes([record([1.0], verdict="reproduced")], [record([1.0], verdict="impossible")]).iloc[0]
    assert change.matters
    assert change.state == "same"


def test_what_matters_comes_first_with_its_ratio_and_interval():
    empty = Record(run_id="r", notebook="n", quantity="empty", unit="s", reason="r", status="skipped")
    a = [record([3.0], "even"), record([4.0], "gone"), record([2.0] * 5, "slower"), empty]
    b = [record([3.0], "even"), record([5.0] * 5, "slower"), empty]
    table = several.changes(a, b)
    assert [*table["quantity"]] == ["slower", "gone", "even", "empty"] and [*table["matters"]] == [True, False, False, False]
    assert table.iloc[0][["a", "b", "ratio", "low", "high"]].tolist() == [2, 5, 2.5, 3, 3]
    assert [*table["state"]][1:] == ["only in A", "same", "same"] and table.iloc[1]["ratio"] is None
    measured = record([1.0], "empty")
    assert several.changes([empty], [measured]).iloc[0].state == "changed" != several.changes([empty], [empty]).iloc[0].state


@pytest.fixture
def slower(finished, tmp_path):
    """A copy of the finished run whose one verdict has ten times the samples, and whose `open` is gone."""
    copy = tmp_path / "slower"
    shutil.copytree(finished, copy)
    log = copy / "01_first_token.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows[0]["samples"] = [30.0, 31.0, 32.0, 33.0, 34.0, 35.0, 36.0]
    rows[0]["median"] = 33.0
    log.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], *rows[2:])))
    return copy


def test_diff_says_what_changed_and_exits_with_it(finished, slower):
    result = invoke("diff", finished, slower)
    assert result.exit_code == 1
    assert "x 16.5" in result.stdout
    told = json.loads(invoke("diff", finished, slower, "--json").stdout)
    assert told["schema_version"] == 1 and not documented.undocumented("report diff", told)
    rows = told["rows"]
    assert [row["state"] for row in rows if row["state"] != "same"] == ["changed", "only in A"]
    assert 27 <= rows[0]["low"] <= 31 <= rows[0]["high"] <= 35
    assert invoke("diff", finished, finished).exit_code == 0
    assert invoke("diff", finished, finished.parent / "notebooks").exit_code == 2


def test_merge_puts_machines_side_by_side(finished, slower, tmp_path):
    out, busy = tmp_path / "both", {"busy": "other processes use 2.0 cores"}
    with open(slower / "01_first_token.jsonl", "a") as log:
        log.write(replace(record([1.0]), notebook="01_first_token", state=busy).to_json() + "\n")
    result = invoke("merge", finished, slower, "--out", out)
    assert result.exit_code == 0
    assert result.stdout.strip() == str(out / "index.html")
    text = (out / "index.html").read_text()
    for name in (finished.name, "slower"):
        assert f'href="{name}/index.html"' in text
        assert (out / name / "01_first_token.html").exists()
    assert "2.00 s" in text
    assert "33.0 s" in text
    said = re.search(r"Busy, so no comparison</th>(.*)</tr>", text)[1]
    assert re.findall(r"<td>(.*?)</td>", said)[-1] == "01_first_token", "the run that was disturbed says so"
    assert "<img" not in text
    assert invoke("merge", finished, "--out", out).exit_code == 2, "a folder that holds something is left alone"
    again = tmp_path / "again"
    assert invoke("merge", out, "--out", again).exit_code == 0, "a merged folder is a folder of runs"
    assert (again / "slower" / "run.json").exists()


def test_merge_refuses_what_holds_no_run_and_names_equal_ones_apart(finished, slower, tmp_path):
    assert "has no run" in invoke("merge", finished.parent / "notebooks", "--out", tmp_path / "x").stderr
    twin = tmp_path / "elsewhere" / "slower"
    shutil.copytree(slower, twin)
    result = invoke("merge", slower, twin, "--out", tmp_path / "y")
    assert result.exit_code == 2
    assert "rename the folder" in result.stderr


def test_pack_makes_one_zip_that_unpacks_to_the_run(finished, tmp_path):
    result = invoke("pack", finished, "--out", tmp_path / "sent.zip")
    assert result.exit_code == 0
    with zipfile.ZipFile(tmp_path / "sent.zip") as archive:
        assert archive.testzip() is None
        assert archive.read(f"{finished.name}/index.html") == (finished / "index.html").read_bytes()
        assert {f"{finished.name}/{path.name}" for path in finished.iterdir()} == set(archive.namelist())
    assert invoke("pack", finished, "--out", tmp_path / "no" / "sent.zip").exit_code == 2


def test_what_is_joined_or_packed_is_not_written_to(finished):
    before = {path: path.read_bytes() for path in finished.iterdir()}
    (finished.parent / "link").symlink_to(finished)
    for command in (
        ("merge", finished, "--out", finished / "both"),
        ("pack", finished, "--out", finished / "index.html"),
        ("pack", finished, "--out", finished.parent / "link" / "report.zip"),
    ):
        result = invoke(*command)
        assert result.exit_code == 2 and "is inside the input" in result.stderr
    assert {path: path.read_bytes() for path in finished.iterdir()} == before


def test_html_renders_the_same_pages_again(slower):
    before = (slower / "04_after.html").read_text()
    (slower / "04_after.html").unlink()
    assert invoke("html", slower).exit_code == 0
    assert (slower / "04_after.html").read_text() == before
    assert "33.0 s" in (slower / "index.html").read_text()


def test_the_front_page_of_a_run_without_its_small_pictures_has_the_figures(slower):
    (slower / "01_first_token.png").unlink()
    assert invoke("html", slower).exit_code == 0
    front, page = ((slower / name).read_text() for name in ("index.html", "01_first_token.html"))
    figure = re.search(r'<figure>.*?<img src="(data:image/png[^"]+)"', page)[1]
    assert f'src="{figure}" alt="A figure of 01_first_token"' in front
