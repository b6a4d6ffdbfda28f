"""A page that is wrong looks wrong: what its records cannot say, what a notebook's gate found, and one limit a run."""

import ast
import json
import re
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import nbformat
import pytest
from invented import MACHINE
from report.conftest import SESSION, Folder, known_machine, reproduce

from kit.lab.claims import gates
from kit.lab.claims.records import Record
from kit.lab.claims.session import Session
from kit.lab.measuring import disk, identity, kept, limits, machine, measure
from kit.lab.report import html, planning, runner
from kit.lab.report import run as runs
from kit.lab.report.runner import Outcome
from kit.system.paths import ROOT

TIMES = r"([\d.]+) ms (?:after [\d,]+ positions )?on (\d+)"  # of a warning: a time and its page


def warned(**given):
    row = Record(**({"quantity": "q", "unit": "s", "samples": [1.0, 1.0, 1.0]} | given))
    return [text for _, text in gates.warnings([row])]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"unit": "hits", "samples": [-5], "how": "counted"}, "below zero"),
        ({"unit": "tiles", "samples": [3, -15360], "how": "counted"}, "below zero"),
        ({"unit": "points", "samples": [3.75e9], "how": "counted"}, "differ by 100 at most"),
        ({"lower": 2.0, "lower_source": "bytes over bandwidth"}, "below its limit of 2.00 s (bytes over bandwidth)"),
        ({"upper": 0.5, "upper_source": "Amdahl"}, "above its limit of 500 ms (Amdahl)"),
        ({"interval": [0.9, 1.3], "lower": 1.08, "lower_source": "b"}, "below its limit"),  # MIN at 108 %, and no warning
        ({"status": "warned", "samples": [], "reason": "the ways differ"}, "the ways differ"),
    ],
)
def test_what_cannot_be_is_a_warning(given, says):
    assert len(warned(**given)) == 1 and says in warned(**given)[0]


@pytest.mark.parametrize(
    "given",
    [{}, {"lower": 1.01, "lower_source": "b"}, {"unit": "points", "samples": [-2.0]}, {"how": "computed", "lower": 2.0}],
)  # fmt: skip
def test_what_rounding_or_arithmetic_explains_is_none(given):
    assert warned(**given) == []


def test_pages_of_a_run_have_one_bound_and_none_that_another_page_beats():
    """00 said at least 110 ms, 07 at least 106, and 01 measured 78.3."""

    def rows(measured, lower, least):
        given = {"unit": "s", "parameters": {"model": "m", "device": "cpu"}}
        return [
            Record(quantity="least of a token", samples=[least], how="computed", notebook="00", **given),
            Record(quantity="a token", samples=[0.2], lower=lower, notebook="07", **given),
            Record(quantity="a token", samples=[measured], notebook="01", **given),
        ]

    assert gates.across(rows(0.12, 0.110, 0.110)) == []
    [(told, how)] = gates.across(rows(0.12, 0.106, 0.110))
    assert (how, re.findall(TIMES, told)) == ("counted", [("106", "07"), ("110", "00")])
    [(told, how)] = gates.across(rows(0.0783, 0.110, 0.110))
    assert re.findall(TIMES, told)[0] == ("78.3", "01") and "110 ms" in told
    assert how == "measured", "another process may have slowed what the bound was taken from"


def deep(positions, seconds, notebook="04", **more):
    given = {"unit": "s", "parameters": {"model": "m", "device": "cpu"}} | more
    after = f", after {positions:,} positions" * bool(positions)
    return Record(quantity=f"a token{after}", samples=[seconds], notebook=notebook, **given)


