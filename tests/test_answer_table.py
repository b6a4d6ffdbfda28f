"""The answer's table: rows in, lines and a picture out; nothing is measured here."""

import math
import re
from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex

from kit.lab.claims.session import Session
from kit.lab.explaining import answer, answer_table
from kit.lab.explaining.answer_table import Row
from kit.lab.measuring.measurements import Reading
from kit.lab.measuring.minutes import Minutes
from kit.lab.predicting.ways import BLOCK_WAYS
from kit.units import with_error

ROWS = [
    Row("exact", "kit", 24.3, 23.0, 25.6, 0.72, 1.0),
    Row("int8", "kit", 30.7, 29.9, 31.5, 0.91, 0.981, "--linear fused-int8"),
    Row("int16", "kit", 28.2, 26.9, 29.5, 0.84, 0.9996, "--linear fused-int16"),
    Row("llama.cpp", "peer", 30.4, 29.4, 31.4, 0.905, 0.986),
    Row("limit of memory", "limit", 33.6, of_limit=1.0),
]


def test_the_limit_is_first_and_the_fastest_next():
    names = [line.split("  ")[0] for line in answer_table.text(ROWS).splitlines()[1:]]
    assert names == ["limit of memory", "kit, int8", "llama.cpp", "kit, int16", "kit, exact"], "exact was read as llama.cpp's"
    mine = [*ROWS, Row("./llama-bench -t 8", "yours", 11.0)]
    assert answer_table.ordered(mine)[1].name == "./llama-bench -t 8"
    assert answer_table.ordered([fast := Row("mine", "yours", 40.0), *ROWS])[:2] == [ROWS[-1], fast], "which passes the limit"
    assert len(answer_table.ordered(mine * 3)) == answer_table.MOST


@pytest.mark.parametrize("width", [80, 60, 44])
def test_it_fits_a_narrow_terminal(width):
    told = answer_table.text(ROWS, width)
    assert max(map(len, told.splitlines())) <= width
    assert ("99.9%" in told) == (width > 44) and "30.7 ± 0.8" in told and "--linear" not in told


def test_quality_that_is_not_known_takes_no_column():
    told = answer_table.text([row._replace(same=None) for row in ROWS])
    assert "token" not in told.replace("tokens", "") and told.splitlines()[0].split() == ["tokens/s", "of", "the", "limit"]


def test_the_verdict_turns_with_the_share():
    slow, own = [row._replace(of_limit=0.4) if row.kind == "peer" else row for row in ROWS], [*ROWS[:3]]
    for rows, name, *numbers in ((ROWS, "llama.cpp ", "90%"), (slow, "llama.cpp ", "40%", "2.5"), (own, "kit, int8 ", "91%")):
        told = answer_table.verdict(rows)  # of the fastest of kit's, where there is no engine
        assert told.startswith(name) and re.findall(r" (\d[\d.]*%?)", told) == numbers
    assert answer_table.verdict([ROWS[-1]]) == answer_table.verdict([row._replace(of_limit=None) for row in ROWS]) == ""
    for share, only in ((0.85, True), (0.849, False)):
        assert ("fewer bits" in answer_table.verdict([own[0]._replace(of_limit=share)])) is only


def test_what_is_left_has_the_interval_of_its_share():
    """ "At most 1.2 times is left" had none, and was no English."""
    assert re.findall(r"\d[\d.]*", answer_table.left(0.8, (0.78, 0.84))) == ["80", "1.2", "1.2", "1.3"]
    assert [" (" in answer_table.left(0.5, each) for each in ((0.0, 0.0), (-0.1, 0.6), (0.5, 0.5), (0.4, 0.6))] == [
        False, False, False, True]  # fmt: skip
    assert re.findall(r"\d[\d.]*", answer_table.left(0.9, (0.8, 1.0))) == ["90"]


