"""Two matrices of the same pairs, compared pair by pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from local_elasticity.statistics.bootstrap import draws, quantiles, reduced


@dataclass(frozen=True)
class Comparison:
    """The median difference over pairs, a bootstrap interval, and a test of no difference.

    Attributes:
        difference: the median of one − other over the pairs that have a value in both.
        low, high: its interval; sources and targets are resampled.
        p_value: how often signs that are flipped at random, one for each source, give a mean difference as large.
        pairs: how many pairs entered.
    """

    difference: float
    low: float
    high: float
    p_value: float
    pairs: int


def compared(
    one: np.ndarray, other: np.ndarray, *, level: float = 0.95, resamples: int = 200, flips: int = 999, seed: int = 0
) -> Comparison:
    """Compare two matrices [n, m] of the same sources and targets.

    A source is the unit of the test, since its pairs share one step: per source the median difference over its targets,
    whose signs are exchangeable where neither matrix is larger.

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
    units = np.nanmedian(difference[known.any(1)], axis=1)
    signs = rng.choice([-1.0, 1.0], size=(flips, len(units)))
    reached = int((np.abs(signs @ units) >= abs(units.sum()) * (1 - 1e-12)).sum())
    return Comparison(float(found[0]), low, high, (1 + reached) / (1 + flips), int(known.sum()))