def test_a_token_after_more_positions_takes_no_less():
    """Page 04 had 65.3 ms after 64 positions and 41.3 ms after 4,096, and no gate read the table."""
    right = deep(64, 0.041), deep(4096, 0.055), deep(0, 0.040, "07")
    assert gates.across(right) == [] and gates.across([deep(64, 0.041), deep(4096, 0.035)]) == [], "the same state of memory"
    [(told, how)] = gates.across([deep(4096, 0.0413), deep(64, 0.0653)])
    assert (how, re.findall(TIMES, told)) == ("measured", [("41.3", "04"), ("65.3", "04")])
    [(told, _)] = gates.across([deep(64, 0.0226), deep(0, 0.0412, "07")])
    assert re.findall(TIMES, told) == [("22.6", "04"), ("41.2", "07")]
    free = {"parameters": {"model": "", "device": "cpu"}}
    assert gates.across([deep(64, 0.0226, **free), deep(0, 0.0412, "07", **free)]) == [], "each page generates another model"
    own = deep(4096, 0.2, lower=0.1, lower_source="b"), deep(0, 0.05, "07", lower=0.04, lower_source="b")
    assert gates.across(own) == [], "another depth has another bound"


@pytest.mark.slow
def test_a_bound_that_another_page_beats_is_in_the_summary_and_on_the_front(tmp_path):
    notebooks = Folder(tmp_path / "notebooks")
    notebooks.add("00_bounds", SESSION.format(name="00_bounds"), "lab.bound('a token', 's', 0.11);")
    measured = "lab.record(quantity='a token', unit='s', samples=[0.0783]);"
    notebooks.add("01_measures", SESSION.format(name="01_measures"), measured)
    out = known_machine(tmp_path / "out")
    done, told = reproduce(notebooks.path, out), "a token takes 78.3 ms on 01_measures and at least 110 ms on 00_bounds"
    assert f"warning: all pages: {told}" in done.output and told in (out / "index.html").read_text()


def test_a_gate_that_does_not_hold_shows_on_its_page_on_the_front_and_in_the_summary(tmp_path):
    notebooks = Folder(tmp_path / "notebooks")
    gates_of = "lab.gate(1 < 2, 'never said')\nlab.gate(2 < 1, 'two is <less> than one');"
    notebooks.add("01_gate", SESSION.format(name="01_gate"), gates_of)
    out = known_machine(tmp_path / "out")
    done = reproduce(notebooks.path, out)
    assert done.exit_code == 0 and "warning: 01_gate: two is <less> than one" in done.output and "never" not in done.output
    page, front = (out / "01_gate.html").read_text(), (out / "index.html").read_text()
    assert page.count("Warning.</b> two is &lt;less&gt; than one") == 2  # on top, and in its cell
    assert "two is &lt;less&gt; than one" in front and "01_gate.html#cell-" in front


FASTER = (
    "import json; path = 'environment.json'; old = json.load(open(path)); "
    "json.dump(old | {'read_gbps': 40000.0}, open(path, 'w'))"
)
MEASURES = """
from kit.lab.measuring import measure
measure.rounds({"a": lambda: float(open("measured", "a").write("x"))}, 2, of="x")
open("rendered", "a").write(open("measured").read() + " ")"""


def test_one_limit_has_one_value_in_a_run_and_each_page_is_drawn_once(tmp_path, monkeypatch):
    """The second notebook finds memory faster than the first: the first takes the limit of the run before it is drawn, and what
    reads all pages runs after that alone. Ten pages were rendered twice in a run of a Zen 3."""
    notebooks, drawn = Folder(tmp_path / "notebooks"), []
    monkeypatch.setattr(html, "write", lambda run, name, write=html.write: drawn.append(name) or write(run, name))
    for name, what in (("01_first", MEASURES), ("02_second", FASTER), ("08_all", "open('all', 'a').write('x')")):
        notebooks.add(name, what)
    done = reproduce(notebooks.path, known_machine(tmp_path / "out"))
    assert "same measurements, for 01_first, 02_second\n" in done.output
    assert sorted(drawn) == ["01_first", "02_second", "08_all"] and (tmp_path / "out" / "all").read_text() == "x"
    assert "warning" not in done.output
    rows = json.loads((tmp_path / "out" / "run.json").read_text())["notebooks"]
    assert {row["read_gbps"] for row in rows.values()} == {40000.0}
    first, again = (tmp_path / "out" / "rendered").read_text().split()  # the page twice, but what it measures once
    assert first == again


