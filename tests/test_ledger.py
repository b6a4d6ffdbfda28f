"""The ledger: no claim left out, verdicts by the stated rule, links to cells, hostile text, the picture."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.claims import records
from kit.claims import table as claims
from kit.findings.n08_claims import ledger
from kit.findings.session import Session
from kit.report import run as runs

EMPTY = dict(run_id="r", quantity="q", unit="s")


def record(claim="", verdict="", **given):
    given = EMPTY | {"samples": [1.0], "notebook": "01_first_token"} | given
    return records.Record(claim=claim, verdict=verdict, reason="because" if verdict else "", **given)


def entry(verdicts, claim="cold-inference", **given):
    parts = tuple(ledger.Part(record(claim, verdict, **given), "") for verdict in verdicts)
    return ledger.Entry(claims.get(claim), parts)


def write(folder, *rows, name="01_first_token"):
    for row in rows:
        records.append(folder / f"{name}.jsonl", row)


def test_an_empty_folder_lists_every_claim_and_its_notebook(tmp_path):
    entries = ledger.read(tmp_path)
    assert [e.claim.id for e in entries] == list(claims.load())
    assert all(e.verdict == ledger.NO_RECORD and e.claim.notebook in e.missing for e in entries)
    assert len(ledger.table(entries)) == len(entries)
    assert ledger.tally(entries)["claims"].sum() == len(entries)


@given(st.lists(st.sampled_from(list(claims.VERDICTS)), max_size=6))
def test_the_rule(verdicts):
    """Written out, not by an order: bounds first, then what failed, then what held only in ratio."""
    judged = set(verdicts) - {"not measurable here"}
    if not verdicts:
        expected = "no record"
    elif not judged:
        expected = "not measurable here"
    elif "impossible" in judged:
        expected = "impossible"
    elif "not reproduced" in judged:
        expected = "not reproduced"
    elif "undecided here" in judged:
        expected = "undecided here"
    else:
        expected = "reproduced" if judged == {"reproduced"} else "reproduced in ratio"
    found = entry(verdicts)
    assert found.verdict == expected
    assert (found.decisive.record.verdict if found.decisive else "no record") == expected


def test_the_part_that_can_be_compared_decides_among_equals():
    parts = tuple(
        ledger.Part(record("first-token-preload", "impossible", unit=unit, quantity=unit), "")
        for unit in ("GB", "s", "B")
    )
    assert ledger.Entry(claims.get("first-token-preload"), parts).decisive.record.unit == "s"


def test_links_lead_to_the_cell_that_wrote_the_record(tmp_path):
    write(tmp_path, record(), record("cold-inference", "reproduced"))
    (tmp_path / "01_first_token.html").write_text("")
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now")
    run.notebooks["01_first_token"] = runs.Row("ok", "", 3, 1.0, "now", "d", [0, 1, 2])
    run.save()
    found = {e.claim.id: e for e in ledger.read(tmp_path)}["cold-inference"]
    assert found.parts[0].link == "01_first_token.html#cell-2"
    assert 'href="01_first_token.html#cell-2"' in ledger.shown(ledger.table([found])).data


def test_a_failed_notebook_and_one_without_a_verdict_say_so(tmp_path):
    run = runs.Run(tmp_path, runs.Request(), "m", "0", "c", "now")
    run.notebooks["01_first_token"] = runs.Row("failed", "MemoryError", 7, 1.0, "now", "d")
    run.notebooks["04_attention"] = runs.Row("ok", "", 7, 1.0, "now", "d")
    run.save()
    missing = {e.claim.id: e.missing for e in ledger.read(tmp_path)}
    assert "cell 7" in missing["cold-inference"] and "MemoryError" in missing["cold-inference"]
    assert missing["blas-500"] == "04_attention ran and wrote no verdict for it"


def test_its_own_records_do_not_count(tmp_path):
    write(tmp_path, record("cold-inference", "reproduced", notebook="08_claims"), name="08_claims")
    assert all(not e.parts for e in ledger.read(tmp_path))


@pytest.mark.parametrize(
    ("claim", "unit", "expected"),
    [
        ("tile-295-5", "s", (0.005, 0.005)),
        ("tile-295-5", "x", (59.0, 59.0)),
        ("attention-blas-speedup", "x", (10, 20)),
        ("cold-inference", "x", None),
        ("hypothesis-stats", "s", None),
    ],
)
def test_the_reported_figure_in_the_unit_of_a_record(claim, unit, expected):
    assert ledger.reported_in(claims.get(claim), unit) == (pytest.approx(expected) if expected else None)


def test_relative_divides_by_the_reported_figure():
    found = entry(["reproduced"], samples=[388.0], lower=97.0, upper=0.0)
    assert ledger.relative(found) == {"measured": 2.0, "lower": 0.5, "upper": None, "most": 1.0}
    assert ledger.relative(entry(["reproduced"], "preload-hit-rate", unit="%")) is None  # 0 % has no ratio
    assert ledger.relative(entry([])) is None


def test_every_claim_has_a_line_in_the_picture(tmp_path):
    write(tmp_path, record("cold-inference", "reproduced", lower=0.5, lower_source="x"))
    write(tmp_path, record("cache-4gb-feasible", "impossible", quantity="a very long $name$ " * 9))
    figure = ledger.picture(ledger.read(tmp_path))
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == list(claims.load())
    figure.canvas.draw()


def test_hostile_text_stays_text(tmp_path):
    evil = "<script>alert(1)</script>"
    write(tmp_path, record("cold-inference", "reproduced", quantity=evil, lower=1.0, lower_source=evil, tolerance=evil))
    write(tmp_path, record("cold-inference", "not reproduced", quantity=evil))
    entries = ledger.read(tmp_path)
    assert len(ledger.parts(entries)) == 2
    for frame in (ledger.table(entries), ledger.parts(entries)):
        assert "<script" not in ledger.shown(frame).data and "&lt;script&gt;" in ledger.shown(frame).data


def test_conclude_counts_each_claim_once(tmp_path):
    write(tmp_path, record("cold-inference", "reproduced"), record("cold-inference", "impossible"))
    lab = Session("08_claims", profile="smoke", out=tmp_path)
    lab.machine = type("M", (), {"id": "m"})
    ledger.conclude(lab, ledger.read(tmp_path))
    counts = {row.quantity: row.median for row in records.read([tmp_path / "08_claims.jsonl"])}
    assert counts["claims: impossible"] == 1 and counts["claims: reproduced"] == 0
    assert sum(counts.values()) == len(claims.load())
