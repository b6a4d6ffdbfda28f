"""What a sequence takes by its length, and a token's time by depth and kind of layer."""

import json
import re
from types import SimpleNamespace

import family_files
import kind_files
import model_files
import pytest
from click.testing import CliRunner

import kit
from kit.lab.claims import gates
from kit.lab.claims.records import Record
from kit.lab.commands import cli
from kit.lab.engines.table import EXACT
from kit.lab.explaining import depth
from kit.lab.predicting.remembered import by_kind, contexts, held, kind_of
from kit.model.budget import divide
from kit.model.hyperparameters import read_config
from kit.model.kvcache import KV_TYPES
from kit.trace import Span
from kit.units import format_bytes

STATE = 215_040  # bytes of tiny-qwen35
DEPTHS = [64, 4096, 16384, 32768]  # those within its context


def run(*arguments):
    found = CliRunner().invoke(cli.main, list(map(str, arguments)))
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture(scope="module")
def hybrid(folder):
    """Of a context of 100,000 positions."""

    def change(metadata, tensors):
        metadata["qwen35.context_length"] = 100_000

    return model_files.rewrite(model_files.write(folder, "tiny-qwen35"), folder / "deep.gguf", change)


@pytest.mark.parametrize("name", ["qwen35moe", "gemma4", "lfm2", "tiny-deepseek2", "tiny-gemma3"])
def test_what_is_said_is_what_a_cache_takes(folder, name):
    write = family_files.write if name in family_files.FILES else model_files.write
    file = kit.open(write(folder, name))
    for kv in KV_TYPES:
        config = kit.Transformer(kit.Weights(file)).config
        told = held(config, 50)
        if told["kv"][kv] is None:
            assert any(layer.mixer.head_dim % 32 for layer in config.layers)
            continue
        cache = kit.Transformer(kit.Weights(file), kv_dtype=kv).new_cache(64)
        assert told["states"] == cache.fixed_bytes and told["kv"][kv] == 50 * cache.bytes_per_position
    assert sum(map(len, by_kind(config).values())) == len(config.layers)


def test_inspect_prints_4k_32k_and_the_whole_context(hybrid, folder):
    told = json.loads(run("inspect", "--json", hybrid))["contexts"]
    assert [row["positions"] for row in told] == [4096, 32768, 100_000] and {row["states"] for row in told} == {STATE}
    assert [row["kv"]["float16"] for row in told] == [n * 2 * 2 * 64 * 2 for n in (4096, 32768, 100_000)]
    cells = [*(told[1]["kv"][kind] for kind in ("float32", "float16", "q8_0")), STATE]
    lines = [re.split("  +", line.strip()) for line in run("inspect", hybrid).splitlines()]
    assert ["32,768", *map(format_bytes, cells)] in lines
    with kit.open(model_files.write(folder, "tiny-llama")) as file:
        (only,) = contexts(kit.Transformer(kit.Weights(file)).config)
    assert only["states"] == 0, "its context is shorter than 4,096"


def test_a_budget_of_memory_has_room_for_states(hybrid):
    with kit.open(hybrid) as file:
        assert divide(file, "8 GiB", context=64).history == STATE + 64 * 2 * 2 * 64 * 4


def test_the_least_of_attention_grows_and_that_of_states_does_not(hybrid):
    with kit.open(hybrid) as file:
        config = kit.Transformer(kit.Weights(file)).config
    rows = depth.least(config, 1e6, 10.0)
    assert [row["positions"] for row in rows] == DEPTHS
    assert {row["delta net"] for row in rows} == {2 * STATE / 1e10}  # read and written
    assert [row["attention"] * 1e10 for row in rows] == pytest.approx([(n + 2) * 2 * 2 * 64 * 4 for n in DEPTHS])
    assert all(row[depth.REST] == 1e-4 for row in rows)
    for row in rows:
        assert row["token"] == pytest.approx(row["attention"] + row["delta net"] + row[depth.REST])


