"""Runs, their plans and what their pages say, by hand: no notebook runs."""

import os
import zipfile
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import nbformat
import pytest
from invented import MACHINE
from nbformat import v4

from kit.errors import ReportError
from kit.lab.claims import records
from kit.lab.claims import table as claims
from kit.lab.claims.judge import OWN
from kit.lab.claims.records import Record
from kit.lab.measuring import machine
from kit.lab.report import html, index, merge, planning, sources
from kit.lab.report import run as runs
from kit.lab.report.planning import Job
from kit.lab.report.runner import Outcome


@pytest.fixture(autouse=True)
def invented(monkeypatch):
    monkeypatch.setattr(machine, "machine_id", lambda: "m")
    monkeypatch.setattr(machine, "git_commit", lambda: "c")


def ended(status="ok", digest="d", seconds=2.0, **more):
    return runs.NotebookOutcome(status, "", 3, seconds, [], "", digest, **more)


def run_in(folder, *names, **notebooks):
    """A run in a new folder, with a notebook's file of each name."""
    run = runs.start(folder, runs.Request("quick"))
    run.notebooks = {name.replace("n", ""): row for name, row in notebooks.items()} | {name: ended() for name in names}
    run.planned = sorted(run.notebooks)
    for name in run.notebooks:
        (folder / f"{name}.ipynb").write_text("{}")
    run.save()
    return run


def jobs(*names, digest="d"):
    return [Job(name, None, {}, 7, digest) for name in names]


def read(cell=None, **state):
    return Record(quantity="q", unit="s", samples=[1.0], state=state)


def test_memory_varied_where_the_fastest_probe_is_1_25_times_the_slowest(tmp_path):
    run = run_in(tmp_path / "a", "07_memory_frontier")
    of = lambda *speeds: html.made(run, "07_memory_frontier", [read(read_gbps=each) for each in speeds])["varied"]  # noqa: E731
    assert [of(), of(20.0), of(20.0, 24.9), of(20.0, 25.0), of(20.0, 22.0, 40.0)] == [None, None, None, 1.25, 2.0]
    made = html.made(run, "07_memory_frontier", [read(), read(busy="others"), read(busy="more", read_gbps=0)])
    assert (made["varied"], made["busy"]) == (None, "others") and made["reports"] == {} and made["facts"] == []


def cell(kind="code", level=0, tags=(), shows=(), **more):
    headings = [(level, f"h{level}", "Title")] if level else []
    outputs = [{"kind": kind, "body": body} for kind, body in shows]
    return {"kind": kind, "headings": headings, "tags": tags, "outputs": outputs,
        "body": "<h2>Title</h2><p>Question. Why?</p>"} | more  # fmt: skip


def test_a_part_of_a_page_begins_at_a_heading_of_the_second_level():
    bold = ("html", "<p>So <strong>2 of 3.</strong></p>")
    begun = ("html", "<p><strong>2 MiB: 3% of it,</strong> 1 us of 2.</p>")
    page = [cell("markdown", 1), cell("markdown", 2), cell(shows=[("text", "<strong>printed</strong>")]), cell("markdown", 3),
        cell("markdown", 2, more=True, body="<h2>Title</h2><h2>Another</h2>"), cell(shows=[bold])]  # fmt: skip
    parts = html.sections(page)
    assert [len(part["cells"]) for part in parts] == [1, 3, 2] and [part["id"] for part in parts] == ["", "", "h2"]
    assert parts[2]["title"] == "Title" and parts[2]["cells"][0]["body"] == "<h2>Another</h2>"
    assert "<h2>" in parts[1]["cells"][0]["body"]
    assert [part["finding"] for part in parts] == ["", "", "2 of 3."]
    assert html.sections([cell(shows=[begun])])[0]["finding"] == "2 MiB: 3% of it", "a fold ended with a comma"
    assert html.sections([]) == []


def test_what_an_answer_says():
    shown = [cell("markdown", 1), cell(tags=["answer"], shows=[("html", "<p><strong>No.</strong> It is 3 &lt; 4.</p>")])]
    assert html.summary(shown[:1]) == "Why?" and html.summary([]) == "" and html.summary([cell()]) == ""
    drawn = cell(drawn=True, shows=[("html", "x"), ("image", "y"), ("image", "z")])
    assert html.picture([cell(shows=[("image", "w")]), drawn])["body"] == "y" and html.picture([cell()]) is None
    assert html.summary(shown).endswith("It is 3 < 4.")


