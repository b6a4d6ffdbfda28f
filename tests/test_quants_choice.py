"""kit quants: files of one model in one table; what is quantized again is what llama.cpp's quantizer and gguf-py make of it."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cells
import family_files
import gguf
import matplotlib.pyplot as plt
import model_files
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given as drawn
from hypothesis import strategies as st
from invented import MACHINE

import kit
from kit.errors import ModelError, QuantError
from kit.gguf import sources
from kit.gguf.formats import FORMATS
from kit.gguf.uses import bytes_used, uses_of
from kit.lab.commands.cli import main
from kit.lab.engines import llama_cpp, processes, requantize
from kit.lab.explaining import quants
from kit.lab.measuring import machine, measurements
from kit.lab.predicting.ways import BLOCK_WAYS
from kit.lab.synthetic.write import synthesize
from kit.units import to_json


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("quants") / "source.gguf", "tiny-llama", "F32")


ROW = {  # of kit quants --json
    "bytes": 9, "bits": 8.5, "way": "int8", "speed": 2.0, "bound": 4.0, "samples": [2.0], "gbps": 9.0, "kl": 0.0,
    "kl_error": 0.0, "same": 1.0, "memory": 9, "others": 0.0, "best": True,
}  # fmt: skip


def lab_of(folder, recorded):
    return SimpleNamespace(out=folder, record=lambda **given: recorded.append(given), machine=MACHINE)


@pytest.mark.parametrize("qtype", requantize.FROM_SHELF)
def test_a_format_of_gguf_py_is_quantized_as_gguf_py_does(source, tmp_path, monkeypatch, qtype):
    monkeypatch.setattr(llama_cpp, "available", lambda: False)
    assert requantize.targets() == requantize.FROM_SHELF
    with kit.open(source) as file, kit.open(requantize.requantize(file, qtype, tmp_path / "new.gguf")) as new:
        assert list(new.tensors) == list(file.tensors)
        for name, info in file.tensors.items():
            assert new.tensors[name].qtype == (qtype if len(info.shape) > 1 else "F32")
            if len(info.shape) > 1:
                right = gguf.quants.quantize(file.blocks(name).view(np.float32), gguf.GGMLQuantizationType[qtype])
                assert (new.blocks(name) == right).all()
        same = set(file.metadata) - {"general.file_type"}
        assert set(new.metadata) == same and all(str(new.metadata[key]) == str(file.metadata[key]) for key in same)


@pytest.mark.parametrize("name", ["lfm2moe", "bailingmoe2", "falcon-h1"])
def test_routers_convolutions_and_norms_stay_as_they_are(tmp_path, name):
    """As llama.cpp's tensor_allows_quantization says."""
    with kit.open(family_files.write(tmp_path, name)) as file:
        with kit.open(requantize.requantize(file, "Q8_0", tmp_path / "new.gguf")) as new:
            changed = {each for each, info in new.tensors.items() if info.qtype != file.tensors[each].qtype}
    kept = ("ffn_gate_inp.weight", "ssm_conv1d.weight", "shortconv.conv.weight", "norm.weight")
    matrices = {each for each, info in file.tensors.items() if len(info.shape) > 1 and each.endswith("weight")}
    assert changed == {each for each in matrices if not each.endswith(kept)}
    assert any(each.endswith(kept) for each in matrices)


@pytest.mark.skipif(not llama_cpp.available(), reason="llama.cpp is not installed")
@pytest.mark.parametrize("qtype", [name for name in requantize.BY_LLAMA_CPP if name not in requantize.FROM_SHELF])
def test_llama_cpp_quantizes_closer_than_a_step(source, tmp_path, qtype):
    """Its blocks dequantize near the weights: the error is that of so many bits, not of another tensor or place."""
    with kit.open(source) as file, kit.open(requantize.requantize(file, qtype, tmp_path / "new.gguf")) as new:
        for name, info in new.tensors.items():
            if len(info.shape) > 1:
                assert info.qtype in (qtype, requantize._SHORT_ROWS.get(qtype))
                right, found = (kit.dequantize(one.blocks(name), one.tensors[name].qtype) for one in (file, new))
                bits = FORMATS[info.qtype].block_bytes * 8 / FORMATS[info.qtype].block_elements
                assert (right - found).pow(2).mean().sqrt() < 2.5 * 2**-bits * right.std(), name


