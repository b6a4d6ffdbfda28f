"""Findings of report 004: the arithmetic, the ladder's order of things, and all strategies on a tiny model."""

import numpy as np
import pandas as pd
import pytest
import torch

import kit
from kit.claims.records import read
from kit.findings.n05_tile_decode import bits, ladder, native
from kit.findings.n06_compressed_inference import passes as compressed
from kit.findings.n06_compressed_inference import verdicts as compressed_verdicts
from kit.findings.n06_compressed_inference.passes import STRATEGIES
from kit.findings.session import Session
from kit.lab import machine

MACHINE = machine.Machine("m", "cpu", 2, 2**34, 2**34, 20.0, 10.0, 15.0, 100.0, 5.0)


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
    tiles = compressed.reported_layers()
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
    lab = Session(ladder.NAME, profile="smoke", out=str(tmp_path))
    lab.record(quantity=ladder.INTERPRETED, unit="s", samples=[0.25, 0.26])
    assert ladder.interpreted_tile(tmp_path) == [0.25, 0.26]


def test_the_least_time_of_a_tile_is_bytes_over_bandwidth():
    assert ladder.least_seconds(MACHINE, 8) == pytest.approx(65536 / 20e9 + 65536 / 10e9)


# ---- hits


def test_hit_curve_is_the_closed_form():
    curve = compressed.hit_curve([f"layer {i}" for i in range(40)], tokens=4, points=40)
    for entries, row in curve.iterrows():
        assert row["Pinned"] == row["MIN"] == pytest.approx(entries / 40)
        assert row["MIN without bypass"] == pytest.approx(1 if entries == 40 else (entries - 1) / 39, abs=0.03)
        assert row["LRU"] == (1 if entries == 40 else 0)
    assert compressed.entries_needed(curve)["Pinned"] == 34


# ---- inference


@pytest.fixture(scope="module")
def outcomes(models, tmp_path_factory):
    lab = Session("06_compressed_inference", profile="smoke", out=str(tmp_path_factory.mktemp("run")))
    file = compressed.compressed_model(lab.path("tinyllama-1.1b"))
    return file, [compressed.run(file, name, [1, 5, 9], tokens=3) for name in STRATEGIES]


def test_the_compressed_model_is_written_once(outcomes, lab):
    file, _ = outcomes
    before = file.path.stat().st_mtime_ns
    assert compressed.compressed_model(lab.path("tinyllama-1.1b")).path.stat().st_mtime_ns == before


def test_every_strategy_gives_the_same_tokens(outcomes):
    assert (compressed.same_tokens(outcomes[1]).nunique() == 1).all()


def test_decodes_of_every_strategy(outcomes):
    _, runs = outcomes
    decodes = {outcome.strategy: outcome.decodes for outcome in runs}
    assert decodes["reported"] == decodes["all"] == (15, 0, 0)
    for name in ("fixed", "table", "interleaved", "simd"):
        assert decodes[name] == (15, 15, 15)
    assert 0 < decodes["half"][2] < decodes["pinned"][2] == decodes["MIN"][2] < 15


def test_the_table_counts_bytes(outcomes):
    file, runs = outcomes
    rows = compressed.table(file, runs, MACHINE)
    plain = sum(size for _, size in compressed.scan_order(file))
    packed = sum(matrix.nbytes for matrix in file.matrices.values())
    assert rows.loc[STRATEGIES["all"].label, "held MiB"] == plain / 2**20
    assert rows.loc[STRATEGIES["simd"].label, "held MiB"] > packed / 2**20
    assert rows.loc[STRATEGIES["simd"].label, "least, s"] == pytest.approx(packed / 20e9)
    assert rows.loc[STRATEGIES["all"].label, "least, s"] == pytest.approx(plain / 20e9)
    assert rows.loc[STRATEGIES["fixed"].label, "hit rate"] == 0


def test_hits_by_layer_and_tile_add_up(outcomes):
    _, runs = outcomes
    for outcome in runs:
        if STRATEGIES[outcome.strategy].prefetch:
            continue
        frame = compressed.hits_by_layer(outcome)
        assert frame["hits"].sum() + frame["layers decoded"].sum() == 3 * 15
        assert frame["tiles hit"].sum() + frame["tiles decoded"].sum() == 3 * frame["tiles"].sum()
        assert frame["layers decoded"].sum() == sum(outcome.decodes)


def test_verdicts_of_compressed_inference(outcomes, lab):
    _, runs = outcomes
    curve = compressed.hit_curve(list(compressed.reported_layers()))
    compressed_verdicts.judge(lab, runs, curve, slow=[0.295])
    verdicts = lab.verdicts()["verdict"]
    assert verdicts["double-cache"] == "not reproduced"
    assert verdicts["hit-rate-85"] == verdicts["cold-token"] == "impossible"
    assert verdicts["layer-50s"] == "reproduced in ratio"
    assert set(verdicts.index) >= {"token-time", "five-tokens"}
    records = read([lab.out / "06_compressed_inference.jsonl"])
    assert next(r for r in records if r.claim == "hit-rate-85").upper == pytest.approx(100 * 20 / 155)
    assert next(r for r in records if r.claim == "cold-token").median == pytest.approx(78.92)


def test_a_slower_machine_would_get_another_verdict(outcomes, lab):
    _, runs = outcomes
    curve = compressed.hit_curve(list(compressed.reported_layers()))
    compressed_verdicts.judge(lab, runs, curve, slow=[1e-4])
    assert lab.verdicts().loc["token-time", "verdict"] == "not reproduced"
    assert lab.verdicts().loc["layer-50s", "verdict"] == "not reproduced"


def test_streaming_gains_the_bytes_until_the_decoder_binds():
    passes = compressed_verdicts.streaming(10**9, 0.9, 5.0)
    slow, fast = passes.iloc[0], passes.iloc[-1]
    assert slow["gain"] == pytest.approx(1 / 0.9)
    assert fast["gain"] == pytest.approx(5.0 / 100)


def test_figures_are_drawn(outcomes):
    file, runs = outcomes
    curve = compressed.hit_curve(list(compressed.reported_layers()), points=5)
    rows = compressed.table(file, runs, MACHINE)
    passes = compressed_verdicts.streaming(10**9, 0.9, 5.0)
    drawn = (
        compressed.hit_figure(curve),
        compressed_verdicts.frontier_figure(rows, MACHINE),
        compressed_verdicts.streaming_figure(passes, 0.9, compressed_verdicts.decode_gbps(file)),
    )
    for figure in drawn:
        axes = figure.axes[0]
        assert axes.get_xlabel() and axes.get_ylabel() and axes.get_title(loc="left")
    assert len(drawn[1].axes[0].get_lines()) == len(STRATEGIES) + 1
