"""The parts of a token and the tables of kit explain, from orders, costs and traces that a test sets; statistics of a cache."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from invented import MACHINE

from kit.cache.stats import Stats
from kit.cache.traces import Requests, repeated
from kit.gguf.uses import Use
from kit.lab.explaining import tables
from kit.lab.measuring.measurements import Reading
from kit.lab.predicting.order import ProgramCost
from kit.lab.predicting.ways import BLOCK_WAYS, BLOCKS, KEPT, LAZY, Prediction, Way


class Tensor(NamedTuple):
    kind: object
    blocks: int
    elements: int


class Kind(NamedTuple):
    name: str
    shape: tuple
    qtype: str = "Q8_0"


UP, OUT, NORM = Kind("up", (8, 4)), Kind("out", (16, 4)), Kind("norm", (4,))
TENSORS = {"blk.0.ffn_up.weight": Tensor(UP, 40, 32), "blk.1.ffn_up.weight": Tensor(UP, 60, 32),
           "output.weight": Tensor(OUT, 80, 64), "output_norm.weight": Tensor(NORM, 16, 4)}  # fmt: skip
TOKEN = [*TENSORS]
PROGRAM = ProgramCost(0.5, {UP: 1.0, OUT: 2.0, NORM: 9.0})


@pytest.fixture
def order(monkeypatch):
    """Two tokens, of which the second uses the output twice; a program that was recorded."""
    monkeypatch.setattr(tables, "used_tensors", lambda file, order: TENSORS)
    return SimpleNamespace(tokens=[TOKEN, [*TOKEN, "output.weight"]], programs={"fused": PROGRAM}, rest=0.75, reason="")


def test_parts_of_a_token_are_its_uses_and_what_is_left(order):
    """A matrix takes its seconds each time; vectors are in the rest: 1 + 1 + 2 times 1.5 and 0.5 seconds."""
    found = tables.parts_of(None, order, {})
    assert found["seconds"].to_dict() == {"output": 3.0, "ffn_up": 2.0, tables.REST: 0.5} and found.index[0] == "output"
    assert found["share"].to_dict() == pytest.approx({"output": 6 / 11, "ffn_up": 4 / 11, tables.REST: 1 / 11})
    assert found["bytes"].dropna().to_dict() == {"output": 120.0, "ffn_up": 100.0} and math.isnan(found["GB/s"][tables.REST])
    assert found["GB/s"]["ffn_up"] == 100 / 2 / 1e9
    assert [*found.columns] == ["share", "seconds", "bytes", "GB/s"]
    scaled = tables.parts_of(None, order, {}, seconds=11.0, most=1e-7)
    assert scaled["seconds"].to_dict() == pytest.approx({"output": 6.0, "ffn_up": 4.0, tables.REST: 1.0})
    held = tables.parts_of(None, order, {}, seconds=11.5, most=2e-8)  # 5 seconds for 100 bytes, 6 for 120
    assert held["seconds"].to_dict() == pytest.approx({"output": 6.0, "ffn_up": 5.0, tables.REST: 0.5})
    order.programs = {"fused": PROGRAM._replace(rest=0.0)}
    nothing = tables.parts_of(None, order, {}, seconds=11.5, most=2e-8)["seconds"]
    assert nothing.to_dict() == pytest.approx({"output": 6.5, "ffn_up": 5.0, tables.REST: 0.0})


@pytest.mark.parametrize("parts, least, whole, right", [
    ([1.0, 1.0], [0.0, 0.0], 4.0, [2.0, 2.0]), ([1.0, 3.0], [1.5, 0.0], 4.0, [1.5, 2.5]),
    ([1.0, 3.0], [1.0, 3.0], 4.0, [1.0, 3.0]),
    ([1.0, 3.0], [2.0, 3.0], 4.0, [1.0, 3.0]), ([1.0, 3.0], [3.0, 1.0], 4.0, [1.0, 3.0]),
    ([1.0, 1.0, 2.0], [1.4, 0.9, 0.0], 4.0, [1.4, 0.9, 1.7]),
    ([0.0, 2.0], [0.0, 0.0], 4.0, [0.0, 4.0]),
])  # fmt: skip
def test_parts_are_scaled_to_a_sum_none_below_its_least(parts, least, whole, right):
    """Where the least are the whole together or more, they are no limit of it."""
    assert [*tables._scaled(pd.Series(parts), pd.Series(least), whole)] == pytest.approx(right)


def test_families_are_the_means_of_tokens(order):
    costs = {kind: SimpleNamespace(load={"float32": load}, multiply={"float32": 0.25}, fused={"fused": 7.0})
             for kind, load in ((UP, 1.0), (OUT, 3.0), (NORM, 0.125))}  # fmt: skip
    found = tables.families(None, order, costs).T.to_dict()
    assert [*found] == ["output", "ffn_up", "output_norm", tables.REST]
    up = {"uses": 2.0, "in the file": 100.0, "in float32": 256.0, "each time": 2.5, "kept": 0.5, "from blocks": 2.0}
    assert {name: found["ffn_up"][name] for name in up} == up
    assert (found["output"]["uses"], found["output"]["each time"]) == (1.5, 4.875)
    assert found["ffn_up"]["share"] == pytest.approx(2.5 / (2.5 + 4.875 + 0.375))
    assert [found[tables.REST][name] for name in tables.TIMES] == [0.75, 0.75, 0.5]
    told = tables.families(None, order, costs, tables.parts_of(None, order, costs, seconds=11.0))
    assert told["from blocks"].dropna().to_dict() == pytest.approx({"output": 6.0, "ffn_up": 4.0, tables.REST: 1.0})
    assert told.columns[0] == "share"
    order.tokens = order.tokens[:1]
    assert tables.families(None, order, costs)["from blocks"]["output"] == 2.0, "one use is a use"
    order.reason, order.programs = "no row", {}
    alone = tables.families(None, order, costs)
    assert tables.REST not in alone.index and alone["from blocks"]["ffn_up"] == 14.0, "single uses"


def test_weights_by_how_they_are_held(monkeypatch):
    """Of a stack a quarter is used; 8 bits a weight of the file's own blocks."""
    uses = [Use("a", 100, 100), Use("b_exps", 400, 400, 2, 8)]
    file = SimpleNamespace(tensors={use.name: SimpleNamespace(elements=use.elements, nbytes=use.nbytes) for use in uses})
    monkeypatch.setattr(tables, "memory_limit", lambda: 1000)
    monkeypatch.setattr(tables, "uses_of", lambda file: uses)
    found = tables.held(file)
    assert found["bytes of a token"].to_dict() == {"float32": 800, "float16, bfloat16": 400, "int8": 200,
        tables.HELD_BLOCKS: 200}  # fmt: skip
    assert found["size"].to_dict() == {"float32": 2000, "float16, bfloat16": 1000, "int8": 500, tables.HELD_BLOCKS: 500}
    assert found["bits of a weight"].to_dict() == {"float32": 32, "float16, bfloat16": 16, "int8": 8, tables.HELD_BLOCKS: 8}
    assert found["fits in memory"].to_dict() == {"float32": "no", "float16, bfloat16": "no", "int8": "yes",
        tables.HELD_BLOCKS: "yes"}  # fmt: skip
    bounds = tables.token_bounds(file, MACHINE)
    assert bounds["least seconds per token"]["float32"] == 800 / 20e9 and bounds["most tokens per second"]["int8"] == 20e9 / 200