def test_the_note_under_the_table_says_what_a_stranger_asked(monkeypatch):
    """ "int8 of what; ± of what; how many tokens?" """
    monkeypatch.setattr(answer.peers, "version", lambda name: "2026.1")
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    ran = Reading("a way", "", (0.1,) * 5, row={"tokens": 32.0}, machine="")
    exact, *rounded = BLOCK_WAYS
    study = SimpleNamespace()
    found = answer.Conclusion(study, dict.fromkeys(BLOCK_WAYS, ran), exact, ran, {"int8": {"tokens": 1024.0}})
    names, bits = " and ".join(way.product.activations for way in rounded), " and ".join(["16", "8"])
    assert answer.note(found) == (
        f"Speeds: the median of 5 rounds of 32 tokens, ± a 95% interval. {names} round activations (what weights are "
        f"multiplied with) to {bits} bits, and no weight. Same next token: counted at 1,024 positions of a text. llama.cpp: "
        "the package xllamacpp 2026.1."
    )
    alone = answer.Conclusion(study, {exact: Reading("a way", "", (0.1,) * 3, machine="")}, exact, None, {})
    assert re.findall(r"\d+", answer.note(alone)) == ["3", "95"]
    monkeypatch.setenv("LLAMA_CPP", "here")
    assert answer.note(found).endswith("llama.cpp: 2026.1."), "the library that the environment names, as version tells it"


def test_an_engine_of_kit_is_named_once():
    """An option that is no way had the row "kit, kit -t 2"."""
    data = {
        "engines": [{"engine": {"name": "kit", "label": label}, "decode": {"seconds": 0.1}} for label in ("kit", "kit -t 2")]
    }
    assert [row.label for row in answer_table.yours(data)] == ["kit, exact", "kit, -t 2"]


def test_a_line_of_the_picture_is_the_error_of_the_table():
    """The table had 40.1 ± 2.7, the picture a line from 36.8 to 42.2."""
    skew = [Row("limit of memory", "limit", 42.5, 41.0, 44.2, 1.0), Row("exact", "kit", 40.1, 36.8, 42.2, 0.94, 1.0)]
    axes = answer_table.picture(skew, "m").figure.axes[0]
    shade = axes.patches[-1].get_extents().transformed(axes.transData.inverted())
    for row, (low, high) in zip(skew, ((shade.x0, shade.x1), axes.lines[0].get_xdata()), strict=True):
        speed, error = map(float, row.told.split(" ± "))
        assert (speed - error, speed + error) == pytest.approx((low, high), abs=0.06) and row.told in answer_table.text(skew)


def test_markdown_has_the_same_cells():
    lines = answer_table.markdown(ROWS).splitlines()
    assert lines[2] == "| limit of memory | 33.6 | 100% |  |"
    assert lines[3] == "| kit, int8 | 30.7 ± 0.8 | 91% | 98.1% |"
    unknown = answer_table.markdown([row._replace(of_limit=None, same=None) for row in ROWS]).splitlines()
    assert unknown[:2] == ["| program | tokens/s |", "| --- | ---: |"], "a column that nothing is known of is none"


def test_an_interval_does_not_cross_the_number_of_its_bar():
    """On a busy machine a line of 95% went through "1,416 tokens/s"."""
    axes = answer_table.picture([Row("int8", "kit", 1416.0, 200.0, 2632.0)], "m").figure.axes[0]
    [line], [text] = axes.lines, [each for each in axes.texts if "tokens/s" in each.get_text()]
    assert line.get_ydata()[0] - text.get_position()[1] > 0.2 and Row("x", "kit", 1416.0, 200.0, 2632.0).told == "1,416 ± 1,216"


def test_an_error_as_large_as_its_number_is_said_in_a_word():
    """On a busy machine: "25.3 ± 852", and an axis of a thousand tokens per second."""
    wide, limit = Row("exact", "kit", 25.3, 0.6, 1704.6), Row("limit of memory", "limit", 33.6, of_limit=1.0)
    assert wide.told == "25.3 (uncertain)" and "| kit, exact | 25.3 (uncertain) |" in answer_table.markdown([wide])
    axes = answer_table.picture([limit, wide], "m").figure.axes[0]
    assert axes.get_xlim()[1] < 40 and [*axes.lines[0].get_xdata()] == [33.6] * 2
    assert [with_error(2.5, error, ".1f") for error in (2.4, 2.5, 1e9, math.nan, None)] == [
        "2.5 ± 2.4", "2.5 (uncertain)", "2.5 (uncertain)", "2.5", "2.5"]  # fmt: skip


