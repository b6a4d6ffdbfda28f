"""Which cache for experts: the command's table against replays by hand, the model of routing, decodes from slots."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import cells
import documented
import model_files
import numpy as np
import pytest
from click.testing import CliRunner

import kit
from kit.cache.policies.partitioned import ByLayer
from kit.cache.replay import replay_hits
from kit.errors import ReportError
from kit.gguf import pagecache
from kit.gguf.names import key_of
from kit.gguf.sources import largest_part
from kit.gguf.trained import TRAINED
from kit.lab.commands.cli import main
from kit.lab.findings import expert_ways, offload
from kit.lab.measuring.process import process_bytes
from kit.lab.predicting import expert_caches as costs
from kit.lab.predicting import routes, routing
from kit.lab.predicting.bounds import stack_distances
from kit.lab.predicting.expert_caches import ExpertBudget
from kit.lab.synthetic.write import synthesize
from kit.lab.tables import frame
from kit.model.slot_layout import SlotLayout

GIB = 1 << 30


def asked(*arguments):
    return CliRunner().invoke(main, ["experts", *map(str, arguments)])


def test_the_table_is_that_of_replays_on_the_second_half_and_the_bytes_give_the_seconds():
    run = asked("qwen", "--memory", "4GiB", "--disk", "2GB/s", "--json")
    assert run.exit_code == 0, run.output
    told = json.loads(run.output)
    assert set(told) == documented.keys("experts")
    capture = routes.capture("qwen")
    accesses, room = capture.requests(), 4 * GIB - process_bytes() - int(capture.dense_bytes.sum())
    late, sizes = np.array(accesses.tokens) > 64, np.array(accesses.sizes)
    assert told["room_bytes"] == room and told["cycle_bytes"] == capture.cycle
    rows = {row["policy"]: row for row in told["policies"]}
    for name, policy in {"LRU": kit.LRU(room), "LFU": kit.LFU(room), "MIN": kit.MIN(room)}.items():
        hits = replay_hits(accesses, policy)[1][late]
        missed = sizes[late][~hits].sum() / 64
        assert (rows[name]["hits"], rows[name]["bytes_read_per_token"]) == pytest.approx((hits.mean(), missed))
        used = told["dense_bytes"] + told["cycle_bytes"]
        assert rows[name]["seconds_per_token"] == pytest.approx(missed / 2e9 + used / told["read_gbps"] / 1e9)
    assert rows["hottest in hindsight, fixed"]["hits"] > rows["hottest of the first half, fixed"]["hits"]
    assert all(row["hits"] <= rows["MIN"]["hits"] for row in told["policies"])
    assert "LRU hits" in told["advice"] and f"{rows['LRU']['hits']:.0%}" in told["advice"]


def test_the_least_memory_is_the_least_that_reaches_the_speed():
    capture = routes.capture("qwen")
    dense = int(capture.dense_bytes.sum())
    budget = ExpertBudget(capture, 4 * GIB, dense, disk=2.0, read=20.0)
    for speed in (3, 5, 8):
        least = budget.least_memory(speed)
        less = [ExpertBudget(capture, least + more, dense, 2.0, 20.0) for more in (0, -8 << 20)]
        reached = [each.table(("LRU",))["tok/s"]["LRU"] for each in less]
        assert reached[0] >= speed > reached[1]
    assert budget.least_memory(1000) is None
    assert budget.least_memory(1e-3) == dense + process_bytes() + capture.expert_bytes.max()


def test_below_one_token_the_advice_says_so_and_when_all_fits_too():
    told = lambda name, room: json.loads(asked(name, "--memory", room, "--disk", "2GB/s", "--json").output)  # noqa: E731
    short, some, most, whole = told("gptoss", "1800MiB"), told("qwen", "4GiB"), told("qwen", "10GiB"), told("gemma", "40GiB")
    assert short["room_bytes"] < short["cycle_bytes"] and "less than" in short["advice"]
    assert [word in each["advice"] for each in (some, most) for word in ("faster", "the most")] == [True, False, False, True]
    hits = {row["policy"]: row["hits"] for row in whole["policies"]}
    assert whole["room_bytes"] > most["room_bytes"] and hits["LRU"] == hits["LFU"] == hits["MIN"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("qwen", "--memory", "800MiB"), "has no room for experts after the dense weights; give more than"),
        (("qwen", "--memory", "x"), "--memory or --disk"), (("qwen", "--memory", "4GiB", "--disk", "0GB/s"), "--disk 0"),
        (("nowhere.csv", "--memory", "4GiB"), "nowhere.csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_one_error(arguments, message):
    run = asked(*arguments)
    assert run.exit_code == 2 and message in run.output and run.output.startswith("kit: error:")


def test_without_routes_they_are_drawn_and_the_answer_says_so(tmp_path):
    model = synthesize(tmp_path / "moe.gguf", "tiny-qwen3moe")
    run = asked(model, "--memory", "514MiB", "--disk", "2GB/s", "--json")
    assert run.exit_code == 0, run.output
    told = json.loads(run.output)
    assert (told["decoded"], told["used"], told["experts"]) == (128, 2, 8) and told["basis"][0].startswith("simulated")
    dense = synthesize(tmp_path / "dense.gguf", "tiny-llama")
    assert "has no experts" in asked(dense, "--memory", "1GiB").output


def test_a_trained_model_is_taken_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_MODELS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    synthesize(tmp_path / TRAINED["smollm2-135m"].file, "tiny-qwen3moe")  # a mixture in the place of the dense model
    run = asked("smollm2-135m", "--memory", "514MiB", "--json")
    assert run.exit_code == 0 and json.loads(run.output)["disk_gbps"] > 0, run.output


def test_sizes_come_from_the_model_where_the_record_has_none(tmp_path):
    model = synthesize(tmp_path / "moe.gguf", "tiny-qwen3moe")
    rows = "".join(f"{layer},{(token + place) % 8}\n" for token in range(20) for layer in range(2) for place in range(2))
    (tmp_path / "moe.csv").write_text("layer,expert\n" + rows)
    run = asked(tmp_path / "moe.csv", model, "--memory", "514MiB", "--disk", "2GB/s", "--json")
    assert run.exit_code == 0 and json.loads(run.output)["used"] == 2
    (tmp_path / "deep.csv").write_text("layer,expert\n5,1\n")
    assert "uses layer 5 and expert 1" in asked(tmp_path / "deep.csv", model, "--memory", "1GiB", "--disk", "2GB/s").output


# --- the model of routing -------------------------------------------------------------------------------------------------


def moments(record) -> tuple[float, float]:
    """(share of uses that fall on the hottest quarter of each layer's experts, share that the layer's last token used too)."""
    decoded = record.token >= record.prompt
    counts = np.zeros((record.layers, record.experts), np.int64)
    np.add.at(counts, (record.layer[decoded], record.expert[decoded]), 1)
    hottest = -np.sort(-counts, axis=1)[:, : max(1, record.experts // 4)].sum() / max(1, counts.sum())
    return float(hottest), float(routing.returned(record, 1))


def fit(record, grid: int = 7) -> routing.Fit:
    """The parameters whose draws have the record's two moments, by three rounds of a grid around the best so far."""
    target, used, tokens = np.array(moments(record)), max(1, round(record.used)), len(record.decoded)
    centre, width = np.array([0.8, 0.45]), np.array([0.8, 0.45])
    for _ in range(3):
        points = [centre + width * np.array([a, b]) for a in np.linspace(-1, 1, grid) for b in np.linspace(-1, 1, grid)]
        points = [(max(0.0, skew), min(0.98, max(0.0, back))) for skew, back in points]
        gaps = [float(np.abs(np.array(moments(routing.draw(record, *point, used, tokens))) - target).max()) for point in points]
        centre, width = np.array(points[int(np.argmin(gaps))]), width / 3
    return routing.Fit(*map(float, centre), *map(float, target))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "gptoss")) for name in routing.FITTED])
