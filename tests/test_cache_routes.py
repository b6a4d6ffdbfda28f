"""Routes of experts: the captures and what the phone recorded, the readers, the kit's own record, all LRU budgets at once."""

import gzip
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import kit
from fuzz.oracle_general import write
from kit.cache.replay import replay_hits
from kit.errors import TraceError
from kit.gguf.reader import TensorInfo
from kit.lab.commands.cli import main
from kit.lab.predicting import route_text, routes
from kit.lab.predicting.bounds import stack_distances
from kit.lab.synthetic.write import synthesize

PHONE = {  # capture -> (budget in MiB, hits in % that the phone reported for all accesses and for decode)
    "gptoss": (3000, 32.4, 44.84), "qwen": (4000, 74.9, 80.29), "gemma": (4000, 76.8, 81.91),
}  # fmt: skip


@pytest.mark.parametrize("name", PHONE)
def test_the_phone_hit_as_often_as_the_replay_says(name):
    budget, everything, decode = PHONE[name]
    found = routes.capture(name)
    accesses = found.requests()
    _, hits = replay_hits(accesses, kit.LRU(budget << 20))
    decoded = np.array(accesses.tokens) > 0
    assert 100 * hits.mean() == pytest.approx(everything, abs=0.1)
    assert 100 * hits[decoded].mean() == pytest.approx(decode, abs=0.1)
    assert 100 * found.resident[found.token >= found.prompt].mean() == pytest.approx(decode, abs=0.005)  # the log itself


@pytest.mark.parametrize("name", PHONE)
def test_all_budgets_at_once_are_those_of_single_replays(name):
    accesses = routes.capture(name).requests()
    distances = stack_distances(accesses)
    for mib in (100, 500, 900, 1500, 3000, 6000, 20000):
        hits = replay_hits(accesses, kit.LRU(mib << 20))[1]
        np.testing.assert_array_equal((distances >= 0) & (distances <= mib << 20), hits)


def test_another_simulator_counts_the_same_hits(tmp_path):
    peer = pytest.importorskip("libcachesim")
    accesses = routes.capture("qwen").requests()
    path, distances = write(accesses, tmp_path / "routes.oracleGeneral"), stack_distances(accesses)
    for mib in (900, 3000):
        reader = peer.TraceReader(str(path), trace_type=peer.TraceType.ORACLE_GENERAL_TRACE)
        missed, _ = peer.LRU(mib << 20).process_trace(reader)
        assert round((1 - missed) * len(accesses)) == ((distances >= 0) & (distances <= mib << 20)).sum()


def test_a_capture_that_was_changed_is_refused(monkeypatch, tmp_path):
    data = gzip.decompress(routes.data_file("routes/qwen.csv.gz").read_bytes())
    path = tmp_path / "qwen.csv.gz"
    path.write_bytes(gzip.compress(data[:-100]))
    monkeypatch.setattr(routes, "data_file", lambda name: path)
    with pytest.raises(TraceError, match="SHA-256"):
        routes.capture("qwen")


# --- readers --------------------------------------------------------------------------------------------------------

TRACE = """# route_trace v1
# model=toy.gguf arch=qwen3moe n_layer=2 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=100 dense_bytes=7
# layer=1 expert_bytes=200 dense_bytes=9
phase,step,layer,slot,expert,weight,residency
0,0,0,0,5,0.6,0
0,1,0,0,5,0.6,0
0,0,1,0,1,0.6,0
0,1,1,0,2,0.6,0
1,2,0,0,5,0.6,1
1,2,0,1,3,0.4,0
1,2,1,0,2,0.5,1
1,3,0,0,3,0.5,1
"""
CSV = "layer,expert\n0,5\n0,3\n0,5\n0,4\n1,2\n1,1\n0,5\n0,3\n1,2\n1,6\n0,3\n0,1\n1,2\n1,7\n"  # a prompt of two, two tokens
LINES = "\n".join(
    json.dumps({"layer": layer, "token": token, "ids": [token, layer + 4]}) for token in range(3) for layer in range(2)
)


