"""What is said of a file before it runs, and what stands for it, of files and records that nobody has: values by hand."""

import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from kit.gguf.reader import TensorInfo
from kit.lab.measuring import slices
from kit.lab.predicting import attention, beforehand, remembered, routes, routing, sampling
from kit.model.layers.kind import Memory


def file_of(metadata=None, **shapes):
    """A file's table: ``blk_0_a`` is ``blk.0.a.weight``, ``output`` is ``output.weight``; float32."""
    names = {f"{'blk.' + name[4:].replace('_', '.', 1) if name.startswith('blk_') else name}.weight": name for name in shapes}
    tensors = {name: TensorInfo.new(name, "F32", shapes[given]) for name, given in names.items()}
    more = {f"a.{key}": value for key, value in (metadata or {}).items()}
    return SimpleNamespace(path="m-F32.gguf", architecture="a", metadata=more, tensors=tensors, _views={})


# ---- parts of a file


@pytest.mark.parametrize(
    "room, most, layers",
    [(0, None, 1), (59, None, 1), (60, None, 1), (79, None, 1), (80, None, 2), (120, None, 3), (120, 2, 2)],
)
def test_layers_fit_to_the_byte(room, most, layers, monkeypatch):
    """40 bytes beside the layers, 20, 20 and 40 of theirs."""
    file = file_of({"block_count": 3}, token_embd=(2, 5), blk_0_a=(5,), blk_1_a=(5,), blk_2_a=(5,), blk_2_b=(5,))
    monkeypatch.setattr(sampling, "memory_available", lambda: 2 * room)
    for given in (room, None):
        assert sampling.what_fits(file, given, most).metadata["a.block_count"] == layers
    bare = file_of({"block_count": 2}, blk_0_a=(5,), blk_1_a=(5,))
    assert [sampling.what_fits(bare, room).metadata["a.block_count"] for room in (39, 40)] == [1, 2]


def test_fewer_rows_are_whole_and_one_at_least():
    file = file_of(a=(10, 4), b=(3, 4), c=(2, 40), d=(2, 3, 4), e=(99,))
    found = {name[0]: (info.shape, info.nbytes) for name, info in sampling.fewer_rows(file, 12).tensors.items()}
    assert found == {"a": ((3, 4), 48), "b": ((3, 4), 48), "c": ((1, 40), 160), "d": ((2, 3, 4), 96), "e": ((99,), 396)}
    assert file.tensors["a.weight"].shape == (10, 4)


def test_layers_that_stand_for_all_come_from_the_whole_depth():
    """Those that fit were the first of the others: of 17 layers 3, 4, 5 and 6."""
    kinds = {f"blk_{layer}_{'ab'[layer % 2] if layer < 2 else 'c'}": (4,) for layer in range(19)}
    file = file_of(**kinds, output=(4, 4))
    asked = lambda most, used=len: sampling.sample(file, range(19), most, used)  # noqa: E731
    assert asked(19) == [*range(19)] and asked(0) == asked(3) == [0, 1, 2]
    assert asked(4) == [0, 1, 2, 11] and asked(7) == [0, 1, 2, 5, 9, 13, 17]  # the middles of one part, and of four
    assert len(asked(18)) == 18 and asked(18, lambda layers: len(layers) + (18 in layers)) != asked(18)
    deep = file_of(**{f"blk_{layer}_c": (4,) for layer in range(100)})
    assert sampling.sample(deep, range(100), 100, len) == [*range(100)]
    assert sampling.sample(deep, range(100), 99, len) == [0, *(1 + int((at + 0.5) * 99 / 16) for at in range(16))]
    same = {"blk_0_c": (4,), "blk_1_c": (8,), "blk_2_c": (4,)}  # another shape is another kind
    assert sampling.sample(file_of(**same), range(3), 2, len) == [0, 1]


# ---- routing


def record(tokens, layers, experts, of=4, sizes=(1, 1, 1), prompt=0):
    columns = [np.array(column, np.int64) for column in (tokens, layers, experts)]
    return routes.Routes("r", *columns, prompt, of, np.array(sizes), np.zeros(len(sizes), np.int64))


@pytest.mark.parametrize("prompt", [0, 5])
@pytest.mark.parametrize("within", [1, 2, 8])
def test_what_returns_is_counted_from_the_first_decoded_token_on(prompt, within):
    """The first decoded token counted as one after which nothing returned, if a prompt came before it: 37.7 %, not 38.0."""
    random = np.random.default_rng(prompt)
    uses = [
        (token, layer, expert) for token in range(12) for layer in range(3) for expert in random.permutation(4)[:2].tolist()
    ]
    held = {*uses}
    asked = [use for use in uses if use[0] > prompt]
    again = [any((use[0] - n, *use[1:]) in held for n in range(1, within + 1) if use[0] - n >= prompt) for use in asked]
    found = record(*zip(*uses, strict=True), prompt=prompt)
    assert routing.returned(found, within) == pytest.approx(np.mean(again))
    assert routing.returned(record([0, 0], [0, 0], [1, 2]), 1) == routing.returned(record([], [], []), 1) == 0
    assert routing.returned(record([0, 1], [0, 0], [1, 1]), 1) == 1


