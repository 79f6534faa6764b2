"""Classes whose steps move another class further than their own, although most do not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from local_elasticity.statistics.class_blocks import ClassBlocks


@dataclass(frozen=True)
class Exceeded:
    """A class whose steps move another class clearly further than other examples of itself.

    Attributes:
        source_class, target_class: the class that steps are taken on, and the one that moves furthest.
        value, own: medians over their pairs, and over those of the source's class.
    """

    source_class: object
    target_class: object
    value: float
    own: float


def exceeded(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    square: bool,
    some: ClassBlocks,
    again: np.ndarray,
    significant: float,
) -> tuple[Exceeded, ...]:
    """The classes that another one clearly exceeds, the largest value first.

    The test is one-sided: the logarithm of the quotient of the two medians in units of its standard deviation over the
    resamples `again`, [r, K, K], by Student's t with the number of examples of the smaller class, corrected for the
    number of pairs of classes (Bonferroni).

    >>> classes = np.repeat([0, 1, 2], 20)
    >>> values = np.random.default_rng(0).lognormal(sigma=0.3, size=(60, 60))
    >>> values *= np.where(classes[:, None] == classes, 2, 1)
    >>> values[:20, 20:40] *= 6
    >>> some = ClassBlocks.of(values, classes, classes, True, np.random.default_rng(0))
    >>> again = np.array(list(some.resampled(100, np.random.default_rng(1))))
    >>> [(one.source_class, one.target_class) for one in exceeded(values, classes, classes, True, some, again, 0.05)]
    [(0, 1)]
    """
    medians = some.medians(some.rows, some.columns)
    own = np.diagonal(again, axis1=1, axis2=2)[:, :, None]
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of pairs that no resample has
        clear = (medians - np.diagonal(medians)[:, None]) / np.nanstd(again - own, axis=0)
    sizes = [np.bincount(part, minlength=some.count) for part in (some.rows, some.columns)]
    units = np.minimum(np.minimum(sizes[0], sizes[1])[:, None], sizes[1])  # the fewest examples behind the two medians
    limit = t.ppf(1 - significant / max(2, clear.size - len(clear)), np.maximum(1, units - 1))
    beyond = np.isfinite(clear) & (units > 1) & (clear > limit)
    found = []
    for a in np.flatnonzero(beyond.any(1)):
        b = int(np.argmax(np.where(beyond[a], medians[a], -np.inf)))
        value, itself = (_median(values, rows == some.labels[a], columns == some.labels[at], square) for at in (b, a))
        found.append(Exceeded(some.labels[a], some.labels[b], value, itself))
    return tuple(sorted(found, key=lambda one: -one.value))


def _median(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, square: bool) -> float:
    """Over all pairs of two classes, an example with itself aside."""
    chosen = rows[:, None] & columns
    if square:
        np.fill_diagonal(chosen, False)
    return float(np.nanmedian(values[chosen]))
