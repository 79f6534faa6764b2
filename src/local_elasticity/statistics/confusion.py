"""Which classes a network confuses, and whether it confuses those that a step couples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from local_elasticity.statistics.correlation import spearman


@dataclass(frozen=True)
class Agreement:
    """The rank correlation of confusions with similarities, over pairs of different classes.

    Attributes:
        correlation: Spearman's, of the share of class a that is predicted as b with the median similarity of sources of
            b and targets of a; NaN where nothing is confused or fewer than three pairs are known.
        p_value: how often permuted classes have one as large in absolute value.
        p_floor: the smallest p-value that so many permutations allow.
        pairs: how many pairs of classes entered.
    """

    correlation: float
    p_value: float
    p_floor: float
    pairs: int


def confusion(classes: Sequence[str], labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """How many examples of each class (rows) are predicted as each class (columns); other predictions are left out.

    >>> confusion(["a", "b"], np.array(["a", "a", "b"]), np.array(["a", "b", "b"])).tolist()
    [[1, 1], [0, 1]]
    """
    return np.array([[int(((labels == a) & (predictions == b)).sum()) for b in classes] for a in classes])


def rank_agreement(counts: np.ndarray, medians: np.ndarray, *, permutations: int = 199, seed: int = 0) -> Agreement:
    """Compare a confusion matrix [a, predicted b] with medians by class [source b, target a] (a Mantel test).

    >>> medians = np.exp(np.random.default_rng(0).normal(size=(8, 8)))
    >>> found = rank_agreement(np.round(20 * medians.T), medians)
    >>> found.correlation > 0.9, found.p_value, found.pairs
    (True, 0.005, 56)
    """
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(1, keepdims=True)
    moved = np.asarray(medians).T
    others = ~np.eye(len(shares), dtype=bool)
    known = int((np.isfinite(shares) & np.isfinite(moved) & others).sum())
    found = spearman(shares[others], moved[others])
    floor = 1 / (1 + permutations)
    if not np.isfinite(found):
        return Agreement(found, float("nan"), floor, known)
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(shares)) for _ in range(permutations)]
    by_chance = np.abs([spearman(shares[np.ix_(one, one)][others], moved[others]) for one in orders])
    return Agreement(found, float((1 + (by_chance >= abs(found)).sum()) * floor), floor, known)
