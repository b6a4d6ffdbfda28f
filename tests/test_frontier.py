"""The memory frontier: the Pareto front, the whole model, tiles, a page cache too small, and a run on a tiny file."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import MACHINE

import kit
from kit.claims import records
from kit.costs import ways
from kit.costs.measured import DTYPES, FUSED, Cost, Kind
from kit.costs.order import Order
from kit.costs.ways import LAZY, Part, Prediction, Way
from kit.findings import reported
from kit.findings.n07_memory_frontier import advice, figures, pressed, sweep, tiles
from kit.findings.session import Session
from kit.synthetic.geometry import GEOMETRIES
from kit.synthetic.write import synthesize

POINTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=15)


@given(POINTS)
def test_the_front_is_what_nothing_beats(points):
    """By definition, pair by pair: on the front exactly those that no other equals or beats in both."""
    found = [Prediction(LAZY, float(seconds), 0.0, None, held, 0) for held, seconds in points]
    front = {(p.total, p.seconds) for p in sweep.pareto(found)}
    expected = {
        a for a in {(float(h), float(s)) for h, s in points}
        if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in {(float(h), float(s)) for h, s in points})
    }  # fmt: skip
    assert front == expected
    assert [p.total for p in sweep.pareto(found)] == sorted(p.total for p in sweep.pareto(found))


def invented():
    """A file of two kinds of tensors of granite-3.3-8b, with costs for all kinds of the model."""
    specs = {(s.qtype, s.shape): s for s in GEOMETRIES["granite-3.3-8b"].tensors("Q4_K_M")}
    ones = dict.fromkeys(DTYPES, 1.0)
    plain = {Kind(*key): Cost(ones, ones, dict.fromkeys(FUSED, 1.0)) for key in specs}
    packed = {Kind("I8", shape): Cost({"int8": 2.0}, {"int8": 1.0}, {}) for _, shape in specs if len(shape) == 2}
    shape = (4096, 4096)
    parts = {"blk.0.attn_q.weight": Part(Kind("Q4_K", shape), 9 << 20)}
    tile_parts = {"blk.0.attn_q.weight": Part(Kind("I8", shape), 3 << 22)}
    order = Order([list(parts)] * 3, rest=0.5)
    file = sweep.Subject("file", parts, order, tile_parts, order)
    return file, sweep.Costs(plain, packed, 2.0, MACHINE)


def test_the_whole_model_has_the_weights_of_its_geometry():
    file, costs = invented()
    model, memory = sweep.asked(file, costs, 4 << 30)
    assert (model.name, memory) == ("granite-3.3-8b", 4 << 30)
    assert model.working_set("float32") == reported.f32_bytes()
    assert model.order.rest == pytest.approx(0.5 * 40)
    packed = sum(part.blocks for part in model.tile_parts.values()) / model.working_set("int8")
    assert packed == pytest.approx(0.75, rel=1e-3)


def test_a_model_with_other_tensors_is_asked_about_itself():
    file, costs = invented()
    costs.plain.pop(Kind("Q6_K", (49159, 4096)))
    subject, memory = sweep.asked(file, costs, 4 << 30)
    share = (4 << 30) / (reported.f32_bytes())
    assert subject is file and memory == pytest.approx(share * file.working_set("float32"), rel=1e-6)


def test_four_gib_of_lru_hit_nothing_and_the_page_cache_costs_the_disk():
    file, costs = invented()
    model, memory = sweep.asked(file, costs, 4 << 30)
    found = {p.way: p for p in (sweep.predict(way, model, costs) for way in sweep.all_ways(model, memory))}
    assert found[Way("LRU", memory)].hit_rate == 0
    assert found[Way("LRU", memory)].seconds == found[LAZY].seconds
    blocks = sum(part.blocks for part in model.parts.values())
    slower = found[sweep.PRESSED].seconds - found[ways.BLOCKS].seconds
    assert slower == pytest.approx(blocks / 2e9)
    assert blocks == pytest.approx(4.94e9, rel=0.01)  # FINDINGS: 4.94 GB
    pinned = found[sweep.pinned_blocks(memory)]
    missing = blocks - pinned.pages
    assert pinned.seconds - found[ways.BLOCKS].seconds == pytest.approx(missing / 2e9)
    assert (pinned.total, pinned.least) == (memory, pytest.approx(max(blocks / 20e9, missing / 2e9)))
    inside = advice.best(list(found.values()), memory)
    assert inside.total <= memory and inside.seconds == min(p.seconds for p in found.values() if p.total <= memory)
    with pytest.raises(kit.KitError, match=r"1\.00 KiB hold no way"):
        advice.best(list(found.values()), 1024)
    told = advice.answer(model.name, list(found.values()), memory, "Off by nothing.", QUALITY)
    assert "hits 0%" in told and "predicted" in told and "4.00 GiB" in told


QUALITY = pd.DataFrame({"kl": [0.0, 1e-6, 3e-3]}, index=["f32", "f16", "INT8 tiles"])


def test_the_quality_lost_is_told_with_its_figure():
    assert advice.lost(ways.BLOCKS, QUALITY) == "exact to float32"
    assert advice.lost(Way("HashMap", None, "int8", tiles.PLAIN), QUALITY).endswith("KL 3.0e-03 nats")


def test_tiles_decode_once_for_each_miss():
    shape, names = (256, 256), ["token_embd.weight", "blk.0.ffn_up.weight"]
    parts = {name: Part(Kind("I8", shape), 50_000) for name in names}
    costs = {Kind("I8", shape): Cost({"int8": 10.0}, {"int8": 1.0}, {})}
    plain = Order([["blk.0.attn_norm.weight", names[1], names[0]]] * 3, rest=0.5)
    order = tiles.order_of(plain, parts, tied=True)
    assert order.tokens[0] == [names[0], names[1], names[0]]  # rows of the embedding, then the output
    lazy, pinned, kept = (
        tiles.predict(way, parts, order, costs, MACHINE)
        for way in (Way("NoCache", None, "int8", tiles.PLAIN), Way("Pinned", 65_536, "int8", tiles.PLAIN),
                    Way("HashMap", None, "int8", tiles.PLAIN))
    )  # fmt: skip
    assert (lazy.seconds, pinned.seconds, kept.seconds) == (33.5, 13.5, 3.5)
    assert (lazy.pages, pinned.pages, kept.pages) == (100_000, 50_000, 0)
    assert (lazy.held, pinned.held, kept.held) == (65_536, 131_072, 131_072)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Everything once on a tiny file of its own (nothing else may have its pages mapped)."""
    folder = tmp_path_factory.mktemp("frontier")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_MODELS", str(folder / "models"))
        path = synthesize(folder / "tiny.gguf", "tiny-granite")
        subject, costs = sweep.prepare(path, MACHINE, 3)
        predictions = [sweep.predict(way, subject, costs) for way in sweep.chosen(subject)]
        measured, left_out = sweep.measure_all(path, subject, predictions, 2)
        yield path, subject, costs, predictions, measured, left_out


