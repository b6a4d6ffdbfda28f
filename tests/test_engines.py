"""Engines as rows of one table: the protocol, a llama-bench stand-in with the real one's JSON, turns and their ratio."""

import json
import re
import stat
import sys
from contextlib import closing
from types import SimpleNamespace

import documented
import pytest
from click.testing import CliRunner
from invented import pasted_data

import kit
from kit.errors import EngineError, ReportError, ServerError
from kit.lab.commands.cli import main
from kit.lab.engines import bounds_of, llama_cpp, turns
from kit.lab.engines.base import Cpu, EngineFacts, Pass
from kit.lab.engines.started import Started
from kit.lab.engines.table import COMPARED, kinds, opened
from kit.lab.explaining import answer, beside_kit, pasted, peers, roofline, together
from kit.lab.explaining.study import Study
from kit.lab.measuring import arithmetic, machine, measurements, minutes, state
from kit.lab.measuring.measurements import Reading
from kit.lab.report import gallery
from kit.lab.synthetic.write import synthesize
from kit.system import usable_cores
from kit.system.cores import Cores
from kit.system.paths import ROOT

# A stand-in: fields and layout of llama-bench -o json (get_fields of its source), for one test or as many as told.
BENCH = """#!{python}
import json, sys
arguments = sys.argv[1:]
value = lambda *names: next((arguments[i + 1] for i, a in enumerate(arguments) if a in names), None)
print("loading ...", file=sys.stderr)
pp, tg, depth, times = int(value("-p")), int(value("-n")), int(value("-d") or 0), int(value("-r"))
per_token = {per_token} / int(value("-t", "--threads") or 4)
row = dict(build_commit="8cf427ff", build_number=5163, backends="CPU", n_batch=2048, n_ubatch=512,
           n_threads=int(value("-t") or 4), type_k=value("-ctk") or "f16", type_v="f16", n_prompt=pp, n_gen=tg, n_depth=depth,
           samples_ns=[int(1e9 * per_token * (pp + tg))] * times)
{then}
"""
PRINTED = "print(json.dumps([row]))"


def bench(folder, name="llama-bench", per_token=0.04, then=PRINTED):
    path = folder / name
    path.write_text(BENCH.format(python=sys.executable, per_token=per_token, then=then))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_llama_bench_is_read_by_its_json(tmp_path):
    engine = opened(f"'{bench(tmp_path)}' -t 2 -fa 1 -ctk q8_0", tmp_path / "m.gguf")
    assert engine.facts.version == ""  # nothing ran yet
    one = engine.decode(64, depth=4096)
    assert one.per_token == pytest.approx(0.02) and one.depth == 4096
    assert engine.prompt(512).per_token == pytest.approx(0.02)
    facts = engine.facts
    assert (facts.version, facts.threads, facts.kv) == ("b5163 (8cf427ff)", 2, ("q8_0", "f16"))
    assert facts.flags["options"] == "-t 2 -fa 1 -ctk q8_0" and json.dumps(facts.to_json())
    assert sum(engine.cpu_times()) > 0