@pytest.mark.parametrize("skew, back, used", [(1.0, 0.0, 1), (0.5, 0.6, 1), (1.0, 0.4, 2)])
def test_draws_are_those_of_the_definition(skew, back, used):
    """Token by token, expert by expert, without replacement; what is compared are the shares of ranks and of returns."""
    random, layers, tokens, experts = np.random.default_rng(1), 40, 150, 4
    like = record([], [], [], experts, [0, *[3] * layers])
    drawn = routing.draw(like, skew, back, used, tokens)
    assert {*drawn.layer.tolist()} == {*range(1, layers + 1)} and len(drawn.decoded) == tokens and drawn.experts == experts
    assert all(len({*ids}) == used for step in drawn.decoded for _, ids in step)
    weights, rows = (np.arange(1, experts + 1) ** -skew), []
    for layer in range(1, layers + 1):
        popular = random.permutation(weights / weights.sum())
        recent = popular.copy()
        for token in range(tokens):
            chosen = random.choice(experts, used, replace=False, p=(1 - back) * popular + back * recent)
            rows += [(token, layer, int(expert)) for expert in chosen]
            recent *= 0.5**0.5
            recent[chosen] += (1 - 0.5**0.5) / used
    right = record(*zip(*sorted(rows), strict=True), experts)

    def moments(of):
        counts = np.zeros((layers + 1, experts))
        np.add.at(counts, (of.layer, of.expert), 1)
        return [*-np.sort(-counts[1:], axis=1).mean(0) / tokens, routing.returned(of, 1), routing.returned(of, 3)]

    np.testing.assert_allclose(moments(drawn), moments(right), atol=0.03)
    bare = routing.draw(record([], [], []), skew, back, used, 2)
    assert {*bare.layer.tolist()} == {0, 1, 2} and bare.name == f"drawn: skew {skew:.2f}, return {back:.2f}"


@pytest.mark.parametrize("experts, said, used", [(8, None, 1), (48, None, 3), (8, 3, 3)])
def test_routes_are_drawn_for_a_mixture_that_nobody_recorded(experts, said, used, monkeypatch):
    file = file_of({"expert_used_count": said} if said else None, blk_0_x=(4,), blk_1_ffn_up_exps=(experts, 2, 4))
    monkeypatch.setattr(routing.kit, "open", lambda path: nullcontext(file))
    drawn = routing.given("hf://some/mixture")
    assert (drawn.used, len(drawn.decoded), drawn.experts, {*drawn.layer.tolist()}) == (used, 128, experts, {1})
    skews, backs = zip(*[fit[:2] for fit in routing.FITTED.values()], strict=True)
    assert drawn.name == f"drawn: skew {sum(skews) / 3:.2f}, return {sum(backs) / 3:.2f}"


def test_a_record_for_fewer_experts_than_it_names_is_drawn(tmp_path, monkeypatch):
    file, found = file_of(blk_0_ffn_up_exps=(4, 2, 4)), record([0, 1], [0, 0], [3, 1], sizes=[32])
    monkeypatch.setattr(routing.kit, "open", lambda path: nullcontext(file))
    for _ in range(2):
        own = routes.read_routes(routing.record_for("m", "qwen.csv", found, 5, tmp_path / "own"))
        assert own.decoded == found.decoded
    assert routing.record_for("m", "qwen", found, 5, tmp_path) == "qwen"
    more = record([0], [0], [4], 5)
    drawn = routes.read_routes(routing.record_for("m", "qwen", more, 5, tmp_path / "drawn"))
    assert (len(drawn.decoded), drawn.used, drawn.name) == (5, 2, "drawn: skew 1.30, return 0.20")


def test_a_mixture_is_one_by_its_tensors(monkeypatch):
    files = {"mixture": file_of(blk_0_ffn_up_exps=(4, 2, 4)), "dense": file_of(blk_0_ffn_up=(2, 4))}
    monkeypatch.setattr(routing, "resolve", str)
    monkeypatch.setattr(routing.kit, "open", lambda path: nullcontext(files[path]))
    assert [routing.moe(name) for name in ("mixture", "dense", "")] == ["mixture", "", ""]
    shape = routing.unrecorded(files["mixture"])
    assert [len(column) for column in (shape.token, shape.layer, shape.expert)] == [0] * 3
    assert (shape.prompt, shape.experts, shape.expert_bytes.tolist()) == (0, 4, [32])
    found = record([0, 0, 1], [0, 1, 0], [3, 0, 1])
    monkeypatch.setattr(routing, "read_routes", lambda path: found)
    assert routing.routes_of(files["mixture"], "r").decoded == [[(0, [3])], [(0, [1])]], "a layer that the file has not is gone"


