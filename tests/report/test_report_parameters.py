"""The parameters of a notebook: read strictly, converted by annotation, never guessed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import ReportError
from kit.lab.report.parameters import Parameter, assign, from_here, notebook_names, read, tables


def cell(source, tags=("parameters",)):
    return {"source": source, "metadata": {"tags": list(tags)}}


def test_a_line_is_a_name_a_type_a_default_and_a_help():
    known = read([cell("samples: int = -9  # how often # each\nname: str = 'a # b'\nrate: float = 2\non: bool = True")], "n")
    assert list(known.values()) == [
        Parameter("samples", int, -9, "how often # each"),
        Parameter("name", str, "a # b"),
        Parameter("rate", float, 2.0),
        Parameter("on", bool, True),
    ]
    assert type(known["rate"].default) is float


def test_files_are_those_of_the_commands_folder(tmp_path, monkeypatch):
    """`-p quants=quants.json` was looked for in the folder of the run, where the notebook works. A run keeps a copy of a table,
    so that its pages name no folder of this machine and another machine can render them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("q.json", "sub/r.json", "a.gguf"):
        (tmp_path / name).touch()
    assert from_here("quants=q.json") == "quants=q.json" and from_here("quants=sub/r.json") == "quants=r.json"
    assert from_here("quants=a.gguf,other.gguf") == f"quants={tmp_path / 'a.gguf'},other.gguf"
    assert tables(["quants=q.json", "quants=sub/r.json,a.gguf", "other=none.json"]) == [Path("q.json"), Path("sub/r.json")]
    for text in ("samples=9", "routes=qwen", "memory=4 GiB", "name=a=b", "quants=", "alone"):
        assert from_here(text) == text


@pytest.mark.parametrize(
    "source",
    [
        "a = 1", "a: int", "a: int = 'x'", "a: int = True", "a: str | None = None", "a: list = []", "a: int = f()",
        "import os", "a.b: int = 1", "a: int = 1\nprint(a)", "a: float = 'x'",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_line(source):
    with pytest.raises(ReportError, match=r"odd\.ipynb: parameters cell, line \d: .*is not `name: type"):
        read([cell(source)], "odd.ipynb")


def test_broken_python_is_refused():
    with pytest.raises(ReportError, match="line 2"):
        read([cell("a: int = 1\nb: int = (")], "odd.ipynb")


@pytest.mark.parametrize("cells", [[], [cell("", tags=())], [cell(""), cell("")]])
def test_there_must_be_exactly_one_parameters_cell(cells):
    with pytest.raises(ReportError, match="exactly one cell"):
        read(cells, "odd.ipynb")


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.booleans()))
def test_every_value_survives_being_written_on_a_command_line(value):
    parsed = Parameter("p", type(value), value).parse(str(value))
    assert parsed == value
    assert type(parsed) is type(value)


def test_the_annotation_decides_what_a_text_means():
    assert Parameter("p", str, "").parse("007") == "007"
    assert Parameter("p", int, 0).parse("007") == 7
    assert Parameter("p", str, "").parse("true") == "true"
    assert Parameter("p", bool, False).parse("Yes") is True
    assert Parameter("p", float, 0.0).parse("3") == 3.0


@pytest.mark.parametrize(
    ("kind", "text"), [(int, "1.5"), (int, ""), (int, "x"), (float, "12e4567"), (float, "nan"), (bool, "maybe"), (bool, "")]
)
def test_a_text_of_the_wrong_type_is_refused(kind, text):
    with pytest.raises(ReportError, match=r"parameter depth: .* is not a"):
        Parameter("depth", kind, kind(), "how deep").parse(text)


KNOWN = {
    "01": read([cell("seed: int = 0  # of the weights\nonly_here: str = 'x'")], "01"),
    "02": read([cell("seed: int = 0  # of the weights")], "02"),
}


def test_a_value_goes_to_every_notebook_that_has_the_parameter():
    assert assign(KNOWN, ["seed=3", "only_here=a=b"]) == {"01": {"seed": 3, "only_here": "a=b"}, "02": {"seed": 3}}


def test_an_unknown_parameter_lists_the_names_once():
    with pytest.raises(ReportError) as caught:
        assign(KNOWN, ["zzz=3"])
    assert str(caught.value) == "unknown parameter 'zzz'; known are seed, only_here: kit reproduce --list describes them"


def test_a_misspelt_parameter_is_told_the_one_that_was_meant():
    with pytest.raises(ReportError) as caught:
        assign(KNOWN, ["sede=3"])
    first, second = str(caught.value).splitlines()
    assert first == "unknown parameter 'sede': is seed meant?" and second.strip() == "seed: int = 0  # of the weights  [01, 02]"


def test_a_text_without_equals_is_refused():
    with pytest.raises(ReportError, match="name=value"):
        assign(KNOWN, ["seed"])


def test_notebooks_are_chosen_by_prefix(tmp_path):
    for name in ("01_first.ipynb", "02_second.ipynb", ".02_hidden.ipynb", "notes.txt"):
        (tmp_path / name).touch()
    assert notebook_names(tmp_path) == ["01_first", "02_second"]
    assert notebook_names(tmp_path, ["02"]) == ["02_second"]
    assert notebook_names(tmp_path, ["02_second.ipynb", "01"]) == ["01_first", "02_second"]
    with pytest.raises(ReportError, match=r"--only 03: .*01_first, 02_second"):
        notebook_names(tmp_path, ["03"])
    with pytest.raises(ReportError, match="no notebooks"):
        notebook_names(tmp_path / "nowhere")
