"""The store of measurements: one key, one value."""

import json
from dataclasses import replace

import model_files
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.lab.measuring import measurements
from kit.lab.measuring.measurements import Reading, Readings

ONE = Reading("blocks", "f", (0.040, 0.041, 0.042), settings="s", by="kit explain")


@pytest.fixture
def store(tmp_path):
    return Readings(tmp_path / "new" / measurements.NAME)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.text(max_size=9), st.floats(0, 2))
def test_what_is_added_comes_back(tmp_path_factory, samples, way, others):
    store = Readings(tmp_path_factory.mktemp("s") / "m.jsonl")
    added = store.add(replace(ONE, samples=tuple(samples), way=way, others=others))
    assert list(store) == [added]


def test_the_latest_quiet_value_of_a_key_is_its_value(store):
    assert store.known("blocks", "f", "s") is None
    store.add(ONE)
    later = store.add(replace(ONE, samples=(0.043,)))
    busy = store.add(replace(ONE, samples=(0.9,), others=1.5))
    assert store.known("blocks", "f", "s") == later and later.told == "43.0 ms (measured once)"
    for other in ({"way": "w"}, {"file": "g"}, {"settings": "t"}, {"unit": "GB/s"}):
        assert store.known(**{"way": "blocks", "file": "f", "settings": "s"} | other) is None
    store.add(replace(ONE, machine="another"))
    assert store.known("blocks", "f", "s") == later, "another machine's values are none of this one's"
    alone = Readings(store.path.with_name("busy"))
    alone.add(busy)
    assert alone.known("blocks", "f", "s") is None and alone.known("blocks", "f", "s", busy=True) == busy


def test_values_that_differ_beyond_their_spreads_disagree(store):
    """46.8 ms in the bars and 102 ms in the sentence below was seen: three samples 9.0, 9.8, 18.2 say nothing against it."""
    same, slow, wide = ((0.0425, 0.043, 0.044), (0.102, 0.103, 0.101), (0.03, 0.05, 0.2))
    for samples in (same, slow, wide):
        store.add(replace(ONE, samples=samples, by="07"))
    assert not ONE.disagrees(replace(ONE, samples=same)) and not ONE.disagrees(replace(ONE, samples=wide))
    assert not ONE.disagrees(replace(ONE, samples=slow, others=1.0)), "what was disturbed is no evidence"
    ((earlier, later),) = measurements.disagreements(store)
    assert (earlier.samples, later.samples) == (same, slow)
    assert measurements.said(earlier, later).startswith("two measurements of blocks disagree: 43.0 ms (")


def test_a_bandwidth_s_best_is_the_largest_quiet_sample(store):
    row = replace(ONE, way=measurements.READ, file="", unit="GB/s")
    for samples, others in (((20.0, 36.0), 0.0), ((68.0,), 1.9), ((30.0, 31.0), 0.1)):
        store.add(replace(row, samples=samples, others=others))
    assert store.best(measurements.READ, "GB/s").samples == (20.0, 36.0)
    assert store.best(measurements.READ, "GB/s", "f") is None


def test_lines_that_are_none_are_left_out_and_a_store_that_cannot_be_written_forgets(store, tmp_path):
    store.add(ONE)
    with store.path.open("a") as out:
        out.write('{"way": "b"}\nno json\n' + json.dumps({"unknown": 1, "samples": [1]}) + "\n[]\n{")
    assert list(store) == [ONE]
    (tmp_path / "file").write_text("")
    nowhere = Readings(tmp_path / "file" / "m.jsonl")
    assert nowhere.add(ONE) == ONE and list(nowhere) == []


def test_a_file_s_digest_is_that_of_its_tensors(folder):
    paths = [model_files.write(folder, "tiny-llama", qtype) for qtype in ("Q4_K_M", "Q8_0")]
    with kit.open(paths[0]) as one, kit.open(paths[0]) as again, kit.open(paths[1]) as other:
        assert measurements.digest_of(one) == measurements.digest_of(again) != measurements.digest_of(other)


def test_settings_follow_the_code_that_computes(monkeypatch):
    before = measurements.settings()
    monkeypatch.setattr(measurements, "_CODE", ("gguf",))
    measurements.settings.cache_clear()
    assert measurements.settings() != before and "cores=" in before
    measurements.settings.cache_clear()
