"""How far a clustering agrees with known classes, whatever the clusters are called."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.utils.validation import check_consistent_length, column_or_1d


def best_match_accuracy(labels: ArrayLike, truth: ArrayLike) -> float:
    """The share of points that are right once clusters are named after classes in the best way (Hungarian matching).

    Any number of clusters and classes: one cluster for each class and one class for each cluster, the rest are wrong.

    Args:
        labels: the clusters, [n].
        truth: the classes, [n].

    Returns:
        A share between 0 and 1.

    Raises:
        ValueError: if there are no points, or the two differ in length.

    >>> best_match_accuracy([1, 1, 0, 0, 0], ["cat", "cat", "dog", "dog", "cat"])
    0.8
    """
    table = _table(labels, truth)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())


def agreement(labels: ArrayLike, truth: ArrayLike) -> dict[str, float]:
    """Best-match accuracy, adjusted Rand index and normalised mutual information by name.

    Args:
        labels: the clusters, [n].
        truth: the classes, [n].

    Returns:
        `accuracy`, `ari` and `nmi` by name; 1 for the same partition.

    Raises:
        ValueError: if there are no points, or the two differ in length.

    >>> agreement([1, 1, 0, 0], [0, 0, 1, 1])
    {'accuracy': 1.0, 'ari': 1.0, 'nmi': 1.0}
    """
    accuracy = best_match_accuracy(labels, truth)
    return {
        "accuracy": accuracy,
        "ari": float(adjusted_rand_score(truth, labels)),
        "nmi": float(normalized_mutual_info_score(truth, labels)),
    }


def _table(labels: ArrayLike, truth: ArrayLike) -> np.ndarray:
    """How many points of each class [rows] are in each cluster [columns]."""
    clusters, classes = np.asarray(column_or_1d(labels)), np.asarray(column_or_1d(truth))
    check_consistent_length(clusters, classes)
    if not len(clusters):
        raise ValueError("labels: expected at least one point, got none")
    return np.asarray(contingency_matrix(classes, clusters))
