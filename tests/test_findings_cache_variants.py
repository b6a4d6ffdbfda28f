"""Cache variants: the curves, the figures, the live runs and the verdicts, on a tiny file and short traces."""

import numpy as np
import pandas as pd
import pytest

import kit
from kit.cache import POLICIES
from kit.cache.traces import repeated
from kit.claims.records import read
from kit.findings import live as cache_live
from kit.findings.n03_cache_variants import (
    live as cache_variants_live,
)
from kit.findings.n03_cache_variants import (
    replays as cache_variants,
)
from kit.findings.n03_cache_variants import (
    verdicts as cache_variants_verdicts,
)
from kit.lab import machine
from kit.synthetic.write import cached_model

MACHINE = machine.Machine(
    "m", "cpu", 2, 2**34, 2**34, read_gbps=20.0, write_gbps=10.0, copy_gbps=15.0, fresh_gbps=5.0, f32_gflops=100.0
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return cached_model("tiny-llama", mix="Q4_K_M", folder=tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def live(path):
    with kit.open(path) as file:
        order = cache_live.one_pass(file)
        yield file, order, cache_variants_live.every_policy(file, order, 0.5, passes=3)


def test_closed_forms_agree_with_replays():
    table = cache_variants.closed_forms(362, 0.3)
    assert (table["difference"].abs() <= 0.005).all() and {"LRU", "MIN", "TwoRandom"} <= set(table.index)


def test_curves_have_the_bound_above_and_the_ends_right():
    trace = cache_variants.dense(4)
    table = cache_variants.curves(trace.counted(), fractions=(0.1, 0.5, 0.8, 1.0))
    assert set(table["policy"]) == set(POLICIES)
    assert (table["hit rate"] <= table["capacity / working set"] + 1 / 362).all()
    full = table[table["capacity / working set"] == 1.0]
    assert (full["hit rate"] == 1).all()
    half = table[table["capacity / working set"] == 0.5].set_index("policy")["hit rate"]
    assert half["LRU"] == half["SIEVE"] == 0 and half["Pinned"] == half["MIN"] == half["CyclicAware"] == 0.5
    lines = dict(cache_variants.families(table, "hit rate"))
    assert any({"FIFO", "LRU", "CLOCK", "SIEVE", "ARC", "LFU"} <= set(names.split(", ")) for names in lines)
    by_bytes = cache_variants.curves(trace, fractions=(0.1, 1.0))
    cache_variants.curves_figure(table, by_bytes).canvas.draw()


def test_heat_maps_say_the_rate_that_a_replay_has():
    trace = repeated([(f"blk.{i}.w", 10) for i in range(10)] + [("output.weight", 10)], 4)
    figure = cache_variants.heat_maps(trace, 0.3, {"Pinned": POLICIES["Pinned"], "LRU": POLICIES["LRU"]})
    figure.canvas.draw()
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.images]
    pinned = np.array(shown[0].images[0].get_array())
    assert (
        pinned.shape == (11, 4) and (pinned[:3, 1:] == 100).all() and pinned[3:].sum() == 0 and pinned[:, 0].sum() == 0
    )
    assert shown[0].get_title(loc="left") == "Pinned: 20.5 %" and shown[1].get_title(loc="left") == "LRU: 0.0 %"


def test_rows_use_all_of_the_capacity():
    table = cache_variants.pinned_sets(cache_variants.dense(3), 0.131)
    assert (table["capacity used"] <= 1).all() and (table["of the bound"] <= 1 + 1e-9).all()
    assert table.loc["rows, in order", "of the bound"] > 0.9999
    assert table.loc["knapsack", "of the bound"] > 0.99


def test_a_matrix_held_in_part_gives_the_same_product(live):
    file, order, _ = live
    table = cache_variants_live.held_in_part(file, order, 0.4)
    assert (table["largest relative difference"] < 1e-5).all()
    assert (table["held"] <= 0.4).all() and (table["byte hit rate, warm"] == table["held"]).all()
    assert table.loc["in order", "held"] > 0.395
    scan = repeated(list(zip(order.keys, order.sizes, strict=True)), 3)
    sets = cache_variants.pinned_sets(scan, 0.4, cache_live.miss_costs(file))
    assert (sets["capacity used"] <= 1).all() and set(cache_live.miss_costs(file)) == set(order.keys)


def test_the_order_turns_round():
    kinds = cache_variants.kinds(6, seed=0)
    table = cache_variants.compare_kinds(kinds, 0.3)
    assert (table.drop("bound") <= table.loc["bound"] + 1e-9).all().all()
    assert table.loc["Pinned", "dense"] > table.loc["LRU", "dense"] == 0
    assert table.loc["LRU", "experts, local"] > table.loc["Pinned", "experts, local"]
    assert table.loc["LFU", "experts, skewed"] > table.loc["LRU", "experts, skewed"]
    said = cache_variants.advice(table, 0.3)["advice"]
    assert said["dense"] == "pin" and said["experts, local"].startswith("measure")
    cache_variants.kinds_figure(table, 0.3).canvas.draw()
    cache_variants.one_pass_figure(kinds).canvas.draw()
    windows = cache_variants.windows(kinds, 0.3)
    assert (windows["dense"] == 0).all() and windows.shape == (5, 3)


def test_every_policy_live_gives_the_same_answer_and_its_replay_the_same_counts(live):
    _, order, runs = live
    assert {run.label for run in runs} == {*POLICIES, "NoCache", "HashMap"}
    assert (cache_live.same_logits(runs)["largest difference"] == 0).all()
    agreement = cache_variants_live.replay_agrees(runs, order, 0.5)
    assert agreement["all counts agree"].all()
    points = cache_variants_live.points(runs, 0.5)
    scan = repeated(list(zip(order.keys, order.sizes, strict=True)), 3)
    replayed = cache_variants.curves(scan, fractions=(0.5,), warm=1)
    merged = points.merge(replayed, on="policy")
    assert np.allclose(merged["byte hit rate_x"], merged["byte hit rate_y"])
    cache_variants.live_figure(replayed, points).canvas.draw()
    cache_variants_live.speed_figure(runs, MACHINE, order.working_set).canvas.draw()


def test_fixes(live):
    file, order, _ = live
    table = cache_variants_live.fixes(file, order, 0.4, passes=2)
    misses = table["misses a token"]
    assert misses.iloc[0] == misses["1 verify: LRU, and look"] == len(order)
    assert 0 < misses["2 pinned"] < len(order) and misses["3 HashMap"] == 0
    assert (table["memory / limit"].drop("3 HashMap") <= 1).all() and table.loc["3 HashMap", "memory / limit"] > 2


def test_each_field_changes_what_is_loaded_or_is_said_not_to(live):
    file, order, _ = live
    effect = cache_variants_live.fields(file, order, 0.131, passes=3)["effect on what is loaded"]
    assert effect["max_memory_bytes = the model"] == "yes" == effect["prefetch_ahead = 1"]
    assert effect["use_frequency_priority"] == "none"


def test_verdicts(path, live, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "of_run", lambda folder: MACHINE)
    lab = kit.Session("03_cache_variants", profile="smoke", out=str(tmp_path))
    file, order, _ = live
    dense = cache_variants.dense(2)
    ahead = cache_variants_live.prefetch(path, order, 0.3, passes=3, rounds=2)
    table = cache_variants_live.prefetch_table(ahead, MACHINE, order.working_set, 0.3)
    assert table.loc["none", "prefetched, %"] == 0 < table["prefetched, %"].drop("none").min()
    cache_variants_live.prefetch_figure(table).canvas.draw()
    cache_variants_verdicts.judge_prefetch(lab, ahead, table)
    cache_variants_verdicts.judge_lookups(lab, cache_variants_live.lookups(file, order, samples=2))
    cache_variants_verdicts.judge_limit(lab, dense)
    cache_variants_verdicts.judge_frequency(lab, cache_variants.windows(cache_variants.kinds(6, 0), 0.3))
    fixes = cache_variants_live.fixes(file, order, 0.131, passes=2)
    cache_variants_verdicts.judge_fixes(lab, fixes, dense.working_set)
    judged = [(r.claim, r.verdict) for r in read([lab.out / "03_cache_variants.jsonl"])]
    assert {claim for claim, _ in judged} == {
        "cache-lookup-speedup", "lru-512mb", "prefetch-ahead", "frequency-priority", "fix-verify", "fix-pinned", "fix-hashmap",
    }  # fmt: skip
    assert ("lru-512mb", "not reproduced") in judged and ("fix-verify", "not reproduced") in judged
    assert ("fix-hashmap", "reproduced") in judged and ("fix-hashmap", "impossible") in judged
    assert ("frequency-priority", "reproduced in ratio") in judged and (
        "frequency-priority",
        "not reproduced",
    ) in judged


def test_verdicts_follow_what_was_measured(tmp_path, monkeypatch):
    """Opposite inputs, opposite verdicts."""
    monkeypatch.setattr(machine, "of_run", lambda folder: MACHINE)
    lab = kit.Session("03_cache_variants", profile="smoke", out=str(tmp_path))
    hot = repeated([("a", 10)], 50)
    cache_variants_verdicts.judge_limit(lab, hot)
    names = ["as reported: LRU", "1 verify: LRU, and look", "2 pinned", "3 HashMap"]
    fixes = pd.DataFrame({"misses a token": [5, 0, 0, 5], "memory / limit": 1.0}, index=names)
    cache_variants_verdicts.judge_fixes(lab, fixes, 10**6)
    runs = pd.DataFrame(
        {
            "prefetch": ["none", "ahead"] * 3,
            "round": [0, 0, 1, 1, 2, 2],
            "first": [2.0, 1.0] * 3,
            "warm": [1.0, 2.0] * 3,
        }
    )
    cache_variants_verdicts.judge_prefetch(lab, runs, pd.DataFrame({"bound": [1.0, 0.5]}, index=["none", "ahead"]))
    verdicts = [(r.claim, r.verdict) for r in read([lab.out / "03_cache_variants.jsonl"])]
    assert ("lru-512mb", "reproduced") in verdicts and ("fix-verify", "reproduced") in verdicts
    assert ("fix-hashmap", "impossible") not in verdicts
    prefetch = [verdict for claim, verdict in verdicts if claim == "prefetch-ahead"]
    assert prefetch == ["reproduced in ratio", "not reproduced"]
