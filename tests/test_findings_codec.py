"""Findings of report 004: the arithmetic, the ladder's order of things, and all strategies on a tiny model."""

import numpy as np
import pandas as pd
import pytest
import torch
from invented import MACHINE

import kit
from kit.cache.faults import TwoLevels
from kit.cache.policies.base import LRU
from kit.claims.records import read
from kit.findings.n05_tile_decode import bits, ladder, native
from kit.findings.n06_compressed_inference import hits, passes, streaming, verdicts
from kit.findings.n06_compressed_inference.passes import LAZY, STRATEGIES
from kit.findings.session import Session
from kit.synthetic.write import synthesize


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_MODELS", str(tmp_path_factory.mktemp("models")))
        patch.setattr("kit.lab.machine.of_run", lambda folder: MACHINE)
        yield


@pytest.fixture
def lab(tmp_path):
    return Session("06_compressed_inference", profile="smoke", out=str(tmp_path))


# ---- tiles


def test_the_reported_geometry_has_155_layers_and_15784_tiles():
    tiles = hits.reported_layers()
    assert (len(tiles), sum(tiles.values())) == (155, 15784)
    assert [tiles[f"blk.3.{part}.weight"] for part in ("attn_q", "attn_k", "ffn_up")] == [64, 8, 176]
    assert list(tiles)[-1] == "output.weight" and tiles["output.weight"] == 1000


def gaussian(rows=512):
    return torch.randn(rows, 1024, generator=torch.Generator().manual_seed(0))


def test_differences_of_independent_values_cost_half_a_bit_a_doubling():
    """Away from the 8 bits where values wrap: a narrow Gaussian under one large value a row."""
    weights = gaussian()
    weights[:, 0] = 40
    row = bits.table({"narrow": weights}).loc["narrow"]
    assert row["LEFT"] - row["order 0"] == pytest.approx(0.5, abs=0.06)
    assert row["LEFT twice"] - row["order 0"] == pytest.approx(0.5 * np.log2(6), abs=0.08)


def test_sizes_stand_in_their_order():
    row = bits.table({bits.GAUSSIAN: gaussian()}).loc[bits.GAUSSIAN]
    assert row["order 0"] < row["kit tiles"] < row["zstd -19"] < row["as reported"] < 8.2
    assert "generated" in bits.sentence(bits.table({bits.GAUSSIAN: gaussian(), "own": gaussian()}), generated=True)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("context", [False, True])
