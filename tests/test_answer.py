"""The answer of kit explain and its opportunities, of a study whose times and bytes a test sets."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.gguf.formats import FORMATS
from kit.gguf.uses import Use
from kit.lab.engines.table import PEER
from kit.lab.explaining import answer, opportunities
from kit.lab.explaining.answer import BLOCK_WAYS, BLOCKS
from kit.lab.explaining.opportunities import Opportunity
from kit.lab.measuring import pages
from kit.lab.measuring.busy import Busy
from kit.lab.measuring.measurements import Reading
from kit.lab.measuring.minutes import Share
from kit.lab.predicting.ways import KEPT, LAZY, BackingStore, Prediction, Way

GIB = 1 << 30
INT16, INT8 = BLOCK_WAYS[1:]


def predicted(way, seconds, total=0):
    return Prediction(way, seconds, 0.0, None, 0, total)


def measured(seconds, error=0.001, label="", others=0.0):
    return Reading(label, "", (seconds - error / 2, seconds, seconds + error / 2), machine="m", others=others)


def room(**more):
    given = {"fits": True, "free": 3 * GIB, "beside": GIB, "disk": None, "nbytes": 2 * GIB, "limit": 4 * GIB}
    given |= {"stays": lambda each: each.total < 4 * GIB, "needs": lambda each: each.total}
    return SimpleNamespace(**given | more)


def study(**more):
    """A token of at least 40 ms now, and 20 ms in the best minutes, of 1 GB; exact 50 ms and int8 45 ms, measured."""
    given = {
        "file": SimpleNamespace(path=Path("b.gguf")), "name": "m.gguf", "part": None, "order": SimpleNamespace(reason=""),
        "whole": None, "room": room(), "engines": {}, "losses": {"int8 activations": {"same": 0.98}}, "busy": Busy(),
        "predictions": [predicted(BLOCKS, 0.06), predicted(INT8, 0.03), predicted(KEPT, 0.2)],
        "measured": {BLOCKS: measured(0.05), INT8: measured(0.045)}, "least_now": 0.04, "least": 0.02, "now_gbps": 25.0,
        "read_gbps": 50.0, "minutes": None, "map_speed": None, "map_found": None,
        "limits": SimpleNamespace(now=26.0, at="", others=0.0, machine=SimpleNamespace(read_gbps=50.0, f32_gflops=0.0)),
        "read": [Use("a", 2 * 10**9, 10**9)], "uses": [Use("a", 2 * 10**9, 10**9), Use("b", 4, 7 * 10**9, 1, 8)],
    }  # fmt: skip
    return SimpleNamespace(**given | more)


@pytest.mark.parametrize("nbytes, text", [
    (GIB, "1GiB"), (750 << 20, "750MiB"), (1536, "1536B"), (3 << 10, "3KiB"), (5 * GIB, "5GiB"), ((1 << 20) + 1, "1048577B"),
])  # fmt: skip
def test_a_size_is_exact_as_an_option_takes_it(nbytes, text):
    assert answer.size(nbytes) == text


@pytest.mark.parametrize("way, more, options", [
    (BLOCKS, {}, ""), (INT8, {}, " --linear fused-int8"), (BLOCKS, {"whole": 750 << 20}, " --memory 750MiB"),
    (Way("Pinned", 1, linear="fused-int8", holds="pinned"), {}, " --memory 4GiB --linear fused-int8"),
    (Way("Pinned", 1, linear="fused", holds="pinned"), {"whole": 3 * GIB}, " --memory 3GiB"), (KEPT, {}, " --cache all"),
    (LAZY, {}, " --cache none"), (Way("HashMap", dtype="float16"), {}, None), (Way("LRU", 9), {}, None),
    (BLOCKS, {"file": SimpleNamespace(path=None)}, None), (BLOCKS, {"order": SimpleNamespace(reason="no row")}, None),
    (BLOCKS, {"part": SimpleNamespace(order=SimpleNamespace(reason="no row"))}, None),
])  # fmt: skip
def test_a_way_has_the_command_that_runs_it(way, more, options):
    told = answer.command(study(**more), way)
    assert answer.name_of(study(name="")) == "b.gguf"
    words = shlex.split(told)
    assert not words if options is None else (words[:4], words[5:]) == (["kit", "generate", "m.gguf", "-p"], options.split())


def test_ways_that_stay_and_that_a_command_runs_come_by_their_time():
    float16 = predicted(Way("HashMap", dtype="float16"), 0.001)
    large = predicted(INT16, 0.002, 4 * GIB)
    asked = study(predictions=[predicted(BLOCKS, 0.06), float16, large, predicted(KEPT, 0.02), predicted(INT8, 0.03)])
    assert {way: time.seconds for way, time in answer.reached(asked).items()} == {KEPT: 0.02, INT8: 0.045, BLOCKS: 0.05}
    assert [*answer.reached(asked)] == [KEPT, INT8, BLOCKS]
    asked.order = SimpleNamespace(reason="no row")
    assert [*answer.reached(asked)] == [float16.way, KEPT, INT8, BLOCKS], "of a file that no command runs, as walks"


@pytest.mark.parametrize("best, default, gains", [
    (predicted(INT8, 1.0), predicted(BLOCKS, 1.05), True), (predicted(INT8, 1.0), predicted(BLOCKS, 1.049), False),
    (measured(1.0), measured(1.1, 0.001), True), (measured(1.0, 0.1), measured(1.1, 0.1), False),
    (measured(1.0, 0.1), predicted(BLOCKS, 1.1), True), (predicted(INT8, 1.0), measured(1.1, 0.1), True),
])  # fmt: skip
def test_a_gain_is_more_than_noise(best, default, gains):
    assert answer.gains(best, default) is gains


def test_the_answer_as_data():
    data = answer.of(study(engines={PEER: measured(0.0625, label="llama.cpp, mmap", others=0.1)})).data
    limit = data["limit"]
    assert (limit["tokens_per_second"], limit["seconds"], limit["best_tokens_per_second"], limit["bytes"]) == (25, 0.04, 50,
        10**9)  # fmt: skip
    assert (limit["in_turn"], limit["map_gbps"], limit["found_map_gbps"]) == (False, None, None)
    exact, int8 = data["reached"]
    assert (exact["way"], exact["seconds"], exact["same"], exact["mbu"]) == ("fused", 0.05, 1.0, pytest.approx(0.8))
    assert (int8["way"], int8["tokens_per_second"], int8["same"], int8["mbu"]) == ("fused-int8", 1 / 0.045, 0.98, 0.04 / 0.045)
    assert int8["low"] < 0.045 < int8["high"] and data["change"]["way"] == INT8.label and data["fits"]
    assert data["change"]["times"] == pytest.approx(0.05 / 0.045) and data["command"].endswith("--linear fused-int8")
    assert (data["peer"]["seconds"], data["peer"]["mbu"], data["peer"]["others"]) == (0.0625, 0.64, 0.1)
    rounded = study(measured={BLOCKS: measured(0.05), INT16: measured(0.055)})
    rounded.predictions = [
        predicted(BLOCKS, 0.06),
        predicted(INT16, 0.03),
        predicted(KEPT, 0.04),
    ]  # an exact way, and the fastest
    assert [row["way"] for row in answer.of(rounded).data["reached"]] == ["dequantized", "fused-int16"]
    speed = pages.MapSpeed(10.0, 20.0, 0.5)
    in_turn = SimpleNamespace(seconds={}, interval=(0.03, 0.05))
    told = answer.of(study(map_speed=speed, map_found=speed._replace(gbps=5.0), minutes=in_turn)).data["limit"]
    assert (limit["interval"], told["interval"]) == (None, (0.03, 0.05))
    assert (told["map_gbps"], told["map_of_memory"], told["found_map_gbps"], told["in_turn"]) == (10.0, 0.5, 5.0, True)


@pytest.mark.parametrize("more, change, command", [
    ({"busy": Busy(0.3)}, False, False), ({"busy": Busy(0.25)}, True, True), ({"measured": {}}, True, True),
    ({"measured": {BLOCKS: measured(0.046), INT8: measured(0.045)}}, False, True),
    ({"room": room(stays=lambda each: each.way != BLOCKS)}, False, True),
    ({"room": room(stays=lambda each: False)}, False, False),
])  # fmt: skip
def test_a_change_is_of_a_default_that_is_slower(more, change, command):
    data = answer.of(study(**more)).data
    assert (bool(data["change"]), bool(data["command"]), data["peer"]) == (change, command, None)
    guessed = [row for row in data["reached"] if row["low"] is None]
    assert all((row["high"], row["others"]) == (None, 0.0) for row in guessed) and all(
        row["tokens_per_second"] for row in guessed
    )


@pytest.mark.parametrize("seconds, busy, share", [
    (0.05, 0.0, 0.8), (0.04, 0.0, 1.0), (0.04 * (1 - 1e-12), 0.0, 1.0), (0.0399, 0.0, None), (0.05, 0.3, None),
])  # fmt: skip
def test_what_passed_the_limit_in_other_minutes_is_no_share_of_it(seconds, busy, share):
    told = answer._mbu(study(busy=Busy(busy)), BLOCKS, predicted(BLOCKS, seconds))
    assert told == dict.fromkeys(("mbu", "mbu_low", "mbu_high"), share and pytest.approx(share))


@pytest.mark.parametrize("way, name, time, share", [
    (None, PEER, measured(0.05), (0.8, 0.6, 0.8)), (BLOCKS, "kit", measured(0.05), (0.8, 0.6, 0.8)),
    (INT8, "kit --linear fused-int8", measured(0.05), (0.8, 0.8, 0.8)),
    (BLOCKS, "kit", predicted(BLOCKS, 0.05), (0.8, 0.8, 0.8)),
    (KEPT, "kit", measured(0.02), (1.0, 1.0, 1.0)),
])  # fmt: skip
def test_a_share_has_the_interval_of_its_rounds(way, name, time, share):
    """Where it ran in turn: here llama.cpp and kit's exact way."""
    ours = next(each for each, known in answer.measuring.ENGINE_WAYS.items() if known == BLOCKS)
    minutes = SimpleNamespace(seconds={PEER: 1, ours: 1}, share=lambda asked: Share(0.7, 0.6, 0.75))
    assert answer.share(study(minutes=minutes), way, time) == pytest.approx(share)
    assert answer.share(study(), None, measured(0.05)) == pytest.approx((0.8, 0.8, 0.8))


