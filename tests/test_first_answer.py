"""The first answer of a command: what is known comes before anything is compiled, and a wrong option before any work."""

import json
import re

import documented
import model_files
import pandas as pd
import pytest
import test_remote
from click.testing import CliRunner
from invented import MACHINE

import kit
from kit.lab.commands import cli
from kit.lab.explaining import beside_kit, depth, quick, study, together
from kit.lab.measuring.busy import Busy
from kit.lab.report import ahead

serve = test_remote.serve


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model_files.write(tmp_path_factory.mktemp("first"), "tiny-llama", "Q8_0")


def run(*words):
    return CliRunner().invoke(cli.main, [*map(str, words)])


@pytest.fixture
def crowded(monkeypatch):
    seen = Busy.seen
    monkeypatch.setattr(Busy, "seen", lambda self, others: seen(self, 1.6))


def _nothing_compiles(monkeypatch):
    monkeypatch.setattr(ahead, "making", lambda *given, **more: pytest.fail("nothing is compiled"))
    monkeypatch.setattr(quick, "look", lambda seconds: 0.0)


def test_quick_says_file_fit_and_limit_and_runs_nothing(llama, monkeypatch):
    """The first answer took 25 minutes on a busy machine; it needs neither engine nor decode."""
    _nothing_compiles(monkeypatch)
    told = json.loads(run("explain", llama, "--quick", "--json").stdout)
    assert set(told) == documented.keys("explain --quick") and told["fits"] is True and told["busy"] is False
    told = json.loads(run("explain", llama, "--quick", "--memory", "1MiB", "--json").stdout)
    assert told["fits"] is False and "does not fit" in " ".join(told["says"])


@pytest.mark.parametrize("words", [["explain"], ["inspect"], ["models"], ["explain", "--quick"]], ids=" ".join)
def test_no_command_gives_the_limit_of_a_busy_minute(llama, monkeypatch, crowded, serve, words):
    """`kit explain URL` said "at most 12.7 tokens per second here" of a loaded second, and `kit models` of each model."""
    monkeypatch.setattr(quick, "look", lambda seconds: 0.0)
    monkeypatch.setattr("kit.gguf.stores.everywhere", lambda: {"tiny": llama})
    if "--quick" in words:
        _nothing_compiles(monkeypatch)
        monkeypatch.setattr(quick, "reads", lambda: pytest.fail("torch is imported for it: it took four of five seconds"))
    place = llama if "--quick" in words else f"{serve({'/tiny.gguf': llama.read_bytes()}).url}/tiny.gguf"
    asked = words if words == ["models"] else [*words, place]
    done = run(*asked)
    assert done.exit_code == 0 and done.stdout.startswith("Busy machine: ")
    assert not re.search("per second here|At most", done.stdout)
    told = json.loads(run(*asked, "--json").stdout)
    assert (told["rows"][0]["tokens_per_second"] if words == ["models"] else told["limit"]) is None


def test_explain_begins_with_file_fit_and_limit_before_it_compiles(llama, monkeypatch):
    """The first line of a first explain came after 25 minutes."""
    monkeypatch.setattr(quick, "look", lambda seconds: 0.0)
    monkeypatch.setattr(ahead, "kernels", lambda *given, **more: (_ for _ in ()).throw(KeyboardInterrupt))
    text = " ".join(run("explain", llama).stdout.split())
    assert re.search(r"architecture llama.*It fits: 1.47 MiB .*First guess: ", text)


def test_on_a_busy_machine_what_is_no_comparison_or_takes_long_is_left_out(llama, monkeypatch):
    """`kit explain` of 135M weights took more than five minutes beside other work: prompts alone one."""
    asked = {}
    monkeypatch.setattr(study.peers, "readings", lambda *of, **_: asked.update(share=of[-2], prompts=of[-1]) or {})
    monkeypatch.setattr(study, "quality", lambda file, names, tokens: asked.update(names=names, text=tokens) or pd.DataFrame())
    monkeypatch.setattr(depth, "measured", lambda file: asked.update(depth=True) or [])
    monkeypatch.setattr(beside_kit, "_LEAST", 0)
    monkeypatch.setattr(together.arithmetic, "probe", lambda: asked.update(arithmetic=True) or {})
    for others, minute, left_out in ((1.6, 50.0, True), (1.6, float("inf"), False), (0.0, 50.0, False)):
        asked.clear()
        with kit.open(llama) as file:
            made = study.Study(file, lambda: None, 1 << 30, minute=minute)
            made.__dict__ |= {"runs": True, "machine": MACHINE}
            made.busy.others = others
            monkeypatch.setattr(study.Study, "limit_gbps", 10.0)
            assert made.gives_way == left_out
            _ = made.engines, made.quality, depth.of(made)
            told = beside_kit.prompt(made)
        assert asked["share"] == (study._SHARE if left_out else minute)
        assert ("depth" in asked, "arithmetic" in asked, "float16" in asked["names"], asked["prompts"]) == (not left_out,) * 4
        assert told == (None, "") and asked["text"] == (study._TEXT if left_out else 1041)
    monkeypatch.setattr(study, "kept", lambda file, tokens: {"int8 activations": {"same": 1.0}})  # what is known is used
    with kit.open(llama) as file:
        assert study.Study(file, lambda: None, 1 << 30, minute=50.0, busy=Busy(1.6)).text == 1041


@pytest.mark.parametrize("words, says", [
    (["--engine", "kit '-t 2"], "quote it as for a shell"),
    (["--machine", "apple-m4-16gb", "--memory", "20GiB"], "is more than apple-m4-16gb has: give at most 16.00 GiB"),
])  # fmt: skip
def test_what_cannot_be_asked_is_one_line(llama, words, says):
    done = run("explain", llama, *words)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and says in done.stderr


@pytest.mark.parametrize(("option", "value"), [("--temperature", "-1"), ("--top-p", "2"), ("--top-k", "-3")])
def test_a_wrong_option_is_refused_before_the_file_is_opened(option, value):
    """`--temperature -1` took 15 s to be refused."""
    more = () if option == "--temperature" else ("--temperature", "1")
    done = run("generate", "no such file.gguf", "-p", "x", option, value, *more)
    assert done.exit_code == 2 and "cannot sample" in done.output


@pytest.mark.parametrize("words", [
    ("quants", "--figure", "q.xyz"), ("quants", "--figure", "nowhere/q.png"), ("generate", "-p", "a", "--routes", "nowhere/r"),
    ("explain", "--engine", "kit", "--figure", "nowhere/q.png"),
], ids=" ".join)  # fmt: skip
def test_a_file_that_cannot_be_written_is_said_before_any_work(llama, monkeypatch, tmp_path, words):
    """`kit quants --figure q.xyz` measured for minutes and ended with a traceback of matplotlib."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kit.gguf.reader.open", lambda *_, **__: pytest.fail("the file was opened"))
    done = CliRunner().invoke(cli.main, [words[0], str(llama), *words[1:]])
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (2, 1, "") and words[-2] in done.stderr, done.output