def test_a_draw_takes_the_heaviest_of_many_experts():
    """A weight is e^23 times the next one's, or too small for a float64: nothing is left to chance."""
    with np.errstate(invalid="raise", divide="raise"):
        drawn = [routing.draw(record([], [], [], 64), 200, 0.0, used, 3).decoded for used in range(1, 12)]
        for layer in range(3):
            sets = [[{*step[layer][1]} for step in steps] for steps in drawn]
            assert all(one == each[0] for each in sets for one in each)
            assert all(fewer[0] < more[0] for fewer, more in itertools.pairwise(sets)), "the heaviest and one"
        assert routing.draw(record([], [], [], 4), 600, 0.0, 4, 2).used == 4


def test_what_is_a_model_and_no_record(tmp_path):
    for name, data in (("a", b"GGUF and more"), ("b", b"GGU"), ("c", b"layer,expert")):
        (tmp_path / name).write_bytes(data)
    asked = ["hf://a/b", "smollm2-135m", *(str(tmp_path / name) for name in "abcd"), str(tmp_path), "qwen"]
    assert [routing.is_model(path) for path in asked] == [True, True, True, *[False] * 5]


# ---- what is said of a file


def test_a_header_says_bytes_bits_head_and_limit():
    """Two matrices of 64 and 32 bytes and a norm of 16 a token, and a row of 16 bytes of an embedding of four."""
    shapes = {"token_embd": (4, 4), "blk_0_attn_q": (4, 4), "output_norm": (4,), "output": (2, 4)}
    told = beforehand.header_facts(file_of({"block_count": 1}, **shapes), beforehand.Reads(0.5, "May"))
    assert (told["bits_per_weight"], told["bytes_per_token"], told["label"]["name"]) == (32, 128, "F32")
    assert told["head"] == {"name": "output.weight", "bytes": 32, "share": 0.25}
    assert told["limit"].pop("seconds") == pytest.approx(256e-9)
    assert told["limit"] == {"tokens_per_second": pytest.approx(1e9 / 256), "bytes": 128, "bandwidth": 5e8, "of": "May"}
    del shapes["output"]  # the embedding is the head too
    tied = beforehand.header_facts(file_of({"block_count": 1}, **shapes), None)
    assert tied["head"]["name"] == "token_embd.weight" and tied["bytes_per_token"] == 144 and tied["limit"] is None
    none = beforehand.header_facts(file_of(empty=(0,)), beforehand.Reads(1.0))
    assert none == dict.fromkeys(none) and len(none) == 5


def test_memory_is_measured_where_there_is_some(monkeypatch):
    monkeypatch.setattr(slices, "now_gbps", lambda: 7.0)
    free = iter((slices.FREE - 1, slices.FREE))
    monkeypatch.setattr(beforehand, "memory_available", lambda: next(free))
    assert [beforehand.reads() for _ in range(2)] == [None, beforehand.Reads(7.0)]


def layer(named="attention", head_dim=32, **memory):
    return SimpleNamespace(mixer=SimpleNamespace(named=named, head_dim=head_dim, memory=Memory(**memory)))


def test_what_is_remembered_by_hand():
    layers = [layer(position=10), layer("delta net", 5, fixed=3), layer(position=10, window=8), layer("none"),
        layer(position=10)]  # fmt: skip
    config = SimpleNamespace(layers=layers, context=5000)
    told = remembered.held(config, 100)
    assert told == {"positions": 100, "states": 12, "kv": {"float32": 12000, "float16": 6000, "q8_0": 3 * 1062}}
    assert [*remembered.by_kind(config)] == ["attention", "delta net", "attention, window 8"]
    assert [len(group) for group in remembered.by_kind(config).values()] == [2, 1, 1]
    narrow = SimpleNamespace(layers=[layer(head_dim=48, position=1)])
    assert remembered.held(narrow, 2)["kv"] == {"float32": 8, "float16": 4, "q8_0": None}
    assert [row["positions"] for row in remembered.contexts(config)] == [4096, 5000]
    for context, lengths in ((4096, [4096]), (32769, [4096, 32768, 32769])):
        assert [row["positions"] for row in remembered.contexts(SimpleNamespace(layers=layers, context=context))] == lengths
    rows = layer(position=1, window=4, every=2).mixer
    assert remembered.kind_of(rows) == "attention, window 4, a row for 2"