def test_the_native_decoder_is_the_reported_one(level, context):
    """Against the values themselves, wherever they wrap; a table a tile."""
    values = torch.from_numpy(np.random.default_rng(1).integers(-128, 128, (512, 512)).astype(np.int8) // 3)
    tiles = kit.codec.encode(values, "reported")
    out = native.unpack(tiles, level, context, np.empty((4, 256, 256), np.int8))
    assert np.array_equal(out, bits.tiles_of(values.numpy()))


def test_the_ladder_and_its_verdicts(lab):
    matrices = bits.sample_matrices(lab.file("tinyllama-1.1b"), tiles=4)
    assert set(matrices) >= {"Gaussian", "attn_q", "ffn_down", "output"}
    few = [rung for rung in ladder.LADDER if rung.name in ("native -O0", "scalar-table, kit", "simd")]
    table, raw = ladder.ladder(matrices["Gaussian"], 2, few)
    assert list(table.index) == list(raw) and (table["seconds"] > 0).all()
    assert table["factor"].iloc[1:].prod() == pytest.approx(table["seconds"].iloc[0] / table["seconds"].iloc[-1])


@pytest.mark.parametrize(
    "native, cause, cured", [(0.007, "not reproduced", "reproduced in ratio"), (0.2, "reproduced", "not reproduced")]
)
def test_whether_the_cpu_is_to_blame_is_measured(lab, native, cause, cured):
    raw = {rung.name: [native * share for share in (1.0, 1.01, 0.99, 1.0, 1.0, 1.0)] for rung in ladder.LADDER} | {
        "python": [0.3] * 6
    }
    table = pd.DataFrame(
        {"new": [rung.new for rung in ladder.LADDER], "seconds": [raw[rung.name][0] for rung in ladder.LADDER]},
        index=[rung.name for rung in ladder.LADDER],
    )
    raw["simd"] = [native / 100 if native < 0.1 else native] * 6
    ladder.verdicts(lab, table, raw, 7.2)
    assert lab.verdicts().loc["generic-decoder", "verdict"] == cause
    assert lab.verdicts().loc["tile-295-5", "verdict"] == cured
    assert "300 ms" in ladder.answer(table, bits.table({"Gaussian": gaussian()}), 1e-6)


def test_one_run_has_one_figure_for_the_reported_tile(tmp_path):
    """06 takes what 05 measured in the same folder."""
    names = ("05_tile_decode", "06_compressed_inference")
    first, second = (Session(name, profile="smoke", out=str(tmp_path)) for name in names)
    first.record(quantity=ladder.INTERPRETED, unit="s", samples=[0.25, 0.26])
    assert ladder.interpreted_tile(second) == [0.25, 0.26]


def test_the_least_time_of_a_tile_is_bytes_over_bandwidth():
    assert ladder.least_seconds(MACHINE, 8) == pytest.approx(65536 / 20e9 + 65536 / 10e9)


# ---- hits


def test_hit_curve_is_the_closed_form():
    curve = hits.curve([f"layer {i}" for i in range(40)], tokens=4, points=40)
    for entries, row in curve.iterrows():
        assert row["Pinned"] == row["MIN"] == pytest.approx(entries / 40)
        assert row["MIN without bypass"] == pytest.approx(1 if entries == 40 else (entries - 1) / 39, abs=0.03)
        assert row["LRU"] == (1 if entries == 40 else 0)
    assert (curve >= hits.SHARE).idxmax()["Pinned"] == 34


def test_a_limited_inner_cache_forgets_what_was_used_longest_ago():
    loads = []
    caches = TwoLevels(LRU(1), keeps=2)
    for key in "abacb":
        caches.get(key, 1, lambda key=key: loads.append(key) or key)
    assert loads == ["a", "b", "c", "b"], "c pushed b out of the inner cache, for a had been used since"


# ---- inference


@pytest.fixture(scope="module")
def outcomes(models, tmp_path_factory):
    lab = Session("06_compressed_inference", profile="smoke", out=str(tmp_path_factory.mktemp("run")))
    file = passes.compressed_model(lab.path("tinyllama-1.1b"))
    return file, passes.run_all(file, [1, 5, 9], tokens=3)


def test_the_compressed_model_is_written_once(outcomes, lab):
    file, _ = outcomes
    before = file.path.stat().st_mtime_ns
    assert passes.compressed_model(lab.path("tinyllama-1.1b")).path.stat().st_mtime_ns == before


def test_every_strategy_gives_the_same_tokens(outcomes):
    assert list(outcomes[1]) == list(STRATEGIES)
    assert (passes.same_tokens(outcomes[1]).nunique() == 1).all()


def test_decodes_of_every_strategy(outcomes):
    decodes = {name: outcome.decodes for name, outcome in outcomes[1].items()}
    assert decodes["unlimited"] == decodes["all"] == (15, 0, 0)
    for name in ("double", "fixed", "table", "interleaved", "simd"):
        assert decodes[name] == (15, 15, 15), name
    assert 0 < decodes["half"][2] < decodes["pinned"][2] == decodes["MIN"][2] < 15
    assert outcomes[1]["double"].label == "before: inner LRU of 5, outer LRU of 2"


@pytest.mark.parametrize("geometry", ["tiny-qwen3moe", "tiny-phi3"])
def test_files_of_experts_and_of_fused_projections_run(geometry, models, tmp_path):
    """These died where the order of a scan was a list of names."""
    file = passes.compressed_model(synthesize(tmp_path / "model.gguf", geometry))
    lazy = passes.run(file, LAZY, [1, 5], 2)
    assert passes.run(file, "MIN", [1, 5], 2, lazy).tokens == lazy.tokens


def test_the_table_counts_bytes(outcomes):
    file, runs = outcomes
    rows = passes.table(file, runs, MACHINE)
    plain, packed = passes.plain_bytes(file), passes.packed_bytes(file)
    assert rows.loc[STRATEGIES["all"].label, "held MiB"] == plain / 2**20
    assert rows.loc[STRATEGIES[LAZY].label, "held MiB"] > packed / 2**20
    for name, nbytes in ((LAZY, packed), ("all", plain)):
        row = rows.loc[STRATEGIES[name].label]
        assert row["token, s"] / row["times the least"] == pytest.approx(nbytes / 20e9)
    assert rows.loc[runs["fixed"].label, "hit rate"] == 0


def test_capacity_counts_the_matrix_in_use(outcomes):
    file, _ = outcomes
    largest = max(rows * columns for rows, columns in (matrix.shape for matrix in file.matrices.values()))
    more = passes.packed_bytes(file) + largest > passes.plain_bytes(file)
    assert (" more than plain" if more else " less than plain") in passes.capacity(file)


def test_hits_by_layer_and_tile_add_up(outcomes):
    for outcome in outcomes[1].values():
        if STRATEGIES[outcome.strategy].prefetch:
            continue
        frame = passes.hits_by_layer(outcome)
        assert frame["hits"].sum() + frame["unpacked"].sum() == 3 * 15
        assert frame["tiles hit"].sum() + frame["tiles unpacked"].sum() == 3 * frame["tiles"].sum()
        assert frame["unpacked"].sum() == sum(outcome.decodes)


LAYER = verdicts.SlowLayer("blk.0.attn_k.weight", 8, [2.4, 2.4], [1.0, 1.0])


def judged(lab, outcomes, slow, fast=1e-3):
    curve = hits.curve(list(hits.reported_layers()))
    verdicts.verdicts(lab, outcomes[1], curve, slow, LAYER, [tuple(fast * share for share in (2, 1, 1))] * 6)
    return lab.verdicts()["verdict"]


def test_verdicts_of_compressed_inference(outcomes, lab):
    found = judged(lab, outcomes, [0.295] * 3)
    assert found["double-cache"] == "reproduced in ratio"
    assert found["hit-rate-85"] == found["cold-token"] == "impossible"
    assert found["layer-50s"] == "not reproduced"
    assert found["token-time"] == found["five-tokens"] == "reproduced in ratio"
    rows = read([lab.out / "06_compressed_inference.jsonl"])
    assert next(r for r in rows if r.claim == "hit-rate-85").upper == pytest.approx(100 * 20 / 155)
    assert next(r for r in rows if r.claim == "cold-token").lower == pytest.approx(78.92)
    assert next(r for r in rows if r.claim == "layer-50s").median == pytest.approx(0.295 * 15784 / 155)
    assert next(r for r in rows if "times one" in r.quantity).median == 1
    assert "85%" in verdicts.answer(outcomes[1], [0.295], [(0.02, 0.01, 0.01)])


def test_a_slower_machine_would_get_another_verdict(outcomes, lab):
    found = judged(lab, outcomes, [5e-3] * 3, fast=1e-2)
    assert found["token-time"] == found["five-tokens"] == "not reproduced"


def test_a_layer_is_unpacked_the_reported_way(outcomes):
    layer = verdicts.slow_layer(outcomes[0], samples=2)
    assert layer.tiles >= 1 and len(layer.scaling) >= 2 and all(scaling > 0 for scaling in layer.scaling)


def test_streaming_gains_the_bytes_until_the_decoder_binds():
    table = streaming.passes(10**9, 0.9, 5.0)
    slow, fast = table.iloc[0], table.iloc[-1]
    assert slow["gain"] == pytest.approx(1 / 0.9)
    assert fast["gain"] == pytest.approx(5.0 / 100)


def test_figures_are_drawn(outcomes):
    file, runs = outcomes
    curve = hits.curve(list(hits.reported_layers()), points=5)
    rows = passes.table(file, runs, MACHINE)
    table = streaming.passes(10**9, 0.9, 5.0)
    drawn = (hits.figure(curve), passes.figure(rows, MACHINE), streaming.figure(table, 0.9, streaming.decoder_gbps(file)))
    for figure in drawn:
        axes = figure.axes[0]
        assert axes.get_xlabel() and axes.get_ylabel() and axes.get_title(loc="left")
    assert len(drawn[1].axes[0].get_lines()) == len(STRATEGIES) + 1