@pytest.mark.parametrize("mine", [None, "passive", "active"])
def test_a_program_of_the_user_gets_the_environment_of_the_user(tmp_path, monkeypatch, mine):
    """kit's commands set OMP_WAIT_POLICY=passive for torch: with it each of llama-bench's threads sleeps at every barrier."""
    for name in (*kit.TORCH_VARIABLES, "KIT_TUNED"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    if mine:
        monkeypatch.setenv("OMP_WAIT_POLICY", mine)
    then = (
        "import os; row['build_commit'] = 'has ' + ' '.join(n + '=' + v for n, v in os.environ.items() if n in %r)\n" + PRINTED
    )
    path = bench(tmp_path, then=then % [*kit.TORCH_VARIABLES, "KIT_TUNED"])
    kit.tune_torch()
    engine = opened(str(path), tmp_path / "m.gguf")
    engine.decode(8)
    assert engine.facts.version == f"b5163 (has {f'OMP_WAIT_POLICY={mine}' if mine else ''})"
    server = bench(tmp_path, "llama-server")
    server.write_text(f"#!{sys.executable}\nimport os, sys\nprint('has', os.environ.get('OMP_WAIT_POLICY'))\nsys.exit(3)\n")
    with pytest.raises(ServerError, match=f"ended with 3: has {mine}"), Started(str(server), tmp_path / "m.gguf"):
        pass


@pytest.mark.parametrize(
    "name", ["kit", pytest.param("llama.cpp", marks=pytest.mark.skipif(not llama_cpp.available(), reason="no wheel"))]
)
def test_a_process_of_kit_that_dies_is_an_error_of_its_engine(model, name):
    """The broken pipe to it ended kit with 141 and no word, its processor time at the end with a traceback of psutil."""
    with pytest.raises(EngineError, match=f"--engine {name}: "), closing(opened(name, model)) as engine:
        engine.decode(2)
        engine._process.process.kill()
        engine._process.process.wait()
        engine.decode(2)


def test_threads_replace_those_that_the_user_gave(tmp_path):
    engine = opened(f"{bench(tmp_path)} -t 2 -fa 1", tmp_path / "m.gguf", threads=1)
    assert engine.decode(8).per_token == pytest.approx(0.04) and engine.facts.threads == 1
    assert engine.facts.flags["options"] == "-fa 1 -t 1" and engine.label.endswith("-t 1")


@pytest.mark.parametrize("options, message", [
    ("-m other.gguf", "leave out -m: the FILE of the command"), ("-p 512", "leave out -p: kit gives the lengths itself"),
    ("-o md", "leave out -o: kit reads the JSON output"), ("-t 1,2", "-t 1,2: give a whole number"),
    ("-t 0", "-t 0: give a whole number"), ("-t", "-t : give a whole number"),
])  # fmt: skip
def test_options_that_kit_gives_itself(tmp_path, options, message):
    with pytest.raises(EngineError, match=message):
        opened(f"{bench(tmp_path)} {options}", tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "then, message",
    [
        ("print('error: failed to load model', file=sys.stderr); sys.exit(1)", "ended with 1; it said: error: failed to load"),
        ("print('usage: another program')", "is no llama-bench with JSON output; it said: loading"),
        ("print(json.dumps([row, row]))", "answered with 2 tests in place of one: an option has several values"),
        ("print('[]')", "answered with 0 tests"),
        ("print(json.dumps([row | dict(samples_ns=[])]))", "of another test, or has no samples"),
        ("print(json.dumps([row | dict(n_gen=1)]))", "of another test, or has no samples: n_gen"),
        ("print(json.dumps({'rows': 1}))", "is no llama-bench with JSON output"),
    ],
)
def test_a_binary_that_answers_otherwise(tmp_path, then, message):
    with pytest.raises(EngineError, match=message) as caught:
        opened(str(bench(tmp_path, then=then)), tmp_path / "m.gguf").decode(8)
    assert "\n" not in str(caught.value)


def test_what_is_no_engine(tmp_path):
    (tmp_path / "llama-bench-folder").mkdir()
    plain = tmp_path / "llama-bench.txt"
    plain.write_text("no program")
    for text, message in {
        "": "not an engine", "nothing": "not an engine; give one of kit", "'open": "no closing quotation",
        "./llama-bench-none": "there is no file ./llama-bench-none, and PATH has no such program",
        str(plain): "is not executable", str(tmp_path / "llama-bench-folder"): "is a folder",
        "kit --linear fused-int9": "choose one of fused", "kit -t 4096": "this process may use", "kit -x 1": "no option -x",
        "llama.cpp -ctk q3_K": "choose one of f32", "kit -t": "-t has no value",
    }.items():  # fmt: skip
        with pytest.raises(EngineError, match=message):
            opened(text, tmp_path / "m.gguf")


class Metronome:
    """An engine that needs the seconds of its list, one a pass."""

    def __init__(self, label, seconds):
        self.label, self.facts, self._seconds, self.order = label, EngineFacts(label), list(seconds), []

    def decode(self, tokens, depth=0):
        self.order.append(self.label)
        return Pass(self._seconds.pop(0) * tokens, tokens, tokens, depth)

    prompt = decode

    def cpu_times(self):
        return Cpu(0.0, 0.0)

    def close(self):
        pass


@pytest.fixture
def quiet(monkeypatch):
    """No other process uses a core."""
    monkeypatch.setattr(state, "watched", lambda work, with_=(): (work(), 0.0, False))


def test_the_limit_is_of_the_same_rounds(quiet):
    """Memory halves its speed in the third round, and the engine with it: its share stays."""
    read = iter([20.0, 20.0, 10.0, 20.0, 20.0]).__next__
    series = turns.in_turn([Metronome("one", [0.1, 0.1, 0.2, 0.1, 0.1])], "decode", 64, read=read)
    same = minutes.in_rounds(1e9, series)
    assert same.read_gbps == 20 and same.share("one").median == pytest.approx(0.5) == same.share("one").high
    series["one"].passes[0] = Pass(1.0, 0, 64, problem="the answer is empty")
    assert minutes.in_rounds(1e9, series) is None, "of which round a speed was is not known any more"
    assert minutes.in_rounds(1e9, turns.in_turn([Metronome("one", [1] * 5)], "decode", 64)) is None


def test_every_row_says_what_to_type():
    assert {"kit", "llama.cpp", "llama-bench"} <= {kind.name for kind in kinds()}
    assert all(kind.typed and callable(kind.open) for kind in kinds())


# --- kit explain MODEL --engine X -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("model") / "tiny-Q4_K_M.gguf", "tiny-llama")


@pytest.fixture
def roof(monkeypatch, quiet):
    """A machine of 1 MB/s, 1 MFLOP/s by float32 and 4 by int8, where no other process uses a core."""
    given = bounds_of.Roof(1e6, {"float32": 1e6, "int8": 4e6}, {})
    monkeypatch.setattr(bounds_of, "measured", lambda: bounds_of.Roof(**vars(given)))
    monkeypatch.setattr(bounds_of, "again", lambda roof: None)
    return given


def explained(*arguments):
    ran = CliRunner().invoke(main, ["explain", *map(str, arguments)])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_explain_of_an_engine(model, tmp_path, roof):
    text = f"{bench(tmp_path, per_token=4.0)} -t 1 -ctk q8_0"
    data = json.loads(explained(model, "--engine", text, "--depth", 128, "--json"))
    limit, mine = data["answer"]["table"]
    assert (limit["kind"], mine["kind"], mine["name"]) == ("limit", "yours", text) and mine["of_limit"] == data["mbu"]
    assert mine["speed"] == pytest.approx(0.25) and limit["speed"] == pytest.approx(1 / data["bound"]["seconds"])
    printed = explained(model, "--engine", text, "--depth", 128)
    assert f"{limit['speed']:.3g}" in printed.split("\n\n")[1] and "of the limit" in printed
    with kit.open(model) as file:
        least = bounds_of.work_of(file, 512).token_bytes / 1e6
    assert data["engine"]["threads"] == 1 and data["engine"]["version"] == "b5163 (8cf427ff)"
    assert data["decode"]["seconds"] == pytest.approx(4.0) and data["bound"]["seconds"] == pytest.approx(least)
    assert data["mbu"] == pytest.approx(least / 4) and data["decode"]["tokens_received"] == data["decode"]["tokens_asked"] > 0
    assert data["prompt"]["name"] == "pp512" and set(data["prompt_bounds"]) == {"float32", "int8"}
    assert data["at_depth"]["depth"] == 128 and data["at_depth"]["bound"]["seconds"] > least
    names = [cause["name"] for cause in data["causes"]]
    assert names == ["memory", "unexplained"] and sum(cause["seconds"] for cause in data["causes"]) == pytest.approx(4.0)
    assert set(data) == documented.keys("explain --engine")
    unknown = documented.undocumented("explain --engine", data)
    assert not [path for path in unknown if path.partition(".")[0] in ("file", "machine", "work")]


def test_no_limit_is_below_what_an_engine_reached(model, tmp_path, roof):
    data = json.loads(explained(model, "--engine", bench(tmp_path, per_token=1e-3), "--json"))
    assert data["mbu"] == pytest.approx(1) and data["bound"]["bandwidth"] > 1e6


def test_two_builds_in_turn(model, tmp_path, roof):
    old, new = bench(tmp_path, "llama-bench-old", 0.04), bench(tmp_path, "llama-bench-new", 0.05)
    told = json.loads(explained(model, "--engine", old, "--engine", new, "--json"))
    ratio = next(row for row in told["compared"] if row["test"] == told["decode"]["name"])
    assert (ratio["before"], ratio["after"], ratio["rounds"]) == (str(old), str(new), 5)
    assert [ratio[name] for name in ("times", "low", "high")] == pytest.approx([0.8] * 3)
    faster = " ".join(explained(model, "--engine", new, "--engine", old).split())
    assert f"To change: take `{old}`, 1.25 times as fast." in faster
    same = json.loads(explained(model, "--engine", old, "--engine", old, "--json"))
    assert [each["engine"]["label"] for each in same["engines"]] == [str(old), f"{old} (2)"]


def test_threads_are_swept_and_the_best_of_each_is_named(model, tmp_path, roof, monkeypatch):
    """A machine on which a second thread halves the speed: the engine's own count is the cause."""
    then = "row['samples_ns'] = [ns * row['n_threads'] ** 2 for ns in row['samples_ns']]\n" + PRINTED
    out = explained(model, "--engine", f"{bench(tmp_path, per_token=4.0, then=then)} -t 2", "--threads", "1,2", "--json")
    data = json.loads(out)
    (swept,) = data["threads"]
    assert swept["decode"]["best"] == swept["prompt"]["best"] == 1 and [row["threads"] for row in swept["decode"]["rows"]] == [
        1,
        2,
    ]
    cause = next(each for each in data["causes"] if each["name"] == "threads")
    assert cause["remedy"] == "-t 1" and cause["seconds"] == pytest.approx(data["decode"]["seconds"] / 2)


def test_a_busy_machine_gives_no_advice(model, tmp_path, roof, monkeypatch):
    monkeypatch.setattr(state, "watched", lambda work, with_=(): (work(), 1.5, True))
    table = explained(model, "--engine", bench(tmp_path), "--markdown").partition("| engine |")[2].splitlines()
    assert next(line for line in table if "tg64" in line).endswith("|  |"), "no share of a limit either"
    text = " ".join(explained(model, "--engine", bench(tmp_path), "--threads", "1,2").split())
    assert "1.5 cores" in text and "the option" not in text
    monkeypatch.setattr(state, "cores_used_by_others", lambda: 1.5)
    monkeypatch.setattr(state, "settle", lambda patience: "other processes use 1.5 cores: they disturb")
    both = ["explain", str(model), "--engine", str(bench(tmp_path)), "--engine", str(bench(tmp_path, "llama-bench-2"))]
    for value, said in {"": "not compared: other", "a while": "KIT_PATIENCE=a while: give seconds"}.items():
        monkeypatch.setenv("KIT_PATIENCE", value)  # both ended in a ValueError: the variable was read in two ways
        ran = CliRunner().invoke(main, both)
        assert ran.exit_code == 2 and said in ran.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--engine", "nothing"), "not an engine"),
        (("--engine", "kit", "--threads", "two"), "--threads two: give counts such as 1,2,4, or all"),
        (("--engine", "kit", "--depth", "0"), "Invalid value for '--depth'"),
        (("--engine", "kit", "--depth", "9999999999999999999999"), "give at most 1,984, because the model has 2,048 positions"),
        (("--engine", "llama.cpp", "--depth", "1985"), "give at most 1,984, because the model has 2,048 positions"),
        (("--engine", "kit", "--threads", f"1,{1 + usable_cores()}"), f"this process may use {usable_cores()} cores"),
        (("--engine", "kit", "--memory", "1GiB"), "leave out --memory"),
        (("--engine", "kit", "--markdown", "--json"), "give --markdown or --json, not both"),
        (("--engine", "kit", "--machine", "apple-m4-16gb"), "leave out --machine"),
    ],
)
def test_bad_input_is_one_line(model, roof, arguments, message):
    ran = CliRunner().invoke(main, ["explain", str(model), *arguments])
    assert ran.exit_code == 2 and message in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr


