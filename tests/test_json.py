"""What --json prints: one object, documented keys without blanks, bytes as integers, truths as truths."""

import json
import re

import documented
import model_files
import pytest
from click.testing import CliRunner

from kit.lab.commands import cli
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
