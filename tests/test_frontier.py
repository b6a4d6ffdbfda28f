"""The memory frontier: the Pareto front, the whole model, gates, and a page cache that is too small."""

from dataclasses import replace
from itertools import chain, repeat
from types import SimpleNamespace

import cells
import matplotlib.pyplot as plt
import model_files
import pytest
from invented import ENGINES, MACHINE

import kit
from kit.lab.claims import records
from kit.lab.explaining import peers
from kit.lab.explaining import to_measure as measuring
from kit.lab.explaining.study import Study
from kit.lab.findings import live, pressed, reported
from kit.lab.findings.pressed import PRESSED, pinned_blocks
from kit.lab.measuring import measurements, minutes
from kit.lab.measuring.disk import Disk
from kit.lab.measuring.pages import MapSpeed
from kit.lab.predicting.measured import DTYPES, FUSED, Cost, Kind, keep_pass
from kit.lab.predicting.room import Room
from kit.lab.predicting.ways import BLOCKS, KEPT, LAZY, BackingStore, Way, predict
from kit.lab.synthetic.geometry import GEOMETRIES, decode_order
from kit.lab.synthetic.write import synthesize
from kit.units import format_bytes

NAME, GIB = "07_memory_frontier", 1 << 30
SPECS = GEOMETRIES["granite-3.3-8b"].tensors("Q4_K_M")
COSTS = {Kind(s.qtype, s.shape): Cost(dict.fromkeys(DTYPES, 1.0), dict.fromkeys(DTYPES, 1.0), dict.fromkeys(FUSED, 0.5))
         for s in SPECS}  # fmt: skip


SAMPLES = (0.5, 0.4, 0.6)  # seconds of a token by an engine of its own process


def of_run(lab, path, precisions=()):
    """kit.lab.explaining.peers.of_run without its processes: what the exact way took is in the run's store."""
    with kit.open(path) as file:
        rows = {"kit": {"samples": [1 / seconds for seconds in SAMPLES], "others": 0.0}}
        peers.note(rows, measurements.digest_of(file), lab.notebook, measurements.of_run(lab.out))
    return ENGINES


@pytest.fixture(scope="module")
def patch(tmp_path_factory):
    """A model of its own (nothing else may have its pages mapped), on a machine that nobody has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_MODELS", str(tmp_path_factory.mktemp("models")))
        patch.setattr("kit.lab.measuring.machine.of_run", lambda folder: MACHINE)
        patch.setattr("kit.lab.measuring.pages.speed", lambda file: MapSpeed(30.0, 40.0, 0.05))
        patch.setattr("kit.lab.explaining.peers.of_run", of_run)
        yield patch


@pytest.fixture(scope="module")
def ran(patch, tmp_path_factory):
    """The cells up to the front, with costs for the whole model."""
    given = {**dict.fromkeys(("costs", "again"), lambda costs: COSTS | costs), "gbps": 2.0, "probed": 2.0}
    return cells.run(NAME, "front", given, out=tmp_path_factory.mktemp("out"))


def test_the_front_is_what_nothing_beats(ran):
    """By definition, pair by pair: on the front exactly those that no other equals or beats in both."""
    every = {(found.total, found.seconds) for found in ran["by_way"].values()}
    beaten = {a for a in every if any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in every)}
    assert {(found.total, found.seconds) for found in ran["front"]} == every - beaten and beaten


def test_the_whole_model_has_the_weights_of_its_geometry(ran):
    assert (ran["subject"], ran["room"]) == ("granite-3.3-8b", 4 * GIB)
    assert 4 * sum(part.elements for part in ran["whole"].values()) == reported.float32_bytes()
    assert ran["walk"].rest == pytest.approx(40 / 2 * ran["order"].rest)
    assert {*ran["whole"]} == {name for name, _ in decode_order(GEOMETRIES["granite-3.3-8b"])}


def test_a_slow_map_is_said_and_bounds_what_reads_it(ran):
    said = ran.words["file"]
    assert "75% of" in said and "5% of them" in said and "--pages copied" in said
    assert ran["machine"].map_gbps == pytest.approx(0.75 * MACHINE.read_gbps)
    bound = next(each.bound for each in ran["here"]["blocks"] if each.way == BLOCKS)
    assert bound == pytest.approx(ran["bytes_used"](ran["order"].uses) / 15e9)


def test_four_gib_of_lru_hit_nothing_and_the_page_cache_costs_the_disk(ran):
    found, memory = ran["by_way"], ran["room"]
    assert found[Way("LRU", memory)].hit_rate == 0
    assert found[Way("LRU", memory)].seconds == pytest.approx(found[LAZY].seconds)
    blocks = sum(part.blocks for part in ran["whole"].values())
    assert blocks == pytest.approx(4.94e9, rel=0.01)  # FINDINGS: 4.94 GB
    in_memory = ran["walk"].rest + 0.5 * len(ran["whole"])
    assert found[PRESSED].seconds == pytest.approx(in_memory + blocks / 2e9)
    pinned = found[pinned_blocks(memory)]
    assert pinned.seconds == pytest.approx(in_memory + (blocks - pinned.pages) / 2e9)
    assert (pinned.total, pinned.least) == (memory, pytest.approx(max(blocks / 20e9, (blocks - memory) / 2e9)))
    assert ran["inside"].total <= memory
    assert ran["inside"].seconds == min(each.seconds for each in found.values() if each.total <= memory)


@pytest.mark.parametrize("way", [PRESSED, pinned_blocks(1 << 18)])
def test_a_disk_that_was_seen_faster_bounds_a_way_and_predicts_nothing(ran, way):
    """A group's first pass brought the file at one speed, its tokens came faster: 634 ms stood over a bound of 659."""
    given = ran["tensors"], ran["order"], ran["costs"], MACHINE
    slow, fast = (predict(way, *given, store) for store in (BackingStore(0.01), BackingStore(0.01, most=0.04)))
    assert fast.seconds == slow.seconds and fast.from_disk > 0 and slow.from_disk == pytest.approx(4 * fast.from_disk)
    assert BackingStore(2.0, most=1.0).limit == 2e9


