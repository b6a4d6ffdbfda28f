"""The store of measurements: one key, one value."""

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

import model_files
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.cpu import crossings
from kit.errors import KitError
from kit.lab.claims import book, records
from kit.lab.explaining import quants
from kit.lab.measuring import measurements
from kit.lab.measuring.measurements import Reading, Readings
from kit.lab.report import run
from kit.lab.report.sweep.run import cell_state
from kit.units import from_json

ONE = Reading("blocks", "f", (0.040, 0.041, 0.042), settings="s", by="kit explain")


@pytest.fixture
def store(tmp_path):
    return Readings(tmp_path / "new" / measurements.NAME)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.text(max_size=9), st.floats(0, 2))
def test_what_is_added_comes_back(tmp_path_factory, samples, way, others):
    store = Readings(tmp_path_factory.mktemp("s") / "m.jsonl")
    added = store.add(replace(ONE, samples=tuple(samples), way=way, others=others, result=object()))
    assert list(store) == [added] and next(iter(store)).result is None is not added.result


def test_the_latest_quiet_value_of_a_key_is_its_value(store):
    assert store.known("blocks", "f", "s") is None
    store.add(ONE)
    later = store.add(replace(ONE, samples=(0.043,)))
    busy = store.add(replace(ONE, samples=(0.9,), others=1.5))
    assert store.known("blocks", "f", "s") == later and later.told == "43.0 ms (measured once)"
    for other in ({"way": "w"}, {"file": "g"}, {"key": "t"}, {"unit": "GB/s"}):
        assert store.known(**{"way": "blocks", "file": "f", "key": "s"} | other) is None
    store.add(replace(ONE, machine="another"))
    assert store.known("blocks", "f", "s") == later, "another machine's values are none of this one's"
    alone = Readings(store.path.with_name("busy"))
    alone.add(busy)
    assert alone.known("blocks", "f", "s") is None and alone.known("blocks", "f", "s", busy=True) == busy


def test_values_that_differ_beyond_their_spreads_disagree():
    """46.8 ms in the bars and 102 ms in the sentence below was seen: three samples 9.0, 9.8, 18.2 say nothing against it."""
    same, slow, wide = ((0.0425, 0.043, 0.044), (0.102, 0.103, 0.101), (0.03, 0.05, 0.2))
    assert not ONE.disagrees(replace(ONE, samples=same)) and not ONE.disagrees(replace(ONE, samples=wide))
    assert ONE.disagrees(replace(ONE, samples=slow))
    assert not ONE.disagrees(replace(ONE, samples=slow, others=1.0)), "what was disturbed is no evidence"


def test_a_bandwidth_s_best_is_the_largest_quiet_sample(store):
    row = replace(ONE, way=measurements.READ, file="", unit="GB/s")
    for samples, others in (((20.0, 36.0), 0.0), ((68.0,), 1.9), ((30.0, 31.0), 0.1)):
        store.add(replace(row, samples=samples, others=others))
    assert store.best(measurements.READ, "GB/s").samples == (20.0, 36.0)
    assert store.best(measurements.READ, "GB/s", "f") is None


@pytest.mark.parametrize("data, left_out", [
    (b'{"way": "b"}\nno json\n{"unknown": 1, "samples": [1]}\n[]\n{', 5), (b'{"way": "\xff"}\n', 1), (b'{"way": "blo', 1),
])  # fmt: skip
def test_lines_that_are_none_are_left_out_and_what_follows_is_a_line_of_its_own(store, data, left_out):
    """A byte that is not UTF-8 stopped every `kit generate`."""
    store.add(ONE)
    store.path.write_bytes(store.path.read_bytes() + data)
    later = store.add(replace(ONE, samples=(0.05,)))
    assert (list(store), store.left_out) == ([ONE, later], left_out) and store.known("blocks", "f", "s") == later