def test_rows_that_do_not_divide_take_what_llama_cpp_takes(source, tmp_path):
    with kit.open(source) as file:
        odd = next(info for info in file.tensors.values() if len(info.shape) > 1)._replace(shape=(4, 96))
        assert requantize._target(odd, "Q4_K") == "Q5_0" and requantize._target(odd._replace(shape=(4, 90)), "Q4_0") == "F32"
        for qtype, path, match in (("Q9_K", tmp_path / "a.gguf", "'Q9_K' is not known"), ("Q4_0", source, "the input itself")):
            with pytest.raises(QuantError, match=match):
                requantize.requantize(file, qtype, path)


def test_the_front_is_what_nothing_beats():
    speed, kl = np.array([1.0, 2.0, 2.0, 3.0, 0.5]), np.array([0.0, 0.1, 0.2, 0.3, 0.3])
    assert quants.front(speed, kl).tolist() == [True, True, False, True, False]
    assert quants.front(np.ones(2), np.zeros(2)).tolist() == [True, True]  # equals beat neither
    assert quants.front(np.array([1.0, 2.0]), np.zeros(2)).tolist() == [False, True], "as close, and slower"
    assert quants.front(np.ones(2), np.array([0.1, 0.2])).tolist() == [True, False], "as fast, and farther"


def test_the_answer_follows_the_table():
    rows = {"speed": [1.0, 2.0, 9.0], "kl": [0.0, 0.01, 1.0], "kl_error": [0.0, 1e-3, 0.1], "way": ["exact", "int8", "int8"],
            "others": 0.0, "best": True}  # fmt: skip
    table = pd.DataFrame(rows, index=["big", "small", "tiny"])
    best, exact, none = (quants.advice(some) for some in (table, table.iloc[:1], table.iloc[2:]))
    assert best.startswith("Take small --linear ") and all(
        part in best for part in ("int8: 2 ", "0.01 ± 0.001", "tiny is 4.50")
    )
    assert exact.startswith("Take big: 1 ") and "the exact answers" in exact and none.startswith("Take none ")
    assert quants.advice(table.iloc[2:].assign(kl=quants.SMALL)).startswith("Take none"), "a loss of so much is not small"
    assert quants.advice(table.assign(others=1.5)).startswith(quants.busy_of(table.assign(others=1.5)).line)


@pytest.mark.slow
def test_the_command_measures_each_file_by_each_way(smollm2, tmp_path):
    """On a trained model: fewer bits lose more, the file itself loses nothing, and the figure is drawn."""
    options = ["--to", "Q4_0", "--tokens", "80", "--rounds", "1", "--json", "--figure", str(tmp_path / "q.png")]
    done = CliRunner().invoke(main, ["quants", str(smollm2), *options])
    assert done.exit_code == 0, done.output
    rows = pd.DataFrame(json.loads(done.stdout)["rows"]).set_index(["file", "way"])
    assert len(rows) == 6 and (rows["speed"] > 0).all() and (rows["memory"] > rows["bytes"]).all()
    itself, again = (rows.loc[name, "kl"] for name in sorted(rows.index.levels[0], key=len))
    assert itself["exact"] == 0 < itself["int8"] < again["exact"]
    assert (tmp_path / "q.png").stat().st_size > 10_000


@pytest.mark.parametrize("change, said", [
    (lambda metadata, tensors: tensors.clear(), "holds no weights"),
    (lambda metadata, tensors: metadata.update({"general.type": "mmproj"}), "(mmproj), not a language model"),
    (lambda metadata, tensors: metadata.update({"general.architecture": "rwkv7"}), "'rwkv7'"),
    (lambda metadata, tensors: tensors.pop("blk.1.ffn_down.weight"), "blk.1.ffn_down.weight"),
    (lambda metadata, tensors: metadata.pop("tokenizer.ggml.model"), "has no tokenizer"),
])  # fmt: skip
def test_what_is_no_model_is_said_before_it_is_quantized(source, tmp_path, monkeypatch, change, said):
    """A vocabulary alone was a ZeroDivisionError of a speed; others were quantized first and refused then."""
    monkeypatch.setenv("KIT_MODELS", str(tmp_path / "models"))
    path = model_files.rewrite(source, tmp_path / "a.gguf", change)
    done = CliRunner().invoke(main, ["quants", str(path), "--to", "Q8_0"])
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.output