def test_markdown_has_the_names_of_llama_bench(model, tmp_path, roof):
    arguments = ["--engine", f"{bench(tmp_path, per_token=4.0)} -t 1 -ot 'a|b'", "--depth", 128, "--threads", "1,2"]
    out = explained(model, *arguments, "--markdown")
    data = json.loads(explained(model, *arguments, "--json"))
    assert out.strip() == pasted.markdown(data).strip()  # one function, from the JSON itself
    lines = out[out.index("| engine |") :].splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("|")]
    assert [row[3] for row in rows[2:5]] == ["pp512", "tg64", "tg64 @ d128"]
    assert rows[3][4] == "0.25" and rows[3][6] == f"{data['mbu']:.0%}" and rows[3][2] == "1"
    assert len({len(row) for row in rows[:5]}) == 1  # a | in an option ends no cell
    assert "| not explained |" in out and data["machine"]["id"] in out and out.startswith("**tiny-Q4_K_M.gguf**")


def test_markdown_of_a_running_server():
    """The keys of kit explain URL --json: causes of the decode alone, a test's name by its positions."""
    cause = {"name": "memory", "of": "decode", "seconds": 0.03, "interval": [0.02, 0.04], "evidence": "33 ms | read",
        "remedy": ""}  # fmt: skip
    answer = {
        "engine": {"name": "llama-server", "version": "b1", "threads": 8, "model": "m"},
        "decode": {"tokens_per_second": 10.0, "seconds": 0.1, "interval": [0.09, 0.11], "positions": 64},
        "bound": {"seconds": 0.03, "bytes": 1, "bandwidth": 3e10}, "mbu": 0.3,
        "prompt": {"tokens_per_second": 50.0, "points": [{"positions": 128, "seconds": 1}, {"positions": 512, "seconds": 9}]},
        "at_depth": {"positions": 4096, "tokens_per_second": 5.0, "seconds": 0.2, "interval": [0.2, 0.2]},
        "causes": [cause, cause | {"name": "load", "of": "first request"}],
    }  # fmt: skip
    out = pasted.markdown(answer)
    assert "| `llama-server` | b1 | 8 | pp512 | 50 |" in out and "| tg @ d64 | 10 | 9.09 to 11.1 | 30% |" in out
    assert "| tg @ d4096 | 5 | 5 to 5 |" in out and "loading the model" not in out and "33 ms \\| read" in out
    assert "at 30.0 GB/s" in out


