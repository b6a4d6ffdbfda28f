"""Every benchmark runs, on small cases and in this process: its table has its rows. No speed is looked at."""

import ast
import importlib
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import kind_files
import llama_cpp as llama_cpp_tests
import model_files
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import kit
from benchmarks import _deep, _files, _records, _reference, _speeds, decode, hf, quality, slots, waits
from benchmarks.__main__ import NAMES, main
from kit.errors import ModelError, ReportError
from kit.lab.engines import llama_cpp
from kit.lab.measuring.group import missing_rights
from kit.model.hyperparameters import read_config
from kit.system.paths import ROOT

SMALL = {  # benchmark -> (constants that make it small, arguments of its run, words that its rows' names begin with)
    "advice": ({"MODELS": ("tiny",), "SHARES": (20.0,), "TOKENS": 4}, {}, ("tiny, 20 of the file, blocks",)),
    "batches": ({"TOKENS": (4,)}, {"samples": 2}, ("batch of 4, blocks", "batch of 4, torch int8", "batch of 4, torch int4")),
    "codec": ({"TILES": 8, "CODERS": {"kit": ("simd",)}}, {"samples": 2}, ("entropy", "kit", "zstd -1")),
    "cycles": ({"FORMATS": ("Q8_0",), "_ggmls": lambda *_: {"Q8_0": ".L1:\n\tsdot\tv0.4s, v1.16b, v2.16b\n\tb.ne\t.L1\n"},
        "_tool": lambda *_, **__: "Total Cycles:  5000\n[0.0] - CyUnitB\n"
            "Resource pressure per iteration:\n[0.0]  [1]\n2.00   -\n"},
        {"only": "apple-m4"}, ("apple-m4 Cy Q8_0",)),
    "decode": ({"_quality": lambda *_: {"kl": 0.5}}, {"only": "decode, gemma", "samples": 2},
        ("decode, fused-int8, gemma", "decode, fused, gemma", "decode, llama.cpp, gemma")),
    "depths": ({"MODELS": {"tiny": None}, "ROUNDS": 1,
        "machine": SimpleNamespace(probe=lambda _: SimpleNamespace(read_gbps=10.0))}, {"depths": (12, 40)},
        ("tiny at 40, sparse latent, index", "tiny at 40, index and choosing", "tiny at 12, weights and the rest")
        + (("tiny at 40, token, kit, int8", "tiny at 12, token, llama.cpp") if llama_cpp.available() else ())),
    "dequantize": ({"ROWS": 1024, "COMMON": ("Q4_K",)}, {"only": "Q4_K", "samples": 2}, ("Q4_K",)),
    "drafts": ({"TEXTS": ("code", "edit"), "TOKENS": 9, "ROUNDS": 1}, {},
        ("code, draft of 4, kit, exact", "code, draft of 4, llama.cpp", "edit, n-grams, 8, kit, int8",
        "edit, n-grams, 48, llama.cpp")),
    "explain": ({"GENERATED": {"x": 1}, "SHARES": (0.5,), "TRAINED": {}}, {"samples": 2}, ("tiny", "1.10", "1.25")),
    "first_call": ({}, {"names": ("F32",)}, ("import numpy", "F32 first", "import, open")),
    "hf": ({"TRAINED": {"tiny": None}}, {}, ("tiny kit", "tiny llama.cpp, mmap", "tiny transformers")),
    "parts": ({"MODELS": ("tiny",), "TRAINED": {"tiny": None}, "PROMPT": 20}, {"tokens": 2, "prompts": 1},
        ("tiny fused token", "tiny fused-int8 ffn_up", "tiny kit.hf transformers", "tiny kit.hf, prompt of 20 ffn_up")),
    "products": ({"NAMES": ("Q4_K",), "ROWS": 256}, {"samples": 2, "total": 2**20},
        ("product, Q4_K, int8", "product, Q4_K, f")),
    "ptxas": ({"GPUS": {"sm_90": "H100"}}, {"only": "pack"}, ("pack", "pack with a gate")),
    "quality": ({"TRAINED": {"tiny": SimpleNamespace(file="", sha256="")}, "LONG": "long", "POSITIONS": 8}, {"tokens": 20},
        ("tiny, fused, prompt", "tiny, fused-int8, token by token", "tiny, llama.cpp, prompt", "long, 8 positions, INT8 tiles",
        "long, 8 positions, llama.cpp")),
    "scale": ({"OBJECTS": (10, 20), "TENSORS": (10, 20), "PARTS": (2, 3), "SPANS": (10, 20), "TOKENS": (2, 3),
        "SHORTEST": 100}, {"samples": 2},
        ("an access, CyclicAware", "open, a tensor", "kit inspect, a part", "frame, a span, bytes", "a token after so many")),
    "slots": ({"LAYERS": {"tiny": 2}, "SHARES": (0.25,), "PROMPT": 8, "TOKENS": 4, "PEERS": {"llama.cpp, mmap": "mmap"},
        "BUDGETS": {"all but 0 of the dense weights": (0.0, 0.0)}, "missing_rights": lambda **_: []}, {},
        ("tiny, 0.25 of the file, kit, slots", "tiny, 0.25 of the file, kit, page cache", "tiny, 0.25 of the file, llama.cpp",
        "tiny, 0.25 of the file, kit, slots of all but 0 of the dense weights, drawn routes")),
    "threads": ({"LAYERS": 1, "SHAPES": ((64, 256),), "PARTS": {"all cores": {}, "busy": {"busy": True}}}, {"samples": 2},
        ("program", "Numba", "ThreadPool", "a token, all cores, fused-int8", "its CPU time, busy, fused")),
    "waits": ({"GROUPS": ({"fresh": (1, "touch new", "test -e Makefile -a -e new"), "again": (None, "true", "test -e new"),
        "no": ()},)}, {"only": "again"}, ("fresh", "again")),
    "variants": ({"CASES": [("fused-int8", "prefill", 4)]}, {"samples": 2}, ("prefill, fused-int8",)),
}  # fmt: skip