def test_the_title_of_a_run_is_what_ran_on_what(tmp_path):
    run = run_in(tmp_path / "a")
    named = lambda model: index.title(replace(run, request=replace(run.request, model=model)))  # noqa: E731
    assert named("") == "Generated models (quick)" and named("hf://a/b/c-q4.gguf") == "c-q4" and named("models/x/") == "x"
    machine.keep(run.folder, MACHINE)
    assert named("c.gguf") == "c on cpu, 2 cores" and html.environment(run.folder)["read_gbps"] == 20.0
    rows = [replace(read(busy="b"), notebook="07"), replace(read(), notebook="08"), replace(read(busy="b"), notebook="07")]
    assert index.busy(rows) == ["07"]


def test_a_notebook_runs_again_that_failed_changed_is_gone_or_reads_one_that_does(tmp_path):
    """Page 09 told 32.9 ms of a way that page 07 had measured again, at 34.2; a page whose file was removed was drawn empty."""
    asked = jobs("00_a", "07_b", "08_c", "09_d")
    of = lambda folder, **rows: [job.name for job in planning.pending(run_in(folder, **rows), asked)]  # noqa: E731
    well = {"n00_a": ended(), "n07_b": ended(), "n08_c": ended(), "n09_d": ended()}
    assert of(tmp_path / "a", **well) == []
    assert of(tmp_path / "b", **well | {"n00_a": ended(digest="old")}) == ["00_a", "08_c"], "08 reads all"
    assert of(tmp_path / "c", **well | {"n07_b": ended("failed")}) == ["07_b", "08_c", "09_d"], "09 reads 07"
    run = run_in(tmp_path / "d", **well)
    (run.folder / "09_d.ipynb").unlink()
    assert [job.name for job in planning.pending(run, asked)] == ["08_c", "09_d"]


def test_pages_by_a_lower_limit_are_outdated_and_those_of_this_run_drawn_again(tmp_path):
    run = run_in(tmp_path / "a")
    run.notebooks = {
        "low": ended(read_gbps=10.0, write_gbps=10.0), "same": ended(read_gbps=19.9, write_gbps=9.9), "none": ended(),
        "write": ended(read_gbps=20.0, write_gbps=5.0), "kept": ended(read_gbps=10.0, kept="another"),
    }  # fmt: skip
    assert run.limits == {} and run.outdated == set()
    machine.keep(run.folder, MACHINE)
    assert run.limits == {"read_gbps": 20.0, "write_gbps": 10.0}
    assert run.outdated == {"low", "write", "kept"} and run.again == {"low", "write"}
    run.notebooks = {"at": ended(read_gbps=20.0 / 1.02)}
    assert run.outdated == set(), "what rounding explains"


def test_expected_seconds_are_those_of_the_newest_run_that_has_all(tmp_path):
    old, new = run_in(tmp_path / "a", "00_a", "01_b"), run_in(tmp_path / "b", **{"n00_a": ended(seconds=9.0)})
    first = run_in(tmp_path / "c")
    for seconds, run in ((1, first), (2, old), (3, new)):
        os.utime(run.folder / runs.STATE, (seconds, seconds))
    assert planning.expected("quick", jobs("00_a"), tmp_path) == [9.0]
    assert planning.expected("quick", jobs("00_a", "01_b"), tmp_path) == [2.0, 2.0]
    assert planning.expected("full", jobs("00_a"), tmp_path) == [7.0]
    assert runs.latest(tmp_path) == new.folder and [run.folder for run in runs.newest(tmp_path)] == [new.folder, old.folder,
        first.folder]  # fmt: skip
    with pytest.raises(ReportError, match="nothing to resume"):
        runs.latest(tmp_path / "none")


