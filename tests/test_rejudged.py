"""Committed records judged again: each word from its own samples, regions at their edges, pages against records, and the table
of docs/verdicts.md that says what changed."""

import re
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from contradictions import _Page

from benchmarks._records import REFERENCE, rendered
from kit.lab.claims import book, evidence, gates, records
from kit.lab.claims import runs as several
from kit.lab.claims import table as claims
from kit.lab.claims.judge import CONTRADICTS, OWN, SOURCE, Ratio, decide, judge
from kit.lab.findings import reported
from kit.lab.measuring import drift
from kit.system.paths import ROOT
from kit.units import format_quantity

RUNS = sorted({path.parent for path in REFERENCE.glob("*/*/*.jsonl") if path.parent.name != "benchmarks"})
EARLIER_RULE = {  # (machine/run, claim): a median slightly beyond an estimate was "undecided here" then
    ("amd-epyc-avx2-2c-24g-291d/quick", "attention-blas-speedup"),
    ("amd-epyc-avx512-2c-24g-c082/quick-73836f9", "attention-blas-speedup"),
}


def name_of(run) -> str:
    return str(run.relative_to(REFERENCE))


@cache
def judged(run) -> list[records.Record]:
    return [row for row in records.of_run(run) if row.verdict]


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_every_committed_word_follows_from_its_own_record(run):
    """A word that was turned by hand, "reproduced" over 0.97x that should have been at least 1.33x, once passed all tests."""
    wrong = set()
    for row in judged(run):
        assert row.median is None or row.median == pytest.approx(float(np.median(row.samples))), (row.claim, row.quantity)
        if row.status != "ok" or row.accept is None:
            continue
        values = row.samples if row.interval or row.how == "measured" else []  # bounds stand for samples where there are none
        interval = tuple(row.interval) if row.interval else None
        word, _ = decide(values, interval, tuple(row.accept), (row.lower, row.upper), row.unit, row.how)
        if word != row.verdict.removesuffix(" in ratio"):
            wrong.add((name_of(run), row.claim))
    assert wrong == {each for each in EARLIER_RULE if each[0] == name_of(run)}


BEYOND = {  # (machine/run, quantity) -> why its record is faster than its own bound
    ("amd-epyc-avx2-2c-24g-291d/quick", "a token, blocks, page cache too small"): "a disk that read faster than in its probe",
    ("intel-xeon-processor-2c-24g-bb8c/quick-2e4b575", "a token, blocks, page cache too small"): "the same",
}
BLAS = "tokens a second for the weights of granite-3.3-8b, from float32, BLAS"
for commit in ("7335119", "772e6c0"):
    BEYOND[f"intel-xeon-processor-2c-24g-bb8c/quick-{commit}", BLAS] = "memory was probed once, in a slower minute"


def test_no_committed_measurement_is_beyond_its_own_bound_but_those_of_earlier_rules():
    """Each exception is a record of a rule that is mended since; a new one would be a wrong bound."""
    found = set()
    for run in RUNS:
        rows = records.of_run(run)
        found |= {(name_of(run), rows[number].quantity) for number, text in gates.warnings(rows) if " its limit of " in text}
    assert found == set(BEYOND)


# --- regions, tested where they end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim,part", [
    (claim.id, number) for claim in claims.load().values() for number, part in enumerate(claim.parts) if "accept" in part
])  # fmt: skip
def test_a_region_ends_where_the_row_says(claim, part):
    """Just inside, an edge is accepted; just outside, it is not. A region that moved is noticed by the next test; one that is
    open, reversed or read in another unit is noticed here."""
    row = claims.get(claim).parts[part]
    low, high = row["accept"]
    how = row.get("how", "measured")
    wide = drift.factor(row["unit"]) if how == "measured" else 1.0
    for edge, inward in ((low, 1), (high, -1)):
        if edge is None:
            continue
        step = max(abs(edge), 1.0) * 1e-6
        for sign, word in ((1, {"reproduced"}), (-1, {"not reproduced", CONTRADICTS})):
            at = (edge or 0.0) * (wide ** (inward * sign)) * (1 + 1e-6 * inward * sign) + (0 if edge else step * inward * sign)
            if sign > 0 and not all(
                end is None or (at * wide <= end if other == "high" else at / wide >= end)
                for other, end in (("low", low), ("high", high))
            ):
                continue  # a region that is narrower than what runs differ by
            if low == high and sign > 0:
                at = edge
            values = [at] * 6
            interval = (at / wide, at * wide) if at > 0 else (at, at)
            found, _ = decide(values, interval, (low, high), (None, None), row["unit"], how)
            assert found in word, (claim, part, edge, sign, found)


