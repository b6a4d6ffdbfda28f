"""What --json prints: one object, documented keys without blanks, bytes as integers, truths as truths."""

import json
import re

import click
import documented
import model_files
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from kit.lab.commands import cli
from kit.lab.explaining import quants
from kit.system.paths import ROOT
from kit.units import to_json

COMMANDS = {
    "inspect": ("LLAMA",),
    "experts": ("MIXTURE", "--memory", "1GiB", "--disk", "2GB/s"),
    "generate": ("LLAMA", "-p", "a", "-n", "2"),
    "perplexity": ("LLAMA", "--tokens", "40"),
    "doctor": (),
    "models": (),
    "exactness": ("LLAMA", "--quality", "20"),
    "explain --machine": ("LLAMA", "apple-m4-16gb"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_is_documented_and_every_documented_key_is_there(tmp_path_factory, command):
    folder = tmp_path_factory.getbasetemp()
    files = {
        "LLAMA": model_files.write(folder, "tiny-llama", "Q8_0"),
        "MIXTURE": model_files.write(folder, "tiny-qwen3moe", "Q8_0"),
    }
    words = [str(files.get(word, word)) for word in COMMANDS[command]]
    name, *option = command.split()
    done = CliRunner().invoke(cli.main, [name, *words[:1], *option, *words[1:], "--json"])
    assert done.exit_code in (0, 1), done.output
    told = json.loads(done.stdout)
    assert told["schema_version"] == 1 and not documented.undocumented(command, told)
    assert documented.keys(command) == set(told)
    _sound(told)


def _sound(value, key=""):
    if isinstance(value, dict):
        for name, each in value.items():
            if key not in ("metadata", "hyperparameters"):
                assert re.fullmatch(r"[\w.+-]+", name), name
                _sound(each, name)
    for each in value if isinstance(value, list) else ():
        _sound(each, key)
    if key.endswith("bytes"):
        assert not isinstance(value, float), key
    assert value not in ("yes", "no"), key


def test_headings_become_keys():
    told = json.loads(to_json([{"a token, s": 0.5, "read, B": 3.0, "fits": "yes", "attention, window 512": 1.0, "held": 2.0}]))
    (row,) = told["rows"]
    assert row == {
        "seconds_per_token": 0.5, "bytes_read_per_token": 3, "fits": True, "attention_window_512": 1.0, "held_bytes": 2,
    }  # fmt: skip
    assert told["schema_version"] == 1 and isinstance(row["held_bytes"], int)


def test_kit_quants_prints_what_is_documented(tmp_path, monkeypatch):
    files = [model_files.write(tmp_path, "tiny-llama", qtype) for qtype in ("Q8_0", "Q4_0")]
    row = dict.fromkeys([*quants.COLUMNS, *quants.KEY], 1.5) | {"samples": [1.0, 2.0], "best": True, "others": 0.0,
        "way": "exact"}  # fmt: skip
    table = pd.DataFrame([{"file": path.name, **row, "bytes": np.int64(9), "memory": 8.0} for path in files]).set_index("file")
    monkeypatch.setattr(quants, "study", lambda *given, **more: table)
    done = CliRunner().invoke(cli.main, ["quants", *map(str, files), "--json"])
    told = json.loads(done.stdout)
    assert not documented.undocumented("quants", told) and documented.paths("quants") == documented.all_paths(told)
    _sound(told)


def test_every_command_with_json_has_its_keys_documented():
    """A command that learns --json gets a table in docs/json.md."""
    groups = cli.main, *(each for each in cli.main.commands.values() if isinstance(each, click.Group))
    commands = [command for group in groups for command in group.commands.values()]
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    with_json = {command.name for command in commands if any("--json" in param.opts for param in command.params)}
    assert with_json and {name for name in with_json if f"{name} --json" not in page} == set()
