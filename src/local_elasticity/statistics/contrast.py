"""Pairs of one class against pairs of different classes, by their difference: for measures with signs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from local_elasticity.statistics.bootstrap import quantiles
from local_elasticity.statistics.class_blocks import ClassBlocks
from local_elasticity.statistics.class_pairs import ReadPairs
from local_elasticity.statistics.locality import SIGNIFICANT, pairs_by_class, pooled, within_and_between


@dataclass(frozen=True)
class Contrast:
    """Medians within and between classes, and what classes explain of them.

    Attributes:
        within, between: medians over pairs of one class, and of different classes.
        below_within, below_between: the shares of those pairs that are below 0.
        difference: the mean over two classes of the medians within them minus the medians between them.
        low, high: its bootstrap interval; sources and targets are resampled within their classes.
        p_value: how often permuted classes have a difference as large in absolute value.
        p_floor: the smallest p-value that so many permutations allow.
    """

    within: float
    between: float
    below_within: float
    below_between: float
    difference: float
    low: float
    high: float
    p_value: float
    p_floor: float

    @property
    def found(self) -> bool:
        """Whether classes explain some of the differences between pairs."""
        return self.p_value < SIGNIFICANT and not self.low <= 0 <= self.high


def contrast(
    read: ReadPairs, *, level: float = 0.95, resamples: int = 200, permutations: int = 199, seed: int = 0
) -> Contrast:
    """Compare pairs of one class with pairs of different classes; differences, so values may have signs.

    >>> rng, classes = np.random.default_rng(0), np.arange(40) % 4
    >>> same = classes[:, None] == classes
    >>> contrast((rng.normal(size=(40, 40)) + same, classes, classes, None, True)).found
    True
    >>> contrast((rng.normal(size=(40, 40)), classes, classes, None, True)).found
    False
    """
    values, rows, columns, square = pooled(read)
    rng = np.random.default_rng(seed)
    within, between = within_and_between(values, rows, columns, square=square)[:, 1]
    inside, outside = (_below(values[chosen]) for chosen in pairs_by_class(rows, columns, square))
    some = ClassBlocks.of(values, rows, columns, square, rng, logarithms=False)
    difference = _difference(some.medians(some.rows, some.columns))
    low = high = p_value = float("nan")
    if np.isfinite(difference):
        low, high = quantiles(np.array([_difference(one) for one in some.resampled(resamples, rng)]), level)
        by_chance = np.abs([_difference(one) for one in some.permuted(permutations, rng)])
        p_value = float((1 + (by_chance >= abs(difference)).sum()) / (1 + permutations))
    return Contrast(
        float(within), float(between), inside, outside, difference, low, high, p_value, 1 / (1 + permutations)
    )


def _difference(medians: np.ndarray) -> float:
    """The mean over classes a ≠ b of (m_aa + m_bb − m_ab − m_ba) / 2, which how far a class moves cancels in."""
    own = np.diagonal(medians)
    found = (own[:, None] + own - medians - medians.T)[np.triu_indices(len(medians), 1)] / 2
    found = found[np.isfinite(found)]
    return float(found.mean()) if len(found) else float("nan")


def _below(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float((known < 0).mean()) if len(known) else float("nan")
