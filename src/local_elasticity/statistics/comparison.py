"""Two matrices of the same pairs, compared pair by pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from local_elasticity.statistics.bootstrap import draws, quantiles, reduced
from local_elasticity.statistics.class_blocks import ClassBlocks
from local_elasticity.words import in_natural_order

if TYPE_CHECKING:
    import pandas as pd


LEAST_UNITS = 5
"""Sources, and targets, that a p-value needs: resamples of fewer say little of others that might have been drawn."""


@dataclass(frozen=True)
class Comparison:
    """The median difference over pairs, a bootstrap interval, and a test of no difference.

    Attributes:
        difference: the median of one − other over the pairs that have a value in both.
        low, high: its percentile interval; sources and targets are resampled. It does not allow for few units.
        p_value: twice the share of resamples whose difference has the other sign, or the p-value of a t-test with the
            standard error of the resamples, whichever is larger; the second allows for few units. NaN below
            `LEAST_UNITS` units.
        pairs: how many pairs entered.
        units: the smaller of the numbers of sources and of targets that have such a pair.
        error: the standard error of the difference, from the resamples; NaN where there is no p-value.
    """

    difference: float
    low: float
    high: float
    p_value: float
    pairs: int
    units: int
    error: float = float("nan")


def compared(
    one: np.ndarray,
    other: np.ndarray,
    *,
    square: bool = False,
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> Comparison:
    """Compare two matrices [n, m] of the same sources and targets.

    Sources and targets are both units, since all pairs of one share what changed with it; interval and test resample
    both. In the square case row i and column i are one example, which is drawn once for both sides.

    >>> rng = np.random.default_rng(0)
    >>> one = rng.normal(size=(20, 10))
    >>> compared(one, one - 0.5).difference, compared(one, one + rng.normal(size=one.shape)).p_value > 0.05
    (0.5, True)
    """
    difference = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
    known = np.isfinite(difference)
    if not known.any():
        return Comparison(np.nan, np.nan, np.nan, np.nan, 0, 0)
    difference[~known] = np.nan
    rng = np.random.default_rng(seed)
    found = reduced(difference, "median", None, *draws(rng, difference.shape, resamples, square=square))
    low, high = quantiles(found[1:], level) if resamples else (np.nan, np.nan)
    drawn = found[1:][np.isfinite(found[1:])]
    units = int((known | known.T).any(1).sum() if square else min(known.any(0).sum(), known.any(1).sum()))
    error = p_value = float("nan")
    if units >= LEAST_UNITS and len(drawn) > 1:
        error = float(drawn.std(ddof=1)) * (units / (units - 1)) ** 0.5
        rarer = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
        p_value = max(min(1.0, 2 * (1 + rarer) / (1 + len(drawn))), _t_test(float(found[0]), error, units))
    return Comparison(float(found[0]), low, high, p_value, int(known.sum()), units, error)


def _t_test(difference: float, error: float, units: int) -> float:
    """The p-value of no difference. The spread of resamples is that of a sample of n units, (n − 1)/n of the variance,
    which `error` corrects, and known no better than from n units, so that Student's t takes the place of the normal
    distribution.
    """
    from scipy.stats import t

    return 2 * float(t.sf(abs(difference) / error, units - 1)) if error else 0.0


def compared_by_class(
    one: np.ndarray,
    other: np.ndarray,
    source_classes: np.ndarray,
    target_classes: np.ndarray,
    *,
    square: bool = False,
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare two matrices for every pair of classes: medians of `other` (before) and `one` (after) over the pairs that
    have a value in both, and what `compared` gives. In the square case the targets are the sources, and the pairs
    within a class are compared as such.

    `p_value` is that of a single pair of classes. `p_adjusted` allows for the number of pairs of classes: how often the
    largest difference of all pairs of classes, in units of its standard error, is as large by chance (the maximum over
    pairs in resamples around their differences; Westfall and Young, 1993).

    >>> one = np.array([[np.nan, 2.0, 1.0], [3.0, np.nan, 1.0], [1.0, 1.0, np.nan]])
    >>> classes = np.array(["a", "a", "b"])
    >>> compared_by_class(one, one - 1, classes, classes)["difference"].tolist()
    [1.0, 1.0, 1.0, nan]
    """
    import pandas as pd

    table, sizes = [], []
    for a in in_natural_order(source_classes.tolist()):
        for b in in_natural_order(target_classes.tolist()):
            block = np.ix_(source_classes == a, target_classes == b)
            within = square and a == b
            found = compared(one[block], other[block], square=within, level=level, resamples=resamples, seed=seed)
            before, after = _medians(other[block], one[block])
            table.append((a, b, before, after, found.difference, found.low, found.high, found.p_value))
            sizes.append((_t_test(found.difference, found.error, found.units), found.pairs))
    names = ["source_class", "target_class", "before", "after", "difference", "low", "high", "p_value"]
    frame = pd.DataFrame(table, columns=names)
    chance = _largest_by_chance(np.subtract(one, other), source_classes, target_classes, square, resamples, seed)
    by_test, pairs = np.array(sizes).T
    return frame.assign(p_adjusted=_adjusted(by_test, frame["p_value"].to_numpy(), chance), pairs=pairs.astype(int))


def _largest_by_chance(
    difference: np.ndarray, rows: np.ndarray, columns: np.ndarray, square: bool, resamples: int, seed: int
) -> np.ndarray:
    """The smallest p-value over all pairs of classes in every resample around their differences, [r]."""
    from scipy.stats import norm

    if resamples < 2:
        return np.zeros(0)
    rng = np.random.default_rng(seed)
    some = ClassBlocks.of(difference, rows, columns, square, rng, logarithms=False)
    drawn = np.array(list(some.resampled(resamples, rng))).reshape(resamples, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(drawn - some.medians(some.rows, some.columns).ravel()) / drawn.std(0, ddof=1)
    return 2 * norm.sf(np.max(np.where(np.isfinite(apart), apart, 0), axis=1, initial=0))


def _adjusted(by_test: np.ndarray, p_value: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """At least the p-value of the single pair."""
    reached = (chance[:, None] <= by_test).sum(0)
    return np.where(np.isnan(p_value), np.nan, np.fmax(p_value, (1 + reached) / (1 + len(chance))))


def compared_by_example(
    one: np.ndarray, other: np.ndarray, *, level: float = 0.95, resamples: int = 200, seed: int = 0
) -> pd.DataFrame:
    """Compare two matrices row by row: medians before and after over the pairs of a row that have a value in both, the
    median difference, and its interval, for which the columns are resampled.

    >>> one = np.arange(12.0).reshape(3, 4)
    >>> compared_by_example(one, one - 2)["low"].tolist()
    [2.0, 2.0, 2.0]
    """
    import pandas as pd

    table = []
    for row, (after, before) in enumerate(zip(one, other, strict=True)):
        found = compared(after[None], before[None], level=level, resamples=resamples, seed=seed + row)
        table.append((*_medians(before, after), found.difference, found.low, found.high, found.pairs))
    return pd.DataFrame(table, columns=["before", "after", "difference", "low", "high", "pairs"])


def _medians(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    known = np.isfinite(after - before)
    if not known.any():
        return float("nan"), float("nan")
    return float(np.median(before[known])), float(np.median(after[known]))
