"""The operator norm of non-centred sub-Gaussian matrices X = y vᵀ + Ξ, and its bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from local_elasticity.checks import check_not_negative, check_positive
from local_elasticity.emergence.checks import check_finite

CONSTANT = 1.1
"""C in the bound, for noise of unit covariance."""


def operator_norm(X: Tensor) -> float:
    """The largest singular value, from the smaller of XᵀX and XXᵀ in float64.

    >>> operator_norm(torch.ones(4, 9))
    6.0
    """
    check_finite("X", X)
    X = X.double()
    gram = X @ X.T if X.shape[0] < X.shape[1] else X.T @ X
    return math.sqrt(max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0))


def operator_norm_bound(n: int, d: int, mean_norm: float, *, constant: float = CONSTANT) -> float:
    """‖X‖ ≤ √n ‖v‖ + C(√n + √d) for X = y vᵀ + Ξ, [n, d], labels ±1, rows of Ξ sub-Gaussian of unit covariance.

    The first term is the mean's. Without it the bound is false: the all-ones matrix is all mean.

    >>> operator_norm_bound(100, 100, 1.0)
    32.0
    >>> operator_norm(torch.ones(100, 100)) > operator_norm_bound(100, 100, 0.0)
    True
    """
    if n < 1 or d < 1:
        raise ValueError(f"n, d: expected both to be at least 1, got {n} and {d}")
    check_not_negative("mean_norm", mean_norm)
    check_positive("constant", constant)
    return math.sqrt(n) * mean_norm + constant * (math.sqrt(n) + math.sqrt(d))
