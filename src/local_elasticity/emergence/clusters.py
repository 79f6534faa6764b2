"""K-means on the features of classes never trained on, against their true classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from local_elasticity.emergence.checks import checked_features, checked_labels
from local_elasticity.emergence.features import Batches, gathered


@dataclass(frozen=True)
class ClusterAgreement:
    """How clusters agree with classes: accuracy under the best matching, and normalised mutual information."""

    accuracy: float
    nmi: float


def cluster_agreement(
    features: Tensor | Batches, labels: Tensor | None = None, *, seed: int = 0, starts: int = 4
) -> ClusterAgreement:
    """K-means with as many clusters as there are classes: accuracy (Hungarian matching) and NMI.

    Constant features make one cluster: accuracy is the largest class's share and NMI 0. One class alone is an error.

    >>> import torch
    >>> F = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
    >>> cluster_agreement(F, torch.tensor([7, 7, 3, 3]))
    ClusterAgreement(accuracy=1.0, nmi=1.0)
    """
    features, labels = gathered(features, labels)
    rows = checked_features("features", features)
    classes = checked_labels(labels, len(rows)).cpu().numpy()
    names, truth = np.unique(classes, return_inverse=True)
    if len(names) < 2:
        raise ValueError("labels: expected two classes or more, got one")
    found = _clusters(rows.cpu().numpy(), len(names), seed, starts)
    return ClusterAgreement(_accuracy(truth, found, len(names)), _nmi(truth, found))


def _clusters(rows: np.ndarray, count: int, seed: int, starts: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    if len(np.unique(rows[: count * 50], axis=0)) == 1 and (rows == rows[0]).all():
        return np.zeros(len(rows), dtype=int)
    return KMeans(count, n_init=starts, random_state=seed).fit_predict(rows)


def _accuracy(truth: np.ndarray, found: np.ndarray, count: int) -> float:
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((count, count))
    np.add.at(table, (truth, found), 1)
    matched = linear_sum_assignment(table, maximize=True)
    return float(table[matched].sum() / len(truth))


def _nmi(truth: np.ndarray, found: np.ndarray) -> float:
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(truth, found))
