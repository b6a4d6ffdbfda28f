"""`kit reproduce` as its user meets it: what runs, what is refused, what a resume repeats, what Ctrl-C leaves."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from kit.errors import ReportError
from kit.lab.claims import records
from kit.lab.commands import reproduce as reproducing
from kit.lab.commands.cli import main
from kit.lab.report import planning, runner, sources
from kit.lab.report import run as runs
from kit.system.files import write_whole

from conftest import PARAMETERS, known_machine, reproduce, wait_until_gone  # isort: skip


def state(out):
    return json.loads((out / "run.json").read_text())


def test_a_failed_notebook_is_a_row_and_the_rest_goes_on(finished):
    rows = state(finished)["notebooks"]
    assert {name: row["status"] for name, row in rows.items()} == {
        "01_first_token": "ok", "02_fails": "failed", "03_killed": "failed", "04_after": "ok",
    }  # fmt: skip
    assert rows["02_fails"]["reason"] == "ZeroDivisionError: division by zero"
    assert rows["02_fails"]["cell"] == 4
    failure = records.read([finished / "02_fails.jsonl"])[-1]
    assert (failure.status, failure.reason) == ("failed", "cell 4: ZeroDivisionError: division by zero")
    assert "kernel died" in records.read([finished / "03_killed.jsonl"])[-1].reason


def test_parameters_reach_the_notebook_and_its_records(finished):
    assert "smoke 7 1 False" in (finished / "04_after.html").read_text()
    for record in records.read([finished / "01_first_token.jsonl"]):
        assert record.parameters["seed"] == 7
        assert record.run_id == finished.name


def test_the_time_left_goes_by_the_last_run_of_the_profile(finished, tmp_path):
    jobs = [planning.Job(name, tmp_path, {}, cells, "") for name, cells in (("04_after", 3), ("01_first_token", 8))]
    rows = state(finished)["notebooks"]
    assert planning.expected("smoke", jobs, finished.parent) == [rows["04_after"]["seconds"], rows["01_first_token"]["seconds"]]
    assert planning.expected("full", jobs, finished.parent) == planning.expected("smoke", jobs, tmp_path) == [3, 8]


def test_the_report_opens_at_once_and_reloads_itself_until_the_run_is_over(notebooks, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(reproducing.click, "launch", lambda page: opened.append((page, Path(page).read_text())))
    notebooks.add("01_good", "#md # What it does", "1")
    out = known_machine(tmp_path / "out")
    result = reproduce(notebooks.path, out, "--serve")
    assert result.exit_code == 0, result.output
    ((page, at_once),) = opened
    assert page == str(out / "index.html") and "01_good" in at_once
    assert 'http-equiv="refresh"' in at_once and "this page reloads itself" in at_once
    assert 'http-equiv="refresh"' not in (out / "index.html").read_text()
    assert planning.plan(runs.Request(), notebooks.path)[0].headings[2] == "What it does"


def test_no_path_of_this_machine_is_in_a_notebook_that_ran(finished):
    assert str(finished) not in (finished / "01_first_token.ipynb").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "sedd=1"], r"unknown parameter 'sedd'.*seed: int = 0  # of the weights"),
        (["-p", "seed=many"], "parameter seed: 'many' is not an int"),
        (["-p", "profile=full"], "use --profile"),
        (["--only", "07"], "--only 07: no such notebook.*01_a"),
        (["--model", "nowhere.gguf"], "nowhere.gguf"),
    ],
)
def test_what_cannot_start_is_one_line_and_leaves_no_folder(notebooks, tmp_path, options, message):
    notebooks.add("01_a")
    result = reproduce(notebooks.path, tmp_path / "out", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("kit: error: ")
    assert re.search(message, result.stderr, re.DOTALL)
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be_made_is_one_error(notebooks, tmp_path):
    notebooks.add("01_a")
    (tmp_path / "file").touch()
    result = reproduce(notebooks.path, tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert "kit: error: cannot create the output folder" in result.stderr


def test_a_full_disk_is_one_error_and_the_old_state_survives(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_whole(path, "old")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(ReportError, match=r"run\.json: cannot be written: No space left on device; free some space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_list_shows_notebooks_and_parameters(notebooks, tmp_path):
    notebooks.add("01_a")
    result = reproduce(notebooks.path, tmp_path / "out", "--list")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "01_a"
    assert "  seed: int = 0  # of the weights" in result.stdout.splitlines()


FLAKY = """\
from pathlib import Path
count = Path("{name}.count")
count.write_text(count.read_text() + "x" if count.exists() else "x")
"""


@pytest.mark.slow
def test_a_resume_repeats_only_what_failed_or_changed(notebooks, tmp_path):
    out = known_machine(tmp_path / "out")
    notebooks.add("01_good", FLAKY.format(name="good"))
    notebooks.add("02_flaky", FLAKY.format(name="flaky") + "assert len(count.read_text()) > 1, 'not yet'")
    assert reproduce(notebooks.path, out, "--profile", "smoke").exit_code == 1
    assert state(out)["notebooks"]["02_flaky"]["reason"] == "AssertionError: not yet"

    assert reproduce(notebooks.path, out).exit_code == 2, "a second run must not overwrite the first"
    for options in (["--profile", "full"], ["-p", "seed=1"]):
        refused = reproduce(notebooks.path, out, "--resume", *options)
        assert refused.exit_code == 2
        assert "start a new run" in refused.stderr

    assert reproduce(notebooks.path, out, "--resume").exit_code == 0
    assert [(out / f"{name}.count").read_text() for name in ("good", "flaky")] == ["x", "xx"]
    assert not (out / "02_flaky.log").exists()

    notebooks.add("01_good", FLAKY.format(name="good"), "pass")
    assert reproduce(notebooks.path, out, "--resume").exit_code == 0
    assert [(out / f"{name}.count").read_text() for name in ("good", "flaky")] == ["xx", "xx"]


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """The notebooks that ``kit reproduce`` ran, which takes no time: each is copied."""
    stems = []

    def execute(source, target, *rest):
        stems.append(source.stem)
        shutil.copy(source, target)
        return runs.Outcome("ok", "", 1, 1.0, [0])

    monkeypatch.setattr(planning, "execute", execute)
    return stems


def test_what_nothing_changed_for_is_kept_by_the_next_run(notebooks, ran, tmp_path, monkeypatch):
    code = {"01_own": "1", "02_uses": "import kit\nkit.replay\n", "08_all": "", "09_after": ""}
    for name, cell in code.items():
        notebooks.add(name, cell)

    def of_run(number: int, *options) -> str:
        out = known_machine(tmp_path / "runs" / str(number))
        result = reproduce(notebooks.path, out, "--profile", "smoke", *options)
        assert result.exit_code == 0, result.output
        kept = re.findall(r"^(\w+)  copied from", result.stderr, re.MULTILINE)
        assert kept == [name for name, row in sorted(state(out)["notebooks"].items()) if row["kept"]]
        assert {*kept, *ran} == {*code} and all("Kept from" in (out / f"{name}.html").read_text() for name in kept)
        told = " ".join(ran)
        ran.clear()
        return told

    assert of_run(1) == "01_own 02_uses 09_after 08_all"
    assert of_run(2) == "" == of_run(3)  # also when what is kept was kept itself
    assert state(tmp_path / "runs" / "3")["notebooks"]["01_own"]["kept"] == "1"
    assert of_run(4, "--again") == "01_own 02_uses 09_after 08_all"
    assert of_run(5, "-p", "seed=1") == "01_own 02_uses 09_after 08_all", "another experiment"
    notebooks.add("01_own", "1", "pass")
    assert of_run(6) == "01_own 08_all", "08 reads the records of all"
    module = sources.paths.PACKAGE / "cache" / "replay.py"
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == module))
    assert of_run(7) == "02_uses 08_all", "a module that it uses changed"


def test_a_table_goes_with_the_run_and_what_it_says_counts(notebooks, ran, tmp_path, monkeypatch):
    """One named by a path that only this machine has would be on every page, and another table of that name be the same run."""
    monkeypatch.chdir(tmp_path)
    notebooks.add("01_reads", "1", parameters=PARAMETERS + 'table: str = ""  # a file\n')
    notebooks.add("02_other", "1")
    table = tmp_path / "below" / "t.json"
    table.parent.mkdir()
    for number, numbers, wanted in ((1, "1", "01_reads 02_other"), (2, "1", ""), (3, "2", "01_reads")):
        table.write_text(numbers)
        out = known_machine(tmp_path / "runs" / str(number))
        result = reproduce(notebooks.path, out, "--profile", "smoke", "-p", "table=below/t.json")
        assert result.exit_code == 0, result.output
        assert " ".join(ran) == wanted and (out / "t.json").read_text() == numbers
        assert state(out)["request"]["texts"] == ["table=t.json"]
        commands = [re.search("<code>(kit reproduce .*?)</code>", (out / f"{name}.html").read_text())[1]
                    for name in ("01_reads", "02_other")]  # fmt: skip
        told = "kit reproduce --profile smoke --only"
        assert commands == [f"{told} 01 -p table=t.json", f"{told} 02"], "a notebook takes no parameter of another"
        ran.clear()


def test_a_resume_asks_for_the_memory_of_what_it_runs(notebooks, ran, tmp_path, monkeypatch):
    """The first page, which takes most, is finished: the run goes on with less."""
    for name in ("00_start_here", "01_small"):
        notebooks.add(name, "1")
    out = known_machine(tmp_path / "out")
    assert reproduce(notebooks.path, out, "--profile", "smoke").exit_code == 0
    notebooks.add("01_small", "2")
    monkeypatch.setattr("kit.lab.report.runner.memory_available", lambda: runner.LEAST["00_start_here"] - 1)
    ran.clear()
    again = reproduce(notebooks.path, out, "--resume", "--again")
    assert again.exit_code == 2 and "00_start_here takes 1.56 GiB at least" in again.output and not ran
    assert reproduce(notebooks.path, out, "--resume").exit_code == 0 and ran == ["01_small"]


def test_what_a_busy_machine_measured_is_not_kept(notebooks, ran, tmp_path):
    """A run of another folder had kept it without a word; --resume --again measures it again where it is."""
    for name in ("01_own", "02_quiet"):
        notebooks.add(name, "1")
    first, second = (known_machine(tmp_path / "runs" / str(number)) for number in (1, 2))
    assert reproduce(notebooks.path, first, "--profile", "smoke").exit_code == 0
    for name, state_then in {"01_own": {"busy": "other processes use 2.0 cores"}, "02_quiet": {}}.items():
        records.append(first / f"{name}.jsonl", records.Record(quantity="q", unit="s", samples=[1.0], state=state_then))
    ran.clear()
    result = reproduce(notebooks.path, second, "--profile", "smoke")
    assert ran == ["01_own"] and "02_quiet  copied from" in result.stderr
    assert "01_own  runs again: other processes used the cores" in result.stderr
    for options, runs_again in (((), []), (("--again", "--only", "02"), ["02_quiet"])):
        ran.clear()
        reproduce(notebooks.path, second, "--resume", *options)
        assert ran == runs_again


def test_a_clock_that_jumps_loses_nothing(notebooks, ran, tmp_path, monkeypatch):
    """An hour back is another run beside the first; back to the first one's very second is one error."""
    monkeypatch.setenv("KIT_RESULTS", str(tmp_path / "results"))
    notebooks.add("01_good", "1")
    at = datetime(2026, 11, 1, 12, tzinfo=UTC)
    clock = SimpleNamespace(now=lambda zone: at)
    for module in (reproducing, runs):
        monkeypatch.setattr(module, "datetime", clock)

    def of_run():
        return CliRunner().invoke(main, ["reproduce", "--notebooks", str(notebooks.path), "--again"])

    def files():
        return {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()}

    assert of_run().exit_code == 0
    first, at = files(), at - timedelta(hours=1)
    assert of_run().exit_code == 0 and len(ran) == 2
    both, at = files(), at + timedelta(hours=1)
    assert both.items() > first.items() and len({path.parent for path in both}) == 2
    again = of_run()
    assert again.exit_code == 2 and again.stderr.startswith("kit: error: ") and "already has a run" in again.stderr
    assert files() == both and len(ran) == 2


