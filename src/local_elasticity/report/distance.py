"""Similarity against the distance of the examples themselves: are near examples moved, or kindred ones?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from local_elasticity.report.examples import numbers
from local_elasticity.report.run import Run

PAIRS_SHOWN = 3000
"""Points in the scatter; the correlations are of all pairs."""


@dataclass(frozen=True)
class Scatter:
    """Pairs drawn at random: rows, columns and distances [points]; and rank correlations over all pairs, by measure."""

    rows: np.ndarray
    columns: np.ndarray
    distances: np.ndarray
    correlations: tuple[float | None, ...]


def scatter(run: Run) -> Scatter | None:
    """Distances are Euclidean, between pictures as they are shown (brightness from 0 to 1) or vectors; None without."""
    if run.sources.examples is None or run.targets.examples is None:
        return None
    x, x2 = numbers(run.sources.examples), numbers(run.targets.examples)
    if x is None or x2 is None or x.shape[1] != x2.shape[1]:
        return None
    squares = (x**2).sum(1)[:, None] + (x2**2).sum(1) - 2 * x @ x2.T
    apart = np.sqrt(np.maximum(squares, 0))
    counted = ~np.eye(len(x), dtype=bool) if run.square else np.ones(apart.shape, dtype=bool)
    rows, columns = np.nonzero(counted)
    if not len(rows):
        return None
    drawn = np.random.default_rng(0).permutation(len(rows))[:PAIRS_SHOWN]
    correlations = tuple(rank_correlation(apart[counted], panel.values[-1][counted]) for panel in run.panels)
    return Scatter(rows[drawn], columns[drawn], apart[rows[drawn], columns[drawn]], correlations)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's ρ over the pairs that are known; None where either does not vary.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([9.0, 4.0, 1.0]))
    -1.0
    """
    from scipy.stats import rankdata

    known = np.isfinite(a) & np.isfinite(b)
    if known.sum() < 3 or np.ptp(a[known]) == 0 or np.ptp(b[known]) == 0:
        return None
    return round(float(np.corrcoef(rankdata(a[known]), rankdata(b[known]))[0, 1]), 4)