class Here:
    """A benchmarks._turns.Side in this process; a peer's threads wait as they do without the kit."""

    def __init__(self, *command, **environment):
        assert decode.PEER not in "".join(command) or llama_cpp.ENVIRONMENT.items() <= environment.items()
        module = command[1] if command[0] == "-m" else f"benchmarks.{Path(command[0]).stem}"
        self._run = importlib.import_module(module).side(*command[1 + (command[0] == "-m") :])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def sample(self) -> float:
        started = time.perf_counter()
        self._run()
        self.cpu = time.perf_counter() - started
        return self.cpu


def _invented(path, engines, *_, **__):
    return pd.DataFrame([{"speed": 1.0, "beyond imports": 2.0, "samples": [1], "reason": ""}] * len(engines), engines)


def test_every_benchmark_has_a_small_case_and_can_be_imported():
    """An import of what a module no longer has was noticed by the slow tests alone."""
    assert set(SMALL) == {name for name in NAMES if importlib.import_module(f"benchmarks.{name}").run}


LONG = "advice", "cycles", "drafts", "explain", "first_call", "quality"  # of more than three seconds


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SMALL])
def test_it_runs(name, tmp_path, monkeypatch):
    constants, arguments, rows = SMALL[name]
    module, path = importlib.import_module(f"benchmarks.{name}"), model_files.write(tmp_path, "tiny-llama", "Q4_K_M")
    monkeypatch.setattr("benchmarks._turns.Side", Here)
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    for function in ("cached_model", "fetch"):
        if hasattr(module, function):
            monkeypatch.setattr(module, function, lambda *_, **__: path)
    if name == "slots":  # tests/test_child.py and test_pressure.py run children under a limit
        path = model_files.write(tmp_path, "tiny-qwen3moe", "Q4_K_M")
        monkeypatch.setattr(module, "Group", lambda *_: nullcontext(SimpleNamespace(run=None)))
        monkeypatch.setattr(module.child, "call", lambda function, *given, **_: function(*given))
        monkeypatch.setattr(module.budget, "process_bytes", lambda file: 0)
    if name == "depths":
        path = kind_files.write(tmp_path, "glm-dsa")
    if name == "parts":
        monkeypatch.setattr(module.decode, "path_of", lambda _: path)
    if name == "variants":
        monkeypatch.setattr("kit.lab.synthetic.write.cached_model", lambda *_, **__: path)
    if name == "drafts":  # a draft is smaller than its model
        llama_cpp_tests.needed()
        two = path, model_files.write(tmp_path, "tiny-llama", "Q8_0")
        monkeypatch.setattr(module, "fetch", lambda name: two[name == module.MODEL])
    if name == "hf":  # tests/test_peers.py runs the engines themselves
        monkeypatch.setattr(module.peers, "compare", _invented)
        monkeypatch.setattr(module.quality, "of", lambda *_, **__: {"kl": 0.5, "kl_error": 0.1, "same": 1.0})
    names = (table := module.run(**arguments)).index
    if name == "advice":
        assert (table["peak of memory"] <= 1).all() and table["in a group, s"].notna().all() == (not missing_rights(False))
    if name == "drafts":
        drafted = {row.rpartition(", ")[2]: table["drafted"][row] for row in table.index if "draft of 4" in row}
        assert all(drafted.values()) and (table["accepted"] <= table["drafted"]).all(), drafted
    names = [" ".join(name) if isinstance(name, tuple) else name for name in names]
    assert all(any(name.startswith(row) for name in names) for row in rows), names


