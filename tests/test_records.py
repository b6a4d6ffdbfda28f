"""Claims, records and the session that writes them."""

import json

import numpy as np
import pandas as pd
import pytest

from kit.errors import ReportError
from kit.lab import figures, tables
from kit.lab.claims import records
from kit.lab.claims import table as claims
from kit.lab.claims.judge import judge
from kit.lab.claims.records import Record
from kit.lab.claims.session import Session
from kit.lab.engines.table import COMPARED
from kit.lab.explaining.peers import called
from kit.lab.measuring import drift, machine, measure
from kit.lab.measuring.state import State
from kit.system.paths import ROOT
from kit.units import format_seconds

KNOWN = """first-token-preload cold-inference warm-inference dual-level-cache cache-4gb-feasible attention-blas-speedup
parallel-dequant variance-45-1100 blas-500 preload-memory preload-hit-rate miss-counter strong-count hypothesis-eviction
hypothesis-pressure hypothesis-instances hypothesis-stats hypothesis-thread-local cache-lookup-speedup lru-512mb prefetch-ahead
frequency-priority fix-verify fix-pinned fix-hashmap tile-295-5 generic-decoder double-cache hit-rate-85 token-time
five-tokens cold-token layer-50s""".split()


def test_every_claim_of_the_findings_has_its_row():
    assert list(claims.load())[: len(KNOWN)] == KNOWN
    assert all((ROOT / "notebooks" / f"{claim.notebook}.ipynb").exists() for claim in claims.load().values())


def test_an_unknown_claim_is_an_error_that_lists_the_known():
    with pytest.raises(ReportError, match=r"claim 'x' is not known; choose one of fix-verify, .* in all\)"):
        claims.get("x")


def test_the_title_of_speed_against_loss_fits_its_figure():
    """With four engines it was wider, and the page made the whole figure small."""
    names = [*map(called, COMPARED)]
    figure, axes = figures.against_kl(pd.Series([0.8, 0.93, 1.01, 1.0], names), pd.Series([1e-11, 1e-8, 1e-3, 1e-3], names))
    figure.canvas.draw()
    assert "1.01" in axes.get_title("left")
    sizes = [line.get_markersize() for line in axes.lines if line.get_marker() in "os^D"]
    assert len({*sizes}) == 4 and {line.get_markerfacecolor() for line in axes.lines[:4]} == {"none"}, "none hides another"
    assert axes._left_title.get_window_extent().x1 < figure.bbox.width


def test_an_axis_of_less_than_two_decades_has_more_labels():
    for high, told in ((0.3, {"10.0 ms", "20.0 ms", "50.0 ms", "100 ms", "200 ms"}), (3.0, {"10.0 ms", "100 ms", "1.00 s"})):
        _, axes = figures.new()
        axes.plot([0.01, high], [1, 2])
        figures.log(axes, "x", write=format_seconds)
        low, most = axes.get_xlim()
        labels = [*axes.xaxis.get_ticklabels(), *axes.xaxis.get_ticklabels(minor=True)]
        assert {t.get_text() for t in labels if t.get_text() and low <= t.get_position()[0] <= most} == told


def test_what_is_drawn_before_an_axis_is_a_logarithm_stays_in_view():
    """Page 08 showed two bars of seven and no claimed figure: a bar's ends held the axis, by a linear tolerance."""
    _, axes = figures.new()
    axes.barh(0, 1e6 - 7.6, left=7.6)
    axes.barh(1, 0.03 - 1e-6, left=1e-6)
    axes.plot(1, 0, "D")
    figures.log(axes, "x")
    low, high = axes.get_xlim()
    assert low <= 1e-6 and high >= 1e6


def test_a_thumbnail_leaves_out_the_legends_of_axes_and_of_the_figure(tmp_path):
    for name, legends in (("with", True), ("without", False)):
        figure, axes = figures.new()
        axes.plot([1, 2], label="what")
        if legends:
            axes.legend()
            figure.legend(loc="outside lower center")
        figures.thumbnail(figure, tmp_path / f"{name}.png")
        assert len(figure.legends) == legends
    assert (tmp_path / "with.png").read_bytes() == (tmp_path / "without.png").read_bytes()


def test_a_figure_has_all_its_labels_after_its_thumbnail(tmp_path):
    figure, axes = figures.new()
    axes.barh(["slow", "fast"], [48, 3])
    open_ones = figures.plt.get_fignums()
    figures.thumbnail(figure, tmp_path / "small.png")
    assert figures.plt.get_fignums() == open_ones and figures.plt.gcf() is figure, "a notebook shows all that are open"
    figure.canvas.draw()
    assert len(axes.get_xticklabels()) == len(axes.get_xticks())


ROW = "- {id: a, report: '001', claim: c, reported: r, notebook: n}\n"


@pytest.mark.parametrize(("text", "says"), [
    ("a: [", "not YAML"), ("[" * 5000, "not YAML"), ("id: a", "expected a list of claims"),
    ("- a", "expected a list of claims"),
    ("- {id: a, before: fast}", "claim 1: wrong or unknown: 'before'; missing: report, claim, reported, notebook"),
    (ROW + ROW, "claim 2: the id 'a' is already used"),
    (ROW.replace("}", ", ratio: [5]}"), "claim 1: wrong or unknown: 'ratio'"),
    (ROW.replace("}", ", parts: [{unit: s}]}"), "claim 1: wrong or unknown: 'parts'"),
])  # fmt: skip
def test_a_wrong_file_of_claims_is_one_error_that_names_the_row(tmp_path, text, says):
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(ReportError, match=says) as error:
        claims.read(path)
    assert str(error.value).startswith(str(path))