def test_readers_agree_on_tokens_layers_and_experts(tmp_path):
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(TRACE.encode()))
    (tmp_path / "moe.csv").write_text(CSV)
    (tmp_path / "lines.jsonl").write_text(LINES)
    trace, moe, lines = (routes.read_routes(tmp_path / name) for name in ("trace.csv.gz", "moe.csv", "lines.jsonl"))
    assert trace.decoded == [[(0, [5, 3]), (1, [2])], [(0, [3])]]
    assert (trace.prompt, trace.experts, trace.name) == (2, 8, "toy.gguf")
    accesses = trace.requests()
    assert accesses.keys[:3] == ["blk.0.experts[5]", "blk.1.experts[1]", "blk.1.experts[2]"]  # the prompt: distinct, by layer
    assert accesses.sizes == [100, 200, 200, 100, 100, 200, 100] and accesses.tokens == [0, 0, 0, 1, 1, 1, 2]
    assert trace.cycle == (100 + 100 + 200 + 100) / 2 and trace.used == 4 / 3
    assert moe.decoded == [[(0, [5, 3]), (1, [2, 6])], [(0, [3, 1]), (1, [2, 7])]] and moe.prompt == 1
    assert lines.decoded[2] == [(0, [2, 4]), (1, [2, 5])] and lines.prompt == 0
    with pytest.raises(TraceError, match=r"moe.csv: the record does not give the bytes of an expert; also name the model"):
        moe.requests()
    for name in ("again.jsonl", "again.jsonl.gz"):
        again = routes.read_routes(written := routes.write_routes(trace, tmp_path / name))
        assert (written.read_bytes()[:2] == b"\x1f\x8b") == name.endswith("gz")
        assert again.decoded == trace.decoded and again.requests() == accesses and again.name == "toy.gguf"


