"""Explain: access orders, costs and predictions of a file that runs and one that does not; the command in all its forms."""

import contextlib
import itertools
import json
import re
import shlex
import time
from dataclasses import replace

import cells
import documented
import matplotlib.pyplot as plt
import model_files
import numba
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from invented import MACHINE

import kit
from kit.lab.commands import cli
from kit.lab.explaining import quants, sentences, tables
from kit.lab.explaining import to_measure as measuring
from kit.lab.explaining.lines import MOST
from kit.lab.explaining.measured_ways import measure
from kit.lab.explaining.study import Study
from kit.lab.measuring.measurements import Reading
from kit.lab.measuring.process import process_bytes
from kit.lab.predicting.measured import DTYPES, FUSED, Cost, measure_costs
from kit.lab.predicting.order import order_of
from kit.lab.predicting.ways import BLOCKS, LAZY, Way, predict, used_tensors
from kit.units import format_bytes, format_seconds


@pytest.fixture(scope="module")
def path(folder):
    return model_files.write(folder, "tiny-llama", "Q4_K_M")


@pytest.fixture(autouse=True)
def no_engines(monkeypatch):
    """Each is a process of seconds: tests/test_peers.py runs them, and one test here."""
    monkeypatch.setattr("kit.lab.explaining.peers.readings", lambda *_, **__: {})


@pytest.fixture(scope="module")
def odd(folder):
    """An architecture that the kit does not know, with a name that a terminal must not obey."""

    def change(metadata, tensors):
        metadata["general.architecture"] = "bloom"
        tensors["\x1b[31mevil\n.weight"] = tensors.pop("blk.0.ffn_up.weight")

    return model_files.rewrite(model_files.write(folder, "tiny-llama"), folder / "odd.gguf", change)


@pytest.fixture(scope="module")
def study(path):
    return Study(kit.open(path), lambda: MACHINE, memory=2 << 20, tokens=3)


def test_the_order_is_that_of_a_decode(path):
    with kit.open(path) as file:
        order = order_of(file, 2)
        live = kit.Weights(file, kit.NoCache())  # which asks for every tensor, as a walk does
        kit.Transformer(live).logits([1])
        accessed = [span.tensor for span in live.trace.spans if span.what == "access"]
    assert not order.reason
    assert order.tokens == [accessed, accessed]
    assert len(order.seconds) == 2 and 0 <= order.rest <= max(order.seconds)


def test_tensors_of_four_dimensions_have_a_cost(folder):
    """A convolution's weights and a stack of experts of such, in the file of a model that does not run."""

    def change(metadata, tensors):
        tensors["blk.0.conv.weight"] = np.ones((8, 3, 8, 32), np.float32)
        tensors["blk.1.ffn_gate_exps.weight"] = np.ones((2, 4, 8, 32), np.float32)

    path = model_files.rewrite(model_files.write(folder, "tiny-llama"), folder / "four.gguf", change)
    with kit.open(path) as file:
        order = order_of(file, 2)
        names = [name for name in order.names if ".conv." in name or "_exps." in name]
        assert order.reason and len(names) > 1
        costs = measure_costs(file, names)
        assert {kind.shape for kind in costs} == {(192, 32), (32, 32)} and all(
            min(cost.load.values()) >= 0 for cost in costs.values()
        )


def test_a_file_that_cannot_be_run_is_walked(odd):
    with kit.open(odd) as file:
        order = order_of(file, 2)
        assert "bloom" in order.reason.lower()
        assert sorted(order.names) == sorted(set(file.tensors) - {"token_embd.weight"})  # it has an output matrix
        found = measure(Way("HashMap"), file, order, 2)
        again = measure(BLOCKS, file, order, 2)
    assert found.row["hit_rate"] == 1.0 and len(found.samples) == 2
    assert np.allclose(found.result, again.result, atol=1e-4)


# --- predictions: costs that are known, so that seconds can be added up by hand --------------------------------------


