"""Class pairs word for word: every resample written out, pair by pair."""

import numpy as np


def interval(block, reduce, weight, rng, resamples, level=0.95, square=False):
    """(value, low, high) of one pair of classes; sources and targets are drawn with replacement, once for
    both where they are the same examples."""
    n, m = block.shape
    found = []
    for _ in range(resamples):
        i = rng.integers(n, size=n)
        j = i if square else rng.integers(m, size=m)
        found.append(reduced(block[np.ix_(i, j)], reduce, weight[i]))
    return reduced(block, reduce, weight), *np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])


def reduced(block, reduce, weight):
    known = np.isfinite(block)
    values = np.sort(block[known])
    if len(values) == 0:
        return np.nan
    if reduce == "ratio_of_sums":
        weights = np.broadcast_to(weight[:, None], block.shape)[known]
        return (block[known] * weights).sum() / weights.sum()
    cut = int(0.1 * len(values))
    trimmed = values[cut : len(values) - cut]
    return {"median": np.median(values), "mean": values.mean(), "trimmed": trimmed.mean()}[reduce]
