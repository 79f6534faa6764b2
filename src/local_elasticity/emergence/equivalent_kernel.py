"""Retrieval as theory has it: the nearest neighbour in the kernel to which the features' one is equivalent."""

from __future__ import annotations

import torch
from torch import Tensor

from local_elasticity.emergence.activation import Moments
from local_elasticity.emergence.checks import check_finite, checked_labels
from local_elasticity.emergence.retrieval import recall_of_rows
from local_elasticity.shapes import Float


def equivalent_kernel(
    x: Float[Tensor, "n d"], other: Float[Tensor, "m d"], beta: Float[Tensor, " d"], *, gamma: float, moments: Moments
) -> Float[Tensor, "n m"]:
    """K = c₁² x·x′/d + 2c₂²(x·x′/d)² + γ²c₁² b b′ + 3γ⁴c₂² b²b′², b = βᵀx: what FFᵀ/N amounts to ([I]).

    The first two terms are the random features', the last two the spike's.

    >>> from local_elasticity.emergence.activation import ACTIVATIONS
    >>> x = torch.eye(2, dtype=torch.float64)
    >>> equivalent_kernel(x, x, x[0], gamma=1.0, moments=ACTIVATIONS["linear"].moments()).round(decimals=9).tolist()
    [[1.5, 0.0], [0.0, 0.5]]
    """
    cosine = x @ other.T / x.shape[1]
    spikes = torch.outer(x @ beta, other @ beta)
    c1, c2 = moments.c1**2, moments.c2**2
    return c1 * cosine + 2 * c2 * cosine**2 + gamma**2 * c1 * spikes + 3 * gamma**4 * c2 * spikes**2


def equivalent_recall(
    x: Float[Tensor, "n d"], labels: Tensor, beta: Float[Tensor, " d"], *, gamma: float, moments: Moments, k: int = 1
) -> float:
    """Recall@k in the equivalent kernel, normalised as cosine retrieval normalises features: on the diagonal the first
    two terms are E σ², since what of σ lies beyond c₁ and c₂ makes a row like itself and like no other.

    >>> from local_elasticity.emergence.activation import ACTIVATIONS
    >>> x = torch.tensor([[2.0, 0.1], [2.0, -0.2], [-2.0, 0.1], [-2.0, 0.3]], dtype=torch.float64)
    >>> linear = ACTIVATIONS["linear"].moments()
    >>> equivalent_recall(x, torch.tensor([0, 0, 1, 1]), x[0], gamma=1.0, moments=linear)
    1.0
    """
    check_finite("x", x)
    classes = checked_labels(labels, len(x))
    size = x.square().sum(1) / x.shape[1]
    spike = gamma**2 * (x @ beta).square()
    own = moments.square * size + moments.c1**2 * spike + 3 * moments.c2**2 * spike**2
    root = own.sqrt()

    def rows(chosen: Tensor) -> Tensor:
        K = equivalent_kernel(x[chosen], x, beta, gamma=gamma, moments=moments)
        return K / root[chosen, None] / root

    return recall_of_rows(rows, classes, k=k, tolerance=torch.finfo(x.dtype).eps)