def make(**changes):
    return Record(**(dict(run_id="r", notebook="n", quantity="q", unit="s", samples=[3.0, 1.0, 2.0]) | changes))


def test_a_record_survives_its_file(tmp_path):
    path = tmp_path / "a.jsonl"
    record = make(upper=4.0, parameters={"model": "a\u2028b.gguf"})  # for JSON no end of a line
    records.append(path, record)
    records.append(path, make(samples=[], status="failed", reason="no memory"))
    back = records.read([path])
    assert back[0] == record and record.median == 2.0 and "a\u2028b" in path.read_text(encoding="utf-8"), "as it is read"
    assert [row.status for row in back] == ["ok", "failed"]


@pytest.mark.parametrize("wrong", [
    {"verdict": "perhaps", "reason": "r"}, {"samples": []}, {"status": "fine"}, {"verdict": "reproduced"},
    {"status": "skipped"},
])  # fmt: skip
def test_a_record_that_says_too_little_is_refused(wrong):
    with pytest.raises(ReportError):
        make(**wrong)


def test_infinite_numbers_are_null_in_json():
    assert json.loads(make(lower=float("-inf"), samples=[1.0, float("nan")]).to_json())["lower"] is None


def test_a_broken_records_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken.jsonl"
    for broken in (b"{half", b'"\xff"'):
        path.write_bytes(make().to_json().encode() + b"\n" + broken + b"\n")
        with pytest.raises(ReportError, match=r"broken\.jsonl, line 2"):
            records.read([path])


@pytest.fixture
def session(tmp_path, monkeypatch):
    stand_in = machine.Machine("m", "cpu", 1, 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0)
    monkeypatch.setattr(machine, "of_run", lambda folder: stand_in)
    return Session("01_first_token", profile="smoke", out=str(tmp_path / "run"))


def test_a_session_writes_what_it_records(session):
    session.record("layer-50s", quantity="q", unit="s", samples=[1.0], verdict="reproduced", reason="because")
    session.judge("tile-295-5", "decode on a GPU", "s", accept=(1, None), text="", missing="no GPU here")
    session.judge("five-tokens", "five tokens", "s", [61.5, 307.5], accept=(35, 35), text="why", how="by its own figures")
    back = records.read([session.out / "01_first_token.jsonl"])
    assert [(r.claim, r.status) for r in back] == [("layer-50s", "ok"), ("tile-295-5", "skipped"), ("five-tokens", "ok")]
    assert {r.machine_id for r in back} == {"m"} and all(r.state["read_gbps"] > 0 for r in back)
    told = session.verdicts()
    assert list(told["verdict"]) == ["reproduced", "not measurable here", "contradicts its own figures"]
    assert list(told["how"]) == ["measured", "", "by its own figures"], "185 s were measured, said a column, of 61.5 to 307.5"


def test_a_session_refuses_an_unknown_claim_profile_and_folder(session, tmp_path):
    with pytest.raises(ReportError, match="claim 'x' is not known"):
        session.record("x", quantity="q", unit="s", samples=[1.0])
    with pytest.raises(ReportError, match="there is no profile 'fast'; choose one of smoke"):
        Session("n", profile="fast")
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot write results"):
        Session("n", out=str(tmp_path / "file" / "run"))


def test_a_table_reads_as_people_write():
    frame = pd.DataFrame({"bytes": [16342376448.0, 0.00012345], "rate": [0.131, np.nan], "same": [True, False]})
    text = tables.shown(frame, rate="{:.0%}").to_string(delimiter="|")
    assert "16,342,376,448|13%|yes" in text and "0.000123|–|no" in text
    seconds = tables.shown(pd.DataFrame({"total, s": [0.000345, np.nan], 512: [1.0, 2.0]})).to_string(delimiter="|")
    assert [line.split("|")[1:] for line in seconds.splitlines()] == [["total", "512"], ["345 us", "1"], ["–", "2"]]
    with pytest.raises(KeyError, match="no column 'ratio': there are bytes"):
        tables.shown(frame, ratio="{}")


def test_a_session_records_a_judgment_with_all_that_it_rests_on(session):
    pair = measure.Rounds({"a": (1.0,) * 6, "b": (3.0,) * 6}, state=State(20.0, 10.0))
    found = judge("token-time", "q", "x", pair, accept=(2, None), at_most=(9, "physics"), text="because", in_ratio=True)
    back = session.record(found)
    assert records.read([session.out / "01_first_token.jsonl"]) == [back]
    assert (back.verdict, back.samples, back.upper) == ("reproduced in ratio", [3.0] * 6, 9.0)
    assert back.state == {"read_gbps": 20.0, "fill_gbps": 10.0} and back.accept == [2, None]
    assert back.interval == pytest.approx([3 / drift.factor("x"), 3 * drift.factor("x")])