@pytest.mark.parametrize("accesses, memory, bound", [
    (repeated([("a", 2), ("b", 6)], 3), 2, 0.25), (repeated([("a", 2), ("b", 6)], 3), 9, 1.0),
    (repeated([("a", 2), ("b", 6), ("c", 3)], 3), 3, 3 / 11), (Requests(["a"] * 4, [1] * 4, [0, 0, 0, 1]), 9, 1.0),
    (Requests(["a", "b", "a", "c"], [1] * 4, [0, 0, 1, 1]), 9, 0.5), (Requests(["a", "b", "a"], [1] * 3, [0, 0, 0]), 9, 1 / 3),
])  # fmt: skip
def test_a_bound_of_hits_is_of_what_is_asked_after_the_first_token(accesses, memory, bound):
    assert tables.upper_bound(accesses, memory) == pytest.approx(bound)


def test_policies_count_from_the_second_token_on():
    found = tables.policies(Requests(["a", "b", "a", "c"], [1, 1, 3, 1], [0, 0, 1, 1]), 9, ("LRU", "MRU"))
    assert found.loc["LRU", "hit rate"] == 0.5 and found.loc["LRU", "bytes hit"] == 0.75
    assert [*found.index] == ["LRU", "MRU"], "as good, in the order that was asked for"
    assert [*tables.policies(repeated([("a", 1), ("b", 1), ("c", 1)], 3), 2, ("LRU", "MRU")).index] == ["MRU", "LRU"]
    assert tables.policies(Requests(["a", "a"], [1, 1], [0, 1]), 9, ("LRU",)).loc["LRU", "bytes hit"] == 1.0
    assert [tables._first_token(Requests(["a"] * 3, [1] * 3, tokens)) for tokens in ([0, 1, 1], [0, 0, 1], [0, 0, 0])] == [1, 2,
        0]  # fmt: skip


