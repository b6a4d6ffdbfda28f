"""The pages: whole, self-contained, and deaf to whatever a model file calls its tensors."""

import base64
import dataclasses
import json
import re
from html.parser import HTMLParser

import nbformat
import pytest
from markupsafe import Markup
from nbformat import v4

from kit import units
from kit.lab import figures
from kit.lab.claims import book, records
from kit.lab.claims import table as claims
from kit.lab.claims.records import Record
from kit.lab.claims.table import Claim
from kit.lab.explaining import answer_table
from kit.lab.explaining.answer_table import Row
from kit.lab.report import content, html, index, theme
from kit.lab.report import run as runs
from kit.lab.report.checklist import checklist, command_line
from kit.lab.tables import frame, shown

ALLOWED_TO_LOAD = ("data:",)


class Page(HTMLParser):
    """Everything on a page that could run or load."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.handlers, self.scripts, self.ids, self.links = [], [], 0, set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.scripts += tag == "script"
        self.handlers += [name for name in given if name.startswith("on")]
        self.loads += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]
        self.loads += [given["href"]] if tag == "link" else []
        self.loads += [tag] if tag in ("iframe", "object", "embed", "base", "form") else []
        self.ids |= {given["id"]} if "id" in given else set()
        self.links += [given["href"]] if tag == "a" and "href" in given else []


@pytest.mark.parametrize("name", ["index", "01_first_token", "02_fails", "03_killed", "04_after"])
def test_a_page_runs_its_own_script_and_loads_nothing(finished, name):
    text = (finished / f"{name}.html").read_text()
    page = Page(text)
    assert page.scripts == 1
    assert page.handlers == []
    assert [load for load in page.loads if not load.startswith(ALLOWED_TO_LOAD)] == []
    assert "@import" not in text
    assert not re.search(r"url\((?!data:)", text)
    assert len(text) < 5e6


@pytest.mark.parametrize("name", ["index", "01_first_token", "02_fails"])
def test_every_link_of_a_page_leads_somewhere(finished, name):
    page = Page((finished / f"{name}.html").read_text())
    assert page.links
    for link in page.links:
        path, _, anchor = link.partition("#")
        if not path.startswith(("data:", "http")):
            target = Page((finished / (path or f"{name}.html")).read_text())
            assert not anchor or anchor in target.ids, link


def test_hostile_names_stay_text(finished):
    for name in ("index", "01_first_token"):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in (finished / f"{name}.html").read_text()


def test_the_index_accounts_for_every_claim(finished):
    text = (finished / "index.html").read_text()
    for claim in claims.load():
        assert claim in text
    assert text.count(">no record<") == len(claims.load()) - 2
    assert "04_attention has not run in this folder" in text
    assert "needs 32 GiB of memory" in text
    assert "ZeroDivisionError: division by zero" in text
    assert text.count('href="01_first_token.html#cell-9"') == 3, "a verdict links to the cell that measured it"


def test_the_index_opens_with_answers_then_notebooks_then_claims(finished):
    text = (finished / "index.html").read_text()
    order = [text.index(part) for part in ("Does preloading bring", 'id="notebooks"', 'id="claims"', 'id="environment"')]
    assert order == sorted(order)
    answer = text[order[0] : order[1]]
    assert "194 s → 0.075 s" in answer and "2.00 s" in answer and "≥ 500 ms" in answer, "claimed, measured, possible"


def contrast_with_white(color):
    """WCAG's contrast ratio of #rrggbb."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)


def test_every_verdict_has_its_color_on_pages(finished):
    text = (finished / "index.html").read_text()
    colors = {word: verdict.color for word, verdict in claims.WORDS.items()}
    assert {*claims.VERDICTS, "no record"} == set(colors)
    for word, color in colors.items():
        assert f".tone-{word.replace(' ', '-')} {{ --tone: {color}; }}" in text
    assert len(set(colors.values())) == len(colors)
    assert all(contrast_with_white(color) >= 4.5 for color in colors.values())  # WCAG 2.2, AA


def test_the_embedded_records_are_the_records(finished):
    text = (finished / "01_first_token.html").read_text()
    embedded = re.search(r'href="data:application/x-ndjson;base64,([^"]*)"', text)[1]
    assert base64.b64decode(embedded) == (finished / "01_first_token.jsonl").read_bytes()


