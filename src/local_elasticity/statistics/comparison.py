"""Two matrices of the same pairs, compared pair by pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from local_elasticity.statistics.bootstrap import draws, quantiles, reduced

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """The median difference over pairs, a bootstrap interval, and a test of no difference.

    Attributes:
        difference: the median of one − other over the pairs that have a value in both.
        low, high: its interval; sources and targets are resampled.
        p_value: twice the share of resamples, of sources and targets, whose difference has the other sign.
        pairs: how many pairs entered.
    """

    difference: float
    low: float
    high: float
    p_value: float
    pairs: int


def compared(
    one: np.ndarray, other: np.ndarray, *, level: float = 0.95, resamples: int = 200, seed: int = 0
) -> Comparison:
    """Compare two matrices [n, m] of the same sources and targets.

    Sources and targets are both units, since all pairs of one share what changed with it; interval and test resample
    both.

    >>> rng = np.random.default_rng(0)
    >>> one = rng.normal(size=(20, 10))
    >>> compared(one, one - 0.5).difference, compared(one, one + rng.normal(size=one.shape)).p_value > 0.05
    (0.5, True)
    """
    difference = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
    known = np.isfinite(difference)
    if not known.any():
        return Comparison(np.nan, np.nan, np.nan, 1.0, 0)
    difference[~known] = np.nan
    rng = np.random.default_rng(seed)
    found = reduced(difference, "median", None, *draws(rng, difference.shape, resamples))
    low, high = quantiles(found[1:], level) if resamples else (np.nan, np.nan)
    drawn = found[1:][np.isfinite(found[1:])]
    rarer = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    p_value = min(1.0, 2 * (1 + rarer) / (1 + len(drawn))) if len(drawn) else float("nan")
    return Comparison(float(found[0]), low, high, p_value, int(known.sum()))


def compared_by_class(
    one: np.ndarray,
    other: np.ndarray,
    source_classes: np.ndarray,
    target_classes: np.ndarray,
    *,
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare two matrices for every pair of classes: medians of `other` (before) and `one` (after) over the pairs that
    have a value in both, and what `compared` gives. P-values are those of single class pairs.

    >>> one = np.array([[np.nan, 2.0, 1.0], [3.0, np.nan, 1.0], [1.0, 1.0, np.nan]])
    >>> classes = np.array(["a", "a", "b"])
    >>> compared_by_class(one, one - 1, classes, classes)["difference"].tolist()
    [1.0, 1.0, 1.0, nan]
    """
    import pandas as pd

    table = []
    for a in np.unique(source_classes):
        for b in np.unique(target_classes):
            block = np.ix_(source_classes == a, target_classes == b)
            found = compared(one[block], other[block], level=level, resamples=resamples, seed=seed)
            before, after = _medians(other[block], one[block])
            table.append((a, b, before, after, found.difference, found.low, found.high, found.p_value, found.pairs))
    names = ["source_class", "target_class", "before", "after", "difference", "low", "high", "p_value", "pairs"]
    return pd.DataFrame(table, columns=names)


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
