"""Predictions of ways by hand: three tensors, costs in round seconds, a machine and a disk of invented speeds."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from invented import MACHINE

import kit.lab.predicting.ways as ways
from kit.gguf.uses import Use
from kit.lab.predicting.measured import Cost
from kit.lab.predicting.order import Kind, Order, ProgramCost
from kit.lab.predicting.ways import BLOCKS, LAZY, BackingStore, SlotWaits, UsedTensor, Way, miss_seconds, predict, share_cold

A, B, C = Kind("Q8_0", (2, 4)), Kind("F32", (4,)), Kind("Q8_0", (3, 4))
TENSORS = {"a": UsedTensor(A, 100), "b": UsedTensor(B, 16), "c": UsedTensor(C, 300)}  # 32, 16 and 48 bytes of float32
COSTS = {
    A: Cost({"float32": 2.0}, {"float32": 1.0}, {"fused": 3.0}, {"float32": 5.0}),
    B: Cost({"float32": 0.25}, {"float32": 0.125}, {"fused": 0.75}, {"float32": 0.5}),
    C: Cost({"float32": 20.0}, {"float32": 10.0}, {"fused": 30.0}, {"float32": 50.0}),
}
ROWS = Use("token_embd.weight", 400, 1000, 1, 100)  # a token reads 10 of its bytes, and 16 of float32
USES = (Use("a", 8, 100), Use("b", 4, 16), Use("c", 12, 300), ROWS)
ORDER = Order([["a", "b", "c"]] * 3, rest=0.5, uses=USES)
PROGRAM = replace(ORDER, programs={"fused": ProgramCost(0.25, {A: 7.0, C: 70.0})})
MAPPED = replace(MACHINE, map_gbps=16.0)  # memory reads at 20 GB/s and is written at 10
DISK = BackingStore(1e-6, most=2e-6)  # 1000 bytes a second, and never more than 2000
EACH = 0.5 + 33.75  # seconds of a token from blocks, of single uses


def numbers(way, order=ORDER, disk=None, tensors=TENSORS):
    found = predict(way, tensors, order, COSTS, MAPPED, disk)
    return pytest.approx((found.seconds, found.bound, found.hit_rate, found.held, found.pages, found.from_disk))


@pytest.mark.parametrize(("way", "order", "found"), [
    (BLOCKS, ORDER, (EACH, 426 / 16e9, None, 16, 416, 0)),
    (BLOCKS, PROGRAM, (77.25, 426 / 16e9, None, 16, 416, 0)),  # norms are part of its rest
    (LAZY, ORDER, (0.5 + 11.125 + 22.25, 16 / 20e9 + 416 / 16e9, 0, 48, 416, 0)),
    (Way("HashMap"), ORDER, (0.5 + 11.125, 112 / 20e9, 1, 96, 0, 0)),
    (Way("Pinned", 40), ORDER, (0.5 + 11.125 + 20.25, 48 / 20e9 + 316 / 16e9, 1 / 3, 80, 316, 0)),
])  # fmt: skip
def test_a_token_is_the_sum_of_its_uses(way, order, found):
    assert found == numbers(way, order)


def test_what_a_small_cache_cannot_hold_passes_through_memory(monkeypatch):
    """12 of a's 32 bytes and 28 of c's 48 are more than the CPU caches; what an LRU evicts for a miss is cold."""
    monkeypatch.setattr(ways, "last_level_cache", lambda: 20)
    spilled = (16 + 40) / 20e9 + 416 / 16e9 + 40 / 10e9
    assert (0.5 + 11.125 + 22.25, spilled, 0, 48, 416, 0) == numbers(LAZY)
    assert (0.5 + 11.125 + 55.5, spilled, 0, 64 + 48, 416, 0) == numbers(Way("LRU", 64))


@pytest.mark.parametrize(("capacity", "order", "disk", "found"), [
    (("pressed", 200), PROGRAM, DISK, (EACH + 0.426, 426 / 20e9, None, 316, 0, 226 / 2000)),  # a program is no first token
    (("pressed", None), ORDER, DISK, (EACH + 0.426, 426 / 20e9, None, 316, 0, 426 / 2000)),
    (("pressed", 500), ORDER, DISK, (EACH + 0.426, 426 / 20e9, None, 16, 0, 0)),
    (("pinned", 400), ORDER, DISK, (EACH + 0.426 - 0.084, 426 / 20e9, None, 316, 84, 26 / 2000)),
    (("pinned", 441), ORDER, DISK, (EACH + 0.426 - 0.125, 426 / 20e9, None, 316, 125, 0)),
    (("pinned", 442), ORDER, DISK, (EACH, 426 / 20e9, None, 16, 426, 0)),
    (("pinned", 10), ORDER, DISK, (EACH + 0.426, 426 / 20e9, None, 316, 0, 416 / 2000)),
])  # fmt: skip
def test_blocks_that_the_disk_brings_at_every_token(capacity, order, disk, found):
    holds, nbytes = capacity
    assert found == numbers(Way("NoCache", nbytes, linear="fused", holds=holds), order, disk)


@pytest.mark.parametrize(("way", "uses", "room", "missing", "least"), [
    (BLOCKS, USES, 216, 0.426, 0.216),  # an LRU of less than a token keeps nothing
    (BLOCKS, USES, 431, 0.426, 0.001),
    (BLOCKS, USES, 432, 0, 0),
    (BLOCKS, (*USES, Use("blk.0.ffn_down_exps.weight", 80, 800, 1, 8)), 616, 0.077, 0.077),
    (Way("HashMap"), USES, 100, 0, 0),
    (Way("Pinned", 40), USES, 180, 426 * 316 / 416 / 1000, (416 - 100 - 32 * 426 / 112) / 1000),
])  # fmt: skip
def test_what_cannot_stay_comes_from_the_disk(way, uses, room, missing, least):
    order, disk = replace(ORDER, uses=uses), BackingStore(1e-6, room)
    one, other = (predict(way, TENSORS, order, COSTS, MAPPED, each) for each in (disk, None))
    assert (one.seconds - other.seconds, one.from_disk) == pytest.approx((missing, least))
    faster = predict(way, TENSORS, order, COSTS, MAPPED, disk._replace(most=2e-6))
    assert (faster.seconds, faster.from_disk) == pytest.approx((one.seconds, least / 2))


def test_experts_in_slots_wait_for_those_that_are_not(monkeypatch):
    """Only experts say how long a byte of theirs computes; what is dense stays, and so do the slots."""
    tensors = TENSORS | {"x[0]": UsedTensor(A, 100), "x[1]": UsedTensor(C, 200)}
    asked = {}
    given = ("tokens", "blocks", "memory", "policy", "gbps", "per_byte")
    monkeypatch.setattr(
        ways, "slot_waits", lambda *some: asked.update(zip(given, some, strict=True)) or SlotWaits(0.125, 0.25, 1.0, 30.0)
    )
    order = replace(ORDER, tokens=[["a", "b", "c", "x[0]"], ["a", "b", "c", "x[1]"]])
    way = Way("LRU", 1000, linear="fused", holds="slots")
    assert (EACH + 30 + 0.125, 426 / 20e9, 0.25, 0, 1416, 30 / 2000) == numbers(way, order, DISK, tensors)
    assert asked["per_byte"] == pytest.approx(33 / 300) and asked["blocks"]("x[1]") == 200
    assert (asked["memory"], asked["policy"], asked["gbps"]) == (1000, "LRU", 1e-6)


@pytest.mark.parametrize(("capacity", "entries", "evictions", "share"), [
    (64, 2, 4, 0.5), (64, 2, 12, 1), (64, 9, 1, 1), (64, 10, 4, 0), (10, 2, 4, 0), (11, 2, 4, 0.5), (None, 2, 4, 0),
])  # fmt: skip
def test_the_share_of_misses_into_cold_memory(monkeypatch, capacity, entries, evictions, share):
    monkeypatch.setattr(ways, "last_level_cache", lambda: 20)
    assert share_cold(SimpleNamespace(misses=10, entries=entries, evictions=evictions), capacity) == share


def test_a_miss_is_as_cold_as_its_memory():
    assert miss_seconds(COSTS[A], "float32", 0.25) == 0.75 * 2 + 0.25 * 5
    assert miss_seconds(Cost({"float16": 3.0}, {}, {}, {"float32": 9.0}), "float16", 0.5) == 3