def test_pages_show_code_and_no_backticks(finished):
    """The checklist said "more samples, or several runs (`kit verify`)", backticks and all, and so did verdicts."""
    assert str(theme.coded("<b> `kit verify` & `")) == "&lt;b&gt; <code>kit verify</code> &amp; `"
    for name in ("index", "01_first_token"):
        text = (finished / f"{name}.html").read_text()
        shown = re.sub(r"<(script|style|pre|code)\b.*?</\1>|<[^>]*>", "", text, flags=re.DOTALL)
        assert re.findall(r".{0,40}`.*", shown) == []
        assert "needs 32 GiB of memory: see <code>kit doctor</code>" in text and "by <code>kit verify</code>" in text


def test_the_checklist_is_filled_from_the_run(finished):
    text = (finished / "01_first_token.html").read_text()
    assert "kit reproduce --profile smoke -p seed=7" in text
    assert "2 to 5 per measurement, 2 measurements" in text
    assert "stated by 1 of 1 verdicts" in text
    assert "cache-4gb-feasible: needs 32 GiB of memory" in text


@pytest.mark.parametrize("commits, met, told", [
    (["new", "new"], True, "new; kit 1"), (["new", "old+"], False, "new and old, with uncommitted changes; kit 1"),
    ([""], True, "first; kit 1"), ([], True, "first; kit 1"),
])  # fmt: skip
def test_the_checklist_names_the_commits_of_its_records(commits, met, told, tmp_path):
    """A run that was gone on with at a later commit stood as of the one that it was begun with."""
    rows = [Record(quantity="q", unit="s", samples=[1.0], commit=commit) for commit in commits]
    run = runs.Run(tmp_path, runs.Request(), "m", "1", "first", runs.now())
    item = next(item for item in checklist(run, rows, []) if item.title == "Commit")
    assert (item.met, item.text) == (met, told)


def test_the_checklist_names_what_failed_and_a_page_s_command_its_own_parameters(tmp_path):
    names = ["00_a", "01_b", "02_c"]
    ended = {name: runs.NotebookOutcome(status, "", 0, 0, [], "", "") for name, status in (("00_a", "ok"), ("01_b", "failed"))}
    run = runs.Run(tmp_path, runs.Request("quick", texts=("seed=7", "tokens=3")), "m", "1", "c", runs.now(), ended)
    assert checklist(run, [], names)[-1].text == "02_c: not run yet; 01_b: failed"
    cell = v4.new_code_cell("tokens: int = 1  # of each", metadata={"tags": ["parameters"]})
    nbformat.write(v4.new_notebook(cells=[cell]), tmp_path / "00_a.ipynb")
    assert command_line(run, "00_a") == "kit reproduce --profile quick --only 00 -p tokens=3"
    assert command_line(run, "01_b") == "kit reproduce --profile quick --only 01", "no notebook, no parameters"
    assert command_line(run) == "kit reproduce --profile quick -p seed=7 -p tokens=3"


def test_each_line_of_the_checklist(tmp_path):
    run = runs.Run(tmp_path, runs.Request("quick"), "m", "1", "c", runs.now())
    given = {"commit": "c", "parameters": {"seed": 7}, "unit": "s"}
    rows = [
        Record(
            quantity="a", samples=[1.0] * 5, verdict="reproduced", reason="r", tolerance="10%", upper_source="peak", **given
        ),
        Record(quantity="b", samples=[1.0] * 2, verdict="impossible", reason="r", lower_source="bytes", **given),
        Record(quantity="e", samples=[1.0] * 3, unit="s"),
        Record(quantity="d", status="skipped", reason="no GPU", unit="s"),
        Record(quantity="f", claim="simd", status="skipped", reason="no time", unit="s"),
        Record(quantity="g", status="failed", reason="broken", unit="s"),
    ]
    found = {item.title: (item.met, item.text) for item in checklist(run, rows, [])}
    between = found.pop("Between runs")
    assert between[0] is None and "from" in between[1]
    assert found == {
        "Command": (None, "kit reproduce --profile quick"),
        "Commit": (True, "c; kit 1"),
        "Version pins": (None, "pyproject.toml; the versions that ran are under Environment"),
        "Machine": (None, "m"),
        "Seeds": (True, "7"),
        "Samples": (None, "2 to 5 per measurement, 3 measurements; the raw ones are in the records"),
        "Tolerances": (False, "stated by 1 of 2 verdicts"),
        "Limits": (True, "stated by 2 of 2 verdicts"),
        "Not run": (False, "d: no GPU; simd: no time"),
    }
    bare = {item.title: (item.met, item.text) for item in checklist(dataclasses.replace(run, commit=""), [rows[3]], [])}
    assert bare["Seeds"] == (False, "no record states one") and bare["Commit"] == (
        False,
        "unknown: not run from a git checkout",
    )
    assert bare["Samples"] == (None, "no measurement yet") and bare["Limits"] == (None, "no verdicts here")
    same = {item.title: (item.met, item.text) for item in checklist(run, rows[1:2] * 2, [])}
    assert same["Samples"][1].startswith("2 per measurement, 2 m") and same["Not run"][0] is True
    assert {item.title: item.met for item in checklist(run, [], [])}["Seeds"] is None