@pytest.mark.parametrize("name", ["glm-dsa", "qwen4exp"])
def test_llama_cpp_goes_on_after_positions_that_no_prompt_made(tmp_path, name):
    """The state of one position is itself, of more it is taken, and what is not laid out so is refused."""
    llama_cpp_tests.needed()
    path = kind_files.write(tmp_path, name)
    with kit.open(path) as file:
        sections = _deep.sections_of(read_config(file))
    with llama_cpp.Llama(path, 64) as model:
        before = model.logits([5], 0, 1)
        state = _deep.state_of(model)
        assert _deep.grown(state, 1, sections) == state
        _deep.set_state(model, many := _deep.grown(state, 40, sections))
        assert model._lib.llama_memory_seq_pos_max(model._memory, 0) == 39 and _deep.state_of(model) == many
        after = model.logits([5], 40, 1)
        assert np.isfinite(after).all() and not np.allclose(before, after, atol=1e-3)
        for wrong in (state[:-4], state + bytes(4), many):
            with pytest.raises(ModelError, match="unknown layout"):
                _deep.grown(wrong, 40, sections)
        with pytest.raises(ModelError, match="does not take"):
            _deep.set_state(model, state[:-4])
    with (
        kit.open(kind_files.write(tmp_path, "mamba")) as file,
        pytest.raises(ModelError, match=r"caches of llama\.cpp for mamba"),
    ):
        _deep.sections_of(read_config(file))


def test_no_token_with_slots_takes_less_than_its_least():
    """Half of the tokens miss all and half nothing: over the mean of their misses, the median token took 0.69 of its least."""
    random = np.random.default_rng(0)
    for _ in range(50):
        read = random.integers(0, 2, 24) * 10**9
        seconds = read / random.uniform(1e9, 2e9, 24) + random.uniform(0.1, 0.2, 24)
        missed = read + random.integers(0, 10**8, 24)  # what the page cache still had
        floor = slots.least(seconds, read, missed, 1.5, 10**9, 3.0)
        assert 0 < floor <= np.median(seconds)
    assert slots.least([0.5] * 3, [10**9] * 3, [10**9] * 3, 1.0, 10**8, 10.0) == pytest.approx(0.5)
    assert slots.least([0.5] * 3, [0] * 3, [0] * 3, 1.0, 10**9, 10.0) == pytest.approx(0.1)
    assert np.isnan(slots.least([0.5] * 3, [0] * 3, None, 1.0, 10**9, 10.0))


