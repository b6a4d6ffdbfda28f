"""The script for the first hour on a GPU comes to its end: tiny shapes, interpreted kernels, parts that fail or hang."""

import json
import sys

import pytest
from click.testing import CliRunner

from benchmarks import gpu_session


def lines(folder):
    return {line["part"]: line for line in map(json.loads, (folder / "session.jsonl").read_text().splitlines())}


def session(folder, *names):
    arguments = [argument for name in names for argument in ("--part", name)]
    done = CliRunner().invoke(gpu_session.main, ["--tiny", "--out", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    return lines(folder)


@pytest.mark.slow
def test_every_part_comes_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_MODELS", str(tmp_path / "models"))
    found = session(tmp_path)
    assert list(found) == [part.__name__ for part in gpu_session.PARTS]
    assert not [(name, line["error"]) for name, line in found.items() if line["error"] or not line["rows"]]
    assert all(row["exact"] for row in found["dequantize"]["rows"]) and found["logits"]["rows"][0]["right"]


def test_a_part_that_fails_or_hangs_ends_nothing_else_and_is_tried_again(tmp_path, monkeypatch):
    limits = {"limits": 300, "gemv": 0.01, "tests": 300}
    monkeypatch.setattr(gpu_session, "PARTS", {p: limits[p.__name__] for p in gpu_session.PARTS if p.__name__ in limits})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = session(tmp_path)
    assert "exit code 1" in found["limits"]["error"] and found["tests"]["error"]
    monkeypatch.undo()
    monkeypatch.setattr(gpu_session, "PARTS", {p: limits[p.__name__] for p in gpu_session.PARTS if p.__name__ in limits})
    found = session(tmp_path, "limits", "gemv")
    assert not found["limits"]["error"] and found["limits"]["rows"] and "not done after 0.01 s" in found["gemv"]["error"]
    before = (tmp_path / "session.jsonl").read_text()
    session(tmp_path, "limits")
    assert (tmp_path / "session.jsonl").read_text() == before, "what is done is not run again"