def test_no_way_is_predicted_by_the_speed_that_it_had_itself(patch, ran, tmp_path):
    """Its best token, and its arithmetic once more, was called its prediction: 1.07 times off, where the probe gave another."""
    alone = {way: replace(one, row=one.row | {"gbps": 8.0, "cold": 0.0}) for way, one in ran["alone"].items()}
    with patch.context() as there:
        there.setattr(pressed, "measure", lambda *how: alone)
        there.setattr("kit.lab.measuring.disk.speed", lambda path: Disk(2.0, "told", (2.0,)))
        found = cells.run(NAME, "ways", out=tmp_path)
    for way in (*alone, pinned_blocks(1 << 18)):
        store = BackingStore(2.0 if way in alone else 8.0, most=8.0)
        told = predict(way, found["tensors"], found["order"], found["costs"], found["machine"], store)
        assert found["predict"](way) == told


def test_the_slider_draws_another_figure_for_another_memory(ran):
    titles = []
    for size in (ran["memories"][0], ran["memories"][-1]):
        ran["drawn"](size)
        titles.append(plt.gcf().axes[0].get_title("left"))
    plt.close("all")
    assert titles[0].startswith("1.00 GiB: ") and titles[1].startswith("40.00 GiB: ")


def test_every_measured_point_is_joined_to_its_prediction_under_one_limit(ran):
    """A dot at 500 ms stood over a line at 185: it was the LRU's, whose prediction of 345 ms was not drawn. The dashed line was
    that of the best minutes, 85 tokens per second, beside the front page's 42.5."""
    point = lambda way: next(each for some in ran["found"].values() for each in some if each.way == way)  # noqa: E731
    lru, free = point(Way("LRU", ran["room"])), point(Way("HashMap"))
    real = {each.way: measurements.Reading("", "", (3 * each.seconds,)) for each in (lru, free)}
    ran["drawn"].__globals__["known"] = measuring.known(real)
    ran["drawn"].__globals__["turns"] = SimpleNamespace(read_gbps=10.0)
    ran["drawn"]()
    figure, axes = plt.gcf(), plt.gcf().axes[0]
    plt.close("all")
    lines = {line.get_label(): line for line in axes.lines}
    hollow, full, *_ = axes.lines[axes.lines.index(lines["float32, LRU"]) :]
    at = [*hollow.get_xdata()].index(lru.total / 2**30)
    assert (hollow.get_ydata()[at], full.get_ydata()[at]) == (lru.seconds, 3 * lru.seconds)
    assert full.get_color() == hollow.get_color() and [*hollow.get_xdata()] == sorted(hollow.get_xdata()), "runs backwards"
    joined = [path.vertices for each in axes.collections for path in each.get_paths()]
    assert any((one[:, 1] == [lru.seconds, 3 * lru.seconds]).all() for one in joined)
    [limit] = [line for label, line in lines.items() if label.startswith("limit of memory: ")]
    assert limit.get_ydata()[0] == pytest.approx(ran["bytes_used"](ran["walk"].uses) / 1e10)
    assert {text.get_text() for text in axes.texts} == {"-67%"}, "by how much a prediction is off was left to the reader"
    assert full.get_marker() == hollow.get_marker() != axes.lines[0].get_marker(), "which line a dot is of"
    assert {text.get_text() for text in figure.legends[0].texts} >= {"float32, LRU", limit.get_label()}


