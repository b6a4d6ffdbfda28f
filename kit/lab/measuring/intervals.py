"""Errors that hold for what was sampled: the mean of a series whose neighbors depend on each other.

Positions of one text do: a passage that is hard for a rounding is hard for many tokens. The error of independent samples,
sd / sqrt(n), is then too small. Over 9 samples of 256 positions it held the mean of the text in 4.
"""

import math

import numpy as np

FEWEST = 64  # samples: of fewer no blocks are long enough to be independent of each other


def blocks_of(count: int) -> int:
    """Of how many blocks a series of so many samples is made: few, so that one hardly depends on the next."""
    return max(8, min(16, count // 64))


_STUDENT = {8: 2.365, 9: 2.306, 10: 2.262, 11: 2.228, 12: 2.201, 13: 2.179, 14: 2.160, 15: 2.145, 16: 2.131}  # 97.5 %


def error_of_mean(values) -> float:
    """Standard error of the mean of a series, in its order: by the means of blocks (batch means), and no less than that of
    independent samples. NaN for fewer than two."""
    values = np.asarray(values, dtype=float)
    if values.size < 2:
        return math.nan
    alone = float(values.std(ddof=1) / math.sqrt(values.size))
    if values.size < FEWEST:
        return alone
    means = np.array([part.mean() for part in np.array_split(values, blocks_of(values.size))])
    few = _STUDENT[means.size] / 1.96  # so that two errors hold the mean as often as for many blocks
    return max(alone, few * float(means.std(ddof=1) / math.sqrt(means.size)))


def of_median(values) -> tuple[float, float]:
    """The 95 % interval of the median of six independent samples or more, whatever their distribution: two of them in order,
    so far from the ends as the binomial distribution allows. It holds the median in at least 95 % of cases."""
    ordered = np.sort(np.asarray(values, dtype=float))
    count, below, left_out = ordered.size, 0.0, -1
    while below <= 0.025:
        left_out += 1
        below += math.comb(count, left_out) / 2.0**count
    first = max(0, left_out - 1)
    return float(ordered[first]), float(ordered[count - 1 - first])