@pytest.mark.parametrize("before", [None, 30.0])
def test_a_page_that_itself_finds_faster_memory_is_drawn_again(tmp_path, monkeypatch, before):
    """Page 02 had a table by 56.7 GB/s and found 87.4 in its next cell. It was taken to rest on what it had found, and said for
    good that a cache was 1.08 times as fast as its limit allows."""
    run = runs.start(tmp_path / "run", runs.Request())
    known = lambda gbps: machine.keep(run.folder, replace(MACHINE, read_gbps=gbps))  # noqa: E731
    if before:
        known(before)
    seen = []

    def execute(source, output, parameters, timeout, on_cell, *_):
        on_cell(1)
        for cell, gbps in ((2, before or 30.0), (3, 60.0)):
            known(max(gbps, run.limits.get("read_gbps", 0.0)))
            on_cell(cell)
        seen.append(run.limits["read_gbps"])
        return Outcome("ok", "", 3, 1.0, [0, 0, 0])

    monkeypatch.setattr(planning, "execute", execute)
    job = SimpleNamespace(name="02_own", source=None, parameters={}, digest="d")
    planning.perform(run, [job])
    assert seen == [60.0] and run.notebooks["02_own"].read_gbps == 30.0 and run.outdated == run.again == {"02_own"}
    planning.perform(run, [job])
    assert run.notebooks["02_own"].read_gbps == 60.0 and not run.outdated, "once: then it rests on the limit of the run"


def test_what_is_measured_after_the_last_probe_is_said(tmp_path, monkeypatch):
    """Page 06 measured its cold token anew, in another minute than the rest of its page."""
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))
    monkeypatch.setattr(kept, "_calls", Counter())
    assert kept.take("a token", 1, lambda: 5) == 5 and not kept.drawing()
    monkeypatch.setattr(kept, "_calls", Counter())
    monkeypatch.setenv(kept.DRAWS, str(tmp_path / "anew"))
    assert kept.take("a token", 1, lambda: 6) == 5 and kept.drawing() and not (tmp_path / "anew").exists()
    assert kept.take("another", 1, lambda: 7) == 7 and kept.take("unknown", object(), lambda: 8) == 8
    assert measure.time(lambda: 8, 1, of="eight").samples and measure.time(lambda: 9, 1).samples
    assert (tmp_path / "anew").read_text().splitlines()[:3] == ["another", "unknown", "time of eight"]
    assert "<lambda>" in (tmp_path / "anew").read_text().splitlines()[3], "what is timed outside of what is kept"
    machine.keep(tmp_path / "run", known := replace(MACHINE, id=machine.machine_id()))
    monkeypatch.setattr(machine, "of_run", lambda _: pytest.fail("probes again"))
    assert limits.of_run(tmp_path / "run", "07").machine == known


def test_no_cell_of_a_notebook_times_what_is_not_kept():
    """Drawn again, pages 00, 02, 03, 05, 06 and 10 timed, generated and read the disk anew for 70 of 134 seconds."""
    clocks, named = ("repeat", "sampler", "random_gbps", "probe_state", "process_time", "perf_counter"), ("time", "rounds")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in (each for each in nbformat.read(path, as_version=4).cells if each.cell_type == "code"):
            for call in (each for each in ast.walk(ast.parse(cell.source)) if isinstance(each, ast.Call)):
                name = ast.unparse(call.func)
                if name in [f"measure.{each}" for each in (*named, "alternately")]:
                    assert "of" in [each.arg for each in call.keywords], f"{path.stem}, {cell.id}: {name} without a name"
                if name.rpartition(".")[2] in clocks:
                    assert "kept." in cell.source or "once(" in cell.source, f"{path.stem}, {cell.id}: {name}"