@pytest.mark.parametrize(
    "markup",
    [
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<a href='javascript:alert(1)'>x</a>",
        "<style>body{display:none}</style>", "<svg onload=alert(1)>", "<iframe src='http://x'></iframe>",
        "<b onclick=alert(1)>x</b>", "<img src='http://x/a.png'>", "<table background='http://x'>", "<form action='http://x'>",
        "<a href='data:text/html,<script>1</script>'>x</a>", "<scr<script></script>ipt>alert(1)</script>", "<!--<img src=x>-->",
    ],
)  # fmt: skip
@pytest.mark.parametrize("through", [content.clean, lambda text: content.markdown(text, "x")[0]])
def test_markup_is_disarmed(markup, through):
    page = Page(through(f"before {markup} after"))
    assert (page.scripts, page.handlers, page.loads) == (0, [], [])
    assert not [link for link in page.links if not link.startswith(("http", "#"))]


def test_markdown_gives_headings_and_leads_to_pages():
    source = "# A & B\n\n## `code` <b>x</b>\n\n[next](02_x.ipynb#cell-3) [web](https://a.org)"
    html, headings = content.markdown(source, "cell-1")
    assert headings == [(1, "cell-1-1", "A & B"), (2, "cell-1-2", "code x")]
    assert '<h2 id="cell-1-2">' in html
    assert 'href="02_x.html#cell-3"' in html
    assert 'href="https://a.org"' in html


def test_text_is_what_a_terminal_would_show():
    assert content.terminal("10%\r20%\r30%\ndone\r\nend") == "30%\ndone\r\nend"
    half = content.LONGEST // 2
    assert content.terminal("a" * half + "b" * half) == "a" * half + "b" * half
    first, said, last = content.terminal("a" * half + "c" * 1000 + "b" * half).split("\n")
    assert (first, last) == ("a" * half, "b" * half) and said.startswith("[... 1,000 characters")


def test_a_live_control_becomes_its_text():
    data = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "Slider"}
    shown = content.output({"output_type": "display_data", "data": data})
    assert shown == {"kind": "text", "body": "Slider"}


@pytest.mark.parametrize(("value", "unit", "text"), [
    (7.838, "x", "7.84x"), (0.075, "s", "75.0 ms"), (2**30, "B", "1.00 GiB"), (1100.0, "tok/s", "1,100 tok/s"),
    (2.5, "x", "2.5x"), (None, "s", "–"),
])  # fmt: skip
def test_quantities_read_as_people_write_them(value, unit, text):
    assert units.format_quantity(value, unit) == text


def test_a_page_has_three_digits_of_each_number():
    """ "7.838x" and "1,594x" beside "2.67 ms". A count keeps all, and a share near all of it does not become all."""
    of = [(7.838, "x"), (139.59, "x"), (1593.8, "x"), (1100.0, "tok/s"), (12.903, "%"), (99.97, "%"), (3921.0, "")]
    told = [units.format_quantity(value, unit) for value, unit in of]
    assert told == ["7.84x", "140x", "1,590x", "1,100 tok/s", "12.9%", "99.97%", "3,921"]


def record(**fields):
    return Record(run_id="r", notebook="n", quantity="q", unit="s", **fields)