FROM_THE_REPORT = {  # claim -> the region that its figures and its stated tolerance give
    "cpu-usage": (4 / 3, None),  # a quarter less
    "first-token-preload": (100, None),  # hundreds to thousands
    "attention-blas-speedup": (10, 20), "cache-lookup-speedup": (5, 10), "warm-inference": (0.7, 2 * 212 / 194),
    "tile-295-5": (59, 300), "generic-decoder": (0.295 / 2, 0.295 * 2), "token-time": (6 / 1.25, 6 * 1.25),
    "five-tokens": (35 / 1.25, 35 * 1.25), "cold-token": (8, 10), "seconds-per-token": (5, 10),
    "layer-50s": (50 / 1.25, 50 * 1.25), "eight-hours": (28800 / 1.15, 28800 * 1.15), "experts-one-cycle": (2, None),
    "average-400ms": (None, 8.2), "hits-save": (5, 7), "hit-rate-85": (80, 90), "long-sequences": (0.8, 1.25),
    "allocation-overhead": (2, None), "frequency-priority": (2, None), "variance-45-1100": (0.5, 2),
    "experts-five-points": (None, 5.5), "experts-optimum": (10.5, 23.5), "experts-return": (40, 50), "experts-forty": (90, 96),
    "experts-dead-end": (6, 14), "experts-slots": (3, 9), "experts-lfu": (5, None), "experts-gap": (30, 40),
    "experts-cap": (1.15, None), "experts-bypass": (1.1, None), "experts-readers": (0.95, None),
    "experts-queue-depth": (5, None), "experts-no-hot-set": (95, None), "experts-prompt": (None, 60),
    "experts-link": (40, None), "drafts-fourteenth": (0.05, 0.1), "drafts-slower": (0.78, 0.96), "drafts-faster": (1.5, None),
    "drafts-three-times": (3, None), "drafts-context": (3, None), "drafts-copies": (50, None),
}  # fmt: skip


@pytest.mark.parametrize("claim", FROM_THE_REPORT)
def test_a_region_is_what_the_report_and_its_tolerance_say(claim):
    """Written twice on purpose: cpu-usage from 0.5 instead of 1.33 would call 0.96x "reproduced", and no test said so."""
    found = claims.get(claim).parts[0]["accept"]
    assert [end and pytest.approx(end, rel=1e-6) for end in FROM_THE_REPORT[claim]] == found


def test_every_region_with_a_chosen_edge_is_written_twice():
    """Edges of 0 and 1, counts of the reports' own log, and memory in bytes are no choice."""
    chosen = {
        claim.id for claim in claims.load().values() for part in claim.parts[:1]
        if part.get("how") not in (SOURCE,) and {*part.get("accept", [])} - {None, 0, 1}
    }  # fmt: skip
    counted = {"cache-4gb-feasible", "preload-memory", "miss-counter", "hit-1ms"}
    assert counted <= chosen and chosen - counted <= set(FROM_THE_REPORT)


# --- pages ------------------------------------------------------------------------------------------------------------------


