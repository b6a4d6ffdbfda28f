"""Traces: what counts as one, the distributions, and oracleGeneral files."""

import struct
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import mixture_of_experts, shifting, zipf

import kit
from fuzz.oracle_general import write
from kit.cache.policies.base import LRU, HashMap
from kit.cache.traces import Requests, hottest, popular, repeated, requests
from kit.errors import TraceError
from kit.lab.predicting import oracle
from kit.lab.synthetic.geometry import GEOMETRIES, decode_order
from kit.lab.synthetic.write import synthesize


def test_only_accesses_that_did_not_fail_count():
    trace = kit.Trace()
    trace.add("access", 0, 1, "blk.0.a", 0, 3, 10, "miss")
    trace.add("dequantize", 0, 1, "blk.0.a", 0, 3, 11)
    trace.add("access", 0, 1, "blk.0.b", 0, 4, 20, "error")
    expected = Requests(["blk.0.a"], [10], [3])
    assert requests(trace) == requests(trace.frame()) == expected
    assert requests(pd.DataFrame({"tensor": ["x"], "nbytes": [5]})) == Requests(["x"], [5], [0])


@pytest.mark.parametrize(
    "wrong, message",
    [
        (5, "int is not a trace"), ("file", "str is not a trace"), ([1, 2], r"\(name, bytes\)"), ([("a", -1)], "negative"),
        ([("a", "b")], r"\(name, bytes\)"), (pd.DataFrame({"x": [1]}), "lacks the column nbytes, tensor"),
    ],
)  # fmt: skip
def test_what_is_no_trace(wrong, message):
    with pytest.raises(TraceError, match=message):
        kit.replay(wrong, LRU(10))


def test_a_file_stands_for_a_decode(tmp_path):
    path = synthesize(tmp_path / "m.gguf", GEOMETRIES["tiny-llama"])
    with kit.open(path) as file:
        total = sum(info.elements for info in file.tensors.values())
        for dtype, nbytes in (("float32", 4), ("bfloat16", 2)):
            stats = kit.replay(file, HashMap(), tokens=3, dtype=dtype)
            assert stats.misses == len(file.tensors) and stats.hits == 2 * stats.misses
            assert stats.resident_bytes == nbytes * total
        with pytest.raises(TraceError, match="float99"):
            kit.replay(file, HashMap(), dtype="float99")


def test_decode_order_of_the_reports_model():
    pairs = decode_order(GEOMETRIES["granite-3.3-8b"])
    assert len(pairs) == 362 and sum(size for _, size in pairs) == pytest.approx(30.44 * 2**30, rel=1e-3)
    assert pairs[0][0].startswith("blk.0.") and pairs[-1][0] == "token_embd.weight"
    untied = dict(decode_order(GEOMETRIES["tinyllama-1.1b"], layers=2))
    assert list(untied)[-1] == "output.weight" and "token_embd.weight" not in untied


def test_zipf_and_shifting_draw_what_they_say():
    trace = zipf(100, 40_000, alpha=1.0)
    counts = pd.Series(trace.keys).value_counts()
    assert counts["object.0"] / counts["object.9"] == pytest.approx(10, rel=0.15)
    moving = [int(key.split(".")[1]) for key in shifting(1000, 3000, working=20, every=100).keys]
    assert max(moving[:100]) < 20 and 10 <= min(moving[100:200]) and max(moving[100:200]) < 30


@pytest.mark.parametrize("locality", [0.0, 0.7])
def test_the_router_has_the_stated_skew_and_locality(locality):
    trace = mixture_of_experts(layers=8, experts=16, used=2, tokens=400, skew=1.0, locality=locality)
    per_token = 8 * 3
    assert len(trace) == 400 * per_token and trace.tokens[per_token] == 1
    chosen = [frozenset(trace.keys[i + 1 : i + 3]) for i in range(0, len(trace), 3)]
    same = np.mean([chosen[i] == chosen[i - 8] for i in range(8, len(chosen))])
    fresh = np.mean([chosen[i] == chosen[(i * 7919) % len(chosen) // 8 * 8 + i % 8] for i in range(8, len(chosen))])
    assert same == pytest.approx(locality + (1 - locality) * fresh, abs=0.04)
    uses = pd.Series([key for key in trace.keys if key.startswith("blk.3.ffn")]).value_counts()
    assert uses.iloc[0] > 4 * uses.iloc[-1]


records = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2**32 - 1)), min_size=1, max_size=50)