def test_what_is_no_quantization_of_the_model_is_refused(source, tmp_path):
    other = synthesize(tmp_path / "other.gguf", "tiny-qwen2")
    with pytest.raises(ModelError, match=r"other\.gguf: is not a quantization of the model in .*source\.gguf"):
        quants.study([source, other])
    pair = [source, other, "--to", "Q4_0"], [source, "--to", "Q9"]
    for given, says in zip(pair, ("--to needs a single FILE", "--to Q9: no quantizer"), strict=True):
        done = CliRunner().invoke(main, ["quants", *map(str, given)])
        assert done.exit_code == 2 and says in done.output


def test_the_parts_of_a_model_are_one_file_and_two_files_of_one_name_are_two(source, tmp_path, monkeypatch):
    """The first part's bytes stood for all; two files of one name had one point and one name; one file twice was two rows."""
    for name, qtype in (("a", "Q8_0"), ("b", "Q4_0")):
        (tmp_path / name).mkdir()
        with kit.open(source) as file:
            requantize.requantize(file, qtype, tmp_path / name / "model.gguf", False)
    a, b = (tmp_path / name / "model.gguf" for name in "ab")
    parts = model_files.split(source, tmp_path, 2)
    link = tmp_path / "link.gguf"
    link.symlink_to(a)
    measured, others, exact = [], 0.0, []

    def losses(files, first, *_):
        exact.append(first)
        return {(path, way): dict(kl=0.1, kl_error=0.0, same=1.0) for path in files for way in quants.WAYS}

    monkeypatch.setattr(quants, "_losses", losses)

    def speeds(paths, *_):
        keys = [(path, way) for path in paths for way in quants.WAYS]
        measured.extend(keys)
        return {key: [9.0 + number] for number, key in enumerate(keys)}, dict.fromkeys(keys, 9), 9.0, others

    monkeypatch.setattr(quants, "_speeds", speeds)
    table = quants.study([parts[1], a, b, link, parts[0], b.parent / ".." / "b" / b.name], tokens=40, rounds=1, new=4)
    assert len(measured) == 9
    assert table.index.unique().tolist() == ["source.gguf", "a/model.gguf", "b/model.gguf"] and len(table) == 9
    assert table["bytes"].unique().tolist() == [sum(part.stat().st_size for part in parts), a.stat().st_size, b.stat().st_size]
    for path, name in ((source, "source.gguf"), (a, "a/model.gguf"), (b, "b/model.gguf")):
        with kit.open(path) as file:
            rows, sizes = table.loc[name], [(info.nbytes, math.prod(info.shape)) for info in file.tensors.values()]
            assert [*rows["bits"]] == pytest.approx([8 * sum(n for n, _ in sizes) / sum(n for _, n in sizes)] * 3)
            assert [*rows["bound"]] == pytest.approx([9e9 / bytes_used(uses_of(file))] * 3)
    assert [*table["bits"]] == sorted(table["bits"], reverse=True) and [*table["best"]] == 8 * [False] + [True]
    others = 1.5
    assert not quants.study([a, b, *parts], exact=b)["best"].any(), "a busy machine compares nothing"
    assert exact == [parts[0], b], "the file with the most bits, or the one that is named"
    _, axes = quants.figure(table)
    assert len({text.get_text() for text in axes.texts}) == 3
    quickest = table["speed"].idxmax()
    assert quickest in quants.advice(table.assign(others=0.0, kl=0.0, best=table["speed"] == table["speed"].max()))
    assert {row["file"] for row in table.reset_index().to_dict("records")} == set(table.index)


@drawn(st.lists(st.sampled_from(["x.gguf", "a/x.gguf", "b/x.gguf", "a/b/x.gguf", "b/b/x.gguf", "y.gguf"]), unique=True))
def test_names_tell_files_apart(names):
    told = sources.distinct_names([Path(name) for name in names])
    assert len(set(told)) == len(names)
    assert all(name.endswith(own.split("/")[-1]) for name, own in zip(names, told, strict=True))


def test_a_figure_names_files_by_what_differs():
    names = ["model-Q4_K_M.gguf", "model-Q8_0.gguf"]
    assert quants._short(names) == dict(zip(names, ("Q4_K_M", "Q8_0"), strict=True))
    assert quants._short(["model.gguf"]) == {"model.gguf": "model"}