def test_a_new_run_takes_what_the_newest_of_its_request_has(tmp_path):
    earlier = run_in(tmp_path / "a", "00_a", "07_b", "09_d")
    (earlier.folder / "00_a.png").write_bytes(b"x")
    run = run_in(tmp_path / "b")
    planning.reuse(run, jobs("00_a", "07_b", "09_d") + jobs("01_new"))
    assert {*run.notebooks} == {*run.planned} == {"00_a", "07_b", "09_d"} and (run.folder / "00_a.png").exists()
    assert {row.kept for row in run.notebooks.values()} == {"a"}
    third = run_in(tmp_path / "c")
    planning.reuse(third, jobs("00_a", "07_b", "09_d"))
    assert {row.kept for row in third.notebooks.values()} == {"a"}, "of the run that measured it"
    for other in ({"machine_id": "n"}, {"request": runs.Request("full")}):
        fresh = replace(run_in(tmp_path / f"d{len(other)}{next(iter(other))}"), **other)
        planning.reuse(fresh, jobs("00_a"))
        assert fresh.notebooks == {}


def test_a_run_is_resumed_as_it_was_asked_on_its_machine(tmp_path, monkeypatch):
    run = run_in(tmp_path / "a")
    assert runs.resume(run.folder, profile="quick", only=("07",)).request.only == ("07",)
    assert runs.resume(run.folder).request == run.request
    for asked, told in (({"profile": "full"}, "--profile 'quick', not 'full'"), ({"texts": ("a=1",)}, "-p"),
        ({"model": "x"}, "--model")):  # fmt: skip
        with pytest.raises(ReportError, match=told):
            runs.resume(run.folder, **asked)
    with pytest.raises(ReportError, match="already has a run"):
        runs.start(run.folder, run.request)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".hidden").write_text("")
    runs.start(tmp_path / "other", run.request)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(ReportError, match=r"other files \(x\)"):
        runs.start(tmp_path / "full", run.request)
    monkeypatch.setattr(machine, "machine_id", lambda: "n")
    with pytest.raises(ReportError, match=r"another machine \(m, this is n\)"):
        runs.resume(run.folder)


def test_headings_stand_above_each_cell_and_twice_above_the_parameters():
    made = [v4.new_code_cell("x"), v4.new_markdown_cell("# One\ntext"), v4.new_code_cell("# no heading"),
            v4.new_code_cell("y", metadata={"tags": ["parameters"]}), v4.new_markdown_cell("text\n## Two")]  # fmt: skip
    assert [*planning._headings(made)] == ["", "One", "One", "One", "One", "Two"]


def test_runs_of_one_name_are_told_apart_by_their_machines(tmp_path):
    one = run_in(tmp_path / "a" / "quick")
    assert merge.runs_in(one.folder) == [one.folder] == merge.runs_in(tmp_path / "a")
    with pytest.raises(ReportError, match="has no run"):
        merge.runs_in(tmp_path)
    other = run_in(tmp_path / "b" / "quick")
    with pytest.raises(ReportError, match="two runs are named quick-m"):
        merge.merge([run_in(tmp_path / "c" / "first").folder, one.folder, other.folder], tmp_path / "out")
    other.machine_id = "n"
    other.save()
    done = merge.merge([one.folder, other.folder, tmp_path / "a"], tmp_path / "out")
    assert done == tmp_path / "out" / "index.html" and {path.name for path in merge.runs_in(tmp_path / "out")} == {
        "quick-m",
        "quick-n",
    }
    with pytest.raises(ReportError, match="is not empty"):
        merge.merge([one.folder], tmp_path / "out")


def test_a_card_of_a_page_that_did_not_run_has_its_name(tmp_path):
    run = run_in(tmp_path / "a", "07_b")
    assert index.card(run, "09_d", []) == {"name": "09_d", "title": "09_d", "summary": "", "status": "not run", "kept": "",
        "thumbnail": None}  # fmt: skip
    shown = index.card(run, "07_b", [cell("markdown", 1), cell(drawn=True, shows=[("image", "full")])])
    assert (shown["title"], shown["status"], shown["thumbnail"]) == ("Title", "ok", "full")
    (run.folder / "07_b.png").write_bytes(b"small")
    assert index.card(run, "07_b", [])["thumbnail"].startswith("data:image/png")


