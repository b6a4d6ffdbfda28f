"""Cells of a sweep, by hand: no cluster, and no notebook runs."""

import asyncio
import json
import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from distributed import KilledWorker
from invented import MACHINE
from nbformat import v4, writes

import kit
from kit.errors import CacheError, ReportError
from kit.lab.claims.records import Record
from kit.lab.measuring import machine
from kit.lab.measuring.measurements import Reading
from kit.lab.report import run as runs
from kit.lab.report.sweep import decode, page, run, spec
from kit.lab.report.sweep.run import Answer

SOURCE = writes(v4.new_notebook(cells=[v4.new_code_cell("x")]))


def cell(notebook="slow", source=SOURCE, **settings):
    return spec.Cell(notebook, source, "smoke", spec.Model("", "tiny-llama", "Q8_0"), "d", settings, "m")


def answer(status="ok", reason="", *rows, **files):
    lines = "".join(row.to_json() + "\n" for row in rows).encode()
    return Answer(status, reason, 1.5, "m", "host", {"slow.jsonl": lines, "index.html": b"", "run.json": b"{}", **files})


def row(quantity, unit="s", value=2.0, **more):
    return Record(quantity=quantity, unit=unit, samples=[value], notebook="slow", **more)


def test_a_cell_that_ended_well_and_has_not_changed_is_not_run_again(tmp_path):
    well, failed, never = cell(seed="1"), cell(seed="2"), cell(seed="3")
    tmp_path /= "new"
    run.keep_cell(tmp_path, well, answer())
    run.keep_cell(tmp_path, failed, answer("failed", "why"))
    assert run.pending_cells(tmp_path, [well, failed, never]) == [failed, never]
    assert run.cell_state(tmp_path, well)["key"] == well.key and "source" not in run.cell_state(tmp_path, well)["cell"]
    state = tmp_path / well.name / run.STATE
    for text in ("{half", "[1]", json.dumps(json.loads(state.read_text()) | {"key": "another"})):
        state.write_text(text)
        assert run.cell_state(tmp_path, well) is None
    run.keep_cell(tmp_path, well, answer())
    assert run.pending_cells(tmp_path, [well]) == [] and {path.name[0] for path in tmp_path.iterdir()} == {"s"}
    with pytest.raises(ReportError, match="cannot write"):
        run.keep_cell(tmp_path / well.name / "run.json", well, answer())


def test_the_table_has_a_row_a_cell_with_what_it_measured(tmp_path):
    ran, never = cell(seed="1"), cell(seed="2")
    rows = (row("a token"), row("held", "B", 2.6), row("judged", claim="simd", verdict="reproduced", reason="r"),
            Record(quantity="gpu", unit="s", samples=[], status="skipped", reason="none"))  # fmt: skip
    run.keep_cell(tmp_path, ran, answer("failed", "late", *rows))
    first, second = page.table(tmp_path, [ran, never]).to_dict("records")
    shared = {"notebook": "slow", "model": "tiny-llama Q8_0", "machine": "m"}
    assert first == shared | {"seed": "1", "status": "failed", "seconds": 1.5, "a token": 2.0, "held": 3, "reason": "late"}
    assert second.items() >= (shared | {"seed": "2", "status": "not run", "seconds": None, "reason": ""}).items()
    assert page.table(tmp_path, [ran], as_text=True)["a token"][0] == "2.00 s"


def test_the_page_of_a_sweep_is_over_the_cells_that_ran(tmp_path, monkeypatch):
    monkeypatch.setattr(page.theme, "write", lambda path, template, **given: given | {"path": path})
    busy, never = cell(seed="1"), cell(seed="2")
    assert page.write(tmp_path, [busy, never]) is None
    judged = row("judged", claim="simd", verdict="reproduced", reason="r")
    run.keep_cell(tmp_path, busy, answer("ok", "", row("a token", state={"busy": "others"}), judged))
    given = page.write(tmp_path, [busy, never])
    assert given["path"] == tmp_path / "index.html" and given["pages"] == {busy.name}
    assert [result.busy for result in given["results"]] == [True, False]
    ((notebook, facts, measured, group),) = given["groups"]
    assert (notebook, facts, measured) == ("slow", ["model", "seed", "machine"], [("a token", "s")]) and len(group) == 2
    assert [(one, each.quantity) for one, each in given["verdicts"]] == [(busy, "judged")]
    head, *lines = (tmp_path / "table.csv").read_text().splitlines()
    assert head.startswith("notebook,model,seed,machine,") and len(lines) == 2
    (tmp_path / busy.name / "index.html").unlink()
    drawn = []
    monkeypatch.setattr(page, "load", lambda folder: folder)
    monkeypatch.setattr(page.html, "write", lambda run, name: drawn.append((run, name)))
    monkeypatch.setattr(page.index, "write", drawn.append)
    page.write(tmp_path, [busy, never])
    assert drawn == [(tmp_path / busy.name, "slow"), tmp_path / busy.name]