def test_every_chosen_way_is_measured_and_gives_the_same_logits(run):
    path, _, _, predictions, measured, left_out = run
    assert {found.way for found in measured} | set(left_out) == {p.way for p in predictions}
    assert {way.linear for way in left_out} <= {sweep.PRESSED.linear, sweep.PINNED_BLOCKS}  # where pages cannot be dropped
    same = sweep.equality(path, measured)
    assert same["equal"].all(), same.to_string()
    assert (
        0 < same.loc[Way("NoCache", None, "int8", tiles.PLAIN).label, "rms / std"]
    )  # INT8 is not exact: the comparison can tell


def test_live_hit_rates_are_the_predicted_ones(run):
    predicted = {p.way: p.hit_rate for p in run[3]}
    for found in run[4]:
        if found.way.linear in ("dequantized", tiles.PLAIN):
            assert found.hit_rate == pytest.approx(predicted[found.way]), found.way.label


def test_the_error_is_that_of_the_medians(run):
    _, _, _, predictions, measured, _ = run
    table = sweep.table(predictions, measured)
    seconds = {p.way: p.seconds for p in predictions}
    for found in measured:
        assert table.loc[found.way.label, "factor"] == pytest.approx(seconds[found.way] / found.seconds)
    exact = [ways.Measured(p.way, (p.seconds * f,), None, 0, None) for p, f in zip(predictions, (1, 2), strict=False)]
    assert "off by a factor of 1.50 in the median of 2 ways, 2.00 at worst" in advice.error(sweep.table(predictions, exact))