@pytest.mark.parametrize(("lower", "samples", "upper", "reported", "possible", "measured", "of_report"), [
    (0.01, [1.0], 100.0, None, (0.06, 0.94), 0.5, []), (0.01, [100.0], None, None, (0.06, 1.0), 0.94, []),
    (None, [0.01], 100.0, 0.0, (0.0, 0.94), 0.06, []), (0.0, [0.01], 100.0, None, (0.0, 0.94), 0.06, []),
    (None, [0.01], None, 100.0, None, 0.06, [0.94]), (0.01, [], 100.0, 1.0, (0.06, 0.94), None, [0.5]),
])  # fmt: skip
def test_the_scale_is_a_log_axis_of_what_is_possible_measured_and_reported(
    lower, samples, upper, reported, possible, measured, of_report
):
    """1 is half way from 0.01 to 100; the ends have a margin, which an open end reaches over; what is not positive has none."""
    claim = Claim("c", "000", "", "", "n", before=None, after=reported, unit="s")
    row = record(samples=samples, lower=lower, upper=upper, status="ok" if samples else "skipped", reason="r")
    at = theme.positions(row, claim)
    assert (at["possible"], at["measured"], at["reported"]) == (
        possible and pytest.approx(possible), measured and pytest.approx(measured), pytest.approx(of_report))  # fmt: skip
    assert theme.positions(record(samples=[10.0], upper=10.0), None) is theme.positions(record(samples=[10.0]), None) is None
    assert theme.positions(record(samples=[-1.0], lower=0.0), None) is None


def test_the_result_is_the_title_and_the_answer_is_under_it(finished):
    text = (finished / "01_first_token.html").read_text()
    assert re.search(r"<h1[^>]*>Seconds, not minutes</h1>\s*<p class=\"muted\">The first token</p>", text)
    assert "Seconds, not minutes" in (finished / "index.html").read_text()
    title, answer, question = (text.index(part) for part in ("<h1", 'class="answer"', "How long?"))
    assert title < answer < question
    assert text.count("Nobody waits") == 2, "in the answer and in the code that gave it"
    assert text.count("<h1") == 1


def test_the_picture_is_under_the_answer_and_nowhere_else(finished):
    text = (finished / "01_first_token.html").read_text()
    answer, figure, question = (text.index(part) for part in ('class="answer"', "<figure>", "How long?"))
    assert answer < figure < question
    assert text.count("<figure>") == 1


def test_control_characters_never_reach_a_page(finished, tmp_path):
    assert content.terminal("a\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b b\x08") == "a\x1b[31mred\x1b[0m ]0;title  b"
    assert content.clean("<b>\x1b\x00x</b>") == "<b>x</b>"
    page = theme.write(
        tmp_path / "x.html", "merged.html.j2", folder="\x1b[2Jx", runs=[], busy={}, failed=[], claims=[], measurements=[]
    )
    assert "\x1b" not in page.read_text()
    for page in finished.glob("*.html"):
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", page.read_text())


# --- the decision, cards, what made a page ----------------------------------------------------------------------------


def test_a_figure_is_told_by_its_title():
    """The alternative text is what the figure's title says; other pictures are named by their section."""
    figure, _ = figures.new(1, 2)
    assert repr(figure).startswith("<")
    figure.axes[0].set_title("Blocks take 12 ms")
    figure.axes[1].set_title("of 30", loc="left")
    told = {"output_type": "display_data", "data": {"image/png": "aaaa", "text/plain": repr(figure)}}
    assert content.output(told)["alt"] == "Blocks take 12 ms; of 30"
    assert content.output(told | {"data": {"image/png": "a", "text/plain": "<Figure size 800x420>"}})["alt"] == ""


def test_here_and_computed_stand_apart_and_a_claim_folds(tmp_path):
    given = {"claim": "first-token-preload", "notebook": "01_first_token", "verdict": "impossible", "reason": "because"}
    here = Record(**given | {"quantity": "first token here", "unit": "s", "samples": [0.4], "verdict": "reproduced in ratio"})
    given |= {"lower": 0.272, "lower_source": "bytes", "how": "computed"}
    computed = Record(**given, quantity="a token there", unit="s", samples=[0.272])
    for one in (here, computed):
        records.append(tmp_path / "01_first_token.jsonl", one)
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now", planned=["01_first_token"])
    found = index.answers(book.read(tmp_path))[0]
    assert [row.quantity for row in found["ends"]] == ["first token here"] and found["bound"] is None
    assert found["computed"].quantity == "a token there"
    text = index.write(run).read_text()
    assert text.count('<details class="claim"') == len(claims.load()) and text.count('<details class="group"') == 6
    assert text.index("Report 000: ") < text.index("Report 004: ") < text.index("Public threads")
    assert "preload_test_results.txt" in text and "CACHE_PERSISTENCE_INVESTIGATION.md" in text


