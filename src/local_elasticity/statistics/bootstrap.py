"""The bootstrap of a matrix of pairs. Sources and targets are resampled: pairs that share one are not independent.

A resample is not written out. It is how often it drew each source and target, so that its sums are products of
matrices, and its median or trimmed mean asks one by one only the pairs near the ranks where it begins and ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Literal

import numpy as np

Reduction = Literal["median", "mean", "trimmed", "ratio_of_sums"]
REDUCTIONS = ("median", "mean", "trimmed", "ratio_of_sums")

TRIMMED_SHARE = 0.1
"""`trimmed` leaves out this share of the pairs at either end."""

NUMBERS_AT_ONCE = 10**5
"""Counts of resampled pairs that are held at a time."""


def draws(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    resamples: int,
    *,
    square: bool = False,
    classes: tuple[np.ndarray, np.ndarray] | None = None,
) -> list[np.ndarray]:
    """How often each source, [r, n], and each target, [r, m], is in a resample; the first one has all of them once.
    With `classes`, those of the sources and of the targets, every resample has as many of each class.
    """
    rows, columns = classes or [np.zeros(size) for size in shape]
    drawn: list[list[np.ndarray]] = [[np.ones(size)] for size in shape]
    for places in redrawn(rng, rows, columns, resamples, square=square):
        for counts, chosen in zip(drawn, places, strict=True):
            counts.append(np.bincount(chosen, minlength=len(chosen)))
    return [np.array(counts, dtype=float) for counts in drawn]


def redrawn(
    rng: np.random.Generator, rows: np.ndarray, columns: np.ndarray, resamples: int, *, square: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The places of the sources and of the targets in every resample, drawn with replacement within their classes.

    In the square case the targets are the sources: an example is drawn once for both sides. Drawn for each side alone,
    intervals would be too narrow where examples that move others far are moved far themselves.

    >>> classes = np.array(["a", "a", "b"])
    >>> [(i, j)] = redrawn(np.random.default_rng(0), classes, classes, 1, square=True)
    >>> bool((i == j).all()), classes[i].tolist()
    (True, ['a', 'a', 'b'])
    """
    sides = [_members(one) for one in ((rows,) if square else (rows, columns))]
    for _ in range(resamples):
        places = [np.empty(sum(map(len, side)), dtype=int) for side in sides]
        for chosen, side in zip(places, sides, strict=True):
            for members in side:
                chosen[members] = members[rng.integers(len(members), size=len(members))]
        yield places[0], places[-1]


def _members(classes: np.ndarray) -> list[np.ndarray]:
    """The places of every class, in the order in which classes appear, so that their names do not matter."""
    found, first = np.unique(classes, return_index=True)
    return [np.flatnonzero(classes == found[at]) for at in np.argsort(first)]


def reduced(
    block: np.ndarray, reduce: Reduction, weight: np.ndarray | None, sources: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """The reduction in every resample, [r]; NaN where it has no pair with a value."""
    if reduce in ("median", "trimmed"):
        return middle(block, 0.5 if reduce == "median" else TRIMMED_SHARE, sources, targets)
    known = np.isfinite(block)
    if reduce == "ratio_of_sums":
        assert weight is not None
        sources = sources * np.where(known.any(1), weight, 0.0)
    above = _sums(np.where(known, block, 0).astype(float), sources, targets)
    return _ratio(above, _sums(known, sources, targets))


def _sums(values: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Σ of values over the pairs of every resample, [r]."""
    return ((sources @ values) * targets).sum(1)


def middle(block: np.ndarray, share: float, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The mean without a share of the pairs at either end, in every resample; at a half, the median.

    Pairs are asked one by one only near the two ranks where a resample begins and ends to keep them; of those between,
    sums will do.
    """
    known = np.sort(block[np.isfinite(block)])
    if not len(known):
        return np.full(len(sources), np.nan)
    total = _sums(np.isfinite(block), sources, targets)
    cut = np.minimum(np.floor(share * total), (total - 1) // 2).clip(0)
    low, start, below = _around(share, cut, block, known, sources, targets)
    end, high, under = _around(1 - share, total - cut, block, known, sources, targets)
    kept = partial(_kept, block, (cut, total - cut), sources, targets)
    if start >= end:
        return _ratio(kept(low, high, below), total - 2 * cut)
    between = np.where((block > start) & (block < end), block, 0).astype(float)
    inside = kept(low, start, below) + _sums(between, sources, targets) + kept(end, high, under)
    return _ratio(inside, total - 2 * cut)


def _around(
    level: float, rank: np.ndarray, block: np.ndarray, known: np.ndarray, sources: np.ndarray, targets: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """A range of values about a level, widened until every resample's pair of that rank is in it, and how many are
    below it, [r]. It begins with two standard errors of the level, were all targets or all sources alike.
    """
    margin = 2 * math.sqrt(level * (1 - level) * sum(1 / size for size in block.shape))
    while True:
        low, high = np.quantile(known, np.clip([level - margin, level + margin], 0, 1), method="nearest")
        below, upto = (_sums(part, sources, targets) for part in (block < low, block <= high))
        if ((below <= rank) & (upto >= rank)).all():
            return low, high, below
        margin *= 2


def _kept(
    block: np.ndarray,
    ranks: tuple[np.ndarray, np.ndarray],
    sources: np.ndarray,
    targets: np.ndarray,
    low: float,
    high: float,
    below: np.ndarray,
) -> np.ndarray:
    """Σ of the values from low to high over those pairs of every resample that are between two ranks, [r]."""
    i, j = np.nonzero((block >= low) & (block <= high))
    order = np.argsort(block[i, j])
    i, j = i[order], j[order]
    values = block[i, j].astype(float)
    first, last = ranks
    sums = np.zeros_like(below)
    sources, targets = np.ascontiguousarray(sources.T), np.ascontiguousarray(targets.T)
    at_once = max(1, NUMBERS_AT_ONCE // len(below))
    for start in range(0, len(values), at_once):
        some = slice(start, start + at_once)
        counts = sources[i[some]] * targets[j[some]]
        upto = below + counts.sum(0)
        whole = (first <= below) & (upto <= last)
        part = np.flatnonzero(~whole & (first < upto) & (below < last))
        sums += np.where(whole, values[some] @ counts, 0)
        reached = np.vstack([below[part], counts[:, part]]).cumsum(0).clip(first[part], last[part])
        sums[part] += values[some] @ np.diff(reached, axis=0)
        below = upto
    return sums


def median_interval(values: np.ndarray, *, level: float, resamples: int, seed: int) -> tuple[float, float, float]:
    """The median of some units, NaN left out, and its percentile interval.

    >>> median_interval(np.array([3.0, 3.0, np.nan]), level=0.95, resamples=10, seed=0)
    (3.0, 3.0, 3.0)
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return np.nan, np.nan, np.nan
    drawn = np.random.default_rng(seed).choice(known, (resamples, len(known)))
    return float(np.median(known)), *quantiles(np.median(drawn, axis=1), level)


def quantiles(found: np.ndarray, level: float) -> tuple[float, float]:
    if not np.isfinite(found).any():
        return np.nan, np.nan
    low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """NaN where there is nothing to divide by."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
