"""Bytes a token: what a token uses of a file, agreeing with a recorded decode, with gguf-py's names, and on every page."""

import dataclasses
from types import SimpleNamespace

import cells
import gguf
import model_files
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import MACHINE

import kit
from kit.cache.replay import replay_hits
from kit.cache.traces import repeated
from kit.gguf import cut, writer
from kit.gguf.reader import TensorInfo
from kit.gguf.uses import assumed, bytes_used, uses_of
from kit.lab.explaining import answer, sentences
from kit.lab.explaining import study as studies
from kit.lab.explaining import to_measure as measuring
from kit.lab.explaining.measured_ways import measure_apart
from kit.lab.explaining.study import Study
from kit.lab.findings import reported
from kit.lab.measuring import measurements
from kit.lab.measuring.busy import Busy
from kit.lab.predicting import sampling
from kit.lab.predicting.measured import _HELD, Cost, keep, keep_pass, measure_costs, of_run
from kit.lab.predicting.order import Order, ProgramCost, draw, order_of
from kit.lab.predicting.ways import BLOCKS, LAZY, BackingStore, Way, predict, used_tensors
from kit.lab.synthetic.write import synthesize
from kit.model.hyperparameters import read_config


@pytest.fixture(autouse=True)
def no_engines(monkeypatch):
    """Each is a process of seconds: tests/test_peers.py runs them."""
    monkeypatch.setattr("kit.lab.explaining.peers.readings", lambda *_, **__: {})


def mixture(folder, architecture="glm4moe", layers=4, **more):
    """A file of a mixture without a row, in the order in which a converter may write it; returns its path."""
    keys = {"block_count": layers, "expert_count": 8, "expert_used_count": 2, "leading_dense_block_count": 1} | more
    shapes = {"output.weight": (64, 32), "token_embd.weight": (64, 32), "output_norm.weight": (32,)}
    for layer in range(layers):
        block = f"blk.{layer}."
        shapes[block + "ffn_norm.weight"] = shapes[block + "attn_norm.weight"] = (32,)
        shapes[block + "attn_output.weight"] = shapes[block + "attn_q.weight"] = (32, 32)
        if layer == 0:
            shapes |= {f"{block}ffn_{part}.weight": (64, 32) for part in ("up", "gate")} | {f"{block}ffn_down.weight": (32, 64)}
            continue
        shapes |= {f"{block}ffn_{part}_exps.weight": (8, 16, 32) for part in ("up", "gate")}
        shapes[block + "ffn_down_exps.weight"] = (8, 32, 16)
        shapes[block + "ffn_gate_inp.weight"], shapes[block + "ffn_up_shexp.weight"] = (8, 32), (16, 32)
    if "nextn_predict_layers" in more:
        shapes[f"blk.{layers - 1}.nextn.eh_proj.weight"] = (32, 64)
    specs = [TensorInfo.new(name, "F32", shape) for name, shape in shapes.items()]
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}
    arrays = [np.full(spec.shape, 0.01, np.float32) for spec in specs]
    return writer.write(folder / f"{architecture}-{len(more)}.gguf", metadata, specs, arrays)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-granite", "tiny-qwen3moe", "tiny-gpt-oss", "granitemoe"])
def test_bytes_a_token_are_those_of_a_recorded_decode(folder, name):
    with kit.open(model_files.write(folder, name)) as file:
        order, uses = order_of(file, 3), uses_of(file)
        parts = used_tensors(file, order)
        assert list(order.uses) == uses
        rows = bytes_used([use for use in uses if use.is_rows])
        for token in order.tokens:
            assert bytes_used(uses) == sum(parts[part].blocks for part in token) + rows
            assert sorted(token) == sorted(set(token))
        dense = [use.name for use in uses if use.of == 1]
        recorded = [part for part in order.tokens[0] if "[" not in part]
        assert [part for part in recorded if part in dense] == recorded and sorted(recorded) == sorted(dense)