def test_each_backend_that_runs_here_is_held_against_the_reference(monkeypatch):
    asked = []

    def exactness(blocks, backends):
        asked.append((blocks, backends))
        rows = [("Q4_0", 64, backend, "float32", backend == "cpu", 1, 2e-7) for backend in backends]
        return pd.DataFrame(rows, columns=["qtype", "weights", "backend", "dtype", "equal", "ulp", "relative"])

    monkeypatch.setattr(tables, "exactness", exactness)
    monkeypatch.setattr(tables, "sample", lambda file, rows: (file, rows))
    monkeypatch.setattr(tables, "gpu", lambda: {"name": "H100"})
    found = tables.exactness_of("file")
    assert found.loc["Q4_0"].to_dict() == {"weights": 64, "cpu float32": "equal", "triton float32": "1 ulp, 2.0e-07"}
    monkeypatch.setattr(tables, "gpu", lambda: None)
    assert [*tables.exactness_of("file").columns] == ["weights", "cpu float32"]
    assert asked == [(("file", 2), ("cpu", "triton")), (("file", 2), ("cpu",))]


@pytest.mark.parametrize("qtype, rounded", [("F16", False), ("Q8_0", True)])
def test_advice_begins_with_what_kit_does_and_rounds_only_with_codes(monkeypatch, qtype, rounded):
    tensors = {"a": Tensor(Kind("a", (4, 4), "F32"), 1, 1), "b": Tensor(Kind("b", (4, 4), qtype), 1, 1)}
    seconds = {BLOCKS: 3.0, LAZY: 2.0, KEPT: 1.0}
    monkeypatch.setattr(tables, "used_tensors", lambda file, order: tensors)
    monkeypatch.setattr(tables.kit, "Weights", lambda file, dtype: SimpleNamespace(working_set=1))
    monkeypatch.setattr(tables, "predict", lambda way, *_: Prediction(way, seconds.get(way, 9.0), 0.0, None, 0, 0))
    first, *others = tables.advice(None, None, None, None, 10)
    assert first.way == BLOCKS and [each.seconds for each in others] == sorted(each.seconds for each in others)
    assert any(each.way.rounds for each in others) is rounded


SIZES = {"float32": 400, "float16": 200, "bfloat16": 100}


@pytest.mark.parametrize(
    "memory, pinned, slots, count", [(400, None, None, 0), (399, None, None, 1), (50, 7, None, 3), (50, None, 9, 3)]
)
def test_ways_that_memory_leaves_open(memory, pinned, slots, count):
    found = tables.candidates(SIZES.__getitem__, memory, pinned, slots)
    holds = {way.holds for way in found}
    first = "slots" if slots else "pinned" if pinned else ""
    assert found[0].holds == first and found[0].capacity == (slots or pinned) and LAZY in found
    assert (BLOCKS in found) is not bool(slots) and holds == {"", first}
    assert (Way("LRU", memory) in found) is (memory < 400) and (KEPT in found) is (memory >= 400)
    assert sum(way.policy == "Pinned" and not way.holds for way in found) == count
    assert {way.dtype for way in found if way.policy == "CyclicAware"} == {name for name in SIZES if SIZES[name] > memory}
    assert len(found) == len({*found})