def test_a_file_s_digest_is_that_of_its_tensors(folder):
    paths = [model_files.write(folder, "tiny-llama", qtype) for qtype in ("Q4_K_M", "Q8_0")]
    with kit.open(paths[0]) as one, kit.open(paths[0]) as again, kit.open(paths[1]) as other:
        assert measurements.digest_of(one) == measurements.digest_of(again) != measurements.digest_of(other)


def _changed(value):
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
    return [*value[:-1], _changed(value[-1])] if len(value) else value


def test_a_file_s_digest_follows_every_value_of_its_metadata(folder, tmp_path):
    """`expert_used_count` changed from 2 to 32 in place: explain printed the speed of 2 beside ten times the bytes."""
    source = model_files.write(folder, "tiny-qwen3moe")
    with kit.open(source) as file:
        first, metadata = measurements.digest_of(file), dict(file.metadata)
        digests = {first}
        for key, value in metadata.items():
            if key != "general.alignment" and not (hasattr(value, "__len__") and not len(value)):
                file.metadata = metadata | {key: _changed(value if isinstance(value, str | int | float) else value.tolist())}
                digests.add(measurements.digest_of(file))
                assert measurements.digest_of(file) != first, key
        assert len(digests) > 20
    used = metadata["qwen3moe.expert_used_count"]
    data = source.read_bytes()
    at = data.index(b"qwen3moe.expert_used_count") + len("qwen3moe.expert_used_count") + 4
    assert data[at] == used
    other = tmp_path / "in place.gguf"
    other.write_bytes(data[:at] + bytes([used + 1]) + data[at + 1 :])
    with kit.open(other) as file:
        assert measurements.digest_of(file) != first, "one byte of the file's metadata"


@pytest.mark.parametrize(
    "value",
    [None, "x", True, [], [None], ["x"], {}, {"a": "b"}, 1e999, 10**400, [10**400], -1, [[1]], [float("nan")], [-1.0], 3],
)
@pytest.mark.parametrize("name", [each.name for each in fields(Reading)])
def test_a_row_is_checked_field_by_field(store, name, value):
    """What a reader asks of a row holds of each that it gets, or the row is left out and counted."""
    store.add(ONE)
    row = asdict(ONE) | {name: value}
    with store.path.open("a") as out:
        out.write(json.dumps(row) + "\n")
    rows = list(store)
    assert len(rows) + store.left_out == 2 and rows[0] == ONE
    for each in rows:
        assert each.median > 0 and each.told and len(each.key) == 5 and each.others in (0, 3)
        assert each.at[:4].isdigit() and sum(each.row.values()) == 0
    assert store.known("blocks", "f", "s") and store.best("blocks", "s", "f")


@pytest.mark.parametrize("name", ["way", "file", "samples", "machine", "at"])
def test_a_row_without_what_it_is_of_is_left_out(store, name):
    """One without a machine counted as this one's, and one without a time as of now."""
    store.add(ONE)
    row = asdict(replace(ONE, samples=(0.5,)))
    del row[name]
    with store.path.open("a") as out:
        out.write(json.dumps(row) + "\n")
    assert (list(store), store.left_out) == ([ONE], 1)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "under a file"])
def test_what_is_no_file_is_an_empty_store(tmp_path, kind):
    """`kit generate` waited for a named pipe's end."""
    path = tmp_path / "store"
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda name: os.symlink(name, name), "under a file": Path.touch}[kind](path)
    other = Readings(path / "m.jsonl" if "under" in kind else path)
    assert other.add(ONE) == ONE and list(other) == [] and other.left_out == 0


def test_what_others_wrote_as_json_is_read_by_one_function():
    """One that knows lists within lists, at which Python's ends with a RecursionError: a traceback of `kit report diff`."""
    with pytest.raises(ValueError, match="too deep"):
        from_json("[" * 200_000)
    own = {"units.py", "lab/measuring/child.py", "lab/engines/processes.py", "lab/report/runner.py", "lab/report/child.py",
           "system/lost.py"}  # fmt: skip
    root = Path(kit.__file__).parent
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if re.search(r"json\.loads?\b", path.read_text())}
    assert found == own, "the others are lines between kit's own processes"