def test_a_side_that_takes_too_long_has_a_row_and_each_row_is_kept_at_once(tmp_path, monkeypatch):
    """Of 30 minutes of sides, none is lost with the last."""
    path, main = model_files.write(tmp_path, "tiny-qwen3moe", "Q4_K_M"), importlib.import_module("benchmarks.__main__")

    def late(function, *_, **__):
        if function is not slots._own:
            raise ReportError("killed")
        return 0

    monkeypatch.setattr(slots.child, "call", late)
    monkeypatch.setattr(slots, "Group", lambda *_: nullcontext(SimpleNamespace(run=None)))
    told = [slots._measured(path, slots.Case("tiny", 0.25, "kit, slots"), within)["told"] for within in (-1.0, 9.0)]
    assert told == ["not within -1 s", "killed"]
    assert slots._by_the_kit(str(path), slots.SLOTS + slots.DRAWN, 1 << 34, 1 << 20, 8)[2]().startswith("7 slots of 140.0 KiB")

    def parts(within):
        yield pd.DataFrame([{"what": "first", "within": within}]).set_index("what")
        raise KeyboardInterrupt

    monkeypatch.setattr(slots, "parts", parts)
    monkeypatch.setattr(main, "ROOT", tmp_path)
    assert CliRunner().invoke(main.main, ["slots", "--save", "--within", "7"]).exit_code == 1
    (kept,) = [json.loads(line) for file in tmp_path.rglob("slots.jsonl") for line in file.open()]
    assert kept["rows"] == [{"what": "first", "within": 7.0}]


def test_a_benchmark_that_imports_another_is_run_itself(monkeypatch):
    monkeypatch.setattr(hf, "run", lambda: pd.DataFrame([{"what": "all", "ratio": 1.5}]).set_index("what"))
    done = CliRunner().invoke(main, ["hf"], catch_exceptions=False)
    assert "all" in done.output and "1.5" in done.output


def test_a_case_says_how_long_it_takes(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(1 << 20))
    os.truncate(path, 1_117_320_768)
    took = {case: decode._expected(path, case, 4, 6) for case in decode.CASES}
    assert 20 < took["decode"] < 60 < took["decode at 8192"] < decode._PATIENCE < took["prefill of 4096"]
    assert decode._expected(path, "prefill of 4096", 4, 2) < 720
    assert {(case, decode.CASES[case][:2]) for case in ("decode at 8192", "prefill of 4096")} == {
        ("decode at 8192", (8191, 1)), ("prefill of 4096", (0, 4096))
    }  # fmt: skip