def test_a_mixture_without_a_row_uses_its_experts_in_the_order_of_their_roles(tmp_path):
    with kit.open(mixture(tmp_path, nextn_predict_layers=1)) as file:
        uses = uses_of(file)
        said = assumed(file, uses)
        order = draw(uses, 200)
    f32 = 4 * (3 * (2 * 32 + 2 * 32 * 32) + 3 * 64 * 32 + 2 * (2 * 3 * 16 * 32 + 8 * 32 + 16 * 32) + 64 * 32 + 32)
    assert bytes_used(uses) == f32 + 4 * 32, "the last layer predicts further tokens; one row of the embedding"
    assert all(part in said for part in ("2 of 8 experts", "1 dense", "shared", "the last 1 layer"))
    first = [name.removeprefix("blk.1.") for name in order[0] if name.startswith("blk.1.")]
    assert first[:4] == ["attn_norm.weight", "attn_q.weight", "attn_output.weight", "ffn_norm.weight"]
    assert first[4] == "ffn_gate_inp.weight" and first[-1] == "ffn_up_shexp.weight"
    experts = [name.split("[")[1] for name in first[5:-1]]
    assert len(experts) == 6 and len(set(experts[:3])) == len(set(experts[3:])) == 1 and experts[0] != experts[3]
    assert order[0][-2:] == ["output_norm.weight", "output.weight"] and "token_embd.weight" not in order[0]


def test_no_least_exceeds_what_another_part_of_a_page_says(tmp_path, folder):
    for path in (
        mixture(tmp_path),
        model_files.write(folder, "tiny-qwen3moe", "Q4_K_M"),
        model_files.write(folder, "tiny-llama"),
    ):
        with kit.open(path) as file:
            study = Study(file, lambda: MACHINE, memory=300_000, tokens=3)
            measuring.measure_best(study)
            table, roofline = study.advice(), study.bounds()["least seconds per token"]
        assert (table["least"] <= table["predicted"] * (1 + 1e-9)).all()
        assert (table["least"] <= table["measured"].fillna(np.inf) * (1 + 1e-9)).all()
        blocks = table.loc[[label for label in table.index if label.startswith("blocks")]]
        kept = table.loc[[label for label in table.index if label == "all kept, float32"], "least"]
        assert roofline["the file's blocks"] == pytest.approx(blocks["least"].iloc[0])
        assert (kept <= roofline["float32"] * (1 + 1e-9)).all()  # less where an expert is used for the first time
        assert roofline["the file's blocks"] <= table["predicted"].min() * (1 + 1e-9)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=9))
def test_a_walk_for_cold_memory_finds_nothing(sizes):
    accesses = repeated([(str(number), size) for number, size in enumerate(sizes)], 4)
    assert replay_hits(accesses, _HELD["others"](sum(sizes)))[0].hits == 0
    assert replay_hits(accesses, _HELD["all"](sum(sizes)))[0].misses == len(sizes)


