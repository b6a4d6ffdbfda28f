"""The verdict engine: each word from its definition, and no verdict beyond its own evidence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.claims.judge import judge, spread_of, times
from kit.claims.table import VERDICTS
from kit.errors import ReportError
from kit.lab.measure import DRIFT, interval_of

finite = st.floats(0.01, 1e6)


def judged(samples, accept, **given):
    return judge("cold-inference", "q", "s", samples, accept=accept, text="because", **given)


@given(st.lists(finite, min_size=1, max_size=9), finite, finite, st.none() | finite, st.none() | finite)
def test_counted_samples_give_the_word_of_the_definition(samples, a, b, least, most):
    """Independent of the engine: over the set of values, point by point."""
    low, high = min(a, b), max(a, b)
    if least is not None and most is not None and least > most:
        least, most = most, least
    possible = lambda v: (least is None or v >= least) and (most is None or v <= most)  # noqa: E731
    accepted = lambda v: low <= v <= high  # noqa: E731
    edges = [v for v in (low, high, least, most) if v is not None]
    span = min(samples), max(samples)
    within = lambda v: span[0] <= v <= span[1]  # noqa: E731
    if not any(possible(v) and within(v) for v in [*edges, *span]):
        expected = "undecided here"
    elif not any(possible(v) and accepted(v) for v in edges):
        expected = "impossible"
    elif all(map(accepted, span)):
        expected = "reproduced"
    elif not any(accepted(v) and within(v) for v in [*edges, *span]):
        expected = "not reproduced"
    else:
        expected = "undecided here"
    found = judged(samples, (low, high), how="counted", at_least=least and (least, "s"), at_most=most and (most, "s"))
    assert found.verdict == expected in VERDICTS


@given(st.lists(finite, min_size=2, max_size=20), finite)
def test_one_open_side_never_gives_two_decided_words(samples, edge):
    """A claim of at least the edge and one of at most the edge cannot both be reproduced, nor both be refuted."""
    up, down = judged(samples, (edge, None)).verdict, judged(samples, (None, edge)).verdict
    assert {up, down} in ({"reproduced", "not reproduced"}, {"undecided here"})


def test_noise_between_runs_is_allowed_for():
    tight = [1.05, 1.051, 1.049, 1.05, 1.05, 1.05]
    assert judged(tight, (1.0, None)).verdict == "undecided here"  # 5 % above: another run may say otherwise
    assert judged(tight, (1.0, None), how="counted").verdict == "reproduced"
    assert "1.00 s" in judged(tight, (1.0, None)).reason and "6 samples" in judged(tight, (1.0, None)).reason


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_the_spread_of_a_measurement_is_wider_than_its_interval_by_the_drift_on_both_sides(samples):
    low, high = interval_of(samples)
    found = spread_of(samples, "measured")
    assert [abs(end) for end in found] == pytest.approx(
        [abs(low) * (1 / DRIFT if low > 0 else DRIFT), abs(high) * (DRIFT if high > 0 else 1 / DRIFT)]
    )
    assert found[0] <= low <= high <= found[1]
    assert spread_of(samples[:1], "measured") is None and spread_of(samples, "counted") == (min(samples), max(samples))


def test_a_record_holds_its_median_and_its_spread():
    record = judged([3.0, 1.0, 2.5, 2.0], (1.0, None))
    assert record.median == 2.25 and record.interval == list(spread_of([3.0, 1.0, 2.5, 2.0], "measured"))


def test_one_sample_decides_nothing_unless_a_bound_does():
    assert judged([5.0], (1.0, None)).verdict == "undecided here"
    assert judged([5.0], (10.0, None), at_most=(9.0, "physics")).verdict == "impossible"


def test_a_bound_without_a_measurement_can_only_forbid():
    forbids = judged([], (None, 0.075), at_least=(0.27, "bytes over bandwidth"), how="computed")
    allows = judged([], (None, 0.075), at_least=(0.07, "bytes over bandwidth"), how="computed")
    assert (forbids.verdict, forbids.samples, forbids.how) == ("impossible", [0.27], "computed")
    assert allows.verdict == "undecided here" and "a measurement" in allows.reason


def test_a_measurement_beyond_its_own_bound_is_not_used_to_forbid():
    found = judged([3.0, 3.1, 3.0], (10, 20), at_most=(1.05, "Amdahl"), how="counted")
    assert found.verdict == "undecided here" and "beyond its own bound" in found.reason


def test_a_median_outside_its_bounds_is_called_noise():
    """0.947x with bounds 1x to 1.041x once stood on the front page without a word."""
    given = {"accept": (2.0, None), "at_least": (1.0, "none"), "at_most": (5.0, "both")}
    assert "beyond its bound of 1.00 s: noise" in judged([0.93, 0.947, 0.95, 0.96], **given).reason
    assert "beyond its bound of 5.00 s: noise" in judged([4.9, 5.1, 5.2], **given).reason
    assert "noise" not in judged([1.2, 1.3, 1.4], **given).reason and "noise" not in judged([], **given, missing="a GPU").reason
    assert "noise" not in judged([0.9, 1.1, 5.2], **given, how="counted").reason


def test_ratio_cure_and_what_is_missing():
    found = judged([3.0] * 6, times(3, 2), in_ratio=True, cure="a table", tolerance="another machine")
    assert found.verdict == "reproduced in ratio" and found.reason == "because; here cured by a table"
    assert found.tolerance == "1.50 s to 6.00 s: another machine"
    gone = judged([], (1, None), missing="no GPU")
    assert (gone.verdict, gone.status, gone.reason, gone.samples) == ("not measurable here", "skipped", "no GPU", [])


def test_what_cannot_fail_or_says_too_little_is_refused():
    with pytest.raises(ReportError, match="cannot fail"):
        judged([1.0], (None, None))
    with pytest.raises(ReportError, match="no samples"):
        judged([], (1, None))
    with pytest.raises(ReportError, match="measured, counted, computed"):
        judged([1.0], (1, None), how="guessed")


def test_the_interval_covers_the_median_as_often_as_it_says():
    """Coverage over 400 draws of known median, at few and at many samples."""
    generator = np.random.default_rng(0)
    for count in (2, 3, 5, 9, 25):
        held = 0
        for _ in range(400):
            low, high = interval_of(np.exp(generator.normal(0, 0.1, count)))
            held += low <= 1 <= high
        assert held >= 0.9 * 400, count
