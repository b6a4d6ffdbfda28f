"""kit sweep: the grid of a spec, cells that are kept, a worker that is killed, Ctrl-C, and another scheduler."""

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import documented
import nbformat
import psutil
import pytest
from click.testing import CliRunner
from distributed import LocalCluster
from nbformat import v4

import kit
from kit.errors import CacheError, ReportError
from kit.lab.claims import records
from kit.lab.commands.cli import main
from kit.lab.measuring import machine
from kit.lab.report import sources
from kit.lab.report.sweep import decode, page, run, spec
from kit.lab.synthetic.write import cached_model
from kit.units import to_json

PARAMETERS = """\
profile: str = "quick"  # smoke, quick or full
model: str = ""  # a GGUF file; empty: a generated one
out: str = ""  # folder of the records
seed: int = 0  # of the weights
policy: str = "LRU"  # of the cache
samples: int = 3  # how often
share: float = 0.5  # of the weights
deep: bool = False  # yes or no
"""
SESSION = "import kit, os, time\nlab = kit.Session('slow', profile=profile, out=out, seed=seed, policy=policy)"
RECORD = "lab.record(quantity='seconds', unit='s', samples=[1.0 + seed, 2.0, 3.0]);"


@pytest.fixture
def folder(tmp_path):
    """Notebooks: `fast`; `slow`, which leaves a mark for every start and waits while `wait` exists; `waits` does only that."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    mark = f"marks = {str(tmp_path)!r}\nopen(f'{{marks}}/started-{{seed}}-{{os.getpid()}}', 'w').close()\n"
    wait = "while os.path.exists(f'{marks}/wait') and seed: time.sleep(0.05)"
    slow = (SESSION, mark + wait, "assert seed < 9, 'nine'\n" + RECORD)
    for name, cells in {"slow": slow, "waits": ("import os, time\n" + mark + wait,), "fast": ("print('seven')",)}.items():
        made = [v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), *map(v4.new_code_cell, cells)]
        nbformat.write(v4.new_notebook(cells=made), folder / f"{name}.ipynb")
    return folder


@pytest.fixture
def grid_of(tmp_path, folder):
    def grid_of(text):
        path = tmp_path / "grid.yaml"
        path.write_text(text)
        return spec.read(path, folder)

    return grid_of


def waiting(condition, seconds=200):
    """The condition's first true value; fails when there is none in time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return value


def test_a_grid_is_the_product_of_its_axes(grid_of):
    grid = grid_of(
        "profile: smoke\nnotebooks: [slow, decode]\nmodels: [tiny-llama, granite-3.3-8b]\nquantizations: [Q4_K_M, Q8_0]\n"
        "policies: [LRU, Pinned, SIEVE]\ncapacities: [50%, 1GiB]\nparameters: {seed: [0, 1], tokens: 4}"
    )
    slow = [cell for cell in grid if cell.notebook == "slow"]
    own = [cell for cell in grid if cell.notebook == "decode"]
    assert len(slow) == 2 * 2 * 3 * 2 and len(own) == 2 * 2 * 3 * 2 * 2  # slow knows neither capacity nor tokens
    assert {tuple(cell.settings) for cell in slow} == {("policy", "seed")}
    assert {(cell.model.geometry, cell.model.mix) for cell in own} == {
        (name, mix) for name in ("tiny-llama", "tiny-granite") for mix in ("Q4_K_M", "Q8_0")
    }
    assert {cell.model.seed for cell in slow if cell.settings["seed"] == "1"} == {1}
    assert len({cell.key for cell in grid}) == len({cell.name for cell in grid}) == len(grid)


