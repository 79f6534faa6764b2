"""Train–unseen similarity: how a class never trained on lies to what a task teaches, before anything is trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from local_elasticity.emergence.checks import checked_features
from local_elasticity.emergence.features import Batches, gathered


def train_unseen_similarity(X: Tensor | Batches, y: Tensor | None, unseen: Tensor | Batches) -> float:
    """s = βᵀμ, β = Cov(x, y) of the training data, μ the mean of the unseen class.

    For labels of two values it has a sign: the side of the task's boundary on which the class lies. For whole-number
    labels of more than two classes it is √2 ‖Cov(x, onehot y)ᵀ(μ − E x)‖, which for two balanced classes ±1 around a
    centred x is |βᵀμ| (our own extension; the paper has two classes).

    Args:
        X: training inputs, or features of them, [n, d], or a `FeatureStream`; centre the data around the mean of the
            whole domain first.
        y: labels, [n], None for a stream; classes may differ in size. One class alone is an error.
        unseen: rows of one class that was not trained on, [m, d], or a `FeatureStream`; one row will do.

    >>> X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> train_unseen_similarity(X, torch.tensor([1, -1]), torch.tensor([[2.0, 5.0]]))
    2.0
    """
    B, centre = task_covariance(X, y)
    mean = _rows("unseen", unseen).mean(0)
    if B.shape[1] == 1:
        return float(B[:, 0] @ mean)
    return math.sqrt(2) * float((B.T @ (mean - centre)).norm())


def train_unseen_second_moment(X: Tensor | Batches, y: Tensor | None, unseen: Tensor | Batches) -> float:
    """E b² over the rows of the unseen class, b = βᵀx: s² + βᵀΣβ, which elasticity follows where classes are wide.

    >>> X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> train_unseen_second_moment(X, torch.tensor([1, -1]), torch.tensor([[2.0, 5.0], [0.0, 1.0]]))
    2.0
    """
    B, centre = task_covariance(X, y)
    rows = _rows("unseen", unseen)
    if B.shape[1] == 1:
        return float((rows @ B).square().mean())
    return 2 * float(((rows - centre) @ B).square().sum(1).mean())


def task_covariance(X: Tensor | Batches, y: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cov(x, y) as [d, 1] for labels of two values, Cov(x, onehot y) as [d, K] for K > 2 classes; and the mean of X."""
    X, y = gathered(X, y, name="X", labels_name="y")
    rows = checked_features("X", X)
    if y.shape != rows.shape[:1]:
        raise ValueError(f"y: expected one label for each of the {len(rows)} rows of X, got shape {tuple(y.shape)}")
    names = y.unique()
    if len(names) < 2:
        raise ValueError("y: expected two classes or more, got one")
    if len(names) == 2:
        targets = torch.where(y == names[1], 1.0, -1.0).double()[:, None]
    elif y.is_floating_point():
        raise ValueError("y: labels of more than two classes must be whole numbers")
    else:
        targets = (y[:, None] == names).double()
    centred = targets.to(rows.device) - targets.mean(0).to(rows.device)
    return (rows - rows.mean(0)).T @ centred / len(rows), rows.mean(0)


def _rows(name: str, features: Tensor | Batches) -> Tensor:
    """[n, d] in float64; the labels of a stream are not looked at."""
    return checked_features(name, features if isinstance(features, Tensor) else gathered(features, None, name=name)[0])
