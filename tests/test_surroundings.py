"""What surrounds a command: a terminal's letters, a folder's files, options and files with nothing in them, threads."""

import copy
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import click
import model_files
import pytest
from click.testing import CliRunner

import kit
from kit.errors import KitError, KitWarning, ModelError
from kit.gguf import foreign, sources, stores
from kit.lab.commands import cli, compress
from kit.lab.explaining import peers
from kit.lab.measuring import child, measurements
from kit.lab.report import runner
from kit.model.generate import Sampler
from kit.system import paths, python
from kit.system.cores import MOST_THREADS

SHADOWS = ("random", "kit", "numpy", "json", "runpy", "selectors", "secrets", "statistics", "token")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model_files.write(tmp_path_factory.mktemp("surroundings"), "tiny-llama", "Q8_0")


def run(*words, **variables):
    """A command of the kit in a process of its own, with these variables."""
    command = python.executing("from kit.lab.commands.cli import main; main()", *map(str, words))
    return subprocess.run(command, capture_output=True, env=os.environ | variables)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "cp437", "utf-8"])
def test_a_terminal_that_lacks_a_letter_shows_its_number(llama, tmp_path, encoding):
    """An emoji on a cp1252 terminal was a traceback, and the text was lost."""
    path = tmp_path / "\N{GRINNING FACE}\N{GREEK SMALL LETTER ALPHA}.gguf"
    path.write_bytes(llama.read_bytes())
    done = run("inspect", path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and b"architecture" in done.stdout and not done.stderr
    shown = "utf-8" if encoding == "ascii" else encoding  # click takes a terminal of ASCII for a wrong setting
    assert str(path).encode(shown, "backslashreplace") in done.stdout
    done = run("inspect", path.with_suffix(".x"), PYTHONIOENCODING=encoding)
    assert done.returncode == 2 and done.stderr.startswith(b"kit: error:") and len(done.stderr.splitlines()) == 1


def test_a_choice_of_the_user_for_letters_stays():
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="ignore")
    cli._show_all(stream)
    assert stream.errors == "ignore"
    cli._show_all(io.StringIO())


@pytest.fixture
def shadowed(tmp_path, monkeypatch):
    """A folder, entered, whose files are named like modules that the kit imports."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder was imported')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_s_files_are_no_modules_of_the_kit_s_processes(shadowed):
    """A random.py, or a kit.py, ended `reproduce` without a reason and took all engines from `explain`."""
    assert child.call(len, "abc") == 3
    for command in (python.executing("import random, kit, numpy; print(1)"), python.running("kit", "--version")):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and "of the folder" not in done.stdout + done.stderr
    for name in ("kit", "runpy", "token"):  # `python -m` finds these before anybody can help
        (shadowed / f"{name}.py").unlink()
    given = os.environ | {"PYTHONPATH": str(Path(kit.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-m", "kit", "--version"], capture_output=True, text=True, env=given)
    assert (done.returncode, done.stdout) == (0, f"kit, version {kit.__version__}\n"), done.stderr


def test_every_child_of_the_kit_starts_without_the_folder():
    """Whoever starts Python names -P, or takes the commands of kit.system.python."""
    for path in Path(kit.__file__).parent.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "sys.executable" in line:
                assert any(word in line for word in ('"-P"', 'b"-S", b"-E"', "Check(")), f"{path}: {line}"


def test_an_engine_that_fails_is_named(llama, tmp_path, monkeypatch):
    store = measurements.Readings(tmp_path / "store")
    broken = {"kit": {"reason": "it broke"}, "kit, int8 activations": {"reason": "see kit"}}
    monkeypatch.setattr(peers, "compare_file", lambda *given, **more: peers.pd.DataFrame.from_dict(broken, "index"))
    with kit.open(llama) as file, pytest.warns(KitWarning, match=r"^kit did not run: it broke$") as said:
        peers.readings(file, "test", store)
    assert len(said) == 1


def test_a_notebook_s_process_that_ends_says_its_last_words(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"Traceback\nModuleNotFoundError: no module named x\xff\n\n")
    ended = type("Child", (), {"timed_out": False, "process": type("Process", (), {"returncode": 1})})
    assert "exit code 1: ModuleNotFoundError: no module" in runner._unexplained(ended, None, log)
    log.write_text("")
    assert runner._unexplained(ended, None, log).endswith(" exit code 1")


def _texts():
    """(command, option or argument) of all commands that take a text."""

    def walk(command, words):
        if isinstance(command, click.Group):
            for name, below in command.commands.items():
                yield from walk(below, [*words, name])
            return
        for option in command.params:
            if isinstance(option.type, click.types.StringParamType | click.Path) and option.name not in cli.MAY_BE_EMPTY:
                yield pytest.param(command, option, id=" ".join([*words, option.name]))

    return walk(cli.main, [])


@pytest.mark.parametrize(("command", "option"), [*_texts()])
@pytest.mark.parametrize("text", ["", " "])
def test_an_option_with_nothing_in_it_is_refused(command, option, text):
    """`kit generate ""` was a traceback; `--memory ""` was no limit, silently."""
    context = click.Context(command)
    context.params = {option.name: (text,) if option.multiple or option.nargs == -1 else text}
    context.set_parameter_source(option.name, click.core.ParameterSource.COMMANDLINE)
    with pytest.raises(click.UsageError, match="is empty"):
        cli._refuse_nothing(context)
    context.set_parameter_source(option.name, click.core.ParameterSource.DEFAULT)
    cli._refuse_nothing(context)


@pytest.mark.parametrize("words", [
    ["explain", "MODEL", "--quick", "--skew", "nan"], ["generate", "MODEL", "-p", "a", "--temperature", "nan"],
    ["generate", "MODEL", "-p", "a", "--temperature", "1", "--top-p", "NaN"], ["reproduce", "--list", "--timeout", "nan"],
    ["report", "diff", ".", ".", "--confidence", "nan"], ["sweep", "a.yaml", "--list", "--timeout", "-nan"],
], ids=" ".join)  # fmt: skip
def test_an_option_that_is_no_number_is_refused(llama, monkeypatch, tmp_path, words):
    """`kit explain --skew nan` was taken; a range of click lets NaN through."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("notebooks: [x]")
    done = CliRunner().invoke(cli.main, [str(llama) if word == "MODEL" else word for word in words])
    assert done.exit_code == 2 and f"{words[-2]} nan: give a number" in done.output and done.output.count("\n") == 1


