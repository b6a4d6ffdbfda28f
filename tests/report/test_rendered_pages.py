"""One quantity has one value on the rendered front page, page 07 and page 09: contradictions.of_pages finds a second one."""

import pytest
from contradictions import of_pages
from test_report_pages import ROWS, TITLE, executed

from kit.lab.explaining import answer_table
from kit.lab.report import html, index
from kit.lab.report import run as runs

WAYS = """| | per token | memory | fits |
|---|---|---|---|
| exact | 41.2 ms | 1.52 GiB | yes |
| int8 | 32.6 ms | 1.52 GiB | yes |"""
ALL = """| | predicted | memory | fits |
|---|---|---|---|
| exact | 40.0 ms | 1.52 GiB | yes |
| all kept, float32 | 155 ms | 6.10 GiB | yes |"""
PARTS = """| | share | from blocks |
|---|---|---|
| ffn_down | 60.0% | 24.7 ms |
| output | 40.0% | 16.5 ms |"""
SAID = "ffn_down takes 60% of 41.2 ms per token. 492.7 MiB for the process."
ENGINES = """| | tok/s | of llama.cpp |
|---|---|---|
| kit, exact | 24.3 | 0.80x |
| kit, int8 | 30.7 | 1.01x |
| llama.cpp, mmap | 30.4 | 1.00x |"""
FRONTIER = "Up to 492.7 MiB for the process."


@pytest.fixture
def found(tmp_path):
    """What of_pages finds in a run whose pages were drawn with one text replaced: ``found(old, new)``; "" for none."""

    def found(old: str = "", new: str = "", front: str = "", ways=ROWS) -> list[str]:
        table = answer_table.markdown(ways)
        seven, nine = ([text.replace(old, new, 1) if old else text for text in texts]
                       for texts in ((ENGINES, FRONTIER), (WAYS, ALL, PARTS, SAID)))  # fmt: skip
        names = ["07_memory_frontier", "09_your_model"]
        executed(tmp_path, names[0], ("answer", "**28.0 ms per token.** So."), *(("", text) for text in seven))
        executed(tmp_path, names[1], ("answer", f"**{TITLE}.** So."), ("table", table), *(("", text) for text in nine))
        run = runs.Run(tmp_path, runs.Request(model="my.gguf"), "m", "0", "c", "now", planned=names)
        for name in names:
            html.write(run, name)
        executed(tmp_path, names[1], ("answer", f"**{TITLE}.** So."), ("table", front or table))
        index.write(run)
        return of_pages(tmp_path)

    return found


def test_pages_that_agree(found):
    assert found() == []


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("| int8 | 32.6 ms", "| int8 | 43.1 ms", "int8 43.1 ms"),
        ("| kit, exact | 24.3 |", "| kit, exact | 26.0 |", "kit, exact 26.0, which the answer has at 24.3"),
        ("| llama.cpp, mmap | 30.4", "| llama.cpp, mmap | 33.0", "llama.cpp, mmap 33.0"),
        ("| output | 40.0% | 16.5 ms", "| output | 40.0% | 19.0 ms", "the parts of a token sum to 0.0437 s"),
        ("60% of 41.2 ms", "60% of 38.6 ms", "a token of 38.6 ms"),
        ("Up to 492.7 MiB", "Up to 480.0 MiB", "2 sizes of the process"),
        ("| 40.0 ms | 1.52 GiB", "| 40.0 ms | 1.61 GiB", "exact takes 1.52 GiB, 1.61 GiB"),
    ],
)
def test_a_second_value_of_one_quantity_is_found(found, old, new, told):
    """Pages of one run said 32.6 and 325 ms, 41.2, 38.6 and 43.5 ms, 480.0 and 586.6 MiB, 1.49 and 1.61 GiB."""
    [line] = found(old, new)
    assert told in line


def test_a_share_that_no_quotient_gives_is_found(found):
    """A page printed 41.3 tokens per second as 92% of a limit of 43.6."""
    other = [row._replace(of_limit=0.69) if row.name == "exact" else row for row in ROWS]
    assert found(ways=other) == ["24.3 ± 1.3 tokens per second of 33.6: 69%"]


def test_a_front_page_with_another_limit_than_page_09_is_found(found):
    other = answer_table.markdown([row._replace(speed=67.9) if row.kind == "limit" else row for row in ROWS])
    [line] = found(front=other)
    assert line.startswith("the front page has another table")
