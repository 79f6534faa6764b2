"""Locality: how far a step moves other classes, compared with its own.

    ratio = median of S over pairs of different classes / median of S over pairs of one class,

over all pairs, an example with itself aside. It is 1 where a step moves all classes alike, and 0 where it moves its own
class alone. All pairs have the same weight, because one class whose steps hardly move itself rules a mean over classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from local_elasticity.statistics.bootstrap import quantiles, reduced
from local_elasticity.statistics.class_pairs import ReadPairs, read_pairs

LOCAL = 0.8
"""Below this ratio learning is called local."""


@dataclass(frozen=True)
class Locality:
    """The locality ratio with its interval, and what labels at random would give.

    Attributes:
        within, between: medians over pairs of one class, and of different classes.
        ratio: between / within.
        low, high: a bootstrap interval of the ratio; sources and targets are resampled within their classes.
        baseline: the median ratio where classes are permuted.
        p_value: how often permuted classes have a ratio as small.
        pairs_within, pairs_between: how many pairs have a value.
        unresolved: the share of pairs without one.
    """

    within: float
    between: float
    ratio: float
    low: float
    high: float
    baseline: float
    p_value: float
    pairs_within: int
    pairs_between: int
    unresolved: float

    def __str__(self) -> str:
        text = f"within {self.within:.3g}, between {self.between:.3g}, ratio {self.ratio:.3g}"
        if np.isfinite(self.low):
            text += f" (95 % interval {self.low:.3g} to {self.high:.3g})"
        if np.isfinite(self.baseline):
            text += f"; classes permuted: {self.baseline:.3g}, p = {self.p_value:.2g}"
        return text


def locality(
    S: Any,
    source_labels: Any = None,
    target_labels: Any = None,
    *,
    level: float = 0.95,
    resamples: int = 200,
    permutations: int = 199,
    seed: int = 0,
) -> Locality:
    """How local a similarity is: other classes compared with the own class, with an interval and a baseline.

    Args:
        S: similarity, [n, m]: a tensor, an array, or the result of `le.similarity`, which brings its own classes.
        source_labels, target_labels: a class for each source and target; target_labels default to source_labels.
        level, resamples, seed: of the bootstrap interval; `resamples=0` leaves it out.
        permutations: how often classes are permuted; 0 leaves the baseline out.

    Returns:
        A `Locality`. Its numbers are NaN where there is one class only.

    >>> import torch, local_elasticity as le
    >>> S = torch.tensor([[1.0, 0.8, 0.2], [0.6, 1.0, 0.4], [0.1, 0.3, 1.0]])
    >>> found = le.locality(S, ["cat", "cat", "dog"], resamples=0, permutations=0)
    >>> round(found.within, 3), round(found.between, 3), round(found.ratio, 3)
    (0.7, 0.25, 0.357)
    """
    read = S if isinstance(S, tuple) else read_pairs(S, source_labels, target_labels)
    values, rows, columns, square = pooled(read)
    same = rows[:, None] == columns
    apart = ~np.eye(len(rows), dtype=bool) if square else np.ones_like(same)
    rng = np.random.default_rng(seed)
    within, between = within_and_between(values, same, apart)
    low = high = baseline = p_value = float("nan")
    ratio = quotient(between, within)
    if resamples and np.isfinite(ratio):
        low, high = quantiles(_resampled(values, rows, columns, same & apart, ~same, resamples, rng), level)
    if permutations and np.isfinite(ratio):
        shuffled = [_permuted(values, rows, columns, square, apart, rng) for _ in range(permutations)]
        ratios = np.array([one for one in shuffled if np.isfinite(one)])
        baseline = median(ratios)
        p_value = float((1 + (ratios <= ratio).sum()) / (1 + len(ratios)))
    known = np.isfinite(values)
    counts = int((known & same & apart).sum()), int((known & ~same).sum())
    unresolved = float(1 - known[apart].mean()) if apart.any() else float("nan")
    return Locality(within, between, ratio, low, high, baseline, p_value, *counts, unresolved)


def pooled(read: ReadPairs) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Values, NaN where there is none; classes of rows and columns; whether targets are sources."""
    values, rows, columns, _, square = read
    values = np.asarray(values)
    values = values.astype(np.result_type(values.dtype, np.float32))
    values[~np.isfinite(values)] = np.nan
    return values, rows, columns, square


def within_and_between(values: np.ndarray, same: np.ndarray, apart: np.ndarray) -> tuple[float, float]:
    """The medians over pairs of one class and of different classes; `apart` marks pairs of two examples."""
    return median(values[same & apart]), median(values[~same])


def median(values: np.ndarray) -> float:
    """Over the numbers that are finite; NaN where there is none."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")


def quotient(above: Any, below: Any) -> Any:
    """above / below where that is positive, and NaN elsewhere.

    >>> quotient(np.array([1.0, 1.0]), np.array([2.0, 0.0])).tolist()
    [0.5, nan]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(np.asarray(below) > 0, np.divide(above, below), np.nan)
    return found if found.ndim else float(found)


def _resampled(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    within: np.ndarray,
    between: np.ndarray,
    resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The ratio in every resample."""
    drawn = [_stratified(labels, resamples, rng) for labels in (rows, columns)]
    one, other = (reduced(np.where(chosen, values, np.nan), "median", None, *drawn) for chosen in (between, within))
    found: np.ndarray = quotient(one, other)
    return found


def _stratified(labels: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """How often each example is in a resample that has as many of every class, [r, n]."""
    counts = np.zeros((resamples, len(labels)))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        chosen = rng.integers(len(members), size=(resamples, len(members)))
        for i in range(resamples):
            counts[i, members] = np.bincount(chosen[i], minlength=len(members))
    return counts


def _permuted(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    square: bool,
    apart: np.ndarray,
    rng: np.random.Generator,
) -> float:
    """The ratio where classes are dealt out at random; an example keeps one class as a source and as a target."""
    order = rng.permutation(len(columns))
    columns = columns[order]
    same = (columns if square else rows)[:, None] == columns
    within, between = within_and_between(values, same, apart)
    return float(quotient(between, within))