def test_the_fit_is_that_of_the_capture_and_its_draws_have_the_lru_curve(name):
    capture = routes.capture(name)
    found = fit(capture)
    np.testing.assert_allclose(found, routing.FITTED[name], atol=0.01)
    drawn = routing.draw(capture, found.skew, found.back, round(capture.used), len(capture.decoded), seed=1)
    np.testing.assert_allclose(moments(drawn), moments(capture), atol=0.05)
    curves = []
    for each in (capture.requests(prompt=False), drawn.requests()):
        distances = stack_distances(each)
        curves.append([((distances >= 0) & (distances <= share * capture.cycle)).mean() for share in (1, 2, 4, 8)])
    np.testing.assert_allclose(*curves, atol=0.09)


# --- policies by layer, fixed sets ----------------------------------------------------------------------------------------


def test_a_cap_for_each_layer_is_a_policy_for_each_layer():
    accesses = routes.capture("gptoss").requests().counted()
    hits = replay_hits(accesses, ByLayer(36 * 9, layers=36))[1]
    layer = np.array([int(key.split(".")[1]) for key in accesses.keys])
    for number in (0, 17, 35):
        part = [(key, 1) for key in np.array(accesses.keys)[layer == number].tolist()]
        alone = replay_hits(kit.cache.traces.requests(part), kit.LRU(9))[1]
        np.testing.assert_array_equal(hits[layer == number], alone)