@pytest.mark.parametrize(
    "seconds, command",
    [(1.0, "kit quants m.gguf"), (1.02, "llama-server -m b.gguf -t "), (1.27, "llama-server"), (1.28, "kit explain http")],
)
def test_near_the_limit_only_fewer_bits_help_whom_llama_cpp_serves(monkeypatch, seconds, command):
    monkeypatch.setattr(answer, "ENGINES", {PEER: SimpleNamespace(missing=lambda: "")})
    found = answer.of(study(least_now=0.85, engines={PEER: measured(seconds)}))
    told, line = answer._of_peer(found)
    assert line.strip().startswith(command) and f"{0.85 / seconds:.0%}" in told
    assert answer._of_peer(answer.of(study())) == []
    monkeypatch.setattr(answer, "ENGINES", {PEER: SimpleNamespace(missing=lambda: "not installed")})
    assert ["not installed" in line for line in answer._of_peer(found)] == [True]


def test_the_bandwidth_of_these_minutes_says_whether_its_probe_was_a_busy_one():
    limit = {"in_turn": False, "read_gbps": 20.0, "others_cores": 0.25}
    assert "20.0 GB/s" in answer._bandwidth(limit) and "cores" not in answer._bandwidth(limit)
    assert "0.3 cores" in answer._bandwidth(limit | {"others_cores": 0.3})
    assert "cores" not in answer._bandwidth(limit | {"others_cores": 0.3, "in_turn": True})