def test_what_a_page_is_given_stays_text(tmp_path):
    given = {"folder": "<b>x</b>", "runs": [], "busy": {}, "failed": [], "claims": [], "measurements": []}
    text = theme.write(tmp_path / "x.html", "merged.html.j2", **given).read_text()
    assert "&lt;b&gt;x" in text and "<b>x" not in text


@pytest.mark.parametrize("model", ["", "/models/my.gguf"])
def test_a_run_of_ones_own_model_that_judges_nothing_has_no_claims(tmp_path, model):
    """`kit reproduce --only 00 --model my.gguf` opened with "0 of 85 claims" and 85 times "no record"."""
    run = runs.Run(tmp_path, runs.Request(model=model), "m", "0", "c", "now", planned=["00_start_here"])
    text = index.write(run).read_text()
    assert ('id="claims"' in text) == ("Five field reports, by other people" in text) == (
        not model
    ) and 'id="measurements"' in text


def test_a_page_has_its_command_its_reports_and_the_machine_s_state(tmp_path):
    row = Record(
        claim="preload-memory", notebook="02_cache_mystery", verdict="reproduced", reason="r", quantity="q", unit="MiB",
        samples=[1.0], state={"read_gbps": 18.5, "busy": "other processes use 2 cores"},
    )  # fmt: skip
    again = dataclasses.replace(row, state={"read_gbps": 33.6})
    for one in (row, again):
        records.append(tmp_path / "02_cache_mystery.jsonl", one)
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now", planned=["02_cache_mystery"])
    text = html.write(run, "02_cache_mystery").read_text()
    assert "kit reproduce --profile quick --only 02" in text and 'href="02_cache_mystery.ipynb"' in text
    assert "speed varied 1.8-fold" in text and text.index("Busy machine:</b> other processes use 2 cores") < text.index("<h1")
    assert "preload-replay" not in text
    assert "CACHE_PERSISTENCE_INVESTIGATION.md" in text and "311 evictions" in text


def test_heads_of_tables_say_of_what():
    told = content.clean(shown(frame([("a", 1.0)], "way", "x, s")).to_html()) + content.markdown("| a |\n|---|\n| 1 |", "x")[0]
    assert (told.count('scope="col"'), told.count('scope="row"')) == (3, 1)
    assert told.count("<th ") == 4 + told.count('<th class="blank')


# --- the reader's own model: one table -------------------------------------------------------------------------------

ROWS = [
    Row("limit of memory", "limit", 33.6, of_limit=1.0), Row("llama.cpp", "peer", 30.4, 29.4, 31.4, 0.9048, 0.986),
    Row("int8", "kit", 30.7, 29.9, 31.5, 0.9137, 0.981, "--linear fused-int8"),
    Row("exact", "kit", 24.3, 23.0, 25.6, 0.72, 1.0),
]  # fmt: skip
TITLE, ADVICE = "llama.cpp is at 90% of what memory gives", "Only fewer bits help: `kit quants my.gguf --to Q4_0`"


def executed(folder, name: str, *cells: tuple[str, str]):
    """<folder>/<name>.ipynb as papermill leaves it: a heading, then a code cell for each (tag, Markdown that it showed)."""
    made = [v4.new_markdown_cell(f"# {name}")]
    for tag, text in cells:
        output = v4.new_output("display_data", {"text/markdown": text})
        made.append(v4.new_code_cell("shown()", metadata={"tags": [tag] * bool(tag)}, outputs=[output]))
    nbformat.write(v4.new_notebook(cells=made), folder / f"{name}.ipynb")