def test_a_page_that_fails_alone_says_where(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "plan", lambda request, folder: jobs("07_b"))
    monkeypatch.setattr(
        planning, "perform", lambda run, asked: run.notebooks.update({"07_b": replace(ended("failed"), reason="why")})
    )
    monkeypatch.setattr(html, "write", lambda run, name: run.folder / f"{name}.html")
    monkeypatch.setattr(index, "write", lambda run: None)
    with pytest.raises(ReportError, match="07_b failed in cell 3: why"):
        index.one_page(tmp_path / "a", runs.Request("quick"))
    monkeypatch.setattr(planning, "perform", lambda run, asked: run.notebooks.update({"07_b": ended()}))
    assert index.one_page(tmp_path / "b", runs.Request("quick")) == tmp_path / "b" / "07_b.html"


def notebook(path, *sources):
    made = [v4.new_code_cell(source, metadata={"tags": ["parameters"] * (not number)}) for number, source in enumerate(sources)]
    with path.open("w") as out:
        nbformat.write(v4.new_notebook(cells=made), out)


def test_a_plan_gives_each_notebook_its_parameters_and_reads_the_claims_last(tmp_path):
    notebook(tmp_path / "09_d.ipynb", 'seed: int = 0  # of all\nprofile: str = ""  # which\n', "print(1)")
    notebook(tmp_path / "08_c.ipynb", "other: int = 0  # of it\n")
    asked = planning.plan(runs.Request("quick", texts=("seed=7",)), tmp_path)
    assert [(job.name, job.parameters, job.cells) for job in asked] == [
        ("09_d", {"profile": "quick", "seed": 7}, 3),
        ("08_c", {}, 1),
    ]
    assert asked[0].source == tmp_path / "09_d.ipynb"
    again = planning.plan(runs.Request("quick", texts=("seed=8",)), tmp_path)
    assert [one.digest == other.digest for one, other in zip(asked, again, strict=True)] == [False, True]
    with pytest.raises(ReportError, match="-p profile=full: use --profile"):
        planning.plan(runs.Request("quick", texts=("profile=full",)), tmp_path)
    (tmp_path / "08_c.ipynb").write_text("{}")
    with pytest.raises(ReportError, match=r"08_c\.ipynb: not a notebook"):
        planning.plan(runs.Request("quick"), tmp_path)


@pytest.mark.parametrize("measured", [False, True])
def test_what_a_notebook_ends_with_is_kept_with_the_limits_that_it_began_by(tmp_path, monkeypatch, measured):
    run, given = run_in(tmp_path / "a", "07_b"), []
    (run.folder / "07_b.html").write_text("old")
    if measured:
        machine.keep(run.folder, MACHINE)

    def execute(source, target, parameters, timeout, cell, on_second, kept, draws, stop):
        given.append((target, kept, (run.folder / "07_b.html").exists(), "07_b" in run.notebooks))
        machine.keep(run.folder, replace(MACHINE, read_gbps=30.0))
        cell(1)
        return Outcome("failed", "why", 2, 1.0, [])

    monkeypatch.setattr(planning, "execute", execute)
    planning.perform(run, jobs("07_b", digest="e"), taken=tmp_path / "taken")
    assert given == [(run.folder / "07_b.ipynb", tmp_path / "taken" / "07_b", False, False)]
    row = runs.load(run.folder).notebooks["07_b"]
    assert (row.status, row.digest, row.read_gbps) == ("failed", "e", 20.0 if measured else 30.0)
    assert [(each.status, each.reason) for each, _ in run.records_of("07_b")] == [("failed", "cell 2: why")]
    monkeypatch.setattr(planning, "execute", lambda *_: Outcome("ok", "", 2, 1.0, []))
    planning.perform(run, jobs("07_b"))
    assert run.records_of("07_b") == [] and run.failed == {}