@pytest.mark.parametrize(("text", "names"), [
    ("notebooks: [fast]\nmodles: []\ncolor: red", "unknown keys: color, modles; choose from profile, notebooks"),
    ("profile: smoke", "notebooks: name at least one"), ("notebooks: [fast]\nprofile: huge", "no profile 'huge'"),
    ("notebooks: [nothing]", "notebooks: nothing: no such notebook"),
    ("notebooks: [decode]\npolicies: [Foo]", "policy: there is no 'Foo'; choose one of NoCache"),
    ("notebooks: [decode]\ncapacities: [50%, abc]", "capacity: 'abc' is neither a size"),
    ("notebooks: [decode]\ncapacities: ['4']", "capacity: '4' is neither a size"),
    ("notebooks: [decode]\nparameters: {dtype: float8}", "dtype 'float8' is not known"),
    ("notebooks: [02]", "a number needs quotes"),
    ("notebooks: [fast]\nparameters: {color: [1]}", "parameter 'color'; they have deep, model"),
    ("notebooks: [fast]\ncapacities: [1GiB]", "parameter 'capacity'"),
    ("notebooks: [fast]\nparameters: {samples: [1.5]}", "samples: 1.5 is a float"),
    ("notebooks: [fast]\nparameters: {policy: [no]}", "policy: False is a bool"),
    ("notebooks: [fast]\nparameters: {share: [.inf]}", "not a finite float"),
    ("notebooks: [fast]\nparameters: {profile: [quick]}", "profile is set with its own key"),
    ("notebooks: [fast]\npolicies: [LRU]\nparameters: {policy: [SIEVE]}", "policy is given twice"),
    ("notebooks: [fast]\nparameters: {seed: []}", "seed has no value"),
    ("notebooks: [fast]\nparameters: 3", "parameters: expected `name: values` lines"),
    ("notebooks: [fast]\nquantizations: [Q9]", "quantization 'Q9' is not known; choose one of F32"),
    ("notebooks: [fast]\nmodels: [gpt]", "gpt: is not a file and not one of granite"),
    ("notebooks: [fast]\nprofile: [smoke]", "profile: ['smoke'] is not a text"),
    ("notebooks: [fast]\nmodels: [~nobody-by-this-name]", "is not a file and not one of"),
    ("- a\n- b", "expected `key: value` lines with the keys"), ("notebooks: [", "not YAML"),
])  # fmt: skip
def test_a_wrong_spec_is_one_clear_error(grid_of, text, names):
    with pytest.raises(ReportError) as error:
        grid_of(text)
    assert "grid.yaml: " in str(error.value) and names in str(error.value)


def test_the_key_changes_with_all_that_it_is_made_of(grid_of, folder, tmp_path, monkeypatch):
    model = cached_model("tiny-llama", folder=tmp_path)
    text = f"notebooks: [fast]\nprofile: smoke\nmodels: [{model}]\nparameters: {{seed: 1}}"

    def key(kind="this"):
        return replace(grid_of(text)[0], kind=kind).key

    first = key()
    assert key() == first and key("that") != first
    with monkeypatch.context() as patch:
        patch.setattr(kit, "__version__", "9")
        assert key() != first
    text = text.replace("seed: 1", "seed: 2")
    assert key() != first
    text = text.replace("seed: 2", "seed: 1")
    with open(model, "r+b") as file:  # one bit of one weight
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    changed = key()
    assert changed != first
    source = folder / "fast.ipynb"
    source.write_text(source.read_text().replace("seven", "eight"))
    assert key() not in (first, changed)


def test_a_cell_runs_again_when_the_body_of_a_policy_changes(grid_of, tmp_path, monkeypatch):
    """Its key took the notebook's text and the kit's version alone, and `kit sweep` skipped it after an edit."""
    text = "notebooks: [decode]\nprofile: smoke\nmodels: [tiny-llama]\npolicies: [S3FIFO]\ncapacities: [50%]"
    [cell] = grid_of(text)
    run.keep_cell(tmp_path / "out", cell, run.Answer("ok", "", 1.0, "", "", {}))
    assert not run.pending_cells(tmp_path / "out", grid_of(text))
    edited = inspect.getsourcefile(kit.S3FIFO)
    code, read_bytes = sources.of_package(), Path.read_bytes
    body = lambda path: read_bytes(path) + b"# edited" * (str(path) == edited)  # noqa: E731
    monkeypatch.setattr(Path, "read_bytes", body)
    assert run.pending_cells(tmp_path / "out", grid_of(text)) and sources.of_package() != code