# --- pictures and the gallery ---------------------------------------------------------------------------------------


def test_the_roofline_has_a_decode_and_a_prompt_of_each_engine(model, tmp_path, roof):
    out = tmp_path / "roof.svg"
    text = str(bench(tmp_path, per_token=4.0))
    data = json.loads(explained(model, "--engine", f"{text} -t 1", "--engine", f"{text} -t 2", "--figure", out, "--json"))
    assert out.read_text().lstrip().startswith("<?xml")
    rows = roofline.points(data)
    assert [row.test for row in rows] == ["tg64", "pp512"] * 2 and rows[0].intensity < rows[1].intensity
    ceiling = max(data["machine"]["rates"].values())
    assert rows[0].rate <= max(ceiling, data["machine"]["bandwidth"] * rows[0].intensity) * 1.01
    assert rows[0].rate == pytest.approx(data["work"]["token_operations"] / data["decode"]["seconds"])
    assert roofline.share(data, "decode") == pytest.approx(data["mbu"])
    fastest = max(each["operations_per_second"] for each in data["prompt_bounds"].values())
    least = min(each["seconds"] for each in data["prompt_bounds"].values())
    assert roofline.share(data, "prompt") == pytest.approx(least / data["prompt"]["seconds"]) and fastest == ceiling
    for wrong in ("roof.txt", str(tmp_path / "none" / "roof.png")):
        ran = CliRunner().invoke(main, ["explain", str(model), "--engine", text, "--figure", wrong])
        assert ran.exit_code == 2 and "--figure" in ran.stderr and ran.stderr.count("\n") == 1