def test_a_window_ends_the_growth(folder):
    with kit.open(model_files.write(folder, "tiny-gemma3")) as file:
        config = kit.Transformer(kit.Weights(file)).config
    window = config.layers[0].mixer.window
    rows = depth.least(config, 0, 1.0, depths=(window // 2, window, 2 * window, 3 * window))
    near = [row[f"attention, window {window}"] for row in rows]
    assert near[0] < near[1] == near[2] == near[3] and len({row["attention"] for row in rows}) == 4


def test_what_is_measured_adds_up(hybrid):
    with kit.open(hybrid) as file:
        rows = depth.measured(file, depths=(64, 16384))
    assert [(row["positions"], row["by"]) for row in rows] == [(64, "measured"), (16384, "measured")]
    for row in rows:
        assert row["token"] == pytest.approx(row["attention"] + row["delta net"] + row[depth.REST])
        assert min(list(row.values())[2:]) > 0
    text = depth.table(rows).to_string()
    assert "64, measured" in text and "16,384, measured" in text


def test_a_layer_that_represents_several_counts_as_often(hybrid, monkeypatch):
    """Page 04 asked for it, and each layer counted once: 1 of 40 layers was compared with the least of all."""

    class Step:
        """A token of whose times all are known: 1 s of each kind of layer, 2 s of their products, 5 s outside the layers."""

        def __init__(self, weights, linear, attention, positions, times, kv):
            config = read_config(weights.file)
            kinds = {kind_of(layer.mixer): number for number, layer in enumerate(config.layers)}
            parts = [("attention", 1), ("delta net", 1)]
            spans = [Span(what, "", kinds[what], 0, 0, 0, seconds * 10**9, "") for what, seconds in parts]
            spans += [Span("linear", f"blk.{layer}.x.weight", layer, 0, 0, 0, 2 * 10**9, "") for layer in kinds.values()]
            trace = SimpleNamespace(clear=lambda: None, spans=[*spans, Span("token", "", -1, 0, 0, 0, 11 * 10**9, "")])
            self.model = SimpleNamespace(config=config, trace=trace, step=lambda *_: None)
            self.cache, self.mark, self.times = SimpleNamespace(back_to=lambda _: None), None, times

    monkeypatch.setattr(depth, "DecodeStep", Step)
    with kit.open(hybrid) as file:
        for times, rest in ((1.0, 5 + 4), (3.0, 5 + 3 * 4)):
            (row,) = depth.measured(file, depths=(64,), times=times)
            assert (row["attention"], row["delta net"], row[depth.REST]) == pytest.approx((times, times, rest))


def test_generate_measures_it(hybrid):
    told = json.loads(run("generate", "--tokens", "5,6", "-n", "3", "--by-depth", "--json", "--ignore-end", hybrid))["depths"]
    assert [(row["positions"], row["by"]) for row in told] == [(positions, "measured") for positions in DEPTHS]
    assert all(row["delta_net"] > 0 for row in told)
    refused = CliRunner().invoke(cli.main, ["generate", "--tokens", "5", "--by-depth", "--cache", "all", str(hybrid)])
    assert refused.exit_code == 2 and "--by-depth has no effect here" in refused.output


def test_choosing_positions_has_a_time_of_its_own(folder):
    """Its bytes grow with the depth; those of what is attended to do not, from top_k positions on. Reading the index and the
    best of its scores are apart."""
    with kit.open(kind_files.write(folder, "glm-dsa")) as file:
        config = kit.Transformer(kit.Weights(file)).config
        rows = depth.least(config, 1e6, 10.0, depths=(64, 1024))
        measured = depth.measured(file, depths=(64,))[0]
    index = [row["sparse latent, index"] * 1e10 for row in rows]
    assert [row["sparse latent, choosing"] for row in rows] == [0, 0]
    assert index == pytest.approx([2 * 64 * 4 * (n + 1) for n in (64, 1024)])
    assert rows[0]["sparse latent"] == pytest.approx(rows[1]["sparse latent"])
    assert min(measured[f"sparse latent{part}"] for part in ("", ", index", ", choosing")) > 0
    assert set(measured) == set(rows[0])


def test_the_table_of_a_page_is_recorded_beside_its_bounds(hybrid, monkeypatch):
    """So the gates read it: a row above its bandwidth, or one that falls with depth, is a warning of the run."""
    rows, lab = [], SimpleNamespace(machine=SimpleNamespace(read_gbps=1e-3), record=lambda **row: rows.append(Record(**row)))
    monkeypatch.setattr(depth, "last_level_cache", lambda: 0)
    with kit.open(hybrid) as file:
        table = depth.of_run(lab, file, 1.0, 0, 4096)
        depth.of_run(lab, file, 3.0, 1e6, 64)
    assert [row.quantity for row in rows] == [
        *(f"{EXACT.quantity}, after {positions} positions" for positions in ("64", "4,096")),
        f"{EXACT.quantity}, each layer for several, after 64 positions",
    ]
    assert [number for number, _ in gates.warnings(rows)] == [0, 1, 2], "faster than 1 MB/s"
    taken, bounds = ([seconds(table.loc[f"{row}, {by}", "token"]) for row in ("64", "4,096")] for by in ("measured", "least"))
    assert [row.median for row in rows[:2]] == pytest.approx(taken, rel=0.01)
    assert [row.lower for row in rows[:2]] == pytest.approx(bounds, rel=0.01)
    monkeypatch.setattr(depth, "last_level_cache", lambda: 1 << 40)
    with kit.open(hybrid) as file:
        depth.of_run(lab, file, 1.0, 0, 64)
    assert rows[-1].lower is None, "what the caches hold has no bound by memory"


def seconds(text):
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6, "min": 60}[unit]