@pytest.mark.parametrize(("kl", "x"), [([0.0, 0.3, 0.6], [0.1, 0.3, 0.6]), ([0.0, 0.0, 0.0], [1e-4] * 3)])
def test_a_figure_shows_an_exact_file_left_of_the_others_and_names_apart(kl, x):
    """0 has no place on a scale of powers; names of neighbors are above and below their points, in the order of the loss."""
    names, ways = ["m-a.gguf", "m-b.gguf", "m-c.gguf"], [*quants.WAYS]
    table = pd.DataFrame(
        [
            {"file": name, "way": way, "kl": lost, "kl_error": 0.01, "speed": 10.0 + 3 * number + place, "bound": 50.0 + number,
             "gbps": 20.0 + place, "bits": 8.0 - number, "best": place == 1}
            for number, (name, lost) in enumerate(zip(names, kl, strict=True)) for place, way in enumerate(ways)
        ]
    ).set_index("file")  # fmt: skip
    _, axes = quants.figure(table)
    assert [each.get_text().split(",")[0] for each in axes.texts] == ["a", "b", "c"]
    assert [text.get_text().endswith(", KL 0") for text in axes.texts] == [lost == 0 for lost in kl]
    assert [text.xyann[1] > 0 for text in axes.texts] == [True, False, True] and {text.xyann[0] for text in axes.texts} == {0}
    assert [text.xy for text in axes.texts] == [pytest.approx((each, 12 + 3 * number)) for number, each in enumerate(x)]
    for place, points in enumerate(axes.containers):
        assert points.lines[0].get_xdata() == pytest.approx(x)
        assert points.lines[0].get_ydata() == pytest.approx([10 + place, 13 + place, 16 + place])
    front = axes.get_lines()[-1]
    assert front.get_ydata() == pytest.approx([11, 14, 17]) and front.get_zorder() < axes.containers[0].lines[0].get_zorder()
    assert axes.get_legend_handles_labels()[1].count("limit at 22.0 GB/s") == 1 and axes.get_ylim()[0] == 0
    assert all(part in axes.get_title("left") for part in ("17 tok", "6.0 bits", quants.format_kl(kl[2], 0.01)))
    plt.close(axes.figure)


def test_one_file_twice_is_no_comparison(source, tmp_path):
    parts = model_files.split(source, tmp_path, 2)
    for given in ([source, source], [*parts], [source, source.parent / "." / source.name]):
        done = CliRunner().invoke(main, ["quants", *map(str, given)])
        assert done.exit_code == 2 and "2 names are 1 model: links and parts of one file count once" in done.output
        with pytest.raises(ModelError, match="is one file"):
            quants.named(",".join(map(str, given)))


def test_a_parameter_names_two_files_or_one_answer(source, tmp_path):
    (other := tmp_path / "other.gguf").write_bytes(source.read_bytes())
    assert quants.named(f"{source}, {other},") == [source, other]
    (saved := tmp_path / "saved.json").write_text("{}")
    assert quants.named(str(saved)) == [saved] and quants.named("") == []


def test_an_engine_takes_any_part_of_a_model_and_counts_the_whole_map(source, tmp_path):
    parts = model_files.split(source, tmp_path, 2)
    running = processes.Process("kit", parts[1], 64)
    try:
        running.ask(load=True)
        running.ask(begin=[1, 5, 9])
        whole = running.mapped(parts[1])
        assert whole == running.mapped(parts[0])
    finally:
        running.close()
    assert whole > max(path.stat().st_size for path in parts)


def test_the_files_own_rows_have_the_runs_value_or_say_that_they_are_apart(source, tmp_path):
    """int8 took 30.8 ms in the table of quantizations and 29.8 ms on the same page."""
    with kit.open(source) as file:
        digest, code = measurements.digest_of(file), measurements.settings()
        key = {"digest": digest, "machine": measurements.machine_id(), "settings": code, "at": "2026-01-01"}
        row = ROW | {"file": source.name, "speed": 32.5, "bound": 3.0, "samples": [32.5, 55.0, 70.0]}
        reading = measurements.Reading(BLOCK_WAYS[-1].label, digest, (1 / 49, 1 / 50, 1 / 51), "s", code)
        measurements.of_run(tmp_path).add(reading)
        saved, recorded = tmp_path / "q.json", []
        lab = lab_of(tmp_path, recorded)
        for more, speed, says in (
            (key, 50.0, ": 50 tokens per second, with "),
            (key | {"samples": [32.5, 32.4, 32.6]}, 32.5, "0.65 times"),
            (key | {"settings": "code=of another day"}, 32.5, "2026-01-01"),
            ({}, 32.5, "another measurement"),
        ):
            saved.write_text(to_json({"rows": [row | more, row | {"file": "other.gguf", "way": "exact", "kl": 0.1}]}))
            table = quants.of_run([saved], lab, file)
            assert table["speed"].tolist() == [pytest.approx(speed), 32.5] and says in quants.advice(table)
            assert ("speed is" in quants.rows(table)) == (speed < 50)
            assert [*table["bound"].round(3)] == [round(3.0 * MACHINE.read_gbps / 9.0, 3) if more else 3.0, 3.0]
        (tmp_path / measurements.NAME).unlink()
        measurements.of_run(tmp_path).add(replace(reading, others=1.5))
        saved.write_text(to_json({"rows": [row | key]}))
        table = quants.of_run([saved], lab, file)
        assert table["speed"].tolist() == [pytest.approx(50.0)], "a run has one value, of a busy machine too"
    only, again = recorded
    assert again["quantity"] == only["quantity"] and only["lower"] == pytest.approx(9.0 / (3.0 * MACHINE.read_gbps))
    assert only["quantity"] == f"{BLOCK_WAYS[-1].quantity}, by kit quants" and only["samples"] == pytest.approx(reading.samples)