def test_the_table_of_ways_compares_measured_with_measured():
    def predicted(way, seconds):
        return Prediction(way, seconds, 0.01, None, 5, 7, 0.02)

    ways = [predicted(BLOCKS, 0.4), predicted(BLOCK_WAYS[1], 0.1), predicted(KEPT, 0.8)]
    found = tables.advice_table(ways)
    assert [*found["faster"]] == [1.0, 4.0, 0.5] and {*found["by"]} == {"predicted"} and "measured" not in found
    assert [*found["least"]] == [0.02] * 3 and [*found["held"]] == [5] * 3
    real = {BLOCKS: Reading("", "", (0.5,), machine="m"), BLOCK_WAYS[1]: Reading("", "", (0.25,), machine="m")}
    found = tables.advice_table(ways, real)
    assert [*found["faster"]] == [1.0, 2.0, 0.5] and [*found["by"]] == ["measured", "measured", "predicted"]
    assert [*found["factor"].dropna()] == pytest.approx([0.8, 0.4])
    told = tables.short(found.assign(memory=1, fits="yes"))
    assert [*told["per token"]] == [0.5, 0.25, 0.8]


def test_seconds_of_a_token_have_a_rate_behind_them():
    table = pd.DataFrame(
        {"predicted": [0.5, np.nan], "measured": [0.25, np.nan], "faster": [2.0, np.nan], "by": ["measured", "x"]}
    )
    found = tables.formatted(table)
    assert [*found.columns] == ["predicted", "measured", tables.RATE, "times as fast"]
    assert [*found.iloc[0]] == ["500 ms", "250 ms", "4", "2.0x (measured)"] and [*found.iloc[1]] == ["–"] * 4
    depth = tables.formatted(pd.DataFrame({"attention": [0.001]}, pd.Index([64], name=tables.DEPTH)))
    assert depth.loc[64, "attention"] == "1.00 ms"


def test_lines_are_no_longer_than_the_terminal_unless_two_rows_would_be_one(monkeypatch):
    monkeypatch.setattr(tables, "width", lambda: 24)
    long = pd.DataFrame({"a": ["1", "2"]}, ["b" * 40, "c" * 40])
    lines = tables.as_text(long).splitlines()
    assert len(lines[1]) == 24 and len(lines[1].split()[0]) == 20 and lines[1].split()[0].endswith("...")
    assert lines[1].startswith("bbb")
    monkeypatch.setattr(tables, "width", lambda: 9)
    assert tables.as_text(long).splitlines()[1].split()[0] == "bbbbb...", "eight letters at least"
    alike = pd.DataFrame({"a": ["1", "2"]}, ["b" * 40, "b" * 39 + "c"])
    assert len({*tables.as_text(alike).splitlines()[1:]}) == 2
    short = tables.as_text(pd.DataFrame({"a": ["1", "22"]}, pd.Index(["x", "yy"], name="key"))).splitlines()
    assert [line.split() for line in short] == [["key", "a"], ["x", "1"], ["yy", "22"]] and len({*map(len, short)}) == 1


@pytest.mark.parametrize("given, gets, rate, byte_rate", [
    ({}, 0, 0.0, 0.0), ({"hits": 3, "misses": 1, "bytes_requested": 8, "bytes_hit": 2}, 4, 0.75, 0.25),
    ({"hits": 1, "misses": 1, "shared": 2, "prefetched": 4, "errors": 8, "bypassed": 1}, 16, 1 / 16, 0.0),
])  # fmt: skip
def test_every_get_is_one_of_five(given, gets, rate, byte_rate):
    """``bypassed`` are misses."""
    stats = Stats(**given)
    assert (stats.gets, stats.hit_rate, stats.byte_hit_rate) == (gets, rate, byte_rate)
    assert all(f"{name} {count}" in repr(stats) for name, count in given.items() if name in ("misses", "shared", "bypassed"))