def test_the_gallery_is_made_of_the_files_that_people_send(model, tmp_path, roof):
    folder = tmp_path / "my-machine" / "engines"
    folder.mkdir(parents=True)
    assert "No machine yet." in gallery.page(tmp_path)
    told = explained(model, "--engine", bench(tmp_path, per_token=4.0), "--json")
    (folder / "tiny.json").write_text(told)
    data, page = json.loads(told), gallery.write(tmp_path).read_text()
    row = next(line for line in page.splitlines() if "tiny-Q4_K_M.gguf" in line)
    assert f"| {data['decode']['tokens_per_second']:.4g} | not measured | {data['mbu']:.0%} | unexplained" in row
    assert "llama-bench" in row
    data["engines"][0]["decode"]["others_cores"] = 1.0
    (folder / "busy.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match=r"busy\.json: was measured while other processes used the cores"):
        gallery.page(tmp_path)
    (folder / "busy.json").write_text("{}")
    with pytest.raises(ReportError, match="is no output of `kit explain MODEL --engine X --json`"):
        gallery.page(tmp_path)


def test_a_file_is_added_to_the_gallery_without_its_folders(model, tmp_path, roof, capsys):
    (tmp_path / "home").mkdir()
    engine = f"{bench(tmp_path / 'home', per_token=4.0)} -t 1"
    sent = tmp_path / "sent.json"
    sent.write_text(explained(model, "--engine", engine, "--json"))
    added = gallery.add(tmp_path / "reference", sent)
    before, after = json.loads(sent.read_text()), json.loads(added.read_text())
    assert added == tmp_path / "reference" / before["machine"]["id"] / "engines" / "tiny-Q4_K_M-llama-bench.json"
    assert str(tmp_path) in sent.read_text() and str(tmp_path) not in added.read_text() and "/tmp" not in added.read_text()
    assert after["engine"]["label"] == "llama-bench -t 1" and after["file"]["path"] == "tiny-Q4_K_M.gguf"
    row = gallery.rows(tmp_path / "reference")[0]
    assert after["decode"] == before["decode"] and row["threads"] == 1 and row["engine"] == "llama-bench -t 1"
    told = {"evidence": "reads at 20 GB/s", "url": "http://127.0.0.1:8080/v1", "run": "'~/a b/x' -m ../m/y.gguf old/bench"}
    assert gallery._short(told) == told | {"run": "'a b/x' -m y.gguf old/bench"}


def test_the_gallery_takes_the_answer_of_a_server(tmp_path):
    """As kit explain URL --json prints it: tests/test_server.py compares its keys with the documented ones."""
    data = pasted_data(0.1, 2, 0.03, [{"name": "memory", "seconds": 0.03}, {"name": "threads", "seconds": 0.05, "of": "decode"},
                                      {"name": "load", "seconds": 9.0, "of": "first request"}])  # fmt: skip
    answer = {key: data[key] for key in ("decode", "prompt", "causes", "mbu")}
    answer |= {"engine": data["engine"] | {"file": "/models/a.gguf"}, "machine": {"id": "my-machine", "cpu": "a CPU"}}
    sent = tmp_path / "sent.json"
    sent.write_text(json.dumps(answer | {"bound": {"seconds": 0.03, "bytes": 4e8, "bandwidth": 2e10}}))
    assert gallery.add(tmp_path, sent) == tmp_path / "my-machine" / "engines" / "a-llama-server.json"
    row = gallery.page(tmp_path).splitlines()[-1]
    assert row == "| a CPU | 20.0 | a.gguf | llama-server | b1 | 2 | 40 | 10 | not measured | 30% | threads 50% |"
    bound = {"seconds": 0.03, "bytes": 4e8, "bandwidth": 2e10}
    sent.write_text(json.dumps(answer | {"bound": bound, "decode": answer["decode"] | {"others": state.BUSY}}))
    gallery.add(tmp_path, sent)  # over the one that was there
    assert gallery.write(tmp_path).read_text().splitlines()[-1] == row and gallery.write(tmp_path) == tmp_path / "gallery.md"
    sent.write_text(json.dumps(answer | {"bound": bound, "prompt": answer["prompt"] | {"others": 1.1 * state.BUSY}}))
    with pytest.raises(ReportError, match="measured while other processes used the cores"):
        gallery.add(tmp_path, sent)
    sent.write_text(json.dumps(answer | {"bound": None, "mbu": None}))
    with pytest.raises(ReportError, match="or has no limit"):
        gallery.add(tmp_path, sent)


def test_the_committed_gallery_is_the_page_of_its_files():
    folder = ROOT / "results" / "reference"
    assert (folder / gallery.NAME).read_text(encoding="utf-8") == gallery.page(folder)


def test_the_template_has_commands_that_exist():
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / "my_machine.md").read_text(encoding="utf-8")
    options = {option for param in main.commands["explain"].params for option in param.opts}
    assert set(re.findall(r"--[a-z]+", text.partition("---\n")[2].partition("---\n")[2])) - {"--"} <= options