@pytest.mark.parametrize("low, high, error, certain", [
    (8.0, 14.0, 3.0, True), (0.0, 20.0, 10.0, False), (0.2, 20.0, 9.9, True), (5.0, None, None, False),
    (None, 5.0, None, False),
    (6.0, 5.0, 0.0, True),
])  # fmt: skip
def test_an_error_is_half_of_the_interval(low, high, error, certain):
    row = Row("", "kit", 10.0, low, high)
    assert row.error == (error and pytest.approx(error)) and row.is_certain is certain


def test_the_table_is_set_in_columns():
    """Where it is as wide as the terminal it is whole."""
    lines = [
        "                   tokens/s  of the limit  same next token as exact",
        "limit of memory        33.6          100%",
        "kit, int8        30.7 ± 0.8           91%                     98.1%",
        "kit, exact       24.3 ± 1.3           72%                      100%",
    ]
    told = answer_table.text([ROWS[0], ROWS[1], ROWS[-1]], len(lines[2]))
    assert told.splitlines() == lines
    assert "of limit  token as exact" in answer_table.text(ROWS, len(lines[2]) - 1).splitlines()[0]
    first = [ROWS[-1], ROWS[0]._replace(of_limit=None, same=None)]
    assert answer_table.markdown(first).splitlines()[2:] == [
        "| limit of memory | 33.6 | 100% |",
        "| kit, exact | 24.3 ± 1.3 |  |",
    ]
    assert [answer_table.percent(share) for share in (1, 0.9996, 0.5)] == ["100%", "99.9%", "50.0%"]


def record(name, seconds=0.05, bound=0.025, **decode):
    return {"engine": {"name": name}, "decode": {"seconds": seconds} | decode, "bound": {"seconds": bound}, "mbu": 0.5}


BENCH = Row("llama-bench", "yours", 20.0, 16.0, 25.0, 0.5)


@pytest.mark.parametrize("engines, rows", [
    ([record("llama-bench", interval=[0.04, 0.0625])], [Row("limit of memory", "limit", 40.0, of_limit=1.0), BENCH]),
    ([record("llama-bench", others_cores=0.25, others=0.25)],
     [Row("limit of memory", "limit", 40.0, of_limit=1.0), BENCH._replace(low=20.0, high=20.0)]),
    ([record("llama-bench", interval=[0.04, 0.0625], others_cores=0.3)], [BENCH._replace(of_limit=None)]),
    ([record("llama-bench", interval=[0.04, 0.0625], others=0.3)], [BENCH._replace(of_limit=None)]),
    ([record("llama-bench", None)], []),
    ([record("llama-bench", None), record("a", bound=0.02), record("b", 0.1, bound=0.01)],
     [Row("limit of memory", "limit", 50.0, of_limit=1.0), Row("a", "yours", 20.0, 20.0, 20.0, 0.5),
      Row("b", "yours", 10.0, 10.0, 10.0, 0.5)]),
])  # fmt: skip
def test_rows_of_a_users_engines_have_the_limit_of_their_minutes(engines, rows):
    assert answer_table.yours({"engines": engines}) == rows and answer_table.yours(engines[0]) == (
        rows if len(rows) < 3 else []
    )


def test_kits_ways_and_others_are_named_as_in_every_table():
    named = [answer_table._named(each) for each in (
        {"name": "kit", "label": "kit --linear fused-int8"}, {"name": "kit", "label": "kit -t 2"},
        {"name": "llama.cpp"}, {"name": "llama-server", "version": "b1"}, {"name": "x", "label": "./x -t 8"})]  # fmt: skip
    assert named == [("int8", "kit", "--linear fused-int8"), ("-t 2", "kit", ""), ("llama.cpp", "peer", ""),
                     ("llama-server b1", "yours", ""), ("./x -t 8", "yours", "")]  # fmt: skip