@pytest.mark.parametrize("least, now, said", [(1.0, 1.05, True), (1.0, 1.04, False), (0.02, 0.04, True)])
def test_the_best_minutes_are_said_where_they_are_better(least, now, said):
    assert bool(answer.best_minutes(study(least=least, least_now=now))) is said


@pytest.mark.parametrize("more, parts", [
    ({"room": room(fits=False)}, ("3.00 GiB that are free", "process 1.00 GiB")),
    ({"room": room(fits=False, disk=BackingStore(2.5)), "whole": GIB}, ("1.00 GiB for the whole process", "2.5 GB/s")),
])  # fmt: skip
def test_a_file_that_does_not_fit_is_told_with_what_it_waits_for(more, parts):
    told = " ".join(answer.told(answer.of(study(**more))))
    assert all(part in told for part in (*parts, "7.45 GiB")), told  # 8e9 bytes of blocks
    assert not any(part in " ".join(answer.told(answer.of(study()))) for part in parts)


@pytest.mark.parametrize("gbps, said", [(19.0, False), (18.9, True)])
def test_pages_that_are_read_more_slowly_than_a_copy_are_told(gbps, said):
    found = pages.MapSpeed(gbps, 20.0, 0.9)
    told, without = (answer.told(answer.of(study(**more))) for more in ({"map_found": found, "map_speed": found}, {}))
    assert len(told) == len(without) + said and ("per token" in " ".join(told)) is said


