"""Predictions of ways by hand: three tensors, costs in round seconds, a machine and a disk of invented speeds."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from invented import MACHINE

import kit.lab.predicting.ways as ways
from kit.errors import ModelError
from kit.gguf.uses import Use
from kit.lab.predicting.measured import Cost
from kit.lab.predicting.order import Kind, Order, ProgramCost, draw
from kit.lab.predicting.room import Room, room_for_weights
from kit.lab.predicting.ways import BLOCKS, LAZY, BackingStore, SlotWaits, UsedTensor, Way, miss_seconds, predict, share_cold
from kit.system.rows import PAGE

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
    assert (found.total, found.least) == (found.held + found.pages, max(found.bound, found.from_disk))
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
    uneven = replace(ORDER, tokens=[*ORDER.tokens[:2], ["a"]])  # the first one warms up
    assert predict(LAZY, TENSORS, uneven, COSTS, MAPPED).seconds == 0.5 + (11.125 + 22.25 + 1 + 2) / 2


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
    (BLOCKS, USES, 10, 0.426, 0.416),  # less than the vectors; rows of the embedding may be in any page
    (BLOCKS, (*USES, Use("blk.0.ffn_down_exps.weight", 80, 800, 1, 8)), 616, 0.077, 0.077),
    (BLOCKS, (*USES, Use("blk.0.ffn_down_exps.weight", 80, 800, 1, 8)), 542, 0.08625, 0.08625),  # exactly a token
    (Way("HashMap"), USES, 100, 0, 0),
    (Way("Pinned", 40), USES, 180, 426 * 316 / 416 / 1000, (416 - 100 - 32 * 426 / 112) / 1000),
])  # fmt: skip
def test_what_cannot_stay_comes_from_the_disk(way, uses, room, missing, least):
    order, disk = replace(ORDER, uses=uses), BackingStore(1e-6, room)
    one, other = (predict(way, TENSORS, order, COSTS, MAPPED, each) for each in (disk, None))
    assert (one.seconds - other.seconds, one.from_disk) == pytest.approx((missing, least))
    faster = predict(way, TENSORS, order, COSTS, MAPPED, disk._replace(most=2e-6))
    assert (faster.seconds, faster.from_disk) == pytest.approx((one.seconds, least / 2))


def test_what_a_cache_hits_more_often_than_it_holds_is_not_read_again():
    order = replace(ORDER, tokens=[["a", "a", "a", "b", "c"]] * 3)
    least = predict(Way("Pinned", 40), TENSORS, order, COSTS, MAPPED, BackingStore(1e-6, 80)).from_disk
    assert least == pytest.approx(426 * 316 / 616 / 1000), "less than what 32 of 112 bytes leave of the file"


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
    predict(way, tensors, replace(order, programs={"fused": ProgramCost(0.25, {A: 7.0})}), COSTS, MAPPED, DISK)
    assert asked["per_byte"] == pytest.approx(7 / 300), "a kind that the program does not use costs nothing"


@pytest.mark.parametrize(("capacity", "entries", "evictions", "share"), [
    (64, 2, 4, 0.5), (64, 2, 12, 1), (64, 9, 1, 1), (64, 10, 4, 0), (10, 2, 4, 0), (11, 2, 4, 0.5), (None, 2, 4, 0),
])  # fmt: skip
def test_the_share_of_misses_into_cold_memory(monkeypatch, capacity, entries, evictions, share):
    monkeypatch.setattr(ways, "last_level_cache", lambda: 20)
    assert share_cold(SimpleNamespace(misses=10, entries=entries, evictions=evictions), capacity) == share


def test_a_miss_is_as_cold_as_its_memory():
    assert miss_seconds(COSTS[A], "float32", 0.25) == 0.75 * 2 + 0.25 * 5
    assert miss_seconds(Cost({"float16": 3.0}, {}, {}, {"float32": 9.0}), "float16", 0.5) == 3


UP, DOWN = 4 * PAGE, 2 * PAGE + 1  # bytes of an expert's matrices; in a slot each begins a page: 5 and 4 pages
SIZE, SLOT = UP + DOWN, 9 * PAGE


def used(layer, *experts):
    """The names that a layer uses: a dense matrix, then the matrices of experts in the order given."""
    parts = [f"blk.{layer}.ffn_{part}_exps.weight[{expert}]" for expert in experts for part in ("up", "down", "up")]
    return [f"blk.{layer}.attn_q.weight", *parts]  # a name that comes again is no further matrix


def waits(tokens, memory, policy="LRU", per_byte=0.0):
    """slot_waits from a disk that takes two seconds for a byte."""
    blocks = {"attn": 1 << 30, "ffn_up": UP, "ffn_down": DOWN}
    block = lambda name: next(blocks[part] for part in blocks if f".{part}_" in name)  # noqa: E731
    return ways.slot_waits(tokens, block, memory, policy, 0.5e-9, per_byte)


CYCLE = [used(0, expert) for expert in (0, 1, 2, 0, 1, 2)]  # an LRU of two slots never hits


@pytest.mark.parametrize(("memory", "missed", "least"), [
    (4 * SLOT, 0, 0),  # three slots, and one for the expert that is in use or on the way
    (4 * SLOT - 1, 1, 1 / 3),  # two: MIN keeps one of them over a cycle, or 0 and 1 until both have come again
    (3 * SLOT, 1, 1 / 3),
    (SLOT, 1, 2 / 3),  # one, as with no memory at all
    (0, 1, 2 / 3),
])  # fmt: skip
def test_slots_are_whole_pages_and_a_layer_needs_some_at_once(memory, missed, least):
    found = waits(CYCLE, memory)
    assert found == pytest.approx((2 * missed * SIZE, 1 - missed, missed * SIZE, least * SIZE))


def test_the_widest_layer_says_how_many_slots_are_in_use():
    """Nine experts of two layers, of which a token uses one and two: two slots are no memory of the past."""
    tokens = [used(0, expert) + used(3, expert, expert + 4, expert) for expert in (0, 1, 2) * 2]
    assert waits(tokens, 11 * SLOT).hits == 1 and waits(tokens, 11 * SLOT - 1).hits < 1


def test_a_read_is_late_by_what_the_experts_before_it_do_not_compute():
    """Experts are used by their numbers, 2 before 10; the second half of three tokens are two."""
    tokens = [used(0, 10, 2), used(0, 3, 2), used(0, 10, 2)]
    found = waits(tokens, 4 * SLOT, per_byte=0.25)  # two slots: 2 stays, 3 and 10 take the other; MIN keeps 10
    assert found == pytest.approx((1.75 * SIZE, 0.5, SIZE, SIZE / 2)), "both are late by all but what 2 computes"
    uneven = waits([used(0, expert) for expert in (0, 1, 1, 2)], 8 * SLOT)
    assert (uneven.hits, uneven.missed) == (0.5, SIZE / 2), "the first of the second half counts"


def seen(way, seconds, bound):
    return ways.Prediction(way, seconds, bound, None, 0, 0)


@pytest.mark.parametrize(("told", "measured", "factor"), [
    ([(BLOCKS, 2.0, 1.0), (LAZY, 4.0, 3.0)], [], 1),  # nothing is faster than its bound
    ([(BLOCKS, 2.0, 3.0), (LAZY, 4.0, 3.0)], [], 1.5),
    ([(BLOCKS, 2.0, 1.0), (LAZY, 4.0, 3.0)], [(BLOCKS, 0.4), (LAZY, 3.5)], 2.5),
    ([(BLOCKS, 2.0, 1.0)], [(LAZY, 0.1), (BLOCKS, 0.8)], 1.25),  # no bound of that way is known
    ([(BLOCKS, 0.0, 1.0)], [(BLOCKS, 0.0)], 1),  # no time was taken
])  # fmt: skip
def test_a_bound_is_never_slower_than_what_was_seen(told, measured, factor):
    told, measured = [seen(*each) for each in told], {way: SimpleNamespace(seconds=seconds) for way, seconds in measured}
    assert ways.faster_than_probed(told, measured) == pytest.approx(factor)
    for given in (1.0, 2.0, 8.0):
        bounds = [each.bound for each in ways.roofed(told, measured, given)]
        assert bounds == pytest.approx([each.bound / max(given, factor) for each in told])


ROOM = "kit.lab.predicting.room."


@pytest.fixture
def process_of_30(monkeypatch):
    """100 bytes are free, the process takes 30 and the history 5; what ``divide`` answers, to change."""
    answer = SimpleNamespace(process=30, history=5, whole=False, pinned=7, slots=0)
    monkeypatch.setattr(ROOM + "memory_available", lambda: 100)
    monkeypatch.setattr(ROOM + "process_bytes", lambda file: 30)
    monkeypatch.setattr(ROOM + "divide", lambda file, limit, context, process: answer)
    monkeypatch.setattr(ROOM + "largest_part", lambda path: path)
    monkeypatch.setattr(ROOM + "read_gbps", lambda path: 2.0)
    return answer


def of_room(nbytes=66, whole=None, part=False, **file):
    return Room(SimpleNamespace(**{"architecture": "llama", "compressed": False, "path": "f"} | file), nbytes, whole, part)


def test_the_room_of_a_process_by_hand(process_of_30, monkeypatch):
    fits, not_fits = of_room(65), of_room(66)
    assert (fits.limit, fits.beside, fits.free, fits.fits, not_fits.fits) == (100, 35, 65, True, False)
    assert (fits.disk, fits.pinned, fits.slots) == (None, None, None)
    assert (not_fits.disk, not_fits.pinned, not_fits.slots) == (BackingStore(2.0, 65), 7, None)
    process_of_30.pinned, process_of_30.slots = 0, 9
    assert (of_room().pinned, of_room().slots) == (None, 9)
    assert of_room(path=None).disk is None and of_room(path=None).slots is None
    for other in (of_room(part=True), of_room(architecture="none"), of_room(compressed=True)):
        assert (other.budget, other.beside, other.fits, other.slots) == (None, 30, True, None)
    asked = of_room(1, whole=80)
    assert (asked.limit, asked.free, asked.fits) == (80, 45, False), "what the process may take is divided as the budget says"
    process_of_30.whole = True
    assert of_room(1000, whole=80).fits and of_room(1000, whole=31).free == 0
    monkeypatch.setattr(ROOM + "read_gbps", lambda path: 0.0)
    assert (of_room().disk, of_room().pinned, of_room().slots) == (None, None, None)


def test_a_room_that_is_too_little_says_so(process_of_30, monkeypatch):
    with pytest.raises(ModelError, match="30 B of memory is too little: the process alone takes 30 B; --room"):
        _ = of_room(whole=30).budget
    assert of_room(whole=31).budget is process_of_30

    def divide(*_, **__):
        raise ModelError(told)

    monkeypatch.setattr(ROOM + "divide", divide)
    told = "it is too little"
    with pytest.raises(ModelError, match="too little"):
        _ = of_room(whole=80).budget
    assert of_room().budget is None
    told = "no layers"
    assert of_room(whole=80).budget is None


def test_a_way_stays_where_process_and_blocks_fit(process_of_30):
    of = lambda total, product=True, holds="": SimpleNamespace(  # noqa: E731
        total=total, way=SimpleNamespace(product=product, holds=holds)
    )
    assert of_room(60).needs(of(1)) == 95, "all blocks, where they stay"
    assert [of_room(60).needs(of(1, **how)) for how in ({"product": False}, {"holds": "pinned"})] == [36, 36]
    assert of_room(66).needs(of(1)) == 36
    assert of_room(66).stays(of(65)) and not of_room(66).stays(of(66))


def test_the_room_for_a_cache_of_weights_by_hand(monkeypatch):
    monkeypatch.setattr(ROOM + "memory_available", lambda: 5 << 30)
    monkeypatch.setattr(ROOM + "process_bytes", lambda file: 1 << 20)
    uses = [SimpleNamespace(nbytes=3 << 20, elements=1 << 20, of=2), SimpleNamespace(nbytes=1 << 20, elements=1 << 18, of=1)]
    monkeypatch.setattr(ROOM + "uses_of", lambda file: uses)
    assert room_for_weights(None, whole=16 << 20) == 11 << 20
    assert room_for_weights(None) == int(0.7 * ((5 << 30) - (2 << 20) - (1 << 30) - (4 << 20)))
    assert room_for_weights(None, whole=2 << 20) == 1 << 20
    uses.clear()
    assert room_for_weights(None) == int(0.7 * (4 << 30))


def test_a_token_of_drawn_experts_by_hand():
    use = lambda name, used=1, of=1, is_rows=False: SimpleNamespace(name=name, used=used, of=of, is_rows=is_rows)  # noqa: E731
    uses = [use("token_embd.weight", is_rows=True), use("blk.0.attn_q.weight"), use("blk.0.up", 2, 5), use("blk.0.down", 2, 5),
            use("blk.1.up", 2, 5), use("output.weight")]  # fmt: skip
    drawn = draw(uses, 300)
    for names in drawn:
        experts = [int(name[len("blk.0.up[") : -1]) for name in names if name.startswith("blk.0.up[")]
        assert len({*experts}) == 2 and experts == sorted(experts)
        pairs = [f"blk.0.{part}[{expert}]" for expert in experts for part in ("up", "down")]
        assert names[:5] == ["blk.0.attn_q.weight", *pairs] and names[-1] == "output.weight" and len(names) == 8
    counts = Counter(name for names in drawn for name in names)
    even = [counts[f"blk.0.up[{expert}]"] for expert in range(5)]
    assert min(even) > 90 and sum(even) == 600
    skewed = Counter(name for names in draw(uses, 300, skew=8.0) for name in names if name.startswith("blk.0.up"))
    assert [count for _, count in skewed.most_common()][:2] == [300, pytest.approx(287, abs=12)], "3^-8 is 1 in 26 of 2^-8"
    assert draw(uses, 3) == drawn[:3] != draw(uses, 3, seed=1)


def test_an_order_of_more_layers_by_hand():
    order = Order([["a", "b"], ["a"]], rest=2.0, programs={"fused": ProgramCost(3.0, {"k": 5.0})})
    more = order.scaled(4.0, [["c"]], ["u"])
    assert (more.tokens, more.rest, more.programs["fused"], more.uses) == ([["c"]], 8.0, ProgramCost(12.0, {"k": 5.0}), ("u",))
    asked = order.requests({"a": 1, "b": 2}.get)
    assert (order.names, asked.keys, asked.sizes, asked.tokens) == (["a", "b"], ["a", "b", "a"], [1, 2, 1], [0, 0, 1])