@given(records)
def test_oracle_general_round_trip(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("trace") / "t.oracleGeneral"
    trace = Requests([k for k, _ in pairs], [s for _, s in pairs], list(range(len(pairs))))
    write(trace, path)
    ids = {name: number for number, name in enumerate(trace.objects, start=1)}
    assert oracle.read(path) == replace(trace, keys=[f"object.{ids[key]}" for key in trace.keys])
    raw = path.read_bytes()
    for index, (key, size) in enumerate(pairs):  # the format, field by field
        clock, number, nbytes, following = struct.unpack_from("<IQIq", raw, 24 * index)
        later = [j for j in range(index + 1, len(pairs)) if pairs[j][0] == key]
        assert (clock, number, nbytes, following) == (index, ids[key], size, later[0] if later else -1)


def test_what_is_no_oracle_general(tmp_path):
    path = write(repeated([("a", 1), ("b", 2)], 2), tmp_path / "t")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TraceError, match="95 bytes are no whole number of 24-byte records"):
        oracle.read(path)
    with pytest.raises(TraceError, match="no such file"):
        oracle.read(tmp_path / "missing")
    for data in (b"GGUF\3" + bytes(range(235, 0, -1)), b"tensor,nbytes\nb,7\na,9\n\n" * 3):  # a model, and text
        path.write_bytes(data[: len(data) // 24 * 24])
        with pytest.raises(TraceError, match="its times do not ascend"):
            oracle.read(path)
    with pytest.raises(TraceError, match="4 GiB or more"):
        write(repeated([("huge", 2**32)], 1), path)


def test_a_file_of_accesses_by_hand(tmp_path):
    at = lambda *times: b"".join(struct.pack("<IQIq", time, 7, 8, -1) for time in times)  # noqa: E731
    for name, data, right in (
        ("a.bin", at(1, 1, 5), Requests(["object.7"] * 3, [8] * 3, [1, 1, 5])), ("b.bin", at(1, 3, 2), "do not ascend"),
        ("C.CSV", b"tensor,nbytes\nnull,3\nNA,4\n", Requests(["null", "NA"], [3, 4], [0, 0])),
        ("d.csv", b"tensor,nbytes\n", "has no accesses"), ("e.csv", None, "is no file"),
        ("f.csv", b"tensor,nbytes,token\na,3,0\nb,5,2\n", Requests(["a", "b"], [3, 5], [0, 2])),
        *((f"{number}.csv", text, "") for number, text in enumerate((b"", b"tensor\nblk.0", b"a,b\n1,2\n", b"\x00\x01"))),
        *((f"size{size}.csv", f"tensor,nbytes\na,{size}\n".encode(), "") for size in ("", "x", -5, 3.5, 10**20 - 1)),
    ):  # fmt: skip
        if data is not None:
            (tmp_path / name).write_bytes(data)
        if isinstance(right, Requests):
            assert oracle.read_trace(tmp_path / name) == right
            continue
        with pytest.raises(TraceError, match=right):
            oracle.read_trace(tmp_path / name)


def test_what_is_asked_of_requests_by_hand():
    asked = Requests(list("abcab"), [3, 2, 0, 9, 9], [0, 0, 0, 1, 1])
    assert asked.objects == {"a": 3, "b": 2, "c": 0} and asked.working_set == 5
    assert asked.next_uses == [3, 4, np.inf, np.inf, np.inf]
    assert [asked.share(part) for part in (0.0, 0.5, 1.0)] == [1, 2, 5] and asked.counted().sizes == [1] * 5
    assert asked[1:3] == Requests(["b", "c"], [2, 0], [0, 0])
    assert asked[[False, True, False, False, True]] == Requests(["b", "b"], [2, 9], [0, 1])
    with pytest.raises(ValueError, match="shorter"):
        _ = Requests(["a", "b"], [1], [0, 0]).objects
    assert requests([("a", 0), ("b", 2)]) == Requests(["a", "b"], [0, 2], [0, 0])
    assert repeated([("a", 1)], 2) == Requests(["a", "a"], [1, 1], [0, 1])
    assert hottest(Requests(list("abbccc"), [2, 1, 1, 4, 4, 4], [0] * 6), 3) == ["b", "a"], "c has more uses a byte than a"


def test_popular_experts_are_drawn_by_their_rank():
    asked = popular(50, 40_000, skew=1.0)
    uses = pd.Series(asked.keys).value_counts()
    assert uses["blk.0.ffn_up_exps.weight[0]"] / uses["blk.1.ffn_up_exps.weight[1]"] == pytest.approx(2, rel=0.1)
    assert "blk.1.ffn_up_exps.weight[49]" in uses and len(uses) == 50
    assert {*asked.sizes} == {1} and {*asked.tokens} == {0} and len(asked.sizes) == len(asked.tokens) == 40_000