# --- beside kit's own answer ----------------------------------------------------------------------------------------


@pytest.fixture
def study(model, tmp_path, monkeypatch, quiet):
    """A study of a tiny file, whose prompts count, with engines that need what the test says."""
    monkeypatch.setenv("KIT_MEASURED", str(tmp_path))
    monkeypatch.setattr(beside_kit, "_LEAST", 0)
    rates = {kind: arithmetic.Rate((rate, 8e5), kind) for kind, rate in (("float32", 1e6), ("int16", 2e6), ("int8", 4e6))}
    monkeypatch.setattr(arithmetic, "probe", lambda: dict(rates))
    with kit.open(model) as file:
        made = Study(file, machine.probe, 1 << 30)
        made.__dict__ |= {"runs": True}
        yield made


class Reader:
    """An engine of peers.compare that takes so many ``seconds`` for each token of a prompt; ``asked``: how many each time."""

    process = None

    def __init__(self, seconds):
        self.seconds, self.asked = seconds, []

    def ask(self, begin):
        self.asked.append(len(begin))
        return self.seconds * len(begin), []


@pytest.fixture
def passed(monkeypatch):
    """together.passes of engines that take so many seconds for a token, with the cores of others that each round had."""

    def ask(speeds, others=0.0):
        monkeypatch.setattr(state, "watched", lambda work, with_=(): (work(), others, others > state.BUSY))
        running = {name: Reader(seconds) for name, seconds in speeds.items()}
        return together.passes(running, [1, 5, 9], (4, 512)), [engine.asked for engine in running.values()]

    return ask


