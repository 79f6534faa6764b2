"""How two lists of numbers go together: correlations, the variance explained, an exponent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from local_elasticity.statistics.bootstrap import quantiles, redrawn

Numbers = Sequence[float | None] | np.ndarray

FEWEST = 3
"""Fewer pairs have no correlation."""


def pearson(x: Numbers, y: Numbers) -> float:
    """Linear correlation over the places where both are finite; NaN where one is constant or fewer than three are.

    >>> round(pearson([1.0, 2.0, None, 4.0], [9.0, 8.0, 1.0, 6.0]), 6)
    -1.0
    """
    a, b = _both(x, y)
    return _correlation(a, b)


def spearman(x: Numbers, y: Numbers) -> float:
    """Rank correlation, ties at their mean rank; over the places where both are finite, NaN as for `pearson`.

    >>> round(spearman([1.0, 2.0, None, 4.0], [9.0, 4.0, 1.0, 0.0]), 6)
    -1.0
    """
    from scipy.stats import rankdata

    a, b = _both(x, y)
    return _correlation(rankdata(a), rankdata(b))


def spearman_of_pairs(
    one: np.ndarray, other: np.ndarray, *, square: bool, level: float, resamples: int, seed: int
) -> tuple[float, float, float]:
    """The rank correlation of two matrices [n, m] of the same pairs, and its percentile interval; sources and targets
    are resampled. In the square case an example with itself does not count.

    >>> S = np.random.default_rng(0).random((8, 8))
    >>> spearman_of_pairs(S, S**2, square=True, level=0.95, resamples=20, seed=0)
    (1.0, 1.0, 1.0)
    """
    both = [np.array(values, dtype=float) for values in (one, other)]
    if square:
        for values in both:
            np.fill_diagonal(values, np.nan)
    rows, columns = (np.zeros(size) for size in both[0].shape)
    places = redrawn(np.random.default_rng(seed), rows, columns, resamples, square=square)
    drawn = [spearman(*(values[np.ix_(i, j)].ravel() for values in both)) for i, j in places]
    return round(spearman(*(values.ravel() for values in both)), 12), *quantiles(np.array(drawn).round(12), level)


def explained(measured: Numbers, predicted: Numbers) -> float:
    """R² = 1 − Σ(measured − predicted)²/Σ(measured − mean)²: no line is fitted in between.

    >>> explained([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    1.0
    """
    y, f = np.asarray(measured, dtype=float), np.asarray(predicted, dtype=float)
    return float(1 - ((y - f) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def log_slope(x: Numbers, y: Numbers) -> float:
    """The exponent p of y ~ xᵖ, by least squares in logarithms.

    >>> round(log_slope([1.0, 2.0, 4.0], [1.0, 4.0, 16.0]), 6)
    2.0
    """
    a, b = (np.log(np.asarray(values, dtype=float)) for values in (x, y))
    return float(np.polyfit(a, b, 1)[0])


def _both(x: Numbers, y: Numbers) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    known = np.isfinite(a) & np.isfinite(b)
    return a[known], b[known]


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
