"""Two settings, each with networks of several seeds: the seed is the unit, and each gives one number a statistic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from local_elasticity.measures.registry import known_measure
from local_elasticity.statistics.class_pairs import has_classes, read_pairs, summarized
from local_elasticity.statistics.locality import locality
from local_elasticity.statistics.verdicts import holm

LEAST_SEEDS = 2
"""On either side; one seed says nothing of how far seeds differ."""

NO_SPREAD = 1e-9
"""Numbers of a side that differ by less, as a share of their size, are taken for equal."""


MEANINGS = {
    "times": "times as far within a class as between classes",
    "within": "median within a class",
    "between": "median between classes",
    "median": "median over all pairs",
}
"""The statistics of one network, in words."""


@dataclass(frozen=True)
class SeedDifferences:
    """Mean differences between two sides over seeds, one for each of k statistics; all arrays are [k].

    Attributes:
        before, after: means over seeds.
        difference: after − before.
        low, high: its t interval.
        p_value: of a two-sided t test of no difference; NaN below two seeds, or if the numbers of neither side differ.
        seeds_before, seeds_after: how many seeds have a value; of pairs, those that have one on both sides.
    """

    before: np.ndarray
    after: np.ndarray
    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    seeds_before: np.ndarray
    seeds_after: np.ndarray


def compared_over_seeds(
    before: np.ndarray, after: np.ndarray, *, paired: bool = False, level: float = 0.95
) -> SeedDifferences:
    """The differences of k statistics between two sides, [seeds, k] each: Welch's t test, or the paired t test.

    >>> found = compared_over_seeds(np.array([[1.0], [2.0], [3.0]]), np.array([[3.0], [4.0], [5.0]]))
    >>> found.difference.tolist(), found.p_value.round(3).tolist()
    ([2.0], [0.07])
    >>> compared_over_seeds(np.array([[1.0], [2.0]]), np.array([[3.0], [4.1]]), paired=True).p_value.round(3).tolist()
    [0.016]
    """
    from scipy.stats import t

    one, other = (np.where(np.isfinite(side), side, np.nan).astype(float) for side in (before, after))
    if paired:
        known = np.isfinite(one - other)
        one, other = (np.where(known, side, np.nan) for side in (one, other))
        (mean_one, _, n), (mean_other, *_) = _moments(one), _moments(other)
        size = np.fmax(*(np.nanmax(np.abs(side), axis=0, initial=0.0) for side in (one, other)))
        _, squared, _ = _moments(other - one, size)
        freedom, sizes = n - 1.0, (n, n)
    else:
        (mean_one, of_one, n), (mean_other, of_other, m) = _moments(one), _moments(other)
        squared, sizes = of_one + of_other, (n, m)
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = squared**2 / (of_one**2 / (n - 1) + of_other**2 / (m - 1))
    difference = mean_other - mean_one
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(np.where(squared > 0, squared, np.nan))
        half = error * t.ppf((1 + level) / 2, freedom)
        p_value = 2 * t.sf(np.abs(difference) / error, freedom)
    return SeedDifferences(mean_one, mean_other, difference, difference - half, difference + half, p_value, *sizes)


def _moments(values: np.ndarray, size: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, squared standard error of the mean, and how many there are, of each column; NaN where too few. Numbers that
    differ by rounding alone, beside `size`, are equal; by default that is the largest of the column."""
    known = np.isfinite(values)
    n = known.sum(0)
    filled = np.where(known, values, 0.0)
    size = np.abs(filled).max(0, initial=0.0) if size is None else size
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0, filled.sum(0) / n, np.nan)
        apart = np.where(known, values - mean, 0.0)
        apart = np.where(np.abs(apart) <= NO_SPREAD * size, 0.0, apart)
        squared = np.where(n > 1, (apart**2).sum(0) / (n - 1) / n, np.nan)
    return mean, squared, n


def adjusted(p_values: np.ndarray) -> np.ndarray:
    """Holm's p-values over those that are known, NaN elsewhere. A few seeds are too few to resample, so this takes the
    place of the resampled largest difference in `compared_by_class`; both allow for the number of pairs of classes.

    >>> adjusted(np.array([0.01, np.nan, 0.04])).tolist()
    [0.02, nan, 0.04]
    """
    found, known = np.full(p_values.shape, np.nan), np.isfinite(p_values)
    found[known] = holm(p_values[known].tolist())
    return found


def overall_statistics(S: xr.DataArray) -> dict[str, float]:
    """One number a statistic for one network: how many times as far (only of ratios), the medians within and between
    classes, and the median over all pairs; the first three are NaN without classes.

    >>> import local_elasticity as le
    >>> S = le.as_similarity([[1, 0.8, 0.2], [0.6, 1, 0.4], [0.1, 0.3, 1]], source_labels=["cat", "cat", "dog"])
    >>> {name: round(value, 2) for name, value in overall_statistics(S).items()}
    {'times': 2.8, 'within': 0.7, 'between': 0.25, 'median': 0.35}
    """
    values = np.array(S.values, dtype=float)
    values[~np.isfinite(values)] = np.nan
    if S.attrs.get("targets_are_sources"):
        np.fill_diagonal(values, np.nan)
    found = {"times": np.nan, "within": np.nan, "between": np.nan}
    if has_classes(S):
        local = locality(S, resamples=0, permutations=0)
        known = known_measure(local.measure)
        shares = known is None or known.ratio
        found = {"times": local.times if shares else np.nan, "within": local.within, "between": local.between}
    known_values = values[np.isfinite(values)]
    return {**found, "median": float(np.median(known_values)) if len(known_values) else np.nan}


def class_medians(S: xr.DataArray) -> tuple[list[tuple[object, object]], np.ndarray]:
    """The pairs of classes of one network, and the median over the pairs of examples of each."""
    frame = summarized(read_pairs(S, None, None), "median", "exclude", 0)
    pairs = list(zip(frame["source_class"], frame["target_class"], strict=True))
    return pairs, frame["value"].to_numpy(dtype=float)