def test_a_decode_is_bounded_by_reading_all_and_writing_what_was_missed():
    """40 GB at 20 GB/s, of which a quarter is written at 10."""
    measured = Reading("w", "f", samples=(4.0,), row={"hit_rate": 0.75, "resident": 5e9})
    for capacity, most in ((8 << 30, 8 << 30), (None, 40_000_000_000)):
        rows = decode.records(decode.ways.Way("LRU", capacity, "float32"), measured, 40_000_000_000, MACHINE)
        assert [(each["samples"], each.get("lower"), each.get("upper")) for each in rows] == [
            ([4.0], pytest.approx(3.0), None), ([0.75], None, 1.0), ([5e9], None, most)]  # fmt: skip


@pytest.mark.parametrize(("capacity", "limit"), [("25%", 50), ("0.5%", 1), ("0.4%", 0), ("1 KiB", 1024), ("1 B", 1)])
def test_a_capacity_is_a_share_of_the_weights_or_bytes_and_one_byte_at_least(capacity, limit):
    if limit:
        assert decode.way_of("LRU", capacity, "float32", 200).capacity == limit
        assert decode.way_of("HashMap", capacity, "float32", 200).capacity is None
        return
    with pytest.raises(CacheError, match="too small"):
        decode.way_of("LRU", capacity, "float32", 200)


def test_what_stops_a_cell_is_its_reason():
    def ended(error):
        def result():
            raise error

        return run._answer(SimpleNamespace(result=result), "m")

    assert run._answer(SimpleNamespace(result=lambda: 7), "m") == 7
    stopped = ended(ValueError("first\nsecond"))
    assert (stopped.reason, stopped.seconds) == ("ValueError: first", 0)
    killed = ended(KilledWorker("task", SimpleNamespace(address="a"), 3))
    assert killed.reason.startswith("it took three workers") and (killed.status, killed.kind) == ("failed", "m")


def test_a_notebook_whose_sweep_was_interrupted_ends_at_its_next_cell(monkeypatch):
    tasks = {"key": SimpleNamespace(state="executing")}
    worker = SimpleNamespace(get_current_task=lambda: "key", state=SimpleNamespace(tasks=tasks))
    monkeypatch.setattr(run, "get_worker", lambda: worker)
    check = run._cancellation()
    check(SimpleNamespace(name="slow"), 1)
    for now in ({"key": SimpleNamespace(state="cancelled")}, {}):
        worker.state.tasks = now
        with pytest.raises(InterruptedError, match="slow: the sweep was interrupted"):
            check(SimpleNamespace(name="slow"), 2)


@pytest.mark.parametrize(
    ("listens", "tries"), [(0.0, [10.0]), (4.0, [10.0, 5.0]), (9.95, [10.0, 5.0, 0.1]), (99.0, [10.0, 5.0, 0.1])]
)
def test_a_scheduler_is_waited_for_until_the_time_is_over(monkeypatch, listens, tries):
    """Each try takes 4.75 seconds, and a quarter of one is between tries."""
    now, asked = [64.0], []

    def create_connection(address, timeout):
        asked.append(timeout)
        if now[0] - 64 < listens:
            now[0] += 4.75
            raise OSError
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(run, "socket", SimpleNamespace(create_connection=create_connection))
    sleep = lambda seconds: now.append(now.pop() + 0.25)  # noqa: E731
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    if listens < 10:
        run._reach("tcp://127.0.0.1:8786", 10.0)
    else:
        with pytest.raises(OSError):
            run._reach("tcp://127.0.0.1:8786", 10.0)
    assert asked == tries


@pytest.mark.parametrize("asked", ["", "tcp://there"])
@pytest.mark.parametrize("waits", [True, False])
def test_workers_of_a_cluster_of_one_s_own_have_a_thread_each_and_all_memory(monkeypatch, asked, waits):
    said, given = [], []

    class Client:
        def __init__(self, scheduler, **how):
            given.append((scheduler, how["set_as_default"]))

        __enter__, __exit__ = (lambda self: self), (lambda *_: None)
        scheduler_info = lambda self: {"workers": {} if waits else {"w": 1}}  # noqa: E731
        register_plugin = lambda self, plugin: None  # noqa: E731

        def wait_for_workers(self, count, timeout):
            if waits:
                raise TimeoutError
            assert count == 1

    def cluster(**how):
        given.append(how)
        return nullcontext(SimpleNamespace(scheduler_address="tcp://own"))

    monkeypatch.setattr(run, "Client", Client)
    monkeypatch.setattr(run, "LocalCluster", cluster)
    monkeypatch.setattr(run, "_reach", lambda scheduler, wait: None)
    with pytest.raises(ReportError, match=r"no worker within 60 s") if waits else nullcontext():
        with run.connect(asked, workers=3, say=said.append):
            pass
    assert given[-1] == (asked or "tcp://own", False) and len(said) == bool(asked) + waits and len(given) == 1 + (not asked)
    if not asked:
        how = {name: given[0][name] for name in ("n_workers", "threads_per_worker", "processes", "memory_limit")}
        assert how == {"n_workers": 3, "threads_per_worker": 1, "processes": True, "memory_limit": 0}


