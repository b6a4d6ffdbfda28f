"""The public record: facts have sources, citations resolve, and arithmetic on the log is what the log gives."""

import re

import pandas as pd
import pytest

import kit
from kit.errors import ReportError
from kit.lab.claims import evidence
from kit.lab.claims import table as claims
from kit.system.paths import data_file

ROW = "- {id: a, fact: f, file: x.rs, grade: log}\n"


def test_what_a_claim_names_is_there_and_every_fact_says_where_it_stands():
    for claim in claims.load().values():
        assert claim.evidence and all(fact.source for fact in evidence.bearing_on(claim)), claim.id
        assert evidence.report_of(claim).url.startswith("https://"), claim.id
    for fact in evidence.load().values():
        assert bool(fact.repository) == bool(fact.commit or re.fullmatch(r"(pull|issues)/\d+", fact.file)), fact.id
        own = fact.repository or fact.file.startswith("https://")
        assert own or data_file(fact.file.removeprefix("data/")).exists(), fact.id
        assert re.fullmatch(r"[0-9a-f]{7,40}|", fact.commit), fact.id


def test_every_claim_of_a_thread_names_its_fact():
    """Claims about experts have no report of their own: what they are, and where they stand, is the fact's to say."""
    for claim in claims.load().values():
        if not claim.report.isdigit():
            facts = evidence.bearing_on(claim)
            assert facts and all(fact.url for fact in facts), claim.id
            assert any(not fact.repository or fact.repository.partition("/")[0] in claim.report for fact in facts), claim.id


def test_a_fact_has_a_value_a_citation_and_a_link():
    fact = evidence.get("preload-mib")
    assert (fact.value, fact.unit, fact.grade) == (3896, "MiB", "log")
    assert fact.source == "Enreign/woolly@9f209c0, preload_test_results.txt, line 3190"
    assert fact.url.endswith("/blob/9f209c0/preload_test_results.txt#L3190")
    assert evidence.get("no-route").source.endswith("server.rs, lines 87-123")
    assert evidence.get("no-route").url.endswith("#L87-L123")
    assert evidence.get("preload-replay").url == "" and evidence.get("preload-replay").source == "data/preload_log.csv"
    assert evidence.get("experts-half-pinned").source == "kekzl/imp, pull/2061"
    assert evidence.get("experts-half-pinned").url == "https://github.com/kekzl/imp/pull/2061"
    assert evidence.get("experts-lfu-paper").url == "https://arxiv.org/abs/2511.05814"
    with pytest.raises(ReportError, match=r"preload-mb.*is not known"):
        evidence.get("preload-mb")


@pytest.mark.parametrize(("text", "says"), [
    ("id: a", "expected a list of facts"), (ROW.replace("grade: log", "grade: sure"), "a: grade 'sure' is not one of"),
    (ROW.replace("}", ", value: many}"), "fact 1: wrong or unknown: 'value'"),
    (ROW.replace("}", ", value: []}"), "fact 1: wrong or unknown: 'value'"), ("- {id: a, fact: f}\n", "missing: file, grade"),
    (ROW + ROW, "the id 'a' is already used"),
])  # fmt: skip
def test_a_wrong_file_is_one_error(tmp_path, text, says):
    path = tmp_path / "evidence.yaml"
    path.write_text(text)
    with pytest.raises(ReportError, match=says):
        evidence.read(path)


def test_evidence_stands_beside_what_was_measured():
    table = evidence.beside({"preload-mib": "3,896.3 MiB", "client-received": "0 B"})
    assert table["here"].tolist() == ["3,896.3 MiB", "0 B"] and table["grade"].tolist() == ["log", "log"]
    assert "here" not in evidence.beside(["preload-mib"])


def test_arithmetic_on_the_log_is_what_the_record_says():
    """Recomputed from the rows, without the engine's help where it is a sum, by kit.replay where it is a cache."""
    log = pd.read_csv(data_file("preload_log.csv"))
    value = lambda name: evidence.get(name).value  # noqa: E731
    assert len(log) == value("preload-log") == value("woolly-model")
    stats = kit.replay([(row.tensor, 4 * row.elements) for row in log.itertuples()], kit.LRU("4 GiB"))
    assert round(stats.resident_bytes / 2**20, 1) == value("preload-replay")
    assert (stats.evictions, stats.entries, stats.misses, stats.hits) == (311, 51, *value("preload-counts"))
    assert int(stats.resident_bytes / 2**20) == value("preload-mib")
    assert round(log["dequantize_ms"].sum() / 1e3, 2) == value("dequantize-share")
    assert log["elapsed_s"].is_monotonic_increasing and log["elapsed_s"].max() <= value("preload-seconds")[0]  # whole seconds
    large = log[(log["elements"] == 52_428_800) & (log["type"] == "Q4_K")]["dequantize_ms"].dropna()
    told = [large.median(), large.min(), large.max()]
    assert told == pytest.approx(value("dequantize-ms"), rel=0.01)
    assert [4 * 52_428_800 / ms / 1e6 for ms in told[:2]] == pytest.approx(value("dequantize-gbps"), rel=0.02)
    assert 4 * log["elements"].sum() / 2**30 == pytest.approx(value("kept-copies"), abs=0.005)


NOT_IN_FIGURE = {"half-zero-simd": 50.0, "experts-layer-cap": None}  # a word, and differences of the figure's numbers
NOT_IN_FIGURE |= dict.fromkeys("keys-copied experts-come-back experts-hot-list experts-lru-realizes".split(), 0.0)  # the fact's


def test_a_value_is_its_figure():
    """0.111 over a figure of 0.0748 once passed: the value is what notebooks compute with, the figure is what pages print."""
    for fact in (each for each in evidence.load().values() if each.value is not None):
        values, more = fact.value if isinstance(fact.value, tuple) else (fact.value,), NOT_IN_FIGURE.get(fact.id, 0.0)
        if more is None:
            assert values == pytest.approx((72.8 - 70.8, 100 * (3.6 / 5.3 - 1)), abs=3), fact.id
            continue
        where = fact.figure + (fact.fact + fact.file if fact.id in NOT_IN_FIGURE else "")
        told = {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", where)}
        assert all(abs(value) in told | {more} for value in values), (fact.id, values, told)
