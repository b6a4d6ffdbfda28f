"""Notebook 04: shares by arithmetic, one head three ways, whole tokens by part, and verdicts that follow the run."""

import re
from dataclasses import replace
from types import SimpleNamespace

import cells
import numpy as np
import pandas as pd
import pytest
from invented import MACHINE
from test_first_token import SLOW, curve

from kit.lab.claims.records import read
from kit.lab.findings import pressure
from kit.lab.predicting import attention as costs
from kit.lab.synthetic.geometry import GEOMETRIES
from kit.model.hyperparameters import read_config

NAME, GRANITE = "04_attention", GEOMETRIES["granite-3.3-8b"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.machine.of_run", lambda folder: MACHINE)
    monkeypatch.setattr(pressure, "of_run", lambda lab: curve())


@pytest.fixture(scope="module")
def granite():
    """The configuration of granite-3.3-8b, from as much of a GGUFFile as it needs."""
    tensors = {spec.name: spec for spec in GRANITE.tensors()}
    named = {"path": "granite.gguf", "architecture": "granite", "metadata": GRANITE.metadata(), "tensors": tensors}
    return read_config(SimpleNamespace(**named))


def run(tmp_path, until=None, **replaced):
    return cells.run(NAME, until, out=tmp_path, context=48, longest=64, replace=replaced)


@pytest.mark.parametrize("context,percent", [(1, 0.004), (50, 0.2), (512, 2), (2048, 7.6)])
def test_share_of_attention_by_flops_is_the_findings(granite, context, percent):
    """0.004 % at one position, 0.2 % at 50, 2 % at 512 and 7.6 % at 2048 for granite-3.3-8b."""
    flops = 40 * costs.attention_flops(granite, context)
    weights = sum(spec.elements for spec in GRANITE.tensors())
    assert 100 * flops / (flops + 2 * weights) == pytest.approx(percent, rel=0.03)


def test_only_layers_with_a_window_end_at_it(granite):
    """As in Gemma: a query of the first layer sees 16 positions, one of the second all 100."""
    local, everywhere = (
        layer._replace(mixer=replace(layer.mixer, window=n)) for layer, n in zip(granite.layers, (16, 0), strict=False)
    )
    config = replace(granite, layers=(local, everywhere) * 20)
    kv_bytes = lambda config, context, layer=0: config.layers[layer].mixer.memory.read(context, 4)  # noqa: E731
    for count in (costs.attention_flops, kv_bytes):
        assert [count(config, context, layer) * 25 for context in (10, 100) for layer in (0, 1)] == [
            share * count(granite, 100) for share in (2.5, 2.5, 4, 25)
        ]


def test_the_cell_predicts_what_the_model_has(tmp_path):
    """One layer of two is measured; the arithmetic is of the whole file."""
    ran = run(tmp_path, "flops")
    whole = sum(tensor.elements for tensor in ran["whole"].tensors.values())
    assert ran["elements"] == pytest.approx(whole, rel=1e-6) and ran["scale"] == 2
    for n in ran["contexts"]:
        assert ran["attention"][n] == 2 * costs.attention_flops(ran["config"], n)
    share = ran["predicted"]["share"]
    assert np.allclose(ran["predicted"]["gain by FLOPs, attention free"], 1 / (1 - share)) and share.is_monotonic_increasing


def test_one_head_three_ways_and_a_wrong_one_stops_the_page(tmp_path):
    ran = run(tmp_path, "equal")
    assert len(ran["off"]) == 3 * len(ran["contexts"]) and max(ran["off"].values()) < 1e-6

    def spoiled(variants):
        return variants | {"one call": lambda *arguments: 1.01 * variants["one call"](*arguments)}

    with pytest.raises(AssertionError):
        run(tmp_path, "equal", variants=spoiled)


def test_parts_are_the_token_and_layers_count_by_their_number(tmp_path):
    ran = run(tmp_path, "figure-shares")
    parts = ran["parts"]
    assert set(parts["way"]) == set(ran["ways"]) and (parts[["attention", "projections", "norms"]] > 0).all(axis=None)
    rounds = parts.groupby("way")["round"].nunique()
    assert rounds.min() == 1 and rounds["products for both"] >= 2  # loops once, which are slow
    spans = pd.DataFrame({"what": ["linear", "linear", "attention"], "layer": [0, -1, 0], "seconds": [1.0, 2.0, 0.5]})
    trace, steps = SimpleNamespace(clear=lambda: None, frame=spans.copy), []
    model = SimpleNamespace(trace=trace, step=lambda tokens, held: steps.append(tokens))
    step = costs.DecodeStep.__new__(costs.DecodeStep)
    step.model, step.cache, step.mark, step.times = model, SimpleNamespace(back_to=lambda mark: None), None, 40
    assert step.parts() == [20.0, 42.0, 0.0] and step.seconds() == 62.0 and len(steps) == 3  # one warms up, when first asked


@pytest.mark.slow
def test_a_latent_is_less_to_keep_and_both_ways_give_what_loops_give(tmp_path):
    ran = run(tmp_path, "latent-say")
    q, latent, key, up_k, up_v = ran["held"]
    for head in (0, len(q) - 1):
        keys = np.hstack([(latent @ up_k[head]).numpy(), key.numpy()]).astype(np.float64)
        score = keys @ q[head].double().numpy() / np.sqrt(len(q[head]))
        weight = np.exp(score - score.max())
        right = weight / weight.sum() @ (latent @ up_v[head]).double().numpy()
        for way in ("absorbed", "expanded"):
            assert np.allclose(ran[way](*ran["held"])[head], right, atol=1e-5)
    latents, config = ran["latents"], ran["config"]
    assert latents.loc["latent, absorbed", "bytes per position"] == 4 * ran["depth"] * (512 + 64)
    assert latents["bytes per position"].iloc[0] == ran["depth"] * config.layers[0].mixer.memory.read(1, 4)
    assert latents["FLOPs per token"].iloc[0] == ran["depth"] * costs.attention_flops(config, ran["n"])


@pytest.mark.parametrize(
    "kept,roomy,warm,shown,longer,even",
    [
        ((5.0, 5.5, 5.2), 0.05, "reproduced in ratio", 2, 1.02, "reproduced in ratio"),
        ((5.0, 2.7, 2.7), 0.05, "not reproduced", 0, 1.02, "reproduced in ratio"),  # what repeats itself, dequantizing once
        ((5.0, 0.05, 0.05), 0.05, "not reproduced", 0, 2.0, "not reproduced"),
    ],
)
def test_verdicts_follow_the_run(tmp_path, monkeypatch, kept, roomy, warm, shown, longer, even):
    monkeypatch.setattr(pressure, "of_run", lambda lab: curve(SLOW | {"kept": kept}, roomy))

    def slower(middle):  # what one row's projections take beyond another's is not what attention gives
        return middle.add(pd.DataFrame({"projections": 9.0, "total": 9.0}, ["loops for both"]), fill_value=0).loc[middle.index]

    ran = run(tmp_path, longer=dict.fromkeys(("loops", "products"), np.full(9, longer)), middle=slower)
    told = " ".join(ran.words["summary"].split())
    assert re.search(r"attention make a token (1\.0\d\d|0\.9\d\d) times as fast with loops for the projections", told)
    where = f" only where the float32 copies do not fit in memory: in {shown} of" if shown else " in none of"
    assert f"179 and 212 s appears{where} " in told
    found = {(row.claim, row.verdict) for row in read([tmp_path / f"{NAME}.jsonl"]) if row.verdict}
    assert {("warm-inference", warm), ("long-sequences", even)} <= found and ("blas-500", "impossible") in found
    assert len(ran["both"]) == shown and ran["there"]["first / before"] == pytest.approx(194 / 36.8)
    assert not cells.unfilled(ran) and not cells.static_sentences(NAME)


@pytest.mark.parametrize(
    "gain,verdict",
    [(1.05, "not reproduced"), (8.2, "not reproduced"), (9.9, "undecided here"), (12.1, "reproduced in ratio"),
     (16.5, "reproduced in ratio"), (25, "not reproduced")],
)  # fmt: skip
def test_attention_is_judged_by_pairs_and_by_no_estimate(tmp_path, gain, verdict):
    """The largest share of the time that loops took is an estimate, which medians have passed: it forbids nothing."""
    run(tmp_path, "judge-speedup", gains=np.array([gain, gain * 1.01] * 6), most=1.1)
    rows = [row for row in read([tmp_path / f"{NAME}.jsonl"]) if row.claim == "attention-blas-speedup"]
    assert [row.verdict for row in rows] == [verdict]