HEADS = {  # what says little or much of a model -> what is read of it
    # (name, tokens, layers, experts of the rows; prompt, experts of a layer; their bytes, those of the rest; what was held)
    "layer,expert\n0,0\n": ("r", [0], [0], [0], 0, 1, [0], [0], None),
    "layer,expert\n0,0\n0,1\n1,0\n1,1\n0,1\n1,0\n": (
        "r", [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 1, 0], 1, 2, [0, 0], [0, 0], None,
    ),
    '{"layer": 0, "token": 0, "ids": [0]}': ("r", [0], [0], [0], 0, 1, [0], [0], None),
    f'{{"model": "{"m" * 201}", "experts": 3, "expert_bytes": [5]}}\n{{"layer": 0, "token": 0, "ids": [0]}}': (
        "m" * 200 + " ...", [0], [0], [0], 0, 3, [5], [0], None,
    ),
    "# route_trace v1\n# layer=0 expert_bytes=3 dense_bytes=4\nphase,step,layer,expert,residency\n1,0,0,0,0\n1,1,0,0,1": (
        "r", [0, 1], [0, 0], [0, 0], 0, 1, [3], [4], [False, True],
    ),
    f"# route_trace v1\n# model={'m' * 201} n_expert=5\n# layer=2 expert_bytes=3 dense_bytes=4\n"
    "# layer=10000 expert_bytes=1 dense_bytes=1\n# layer=1 expert_bytes=6 dense_bytes=7\n"
    "step,phase,layer,expert,residency\n0,0,1,0,0\n1,1,1,0,2": (
        "m" * 200 + " ...", [0, 1], [1, 1], [0, 0], 1, 5, [0, 6, 3], [0, 7, 4], [False, True],
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", HEADS, ids=range(len(HEADS)))
def test_what_a_record_says_of_its_model_and_what_its_rows_say(text, tmp_path):
    (tmp_path / "r").write_text(text)
    found = routes.read_routes(tmp_path / "r")
    told = [value.tolist() if isinstance(value, np.ndarray) else value for value in vars(found).values()]
    assert tuple(told) == HEADS[text]


@pytest.mark.parametrize(
    "text, message",
    [
        (TRACE + "1,3,0,0,x,0.5,1\n", "line 14: '1,3,0,0,x"), (f'{{"prompt": "{"y" * 300}"}}\n' + LINES, r"'y{199} \.\.\.$"),
        ("", "is empty"), ("\n", "is empty"), ("a,b\n", "lacks the column layer"),
        ("layer,expert\n", "names no expert"), ("layer,expert\n1\n", "line 2"),
        ("layer,expert\n1,x\n", "line 2: '1,x' does not have"), ("layer,expert\n1,-2\n", "line 2"),
        ("{}\n[1]", "line 2"), ('{"layer": 0, "token": 0, "ids": [1, "x"]}', "line 1"), ("# hello\n", "line 1"),
        ("# route_trace v1\nphase,step,layer\n0,0,0", "lacks the column"),
        ("layer,expert\n99999999999,1\n", "line 2"), (f"layer,expert\n1,{10**30}\n", "line 2"),
        ('{"layer": 0, "token": 0, "ids": [1.5]}', "line 1"), (TRACE.replace("n_expert=8", "n_expert=x"), "the model line"),
        ('{"expert_bytes": "x"}\n' + LINES, "the model line"), ('{"prompt": null}\n' + LINES, "the model line"),
        ('{"expert_bytes": [5]}\n' + LINES, "uses layer 1, but gives bytes for only 1 layers"),
        ('{"prompt": 3}\n' + LINES, "no expert of a token after the prompt's 3"),
        ('{"expert_bytes": [-100, 100]}\n' + LINES, r"line 1\) is invalid: -100 bytes per layer"),
        ('{"expert_bytes": [1.5, 100]}\n' + LINES, r"line 1\) is invalid: 1.5 bytes per layer"),
        ('{"expert_bytes": [1, 2], "dense_bytes": [-1, 2]}\n' + LINES, "-1 bytes per layer"),
        ('{"expert_bytes": [1, 2], "dense_bytes": [1]}\n' + LINES, "expert_bytes of 2 layers and dense_bytes of 1"),
        (f'{{"expert_bytes": [{2**60}, 1]}}\n' + LINES, "bytes per layer"), ('{"prompt": -1}\n' + LINES, "-1 is not a"),
        ('{"experts": 1e99}\n' + LINES, "1e.99 is not a number of"), ('[1]\n', "lacks the column"), ("{}\n{}", "line 2"),
        ("[" * 10**5 + "\n", "lacks the column"), ('{"a": ' * 10**5 + "\n", "line 1: expected"),
        (TRACE.replace("expert_bytes=100", f"expert_bytes={10**30}"), "bytes per layer"),
        (TRACE.replace("n_expert=8", "n_expert=-8"), "-8 is not a number of"),
        ("#TYPE Object\nlayer,expert\n0,1", "line 1: unknown format; expected one of: route_trace v1"),
        ("layer expert\n0 1\n", "lacks the column layer, expert; it has layer expert"), ("layer;expert\n0,1\n", "line 2"),
        ("layer,expert\n0,\x1b[31m\n", r"line 2: '0,\\x1b\[31m' does not have"), ("\x1b[2J,b\n0,1\n", r"it has \\x1b\[2J, b"),
        ("layer,expert\n0," + "x" * 10**6, "x ...' does not have"), ("a" * 10**6 + ",b\n0,1", "it has a+ ...$"),
        (TRACE.replace("n_expert=8", "n_expert=" + "x" * 10**6), "the model line"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_one_error_with_its_line(text, message, tmp_path):
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as error:
        routes.read_routes(path)
    assert str(path) in str(error.value) and len(str(error.value)) < 600 and str(error.value).isprintable()


def records(encoding="utf-8", separator=",", quote=""):
    rows = ["layer,expert", "0,1", "0,2", "1,2", "1,3", "0,2", "0,3", "1,2", "1,4"]
    cells = ([f"{quote}{cell}{quote}" for cell in row.split(",")] for row in rows)
    return ("\r\n".join(map(separator.join, cells)) + "\r\n").encode(encoding)


RECORD = [[(0, [1, 2]), (1, [2, 3])], [(0, [2, 3]), (1, [2, 4])]]
OBJECTS = "\n".join(
    json.dumps({"layer": layer, "token": token, "ids": ids}) for token, step in enumerate(RECORD) for layer, ids in step
)
AS_WRITTEN = {  # by what: the same record
    "plain": records(), "a mark": records("utf-8-sig"),
    "PowerShell 5": records("utf-16"), "no mark": records("utf-16-le"),
    "big-endian": records("utf-16-be"), "UTF-32": records("utf-32"),
    "a German Excel": records(separator=";"), "tabs": records(separator="\t"), "Export-Csv": records(quote='"'),
    "spaces": records(separator=" , "), "gzipped UTF-16": gzip.compress(records("utf-16")),
    "lines before": b"\n\n" + records(), **{f"JSON, {by}": OBJECTS.encode(by) for by in ("utf-8-sig", "utf-16")},
}  # fmt: skip


@pytest.mark.parametrize("by", AS_WRITTEN)
def test_a_record_is_read_as_tools_and_systems_write_it(by, tmp_path):
    path = tmp_path / "routes.csv"
    path.write_bytes(AS_WRITTEN[by])
    assert routes.read_routes(path).decoded == RECORD


@pytest.mark.parametrize("byte", [2, 12, 40, -12, -6, -1])
def test_damage_of_a_gzipped_record_is_one_error(byte, tmp_path):
    random = np.random.default_rng(0).integers(0, 99, (500, 2))
    rows = "\n".join(f'{{"layer": 0, "token": {token}, "ids": [{id}]}}' for token, id in random)
    data = bytearray(gzip.compress(rows.encode()))
    data[byte] ^= 0xFF
    path = tmp_path / "routes.jsonl.gz"
    for damaged in (bytes(data), bytes(data[: len(data) // 2])):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"routes.jsonl.gz: the gzip data is damaged .*: copy or record the file again"):
            routes.read_routes(path)


def test_what_is_no_text_is_one_error(tmp_path):
    path = tmp_path / "routes"
    for data, words in ((b"layer,expert\n0,\xff\n", "at byte 15 of UTF-8"), (b"\xff\xfe\x00\xd8", "of UTF-16")):
        path.write_bytes(data)
        with pytest.raises(TraceError, match=f"expected text or gzip .*{words}"):
            routes.read_routes(path)


def test_one_decoded_token_is_told_and_its_basis_says_so(tmp_path):
    """Nothing of it can be used again: no policy hits, and the answer is no traceback."""
    path = tmp_path / "one.jsonl"
    path.write_text(
        '{"expert_bytes": [100, 100]}\n{"layer": 0, "token": 0, "ids": [1, 2]}\n{"layer": 1, "token": 0, "ids": [1]}\n'
    )
    for extra in ((), ("--json",)):
        run = CliRunner().invoke(main, ["experts", str(path), "--memory", "1GiB", "--disk", "2GB/s", *extra])
        assert run.exit_code == 0, run.output
        assert "only one decoded token" in run.output
    assert {row["hits"] for row in json.loads(run.stdout)["policies"] if "hindsight" not in row["policy"]} == {0.0}


def test_numbers_of_a_record_end_where_a_model_s_do():
    told = lambda *asked: route_text.possible(*asked)  # noqa: E731
    assert told(0, 0) and told(9999, 0, 2**31 - 1)
    assert not any((told(10_000, 0), told(-1, 0), told(0, 2**31), told(0, 0, -1), told(0, -1)))
    assert route_text.count(0) == 0 and route_text.sizes([0, 2**48 - 1]).tolist() == [0, 2**48 - 1]
    with pytest.raises(ValueError, match="bytes per layer"):
        route_text.sizes([2**48])
    assert [route_text.shown("abcd", most) for most in (3, 4)] == ["abc ...", "abcd"]
    long = "layer," + "b" * 95
    for lines, head in (([], "a" * 101), (["x"], long)):
        with pytest.raises(TraceError, match=r"(a{100}|layer, b{93}) \.\.\.$"):
            route_text.numbers("p", lines, head, ("layer",), 1)
    assert route_text.numbers("p", [], "layer", ("layer",), 1).shape == (1, 0)


def tensors(**shapes):
    """A file as far as its routes need it, whose tensors ``blk_1_name`` are of float32."""
    infos = {f"blk.{name[4:].replace('_', '.', 1)}.weight": shape for name, shape in shapes.items()}
    return SimpleNamespace(path="m.gguf", tensors={name: TensorInfo.new(name, "F32", shape) for name, shape in infos.items()})


MIXTURE = {"blk_0_attn_q": (4, 8), "blk_1_attn_q": (2, 8), "blk_1_ffn_up_exps": (4, 2, 8), "blk_1_ffn_down_exps": (4, 3, 8)}
MIXTURE["blk_2_ffn_down_exps"] = (4, 5, 8)
STEPS = [  # token, layer, expert
    (0, 1, 0), (0, 2, 3), (1, 1, 2), (1, 2, 0), (2, 1, 1), (2, 2, 0),
]  # fmt: skip


def of(rows, **more):
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return routes.Routes("r", *columns, **{"experts": 4, "expert_bytes": np.array([0, 5, 7]), **more})


def test_sizes_of_a_mixture_by_hand():
    """A dense layer, one with two stacks and a matrix, one with a stack alone."""
    file = tensors(**MIXTURE)
    experts, expert_bytes, dense_bytes = routes.geometry_of(file)
    assert (experts, expert_bytes.tolist(), dense_bytes.tolist()) == (4, [0, 4 * (16 + 24), 4 * 40], [4 * 32, 4 * 16, 0])
    assert routes.request_bytes(file) == 4 * 40
    sized = of(STEPS).sized(file)
    assert sized.expert_bytes.tolist() == expert_bytes.tolist() and sized.layers == 3
    for row, told in (((0, 0, 1), "layer 0 and expert 1"), ((0, 1, 4), "expert 4"), ((0, 3, 1), "layer 3 and expert 1")):
        with pytest.raises(TraceError, match=rf"uses .*{told}, but m.gguf has 2 layers of 4 experts"):
            of([row]).sized(file)
    assert of([]).sized(file).experts == 4
    with pytest.raises(TraceError, match="no experts"):
        routes.geometry_of(tensors(blk_0_attn_q=(4, 8)))


def test_what_routes_say_by_hand():
    found = of(STEPS, prompt=1, resident=np.arange(6) % 2 > 0, dense_bytes=np.array([1, 2, 3]))
    assert found.decoded == [[(1, [2]), (2, [0])], [(1, [1]), (2, [0])]] and (found.used, found.cycle) == (1.0, 12.0)
    assert found.requests().keys == [f"blk.{layer}.experts[{expert}]" for _, layer, expert in STEPS]
    assert found.requests().tokens == [0, 0, 1, 1, 2, 2] and found.requests(prompt=False).sizes == [5, 7, 5, 7]
    cut = found.first(2)
    assert cut.layer.tolist() == [1, 1, 1] and cut.resident.tolist() == [False] * 3
    assert (cut.expert_bytes.tolist(), cut.dense_bytes.tolist()) == ([0, 5], [1, 2])
    assert of(STEPS, prompt=2).cycle == 12.0
    none = of([])
    assert (none.decoded, none.used, none.cycle) == ([], 0.0, 0.0)


def test_spans_of_a_decode_name_the_experts_of_a_token():
    span = lambda token, tensor, what="linear": SimpleNamespace(token=token, tensor=tensor, what=what)  # noqa: E731
    name = "blk.{}.ffn_down_exps.weight[{}]".format
    spans = [span(token, name(layer, expert)) for token, layer, expert in STEPS]
    others = [span(0, name(1, 3), "access"), span(0, "blk.1.ffn_up_exps.weight[2]"), span(0, "blk.1.attn_q.weight")]
    found = routes.of_spans([*spans, *others, spans[0]], tensors(**MIXTURE))
    assert list(zip(found.token, found.layer, found.expert, strict=True)) == STEPS and found.prompt == 1
    with pytest.raises(TraceError, match="no routing"):
        routes.of_spans(others, tensors(**MIXTURE))


def test_generate_writes_the_routes_of_a_mixture(tmp_path):
    model, out = synthesize(tmp_path / "moe.gguf", "tiny-qwen3moe"), tmp_path / "routes.jsonl.gz"
    run = CliRunner().invoke(main, ["generate", str(model), "--tokens", "1,2,3", "-n", "4", "--routes", str(out)])
    assert run.exit_code == 0, run.output
    found = routes.read_routes(out)
    with kit.open(model) as file:
        experts, expert_bytes, _ = routes.geometry_of(file)
        used = file.metadata["qwen3moe.expert_used_count"]
        stacks = [info.nbytes for name, info in file.tensors.items() if "_exps" in name]
        assert expert_bytes.sum() * experts == sum(stacks)
        model_ = kit.Transformer(kit.Weights(file), linear="fused")
        model_.unplanned = "torch chooses"
        chosen = {}
        import kit.model.cpu_ops as ops

        class Torch(ops.CpuOps):
            def route(self, name, x):
                routing = self.config.layers[int(name.split(".")[1])].feed_forward.routing
                return chosen.setdefault(len(chosen), ops.best_experts(self.linear(name, x), routing))

        model_.ops = Torch
        kit.generate(model_, [1, 2, 3], 4)
    layers = found.layers
    assert len(found.decoded) == 3 and all(len(ids) == used for step in found.decoded for _, ids in step)
    for token, step in enumerate(found.decoded, start=1):
        for layer, ids in step:
            assert sorted(ids) == sorted(chosen[token * layers + layer][1][0].tolist())
    assert math.isclose(found.cycle, used * expert_bytes.sum())
    assert found.requests().tokens[0] == 0


def test_generate_refuses_routes_of_a_dense_model(tmp_path):
    model = synthesize(tmp_path / "dense.gguf", "tiny-llama")
    run = CliRunner().invoke(main, ["generate", str(model), "--tokens", "1", "--routes", str(tmp_path / "r")])
    assert run.exit_code == 2 and "has no experts" in run.output