def sweep(tmp_path, *options):
    """`kit sweep` in this process; stdout is the table as JSON."""
    arguments = [str(tmp_path / "grid.yaml"), "--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out")]
    return CliRunner().invoke(main, ["sweep", *arguments, "--json", *options])


def running(process):
    """Whether a process still does anything."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def dask_worker(address):
    """A `dask worker` as a process of its own, without a nanny that would start it again."""
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "2", "--no-dashboard"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_cells_of_a_killed_worker_run_again(grid_of, tmp_path):
    grid_of("notebooks: [slow]\nprofile: smoke\nparameters: {seed: [1, 7, 9]}")
    (tmp_path / "wait").touch()
    with (
        LocalCluster(n_workers=0, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster,
        dask_worker(cluster.scheduler_address) as first,
        dask_worker(cluster.scheduler_address) as second,
    ):
        killed = []

        def kill():
            """When two cells wait, one on each worker: end one worker, and let what is left go on."""
            with contextlib.suppress(AssertionError):
                waiting(lambda: len(list(tmp_path.glob("started-*"))) == 2)
                killed.extend(psutil.Process(first.pid).children(recursive=True))
                first.kill()
                waiting(lambda: not any(map(running, killed)))
            (tmp_path / "wait").unlink()

        killer = threading.Thread(target=kill)
        killer.start()
        result = sweep(tmp_path, "--scheduler", cluster.scheduler_address)
        killer.join()
        assert second.poll() is None and first.poll() is not None
    assert killed and not any(map(running, killed)), "the worker was to be killed with a notebook running"
    assert result.exit_code == 1, result.output  # one cell fails by itself
    rows = {int(row["seed"]): row for row in json.loads(result.stdout)["rows"]}
    assert {seed: row["status"] for seed, row in rows.items()} == {1: "ok", 7: "ok", 9: "failed"}
    assert rows[9]["reason"] == "cell 5: AssertionError: nine"
    assert len(list(tmp_path.glob("started-*"))) == 4  # three cells, one of them twice
    measured = records.read(sorted((tmp_path / "out").glob("slow-*/slow.jsonl")))
    assert sorted(record.median for record in measured if record.status == "ok") == [2.0, 3.0]
    assert {record.machine_id for record in measured} == {machine.machine_id()}
    assert (tmp_path / "out" / "index.html").read_text().count("/index.html") >= 3
    table = (tmp_path / "out" / "table.csv").read_text()
    assert table.startswith("notebook,model,seed,machine,claim") and table.count("\nslow,") == 3


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_ends_the_rest(grid_of, tmp_path):
    grid_of("notebooks: [waits]\nprofile: smoke\nparameters: {seed: [0, 1]}")
    (tmp_path / "wait").touch()
    command = [sys.executable, "-c", "from kit.lab.commands.cli import main; main()", "sweep", str(tmp_path / "grid.yaml"),
        "--no-progress"]  # fmt: skip
    command += ["--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out")]

    def start():
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        )  # fmt: skip

    process = start()
    waiting(lambda: list(tmp_path.glob("out/waits-*/cell.json")) and list(tmp_path.glob("started-1-*")))  # written last
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "finished cells are kept" in output, output
    waiting(lambda: not any(map(running, children)))
    kept = {json.loads(path.read_text())["cell"]["settings"]["seed"] for path in tmp_path.glob("out/*/cell.json")}
    assert kept == {"0"} and (tmp_path / "out" / "index.html").exists()
    (tmp_path / "wait").unlink()
    process = start()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert {seed: len(list(tmp_path.glob(f"started-{seed}-*"))) for seed in (0, 1)} == {0: 1, 1: 2}


def test_no_scheduler_is_an_error(grid_of, tmp_path, monkeypatch):
    grid_of("notebooks: [fast]")
    monkeypatch.setattr(run.connect.__wrapped__, "__defaults__", ("", 1, 1.0))
    result = sweep(tmp_path, "--scheduler", "tcp://127.0.0.1:9")
    first, last = result.stderr.splitlines()  # the first is there before the wait
    assert result.exit_code == 2 and "looking for the scheduler at tcp://127.0.0.1:9, 1 s at most" in first
    assert last.startswith("kit: error: --scheduler tcp://127.0.0.1:9: ")


def test_ctrl_c_ends_the_search_for_a_scheduler(grid_of, tmp_path):
    grid_of("notebooks: [fast]\nprofile: smoke")
    code = "from kit.lab.commands.cli import main; main()"
    command = [sys.executable, "-c", code, "sweep", tmp_path / "grid.yaml", "--notebooks", tmp_path / "notebooks"]
    command += ["--scheduler", "tcp://127.0.0.1:9", "--out", tmp_path / "out"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert "looking for the scheduler" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 130 and "Traceback" not in process.stderr.read()


def test_without_dask_the_error_names_the_extra(grid_of, tmp_path, monkeypatch):
    grid_of("notebooks: [fast]")
    monkeypatch.setitem(sys.modules, "distributed", None)
    for name in ("page", "run"):
        monkeypatch.delitem(sys.modules, f"kit.lab.report.sweep.{name}", raising=False)
        monkeypatch.delattr(f"kit.lab.report.sweep.{name}", raising=False)
    result = sweep(tmp_path)
    assert result.exit_code == 2 and "pip install --editable '.[sweep]'" in result.stderr


def test_json_has_the_documented_keys_and_whole_bytes(grid_of, tmp_path):
    """A cell that failed has no bytes, which made the others' bytes floats."""
    cells = grid_of("notebooks: [fast]\nprofile: smoke\nparameters: {seed: [1, 2]}")
    for cell, status in zip(cells, ("ok", "failed"), strict=True):
        folder = tmp_path / "out" / cell.name
        folder.mkdir(parents=True)
        (folder / "cell.json").write_text(json.dumps({"key": cell.key, "status": status, "seconds": 1.5, "reason": ""}))
    records.append(
        tmp_path / "out" / cells[0].name / "fast.jsonl", records.Record(quantity="held", unit="B", samples=[2623000])
    )
    told = json.loads(to_json(page.table(tmp_path / "out", cells).to_dict("records")))
    assert not documented.undocumented("sweep", told) and told["schema_version"] == 1
    row, other = told["rows"]
    assert set(row) - {"held_bytes", *cells[0].settings} == {
        path.partition(".")[2] for path in documented.paths("sweep") if path.startswith("rows.") and "*" not in path
    }
    assert (row["held_bytes"], other["held_bytes"]) == (2623000, None) and isinstance(row["held_bytes"], int)


