"""What notebooks need is made before they run: the right work, once, in processes that leave nothing behind."""

import ast
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import nbformat
import pytest

import kit
from kit.errors import ReportError
from kit.gguf.formats import FORMATS
from kit.lab.findings import pressure
from kit.lab.report import ahead, planning
from kit.lab.report import run as runs
from kit.products import PRODUCTS
from kit.system.paths import ROOT


def work_of(profile="smoke", **request):
    """{notebook: its work} of the kit's own."""
    jobs = planning.plan(runs.Request(profile, **request), ROOT / "notebooks")
    return {job.name: ahead.work_of(job.declares, profile, request.get("model", "")) for job in jobs}


def test_a_notebook_gets_what_it_declares():
    work = work_of("quick")
    assert {each[1] for each in work["00_start_here"] if each[0] == "dequantized"} == {"F32", "Q4_K", "Q6_K"}
    assert {each[1] for each in work["00_start_here"] if each[0] == "multiplied"} == {"F32", "Q4_K", "Q6_K"}
    assert ("generated", "quick", "granite-3.3-8b", 0) in work["00_start_here"]
    assert not [each for each in work["00_start_here"] if each[0] == "token"], "it runs no model"
    assert {("token", "fused", "fused", "float32", None)} <= {*work["09_your_model"]}
    for activations in PRODUCTS:
        assert {("multiplied", qtype, 5, activations) for qtype in ("BF16", "Q4_K")} <= {*work["09_your_model"]}
        assert ("multiplied", "Q4_K", 64, activations) in work["09_your_model"]
    assert {each[0] for each in work["05_tile_decode"]} >= {"tiles"} and not work["08_claims"]
    assert ("generated", "quick", "qwen3-30b-a3b", 0) in work["10_experts"]
    assert not ahead.work_of({}, "quick")
    for name, wrong in {"makes": "tokns", "models": "granite"}.items():
        with pytest.raises(ReportError, match=f"metadata kit.{name}.*'{wrong}'.*choose one of"):
            ahead.work_of({name: [wrong]}, "quick")