def test_a_busy_machine_is_said_first_and_has_no_row_of_a_limit():
    quiet, busy = answer.of(study()), answer.of(study(busy=Busy(0.3)))
    assert [row.kind for row in answer.table(quiet)] == ["limit", "kit", "kit"]
    assert [row.kind for row in answer.table(busy)] == ["kit", "kit"]
    assert answer.told(busy)[0] == busy.study.busy.line != answer.told(quiet)[0]
    assert answer.told(busy)[-1] == answer.concluded(busy)[-1] and len(answer.concluded(busy)) == 2
    assert not any("kit generate" in line for line in answer.concluded(busy))
    assert "" in answer.told(quiet) and "" not in answer.told(answer.of(study(measured={}))), "a limit alone is no table"


@pytest.mark.parametrize("more, command, parts", [
    ({}, "--linear fused-int8", ("1.11 times", "98.0%")), ({"losses": {}}, "--linear fused-int8", ("measured below",)),
    ({"losses": "too long"}, "--linear fused-int8", ("not measured",)),
    ({"measured": {}}, "--linear fused-int8", ("2.00 times",)),
    ({"predictions": [predicted(BLOCKS, 0.06)], "measured": {BLOCKS: measured(0.045)}}, "", ("keep the default (exact).",)),
    ({"measured": {BLOCKS: measured(0.045), INT8: measured(0.05)}}, "", ("keep the default", "int8 is not measurably faster")),
    ({"measured": {BLOCKS: measured(0.045), INT8: measured(0.044)}}, "", ("keep the default", "int8 is not measurably faster")),
    ({"predictions": [predicted(LAZY, 0.06), predicted(BLOCKS, 0.1)], "measured": {}}, "--cache none", ("8.45 GiB",)),
    ({"predictions": [predicted(BLOCKS, 0.06), predicted(KEPT, 0.01)]}, "--cache all", ()),
    ({"room": room(stays=lambda each: each.way == INT8)}, "--linear fused-int8", ("98.0%",)),
    ({"predictions": [predicted(KEPT, 0.06), predicted(BLOCKS, 0.1)], "room": room(stays=lambda each: each.way == BLOCKS)}, "",
    ()),
])  # fmt: skip
def test_the_one_change_is_told_with_its_command(more, command, parts):
    text, line = answer._change(answer.of(study(**more)))
    assert line.strip().startswith("kit generate m.gguf") and line.endswith(command or "'"), line
    assert all(part in text for part in parts), text
    assert ("nothing" in text) is (parts == ("8.45 GiB",))
    assert ("measured" in text or "98.0%" in text) is ("take int8" in text), "what is exact loses nothing"
    assert "times" not in text or "room" not in more, "as fast as what does not stay is not said"


def test_a_file_that_nothing_runs_has_no_change():
    assert len(answer._change(answer.of(study(order=SimpleNamespace(reason="no row"))))) == 1
    assert len(answer._change(answer.of(study(room=room(stays=lambda each: False))))) == 1


# ---- opportunities


def rows(*given):
    return lambda: SimpleNamespace(itertuples=lambda: iter([SimpleNamespace(faster=faster, by=by) for faster, by in given]))


def test_other_ways_are_changes_with_what_they_cost():
    asked = study(advice=rows((1.0, "measured"), (1.2, "measured"), (1.5, "predicted")))
    asked.room.needs = lambda each: {BLOCKS: 1, INT8: 2, KEPT: 5 << 30}[each.way]
    asked.predictions[0] = predicted(BLOCKS, 0.06, 1)
    int8, kept = opportunities._ways(asked)
    assert (int8.times, int8.seconds, int8.by, int8.now) == (1.2, 0.045, "measured", "kit's default")
    assert "98.0%" in int8.cost and "1 B" in int8.cost and int8.command.endswith("--linear fused-int8")
    assert kept.seconds == pytest.approx(0.06 / 1.5) and kept.command.endswith("--cache all") and "next token" not in kept.cost
    asked.room.needs = lambda each: 1
    asked.losses = {}
    int8, kept = opportunities._ways(asked)
    assert kept.cost == "nothing" and "not measured" in int8.cost and "memory" not in int8.cost
    asked.measured = {BLOCKS: measured(0.05), INT8: measured(0.049)}
    assert [each.change for each in opportunities._ways(asked)] == [KEPT.told], "what is in both intervals is no gain"
    asked.room.stays = lambda each: each.way != KEPT
    assert opportunities._ways(asked) == []