@pytest.fixture
def both(tmp_path):
    """(front page, page 09) of a run whose pages 07 and 09 were executed and whose engines ran, as HTML."""
    executed(tmp_path, "07_memory_frontier", ("answer", "**28.0 ms per token in 2 GiB.** Seven's answer."))
    executed(tmp_path, "09_your_model", ("answer", f"**{TITLE}.** {ADVICE}"), ("table", answer_table.markdown(ROWS)))
    engines = {"kit": {"speed": 10.0, "samples": [10.0]}, "llama.cpp, mmap": {"speed": 25.0, "samples": [25.0]}}
    (tmp_path / "peers.json").write_text(json.dumps({"file": "my.gguf", "by": "07_memory_frontier", "engines": engines}))
    run = runs.Run(
        tmp_path, runs.Request(model="my.gguf"), "m", "0", "c", "now", planned=["07_memory_frontier", "09_your_model"]
    )
    return index.write(run).read_text(), html.write(run, "09_your_model").read_text()


def cells_of(text: str) -> list[list[str]]:
    """The cells of the first table with a column of tokens per second."""
    found = next(table for table in re.findall(r"<table.*?</table>", text, re.DOTALL) if "tokens/s" in table)
    lines = re.findall(r"<tr>(.*?)</tr>", found, re.DOTALL)
    return [[Markup(cell).striptags() for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line, re.DOTALL)] for line in lines]


def test_the_front_page_and_page_09_have_the_table_of_kit_explain(both):
    head, _, *lines = answer_table.markdown(ROWS).splitlines()
    told = [[" ".join(cell.replace("`", "").split()) for cell in line[1:-1].split("|")] for line in (head, *lines)]
    for text in both:
        assert cells_of(text) == told
        assert text.count("limit of memory") == 1, "once"
    front, page = both
    order = [front.index(part) for part in (TITLE, "limit of memory", 'id="to-do"', "Only fewer bits", 'id="notebooks"')]
    assert order == sorted(order)
    assert page.index(TITLE) < page.index("Only fewer bits") < page.index("limit of memory")


def test_the_reports_of_other_people_are_folded_under_the_reader_s_own_model(tmp_path, both):
    """A reader took 85 claims of somebody's reports for his own, and asked of what "139.6x" and "7.838x" were."""
    front, _ = both
    assert "Five field reports" not in front and "What the reports claimed" not in front, "this run judges none of them"
    of = tmp_path / "judged"
    of.mkdir()
    given = {"verdict": "undecided here", "reason": "why", "unit": "x", "upper": 1593.8, "upper_source": "bytes"}
    for page, claim, median in (("01_first_token", "first-token-preload", 139.5918), ("05_tile_decode", "tile-295-5", 7.838)):
        one = Record(
            **given, claim=claim, notebook=page, quantity="in loops, stand-in, prompt of 4, over one", samples=[median]
        )
        records.append(of / f"{page}.jsonl", one)
    for model, opened in (("/models/my.gguf", False), ("", True)):
        run = runs.Run(of, runs.Request(model=model), "m", "0", "c", "now", planned=["01_first_token", "05_tile_decode"])
        text = index.write(run).read_text()
        fold = re.search(r'<details class="section" id="answers"( open)?>.*?</details>', text, re.DOTALL)
        assert bool(fold[1]) == opened and "by other people about other machines" in fold[0] and fold[0].count("<li>") == 2
        assert all(f"{number}<small>as long " in fold[0] for number in ("140x", "7.84x")) and "1,590x" in fold[0]
        assert "stand-in" not in fold[0] and text.index(fold[0]) < text.index('id="notebooks"')


def test_what_to_do_is_said_of_the_model_of_the_table_and_no_other_time_of_a_token(both):
    front, _ = both
    first = front[: front.index('id="notebooks"')]
    assert "Seven's answer" not in first and "ms" not in Markup(first[first.index("<h1") :]).striptags().split()
    assert "<i style=" not in first, "a table, not bars"
    assert front.index('href="09_your_model.html">09') < front.index('id="notebooks"')


def test_without_page_09_the_front_page_has_bars_and_the_advice_of_07(tmp_path, both):
    (tmp_path / "09_your_model.ipynb").unlink()
    run = runs.Run(tmp_path, runs.Request(model="my.gguf"), "m", "0", "c", "now", planned=["07_memory_frontier"])
    front = index.write(run).read_text()
    assert "<i style=" in front and "tokens/s" not in front
    assert front.index("<i style=") < front.index("Seven&#39;s answer" if "Seven&#39;s" in front else "Seven's answer")
