"""Completion in a shell: the values are those that the commands take, by click's own protocol and in bash itself."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from kit.gguf.trained import TRAINED
from kit.lab.commands.cli import main
from kit.lab.completion import _VALUES, _WORDS, values


def completed(*words):
    """The values offered for the last of ``words``, those that are files as their type."""
    shell = ShellComplete(main, {}, "kit", "_KIT_COMPLETE")
    return [item.value if item.type == "plain" else item.type for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    "words, expected",
    [
        (("",), sorted(main.commands)),
        (("inspect", "smol"), ["smollm2-135m"]),
        (("explain", ""), [*TRAINED, "own.gguf"]),
        (("generate", "ow"), ["file"]),
        (("generate", "--model", "qwen"), ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]),
        (("perplexity", "folder/"), ["file"]),
        (("fetch", "smollm2-135m", "gem"), ["gemma-3-270m"]),
        (("experts", "q"), ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "qwen"]),
        (("generate", "--linear", "f"), ["fused", "fused-int16", "fused-int8"]),
        (("generate", "--cache", "p"), ["pinned:"]),
        (("generate", "--policy", "LR"), ["LRU"]),
        (("reproduce", "--profile", "s"), ["smoke"]),
        (("reproduce", "--only", "07"), ["07_memory_frontier"]),
        (("explain", "--machine", "apple-m4-1"), ["apple-m4-16gb"]),
        (("synth", "tiny-ll"), ["tiny-llama"]),
        (("codec", "verify", "--decoder", "si"), ["simd"]),
        (("generate", "--chat", "--s"), ["--system", "--seed"]),
    ],
    ids=" ".join,
)
def test_the_shell_is_offered(words, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.gguf").touch()
    assert completed(*words) == expected


def test_every_table_is_that_of_a_parameter_and_has_values():
    groups = main, main.commands["codec"]
    parameters = {param.name for group in groups for command in group.commands.values() for param in command.params}
    assert _VALUES.keys() | _WORDS.keys() <= parameters
    assert all(len(values(name)) >= 2 for name in _VALUES | _WORDS)


def test_a_bash_completes(tmp_path):
    """The line of the documentation, in a bash, with `kit` on the path."""
    if not (bash := shutil.which("bash")):
        pytest.skip("no bash here")
    kit = tmp_path / "kit"
    kit.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kit "$@"\n')
    kit.chmod(0o755)
    line = next(line for line in Path("docs/cli.md").read_text().splitlines() if line.startswith("| bash")).split("`")[3]
    script = f'{line}; COMP_WORDS=(kit inspect smol); COMP_CWORD=2; _kit_completion kit; echo "${{COMPREPLY[@]}}"'
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run([bash, "-c", script], capture_output=True, text=True, env=environment)
    assert run.stdout == "smollm2-135m\n", run.stderr


NAMED = ("attention", "linear", "kv", "backend", "backends", "tiers", "pages", "coding", "decoder", "cache")


def test_help_names_every_value_of_an_option():
    """Nobody must look a value up elsewhere: the help of a command names those that the shell would offer."""
    for command in [*main.commands.values(), *main.commands["codec"].commands.values()]:
        for param in command.params:
            if param.name in NAMED and param.param_type_name == "option":
                words = re.findall(r"[\w-]+", f"{command.help} {param.help}")
                # "numpy" is the decoder of other tests in this process
                unnamed = [value for value in values(param.name) if value.rstrip(":") not in (*words, "numpy")]
                assert not unnamed, f"kit {command.name} {param.opts[0]}: {unnamed}"