def test_memory_for_the_whole_file_is_a_change_where_it_does_not_fit(monkeypatch):
    monkeypatch.setattr(opportunities, "used_tensors", lambda file, order: None)
    monkeypatch.setattr(opportunities, "predict", lambda way, *_: predicted(way, 0.02))
    short = study(room=room(fits=False, limit=2 * GIB), costs=None, machine=None)
    (found,) = opportunities._memory(short)
    assert (found.times, found.seconds, found.by) == (pytest.approx(3.0), 0.02, "predicted")
    assert found.change.startswith("3.00 GiB") and found.cost.startswith("1.00 GiB")
    short.room.limit = 4 * GIB
    assert opportunities._memory(short)[0].cost.startswith("0 B")
    assert opportunities._memory(study()) == [] == opportunities._memory(study(room=room(fits=False), part=study()))


@pytest.mark.parametrize("peer, exact, now, seconds", [
    (0.041, 0.05, "llama.cpp", 0.041), (0.05, 0.041, "kit, exact", 0.041), (0.05, 0.05, None, None),
    (0.04 / 0.85, 0.1, "llama.cpp", 0.04 / 0.85),
])  # fmt: skip
def test_fewer_bits_are_a_change_of_what_is_near_the_limit(peer, exact, now, seconds):
    """Of two tensors: one of 8 bits a weight, and one of 2, which fewer bits do not make smaller."""
    uses = [Use("a", 800, 800), Use("b", 800, 200)]
    asked = study(engines={PEER: measured(peer, 0.0)}, measured={BLOCKS: measured(exact, 0.0)}, read=uses, least_now=0.04)
    asked.predictions = asked.predictions[:1]
    found = opportunities._bits(asked)
    assert bool(found) is bool(now)
    for each, name in zip(found, ("Q4_0", "Q3_K"), strict=True) if now else ():
        times = 1000 / (800 * FORMATS[name].bits_per_weight / 8 + 200)
        assert (each.now, each.times, each.by) == (now, pytest.approx(times), "predicted")
        assert each.seconds == pytest.approx(seconds / times) and each.command == f"kit quants m.gguf --to {name}"
    asked.file = SimpleNamespace(path=None)
    assert opportunities._bits(asked) == []


def test_changes_that_gain_are_listed_by_their_gain(monkeypatch):
    found = [Opportunity(name, "kit's default", times, "measured", 0.02, "x") for name, times in
             (("a", 1.04), ("b", 1.05), ("c", 3.0), ("d", 2.0))]  # fmt: skip
    for name, part in {"_ways": found[:2], "_memory": found[2:3], "_bits": found[3:]}.items():
        monkeypatch.setattr(opportunities, name, lambda study, part=part: part)
    assert [each.change for each in opportunities.gather(study())] == ["c", "d", "b"]
    assert (
        opportunities.gather(study(busy=Busy(0.3))) == [] == opportunities.gather(study(order=SimpleNamespace(reason="no row")))
    )
    assert found[0].rate == "50 tok/s"
    told = opportunities.told(study(), [found[2], found[3]._replace(command="kit quants")]).splitlines()
    assert told[1].startswith(" 3.00x measured ") and told[4].startswith(" 2.00x ") and told[7] == "    kit quants"
    assert len(opportunities.told(study(), []).splitlines()) == len(told) - 7
    lines = opportunities.advice(study())
    assert len(lines) == 3 and "3.0 times" in lines[0]
    monkeypatch.setattr(opportunities, "gather", lambda study: [])
    assert " 5%" in opportunities.advice(study())[0] and opportunities.advice(study(busy=Busy(0.3))) == [Busy(0.3).line]


@pytest.mark.parametrize("more, count, gains", [
    ({}, 1, 1), ({"room": room(fits=False)}, 0, 1), ({"map_found": pages.MapSpeed(19.0, 20.0, 0.0)}, 2, 1),
    ({"map_found": pages.MapSpeed(18.9, 20.0, 0.0)}, 1, 1), ({"engines": {PEER: measured(0.85)}}, 2, 1),
    ({"engines": {PEER: measured(0.86)}}, 1, 1), ({}, 1, 0), ({}, 1, 2),
])  # fmt: skip
def test_what_is_fine_is_what_needs_no_change(more, count, gains):
    """Of two other ways of kit, those without a gain; a change without a command is none of them."""
    least = {"least_now": 0.85 * 0.85} if "engines" in more else {}
    found = [Opportunity("way", "kit's default", 2.0, "measured", 0.02, "x", "kit generate")] * gains
    found += [
        Opportunity("memory", "kit's default", 2.0, "predicted", 0.02, "x"),
        Opportunity("bits", PEER, 2.0, "", 0.02, "x", "y"),
    ]
    told = opportunities.fine(study(**more | least), found)
    others = [line for line in told if line.startswith(f"kit's {2 - gains} other ways")]
    assert len(told) - len(others) == count and bool(others) is (gains < 2)