def test_a_busy_table_has_no_best_row_on_a_page_either(source, tmp_path):
    """A page drew the front of speeds that another process had slowed."""
    for others, best in ((0.0, [True, True]), (1.5, [False, False])):
        rows = [ROW | {"file": name, "others": others, "best": False} for name in ("a.gguf", "b.gguf")]
        (tmp_path / "q.json").write_text(to_json({"rows": rows}))
        with kit.open(source) as file:
            assert [*quants.of_run([tmp_path / "q.json"], lab_of(tmp_path, []), file)["best"]] == best


def test_files_are_timed_in_turn_after_a_few_tokens_each_and_memory_is_read_after_every_one(monkeypatch):
    """By a process that answers what it is asked: two files, each by both ways, two rounds and one that was disturbed."""
    asked, closed, rates = [], [], iter([5.0, 7.0, *[6.0] * 99])

    class Process:
        def __init__(self, name, path, context):
            self.process, self.named = len(asked), (path, name, context)
            asked.append(self.named)

        def ask(self, **what):
            asked.append((*self.named[:2], what))
            return (4.0 if self.named[0] == "slow" else 2.0), "logits"

        def memory(self):
            return len(self.named[0])

        def close(self):
            closed.append(self.named[:2])

    def quietest(once, rounds, processes):
        taken = [(others, once(number)) for number, others in enumerate((0.3, 0.9, 0.1)[: rounds + 1])]
        assert len(processes) == 2 * len(quants.WAYS)
        return taken[:rounds], len(taken)

    monkeypatch.setattr(quants, "Process", Process)
    monkeypatch.setattr(quants.state, "quietest", quietest)
    monkeypatch.setattr(quants.slices, "now_gbps", lambda: next(rates))
    speeds, memory, gbps, others = quants._speeds(["slow", "fast!"], [1, 2, 3], 2, 9, False)
    keys = [(path, way) for path in ("slow", "fast!") for way in quants.WAYS]
    assert [*speeds] == [*memory] == keys and gbps == 7.0 and others == 0.9
    assert speeds == {(path, way): [2.0 if path == "slow" else 4.0] * 2 for path, way in keys}, "8 further tokens a round"
    assert memory == {(path, way): len(path) for path, way in keys}
    names = [(path, quants.WAYS[way].name) for path, way in keys]
    loads = {"load": True}, {"begin": [1, 2, 3]}, {"steps": 2}
    begun = [each for path, name in names for each in [(path, name, 12), *((path, name, what) for what in loads)]]
    turn = [(path, name, what) for path, name in names for what in ({"begin": [1, 2, 3]}, {"steps": 8})]
    assert asked == begun + 3 * turn and closed == names[::-1]


