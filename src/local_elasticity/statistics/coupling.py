"""Which pairs of classes are coupled: moved further by each other's steps than the two classes alone explain.

Some classes have steps that move everything, and some are moved by everything. With M_ab the median over the pairs of
source class a and target class b,

    log M_ab ≈ r_a + c_b  over a ≠ b, by median polish,    coupling_ab = M_ab / exp(r_a + c_b),

so a coupling of 3 says: a step on a moves b three times as far as the other pairs of a and of b suggest. Medians keep
one strong pair from changing what the others are compared with. Measures with signs use differences instead:
coupling_ab = M_ab − (r_a + c_b).

K classes have K (K − 1) directed pairs, and the largest of so many is large by chance. The baseline is therefore the
largest coupling over all pairs, where the classes of the examples are permuted.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from local_elasticity.statistics.class_blocks import ClassBlocks
from local_elasticity.statistics.class_pairs import ReadPairs
from local_elasticity.statistics.locality import pooled

FEWEST_CLASSES = 4
"""With fewer classes, r and c explain the pairs nearly or wholly."""

SWEEPS = 10
"""Of the median polish (Tukey, 1977), over rows and then columns."""


@dataclass(frozen=True)
class Coupling:
    """The coupling of every directed pair of classes, with intervals and a baseline.

    Attributes:
        classes: the classes, in the order of rows and columns.
        value: the coupling, [K, K], source classes in rows; NaN on the diagonal and where there are no pairs.
        low, high: its bootstrap interval; sources and targets are resampled within their classes.
        p_value: how often the largest coupling of permuted classes is as large, [K, K].
        baseline: the 95 % quantile of the largest coupling of permuted classes.
    """

    classes: list[object]
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    baseline: float

    def clear(self) -> list[tuple[int, int]]:
        """The directed pairs whose interval lies above the baseline, the most coupled first."""
        with np.errstate(invalid="ignore"):
            found = np.argwhere(self.low > self.baseline)
        return sorted(((int(a), int(b)) for a, b in found), key=lambda at: -self.value[at])


def coupling(
    read: ReadPairs,
    *,
    signed: bool = False,
    level: float = 0.95,
    resamples: int = 200,
    permutations: int = 200,
    seed: int = 0,
) -> Coupling | None:
    """The coupling of every directed pair of classes; None with fewer than four classes.

    Args:
        read: values, classes of sources and targets, as `read_pairs` gives them.
        signed: differences instead of ratios, for measures with signs.
        level, resamples, permutations, seed: of the intervals and of the baseline.

    Returns:
        A `Coupling`.

    >>> rng, classes = np.random.default_rng(0), np.arange(60) % 5
    >>> S = rng.lognormal(size=(60, 60)) * np.where((classes[:, None] == 1) & (classes == 3), 8, 1)
    >>> found = coupling((S, classes, classes, None, True))
    >>> found.clear()
    [(1, 3)]
    """
    values, rows, columns, square = pooled(read)
    rng = np.random.default_rng(seed)
    some = ClassBlocks.of(values, rows, columns, square, rng, logarithms=not signed)
    if some.count < FEWEST_CLASSES:
        return None
    found = residuals(some.medians(some.rows, some.columns)[None])[0]
    if not np.isfinite(found).any():
        return None
    again = residuals(np.array(list(some.resampled(resamples, rng))))
    by_chance = residuals(np.array(list(some.permuted(permutations, rng))))
    largest = np.nanmax(np.where(np.isnan(by_chance), -np.inf, by_chance), axis=(1, 2))
    with np.errstate(invalid="ignore"):
        p_value = (1 + (largest[:, None, None] >= found).sum(0)) / (1 + len(largest))
    known = np.isfinite(found)
    low, high = (np.full(found.shape, np.nan) for _ in range(2))
    low[known], high[known] = np.nanquantile(again[:, known], [(1 - level) / 2, (1 + level) / 2], axis=0)
    scale = np.asarray if signed else np.exp
    return Coupling(
        some.labels,
        scale(found),
        scale(low),
        scale(high),
        np.where(known, p_value, np.nan),
        float(scale(np.quantile(largest, level))),
    )


def residuals(medians: np.ndarray) -> np.ndarray:
    """What sources and targets do not explain of the medians of different classes, [r, K, K]; NaN on the diagonal.

    >>> m = np.add.outer([1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 1.0, 0.0])[None]
    >>> bool(np.nanmax(np.abs(residuals(m))) < 1e-9)
    True
    """
    left = np.where(np.isfinite(medians), medians, np.nan)
    each = np.arange(left.shape[1])
    left[:, each, each] = np.nan
    empty = np.isnan(left)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows without a number, which stay so
        for average in (np.nanmean, np.nanmedian):  # medians alone need not find sums with an empty diagonal
            for axis in (2, 1) * SWEEPS:
                middle = average(left, axis=axis, keepdims=True)
                left = np.where(empty, np.nan, left - np.where(np.isnan(middle), 0, middle))
    return left