def test_figures_and_records(run, tmp_path):
    _, subject, costs, predictions, measured, _ = run
    everything = [sweep.predict(way, subject, costs) for way in sweep.all_ways(subject, 1 << 20, shares=(0.5,))]
    figure = figures.plane(subject, everything, costs, figures.rings(predictions, measured, QUALITY, 2.0), 1 << 20, "A title")
    figure.canvas.draw()
    axes = figure.axes[0]
    assert len(figure.legends[0].get_texts()) <= 10
    assert axes.get_yscale() == "log" and "memory" in axes.get_xlabel()
    figures.errors(sweep.table(predictions, measured)).canvas.draw()
    assert len(sweep.table(predictions, measured)) == len(predictions)
    lab = Session("07_memory_frontier", profile="smoke", out=tmp_path)
    lab.machine = MACHINE
    advice.record(lab, predictions, measured, {LAZY: "needs 30.44 GiB"})
    rows = records.read([tmp_path / "07_memory_frontier.jsonl"])
    assert [row.status for row in rows] == ["ok"] * (len(measured) + 1) + ["skipped"]
    assert all(row.lower is not None for row in rows[:-2])
    assert subject.layers == 2


def test_what_does_not_fit_is_left_out(run, monkeypatch):
    path, subject, _, predictions, _, _ = run
    monkeypatch.setattr(sweep, "memory_available", lambda: 2 << 20)
    small = [p for p in predictions if p.way in (LAZY, Way("HashMap"))]
    measured, left_out = sweep.measure_all(path, subject, small, 1)
    assert [found.way for found in measured] == [LAZY]
    assert list(left_out) == [Way("HashMap")] and "5.00 MiB" in left_out[Way("HashMap")]


def test_a_child_that_fails_is_a_reason(tmp_path):
    found = pressed.measure(tmp_path / "missing.gguf", 1)
    assert found.measured is None and "missing.gguf" in found.reason


def test_the_limit_is_real(run):
    """In a group the kernel evicts, without one pages are dropped: either way most are gone when a token begins."""
    path = run[0]
    found = pressed.measure(path, 1, limit=64 << 20)
    assert found.measured is None or found.limit in ("a control group", "pages dropped between tokens")
    half = pressed.measure(path, 1, pinned=path.stat().st_size // 2)
    assert half.measured is None or half.stayed == pytest.approx(0.5, abs=0.05)


def test_the_disk_is_read_past_the_page_cache(tmp_path):
    """/dev/null has no O_DIRECT reads to time, a file of 16 MiB has, or says that it cannot."""
    (tmp_path / "file").write_bytes(bytes(16 << 20))
    gbps = pressed.direct_gbps(tmp_path / "file")
    assert gbps is None or gbps > 0
    assert pressed.direct_gbps(tmp_path / "missing") is None


def test_rings_scale_memory_and_seconds():
    for way, kl in ((LAZY, 0.0), (Way("NoCache", None, "float16"), 1e-6), (ways.BLOCKS_INT8, math.nan)):
        prediction, real = Prediction(way, 1.0, 0.5, 0.0, 100, 20), ways.Measured(way, (2.0, 4.0, 3.0), 0.0, 0, None)
        assert figures.rings([prediction], [real], QUALITY, 10) == [(1200, 30.0, pytest.approx(kl, nan_ok=True))]
    assert kit.cache.UNLIMITED[LAZY.policy]().capacity == 0
