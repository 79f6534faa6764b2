"""Similarity against the distance of the examples themselves: does a step move near examples, or those of its class?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from local_elasticity.report.examples import as_given
from local_elasticity.report.run import Run
from local_elasticity.statistics.correlation import spearman

PAIRS_SHOWN = 3000
"""Points in the scatter; the correlations are of all pairs."""

MOST_PAIRS = 4_000_000
"""Distances that travel with a similarity; of more pairs none are kept."""

AT_ONCE = 4096
"""Numbers of an example that are looked at together."""


@dataclass(frozen=True)
class Scatter:
    """Pairs drawn at random: rows, columns and distances, [points]."""

    rows: np.ndarray
    columns: np.ndarray
    distances: np.ndarray


def distances(sources: Any, targets: Any) -> np.ndarray | None:
    """Euclidean distances between examples as they were given, [n, m]; None for texts, where shapes differ, or where
    there are more than MOST_PAIRS; NaN where numbers are not finite or too large.

    >>> distances(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[5.0, 0.0]]
    """
    x, x2 = as_given(sources), as_given(targets)
    if x.dtype.kind not in "biuf" or x2.dtype.kind not in "biuf" or x.shape[1:] != x2.shape[1:]:
        return None
    if not x.size or not x2.size or len(x) * len(x2) > MOST_PAIRS:
        return None
    x, x2 = x.reshape(len(x), -1), x2.reshape(len(x2), -1)
    squares = np.zeros((len(x), len(x2)))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, x.shape[1], AT_ONCE):
            a, b = (one[:, start : start + AT_ONCE].astype(np.float64) for one in (x, x2))
            middle = a.mean(0)
            a, b = a - middle, b - middle
            squares += (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
        apart = np.sqrt(np.maximum(squares, 0)).astype(np.float32)
    return np.where(np.isfinite(apart), apart, np.float32(np.nan))


def dots(run: Run) -> Scatter | None:
    """Pairs to draw, where the run knows the distances of its examples."""
    if run.apart is None:
        return None
    rows, columns = np.nonzero(_counted(run))
    if not len(rows):
        return None
    drawn = np.random.default_rng(0).permutation(len(rows))[:PAIRS_SHOWN]
    return Scatter(rows[drawn], columns[drawn], run.apart[rows[drawn], columns[drawn]])


def distance_correlation(run: Run, values: np.ndarray) -> float | None:
    """The rank correlation of distance and similarity over all pairs; None where distances are not known."""
    if run.apart is None:
        return None
    counted = _counted(run)
    return rank_correlation(run.apart[counted], values[counted])


def _counted(run: Run) -> np.ndarray:
    """Which pairs count: not an example with itself."""
    assert run.apart is not None
    return ~np.eye(len(run.apart), dtype=bool) if run.square else np.ones(run.apart.shape, dtype=bool)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's ρ over the pairs that are known; None where either does not vary.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([9.0, 4.0, 1.0]))
    -1.0
    """
    found = spearman(a, b)
    return None if np.isnan(found) else round(found, 4)