def test_each_cell_is_kept_when_it_ends_and_none_is_left_running(tmp_path, monkeypatch):
    submitted, cancelled, ended, cells = [], [], [], [cell(seed="1"), cell(seed="2")]

    class Future:
        result, release = (lambda self: answer()), (lambda self: None)

    def submit(function, cell, timeout, key, pure, resources):
        submitted.append((cell, timeout, key, pure, resources))
        return Future()

    client = SimpleNamespace(submit=submit, loop=None, cancel=lambda futures, force: cancelled.append((len(futures), force)))
    monkeypatch.setattr(run, "as_completed", lambda futures, loop: reversed(futures))
    for _ in range(2):
        run.perform_cells(client, cells, tmp_path, 9.0, lambda cell, answer: ended.append(cell))
    assert ended == cells[::-1] * 2 and run.pending_cells(tmp_path, cells) == [] and cancelled == [(2, True)] * 2
    assert len({key for _, _, key, *_ in submitted}) == 4, "a cell that runs again must not get its old answer"
    assert {(timeout, pure) for _, timeout, _, pure, _ in submitted} == {(9.0, False)}
    assert all(resources == {run.resource("m"): 1} for *_, resources in submitted), "one at a time on a machine"


def test_a_share_is_of_what_a_token_uses_and_each_way_runs_next_to_none(monkeypatch):
    tensors = {name: SimpleNamespace(elements=count) for name, count in (("a", 300), ("b", 100))}
    monkeypatch.setattr(decode, "order_of", lambda file, tokens: "order")
    monkeypatch.setattr(decode.ways, "used_tensors", lambda file, order: tensors)
    monkeypatch.setattr(decode.measured_ways, "measure", lambda way, file, order, tokens: (way.policy, way.capacity, tokens))
    way, *measured, total = decode.measure("file", "LRU", "25%", "float16", 7)
    assert (way.capacity, total) == (200, 800) and measured == [("LRU", 200, 7), ("NoCache", None, 7)]


def test_workers_have_this_code_of_the_kit(monkeypatch):
    monkeypatch.setattr(run.sources, "of_package", lambda: "code")

    def asked(versions, codes):
        answers = iter([{f"w{place}": each for place, each in enumerate(some)} for some in (versions, codes)])
        return run.kinds(SimpleNamespace(run=lambda function: next(answers)))

    here = (kit.__version__, "m")
    assert asked([here, (kit.__version__, "a"), here], ["code"] * 3) == ["a", "m"]
    with pytest.raises(ReportError, match=r"w1 has kit 0\.0"):
        asked([here, ("0.0", "m")], ["code"] * 2)
    with pytest.raises(ReportError, match="w1 has different code"):
        asked([here, here], ["code", "other"])


def test_a_worker_has_one_place_for_a_notebook_and_all_threads(monkeypatch):
    monkeypatch.setattr(machine, "machine_id", lambda: "m")
    monkeypatch.setenv("OF_NANNY", "1")
    monkeypatch.setenv("OF_USER", "8")
    given = {}

    async def set_resources(**resources):
        given.update(resources)

    with run.dask.config.set({"distributed.nanny.pre-spawn-environ": {"OF_NANNY": 1, "OF_USER": 1}}):
        asyncio.run(run.Prepare().setup(SimpleNamespace(set_resources=set_resources)))
    assert given == {run.resource("m"): 1} and "OF_NANNY" not in os.environ and os.getenv("OF_USER") == "8"


def test_a_cell_runs_as_kit_reproduce_would_and_the_machine_is_measured_once(monkeypatch):
    asked, known, measured = [], [], []

    def perform(given, jobs, timeout, on_cell):
        known.append((given.folder / "environment.json").exists())
        given.notebooks["slow"] = runs.NotebookOutcome(*jobs)

    def of_run(folder):
        measured.append(folder)
        (folder / "environment.json").write_text("{}")

    ended = ["ok", "", 3, 1.0, [], "", "d"]
    monkeypatch.setattr(run, "_environment", {})
    monkeypatch.setattr(run, "_cancellation", lambda: None)
    monkeypatch.setattr(run, "cached_model", lambda *given: "/models/" + "-".join(map(str, given[:4])))
    monkeypatch.setattr(run.planning, "plan", lambda request, folder: asked.append(request) or ended)
    monkeypatch.setattr(run.planning, "perform", perform)
    monkeypatch.setattr(machine, "of_run", of_run)
    done = run.run_cell(cell(seed="1", device="cuda"))
    (request,) = asked
    assert (request.model, request.texts, request.device) == ("/models/tiny-llama-Q8_0-None-0", ("seed=1",), "cuda")
    assert (done.status, done.reason) == ("ok", "") and "environment.json" in done.files and 0 <= done.seconds < 60
    ended[:2] = "failed", "why"
    again = run.run_cell(cell())
    assert (again.status, again.reason, asked[1].device) == ("failed", "cell 3: why", "cpu")
    assert known == [False, True] and len(measured) == 1