def test_live_hit_rates_are_the_predicted_ones_and_all_ways_agree(ran):
    for way, found in ran["measured"].items():
        if way.linear == "dequantized":
            assert found.row["hit_rate"] == pytest.approx(ran["predict"](way).hit_rate), way.label
    assert {*ran["measured"], *ran["left_out"]} == {*ran["asked"]}
    assert not [row.reason for row in records.read([ran["lab"].out / f"{NAME}.jsonl"]) if row.status == records.WARNED]
    assert ran["equal"]["as it should be"].all(), ran["equal"].to_string()
    int8 = ran["equal"].loc["blocks, int8 activations", "from float32, of its spread"]
    assert int8 > 1e-3  # it is not exact: the comparison can tell


def test_a_way_has_one_value_on_every_page_of_a_run(ran):
    """43.9 ms in the table of page 07 and on 09, 46.0 ms in its last sentence and on the index: two processes."""
    store, by_engines = measurements.of_run(ran["lab"].out), {BLOCKS.label: pytest.approx(SAMPLES)}
    study = Study(ran["file"], lambda: MACHINE, 2 << 20, 2, store=store, by="09_your_model")
    study.__dict__["_predicted"] = [*ran["asked"].values()]
    taken = measuring.earlier(study)
    assert {*taken} == {*ran["own"]} and taken[BLOCKS].samples == pytest.approx(SAMPLES)
    for way, real in taken.items():
        assert ran["measured"][way].samples == real.samples == by_engines.get(way.label, ran["own"][way].samples)
        assert way == BLOCKS or ran["own"][way].samples == real.samples
    study.by = ran["lab"].notebook
    assert measuring.earlier(study) == {}, "what this page measured is no other page's"


def test_float32_kept_has_the_value_of_the_page_of_caches_and_the_other_way_round(tmp_path):
    """222 to 256 ms on page 02, 202 to 215 ms on page 07 of one run."""
    path = synthesize(tmp_path / "tiny.gguf", "tiny-llama")
    lab = SimpleNamespace(out=tmp_path, others=1.5, notebook="02_cache_mystery", once=lambda quantity, unit, measure: measure())
    own = {KEPT: measurements.Reading(KEPT.label, "", (0.2, 0.3))}
    with kit.open(path) as file:
        store = measurements.of_run(tmp_path)
        assert live.all_kept(lab, file, lambda: [0.25, 0.2]) == [4.0, 5.0]
        assert [row.others for row in store] == [1.5], "the cores that others used, not twice the least that disturbs"
        for _ in range(2):
            assert measuring.in_store(own, file, store, NAME)[KEPT].samples == (0.25, 0.2)
        assert measuring.in_store(own, file, store, lab.notebook)[KEPT].samples == (0.2, 0.3), "its own, measured again"
        assert live.all_kept(lab, file, pytest.fail) == pytest.approx([5.0, 1 / 0.3])