def test_pages_are_drawn_again_at_once_and_end_together(tmp_path, monkeypatch):
    """One after the other ten took 134 seconds, on one of two cores; what measures has its own seconds still."""
    run = runs.start(tmp_path / "run", runs.Request())
    machine.keep(run.folder, MACHINE)
    jobs = [SimpleNamespace(name=name, source=None, parameters={}, digest="d") for name in ("01_a", "02_b", "03_c")]
    monkeypatch.setattr(runner, "usable_cores", lambda: 4)
    monkeypatch.setattr(runner, "memory_available", lambda: 3 << 30)
    assert [runner.at_once(["01_a"]), runner.at_once(["00_start_here"]), runner.at_once(["01_a"], "cuda")] == [3, 1, 1]
    monkeypatch.setattr(planning, "execute", lambda *_: Outcome("ok", "", 1, 60.0, [0]))
    planning.perform(run, jobs, taken=tmp_path)
    both = threading.Barrier(2, timeout=30)
    monkeypatch.setattr(planning, "execute", lambda *_: both.wait() < 0 or Outcome("ok", "", 1, 5.0, [0]))
    planning.perform(run, jobs[:2], taken=tmp_path, draws=tmp_path / "anew", at_once=2)
    assert {row.seconds for row in runs.load(run.folder).notebooks.values()} == {60.0}

    def interrupted(source, output, *given):
        both.wait()
        if output.stem == "02_b":
            assert given[-1].wait(30), "Ctrl-C reaches the main thread alone"
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        planning.perform(run, jobs, taken=tmp_path, draws=tmp_path / "anew", at_once=2)
    assert {*runs.load(run.folder).notebooks} == {"03_c"}, "it had not begun; the others run with --resume"


def test_what_another_page_measured_is_the_same_where_both_are_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))
    monkeypatch.setattr(kept, "_calls", Counter())
    machine.keep(tmp_path / "run", replace(MACHINE, id=machine.machine_id()))
    first, second = (Session(name, profile="smoke", out=tmp_path / "run") for name in ("01_a", "07_b"))
    assert first.once("disk", "GB/s", lambda: [1.0]) == second.once("disk", "GB/s", lambda: [2.0]) == [1.0]
    monkeypatch.setattr(kept, "_calls", Counter())
    (tmp_path / "run" / "01_a.jsonl").write_text("")  # the other one is being drawn
    monkeypatch.setenv(kept.DRAWS, str(tmp_path / "anew"))
    again = [Session(name, profile="smoke", out=tmp_path / "run") for name in ("01_a", "07_b")]
    (tmp_path / "run" / "01_a.jsonl").write_text("")
    assert [each.once("disk", "GB/s", lambda: [3.0]) for each in again] == [[1.0], [1.0]]
    assert not (tmp_path / "anew").exists()


def test_a_page_that_measures_anew_is_a_warning(tmp_path):
    notebooks = Folder(tmp_path / "notebooks")
    notebooks.add("01_first", "import os, kit.lab.measuring.kept as kept; kept.take(f'pid {os.getpid()}', 1, int)")
    notebooks.add("02_second", FASTER)
    told = reproduce(notebooks.path, known_machine(tmp_path / "out")).output
    assert "warning: all pages: measured after the last probe, by whose limits it is judged: pid " in told


@pytest.mark.parametrize(("limit", "left"), [(20_000.0, set()), (20_500.0, {"01_first"})])
def test_a_page_by_a_lower_limit_than_the_run_s_is_not_left_so(tmp_path, limit, left):
    """By more than the 2 % that a bound is rounded to: two pages would print two values of one limit. It runs again once."""
    run = runs.Run(known_machine(tmp_path / "out"), runs.Request(), "m", "0", "c", "now")
    path = run.folder / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"read_gbps": limit}))
    for name, then in (("01_first", 20_000.0), ("02_second", limit), ("03_from_before", None)):
        run.notebooks[name] = runs.NotebookOutcome("ok", "", 3, 1.0, [], "now", "d", read_gbps=then)
    assert run.again == run.outdated == left