def test_a_picture_has_a_bar_its_interval_and_its_number():
    """The number is in a bar that is long enough, else behind its interval."""
    slow, slower = Row("old", "kit", 5.0, 4.0, 7.0), Row("./x", "yours", 3.0)
    axes = answer_table.picture([*ROWS, slow, slower], "m").figure.axes[0]
    assert axes.get_xscale() == "linear" and repr(answer_table.picture(ROWS, "m").figure) == answer_table.verdict(ROWS)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "./x", "kit, int8", "llama.cpp", "kit, int16", "kit, exact", "kit, old"]  # fmt: skip
    gray, sky = "#6b7580", answer_table.figures.SKY
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches][:6] == [
        to_hex(each) for each in (gray, sky, gray, sky, sky, sky)
    ]
    *numbers, limit = axes.texts
    assert [text.get_position()[0] for text in numbers] == [3.0, 0, 0, 0, 0, 6.5]
    assert [text.get_color() for text in numbers] == ["black", "black", "white", "black", "black", "black"]
    assert all(part in numbers[1].get_text() for part in (" 30.7 ", "91%")) and limit.get_text().endswith(": 33.6 ")
    spans = [end for line in axes.lines for end in line.get_xdata()]
    assert spans == pytest.approx([29.9, 31.5, 29.4, 31.4, 26.9, 29.5, 23.0, 25.6, 3.5, 6.5, 33.6, 33.6]), (
        "as printed: 5.0 ± 1.5"
    )
    assert axes.get_xlim() == pytest.approx((0, 1.12 * 33.6)) and limit.get_position()[0] == 33.6
    bottom, top = sorted(axes.get_ylim())
    assert -1 < bottom < -0.33 and 5.33 < top < 6 and top - 0.5 < limit.get_position()[1] < top, (
        "bars, and above them the limit"
    )
    assert not any(line.get_visible() for line in axes.get_xgridlines())
    edge = answer_table.picture([Row("a", "kit", 100.0), Row("b", "kit", 45.0), Row("c", "kit", 45.1)], "m").figure.axes[0]
    assert [text.get_position()[0] for text in edge.texts] == [0, 0, 45.0]
    assert edge.get_xlim()[1] == pytest.approx(112) and not edge.lines


def test_a_speed_has_as_many_places_as_its_error():
    """ "43 ± 0.8"."""
    told = [Row("", "kit", speed, speed - error, speed + error).told for speed, error in (
        (43.0, 0.8), (42.0, 1.06), (5.2, 0.04), (333.2, 12.3), (1204.0, 31.0), (43.0, 0.0))]  # fmt: skip
    assert told == ["43.0 ± 0.8", "42.0 ± 1.1", "5.20 ± 0.04", "333 ± 12", "1,204 ± 31", "43.0 ± 0.0"]
    alone = [Row("", "limit", speed).told for speed in (45.64, 999.4, 999.5, 999.7, 1000.0, 1204.4)]
    assert alone == ["45.6", "999", "1,000", "1,000", "1,000", "1,204"], "999.7 was 1e+03"


def test_the_limit_has_the_interval_of_its_rounds():
    """A row of 39.8 ± 6.3 under a limit of 41.8 was left to the reader, then to a sentence without a number."""
    minutes = Minutes(1e9, (40.0, 42.0, 44.0, 43.0, 41.0), {"kit": (1 / 39, 1 / 40, 1 / 39.5, 1 / 40, 1 / 39)})
    low, high = minutes.interval
    assert 1 / 46 < low < minutes.least == 1 / 42 < high < 1 / 38
    data = {"bound": {"seconds": minutes.least, "interval": minutes.interval}, "mbu": 0.9}
    data |= {"engine": {"name": "kit", "label": "kit"}, "decode": {"seconds": 1 / 40, "interval": [1 / 41, 1 / 39]}}
    assert answer_table.yours(data)[0].told == "42.0 ± 2.0"