@pytest.mark.parametrize("way", [LAZY, Way("LRU", 2 << 20), Way("Pinned", 2 << 20, "float16"), Way("CyclicAware", 3 << 20)])
def test_a_live_decode_hits_what_was_predicted(study, way):
    parts = used_tensors(study.file, study.order)
    found = predict(way, parts, study.order, study.costs, MACHINE)
    real = measure(way, study.file, study.order, len(study.order.tokens) - 1)
    assert real.row["hit_rate"] == pytest.approx(found.hit_rate)
    assert real.row["resident"] <= found.held


# --- tables ----------------------------------------------------------------------------------------------------------


def test_no_time_of_a_use_reads_as_nothing(study):
    """Where the difference of two measurements is below zero, or a program fetches a vector in its rest, none is told."""
    ones = dict.fromkeys(DTYPES, 1e-3)
    for order in (study.order, replace(study.order, reason="it cannot run", programs={})):
        parts = used_tensors(study.file, order)
        costs = {part.kind: Cost(dict.fromkeys(DTYPES, 0.0), ones, dict.fromkeys(FUSED, 1.0)) for part in parts.values()}
        table = tables.families(study.file, order, costs)
        assert table.loc["attn_k", "each time"] == table.loc["attn_k", "kept"] == pytest.approx(2e-3)
        told = tables.formatted(table)
        assert not told.isin(["0 s"]).any().any()
        assert told.loc["attn_norm", "from blocks"] == ("2.00 s" if order.reason else "–")


def test_a_use_that_is_not_kept_has_a_price_of_its_own(study):
    vectors = [cost for kind, cost in study.costs.items() if len(kind.shape) == 1]
    least = min(cost.load["float32"] + cost.multiply["float32"] for cost in vectors)
    said = sentences.of_a_use(study)
    assert f"took {format_seconds(least)} (" in said and f"for the {len(study.order.tokens[-1])} uses" in said
    assert "its 5 vectors" in said  # two norms in each of two layers, and one at the end


def test_a_hostile_name_is_printable_in_tables_and_figures(odd):
    with kit.open(odd) as file:
        order = order_of(file, 2)
        ones = dict.fromkeys(DTYPES, 1.0)
        costs = {part.kind: Cost(ones, ones, dict.fromkeys(FUSED, 1.0)) for part in used_tensors(file, order).values()}
        names = tables.families(file, order, costs).index
    assert any("evil" in name for name in names) and all(name.isprintable() for name in names)


def test_a_label_reads_as_a_person_would_say_it():
    said = {way: way.label for way in (LAZY, BLOCKS, Way("HashMap"), Way("LRU", 64 << 20), Way("Pinned", 64 << 20, "float16"))}
    assert list(said.values()) == [
        "dequantized each time, float32", "blocks, exact products", "all kept, float32", "LRU of 64.00 MiB, float32",
        "64.00 MiB pinned, float16",
    ]  # fmt: skip
    assert Way("Unbounded").label == Way("HashMap").label


@given(st.lists(st.tuples(st.text(max_size=200), st.text(max_size=9)), min_size=1, max_size=5))
def test_text_fits_the_terminal_and_cannot_move_its_cursor(rows):
    frame = pd.DataFrame({"a number": [value for _, value in rows]}, index=pd.Index([name for name, _ in rows], name="name"))
    lines = tables.as_text(frame).split("\n")
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert len(line) <= MOST and line.isprintable()


def test_the_sum_by_hand_on_page_09_takes_cold_misses_too(tmp_path, monkeypatch, invented_machine):
    """Models beyond the caches alone have them: the page's gate failed where no test looked."""
    monkeypatch.setattr("kit.lab.predicting.ways.last_level_cache", lambda: 0)
    ran = cells.run("09_your_model", until="by-hand", out=tmp_path)
    assert ran["cold"] > 0 and sum(ran["terms"].values()) + ran["from_disk"] == pytest.approx(ran["now"].seconds)