DAMAGED = ["", "[" * 100_000, "[]", "null", '"x"', "1", "{", '{"a": {"b": [1]}}', "\ufeff{}", '{"notebooks": []}']


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_of_a_run_is_one_line(tmp_path, text):
    """Whatever of it: a traceback is none."""
    readers = {"run.json": run.load, "records.jsonl": lambda folder: records.of_run(folder), "cell/cell.json": _cell_state,
               "page.ipynb": lambda folder: run.read_notebook(folder / "page.ipynb"), "state/run.json": lambda folder:
               book.state_of(folder / "state"), "quants.json": lambda folder: quants.read(folder / "quants.json")}  # fmt: skip
    for name, reader in readers.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        with suppress(KitError):
            assert reader(tmp_path) in (None, [], {}), name


def _cell_state(folder):
    return cell_state(folder, SimpleNamespace(name="cell", key="k"))


KEPT = [("null", {}), ("[]", {}), ('{"a": []}', {}), ('{"a": 1}', {}), ('{"a": {}}', {}), ('{"a": {"rows": "x"}}', {}),
        ('{"a": {"rows": NaN}}', {}), ('{"a": {"rows": 0.0}}', {}), ('{"a": {"other": 1.0}}', {}), ("[" * 100_000, {}),
        ('{"a": {"rows": 0.5}, "b": 1}', {"a": {"rows": 0.5}})]  # fmt: skip


@pytest.mark.parametrize(("text", "kept"), KEPT, ids=range(len(KEPT)))
def test_damaged_times_of_kernels_are_measured_again(tmp_path, monkeypatch, text, kept):
    """A list in place of an object was a traceback of every command that multiplies."""
    monkeypatch.setattr(crossings, "beside", tmp_path.joinpath)
    (tmp_path / "crossings").write_text(text.replace('"rows"', f'"{crossings.ROWS}"'))
    assert crossings._read() == {key: {crossings.ROWS: times["rows"]} for key, times in kept.items()}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', '{"engines": []}', '{"engines": {"kit": 1}}',
                                  '{"engines": {"kit": {"speed": "fast"}}}', '{"engines": {"kit": {"samples": ["x"]}}}',
                                  '{"engines": {"kit": {"samples": [0]}}}'])  # fmt: skip
def test_a_damaged_table_of_engines_is_none(tmp_path, text):
    (tmp_path / measurements.PEERS).write_text(text)
    assert measurements.peers(tmp_path) == {}
    (tmp_path / measurements.PEERS).write_bytes(b'{"engines": {"k\xff": {}}}')
    assert measurements.peers(tmp_path) == {}
    whole = {"engines": {"kit": {"speed": float("nan"), "samples": [20.0, 0.5], "reason": "x", "others": None}}, "by": "07"}
    (tmp_path / measurements.PEERS).write_text(json.dumps(whole))
    assert measurements.peers(tmp_path)["engines"].keys() == {"kit"}


def test_busy_and_disagreeing_by_hand(monkeypatch):
    monkeypatch.setattr(measurements, "interval_of", lambda samples: (min(samples), max(samples)))
    of = lambda *samples, **more: replace(ONE, samples=samples, **more)  # noqa: E731
    assert [of(1.0, others=others).busy for others in (0.0, measurements.BUSY, 0.3)] == [False, False, True]
    for one, other in ((of(1.0), of(1.25)), (of(1.0), of(3.0)), (of(1.0, 1.0, 2.0), of(2.1, 3.0, 3.0))):
        assert one.disagrees(other) and other.disagrees(one)
    for one, other in ((of(10.0), of(12.0)), (of(1.0, 1.0, 2.0), of(2.0, 3.0, 3.0)), (of(1.0), of(3.0, unit="GB/s"))):
        assert not one.disagrees(other) and not other.disagrees(one)
    assert of(1.0, 3.0).told == "2.00 s (1.00 s to 3.00 s)" and of(2.0).told == "2.00 s (measured once)"