def test_tokens_together_are_timed_in_turn(passed):
    found, asked = passed({"kit": 1e-3, peers.PEER: 2e-3})
    assert found == {"kit": {4: [1e-3] * 3, 512: [1e-3] * 3}, peers.PEER: {4: [2e-3] * 3, 512: [2e-3] * 3}}
    assert asked == [[4] * 4 + [96] + [512] * 3] * 2  # the first of each compiles


def test_a_long_prompt_is_timed_once_and_one_that_takes_minutes_is_not(passed):
    found, asked = passed({"kit": 0.03, peers.PEER: 0.1})
    assert found["kit"] == {4: [0.03] * 3, 512: [0.03]} and found[peers.PEER] == {4: [0.1] * 3}
    assert asked == [[4] * 4 + [96, 512], [4] * 4]


def test_tokens_together_on_a_busy_machine_are_none(passed):
    assert passed({"kit": 1e-3}, others=1.0)[0] == {"kit": {}}


def test_a_context_that_is_short_has_no_prompt():
    said = {"general.architecture": "x"}
    for context, counts in ((3, ()), (511, (4,)), (512, (4, 512))):
        assert together.lengths(SimpleNamespace(metadata=said | {"x.context_length": context})) == counts


def test_prompts_are_held_against_arithmetic(study, monkeypatch):
    monkeypatch.setattr(Study, "read_gbps", 1e-3)
    digest = measurements.digest_of(study.file)
    rows = {name: {"together": {"512": [seconds]}} for name, seconds in zip(COMPARED, (2.0, 1.5, 1.0, 0.5), strict=True)}
    together.note(rows, digest, "explain", study.store)
    data, text = beside_kit.prompt(study)
    work = bounds_of.work_of(study.file, 512)
    for kind, rate in (("float32", 1e6), ("int16", 2e6), ("int8", 4e6)):
        least = max(work.prompt_operations / rate, work.prompt_bytes / 1e6) / 512
        assert data["bounds"][kind]["seconds"] == pytest.approx(least)
    assert {name: row["seconds"] for name, row in data["engines"].items()} == {"exact": 2, "int16": 1.5, "int8": 1,
        "llama.cpp": 0.5}  # fmt: skip
    shares = [data["bounds"][kind]["seconds"] / row["seconds"] for kind, row in zip(
        ("float32", "int16", "int8", "int8"), data["engines"].values(), strict=True)]  # fmt: skip
    told = " ".join(text.split())
    assert all(f"({share:.0%} of its limit)" in told for share in shares)
    monkeypatch.setattr(arithmetic, "probe", lambda: pytest.fail("measured again"))  # the store has it now
    assert beside_kit.prompt(study)[0] == data