# --- printed commands ---


def printed(text: str) -> list[list[str]]:
    """The commands of an output as a shell reads them, those in sentences too."""
    lines = re.findall(r"^    (kit .*)$", text, re.MULTILINE) + re.findall(r"`(kit \w+ [^`]+)`", text.replace("\n", " "))
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize(
    ("model", "short", "way"),
    [
        pytest.param("tiny-llama", 0, "blocks", id="fits"),
        pytest.param("tiny-llama", 200_000, " pinned", id="does not fit", marks=pytest.mark.slow),
        pytest.param("tiny-qwen3moe", 60_000, " of slots", id="a mixture that does not fit", marks=pytest.mark.slow),
    ],
)
def test_every_printed_command_runs_as_printed(folder, tmp_path_factory, monkeypatch, model, short, way):
    """With a path that a shell would split, within the memory that was given."""
    monkeypatch.setattr("kit.lab.measuring.machine.probe", lambda leave_out: MACHINE)
    monkeypatch.setattr("kit.model.budget.process_bytes", process_bytes)  # not pytest's
    for where in ("budget", "footprint"):  # whatever has run on this machine
        monkeypatch.setattr(f"kit.model.{where}.added_by_slots", lambda file: 0)
    path = model_files.write(tmp_path_factory.mktemp("it's a folder"), model, "Q4_K_M")
    options = []
    if short:
        with kit.open(path) as file:
            study = Study(file, lambda: MACHINE, 1, 2)
            options = ["--memory", f"{study.room.beside + sum(use.nbytes for use in study.uses) - short}B"]
    told = CliRunner().invoke(cli.main, ["explain", str(path), "--tokens", "2", *options])
    assert told.exit_code == 0, told.output
    commands = [command for command in printed(told.stdout) if command != ["explain", "http://127.0.0.1:8080"]]  # a server
    assert commands and all(str(path) in command for command in commands)
    assert not short or (options[1].removesuffix("B") in shlex.join(commands[0]))
    assert way in told.stdout
    if short:  # six processes for each command of quants: those of what fits are real
        invented = lambda paths, value: dict.fromkeys(itertools.product(paths, quants.WAYS), value)  # noqa: E731
        monkeypatch.setattr(quants, "_speeds", lambda paths, *_: (invented(paths, [1.0]), invented(paths, 1), 9.0, 0.0))
    few = {"generate": ["-n", "2"], "quants": ["--tokens", "20", "--rounds", "1"]}
    for command in commands:
        ran = CliRunner().invoke(cli.main, command + few.get(command[0], []))
        assert ran.exit_code == 0, (command, ran.output)


# --- controls --------------------------------------------------------------------------------------------------------


def test_controls_when_somebody_is_there(tmp_path, monkeypatch, invented_machine):
    """In JupyterLab notebook 09 hands the kit's figure to two controls; its largest memory is the whole model's."""
    made = []
    monkeypatch.setattr("ipywidgets.interact", lambda draw, **controls: made.append((draw, controls)))
    monkeypatch.setenv("JPY_SESSION_NAME", "notebook")
    ran = cells.run("09_your_model", until="explore", out=tmp_path)
    draw, controls = made[0]
    assert controls["nbytes"].value == ran["limit"] and ran.titles["explore"] == []
    draw(nbytes=controls["nbytes"].options[-1][1], dtype=controls["dtype"].options[1])
    left, right = plt.gcf().axes
    assert left.get_title("left") == f"{format_bytes(ran['scan'])}, float16: 100% at best"
    labels, time = [label.get_text() for label in left.get_yticklabels()], [bar.get_width() for bar in right.patches]
    assert labels[-1] == "blocks" and {*labels} == {*ran["given"], "blocks"} and left.get_ylim() == right.get_ylim()
    assert [name for name, width in zip(labels, time, strict=True) if np.isnan(width)] == ["MIN"]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.machine.probe", lambda leave_out: MACHINE)
    return lambda *arguments: CliRunner().invoke(cli.main, ["explain", *map(str, arguments)])


