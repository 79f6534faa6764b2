"""The tests behind verdicts: over units of replication, from scipy.stats; and whether a published number agrees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

CellVerdict = Literal["agrees", "differs"]

LEVEL = 0.025
"""Of either one-sided test, so that 5 % of true nulls are decided at most."""

FEWEST_UNITS = 3
"""Two units give a t test one degree of freedom and next to no power."""

UNITS_FOR_EXACT = 12
"""From here on signs are permuted exactly, and a decision survives Holm's correction over ten claims: 2^-12 < 0.0025.
With fewer units a t test on the claim's scale stands in, because five signs alone cannot reach 2.5 % (2^-5 = 3.1 %)."""

PERMUTATIONS = 9999
"""The most arrangements that are tried; of more, this many are drawn at random."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: reject where they are at most the level.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def one_sided(x: np.ndarray, floor: float = 0.0) -> tuple[float, float]:
    """p-values that the mean of x is above 0, and below: signs permuted exactly from twelve units on, a t test below.

    Args:
        x: a number for every unit.
        floor: the least standard deviation that is believed, because values are rounded.

    >>> p_for, p_against = one_sided(np.array([1.0, 2.0, 3.0]))
    >>> round(p_for, 4), round(p_against, 4)
    (0.0371, 0.9629)
    """
    from scipy import stats

    if len(x) >= UNITS_FOR_EXACT:
        resamples = PERMUTATIONS if 2 ** len(x) > PERMUTATIONS else np.inf
        found = [
            stats.permutation_test(
                (x,),
                np.mean,
                permutation_type="samples",
                vectorized=True,
                alternative=side,
                n_resamples=resamples,
                rng=0,
            ).pvalue
            for side in ("greater", "less")
        ]
        return float(found[0]), float(found[1])
    deviation = max(float(x.std(ddof=1)), floor)
    if deviation == 0:
        above, below = (int((side * x > 0).sum()) for side in (1, -1))
        p_for, p_against = (stats.binomtest(count, len(x), alternative="greater").pvalue for count in (above, below))
        return float(p_for), float(p_against)
    t = float(x.mean()) / (deviation / math.sqrt(len(x)))
    return float(stats.t.sf(t, len(x) - 1)), float(stats.t.cdf(t, len(x) - 1))


def permuted_within_units(table: np.ndarray) -> float:
    """How often choices differ as much where values are exchanged between them within every unit.

    Args:
        table: a value for every choice and unit, [choices, units].

    >>> permuted_within_units(np.array([[9.0, 9.1, 9.2, 9.3], [1.0, 1.1, 1.3, 1.2], [5.0, 5.1, 5.3, 5.2]])) < 0.01
    True
    """
    from scipy import stats

    def statistic(*choices: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(np.var([one.mean(axis) for one in choices], axis=0))

    found = stats.permutation_test(
        tuple(table),
        statistic,
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=PERMUTATIONS,
        rng=0,
    )
    return float(found.pvalue)


def interval(x: np.ndarray, floor: float = 0.0, level: float = 0.95) -> tuple[float, float, float]:
    """Low, mean and high of the t interval over units; unadjusted.

    >>> tuple(round(value, 3) for value in interval(np.array([1.0, 2.0, 3.0])))
    (-0.484, 2.0, 4.484)
    """
    from scipy import stats

    middle = float(x.mean())
    half = float(stats.t.ppf((1 + level) / 2, len(x) - 1)) * max(float(x.std(ddof=1)), floor) / math.sqrt(len(x))
    return middle - half, middle, middle + half


def agreement(published: float, values: Sequence[float], tolerance: float = 0.0) -> CellVerdict:
    """Whether a published number lies within the range of our values, widened by `tolerance` on either side.

    >>> agreement(0.9, [0.7, 0.8]), agreement(0.9, [0.7, 0.8], tolerance=0.1)
    ('differs', 'agrees')
    """
    return "agrees" if min(values) - tolerance <= published <= max(values) + tolerance else "differs"


def inside_range_expected(units: int) -> float:
    """The chance that one more draw of the same distribution lies within the range of n `units`: (n − 1)/(n + 1).

    >>> round(inside_range_expected(5), 3)
    0.667
    """
    return (units - 1) / (units + 1)


def rank_tests(larger: np.ndarray, smaller: np.ndarray) -> tuple[float, float]:
    """One-sided p-values that the first is larger: Wilcoxon's rank-sum and, pair by pair, his signed-rank test.

    >>> apart, paired = rank_tests(np.arange(10.0) + 0.5, np.arange(10.0))
    >>> apart > 0.05 > paired
    True
    """
    from scipy.stats import ranksums, wilcoxon

    tests = (test(larger, smaller, alternative="greater") for test in (ranksums, wilcoxon))
    apart, paired = (float(found.pvalue) for found in tests)
    return apart, paired