@pytest.mark.parametrize("words", [["generate", ""], ["codec", "verify", ""], ["explain", "a", "--machine", " "]])
def test_nothing_is_one_line(words):
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 2 and " is empty: give a value, or leave it out" in done.output and "Traceback" not in done.output


@pytest.mark.parametrize("value", ["100000000000000000000", "1025", "-1", "9" * 5000])
def test_too_many_threads_are_one_line(monkeypatch, value):
    monkeypatch.setenv("KIT_THREADS", value)
    with pytest.raises(KitError, match=f"^KIT_THREADS={value[:40]}: give a number of threads up to 1,024"):
        kit.cpu.threads.count.__wrapped__()


@pytest.mark.parametrize("words", [["compress", "MODEL", "-o", "x"], ["codec", "verify", "MODEL"]], ids=" ".join)
def test_threads_have_one_limit(llama, words):
    """`--threads` of 10^23 was taken, where the same KIT_THREADS is refused."""
    assert compress.THREADS.max == MOST_THREADS
    for threads in ("0", "1025", str(10**23)):
        given = [str(llama) if word == "MODEL" else word for word in words]
        done = CliRunner().invoke(cli.main, [*given, "--threads", threads])
        assert done.exit_code == 2 and "1<=x<=1024" in done.stderr


@pytest.mark.parametrize("variable", ["KIT_THREADS", "KIT_SIMD", "KIT_PATIENCE"])
@pytest.mark.parametrize(
    "words", ["reproduce --only 02", "reproduce --list", "sweep a.yaml --list", "quants MODEL", "explain MODEL --again"]
)
def test_a_wrong_variable_is_said_before_any_work(llama, tmp_path, monkeypatch, variable, words):
    """KIT_SIMD=x failed a page at its 28th cell, and the report was written with it; `kit explain` measured for 11 s."""
    monkeypatch.setenv(variable, "x")
    monkeypatch.setenv("KIT_RESULTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("notebooks: [02]")
    kit.cpu.threads.count.cache_clear()
    done = CliRunner().invoke(cli.main, words.replace("MODEL", str(llama)).split())
    kit.cpu.threads.count.cache_clear()
    assert done.exit_code == 2 and "'x'" in done.stderr.replace("=x", "'x'") and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-300, 1e-30, 1.0, 1e30, 1e308])
def test_any_temperature_draws(temperature):
    """1e-320 was a traceback: a logit over it is infinite."""
    logits = kit.model.generate.torch.tensor([1.0, -float("inf"), 3.0, 2.999, -900.0])
    drawn = {Sampler(temperature, seed=seed)(logits) for seed in range(30)}
    assert drawn == {2} if temperature <= 1e-30 else drawn <= {0, 2, 3, 4} and len(drawn) > 1
    with pytest.raises(ModelError, match="temperature"):
        Sampler(float("nan"))