def test_a_page_kept_from_an_earlier_run_is_not_measured_anew_where_memory_is_faster(tmp_path):
    """A run with one changed page measured all ten others for five minutes."""
    run = runs.Run(known_machine(tmp_path / "out"), runs.Request(), "m", "0", "c", "now")
    for name, earlier in (("01_first", ""), ("02_second", "an earlier run")):
        run.notebooks[name] = runs.NotebookOutcome("ok", "", 3, 1.0, [], "now", "d", kept=earlier, read_gbps=1.0)
    assert run.outdated == {"01_first", "02_second"} and run.again == {"01_first"}


@pytest.mark.slow
def test_the_command_leaves_a_kept_page_and_warns(tmp_path):
    notebooks = Folder(tmp_path / "notebooks")
    notebooks.add("01_first", MEASURES)
    notebooks.add("02_second", "1")
    reproduce(notebooks.path, known_machine(tmp_path / "one"))
    notebooks.add("02_second", FASTER)
    told = reproduce(notebooks.path, tmp_path / "two").output
    assert "copied from one" in told and "same measurements, for 02_second\n" in told, "not for the kept one"
    assert "warning: 01_first: its limits " in told


def test_the_best_of_each_limit_is_kept():
    limits = {name: 10.0 for name in machine.LIMITS}
    one = machine.Machine("m", "c", 2, 2**30, 2**30, **limits, samples={"read_gbps": [10.0]}, methods={"read_gbps": "sum"})
    other = replace(one, read_gbps=5.0, write_gbps=20.0, samples={"read_gbps": [5.0]}, methods={"read_gbps": "product"})
    best = one.best(other)
    assert (best.read_gbps, best.write_gbps, best.methods["read_gbps"]) == (10.0, 20.0, "sum") == (
        other.best(one).read_gbps, other.best(one).write_gbps, other.best(one).methods["read_gbps"])  # fmt: skip


def test_two_cpus_of_one_name_are_two_machines(monkeypatch):
    """A Zen 5 with AVX-512 and a Zen 3 without had the same id."""
    ids = set()
    for model, features in (("1", ["avx2", "f16c"]), ("2", ["avx2", "avx512f", "avx512vnni"]), ("3", ["avx2", "f16c"])):
        monkeypatch.setattr(identity, "cpu_name", lambda: "AMD EPYC")
        monkeypatch.setattr(identity, "cpu_features", lambda features=features: features)
        monkeypatch.setattr(identity, "cpu_facts", lambda model=model: {"model": model})
        machine.machine_id.cache_clear()
        ids.add(machine.machine_id())
    machine.machine_id.cache_clear()
    assert len(ids) == 3 and {name.split("-")[2] for name in ids} == {"avx2", "avx512"}


def test_a_cpu_has_one_name_in_texts():
    """ "AMD EPYC" on the front page, "AMD Zen 5" in README, and the machine's id in the picture."""
    known = [(family, model) for family, models in identity._ZEN for model in models]
    assert len(known) == len({*known}), "a model has one name"
    named = lambda name, family, model: identity.processor(name, {"cpu family": family, "model": model})  # noqa: E731
    assert [named("AMD EPYC", *each) for each in (("25", "1"), ("25", "17"), ("26", "2"))] == ["AMD Zen 3", "AMD Zen 4",
        "AMD Zen 5"]  # fmt: skip
    assert identity.processor("AMD EPYC", {}) == named("AMD EPYC", "26", "999") == "AMD EPYC"
    assert named("Intel(R) Xeon(R)", "25", "1") == "Intel(R) Xeon(R)"
    assert replace(MACHINE, cpu="AMD EPYC", cores=1).told == "AMD EPYC, 1 core"


def test_the_disk_is_read_past_the_page_cache_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(bytes(3 << 20))
    path.read_bytes()  # its pages are in memory
    found = disk.speed(path)
    assert found.gbps is None or (found.gbps == max(found.samples) > 0 and "GB/s from disk" in str(found))

    def refuses(path, flags):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(disk.os, "open", refuses)
    assert disk.read_gbps(path) is None and "not known" in str(disk.speed(path))