def test_the_answer_takes_what_was_measured_and_only_else_a_prediction(patch, ran, tmp_path):
    """It predicted 319 ms of what a user then measured to be 427, and 38.2 ms of a way that the page had measured at 40.2."""
    with patch.context() as there:
        there.setattr(pressed, "measure", lambda *how, alone=ran["alone"]: alone)  # the file is mapped by now
        found = cells.run(
            NAME, "answer", out=tmp_path, memory="1 TiB", replace={"roomy": lambda roomy: replace(roomy, way=BLOCKS)}
        )
    tried = [each for line in found["seen"] for each in found["found"][line]]
    assert found["taken"](found["inside"]).seconds == min(found["taken"](each).seconds for each in tried)
    assert found["whole"] is found["tensors"] and found["real"][BLOCKS].samples == pytest.approx(SAMPLES)
    said = " ".join(found.words["told"].split())
    process = format_bytes(Room(found["file"], 0).beside)
    assert f"up to {process} for the process" in said, "kit explain said 421.1 MiB, and this page 378.5, without a history"
    assert "500 ms (measured)" in said and str(found["now"]) in said
    assert ("times as long; it hits" in said) == (found["slow"].how == found["now"].how), "a prediction is of another minute"
    assert found["known"](replace(found["plain"], way=Way("Pinned", 1))).how == "predicted" and found["now"].how == "measured"


def test_the_error_is_that_of_the_medians(ran):
    pairs = [ran["asked"][way].seconds / real.seconds for way, real in ran["measured"].items()]
    told, _, _ = minutes.error_of(dict(enumerate(pairs))).rpartition(" (")
    assert ran["error"].startswith(f"{told} (")
    assert f"of {len(pairs)} ways" in ran.words["compared"]


def test_the_page_says_which_part_of_the_error_is_memory_s(patch, ran, tmp_path):
    """Twice around the costs it reads at 50 GB/s, then, around the ways, at 40."""
    speeds = chain([50.0, 50.0], repeat(40.0))
    with patch.context() as there:
        there.setattr(pressed, "measure", lambda *how, alone=ran["alone"]: alone)  # the file is mapped by now
        there.setattr("kit.lab.measuring.minutes.now_gbps", lambda file: next(speeds))
        found = cells.run(NAME, "compared", out=tmp_path)
    own = {each.label for each in found["own"]}
    rest = found["signed"][[label for label in found["signed"].index if label in own]].median() / 0.8
    assert " 0.80 times" in found.words["compared"]
    assert f"it would be {abs(rest - 1):.0%} too {'fast' if rest < 1 else 'slow'}." in found.words["compared"]
    assert found["machine"].read_gbps == MACHINE.read_gbps, "no prediction takes them"
    assert "GB/s around the costs" not in ran.words["compared"], "a file that the CPU's caches hold"


def test_a_page_that_is_wrong_says_so_and_what_does_not_fit_is_left_out(patch, ran, tmp_path):
    """Other logits, a sum that is not the kit's, and advice beyond the memory; of a file with other kinds, about itself."""
    wrong = {
        "worked": 1.0, "equal": lambda equal: equal.assign(**{"as it should be": False}),
        "plain": lambda plain: replace(plain, way=Way("Pinned", 1, "bfloat16"), held=1 << 50),
    }  # fmt: skip
    with patch.context() as small:
        small.setattr("kit.system.memory_available", lambda: 4 << 20)
        small.setattr(pressed, "measure", lambda *how, alone=ran["alone"]: alone)  # the file is mapped by now
        ran = cells.run(NAME, "best", wrong, out=tmp_path)
    assert ran["whole"] is ran["tensors"]
    elements = sum(tensor.elements for tensor in ran["tensors"].values())
    assert ran["room"] == pytest.approx(4 * GIB / reported.elements() * elements, rel=1e-6)
    assert "needs 5.00 MiB" in ran["left_out"][Way("HashMap")] and LAZY in ran["measured"]
    said = [row.reason for row in records.read([tmp_path / f"{NAME}.jsonl"]) if row.status == records.WARNED]
    starts = "the worked sums are 1 and", f"{len(ran['equal'])} of", "what is recommended does not fit"
    assert all(any(text.startswith(start) for text in said) for start in starts), said