def test_no_way_that_keeps_what_it_may_reads_less_than_the_least(tmp_path):
    """The optimum over the token's matrices, with as much memory as a group gives, against the least of "pressed"."""
    path = model_files.write(tmp_path, "tiny-llama")
    with kit.open(path) as file:
        order = Order([(names := [use.name for use in uses_of(file) if not use.is_rows])] * 5, uses=tuple(uses_of(file)))
        parts = used_tensors(file, order)
    ones = {"float32": 1e-3, "float16": 1e-3}
    costs = {part.kind: Cost(ones, ones, {"fused": 1e-3}) for part in parts.values()}
    accesses = repeated([(name, parts[name].blocks) for name in names], 5)
    whole = accesses.working_set
    row = bytes_used(order.uses) - whole  # of the embedding, which no cache of matrices holds
    for room in (0, whole // 4, whole // 2, whole * 9 // 10, 2 * whole):
        store = BackingStore(1e-6)  # 1000 bytes a second
        found = predict(Way("NoCache", room, linear="fused", holds="pressed"), parts, order, costs, MACHINE, store)
        _, hits = replay_hits(accesses, kit.MIN(max(1, room)))
        missed = sum(size for size, hit in zip(accesses.sizes, hits, strict=True) if not hit) - whole  # the first token's
        assert found.from_disk <= (missed / 4 + row) / 1000, room
        assert found.seconds >= whole / 1000  # an LRU of less than a token keeps nothing
    assert found.from_disk == 0


def test_a_part_of_a_file_runs_and_stands_for_the_rest(folder, tmp_path):
    with kit.open(model_files.write(folder, "tiny-qwen3moe", "Q4_K_M")) as file:
        whole, part = kit.Transformer(kit.Weights(file)), cut.cut(file, [0])
        alone = kit.Transformer(kit.Weights(part))
        assert (len(whole.config.layers), len(alone.config.layers)) == (2, 1) and alone.logits([1, 2]).isfinite().all()
        last = cut.cut(file, [1])
        assert np.array_equal(last.blocks("blk.0.attn_q.weight"), file.blocks("blk.1.attn_q.weight"))
        fewer = sampling.fewer_rows(file, 1000)
        name = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
        rows = fewer.tensors[name].shape[0]
        assert 0 < rows < file.tensors[name].shape[0] and np.array_equal(fewer.blocks(name), file.blocks(name)[:rows])
    with kit.open(mixture(tmp_path)) as file:
        assert uses_of(cut.cut(file, [0, 2]))[-1].name == "output.weight"
        assert cut.cut(file, [1, 2]).metadata["glm4moe.leading_dense_block_count"] == 0
        assert sampling.sample(file, range(4), 0, len) == [0, 1] and sampling.sample(file, range(4), 9, len) == [0, 1, 2, 3]


def test_a_sampled_study_says_so_and_predicts_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "_MEASURED", 1)
    with kit.open(mixture(tmp_path, layers=6)) as file:
        study = Study(file, lambda: MACHINE, memory=100_000, tokens=4)
        measuring.measure_best(study)
        said, table, lost = sentences.how(study), study.advice(), study.quality
    assert "(0, 1)" in said and "--thorough" in said and study.part.cut == (0, 1)
    assert "measured" not in table and len(study.part.measured) == 3 and study.checked()["measured"].notna().all()
    assert (table["least"] <= table["predicted"] * (1 + 1e-9)).all()
    assert study.order.names and {name.split(".")[1] for name in study.order.names if "blk" in name} == set("012345")
    assert "only a sample" not in lost, "a sample is no reason to skip what rounding does"


def test_a_lack_of_memory_is_a_row(folder, monkeypatch):
    with kit.open(model_files.write(folder, "tiny-llama")) as file:
        study = Study(file, lambda: MACHINE, memory=2 << 20, tokens=3)
        monkeypatch.setattr(measuring, "memory_available", lambda: 1 << 30)
        measuring.measure_best(study)
        assert not study.measured and all("did not fit" in why for why in study.unmeasured.values())
        assert "did not fit" in sentences.advise(answer.of(study)) and study.unmeasured
        order = study.order
        real = measure_apart(LAZY, file, order, 2, 1, 8 << 30)
        assert real.seconds > 0 and real.result.shape == (file.tensors["token_embd.weight"].shape[0],)
        less = measure_apart(Way("HashMap"), file, order, 2, 1, 32 << 20)  # than its imports take
        assert "32.00 MiB" in less


@pytest.mark.parametrize(("name", "free", "said"), [
    ("tiny-qwen3moe", 1 << 20, True), ("tiny-qwen3moe", 8 << 30, False), ("tiny-llama", 1 << 20, False),
])  # fmt: skip
def test_a_mixture_that_does_not_fit_is_sent_to_kit_experts(folder, monkeypatch, name, free, said):
    path = model_files.write(folder, name, "Q4_K_M")
    monkeypatch.setattr("kit.lab.predicting.room.memory_available", lambda: free)
    with kit.open(path) as file:
        told = sentences.advise(answer.of(Study(file, lambda: MACHINE, memory=100_000, tokens=2)))
    assert (f"`kit experts {path} --memory 1.00MiB`" in told) == said