def test_the_modules_that_a_notebook_uses():
    def used(*code):
        return {str(path.relative_to(sources.paths.PACKAGE)) for path in sources.modules(code)}

    assert used("import numpy") == used("%matplotlib inline\n1 +") == {"__init__.py"}
    assert used("from kit.units import format_bytes") == {"__init__.py", "units.py"} < used("import kit\nkit.open('x')")
    assert "gguf/reader.py" in used("import kit\nkit.open('x')"), "kit.open by the table of names"
    assert "cache/policies/base.py" in used("kit.LRU(1)") and "codec/tiles.py" not in used("kit.LRU(1)")
    assert "quants/plain.py" in used("from kit.quants import dequantize"), "a backend is named in a string"


def test_a_resume_needs_a_run_of_this_machine(tmp_path, notebooks):
    notebooks.add("01_a")
    out = known_machine(tmp_path / "out")
    assert "holds no run" in reproduce(notebooks.path, out, "--resume").stderr
    (out / "run.json").write_text("{")
    assert "is not the state of a run" in reproduce(notebooks.path, out, "--resume").stderr
    run = runs.Run(out, runs.Request(), "another-machine", "0", "", runs.now())
    run.save()
    assert runs.load(out) == run
    assert "another machine (another-machine" in reproduce(notebooks.path, out, "--resume").stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_stops_the_child_and_keeps_what_is_finished(notebooks, tmp_path, number):
    out = known_machine(tmp_path / "out")
    notebooks.add("01_good")
    notebooks.add("02_slow", "import os\nopen('pid', 'w').write(str(os.getpid()))\nimport time\ntime.sleep(300)")
    kit = [sys.executable, "-c", "from kit.lab.commands.cli import main; main()"]
    command = [*kit, "reproduce", "--notebooks", notebooks.path, "--out", out]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out / "pid").exists() or not (out / "pid").read_text():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"kit reproduce --resume --out {out}" in stderr
    assert "Traceback" not in stderr
    assert list(state(out)["notebooks"]) == ["01_good"]
    page = (out / "index.html").read_text()
    assert "Not run yet" in page and 'http-equiv="refresh"' not in page
    wait_until_gone([int((out / "pid").read_text())])
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