@pytest.mark.parametrize(
    "way, unit, least, kept",
    [("w", "s", 0.0, False), ("w", "GB/s", 0.0, False), (measurements.USE + "x", "s", 0.0, True), ("w", "nats", 0.0, True),
     (measurements.USE + "x", "s", -1.0, False), ("w", "nats", -1.0, True), ("w", "s", 1.0, True)],
)  # fmt: skip
def test_a_sample_that_cannot_be_of_its_unit_is_none(store, way, unit, least, kept):
    store.add(replace(ONE, way=way, unit=unit, samples=(2.0, least)))
    assert (len(list(store)), store.left_out) == (kept, 1 - kept)


def test_lines_are_only_ever_added_without_a_blank_one(store):
    for _ in range(3):
        store.add(ONE)
    line = store.path.read_bytes().split(b"\n")[0]
    assert line.startswith(b"{") and store.path.read_bytes() == (line + b"\n") * 3


def test_a_store_makes_its_folders_and_measures_once_what_it_has(tmp_path, monkeypatch):
    store, taken = measurements.of_run(tmp_path / "a" / "b"), iter((1.0, 2.0, 3.0))
    assert store.path == tmp_path / "a" / "b" / measurements.NAME
    monkeypatch.setenv("KIT_MEASURED", str(tmp_path / "c"))
    assert measurements.shared().path == tmp_path / "c" / measurements.NAME
    take = lambda **how: measurements.once(store, "w", "f", lambda: replace(ONE, samples=(next(taken),)), "07", **how)  # noqa: E731
    assert [take().median, take().median, take(again=True).median, take().median] == [1.0, 1.0, 2.0, 2.0]
    assert [(row.way, row.file, row.by, row.median) for row in measurements.shared()] == [
        ("w", "f", "07", n) for n in (1.0, 2.0)
    ]


def test_engines_of_a_table_by_hand():
    rows = {
        "kit": {"speed": 4.0, "samples": [2.0, 4.0], "others": 0.5, "reason": ""},
        "old": {"speed": 5.0, "samples": float("nan")},
        "none": {"speed": float("nan"), "reason": "x"}, "stopped": {"speed": 0.0}, "missing": {},
    }  # fmt: skip
    found = measurements.engines({"digest": "d", "machine": "m", "settings": "t", "engines": rows})
    assert {name: (row.samples, row.others, row.row) for name, row in found.items()} == {
        "kit": ((0.5, 0.25), 0.5, {"speed": 4.0, "others": 0.5}), "old": ((0.2,), 0.0, {"speed": 5.0}),
    }  # fmt: skip
    assert {(row.way, row.file, row.machine, row.settings, row.by) for row in found.values()} == {
        (name, "d", "m", "t", measurements.PEERS) for name in ("kit", "old")
    }
    assert measurements.engines({"engines": {"kit": {"speed": 1.0}}})["kit"].machine == measurements.machine_id()


def test_a_digest_of_tensors_that_the_kit_does_not_know_is_that_of_their_table():
    file = SimpleNamespace(architecture="a", tensors={"x": SimpleNamespace(is_known=False, qtype="Q9_Z", shape=(2,))})
    told = hashlib.sha256(repr(("a", "")).encode() + repr(("x", "Q9_Z", (2,))).encode()).hexdigest()[:16]
    assert measurements.digest_of(file) == told
    file.tensors["x"].is_known, file.blocks = True, lambda name: np.arange(2 * 3 * 5000, dtype=np.uint8).reshape(2, 3, 5000)
    data = file.blocks("x").reshape(-1)
    told = hashlib.sha256(repr(("a", "")).encode() + repr(("x", "Q9_Z", (2,))).encode())
    told.update(data[:4096].tobytes() + data[-4096:].tobytes())
    assert measurements.digest_of(file) == told.hexdigest()[:16]