def test_one_token_a_few_and_a_prompt_are_points_below_their_roof(study):
    digest, rates = measurements.digest_of(study.file), {"float32": 1e6, "int16": 2e6, "int8": 4e6}
    for name, row in COMPARED.items():
        measurements.note(study.store, Reading(row.label, digest, (4.0,)))
        together.note({name: {"together": {4: [2.0], 512: [1.0]}}}, digest, "explain", study.store)
    points = together.points(study.file, study.store)
    assert [point.test for point in points] == ["1 token", "4 tokens together", "512 tokens together"] * len(COMPARED)
    assert points[0].rate == pytest.approx(bounds_of.work_of(study.file, 1).token_operations / 4)
    few = bounds_of.work_of(study.file, 4)
    assert points[1].rate == pytest.approx(few.prompt_operations / 8) and points[0].intensity < points[1].intensity
    shares = together.shares(points, rates, 1e9)
    for name, kind in (("exact", "float32"), ("int16", "int16"), ("int8", "int8"), ("llama.cpp", "int8")):
        assert shares[name] == pytest.approx(points[2].rate / rates[kind])
    assert together.shares(points, rates, 1.0)["exact"] == pytest.approx(points[2].rate / points[2].intensity)


def test_flags_of_llama_cpp_are_those_of_this_machine(study, monkeypatch):
    monkeypatch.setattr(beside_kit, "cores", lambda: Cores(16, 8, 4, 3.5))
    text = beside_kit.flags(answer.Conclusion(study, {}, None, None, {}))
    assert "`-t 4`" in text and "the time of 3.5" in text and "`--engine`" in text