def test_a_page_of_claims_needs_no_model_that_runs(monkeypatch):
    monkeypatch.setattr(planning.remote, "opened", lambda model: nullcontext(model))
    for name in ("check_blocks", "check_language_model"):
        monkeypatch.setattr(planning, name, lambda file: None)
    monkeypatch.setattr(planning, "read_config", lambda file: pytest.fail("it runs none"))
    planning.check_model("m", jobs("08_c", "09_d"))
    planning.check_model("", jobs("07_b"))
    monkeypatch.setattr(planning, "read_config", lambda file: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        planning.check_model("m", jobs("08_c", "07_b"))


def test_what_was_busy_and_what_shows_it_is_not_taken_from_an_earlier_run(tmp_path):
    earlier = run_in(tmp_path / "a", "00_a", "07_b", "09_d")
    for name, state in (("00_a", {"busy": ""}), ("07_b", {"busy": "others used 2 cores"})):
        records.append(earlier.folder / f"{name}.jsonl", replace(read(**state), notebook=name))
    run = run_in(tmp_path / "b")
    planning.reuse(run, jobs("00_a", "07_b", "09_d"))
    assert run.busy_before == ["07_b"] and {*run.notebooks} == {"00_a"}


def test_a_question_of_the_front_page_has_the_ends_that_ran_here_and_apart_what_is_computed():
    first, *others = index.ANSWERED

    def told(*given, unit="s"):
        parts = [
            SimpleNamespace(record=Record(quantity="q", samples=[one.pop("of", 1.0)], **{"unit": "s"} | one)) for one in given
        ]
        claims = {name: (parts if name == first else ()) for name in (first, *others)}
        return index.answers([
            SimpleNamespace(claim=SimpleNamespace(id=name, unit=unit), parts=some, verdict="v", decisive="d")
            for name, some in claims.items()
        ])  # fmt: skip

    failed = {"status": "skipped", "reason": "no GPU"}
    assert told() == [] and told(failed) == [], "what nothing measured is no answer"
    (one,) = told({"of": 2.0}, {"of": 9.0, "upper": 10.0}, {"of": 4.0, "lower": 1.0}, {"of": 99.0, "unit": "x"}, failed)
    assert [row.median for row in one["ends"]] == [9.0, 2.0] and one["bound"].upper == 10.0 and one["computed"] is None
    assert (one["question"], one["claim"].id, one["verdict"], one["decides"]) == (index.ANSWERED[first], first, "v", "d")
    (one,) = told({"of": 2.0, "unit": "x"}, {"of": 9.0, "unit": "x", "lower": 1.0}, unit="x")
    assert [row.median for row in one["ends"]] == [2.0, 9.0] and one["bound"].lower == 1.0
    (one,) = told({"of": 2.0, "unit": "%"}, {"of": 9.0, "unit": "B"}, {"of": 2.0, "unit": "%"})
    assert [row.median for row in one["ends"]] == [2.0] and one["bound"] is None, (
        "no part in the claim's unit: those of the first's"
    )
    computed = [{"of": 1.0, "how": "computed"}, {"of": 2.0, "how": "computed", "unit": "x", "upper": 3.0},
                {"of": 3.0, "how": "computed", "lower": 3.0}, {"of": 4.0, "how": OWN}]  # fmt: skip
    (one,) = told({"of": 5.0}, *map(dict, computed))
    assert one["computed"].median == 3.0 and [row.median for row in one["ends"]] == [5.0]
    assert told({"of": 5.0}, dict(computed[1]))[0]["computed"].median == 2.0 == told(dict(computed[1]))[0]["computed"].median
    assert told({"of": 5.0}, dict(computed[0]))[0]["computed"] is None and told(dict(computed[3]))[0]["computed"].median == 4.0
    assert told(dict(computed[3]))[0]["ends"] == []


@pytest.mark.parametrize(("model", "tabled"), [("", False), ("m.gguf", False), ("m.gguf", True)])
def test_a_front_page_by_hand(tmp_path, monkeypatch, model, tabled):
    """07 and 09 ran, 08 failed before it had a page, 10 has not run; 10's bars are of a model that the kit generated."""
    run = run_in(tmp_path / "a", "07_memory_frontier", "09_your_model", n08_c=ended("failed"))
    run.request, run.planned = replace(run.request, model=model), [*sorted(run.notebooks), "10_mixture"]
    (run.folder / "08_c.ipynb").unlink()
    shown = {"07_memory_frontier": [("answer", "<strong>Seven.</strong> Do 7.")],
             "09_your_model": [("answer", "<strong>Nine.</strong> Do 9."), ("table", "t")][: 2 * tabled]}  # fmt: skip
    for name, cells in shown.items():
        made = [v4.new_code_cell("x", metadata={"tags": [tag]}, outputs=told_by(text)) for tag, text in cells]
        made.insert(0, v4.new_markdown_cell(f"# What of {name[:2]}?"))
        (run.folder / f"{name}.ipynb").write_text(nbformat.writes(v4.new_notebook(cells=made)))
        (run.folder / f"{name}.html").touch()
    for more in ({"quantity": "plain"}, {"quantity": "warned", "status": records.WARNED, "reason": "r"},
                 {"quantity": "judged", "claim": "simd", "verdict": "reproduced", "reason": "r"}):  # fmt: skip
        records.append(run.folder / "07_memory_frontier.jsonl", Record(unit="s", samples=[1.0], notebook="07", **more))
    bars = [SimpleNamespace(notebook=name, generated=True, file=f"{name}.gguf", beaten=beaten)
            for name, beaten in (("07_memory_frontier", ""), (index.lead.EXPERTS, "beaten"))]  # fmt: skip
    monkeypatch.setattr(index.lead, "leads", lambda *_: bars)
    monkeypatch.setattr(index.gates, "across", lambda rows: [("two values", "measured")])
    monkeypatch.setattr(index.theme, "write", lambda path, template, **given: given | {"path": path})
    page = index.write(run)
    assert page["path"] == run.folder / "index.html" and page["file"] == "07_memory_frontier.gguf"
    assert [card["name"] for card in page["cards"]] == ["09_your_model", "07_memory_frontier", "08_c", "10_mixture"]
    assert (page["pages"], [*page["failed"]], page["unfinished"]) == ({*shown}, ["08_c"], ["10_mixture"])
    assert page["to_do"] == (
        ("09_your_model", "Do 9.", "What of 09?") if tabled else ("07_memory_frontier", "Do 7.", "What of 07?")
    ), "the link was called 09_your_model"
    assert (page["table"], page["result"]) == (("t", "Nine") if tabled else ("", ""))
    assert page["leads"] == ([] if tabled else bars[:1]), "a table of the reader's model has its bars"
    assert page["mixtures"] == ([] if model else bars[1:]), "nobody's own model is one that was generated"
    assert [row.quantity for row in page["measurements"]] == ["plain"]
    assert {word: count for word, count in page["tally"] if word == "reproduced"} == {"reproduced": 1}
    assert all(count for _, count in page["tally"]) and sum(count for _, count in page["tally"]) == len(claims.load())
    assert [(name, text) for name, _, text in page["warnings"]] == [
        ("07_memory_frontier", "r"), (index.lead.EXPERTS, "beaten"), ("", "two values")]  # fmt: skip
    monkeypatch.setattr(index.lead, "leads", lambda *_: [])
    assert index.write(run)["file"] == "this run's models"


def measured(folder, **quantities):
    run = run_in(folder, "07_b", n08_c=ended("failed"))
    for name, value in quantities.items():
        record = Record(quantity=name, unit="s", samples=[value], notebook="07_b", machine_id=folder.name)
        records.append(folder / "07_b.jsonl", record)
    return run


def test_a_merged_page_has_what_two_runs_measured_side_by_side(tmp_path, monkeypatch):
    one, two = measured(tmp_path / "a", both=1.0, own=3.0), measured(tmp_path / "b", both=2.0)
    monkeypatch.setattr(merge.theme, "write", lambda path, template, **given: given)
    given = merge.write_index(tmp_path)
    assert [(row.quantity, medians) for row, medians in given["measurements"]] == [("both", [1.0, 2.0])]
    assert [(run.folder, name) for run, name, _ in given["failed"]] == [(one.folder, "08_c"), (two.folder, "08_c")]
    assert {len(parts) for _, parts in given["claims"]} == {2} and given["busy"] == {one.folder: [], two.folder: []}


def test_pages_are_rendered_of_a_run_or_of_a_merged_report_and_of_nothing_else(tmp_path, monkeypatch):
    for name in "abcd":
        run_in(tmp_path / name, "07_b")
    drawn = []
    monkeypatch.setattr(html, "write", lambda run, name: drawn.append((run.folder.name, name)))
    monkeypatch.setattr(index, "write", lambda run: run.folder / "index.html")
    monkeypatch.setattr(merge, "write_index", lambda folder: folder / "merged")
    with pytest.raises(ReportError, match=r"neither a run .* \(a, b, c, \.\.\.\)"):
        merge.render(tmp_path)
    assert drawn == [] and merge.render(tmp_path / "a") == tmp_path / "a" / "index.html" and drawn == [("a", "07_b")]
    (tmp_path / "index.html").write_text("")
    assert merge.render(tmp_path) == tmp_path / "merged" and len(drawn) == 5


def test_a_pack_unpacks_to_the_folder_of_the_run_without_what_is_hidden(tmp_path):
    run = run_in(tmp_path / "a", "07_b")
    for name in (".hidden", "small/x.png"):
        (run.folder / name).parent.mkdir(exist_ok=True)
        (run.folder / name).write_text("x")
    with zipfile.ZipFile(merge.pack(run.folder, tmp_path / "a.zip")) as archive:
        assert archive.namelist() == ["a/07_b.ipynb", "a/run.json", "a/small/x.png"]


def test_ends_of_an_answer_are_two_only_where_they_differ_and_groups_end_with_the_threads(tmp_path):
    entries = [SimpleNamespace(claim=claim, parts=(), verdict="no record", decisive="") for claim in claims.load().values()]
    assert [*index.groups(entries)][-1] == "Public threads, on experts" and len(index.groups(entries)) == 6
    found = index.groups(entries)
    assert sorted([*found][:-1]) == [*found][:-1] and sum(len(some) for _, some in found.values()) == len(entries)


def test_results_follow_from_the_modules_that_their_code_reaches_and_from_no_other(tmp_path, monkeypatch):
    package, texts = tmp_path / "kit", {
        "__init__": "", "a": "import kit.b.c, os", "b/__init__": "from kit.f import g", "b/c": "name = 'kit.d'", "d": "",
        "e": "import kit.a", "f": "", "g": "kit.h.x", "h": "",
    }  # fmt: skip
    for name, text in texts.items():
        (package / f"{name}.py").parent.mkdir(exist_ok=True, parents=True)
        (package / f"{name}.py").write_text(text)
    monkeypatch.setattr(sources.paths, "PACKAGE", package)
    used = lambda *code: {path.relative_to(package).with_suffix("").as_posix() for path in sources.modules(code)}  # noqa: E731
    assert used("%time\n!ls\nimport kit.a") == {"__init__", "a", "b/__init__", "b/c", "d", "f"}
    assert used("from kit.b import c") == {"__init__", "b/__init__", "b/c", "d", "f"}
    assert used("import kit.g") == {"__init__", "g", "h"} and used("import os.h, kite") == used("h.b") == {"__init__"}
    monkeypatch.setattr(sources, "_surroundings", lambda: "libraries")
    of = lambda code="import kit.a", *facts: sources.digest(iter([code]), *facts)  # noqa: E731
    first, whole = of(), sources.of_package()
    assert of() == first and len({first, of("import kit.a  # other"), of("import kit.a", 1), of("import kit.e")}) == 4
    (package / "e.py").write_text("changed")
    assert of() == first and sources.of_package() != whole, "it uses no e, but the package has it"
    whole = sources.of_package()
    (package / "d.py").write_text("changed")
    assert of() != first and sources.of_package() != whole
    changed, whole = of(), sources.of_package()
    monkeypatch.setattr(sources, "_surroundings", lambda: "other libraries")
    (package / "h.py").rename(package / "i.py")
    assert of() != changed and sources.of_package() != whole, "the name of a module is code, too"


def test_results_follow_from_the_data_of_the_kit_but_from_no_model_next_to_it(tmp_path, monkeypatch):
    for name in ("claims.yaml", "models/m.csv", "some/trace.csv.gz", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(sources.paths, "data_file", lambda name: tmp_path / name)
    names = [each[0] for each in sources._surroundings.__wrapped__()[1:]]
    assert names == [*sources.LIBRARIES, "claims.yaml", "trace.csv.gz"]


def told_by(*texts):
    return [v4.new_output("display_data", {"text/html": text}) for text in texts]


def test_a_page_by_hand(tmp_path, monkeypatch):
    of = lambda source, tags=(), outputs=(): v4.new_code_cell(source, metadata={"tags": [*tags]}, outputs=[*outputs])  # noqa: E731
    made = [
        v4.new_markdown_cell("# Tiles\n\nQuestion. How fast?\n\n# Second\n\n### Third"), of("import kit", ["remove-cell"]),
        of("x", ["papermill-error-cell-tag"]),
        of("lab.picture(figure)\nlab.verdicts()", ["answer"],
           told_by("<p><strong>Not so.</strong> It takes <strong>3 s.</strong></p>")),
        of("table", ["table"], told_by("<p>t</p>")), v4.new_raw_cell("raw"),
        v4.new_markdown_cell("# Again\n\n## More", metadata={"tags": ["more"]}), of("y", ["mechanism"], told_by("a", "b")),
    ]  # fmt: skip
    run = run_in(tmp_path / "a", "06_a", "07_b", "08_c")
    with (run.folder / "07_b.ipynb").open("w") as out:
        nbformat.write(v4.new_notebook(cells=made), out)
    for more in ({"quantity": "plain"}, {"quantity": "warned", "status": records.WARNED, "reason": "r"},
                 {"quantity": "judged", "claim": "simd", "verdict": "reproduced", "reason": "r"}):  # fmt: skip
        records.append(run.folder / "07_b.jsonl", Record(**{"unit": "s", "samples": [1.0], "notebook": "07_b"} | more))
    monkeypatch.setattr(html.theme, "write", lambda path, template, **given: given | {"path": path})
    page = html.write(run, "07_b")
    assert (page["path"], page["title"], page["question"]) == (run.folder / "07_b.html", "Not so", "Tiles")
    assert (page["before"], page["after"], page["table"]) == ("06_a", "08_c", "<p>t</p>")
    assert page["answer"] == "<p>It takes <strong>3 s.</strong></p>" and [row.quantity for row in page["measurements"]] == [
        "plain"
    ]
    assert [(row.quantity, claim.id) for row, _, claim in page["verdicts"]] == [("judged", "simd")] and [
        *page["made"]["reports"]
    ]
    assert [each["number"] for each in page["cells"]] == [1, 3, 4, 6, 7], "as in the run's messages, without papermill's"
    first, answer, table, text, last = page["cells"]
    assert (first["body"].count("<h1"), text["body"].count("<h1")) == (1, 1), "the page has its title already"
    assert [each["section"] for each in (first, answer, last)] == ["", "Third", "More"] and not (
        first["verdicts"] or text["verdicts"]
    )
    assert (answer["lines"], answer["verdicts"], answer["drawn"], answer["opens"], answer["open"]) == (2, True, True, True,
        False)  # fmt: skip
    assert (table["opens"], last["opens"], last["open"], last["verdicts"], last["drawn"]) == (True, False, True, False, False)
    assert (first["more"], text["more"]) == (False, True) and [each["body"] for each in last["outputs"]] == ["a", "b"]
    bare = html.write(run, "09_none")
    assert (bare["title"], bare["question"], bare["cells"], bare["answer"]) == ("09_none", "", [], "")
    assert html.records_uri(run, ["07_b", "06_a"]).startswith("data:application/x-ndjson")
    assert html.records_uri(run, ["06_a"]) == ""
    with (run.folder / "06_a.ipynb").open("w") as out:
        nbformat.write(v4.new_notebook(cells=made[:1]), out)
    asked = html.write(run, "06_a")
    assert (asked["title"], asked["question"]) == ("Tiles", ""), "no answer: the question is the title"
    only = [{"kind": "code", "headings": [], "tags": ["answer"],
        "outputs": [{"kind": "html", "body": "<strong>Answer.</strong> 3 s"}]}]  # fmt: skip
    assert html.result(only) == "" and html.answer(only) == "<strong>Answer.</strong> 3 s" and html.summary(only) == "3 s"