@pytest.mark.parametrize("tokens, scored", [(0, 40), (17, 17)])
def test_a_loss_is_to_the_exact_products_of_the_first_file_over_one_window(monkeypatch, source, tokens, scored):
    """The truth is one source and a row's own where it is that row; every other is the products of its file by its way."""
    config = SimpleNamespace(context=99)
    monkeypatch.setattr(quants.kit, "Transformer", lambda weights: SimpleNamespace(tokenizer="t", config=config))
    monkeypatch.setattr(quants.kit, "Weights", lambda file: file)
    monkeypatch.setattr(quants.divergence, "tokens_for", lambda weights, thorough: 40 if thorough and weights == 5 else -1)
    monkeypatch.setattr(quants, "_elements", {"first": 5, "second": 6}.get)
    monkeypatch.setattr(quants.divergence, "window_of", lambda tokenizer, context, tokens: [0] * tokens)
    monkeypatch.setattr(quants.quality, "from_blocks", lambda *given: [given])
    monkeypatch.setattr(quants.divergence, "compare", lambda *given: given)
    window, truth, sources, progress = quants._losses({"a": "first", "b": "second"}, "a", tokens, False)
    assert len(window) == scored and truth == [("first", scored)] and progress is False
    assert sources["a", "exact"] is truth and sources.pop(("a", "exact"))
    assert sources == {(path, way): [({"a": "first", "b": "second"}[path], scored, row.product.linear)]
                       for path in "ab" for way, row in quants.WAYS.items() if (path, way) != ("a", "exact")}  # fmt: skip


def test_the_table_s_own_probe_raises_the_limit_of_the_run(source, tmp_path, monkeypatch):
    """64.1 tokens per second at most in the table, 67.9 on the same page: two bounds of one file."""
    monkeypatch.setattr("kit.lab.measuring.state.in_caches", lambda: False)
    here = measurements.machine_id()
    machine.keep(tmp_path, replace(MACHINE, id=here))
    row = ROW | {"file": source.name, "samples": [2.0] * 3, "gbps": 2 * MACHINE.read_gbps}
    row |= {"digest": "", "machine": here, "settings": "", "at": ""}
    slower = row | {"file": "other.gguf", "gbps": MACHINE.read_gbps, "bound": 1.0, "others": 0.4}
    (tmp_path / "q.json").write_text(to_json({"rows": [row, slower]}))
    with kit.open(source) as file:
        table = quants.of_run([tmp_path / "q.json"], lab_of(tmp_path, []), file)
    assert [*table["gbps"]] == [2 * MACHINE.read_gbps] * 2 and [*table["bound"]] == [4.0, 2.0]
    assert machine.kept(tmp_path).read_gbps == 2 * MACHINE.read_gbps
    assert not [*measurements.shared()], "what a busy machine read is a limit of this run alone"


def test_page_07_shows_the_files_or_the_saved_answer_that_it_is_given(source, tmp_path):
    """The page's own cells, on what `kit quants --json` printed: the advice, a figure, a table. Without files they say so."""
    rows = [ROW | {"file": "big.gguf", "way": "exact", "speed": 1.0, "samples": [1.0], "bound": 3.0},
            ROW | {"file": "small.gguf", "bytes": 4, "bits": 4.5, "kl": 0.01, "kl_error": 1e-3, "bound": 3.0}]  # fmt: skip
    (tmp_path / "q.json").write_text(to_json({"advice": "", "rows": rows}))
    code = {cell.id: cell.source for cell in cells.read("07_memory_frontier").cells}
    said, drawn = [], []
    plt.close("all")
    lab, file = SimpleNamespace(say=said.append, out=tmp_path), kit.open(source)
    for text, told in (("", "No quantizations were"), (str(tmp_path / "q.json"), "small.gguf --linear fused-int8: 2 tok")):
        scope = {"choice": quants, "quantized": quants.named(text), "lab": lab, "file": file, "shown": drawn.append,
            "display": lambda _: None}  # fmt: skip
        for cell in ("quants", "quants-figure"):
            exec(code[cell], scope)
        assert bool(plt.get_fignums()) == bool(text)
        assert told in said[-1]
    assert [*drawn[0]["KL, nats"]] == ["0", "0.01 ± 0.001"] and len(drawn) == 1
    axes = plt.gca()
    axes.figure.canvas.draw()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert "1e-02" in labels and "$" not in "".join(labels), "this style writes no formulas"
    assert {text.get_text() for text in axes.texts} == {"big, KL 0", "small"}
    assert re.findall(r"\d\S*", axes.get_title() or axes.get_title("left")) == ["2", "4.5", "0.01", "0.001"]
    file.close()
    (tmp_path / "other.json").write_text("[1]")
    for text, says in (
        ("a.gguf", "quants: a.gguf is one file; name several"),
        (f"{tmp_path}/no.json", "does not exist; write it with"),
        (f"{tmp_path}/other.json", "is not what `kit quants --json` prints"),
    ):
        with pytest.raises(ModelError, match=says):
            quants.of(quants.named(text))
