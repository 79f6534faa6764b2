"""What several runs say together: whether a claim holds, whether a published number agrees, how large an effect is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np

ClaimVerdict = Literal["holds", "fails", "depends"]
CellVerdict = Literal["agrees", "differs"]


def verdict_of(outcomes: Sequence[bool]) -> ClaimVerdict:
    """A claim holds where every outcome is true, fails where none is, and depends otherwise.

    >>> verdict_of([True, True]), verdict_of([True, False]), verdict_of([False])
    ('holds', 'depends', 'fails')
    """
    return "holds" if all(outcomes) else "depends" if any(outcomes) else "fails"


def agreement(published: float, values: Sequence[float], tolerance: float = 0.0) -> CellVerdict:
    """Whether a published number lies within the range of our values, widened by `tolerance` on either side.

    >>> agreement(0.9, [0.7, 0.8]), agreement(0.9, [0.7, 0.8], tolerance=0.1)
    ('differs', 'agrees')
    """
    return "agrees" if min(values) - tolerance <= published <= max(values) + tolerance else "differs"


def effect_of(
    values: Iterable[float], average: Callable[[Sequence[float]], float] = statistics.fmean
) -> tuple[float | None, float | None, float | None]:
    """The average, and the lowest and highest where there are several; NaN is left out.

    >>> effect_of([0.25, 0.75]), effect_of([0.5]), effect_of([])
    ((0.5, 0.25, 0.75), (0.5, None, None), (None, None, None))
    """
    known = [float(value) for value in values if not math.isnan(value)]
    low, high = (min(known), max(known)) if len(known) > 1 else (None, None)
    return average(known) if known else None, low, high


def geometric_mean(ratios: Sequence[float]) -> float:
    """The exponential of the mean logarithm.

    >>> round(geometric_mean([0.5, 2.0]), 6)
    1.0
    """
    return float(np.exp(np.mean(np.log(ratios))))


def z_score(effects: np.ndarray) -> float:
    """The mean over its standard error; NaN for one run, or where all are equal.

    >>> round(z_score(np.array([1.0, 2.0, 3.0])), 4)
    3.4641
    """
    if len(effects) < 2 or np.std(effects) == 0:
        return float("nan")
    return float(np.mean(effects) / (np.std(effects, ddof=1) / np.sqrt(len(effects))))


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