# --- decodes --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(a tiny mixture, its own routes)."""
    folder = tmp_path_factory.mktemp("experts")
    model, out = synthesize(folder / "moe.gguf", "tiny-qwen3moe"), folder / "routes.jsonl"
    made = ["generate", str(model), "--tokens", "1,2", "-n", "14", "--ignore-end", "--routes", str(out)]
    told = CliRunner().invoke(main, made)
    assert not told.exit_code, told.output
    return model, out


@pytest.mark.slow
def test_every_way_gives_the_same_logits_and_slots_hit_as_the_replay_does(recorded):
    model, out = recorded
    with kit.open(model) as file:
        _, future = costs.sorted_routes(routing.routes_of(file, out), 13)
        size = SlotLayout(file).size
    runs = [expert_ways.decode_offloaded(model, str(out), name, 13, 9 * size, warm=True) for name in offload.OFFLOADS]
    assert len({run.digest for run in runs if run.digest}) == 1 and len(runs[0].seconds) == 13
    for run in runs:
        way = offload.OFFLOADS[run.way]
        if way.holds == "slots" and not way.ahead:
            policy = costs.policy_of(way.policy, 9 - 2, future)
            assert sum(run.hits) == kit.replay(future.counted(), policy).hits, run.way
            assert sum(run.asked) == len(future)
    assert runs[0].hits == [0] * 13


def test_slots_of_a_split_mixture_read_the_file_that_each_matrix_lies_in(recorded, tmp_path):
    """They read all matrices from the first file, at the offsets of the others."""
    model, out = recorded
    split, _ = model_files.split(model, tmp_path, 20)
    ways = "mapped", "slots past it, 2 readers", "slots through the page cache"
    runs = [expert_ways.decode_offloaded(path, str(out), way, 13, 1 << 22) for path in (model, split) for way in ways]
    assert len({run.digest for run in runs}) == 1
    assert pagecache.resident_fraction(split) > 0.01 and pagecache.drop(split) and pagecache.resident_fraction(split) <= 0.01


