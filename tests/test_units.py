"""Sizes, times and counts as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.units import brief, format_bytes, format_count, format_quantity, format_rate, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4 GiB", 2**32), ("512MB", 512_000_000), ("1.5 KiB", 1536), (" 2 tb ", 2 * 10**12), ("3k", 3000), (9, 9)],
)
def test_parse_bytes(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["4 gigs", "", "-1", -1, "1e9", None, True, "GiB", float("nan"), 1e30, "9" * 30])
def test_parse_bytes_says_what_would_do(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["4", "1", "512", "1048575", "0.5"])
def test_a_forgotten_unit_is_not_bytes(text):
    with pytest.raises(ValueError, match=f"{text} bytes\\? write {text}GiB"):
        parse_bytes(text)
    assert parse_bytes(f"{text}B") == int(float(text)) and parse_bytes("1048576") == 2**20 and parse_bytes("0") == 0


@given(st.integers(0, 2**50))
def test_formatted_bytes_parse_back_within_their_digits(nbytes):
    assert abs(parse_bytes(format_bytes(nbytes)) - nbytes) <= max(nbytes * 0.006, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(194, "194 s"), (0.9996, "1.00 s"), (0.075, "75.0 ms"), (2.62e-5, "26.2 us"), (4e-9, "4 ns"), (28800, "8 h 00 min")],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_format_bytes_rounds_up_to_the_next_unit():
    assert [format_bytes(n) for n in (1023, 1023.97 * 1024, 2**20)] == ["1023 B", "1.00 MiB", "1.00 MiB"]


def test_format_count():
    assert format_count(8_170_864_640) == "8.171 G"
    assert format_count(81) == "81"


def test_a_tiny_share_and_one_of_a_kind_read_well():
    """Pages said "5.075e-05%" and "1 kinds"."""
    told = [format_quantity(value, unit) for value, unit in ((5.075e-5, "%"), (0.0, "%"), (1, "kinds"), (2, "kinds"), (1, "s"))]
    assert told == ["below 0.001%", "0%", "1 kind", "2 kinds", "1.00 s"]


@pytest.mark.parametrize(
    "value, unit, told",
    [(0.0185, "s", "18 ms"), (194.0, "s", "190 s"), (30.44 * 2**30, "B", "30 GiB"), (4 << 30, "B", "4 GiB"), (0.0, "s", "0 s"),
     (1100.0, "tok/s", "1,100 tok/s"), (36_019.0, "GB/s", "36,000 GB/s"), (8.66, "tok/s", "8.7 tok/s"), (None, "s", "–"),
     (7.449, "tok/s", "7.4 tok/s")],
)  # fmt: skip
def test_an_answer_has_two_significant_digits(value, unit, told):
    assert brief(value, unit) == told


def test_a_rate_has_no_exponent():
    """A small mixture ran at 4.14e+03 tokens per second."""
    told = [format_rate(value) for value in (0.5185, 9.999, 67.94, 99.96, 4144.2, 1234567)]
    assert told == ["0.518", "10", "67.9", "100", "4,140", "1,230,000"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_fewer_digits_of_no_finite_number_are_its_own_words(value):
    """The front page of such a record was a traceback."""
    assert format_quantity(value, "x", 3) == format_quantity(value, "x", 4)
