"""A map of the examples: those that a step moves alike lie close, and those in a wrong cluster are marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from local_elasticity.report.run import in_order, shown


@dataclass(frozen=True)
class Places:
    """Where each example lies, [n, 2], and the share of the squared similarity that the two directions hold."""

    points: np.ndarray
    share: float


@dataclass(frozen=True)
class Matched:
    """Clusters named after classes in the best way: the class of each cluster, which examples are wrong, [n], and the
    share that is right.
    """

    names: dict[str, str]
    wrong: np.ndarray
    accuracy: float


def principal_places(S: np.ndarray) -> Places | None:
    """The first two principal coordinates of a square similarity: eigenvectors of the symmetrised, centred matrix.

    What is larger than the 98th percentile counts as that, so that a few extreme pairs do not make the map.

    >>> places = principal_places(np.kron(np.eye(2), np.ones((2, 2))))
    >>> bool(places.points[0, 0] * places.points[3, 0] < 0), round(places.share, 3)
    (True, 1.0)
    """
    known = np.isfinite(S)
    if S.shape[0] != S.shape[1] or len(S) < 3 or not known.any():
        return None
    top = np.quantile(np.abs(S[known]), 0.98)
    filled = np.clip(np.where(known, S, np.median(S[known])), -top, top).astype(np.float64)
    both = (filled + filled.T) / 2
    centred = both - both.mean(0) - both.mean(1)[:, None] + both.mean()
    values, vectors = np.linalg.eigh(centred)
    first = np.argsort(-np.abs(values))[:2]
    total = float((values**2).sum())
    points = vectors[:, first] * np.sqrt(np.abs(values[first]))
    return Places(points * np.sign(points.sum(0) + 1e-30), float((values[first] ** 2).sum() / total) if total else 0.0)


def matched(clusters: Sequence[object], classes: Sequence[object]) -> Matched:
    """One class for each cluster, by Hungarian matching; clusters beyond the classes are wrong altogether.

    >>> match = matched([0, 0, 1, 1, 1], ["a", "a", "b", "b", "a"])
    >>> match.names, match.wrong.tolist(), match.accuracy
    ({'0': 'a', '1': 'b'}, [False, False, False, False, True], 0.8)
    """
    from scipy.optimize import linear_sum_assignment

    of_cluster, of_class = [shown(one) for one in clusters], [shown(one) for one in classes]
    rows, columns = in_order(of_cluster), in_order(of_class)
    table = np.zeros((len(rows), len(columns)))
    for a, b in zip(of_cluster, of_class, strict=True):
        table[rows.index(a), columns.index(b)] += 1
    names = {rows[i]: columns[j] for i, j in zip(*linear_sum_assignment(table, maximize=True), strict=True)}
    wrong = np.array([names.get(a) != b for a, b in zip(of_cluster, of_class, strict=True)])
    return Matched(names, wrong, float(1 - wrong.mean()))
