"""Attention finding: the arithmetic of shares and parts, the first layers of a file, a run of all ways on a tiny one."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from invented import MACHINE

import kit
from kit.findings import first_layers
from kit.findings.n04_attention import attention_map, one_token, verdicts
from kit.findings.n04_attention import figures as attention_figures
from kit.findings.n04_attention import variants as attention
from kit.findings.session import Session
from kit.model.config import read_config
from kit.synthetic.geometry import GEOMETRIES
from kit.synthetic.write import synthesize

GRANITE = GEOMETRIES["granite-3.3-8b"]


@pytest.fixture(scope="module")
def granite():
    """The configuration of granite-3.3-8b, from as much of a GGUFFile as it needs."""
    tensors = {spec.name: spec for spec in GRANITE.tensors()}
    named = {"path": "granite.gguf", "architecture": "granite", "metadata": GRANITE.metadata(), "tensors": tensors}
    return read_config(SimpleNamespace(**named))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return kit.open(synthesize(tmp_path_factory.mktemp("models") / "tiny.gguf", "tiny-granite", "Q4_K_M"))


@pytest.mark.parametrize("context,percent", [(1, 0.004), (50, 0.2), (512, 2), (2048, 7.6)])
def test_share_of_attention_by_flops_is_the_findings(granite, context, percent):
    """0.004 % at one position, 0.2 % at 50, 2 % at 512 and 7.6 % at 2048 for granite-3.3-8b."""
    table = attention.predict(granite, MACHINE, [context], 40)
    assert 100 * table.loc[context, "attention's share"] == pytest.approx(percent, rel=0.03)
    assert table.loc[context, "most it can give"] < 1.1


def test_a_token_reads_every_matrix_once(granite):
    """All weights but the row that the embedding takes, which with tied embeddings are all there are."""
    norms = 4096
    assert attention.elements_read(granite, 40) == sum(spec.elements for spec in GRANITE.tensors()) - norms
    assert attention.elements_read(granite, 80) > 1.9 * attention.elements_read(granite, 40)


def test_only_the_experts_used_are_read(tmp_path):
    config = read_config(kit.open(synthesize(tmp_path / "moe.gguf", "tiny-qwen3moe", "F32")))
    dense = 256 * (256 + 128 + 128 + 256 + 8) + 2 * 256 + 2 * 64
    assert attention.elements_read(config, 1) == dense + 3 * 2 * 256 * 256 + 512 * 256


def test_only_layers_with_a_window_end_at_it(granite):
    """As in Gemma: a query of the first layer sees 16 positions, one of the second all 100."""
    config = replace(granite, window=16, local=(True, False) * 20)
    for count in (attention.attention_flops, attention.kv_bytes):
        assert [count(config, context, layer) * 25 for context in (10, 100) for layer in (0, 1)] == [
            share * count(granite, 100) for share in (2.5, 2.5, 4, 25)
        ]


def test_amdahl():
    assert attention.amdahl(0.0) == 1 and attention.amdahl(0.9) == pytest.approx(10)


def test_parts_add_up_to_the_token_and_scale_by_layer():
    """A token of 10 s: 2 s of a projection of which 0.5 s decoding, 1 s attention, 3 s output head, 0.25 s norm."""
    spans = [
        ("token", "", -1, 0, 10),
        ("embed", "token_embd.weight", -1, 0, 0.2),
        ("dequantize", "token_embd.weight", -1, 0, 0.1),
        ("linear", "blk.0.attn_q.weight", 0, 1, 3),
        ("dequantize", "blk.0.attn_q.weight", 0, 1, 1.5),
        ("attention", "", 0, 3, 4),
        ("norm", "output_norm.weight", -1, 4, 4.25),
        ("read", "output_norm.weight", -1, 4, 4.05),
        ("linear", "token_embd.weight", -1, 5, 8),
        ("dequantize", "token_embd.weight", -1, 5, 6),
    ]
    frame = pd.DataFrame(spans, columns=["what", "tensor", "layer", "start", "end"])
    frame["seconds"] = frame["end"] - frame["start"]
    told = {"dequantize": 0.1 + 0.5 + 0.05 + 1, "projections": 1.5 + 2, "attention": 1, "norms": 0.2}
    assert one_token.parts(frame) == pytest.approx(told | {"rest": 10 - sum(told.values())})
    scaled = {"dequantize": 0.1 + 5 + 0.05 + 1, "projections": 15 + 2, "attention": 10, "norms": 0.2}
    assert one_token.parts(frame, 10) == pytest.approx(scaled | {"rest": 10 * (10 - sum(told.values()))})


def test_shares_follow_from_times():
    """Attention of 1 ms a layer and 4 layers beside 12 ms and 4 ms of all else: 25 % and 50 %."""

    class Config:
        heads, head_dim, vocabulary, hidden_size = 2, 4, 10, 8
        window_of = staticmethod(lambda layer: 0)

        @staticmethod
        def tensors():
            return {"blk.0.attn_q.weight": (8, 8)}

    timed = pd.DataFrame({"variant": ["loop", "blas"], "context": [16, 16], "seconds": [1e-3, 1e-6]})
    rows = {("again", 0): (0.012, 9.0), ("loop-attention", 0): (0.004, 9.0)}
    tokens = pd.DataFrame(rows, index=["projections", "attention"]).T.rename_axis(["way", "sample"])
    shares = attention.shares(Config, timed, tokens, 4)
    assert shares.loc[16, "reports' loops, measured"] == pytest.approx(0.25)
    assert shares.loc[16, "BLAS projections, measured"] == pytest.approx(0.5)
    flops = 4 * 4 * 2 * 4 * 16
    assert shares.loc[16, "FLOPs"] == pytest.approx(flops / (flops + 2 * (4 * 64 + 80)))


def test_the_first_layers_of_a_file_are_a_model(tiny):
    file = first_layers.FirstLayers(tiny, 1)
    model = kit.Transformer(kit.Weights(file))
    assert model.config.layers == 1 and not any(name.startswith("blk.1.") for name in file.tensors)
    assert model.logits([3, 4]).isfinite().all()


@pytest.mark.parametrize("room,most,layers", [(1e12, None, 2), (1e12, 1, 1), (6e6, None, 2), (4e6, None, 1), (1, None, 1)])
def test_as_many_layers_as_fit(tiny, monkeypatch, room, most, layers):
    monkeypatch.setattr(first_layers, "memory_available", lambda: 2 * room)
    assert len(tiny.tensors) == 20
    assert read_config(first_layers.what_fits(tiny, most=most)).layers == layers
    assert read_config(first_layers.what_fits(tiny, room, most)).layers == layers


def test_equality_finds_a_variant_that_is_wrong(monkeypatch, granite):
    good = attention.equality(granite, contexts=(1, 5, 48))
    assert (good.fillna(0) < attention.TOLERANCE).all().all() and good.loc["python", "1 x 48"] is not None
    blas = attention.ATTENTION["blas"]
    monkeypatch.setitem(attention.ATTENTION, "blas", lambda q, k, v, scale, *rest: blas(q, k, v, 1.01 * scale, *rest))
    bad = attention.equality(granite, contexts=(48,))
    assert bad.loc["blas"].max() > 1e-4


def test_a_whole_run_draws_and_judges(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("kit.lab.machine.of_run", lambda folder: MACHINE)
    lab = Session("04_attention", profile="smoke", out=str(tmp_path))
    file = first_layers.what_fits(tiny)
    config = read_config(file)
    timed = attention.times(config, MACHINE, [1, 16, 64], samples=1)
    weights, tokens = one_token.by_way(file, 8, 1.0, samples=1)
    shares = attention.shares(config, timed, tokens, 2)
    matrices = attention.projections(weights, config, samples=1)
    assert (matrices["rms / std"] < 1e-5).all() and (matrices["time / bound"] >= 1).all()
    speeds = one_token.kv_speeds(weights, MACHINE, 8, 1.0, samples=1)
    table = one_token.token_table(tokens, MACHINE, attention.elements_read(config, 2))
    assert list(table["total, s"]) == pytest.approx(list(table.filter(like=", s").drop(columns="total, s").sum(axis=1)))
    points = attention.roofline(config, timed, matrices, weights)
    assert (points["gflops"] > 0).all() and points.loc["projection fused", "intensity"] > 3
    for figure in (
        attention_figures.times(timed), attention_figures.shares(shares), attention_figures.kv_speeds(speeds),
        attention_figures.projections(matrices), attention_figures.roofline(points, MACHINE),
        attention_figures.token_bars(tokens, 0.01),
    ):  # fmt: skip
        figure.canvas.draw()
    elements = attention.elements_read(config, 2)
    pairs = one_token.paired(weights, 8, 1.0, least=2, budget=0.0)
    assert (pairs["attention"] < pairs["loops"]).all()
    verdicts.judge_speedup(lab, pairs, tokens, 0.02, 8)
    verdicts.judge_warm(lab, tokens, elements, 4), verdicts.judge_500(lab, tokens, elements)
    claims = [json.loads(line)["claim"] for line in (tmp_path / "04_attention.jsonl").read_text().splitlines()]
    assert set(claims) == {"attention-blas-speedup", "warm-inference", "blas-500", ""}
    assert "At a context of 8 attention is 2.0%" in verdicts.answer(tokens, pairs, 0.02, 8)


def tokens_with(**totals):
    shares = pd.Series({"dequantize": 0.0, "projections": 0.9, "attention": 0.1})
    rows = {(way, sample): shares * total for way, total in totals.items() for sample in range(3)}
    return pd.DataFrame(rows).T.rename_axis(["way", "sample"])


def verdicts_of(tmp_path, monkeypatch, tokens, loops, share):
    """``loops``: seconds with looped attention where BLAS takes 1; ``share`` of them in attention."""
    monkeypatch.setattr("kit.lab.machine.of_run", lambda folder: MACHINE)
    lab = Session("04_attention", profile="smoke", out=str(tmp_path))
    pairs = pd.DataFrame({"loops": [loops] * 10, "blas": [1.0] * 10, "attention": [share * loops] * 10})
    verdicts.judge_speedup(lab, pairs, tokens, 0.02, 512)
    verdicts.judge_warm(lab, tokens, 8_170_860_544, 4)
    verdicts.judge_500(lab, tokens, 8_170_860_544)
    return lab.verdicts()["verdict"].tolist()


def test_verdicts_follow_the_measurement(tmp_path, monkeypatch):
    slow = {"first": 49.0, "again": 45.0, "loop-projections": 40.0, "cached": 1.2, "fused": 0.2}
    scaled, never = "reproduced in ratio", "impossible"
    assert verdicts_of(tmp_path, monkeypatch, tokens_with(**slow), 1.08, 0.1) == [never, scaled, scaled, scaled, never, never]
    fast = {"first": 4.5, "again": 0.5, "loop-projections": 0.001, "cached": 0.001, "fused": 0.001}
    no = "not reproduced"
    assert verdicts_of(tmp_path, monkeypatch, tokens_with(**fast), 15.0, 0.96) == [scaled, no, no, no, never, never]


def test_no_bound_lies_inside_what_is_measured(tmp_path, monkeypatch):
    """BLAS may be slower than loops (0.947 was measured), which is no contradiction; faster than without attention is one."""
    slow = tokens_with(**{"first": 49.0, "again": 45.0, "loop-projections": 40.0, "cached": 1.2, "fused": 0.2})
    assert verdicts_of(tmp_path, monkeypatch, slow, 0.947, 0.02)[0] == "impossible"
    assert verdicts_of(tmp_path, monkeypatch, slow, 1.5, 0.02)[0] == "undecided here"


def test_the_attention_map_is_what_attention_does(tiny):
    """Every row sums to 1, none looks ahead, and the mixed values are those of the model's own attention."""
    found = attention_map.maps(tiny, [1, 5, 9, 4])
    assert len(found) == 2 and found[0].shape == (kit.Transformer(kit.Weights(tiny)).config.heads, 4, 4)
    assert all(abs(layer.sum(-1) - 1).max() < 1e-5 and (layer[:, 0, 1:] == 0).all() for layer in found)
    assert "recorded" not in attention.ATTENTION
    even = [np.full((2, 3, 3), 1 / 3)]
    assert attention_map.spread(even) == pytest.approx(1.0) and attention_map.spread([np.eye(3)[None]]) == pytest.approx(0.0)
    attention_map.figure(found, list("abcd"), "tiny").canvas.draw()