def test_every_file_that_is_timed_comes_through_one_door():
    """So that the record of any benchmark says how its files lay (benchmarks._files)."""
    others = [path for path in (ROOT / "benchmarks").glob("*.py") if path.name != "_files.py"]
    names = {
        (node.module, name.name)
        for path in others
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert ("benchmarks._files", "fetch") in names and ("benchmarks._files", "cached_model") in names
    assert not names & {("kit.gguf.trained", "fetch"), ("kit.lab.synthetic.write", "cached_model")}


def test_a_file_is_brought_to_a_state_and_the_record_says_which(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(_files.trained, "fetch", lambda name: made.append(name) or model_files.write(tmp_path, name, "F32"))
    monkeypatch.setattr(_files.large_pages, "LEAST", 0)
    monkeypatch.setattr(_files.pages, "LEAST", 0)
    path = _files.fetch("tiny-llama")
    ((before, now),) = _files.taken().values()
    assert made == ["tiny-llama"] and now.keys() == before.keys() and min(now["map GB/s"], now["memory GB/s"]) > 0
    assert _files.taken() == {}
    with _files.lying(path, "large") as same:
        assert same == path
    with _files.lying(path, "small") as copy:
        assert copy.name == path.name and copy.read_bytes() == path.read_bytes()
        assert not _files.state(copy)["by 2 MiB"]
    assert not copy.exists() and path.exists()


def test_quality_comes_from_a_record_of_the_same_file_code_and_pass(tmp_path, monkeypatch):
    path, pairs = model_files.write(tmp_path, "tiny-llama", "Q4_K_M"), (("A", "1"),)
    key = quality.key_of(path, "kit", "prompt", kv="float16")
    others = [quality.key_of(path, "kit, int8 activations", "prompt", kv="float16")]
    others += [quality.key_of(path, "kit", "token by token", kv="float16"), quality.key_of(path, "kit", "prompt", kv="q8_0")]
    others += [quality.key_of(path, "kit", "prompt", pairs, kv="float16")]
    (changed := tmp_path / "changed.gguf").write_bytes(path.read_bytes() + b" ")
    others.append(quality.key_of(changed, "kit", "prompt", kv="float16"))
    assert len({key, *others}) == 6
    folder = tmp_path / "reference" / "m" / "benchmarks"
    folder.mkdir(parents=True)
    rows = [{"kl key": key, "kl": kl, "kl_error": 0.1, "same": 1.0, "tokens": count} for kl, count in ((0.1, 128), (0.2, 600))]
    (folder / "decode.jsonl").write_text(json.dumps({"rows": [*rows, {"kl key": others[0]}]}) + "\n")
    monkeypatch.setattr(_records, "REFERENCE", tmp_path / "reference")
    monkeypatch.setattr(quality, "of", lambda *given, **_: rows[0] | {"kl": given[3]})
    assert quality.told(path, "kit", "prompt", kv="float16") == rows[1]
    assert quality.told(changed, "kit", "prompt", kv="float16")["kl"] == quality.FEW


def test_all_engines_are_held_to_avx2_and_the_table_says_so(tmp_path, monkeypatch):
    """A record of a CPU with more is none of an AVX2 one's, and the page's table is of all that a CPU has."""
    path, given = model_files.write(tmp_path, "tiny-llama", "Q4_K_M"), []
    monkeypatch.setattr(hf, "TRAINED", {"tiny": None, "other": None})
    monkeypatch.setattr(hf, "fetch", lambda _: path)
    monkeypatch.setattr(hf.peers, "compare", lambda *how, environment, **_: given.append(environment) or _invented(*how))
    monkeypatch.setattr(hf.quality, "of", lambda *_, environment: given.append(dict(environment)) or dict.fromkeys(
        ("kl", "kl_error", "same"), 0.0))  # fmt: skip
    table = hf.run("tiny on AVX2")
    assert {*table["held to"]} == {"AVX2"} and {model for model, _ in table.index} == {"tiny"}
    assert all(each["ATEN_CPU_CAPABILITY"] == "avx2" and each["LLAMA_CPP"] == "" for each in given) and len(given) == 8
    told = "import kit.cpu.simd as simd; print(simd.tier().value)"
    ran = subprocess.run([sys.executable, "-c", told], env=os.environ | given[0], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() in ("avx2", "neon")
    run = {"system": {"cpu_features": ["avx512f", "avx2"]}, "machine_id": "amd-x", "rows": table.to_dict("records")}
    assert _speeds._cpu(run) == "AMD held to AVX2"
    assert {*hf.run("tiny")["held to"]} == {""} and not given[8]


@pytest.mark.slow
def test_quality_is_that_of_the_way_beside_exact_arithmetic(tmp_path):
    """float32 activations lose nothing; eight bits lose less in a prompt than token by token, and llama.cpp's not nothing."""
    path = model_files.write(tmp_path, "tiny-llama", "Q4_K_M")

    def lost(engine):
        return [quality.of(path, engine, name, 40, kv="float32")["kl"] for name in quality.PASSES]

    exact, rounded, theirs = map(lost, ("kit", "kit, int8 activations", "llama.cpp, mmap"))
    assert max(exact) < 1e-6 * min(rounded)
    assert rounded[0] < rounded[1]
    assert 0 < min(theirs) and max(theirs) < 3 * rounded[1]


def test_the_table_of_peers_says_what_was_not_measured():
    row = {"model": "m", "reason": "", "kl": 1e-7, "beyond imports": 4e8, "mapped": 1e8, "prefill": 3.0, "of llama.cpp": 1.1}
    rows = [row | {"engine": "transformers", "load": 9.0, "of transformers": 1.0}]
    rows += [row | {"engine": "kit in transformers", "load": 1.6, "prefill": 4.5, "of transformers": 2.9}]
    rows += [row | {"engine": "kit", "model": "n"}, {"model": "n", "engine": "kit in transformers", "reason": "no memory"}]
    ours = next(line for line in hf.summary(rows, "a CPU").splitlines() if line.startswith("| `kit.hf.load` |"))
    assert ours == "| `kit.hf.load` | 1e-07, – | 1.6, – | 300, – | 1.50, – | 2.90, – | 1.10, – |"


def test_what_misses_its_time_is_bold_and_samples_of_one_commit_accumulate():
    what, again = "kit explain, the first time", "the quick run again, nothing changed"
    runs = [(1, "aaaaaaa", {"what": what, "wanted": 15, "seconds": 10.0, "cpu": 20.0})]
    runs += [(n, "bbbbbbb", {"what": what, "wanted": 15, "seconds": 12.0 + n, "cpu": 30.0}) for n in (2, 3, 4)]
    runs += [(5, "bbbbbbb", {"what": again, "wanted": None, "seconds": 4.0, "cpu": 3.0})]
    runs = [{"started": n, "machine_id": "m", "system": {"commit": commit}, "rows": [row]} for n, commit, row in runs]
    assert waits.summary(runs).splitlines()[2:] == [
        f"| {what} | 15 | 15.0 | 14.0, 15.0, 16.0 | 30 | bbbbbbb |", f"| {again} |  | 4.0 | 4.0 | 3 | bbbbbbb |"
    ]  # fmt: skip
    runs[2]["rows"][0]["seconds"] = 19.0
    assert "| 15 | **16.0** | 14.0, 19.0, 16.0 |" in waits.summary(runs)
    assert waits.medians(runs) == {what: 16.0, again: 4.0}


def test_the_summary_has_every_models_newest_record_and_small_pages_are_a_case_of_their_own(monkeypatch):
    """One model measured again took the others out of the table, and a record of small pages took the place of large ones."""

    def run(commit, started, what, ratio, pages="large"):
        row = {"what": what, "ratio": ratio, "least": 0.5, "kl": 0.001, "same": 1.0, "pages": pages}
        system = {"commit": commit, "cpu_features": ["avx2"]}
        return {"benchmark": "decode", "title": "t", "started": started, "machine_id": "amd-x", "system": system, "rows": [row]}

    old, new, small = (f"decode, fused, {model}" for model in ("smollm2-135m", "gemma-3-270m", "gemma-3-270m"))
    committed = [run("a", 1, old, 1.5), run("a", 1, new, 1.1), run("b", 2, new, 0.9), run("b", 3, small, 0.7, "small")]
    monkeypatch.setattr(_speeds, "runs", lambda name: iter(committed))
    assert _speeds._ranges() == {
        ("AMD, AVX2", "decode", "fused"): (0.9, 1.5),
        ("AMD, AVX2", "decode from pages of 4 KiB", "fused"): (0.7, 0.7),
    }


def test_a_command_that_fails_is_no_sample(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 3:\nwhy"):
        waits._shell("echo why; exit 3", tmp_path)


def test_a_missed_goal_has_its_reason_by_part():
    """Milliseconds of a profile on the same CPU, of the same model and pass; what reaches its goal needs none."""
    rows = [{"model": "m", "engine": "transformers", "reason": "", "prefill": 1000.0}]
    rows.append({"model": "m", "engine": "kit in transformers", "reason": "", "prefill": 1024.0, "speed": 10.0,
                 "of transformers": 2.0, "of llama.cpp": 9.0})  # fmt: skip
    parts = {"token": 90e3, "ffn_up": 50e3, "ffn_down": 25e3, "attention": 5e3, "rest": 10e3, "transformers": 2e3,
        "engine": 8e3}  # fmt: skip
    profile = [{"model": "m", "way": "kit.hf", "part": part, "us": us, "GB/s": 20.0} for part, us in parts.items()]
    told = hf.reasons(rows, {"rows": [*profile, profile[1] | {"model": "another"}]}).splitlines()
    assert told == [
        "- m, a prompt, times transformers: 1.02, wanted 1.5. 500 ms, of which the goal leaves 341. By part, ms: not profiled.",
        "- m, a token, times transformers: 2.00, wanted 3. 100 ms, of which the goal leaves 66.7. By part, ms: products 75, "
        "the rest of it 10, the kit's around its pass 8, attention, norms, embedding 5, Python of transformers 2, "
        "products at 20 GB/s.",
    ]


def run_of(folder, started, commit="c" * 12, model="", pages=True, **outcome):
    """A run of every notebook, as `kit reproduce` leaves it: a record, a page and a picture of each."""
    folder.mkdir(parents=True)
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    of = {"status": "ok", "reason": "", "cell": 1, "seconds": 1.0, "records_before": [], "finished": "", "digest": ""} | outcome
    request = {"profile": "quick", "model": model, "only": [], "texts": [], "device": "cpu"}
    state = {"request": request, "machine_id": "m", "kit_version": "0", "commit": commit, "started": started}
    state |= {"notebooks": dict.fromkeys(names, of), "planned": names, "schema_version": 1}
    (folder / "run.json").write_text(json.dumps(state))
    for name in ("index.html", "peers.json", "measurements.ndjson",
        *(f"{name}.{kind}" for name in names for kind in ("html", "jsonl"))):  # fmt: skip
        if pages or not name.endswith("html"):
            (folder / name).write_text("")
    return folder


def test_a_run_becomes_the_committed_one_and_older_ones_keep_their_records(tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "REFERENCE", tmp_path / "reference")
    first = _reference.add(run_of(tmp_path / "a", "2026-01-01", "a" * 12))
    second = _reference.add(run_of(tmp_path / "b", "2026-01-02", "b" * 12))
    assert first == second == tmp_path / "reference" / "m" / "quick", "the older one is quick-<commit> now"
    third = _reference.add(run_of(tmp_path / "c", "2026-01-03", model="/models/some-1.5b.gguf"))
    assert third.name == "some-1.5b" and _records.newest() == third
    assert {path.name for path in _reference.tidy()} == {"quick", "quick-aaaaaaa"} and _reference.tidy() == []
    for folder in third.parent.iterdir():
        kinds = {path.suffix for path in folder.iterdir()}
        assert kinds == {".json", ".jsonl"} | ({".html"} if folder == third else set())


def test_a_run_that_failed_or_was_disturbed_is_not_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "REFERENCE", tmp_path / "reference")
    with pytest.raises(ValueError, match="failed in 00_start_here, 01"):
        _reference.add(run_of(tmp_path / "a", "2026-01-01", status="failed"))
    busy = run_of(tmp_path / "b", "2026-01-01")
    (busy / "run.json").write_text((busy / "run.json").read_text().replace("07_memory_frontier", "07_other"))
    with pytest.raises(ValueError, match="has no 07_memory_frontier"):
        _reference.add(busy)
    monkeypatch.setattr(_reference.Run, "was_busy", lambda self, name: name.startswith("09"))
    with pytest.raises(ValueError, match="was disturbed in 09_your_model: run it again on an idle machine"):
        _reference.add(run_of(tmp_path / "c", "2026-01-01"))
    assert not (tmp_path / "reference").exists()


def test_one_rendered_run_of_each_kind_of_machine_is_in_the_repository():
    assert _reference.kind(Path("cpu-2c-24g-8da4")) == _reference.kind(Path("cpu-2c-24g-c082")) == "cpu-2c-24g"
    machines = [_reference.kind(folder.parent) for folder in _records.rendered()]
    assert len(machines) == len({*machines}) > 0
    stray = [path for kind in _reference.PAGES for path in _records.REFERENCE.glob(f"*/*/{kind}")]
    assert {path.parent for path in stray} == {*_records.rendered()}