def test_an_engines_row_has_the_quality_that_was_measured_of_its_way():
    """The gallery had speeds without quality."""
    decode = {"seconds": 0.03, "interval": [0.02, 0.04]}
    engines = [{"name": "kit", "label": "kit"}, {"name": "kit", "label": "kit --linear fused-int8"},
               {"name": "llama.cpp", "label": "llama.cpp"}, {"name": "llama-bench", "label": "./llama-bench"}]  # fmt: skip
    data = {"engines": [{"engine": engine, "decode": decode} for engine in engines]}
    losses = {"int8 activations": {"same": 0.98}, "llama.cpp, mmap 2026.1": {"same": 0.97}}
    assert [row.same for row in answer_table.yours(data, losses)] == [1.0, 0.98, 0.97, None]
    assert [row.same for row in answer_table.yours(data)] == [1.0, None, None, None]


def test_rows_are_those_of_the_answer_as_data():
    exact = {"name": "blocks, exact products", "precision": "float32", "same": 1.0, "mbu": 0.72, "way": "fused", "holds": ""}
    exact |= {"seconds": 0.04, "low": 0.039, "high": 0.042, "command": "kit generate a.gguf -p 'a fused-int8 word'"}
    int8 = exact | {"name": "blocks, int8 activations", "precision": "int8 activations", "seconds": 0.03, "same": 0.98}
    int8 |= {"way": "fused-int8", "command": "kit generate a.gguf --linear fused-int8"}
    pinned = exact | {"name": "blocks, 8.00 MiB pinned", "holds": "pinned"}
    guessed = exact | {"name": "all kept, float32", "precision": "float32", "low": None, "high": None}
    peer = exact | {"name": "llama.cpp, mmap", "precision": "", "mbu": 0.88, "same": None}
    del peer["command"]
    limit = {"seconds": 1 / 34, "interval": (1 / 36, 1 / 32)}
    answer = {"limit": limit, "reached": [exact, int8, pinned, guessed], "peer": peer}
    table = answer_table.rows(answer)
    assert (table[0].low, table[0].high) == pytest.approx((32, 36)) and table[0].told == "34.0 ± 2.0"
    assert [row.name for row in table] == ["limit of memory", "exact", "int8", "blocks, 8.00 MiB pinned", "llama.cpp"]
    assert [row.same for row in table] == [None, 1.0, 0.98, 1.0, None]
    assert [row.option for row in table] == ["", "", "--linear fused-int8", "", ""], "a word of a prompt is no option"
    assert table[1].speed == 25 and table[1].low == pytest.approx(1 / 0.042) and table[4].of_limit == 0.88
    assert table[:2] == [
        Row("limit of memory", "limit", 34.0, pytest.approx(32), pytest.approx(36), of_limit=1.0),
        Row("exact", "kit", 25.0, 1 / 0.042, 1 / 0.039, 0.72, 1.0),
    ]
    assert len(answer_table.rows(answer | {"peer": None})) == 4
    without = answer_table.rows(answer | {"reached": [int8 | {"command": ""}]})
    assert without[1].option == "", "no command runs it"


def test_the_best_minutes_are_of_a_day_or_of_this_run():
    """README named four limits before its table."""
    study = SimpleNamespace(least=0.0125, least_now=0.024, limits=None, read_gbps=81.9)
    study.limits = SimpleNamespace(at="2026-11-28", machine=SimpleNamespace(read_gbps=81.9))
    assert re.findall(r"\d[\d.-]*", answer.best_minutes(study)) == ["2026-11-28", "81.9", "80"]
    study.read_gbps = 84.0  # of this run
    assert re.findall(r"\d[\d.-]*", answer.best_minutes(study)) == ["84.0", "80"]


def test_a_command_of_an_answer_is_a_line_of_the_page():
    """Sentences and commands of "What to do" ran into each other."""
    said = Session.answer(
        SimpleNamespace(say=lambda text: text), "Ask\nyour  own\n`kit explain X`\nIt ends.\n", title="A result."
    )
    assert said == "**A result.** Ask your own   \n`kit explain X`  \nIt ends.", "two blanks are a break in Markdown"