def test_every_notebook_declares_the_models_that_it_opens():
    """By its cells: 04 opened TinyLlama by a function of another module, and nothing generated it ahead."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, 4)
        code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        code = code.replace("pressure.of_run(", "lab.path(pressure.STANDS_FOR) and pressure.of_run(")
        calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
        names = [call.args for call in calls if ast.unparse(call.func) in ("lab.path", "lab.file")]
        opened = {eval(ast.unparse(args[0]), {"pressure": pressure}) if args else ahead._STAND_IN for args in names}
        assert {*notebook.metadata.kit.models} == opened, path.name


def test_of_a_users_file_its_own_formats_are_compiled_and_no_model_is_made(tmp_path):
    from kit.lab.synthetic.write import synthesize

    work = work_of(model=str(synthesize(tmp_path / "own.gguf", "tiny-llama", "Q8_0")))["00_start_here"]
    assert "generated" not in {each[0] for each in work}
    assert {each[1] for each in work if each[0] == "dequantized"} == {"F32", "Q8_0"}


def test_kernels_are_those_that_the_tensors_of_a_file_need():
    tensors = [SimpleNamespace(qtype=qtype, shape=shape) for qtype, shape in (
        ("F32", (8,)), ("Q4_K", (8, 8)), ("Q4_K", (8,)), ("Q6_K", (8, 8)), ("of another program", (8, 8)))]  # fmt: skip
    found = lambda name, **how: [each[1:] for each in ahead.kernels(tensors, **how) if each[0] == name]  # noqa: E731
    assert found("dequantized") == [("Q6_K", None), ("Q4_K", None), ("F32", None)], "the longest to compile first"
    assert {*found("dequantized", plain=True)} == {
        (qtype, tier) for qtype in ("Q6_K", "Q4_K", "F32") for tier in (None, "plain")
    }
    products = lambda tokens, **how: {each[0] for each in found("multiplied", **how) if each[1] == tokens}  # noqa: E731
    assert products(5, runs=False) == {"Q6_K", "Q4_K", "F32"} and products(64, runs=False) == products(64, prompts=()) == set()
    assert products(5) == {"Q6_K", "Q4_K", "F32", "F16", "BF16"} and products(64) == {"Q6_K", "Q4_K"}, (
        "a vector multiplies none"
    )
    assert {each[2] for each in found("multiplied")} == {*PRODUCTS}
    assert [*dict.fromkeys(each[0] for each in found("multiplied") if each[1] == 64)] == ["Q6_K", "Q4_K"]
    passes = [
        (each, how) for each in ("token", "first token") for how in ({}, {"prompts": ()}, {"runs": False}) if found(each, **how)
    ]
    assert passes == [("token", {}), ("first token", {"prompts": ()})]


@pytest.mark.parametrize(("makes", "how"), [
    (["formats"], {"runs": False, "plain": False}), (["tokens"], {"runs": True, "plain": False}),
    (["plain", "formats"], {"runs": False, "plain": True}), (["plain", "tiles"], None), (["histories"], None),
])  # fmt: skip
def test_formats_are_compiled_for_who_says_so_and_prompts_for_who_runs_the_model(monkeypatch, makes, how):
    asked = []
    monkeypatch.setattr(ahead, "kernels", lambda tensors, **given: asked.append(given) or [])
    work = ahead.work_of({"makes": makes, "models": ["granite-3.3-8b"]}, "smoke")
    assert asked == ([how] if how else []) and ("generated", "smoke", "granite-3.3-8b", 0) in work
    assert [each[0] for each in work[:-1]] == {"tiles": ["tiles"] * 2, "histories": ["token"] * 2}.get(makes[-1], [])


@pytest.mark.parametrize("there", [False, True])
def test_only_a_model_that_is_to_be_made_needs_a_folder_to_write_to(tmp_path, monkeypatch, there):
    path, asked = tmp_path / "m.gguf", []
    path.write_text("") if there else None
    monkeypatch.setattr(ahead, "path_of", lambda *_, **__: path)
    monkeypatch.setattr(ahead, "made", lambda *given: asked.append(given))
    ahead.check_folder([("tiles", "kit"), ("generated", "smoke", "granite-3.3-8b", 0)])
    assert len(asked) == (not there)


def test_what_compiles_kernels_gives_them_what_fits(monkeypatch):
    """What fails is left to who needs it, so a width that does not fit would compile nothing, in silence."""
    given, steps, decoded, form = [], [], [], FORMATS["Q4_K"]
    monkeypatch.setattr("kit.cpu.linear.linear", lambda *one: given.append(one))
    for tokens in (5, 64):
        ahead._multiplied("Q4_K", tokens, "int8")
        blocks, _, x, activations = given[-1]
        of_row = x.shape[1] / form.block_elements
        assert (len(x), activations) == (tokens, "int8") and of_row == blocks.shape[1] / form.block_bytes == int(of_row) > 0
    made = SimpleNamespace(new_cache=lambda positions: positions, step=lambda tokens, cache: steps.append((len(tokens), cache)))
    monkeypatch.setattr(ahead, "cached_model", lambda *_, **__: "path")
    monkeypatch.setattr(kit, "open", lambda path: nullcontext(path))
    monkeypatch.setattr(kit, "Weights", lambda file: file)
    monkeypatch.setattr(kit, "Transformer", lambda weights, **how: made)
    for name in ("token", "first token"):
        ahead.WORK[name]("fused", "fused", "float32", None)
    assert [count for count, _ in steps] == [3, 1, 1, 1, 1, 1] and sum(count for count, _ in steps[:3]) <= steps[0][1]
    monkeypatch.setattr(kit.codec, "encode", lambda matrix, coding: (matrix.ndim, coding))
    monkeypatch.setattr(kit.codec, "decode", lambda tiles, decoder: decoded.append((*tiles, decoder)))
    for coding in ("kit", "reported"):
        ahead._tiles(coding)
    scalar = [one for one in ahead._DECODERS if one.startswith("scalar")]
    assert decoded == [(2, "kit", one) for one in ahead._DECODERS] + [(2, "reported", one) for one in scalar]


def test_a_process_that_compiles_is_not_the_terminal_s_and_is_done_in_a_file_by_the_sources(monkeypatch):
    monkeypatch.setattr(ahead.child, "command", lambda *job: ["sleep", "60"])
    asked = []
    monkeypatch.setattr(ahead.tasks, "beside", lambda name, *folders: asked.append((name, folders)))
    with ahead._child([], "") as process:
        own = os.getsid(process.pid)
        process.kill()
    assert own != os.getsid(0), "Ctrl-C is for the command, which ends them all"
    ahead._done(("tiles", "kit", 3))
    ((name, folders),) = asked
    assert name == "tiles-kit-3" and len(folders) > 1 and all(folder.is_dir() for folder in folders)


@pytest.mark.slow
def test_all_work_of_all_notebooks_can_be_done():
    """In a process of its own a failure would be silent: here it is none."""
    for name, *arguments in {each for some in work_of().values() for each in some}:
        ahead.WORK[name](*arguments)


def test_work_is_done_once_until_the_sources_change(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    work = [("dequantized", "F32", None), ("dequantized", "no such format", None)]
    ahead.make(work)
    assert any(".F32.float16." in path.name for path in tmp_path.glob("kit.cpu.dequantize*.o"))
    assert [path.name.rpartition("-")[0] for path in tmp_path.glob("dequantized-*")] == ["dequantized-F32-None"]
    started = []
    monkeypatch.setattr(ahead, "_child", lambda work, taken: started.append(work))
    ahead.make(work[:1])
    assert not started
    monkeypatch.setattr("kit.cpu.tasks.source_stamp", lambda folder: "changed")
    with pytest.raises(AttributeError):  # a process would start: None is none
        ahead.make(work[:1])
    assert started == [work[:1]]


def test_each_work_is_taken_by_one_process_alone(tmp_path, monkeypatch):
    done = []
    monkeypatch.setitem(ahead.WORK, "tiles", done.append)
    monkeypatch.setattr(ahead, "_done", lambda each: tmp_path / f"{each[1]}.done")
    (tmp_path / "0").touch()  # another process has the first
    for _ in range(2):
        ahead.main([["tiles", "reported"], ["tiles", "kit"]], tmp_path)
    assert done == ["kit"] and (tmp_path / "kit.done").exists() and not (tmp_path / "reported.done").exists()


def test_a_process_that_helps_is_one_of_those_a_core(tmp_path, monkeypatch):
    done, started = [], []
    monkeypatch.setitem(ahead.WORK, "tiles", done.append)
    monkeypatch.setattr(ahead, "_done", lambda each: tmp_path / f"{each[1]}.done")
    monkeypatch.setattr(ahead, "_child", lambda *job: started.append(job) or subprocess.Popen([sys.executable, "-c", ""]))
    monkeypatch.setattr(ahead, "usable_cores", lambda: 2)
    with ahead.making([("tiles", "kit")], helping=True):
        assert not done
    assert done == ["kit"] and not started
    with ahead.making([("tiles", "reported"), ("tiles", "other")], helping=True):
        pass
    assert {*done} == {"kit", "reported", "other"} and len(started) == 1


@pytest.mark.parametrize("helping", [False, True])
@pytest.mark.parametrize("free, count", [(10 << 30, 4), (1 << 30, 2), (100 << 20, 0)])
def test_processes_are_no_more_than_memory_holds(free, count, helping, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(ahead, "_done", lambda each: tmp_path / f"{each[1]}.done")
    monkeypatch.setattr(ahead, "main", lambda left, taken: None)
    monkeypatch.setattr(ahead, "_child", lambda *job: started.append(job) or SimpleNamespace(poll=int, kill=int, wait=int))
    monkeypatch.setattr(ahead, "usable_cores", lambda: 4)
    monkeypatch.setattr(ahead, "memory_available", lambda: free)
    with ahead.making([("tiles", number) for number in range(9)], helping=helping):
        pass
    assert len(started) == max(0, count - helping)


def test_an_interrupt_leaves_no_process(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    children, start = [], ahead._child
    monkeypatch.setattr(ahead, "_child", lambda *job: children.append(start(*job)) or children[-1])
    monkeypatch.setattr(time, "sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ahead.make([("tiles", "kit"), ("tiles", "reported")])
    assert children and all(child.poll() is not None for child in children)