def test_the_reports_model_reads_all_of_its_weights():
    assert reported.float32_bytes() == 4 * reported.elements() and f"{reported.float32_bytes() / 2**30:.2f}" == "30.44"


def test_every_role_that_gguf_py_names_has_a_place_between_the_ends():
    names = [name.format(bid=0) + ".weight" for name in gguf.TENSOR_NAMES.values() if name.startswith("blk.")]
    shape = SimpleNamespace(shape=(4, 8), elements=32, nbytes=32)
    file = SimpleNamespace(
        architecture="x", metadata={}, tensors=dict.fromkeys(["output.weight", *names, "token_embd.weight"], shape)
    )
    found = [use.name for use in uses_of(file)]
    assert found[0] == "token_embd.weight" and found[-1] == "output.weight"
    assert found.index("blk.0.attn_norm.weight") == 1
    assert found.index("blk.0.attn_output.weight") < found.index("blk.0.ffn_norm.weight") < found.index("blk.0.ffn_down.weight")


@pytest.mark.parametrize("name", ["tiny-gemma3", "tiny-gemma2", "tiny-gpt-oss", "cohere2", "tiny-smollm3"])
def test_a_part_of_a_file_keeps_each_layers_kind(folder, name):
    """Regression: rules by period counted the layers of the part, so the third layer of gemma3 alone had no window."""
    row = dataclasses.replace((model_files.MODELS | model_files.FAMILIES)[name], name=f"{name}-7", layers=7)
    with kit.open(synthesize(folder / f"{name}-7.gguf", row, "F32")) as file:
        whole = read_config(file).layers
        assert len(set(whole)) == 2
        for chosen in ([1, 3, 5], [0, 4, 6]):
            part = cut.cut(file, chosen)
            assert list(read_config(part).layers) == [whole[layer] for layer in chosen]
            assert read_config(cut.cut(part, [0, 2])).layers == (whole[chosen[0]], whole[chosen[2]]), "a part of a part"


def test_a_use_costs_the_same_on_every_page_of_a_run(tmp_path, monkeypatch):
    """What page 07 kept is what page 09 has; of another file, or by other code, it is measured. (tests/test_measured.py: types
    and kinds that were not measured.)"""
    monkeypatch.setattr("kit.lab.predicting.measured._walked", lambda file, kinds, *_: dict.fromkeys(kinds.values(), 1.0))
    path, seven = model_files.write(tmp_path, "tiny-llama"), tmp_path / "07"
    seven.mkdir()
    loads = lambda costs: {cost.load["float32"] for cost in costs.values()}  # noqa: E731
    with kit.open(path) as file:
        names = order_of(file, 2).names
        costs = {kind: dataclasses.replace(cost, load=dict.fromkeys(cost.load, 7.0))
                 for kind, cost in measure_costs(file, names).items()}  # fmt: skip
        keep(seven, file, costs, costs)
        study = lambda: Study(file, lambda: MACHINE, memory=2 << 20, tokens=2, folder=seven)  # noqa: E731
        assert loads(study().costs) == {7.0}
        monkeypatch.setattr(studies, "_MEASURED", 1)  # of a large file a part of the layers runs, which has another digest
        sampled = study()
        assert loads(sampled.costs) == {7.0} and sampled.costs.keys() == costs.keys()
        with monkeypatch.context() as patch:
            patch.setattr("kit.lab.measuring.measurements.settings", lambda: "code=other")
            assert loads(of_run(seven, file, names)) == {0.0}, "the kit's code changed"
    with kit.open(model_files.write(tmp_path, "tiny-granite")) as other:
        assert loads(of_run(seven, other, order_of(other, 2).names)) == {0.0}