def test_list_names_the_cells_and_starts_nothing(grid_of, tmp_path):
    grid_of("notebooks: [fast]\nparameters: {seed: [1, 2]}")
    listing = ["sweep", str(tmp_path / "grid.yaml"), "--notebooks", str(tmp_path / "notebooks"), "--list"]
    result = CliRunner().invoke(main, listing)
    assert result.exit_code == 0 and result.stdout.splitlines() == ["fast 1", "fast 2"]
    told = json.loads(sweep(tmp_path, "--list").stdout)  # --json was ignored
    assert [row["seed"] for row in told["rows"]] == ["1", "2"] and not documented.undocumented("sweep", told)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with kit.open(cached_model("tiny-llama", folder=tmp_path_factory.mktemp("models"))) as file:
        yield file


@pytest.mark.parametrize(("policy", "capacity"), [("MIN", "1GiB"), ("lru", "1GiB"), ("LRU", "x%"), ("LRU", ""), ("LRU", "0%")])
def test_a_wrong_way_is_one_clear_error(policy, capacity):
    with pytest.raises(CacheError, match=r"^(policy|capacity): "):
        decode.way_of(policy, capacity, "float32", 1000)


def test_decode_measures_what_the_closed_form_says(tiny):
    """A cyclic scan: LRU below the working set never hits, everything kept always does; the logits are the same."""
    for policy, capacity, hits in (("LRU", "60%", 0.0), ("HashMap", "", 1.0)):
        way, measured, lazy, total = decode.measure(tiny, policy, capacity, "float32", 3)
        assert measured.row["hit_rate"] == hits and measured.result.equal(lazy.result) and len(measured.samples) == 3
        assert way.label == measured.way and measured.row["resident"] <= total * (0.6 if hits == 0 else 1)