def test_the_notebook_reads_the_largest_part_of_a_split_mixture(recorded, tmp_path):
    first, second = model_files.split(recorded[0], tmp_path, 2)
    source, asked = next(cell.source for cell in cells.read("10_experts").cells if cell.id == "verdicts-disk"), []
    reads = SimpleNamespace(in_turns=lambda path, readers, nbytes, seconds: asked.append((path, nbytes)))
    mine = SimpleNamespace(expert_bytes=np.array([1 << 40]))
    exec(source.partition("lab.verdict")[0], {"path": first, "disk": reads, "mine": mine, "largest_part": largest_part})
    assert {*asked} == {(second, second.stat().st_size // 4)}


def test_the_factor_of_page_10_is_of_the_prediction_that_did_not_know_what_was_read():
    """Of one that was given the bytes that were read it was near 1 whatever the replay explained."""
    source = next(cell.source for cell in cells.read("10_experts").cells if cell.id == "live-table")
    name = next(iter(offload.OFFLOADS))
    seconds = {"seconds": 3.0, "disk": 1.0, "output": np.nan}
    late = {"read": np.array([5e9, 5e9]), "beyond": np.array([1.0, 1.0])}
    run = SimpleNamespace(way=name, median=seconds.get, late=late.get, mean=lambda what: 5e9, hit_rate=0.25)
    live = SimpleNamespace(expert_bytes=np.array([0, 10]), cycle=40)
    facts = {"routes": live, "compute": {offload.OFFLOADS[name].holds: 1.0}, "output": 1.0, "keep": 100, "most": 100,
        "dense": 50}  # fmt: skip
    lab = SimpleNamespace(machine=SimpleNamespace(read_gbps=10.0))
    ways = SimpleNamespace(OFFLOADS=offload.OFFLOADS, record_tokens=lambda *_: None)
    named = {"facts": facts | {"fastest": 2.0, "told": "", "under": ""}, "runs": [run], "lab": lab, "path": Path("m"), "np": np,
        "frame": frame}  # fmt: skip
    named |= {"expert_ways": ways, "replayed": lambda *_: (np.array([1e9, 1e9]), np.array([0.5, 0.5]))}
    exec(source, named)  # with the list of its loops in one namespace
    assert named["table"].loc[name].to_dict() == {
        "least, s": 0.5, "predicted, s": 1.5, "by bytes read, s": 5.5, "measured, s": 3.0, "factor": 0.5,
        "MB by replay": 1000.0, "MB per token": 5000.0, "hits": 0.25,
    }  # fmt: skip


def test_the_notebook_takes_each_format_with_a_model_and_a_mixture_without_a_record(recorded, tmp_path):
    """A record without sizes takes the model's; what the decode reads from its file are the same routes."""
    model, out = recorded
    own = routes.read_routes(out)
    rows = list(zip(own.token.tolist(), own.layer.tolist(), own.expert.tolist(), strict=True))
    (tmp_path / "moe.csv").write_text(
        "layer,expert\n" + "".join(f"{layer},{expert}\n" for token, layer, expert in rows if token)
    )
    lines = [json.dumps({"layer": layer, "token": token, "ids": [expert]}) for token, layer, expert in rows if token]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    for number, path in enumerate((out, tmp_path / "moe.csv", tmp_path / "lines.jsonl", model)):
        found = routing.given(str(path), str(model))
        assert found.cycle == own.cycle and (path == model or found.decoded == own.decoded)
        again = routing.record_for(model, str(path), found, 13, tmp_path / str(number))
        with kit.open(model) as file:
            assert routing.routes_of(file, again).decoded == found.decoded
    assert routing.record_for(model, "qwen", routes.capture("qwen"), 13, tmp_path / "drawn").endswith("routes.jsonl")


def test_no_way_that_runs_is_one_error(recorded, tmp_path, monkeypatch):
    """The page stopped in the middle with the maximum of nothing."""
    model, out = recorded
    real = expert_ways._child
    monkeypatch.setattr(expert_ways, "_child", lambda *given, **how: real(*given, **how) if how else killed())
    with pytest.raises(ReportError, match=r"no way ran .*slots past it, LFU: killed"):
        expert_ways.measured(model, str(out), tmp_path, tokens=2, ways=("slots past it, LFU",))


def killed():
    raise ReportError("killed")


def test_a_dense_model_leaves_the_live_part_to_a_generated_mixture(recorded, tmp_path):
    """A run of all notebooks on a dense model ended with this one failed: it has no expert_ways."""
    mixture, dense = str(recorded[0]), str(synthesize(tmp_path / "dense.gguf", "tiny-llama"))
    assert (routing.moe(mixture), routing.moe(dense), routing.moe("")) == (mixture, "", "")


def test_a_slot_that_holds_another_expert_changes_the_logits(recorded, monkeypatch):
    model, out = recorded
    right = expert_ways.decode_offloaded(model, str(out), "mapped", 13, 0, warm=True).digest
    reads = SlotLayout.reads
    monkeypatch.setattr(SlotLayout, "reads", lambda self, layer, expert, *how: reads(self, layer, expert ^ (layer == 0), *how))
    assert expert_ways.decode_offloaded(model, str(out), "slots past it, 2 readers", 13, 1 << 22, warm=True).digest != right


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="needs O_DIRECT")
def test_the_ways_of_a_run_are_measured_in_a_child(recorded, tmp_path, monkeypatch):
    model, out = shutil.copy(recorded[0], tmp_path / "fresh.gguf"), recorded[1]  # pages that nobody has mapped
    monkeypatch.setattr(expert_ways, "missing_rights", lambda swap: ["root"])
    facts, runs = expert_ways.measured(
        model, str(out), tmp_path, share=0.8, tokens=13, ways=("mapped", "slots past it, 2 readers")
    )
    assert [run.way for run in runs] == ["slots past it, 2 readers"] and facts["limit"] is None
    assert min(facts["compute"].values()) > 1
    assert len(runs[0].disk) == len(runs[0].output) == 13 and facts["fastest"] >= max(runs[0].disk) >= facts["disk"] > 0


def test_after_each_token_the_disk_is_read_as_the_way_reads_it(recorded, monkeypatch):
    """Slots by their readers, a map by faults or by asking for what a layer uses; what comes beside slots as past the cache."""
    asked = []
    monkeypatch.setattr(expert_ways.disk, "random_gbps", lambda _, *how: asked.append(how[:2] + how[4:]) or len(asked))
    monkeypatch.setattr(expert_ways, "by_map", lambda _, seed, *how: asked.append(how) or len(asked))
    with kit.open(recorded[0]) as file:
        matrix = max(info.nbytes for name, info in file.tensors.items() if "_exps." in name) // 8
    for name, how in {
        "mapped, no read-ahead": ("random", 0), "mapped, routed asked for": ("willneed", 2), "mapped": ("", 0),
        "slots past it, 4 readers": (4, matrix, True),
    }.items():  # fmt: skip
        asked.clear()
        run = expert_ways.decode_offloaded(recorded[0], str(recorded[1]), name, 5, 1 << 22, warm=True)
        assert asked == 5 * [how] and run.disk == run.beyond == [1, 2, 3, 4, 5]
        assert run.median("disk") == 4 and min(run.output) > 0
    asked.clear()
    run = expert_ways.decode_offloaded(recorded[0], str(recorded[1]), "slots through the page cache", 2, 1 << 22, warm=True)
    assert asked == 2 * [(2, matrix, False), (2, matrix, True)] and run.disk == [1, 3] and run.beyond == [2, 4]


def test_what_is_in_memory_tells_no_speed_of_a_disk(recorded, tmp_path, monkeypatch):
    path = shutil.copy(recorded[0], tmp_path / "fresh.gguf")
    with kit.open(path) as file:
        asked = []
        monkeypatch.setattr(expert_ways.disk, "random_gbps", lambda *how: asked.append(how) or 5.0)
        assert expert_ways.by_map(file, 0, "willneed", 2) == 5.0 and asked  # it was just written: all is in memory


def test_a_layer_waits_for_what_its_arithmetic_does_not_hide():
    """Against a walk from event to event: the next expert begins when the one before is done and its bytes are there."""
    draw, gbps, per_byte = np.random.default_rng(3), 1.5, 0.7e-9
    rows = [(token, layer, expert) for token in range(5) for layer in range(3) for expert in range(8)]
    size, hit = np.repeat(draw.integers(1, 9, 15), 8) * 10**6, draw.random(len(rows)) < 0.6
    keys = [key_of(layer, expert) for _, layer, expert in rows]
    future = kit.cache.traces.Requests(keys, size.tolist(), [token for token, *_ in rows])
    missed, waited = costs.waited(future, hit, gbps, per_byte)
    for token in range(5):
        total = 0.0
        for layer in range(3):
            here = [n for n, row in enumerate(rows) if row[:2] == (token, layer)]
            clock = read = 0.0
            for n in here:
                if not hit[n]:
                    read += size[n] / gbps / 1e9
                    total, clock = total + max(0, read - clock), max(read, clock)
                clock += size[n] * per_byte
        assert waited[token] == pytest.approx(total)
        assert missed[token] == sum(size[n] for n, row in enumerate(rows) if row[0] == token and not hit[n])
    assert (costs.waited(future, np.ones(len(rows), bool), gbps, per_byte) == 0).all()


def test_a_fastest_way_that_another_run_may_pass_is_undecided():
    """Page 10 named another fastest policy in each run: 0.76 times in one, 1.20 times in the next."""
    told = expert_ways.fastest({"mapped": 0.5, "LRU": 0.058, "LFU": 0.057})
    apart = expert_ways.fastest({"mapped": 0.5, "slots past it": 0.05})
    named = [re.findall('"(.*?)"', text) for text in (told, apart)]
    assert named == [["LFU", "LRU"], [expert_ways.named("slots past it")]] and "57.0 ms" in told and "50.0 ms" in apart
    assert expert_ways.gained(1.1) == "1.1 times (uncertain)", "the title left out what the advice said"
    assert expert_ways.gained(12.34) == "12.3 times as fast"