def test_threads_that_share_a_model_take_turns(llama):
    """One Transformer in four threads was a traceback: their spans were mixed."""
    model, prompts = kit.Transformer(llama), [[1, 5, 9], [7, 7], [3], [1, 2, 3, 4, 5, 6]]
    alone = [kit.generate(model, prompt, 9) for prompt in prompts]
    got, errors = {}, []

    def go(number):
        try:
            for _ in range(3):
                got[number] = kit.generate(model, prompts[number], 9)
                model.logits(prompts[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for number, one in enumerate(alone):
        assert (got[number].tokens, got[number].nbytes) == (one.tokens, one.nbytes)


@pytest.mark.parametrize(("name", "says"), [
    ("hf.co/a/b:Q4_K_M", "the one with Q4_K_M in its name: hf://a/b/FILE.gguf"), ("huggingface.co/a/b", "hf://a/b/FILE.gguf"),
    ("https://huggingface.co/a/b", "hf://a/b/FILE.gguf"), ("a/b-GGUF", "hf://a/b-GGUF/FILE.gguf"), ("a/b:Q8_0", "hf://a/b/FILE"),
    ("llama3:8b", "ollama:llama3:8b"), ("registry.ollama.ai/library/llama3:8b", "name it ollama:llama3:8b"),
    ("registry.ollama.ai/library/llama3", "called ollama:llama3"), ("llama3", "ollama:llama3"), ("qwen2.5", "kit models lists"),
    ("file:///a%20b/c.gguf", "name the file itself, /a b/c.gguf"),
    ("file://localhost/c.gguf", "name the file itself, /c.gguf"), ("https://x.org/c.gguf", "download it first"),
    ("ai/smollm2", "as Docker Model Runner has it"), ("ai/smollm2:135M-Q4_K_M", "as Docker Model Runner has it"),
    ("lm-studio:a/b", "is lmstudio:a/b meant?"), ("LlamaCPP:a", "is llama.cpp:a meant?"),
    ("Ollama:a:1b", "is ollama:a:1b meant?"),
    ("localhost:8080", "kit explain http://localhost:8080 explains"), (":8080", "kit explain http://localhost:8080 explains"),
    ("10.0.0.1:80", "kit explain http://10.0.0.1:80 explains"),
    ("docker.io/ai/gemma3", "as Docker Model Runner has it"), ("docker://ai/gemma3", "as Docker Model Runner has it"),
])  # fmt: skip
def test_a_name_that_others_take_gets_a_hint(name, says):
    with pytest.raises(KitError) as error:
        sources.resolve(name)
    assert says in str(error.value)


def test_the_hints_know_every_program():
    assert {*foreign.PREFIXES} == {*stores.STORES}


def test_what_is_no_url_is_one_line():
    """`kit explain 'http://[::1'` was a traceback of urllib."""
    done = CliRunner().invoke(cli.main, ["explain", "http://[::1"])
    assert done.exit_code == 2 and "http://[::1: is no URL" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["tests/none", "./none", "../none", "no/none.gguf", "no/none.bin"])
def test_a_path_is_no_repository(name, monkeypatch):
    monkeypatch.chdir(paths.ROOT)
    with pytest.raises(KitError) as error:
        kit.open(name)
    assert "hf://" not in str(error.value)
    with pytest.raises(KitError, match=r"No such file or directory; if it is a repository of the Hub, .*: hf://a/b.5/FILE"):
        kit.open("a/b.5")


@pytest.mark.parametrize("command", ["inspect", "explain"])
def test_the_page_of_a_repository_is_not_asked_for(command):
    """`kit inspect https://huggingface.co/a/b` read a page, or said that no server can be reached."""
    done = CliRunner().invoke(cli.main, [command, "https://huggingface.co/a/b"])
    assert done.exit_code == 2 and "name a file of it: hf://a/b/FILE.gguf" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("again", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_what_cannot_be_copied_says_what_to_do(llama, again):
    """A model points into its file's map: a lock of it was named."""
    model = kit.Transformer(llama)
    for each in (model, model.weights):
        with pytest.raises(TypeError, match=r"Weights cannot be copied or pickled: .*open the file again"):
            again(each)
    assert again(model.config)


@pytest.mark.parametrize("around", ["'{}'", '"{}"', "{} ", " {}", "\u201c{}\u201d", "`{}`"])
def test_quotes_and_blanks_around_a_path_are_named(llama, around):
    with pytest.raises(KitError, match=r"no file has this name, but /.* is one"):
        sources.resolve(around.format(llama))


def test_a_prompt_of_a_locale_without_letters_is_utf_8(llama):
    """With LC_ALL=C and no UTF-8 mode an emoji was told not to be UTF-8."""
    surroundings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run("generate", llama, "-n", "1", "-p", "🙂é", "--json", **surroundings)
    ids = kit.Transformer(llama).tokenizer.encode("🙂é")
    assert done.returncode == 0 and len(json.loads(done.stdout)["prompt"]) == len(ids)
    done = run("generate", llama, "-n", "1", "-p", "\udcff\udcfe", **surroundings)
    assert done.returncode == 2 and b"-p: not UTF-8 at character 0" in done.stderr


@pytest.mark.parametrize("name", ["a/b.gguf", "model.gguf", "../x/y", "/a/b:c/d.gguf", "a/b"])
def test_a_path_is_a_path(name):
    assert sources.resolve(name) == Path(name)


def _archive(*names):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(name, "x" * 20)
    return data.getvalue()


@pytest.mark.parametrize(("head", "says"), [
    (_archive("model.gguf"), "a zip archive"), (_archive("archive/data.pkl", "archive/version"), "a PyTorch checkpoint"),
    (_archive("weights.npy"), "numpy"), (b"PAR1" + bytes(60), "a Parquet table"),
    (b"\x93NUMPY\x01" + bytes(60), "an array of numpy"),
    (b"\x02\x01\x00\x00\x13\x00\x00\x00blk.0.attn_q.weight" + bytes(40), "an importance matrix"),
    (b"\x00\x01\x00\x00\x06\x00\x00\x00output" + bytes(40), "an importance matrix"),
    (b"SQLite format 3\0" + bytes(60), "an SQLite database"), (b"%PDF-1.7", "a PDF"), (b"\x7fELF" + bytes(60), "a program"),
    (b"\x1c\0\0\0TFL3" + bytes(60), "a TensorFlow Lite model"), (b"tjgg\3" + bytes(60), "a model in GGJT"),
    (b"\xff\xd8\xff\xe0" + bytes(60), "a picture"), (b"\x89PNG\r\n" + bytes(60), "a picture"),
])  # fmt: skip
def test_what_a_file_is_that_is_no_model_is_said(tmp_path, head, says):
    (tmp_path / "x").write_bytes(head)
    done = CliRunner().invoke(cli.main, ["inspect", str(tmp_path / "x")])
    assert done.exit_code == 2 and f"this is {says}" in done.output and "not a GGUF file; " in done.output
    assert foreign.not_gguf(b"GGUE" + bytes(60)) == "not a GGUF file"


def test_an_interrupt_that_a_library_swallows_comes_again():
    """Ctrl-C while `kit reproduce` imported was echoed, and the run went on."""
    source = """
import os, signal
from kit.lab import interrupts
interrupts.install()
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass  # as a library's own handler does
for work in (lambda: __import__("wave"), interrupts.check):
    try:
        work()
        print("ran on")
    except KeyboardInterrupt:
        print("ended")
interrupts.over()
interrupts.check()
import wave
print("over")
"""
    done = subprocess.run(python.executing(f"exec({source!r})"), capture_output=True, text=True)
    assert done.stdout.split() == ["ended", "ended", "over"], done.stderr


@pytest.mark.parametrize("at", ["click.core", "kit.lab.commands.verify", "kit.gguf.reader"])
@pytest.mark.parametrize("how", [
    "os.kill(os.getpid(), signal.SIGINT)",
    "exec('os.kill(os.getpid(), signal.SIGINT); 0')",  # Python ends by the signal then, though it was caught
    "\n   try: os.kill(os.getpid(), signal.SIGINT); 0\n   except BaseException: raise SyntaxError('no unicodedata')",
], ids=["plain", "through exec", "as another error"])  # fmt: skip
def test_an_interrupt_while_something_is_imported_is_one_line(llama, tmp_path, at, how):
    """The first third of a second gave a traceback; an import that the compiler of Python does became a SyntaxError."""
    source = f"""
import os, signal, sys
class Finder:
 def find_spec(self, name, path=None, target=None):
  if name == {at!r}: {how}
sys.meta_path.insert(0, Finder())
"""
    (tmp_path / "sitecustomize.py").write_text(source)
    done = subprocess.run([sys.executable, "-m", "kit", "inspect", str(llama)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{paths.ROOT}"})  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (130, "kit: interrupted\n", "")
