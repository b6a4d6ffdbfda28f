"""Every printed interval is what it says: coverage by simulation, of medians, of few samples, of means of dependent samples."""

import math

import numpy as np
import pytest

from kit.lab.measuring.intervals import error_of_mean, of_median
from kit.lab.measuring.measure import interval_of
from kit.lab.measuring.measurements import Reading

SHAPES = {
    "normal": lambda generator, count: generator.normal(0, 0.1, count),
    "skewed": lambda generator, count: generator.exponential(0.1, count) - 0.1 * math.log(2),
    "with outliers": lambda generator, count: generator.standard_t(2, count) * 0.05,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [6, 7, 8, 10, 15, 30])
def test_the_interval_of_a_median_holds_it_in_95_percent_whatever_the_distribution(shape, count):
    generator = np.random.default_rng(count)
    ends = [of_median(np.exp(SHAPES[shape](generator, count))) for _ in range(600)]
    assert np.mean([low <= 1 <= high for low, high in ends]) >= 0.93


@pytest.mark.parametrize("count", [3, 4, 5, 6, 9, 12])
def test_the_spread_of_a_reading_holds_its_value_in_95_percent(count):
    """The range of three samples, which was printed as their interval, holds the median in 75 %."""
    generator, held, ranged = np.random.default_rng(count), 0, 0
    for _ in range(500):
        samples = tuple(np.exp(generator.normal(0, 0.1, count)))
        low, high = Reading("a way", "", samples, machine="m").spread
        held += low <= 1 <= high
        ranged += min(samples) <= 1 <= max(samples)
    assert held >= 0.925 * 500
    assert count > 3 or ranged < 0.8 * 500, "the test sees what the range does"
    assert Reading("a way", "", samples, machine="m").spread == interval_of(samples)


def series(generator, count: int, dependence: float) -> np.ndarray:
    """An autoregressive series of mean 0: each sample keeps so much of the one before it."""
    noise, found = generator.normal(size=count + 50), np.zeros(count + 50)
    for at in range(1, len(found)):
        found[at] = dependence * found[at - 1] + noise[at]
    return found[50:]


@pytest.mark.parametrize("count", [128, 256, 1024])
@pytest.mark.parametrize("dependence", [0.0, 0.5, 0.8])
def test_two_errors_hold_the_mean_of_dependent_samples(count, dependence):
    """As neighboring tokens of a text are. sd / sqrt(n) held it in half of the cases."""
    generator, held, alone = np.random.default_rng(count), 0, 0
    for _ in range(250):
        found = series(generator, count, dependence)
        held += abs(found.mean()) <= 2 * error_of_mean(found)
        alone += abs(found.mean()) <= 2 * found.std(ddof=1) / math.sqrt(count)
    assert held >= 0.88 * 250
    assert dependence < 0.8 or alone < 0.7 * 250, "the test sees what independent errors do"


def test_few_samples_have_the_error_of_independent_ones():
    values = np.arange(10.0)
    assert error_of_mean(values) == pytest.approx(values.std(ddof=1) / math.sqrt(10))
    assert math.isnan(error_of_mean([1.0])) and of_median([3.0]) == (3.0, 3.0)