def rows_of(page) -> list[tuple[str, ...]]:
    parsed = _Page()
    parsed.feed(re.sub(r"<style.*?</style>|<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    return [tuple(row) for table in parsed.tables for row in table]


def squeezed(text: str) -> str:
    return re.sub(r"[\s→]|->", "", text)


@pytest.mark.parametrize("path", [path for run in rendered() for path in sorted(run.glob("*.jsonl"))], ids=lambda p: p.stem)
def test_a_committed_page_shows_its_records(path):
    """In the row that has its name: the median of every measurement, and of a verdict the word and the reason. "3.47 us" over a
    record of 34.7 us once passed."""
    page = path.with_suffix(".html")
    if not page.exists():
        pytest.skip("this run has no pages")
    rows, found = rows_of(page), 0
    for row in records.read([path]):
        told = format_quantity(row.median, row.unit)
        if row.verdict:
            wanted = row.quantity, row.claim, row.verdict, row.reason.replace("`", "")  # a page shows code as code
            lines = [squeezed("".join(line)) for line in rows if squeezed(row.quantity) in squeezed(line[0])]
            lines = [line for line in lines if all(squeezed(w) in line for w in wanted)]
            digits = [squeezed(format_quantity(row.median, row.unit, n)) for n in (3, 4)]  # earlier pages have four
            assert any(text in line for line in lines for text in digits), (wanted, digits, lines)
        elif row.samples:
            label = row.quantity.partition(", ")[2]
            mine = [line for line in rows if {row.quantity, label} - {""} & set(line)] if label else []
            mine = [line for line in mine if any(re.fullmatch(r"[\d.,]+ (us|ms|s)", cell) for cell in line)]
            if mine and row.unit == "s":
                found += 1
                assert any(told in line for line in mine), (row.quantity, told, mine)
    assert path.stem != "05_tile_decode" or found >= 8, "the ladder"


def test_a_page_with_a_number_moved_is_noticed(tmp_path):
    source = rendered()[0] / "05_tile_decode.jsonl"
    for suffix in (".jsonl", ".html"):
        text = source.with_suffix(suffix).read_text(encoding="utf-8")
        (tmp_path / f"05_tile_decode{suffix}").write_text(text, encoding="utf-8")
    test_a_committed_page_shows_its_records(tmp_path / "05_tile_decode.jsonl")
    row = next(row for row in records.read([source]) if row.quantity == "a tile, vector instructions")
    told = format_quantity(row.median, row.unit)
    page = tmp_path / "05_tile_decode.html"
    page.write_text(page.read_text(encoding="utf-8").replace(f">{told}<", ">3.21 us<"), encoding="utf-8")
    with pytest.raises(AssertionError, match="vector instructions"):
        test_a_committed_page_shows_its_records(tmp_path / "05_tile_decode.jsonl")


# --- what changed -----------------------------------------------------------------------------------------------------------


def changes() -> dict[str, tuple[str, str, str]]:
    """Claim -> (the committed word, the word now, why), by the table of docs/verdicts.md."""
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8").partition("## What changed in the verdicts")[2]
    lines = [line.split("|")[1:-1] for line in text.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return {name: (*map(str.strip, rest),) for names, *rest in lines for name in re.findall(r"`([^`]+)`", names)}


def of(run, notebook, quantity) -> list[float]:
    return next(row.samples for row in records.of_run(run, notebook) if row.quantity.startswith(quantity))


def again(claim, samples, part=0, **rules):
    given = {"text": "again"} | claims.get(claim).parts[part] | rules
    return judge(claim, given.pop("quantity"), given.pop("unit"), samples, **given).verdict


FORMER = REFERENCE / "amd-epyc-avx512-2c-24g-8da4" / "quick"  # judged by the rules of its day
KEPT = np.array(evidence.get("token-kept").value) - evidence.get("token-before-cache").value


def judged_now(run) -> dict[str, str]:
    """The claims of the table by today's rules and a committed run's samples, or the public record's."""
    cold, later = np.array([reported.least_tokens(tile) for tile in (0.001, 0.005)]).T
    old = defaultdict(list)
    for row in judged(run):
        old[row.claim].append(row.samples)
    ladder = [of(run, "05_tile_decode", f"a tile, {name}") for name in ("reported, compiled", "a table")]
    misses = 14 / 14  # of the 1.5B: 14 of the 15 tensors of a layer and its ends pass the cache
    return {
        "cold-inference": again("cold-inference", [misses]),
        "attention-blas-speedup": again("attention-blas-speedup", old["attention-blas-speedup"][0]),
        "clearing-removed": again("clearing-removed", KEPT),
        "fix-verify": again("fix-verify", [1]),
        "tile-295-5": again("tile-295-5", Ratio(*ladder)),
        "token-time": again("token-time", later),
        "five-tokens": again("five-tokens", cold + 4 * later),
        "cold-token": again("cold-token", cold),
        "seconds-per-token": again("seconds-per-token", later * [1, 2]),
        "average-400ms": again("average-400ms", old["average-400ms"][0]),
        "eight-hours": again("eight-hours", old["eight-hours"][0]),
        "layer-50s": again("layer-50s", old["layer-50s"][0]),
        "miss-counter": again("miss-counter", [0, 362], 1),
        "warm-inference": again("warm-inference", old["warm-inference"][0]),
    } | {  # by the speed, which stays
        claim: reported.speed(claim, reported.float32_bytes()).verdict
        for claim in ("variance-45-1100", "fix-pinned", "fix-hashmap")
    }


def test_the_table_of_what_changed_is_what_the_rules_give():
    """Each old word is that of a committed run, and each new word is what today's row gives by the same samples."""
    table, words = changes(), defaultdict(set)
    for run in RUNS:
        for entry in book.read(run):
            words[entry.claim.id].add(entry.verdict)
    now = judged_now(FORMER)
    for claim, (before, after, _) in table.items():
        if before == "the same":
            hows = {part.get("how") for part in claims.get(claim).parts}
            assert SOURCE in hows, claim
            continue
        assert before in words[claim], (claim, before, words[claim])
        assert after in claims.VERDICTS, claim
        if claim in now:
            assert now[claim] == after, (claim, now[claim])
    assert {claim for claim, (before, after, _) in table.items() if before not in (after, "the same")} <= set(now)


def test_every_flip_between_an_earlier_run_and_the_newest_of_its_machine_has_a_row_that_says_both_words():
    """`kit verify` of the two ends with 1. A reader must be able to tell a rule that changed from a machine that did: of nine
    flips and one of a part, "reproduced", then "in ratio", stood in no row."""
    after = next(run for run in rendered() if run.parent == FORMER.parent)
    table, flips = changes(), [row for row in several.compare([FORMER, after]) if row.flips]
    assert flips, "else the test shows nothing"
    for row in flips:
        before, after, why = table[row.claim]
        assert {*row.verdicts} <= {before, after, *re.findall(r"\*([a-z ]+)\*", why)}, (row.claim, row.quantity, row.verdicts)


def test_no_claim_is_judged_otherwise_without_a_row_in_the_table():
    """Every part of today's rows has a record with its region in a committed run, or the claim is in the table."""
    known = defaultdict(list)
    for run in RUNS:
        for row in judged(run):
            known[row.claim].append((row.unit, row.how, row.accept and [end and round(end, 6) for end in row.accept]))
    missing = set()
    for claim in claims.load().values():
        for part in claim.parts:
            region = [end and round(float(end), 6) for end in part["accept"]] if "accept" in part else None
            same = [how for unit, how, seen in known[claim.id]
                    if unit == part["unit"] and (not region or not seen or seen == region)]  # fmt: skip
            if part.get("how", "measured") not in same:
                missing.add(claim.id)
    assert missing <= set(changes())


def test_arithmetic_on_own_figures_and_readings_of_the_source_have_no_bound():
    """*Impossible* needs a physical bound: neither kind of reading can give it."""
    for claim in claims.load().values():
        for part in claim.parts:
            if part.get("how") in (OWN, SOURCE):
                for samples in ([0.0], [1e9], [5.0, 6.0]):
                    assert again(claim.id, samples, claim.parts.index(part)) != "impossible"