def test_a_split_model_has_the_bytes_and_the_disk_of_all_its_parts(patch, tmp_path):
    """Half of the first part stood for half of the file."""
    parts, asked = model_files.split(synthesize(tmp_path / "tiny.gguf", "tiny-llama"), tmp_path, 1), []
    with patch.context() as there:
        there.setattr(pressed, "measure", lambda path, tokens, pinned, limit: asked.append(pinned) or {})
        there.setattr("kit.lab.measuring.disk.speed", lambda path: asked.append(path) or Disk(2.0, "told", (2.0,)))
        ran = cells.run(NAME, "file", out=tmp_path / "out", model=parts[0])
    assert asked == [parts[1], [sum(part.stat().st_size for part in parts) // 2]] and "tiny.gguf, its own" in ran.words["file"]


def test_a_system_that_keeps_all_pages_is_a_fact_and_no_warning(patch, tmp_path):
    kept = "this system keeps 100% of the file's pages in memory, whatever the limit"
    with patch.context() as there:
        ways = [pinned_blocks(1 << 19), PRESSED]
        there.setattr(pressed, "measure", lambda *how: dict.fromkeys(ways, kept))
        ran = cells.run(NAME, "answer", out=tmp_path)
    assert f"Not measured here: blocks, 512.0 KiB pinned: {kept}" in ran.words["told"]
    assert ran["plain"].total > ran["room"]
    needs = f"in {format_bytes(ran['plain'].total)} with the file, not the {format_bytes(ran['room'])} given"
    assert needs in " ".join(ran.words["told"].split())
    rows = records.read([tmp_path / f"{NAME}.jsonl"])
    assert not [row.reason for row in rows if row.status == records.WARNED]
    assert [row.quantity for row in rows if row.reason == kept] == [f"a token, {way.label}" for way in ways]


def test_pinned_blocks_are_the_answer_where_no_page_cache_can_be_made_too_small(patch, ran, tmp_path):
    """They were measured and fit; the page said that nothing did, and named blocks that need more than was given."""
    (half, one), _ = ran["alone"].items()
    slow = replace(one, samples=(1.0, 1.0))  # a tiny file's times differ by noise alone
    with patch.context() as there:
        there.setattr(pressed, "measure", lambda *how: {half: slow, PRESSED: "no group"})
        found = cells.run(NAME, "front", out=tmp_path)
    plain = found["plain"].way
    assert plain == pinned_blocks(found["room"]) and found["plain"].total <= found["room"]
    factor = found["by_way"][plain].seconds / found["real"][plain].seconds
    assert found["factors"][plain.told] == pytest.approx(factor), "what is recommended counts among the predictions"
    assert found["error"] == minutes.error_of(found["factors"]) and len(found["factors"]) == len(found["measured"]) + 1


def test_what_a_group_may_keep_is_part_of_the_way_where_there_is_a_group(monkeypatch, tmp_path):
    """What stays there is in no least; where no group may be made, no page is used."""
    path = synthesize(tmp_path / "tiny.gguf", "tiny-granite")
    for group, way in {"": PRESSED, str(tmp_path / "gone"): replace(PRESSED, capacity=1 << 19)}.items():
        seconds, read = [0.9] * bool(group) + [0.5, 0.4], [1e9] * (2 + bool(group))
        told = [{"seconds": seconds, "read": read, "stayed": 0.6, "group": group, "logits": [0.0]}]
        monkeypatch.setattr(pressed.child, "call", lambda *_, told=told, **__: told)
        [(found, one)] = pressed.measure(path, 1, limit=1 << 19).items()
        assert found == way and one.samples == (0.4,)
        assert (one.row["gbps"], one.row["cold"]) == (2.5, 2.0 if group else 0), "of what was read, not of pages that stay"


def test_a_child_that_fails_is_a_reason(tmp_path):
    found = pressed.measure(tmp_path / "missing.gguf", 1)
    assert "missing.gguf" in found[PRESSED] and pressed.how(found[PRESSED]) == found[PRESSED]


def test_the_limit_is_real(tmp_path):
    """In a group the kernel evicts; without one, what is not held is read past the page cache at every token."""
    path = synthesize(tmp_path / "tiny.gguf", "tiny-granite")
    half, none = pressed.measure(path, 1, [path.stat().st_size // 2]).values()
    had = [one for one in (half, none) if not isinstance(one, str)]
    assert half not in had or 0.2 < half.row["stayed"] <= 0.5
    assert none not in had or (none.row["stayed"] == pytest.approx(0, abs=0.03) and "past the page cache" in pressed.how(none))
    assert BLOCKS.label not in [one.way for one in had]


def test_a_page_drawn_again_predicts_by_the_passes_of_its_run(tmp_path):
    """They were timed again, after the ways that they predict: a pass of 12.4 ms in place of 7.38."""
    ran = cells.run(NAME, "file", out=tmp_path)
    keep_pass(measurements.of_run(tmp_path), ran["file"], replace(ran["order"], rest=123.0), quiet=False)
    assert cells.run(NAME, "file", out=tmp_path)["order"].rest == 123.0
