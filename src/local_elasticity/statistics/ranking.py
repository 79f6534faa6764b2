"""How well a score ranks what happened above what did not."""

from __future__ import annotations

import numpy as np

from local_elasticity.statistics.bootstrap import quantiles


def auroc(score: np.ndarray, happened: np.ndarray) -> float:
    """The probability that something that happened has a larger score than something that did not, ties counted half;
    NaN where all or none happened.

    >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    from scipy.stats import rankdata

    happened = np.asarray(happened, dtype=bool)
    yes, no = int(happened.sum()), int((~happened).sum())
    if not yes or not no:
        return float("nan")
    ranks = rankdata(np.asarray(score, dtype=float))
    return float((ranks[happened].sum() - yes * (yes + 1) / 2) / (yes * no))


def auroc_interval(
    score: np.ndarray, happened: np.ndarray, *, level: float = 0.95, resamples: int = 200, seed: int = 0
) -> tuple[float, float]:
    """A bootstrap interval of the AUROC; examples are resampled.

    >>> low, high = auroc_interval(np.arange(40.0), np.arange(40) % 3 == 0)
    >>> 0 < low < auroc(np.arange(40.0), np.arange(40) % 3 == 0) < high < 1
    True
    """
    rng, n = np.random.default_rng(seed), len(score)
    drawn = [rng.integers(n, size=n) for _ in range(resamples)] if n else []
    return quantiles(np.array([auroc(score[rows], happened[rows]) for rows in drawn]), level)