def test_kit_explain_shows_the_parts_that_the_run_before_it_recorded_and_its_own_again(tmp_path, monkeypatch):
    """Page 09 had 4.14 ms for the output matrix, and `kit explain`, minutes later, 2.09 ms of the same token of 22.0 ms; it
    predicted 22.6 ms for an exact token that page 07 had at 23.1 ms. (tests/test_measured.py: recorded in another way.)"""
    recorded, seconds = order_of, iter(range(1, 99))
    monkeypatch.setattr(studies, "order_of", lambda *args: dataclasses.replace(recorded(*args), rest=float(next(seconds))))
    how = {"memory": 2 << 20, "tokens": 2}
    with kit.open(model_files.write(tmp_path, "tiny-llama")) as file:
        asked = lambda **more: Study(file, lambda: MACHINE, **how | more).order.rest  # noqa: E731
        assert [asked(busy=Busy(2.0)), asked(), asked(), asked(again=True), asked()] == [1.0, 2.0, 2.0, 4.0, 4.0]
        of_pages, order = measurements.of_run(tmp_path), dataclasses.replace(recorded(file, 2), rest=0.5)
        keep_pass(of_pages, file, order, "07", quiet=False)
        assert asked(store=of_pages) == 0.5 and asked() == 4.0, "what a busy run recorded is its own"
        keep_pass(of_pages, file, order, "07")
        assert asked() == 0.5


def test_the_parts_of_a_token_are_one_on_page_09_and_in_kit_explain(tmp_path, monkeypatch, invented_machine):
    """The table of the page's cell and --json: of two recordings, and where memory's limit holds some part."""
    path, recorded, seconds = model_files.write(tmp_path, "tiny-llama", "Q4_K_M"), order_of, iter(range(1, 99))
    run, word = tmp_path / "run", "kit.lab.explaining."

    def order_in(*args):  # each recording has times of its own, of which those of the last kind are nearly none
        order, each = recorded(*args), next(seconds)
        taken = lambda kinds: {kind: 1.0 / (1 + each * place**9) for place, kind in enumerate(kinds)}  # noqa: E731
        programs = {linear: ProgramCost(each, taken(one.products)) for linear, one in order.programs.items()}
        return dataclasses.replace(order, rest=float(each), programs=programs)

    monkeypatch.setattr("kit.lab.predicting.measured._walked", lambda file, kinds, *_: dict.fromkeys(kinds.values(), 1.0))
    monkeypatch.setattr(studies, "order_of", order_in)
    monkeypatch.setattr(studies, "last_level_cache", lambda: 0)
    monkeypatch.setattr("kit.lab.measuring.pages.speed", lambda file: None)
    monkeypatch.setattr("kit.lab.predicting.room.process_bytes", lambda *_: 1 << 28)
    with kit.open(path) as file:
        digest, least = measurements.digest_of(file), bytes_used(uses_of(file)) / (MACHINE.read_gbps * 1e9)
        token = measurements.Reading(BLOCKS.label, digest, (2 * least,))
        known = lambda _, by, store, *more, **how: {"kit": store.known(BLOCKS.label, digest)}  # noqa: E731
        monkeypatch.setattr(word + "peers.readings", known)
        measurements.note(measurements.of_run(run), token)
        page = cells.run("09_your_model", until="families", out=run, model=path)["families"]
        later = Study(file, lambda: MACHINE, memory=2 << 20, tokens=2)
        parts = next(data for key, data, _ in sentences.sections(later, lambda: None, everything=True) if key == "parts")
    of_page, of_json = page["from blocks"].dropna(), {row["part"]: row["seconds"] for row in parts}
    assert {*of_page.index} == {*of_json} and len(of_json) > 5 and next(seconds) == 3, "both recorded"
    assert of_page.to_dict() == pytest.approx(of_json) and sum(of_json.values()) == pytest.approx(2 * least)
    assert max(row["GB/s"] or 0 for row in parts) == pytest.approx(MACHINE.read_gbps), "memory's limit holds a part"