def test_the_command_prints_tables_that_fit(run, odd):
    result = run(odd, "--room", "1MiB", "--tokens", "3", "--all")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output and "No token was generated" in result.output
    assert max(len(line) for line in result.output.splitlines() if not line.startswith(("    ", "["))) <= 100
    for title in ("WHERE A TOKEN'S TIME GOES", "ROOFLINE", "HITS BY POLICY", "EXACTNESS", "OPPORTUNITIES", "ALL WAYS"):
        assert title in result.output


def test_ctrl_c_leaves_what_is_there_and_progress_is_told_without_a_terminal(run, odd, monkeypatch):
    def interrupted(study, best=2):
        raise KeyboardInterrupt

    monkeypatch.setattr("kit.lab.explaining.sentences.measure_best", interrupted)
    result = run(odd, "--room", "1MiB", "--tokens", "2")
    assert result.exit_code == 130 and "OPPORTUNITIES" not in result.stdout and "parameters in" in result.stdout
    assert "s] recording a decode" in result.stderr
    assert result.stderr.endswith("kit: interrupted; results so far are above\n")


def test_ctrl_c_before_anything_is_known_prints_no_json(run, odd, monkeypatch):
    """It printed an object with a schema_version and nothing else, which a script takes for an answer."""

    def interrupted(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("kit.lab.report.ahead.kernels", interrupted)
    result = run(odd, "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "kit: interrupted\n")


def texts_of_bytes(told, key="") -> list[str]:
    """Texts of sizes among plain data, but in sentences and names of ways."""
    if isinstance(told, dict):
        return [text for name, value in told.items() for text in texts_of_bytes(value, name)]
    if isinstance(told, list):
        return [text for value in told for text in texts_of_bytes(value, key)]
    named = key in ("way", "name", "says", "command", "no_quality", "not_measured", "memory_text", "path")
    return [told] if isinstance(told, str) and not named and re.search(r"\d (B|KiB|MiB|GiB|ms|s)\b", told) else []


def test_the_command_as_json(run, path, tmp_path):
    trace = tmp_path / "trace.csv"
    pd.DataFrame({"tensor": ["a", "b"] * 3, "nbytes": [1 << 20] * 6, "token": [0, 0, 1, 1, 2, 2]}).to_csv(trace)
    result = run(path, "--room", "1MiB", "--tokens", "2", "--trace", trace, "--json")
    told = json.loads(result.stdout)
    assert set(told) == documented.keys("explain")
    assert told["runs"] and told["memory_bytes"] == 1 << 20
    assert {row["policy"]: row["hit_rate"] for row in told["policies"]}["Pinned"] == 0.5
    assert len(told["measured"]) >= 1 and all(found["seconds"] for found in told["measured"])
    limit = told["answer"]["limit"]
    assert limit["tokens_per_second"] == pytest.approx(1 / limit["seconds"]) and told["answer"]["reached"][0]["seconds"] > 0
    assert all(isinstance(row["size_bytes"], (int, float)) and row["bytes_per_token"] > 0 for row in told["holds"])
    assert not texts_of_bytes(told), "numbers, no text of them"
    assert {row["cpu_float32"] for row in told["exactness"]} == {"equal"}
    assert [row["precision"] for row in told["quality"]] == ["float32", "float16", "bfloat16", "int16 activations",
        "int8 activations"]  # fmt: skip
    assert all(row["kl"] > 0 for row in told["quality"][1:]) and not told["no_quality"]


@pytest.mark.parametrize(("arguments", "message"), [
    (("--memory", "much"), "is not a size"), (("--memory", "0"), "--memory 0 holds nothing"),
    (("--memory", "300MiB"), "the process alone takes"), (("--tokens", "1"), "see kit explain --help"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line(run, path, arguments, message):
    result = run(path, *arguments)
    assert result.exit_code == 2 and message in result.output and len(result.output.splitlines()) == 1


def test_an_architecture_that_cannot_be_run_is_refused_before_the_first_cell(odd, tmp_path):
    for arguments, reason in (
        (["generate", "--tokens", "1", str(odd)], "BloomForCausalLM has no parameter for the tensor"),
        (["reproduce", "--model", str(odd), "--only", "01", "--out", str(tmp_path / "r")], "'bloom' is not supported"),
    ):
        found = CliRunner().invoke(cli.main, arguments)
        assert found.exit_code == 2 and reason in found.output and str(odd) in found.output
        assert found.output.count("\n") == 1 and not (tmp_path / "r").exists()


def test_faster_is_what_was_measured_where_it_was(study):
    now, other, third = study.predictions[:3]
    measured = {each.way: Reading(each.way.label, "", (seconds,)) for each, seconds in ((now, 8.0), (other, 2.0))}
    table = tables.advice_table(study.predictions, measured)
    faster, told = table["faster"], tables.formatted(table)["times as fast"]
    assert faster[now.way.label] == 1.0 and faster[other.way.label] == 4.0
    assert faster[third.way.label] == pytest.approx(now.seconds / third.seconds)
    second, last = (tables.in_tables(each.way.label) for each in (other, third))
    assert told[second] == "4.0x (measured)" and told[last].endswith("x (predicted)")
    only = tables.formatted(tables.advice_table(study.predictions, {other.way: measured[other.way]}))["times as fast"]
    assert only.str.endswith("(predicted)").all(), "a ratio to a first row that was not measured is none of measured times"


def test_what_a_file_is_stands_there_while_kernels_are_compiled_which_takes_nothing_of_the_minute(study, monkeypatch, capsys):
    from kit.lab.commands import explain

    told, made = [], []

    @contextlib.contextmanager
    def making(work, helping):
        made.extend(work)
        yield
        told.append(capsys.readouterr().out)
        time.sleep(0.02)

    monkeypatch.setattr("kit.lab.report.ahead.making", making)
    stop = lambda study: told.append(study.minute) or (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    monkeypatch.setattr("kit.lab.explaining.sentences.measure_engines", stop)
    how = {"tokens": 3, "trace": None, "via": "", "skew": 0.0, "thorough": False, "whole": None, "again": False}
    with pytest.raises(SystemExit, match="130"):
        explain._explain(study.file, False, False, memory=2 << 20, **how)
    assert "tensors" in told[0] and told[1] > 50.02
    assert {
        ("multiplied", "Q4_K", 5, "float32"),
        ("first token", "fused", "fused", "float32", None),
        ("dequantized", "F32", None),
    } <= {*made}


def test_a_minute_does_not_count_the_compiling_of_kernels(study, monkeypatch):
    """On a fresh machine the first decode compiles for longer than a minute, and the ways are measured all the same."""
    order, costs = study.order, study.costs

    def recorded(*_):
        numba.njit(lambda x: x + 1)(3)
        return order

    monkeypatch.setattr("kit.lab.explaining.study.order_of", recorded)
    fresh = Study(study.file, lambda: MACHINE, memory=2 << 20, tokens=3, again=True)  # or the pass that ``study`` kept is its
    assert fresh.order is order and 0 < sum(fresh.compiled) < time.perf_counter() - fresh.began
    fresh.__dict__["costs"] = costs
    fresh.minute, fresh.compiled = time.perf_counter() - fresh.began - 50, [100.0]
    assert len(measuring.measure_best(fresh, 0)) == 1
    fresh.compiled, fresh.measured = [], {}
    assert not measuring.measure_best(fresh, 0)


def test_what_quality_measures_is_known_from_then_on(path, monkeypatch):
    table = pd.DataFrame({"same": {"int8 activations": 0.98}, "kl": {"int8 activations": 0.0079}})
    monkeypatch.setattr("kit.lab.explaining.study.quality", lambda *_: table)
    monkeypatch.setattr("kit.lab.explaining.study.kept", lambda *_: {})
    study = Study(kit.open(path), lambda: MACHINE, memory=2 << 20, tokens=3)
    assert study.losses == {} and study.quality is table and study.losses["int8 activations"]["same"] == 0.98
    refused = Study(kit.open(path), lambda: MACHINE, memory=2 << 20, tokens=3)
    monkeypatch.setattr("kit.lab.explaining.study.kept", lambda *_: (_ for _ in ()).throw(kit.KitError("no tokenizer")))
    assert refused.losses == refused.quality == "no tokenizer"


def test_a_disturbed_measurement_is_repeated_and_then_marked(path, monkeypatch):
    programs = [True, True, False, False, False]  # the first takes three tries, the others one
    answers = iter(programs + [True] * 3 + [False] * 9)
    monkeypatch.setattr(
        "kit.lab.measuring.state.watched", lambda work, with_=(): (work(), 1.9 * (others := next(answers)), others)
    )
    study = Study(kit.open(path), lambda: MACHINE, memory=2 << 20, tokens=3)
    first, *others = measuring.measure_best(study, 1).values()
    assert first.busy and not any(found.busy for found in others) and next(answers) is False


def test_a_way_that_the_store_has_comes_with_its_hits_and_its_memory(path, monkeypatch):
    """`kit explain --json` of the same file, asked again, said null and 0 of both."""
    monkeypatch.setattr("kit.lab.measuring.state.watched", lambda work, with_=(): (work(), 0.0, False))
    study = Study(kit.open(path), lambda: MACHINE, memory=2 << 20, tokens=3)
    prediction = next(each for each in study.predictions if each.way.policy == "Pinned")
    found, again = ((measuring._take(study, prediction), study.measured.pop(prediction.way))[1] for _ in "ab")
    assert again.row == found.row and found.row["hit_rate"] > 0 and found.row["resident"] > 0
    assert again.samples == found.samples and found.result is not None and again.result is None


def test_a_disturbed_measurement_is_not_repeated_when_the_minute_has_no_room_for_it(path, monkeypatch):
    monkeypatch.setattr("kit.lab.measuring.state.watched", lambda work, with_=(): (work(), 1.9, True))
    study, tries = Study(kit.open(path), lambda: MACHINE, memory=2 << 20, tokens=3), []
    measured = measuring.measure
    monkeypatch.setattr(measuring, "measure", lambda *given: tries.append(given[0]) or measured(*given))
    monkeypatch.setattr(measuring, "left", lambda study: 1e-9 if len(tries) else 1e9)
    first, *_ = measuring.measure_best(study, 0).values()
    assert len(tries) == 1 and first.busy
    monkeypatch.setattr(measuring, "left", lambda study: 1e9)
    tries.clear()
    study.measured.clear()
    measuring.measure_best(study, 0)
    assert len(tries) == 3


def test_a_file_without_one_known_format(run, tmp_path, folder, monkeypatch):
    monkeypatch.setattr("kit.lab.predicting.order.described", lambda format: False)
    monkeypatch.setattr("kit.lab.predicting.order._recorded", lambda *_: (_ for _ in ()).throw(kit.KitError("no")))
    result = run(model_files.write(folder, "tiny-llama"))
    assert result.exit_code == 2 and "no tensor of a format" in result.output


@pytest.mark.slow
def test_the_report_is_notebook_09(run, path, tmp_path):
    result = run(path, "--room", "1MiB", "--tokens", "2", "--report", tmp_path / "report")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report" / "09_your_model.html").read_text(encoding="utf-8")
    assert path.name in page and "What to change" in page
    assert (tmp_path / "report" / "index.html").exists()