def test_what_a_token_reads_of_what_is_remembered(monkeypatch):
    from kit.errors import ModelError
    from kit.model import hyperparameters

    config = SimpleNamespace(layers=[layer(position=10), layer(fixed=3)], context=100)
    answers = itertools.chain([config, config], itertools.repeat(None))

    def read_config(file):
        if (answer := next(answers)) is None:
            raise ModelError("no pass")
        return answer

    monkeypatch.setattr(hyperparameters, "read_config", read_config)
    assert remembered.held_by(None, 7) == 7 * 20 + 12 and len(remembered.contexts_of(None)) == 1
    assert remembered.held_by(None, 7) == 0 and remembered.contexts_of(None) == []


# ---- a token's attention


class Kept(SimpleNamespace):
    """A state that notes what is written: of a layer's positions, of its rows, of its index."""

    def write(self, *given):
        self.wrote = [tuple(part.shape) if hasattr(part, "shape") else part for part in given]

    write_rows = write


def mixer(index=0, **memory):
    found = SimpleNamespace(heads=6, kv_heads=2, head_dim=4, memory=Memory(**memory), index_size=index)
    found.choice = SimpleNamespace(units=lambda positions: positions // 4)
    return SimpleNamespace(mixer=found)


def test_a_token_after_a_history_has_it_written_once(monkeypatch):
    layers = [mixer(position=16), mixer(position=16, every=8, window=4), mixer(3, position=16), mixer(fixed=5)]
    cache, spans = Kept(states=[Kept(index=Kept()) for _ in layers], writes=[]), []
    cache.write = lambda layer, k, v: cache.writes.append((layer, tuple(k.shape), bool((k == v).all())))
    cache.advance, cache.mark, cache.back_to = (lambda count: setattr(cache, "at", count)), (lambda: cache.at), spans.append
    table = pd.DataFrame(
        {"what": ["linear", "norm", "linear", "other"], "layer": [0, 1, -1, 2], "seconds": [1.0, 0.5, 2.0, 9.0]}
    )
    made = SimpleNamespace(config=SimpleNamespace(layers=layers), trace=SimpleNamespace(clear=list, frame=table.copy))
    made.new_cache, made.step = (lambda room: cache if room == 21 else None), (lambda tokens, held: spans.append(tokens))
    monkeypatch.setattr(attention.kit, "Transformer", lambda *given, **how: made)
    step = attention.DecodeStep(SimpleNamespace(file="f"), "fused", "fused", 20, times=3.0)
    assert cache.writes == [(number, (20, 2, 4), False) for number in (0, 1, 2)] and cache.at == 20
    rows, chosen = cache.states[1], cache.states[2].index
    assert (rows.wrote, chosen.wrote) == ([0, (2, 1, 4)], [0, (5, 1, 3)]) and not hasattr(cache.states[0], "wrote")
    assert step.parts() == [0.0, 5.0, 1.5] and spans == [20, [0], 20, [0]], "one warms up, each from the same history"
    assert step.seconds() == 6.5 and len(spans) == 6
    assert attention.attention_flops(made.config, 20) == 4 * 6 * 4 * 20
    assert attention.attention_flops(made.config, 20, 1) == 4 * 6 * 4 * (4 + 2)


def test_rounds_turn_and_slow_steps_run_once():
    order = []
    steps = {name: SimpleNamespace(parts=lambda name=name: order.append(name) or [1.0, 2.0, 4.0]) for name in "abcd"}
    table = attention.in_turn(steps, 3, slow={"b"})
    assert "".join(order) == "abcd" + "dca" + "acd" and table["round"].tolist() == [0] * 4 + [1] * 3 + [2] * 3
    assert {*table["total"]} == {7.0}


def test_each_type_of_history_against_what_the_machine_reads(monkeypatch):
    """Of 100 bytes of weights and 10 positions in two layers' stead: the median of three rounds, at 1,000 bytes a second."""
    width = {"float32": 4, "float16": 2, "q8_0": 1}
    taken = iter([5.0, 1.0, 2.0] * 3)

    def step(weights, linear, way, positions, times, kv, seed):
        assert (linear, way, positions, times) == ("fused", "fused", 10, 2.0)
        return SimpleNamespace(cache=SimpleNamespace(bytes_per_position=width[kv]), seconds=lambda: next(taken))

    monkeypatch.setattr(attention, "DecodeStep", step)
    machine = SimpleNamespace(seconds_to_read=lambda nbytes: nbytes / 1000)
    table = attention.by_history_type(None, 10, 2.0, 100.0, machine, 3)
    assert table["token, s"].tolist() == [2.0] * 3 and table["bytes read"].tolist() == [180.0, 140.0, 120.0]
    assert table["of the limit"].tolist() == pytest.approx([0.5 * 0.18, 0.5 * 0.14, 0.5 * 0.12])
