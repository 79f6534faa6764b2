"""One full-batch step on the two-layer model: the gradient, its rank-one part, and the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from local_elasticity.checks import check_positive
from local_elasticity.emergence.checks import check_finite
from local_elasticity.emergence.operator_norm import operator_norm
from local_elasticity.emergence.two_layer import TwoLayer
from local_elasticity.shapes import Float

BALANCE = 1e-6
"""How far the mean of the labels may lie from 0."""


@dataclass(frozen=True)
class Norms:
    """The largest singular value of a matrix, and the root of the sum of all their squares."""

    operator: float
    frobenius: float

    @classmethod
    def of(cls, matrix: Tensor) -> Norms:
        return cls(operator_norm(matrix), float(torch.linalg.matrix_norm(matrix.double())))


@dataclass(frozen=True)
class Step:
    """What one step did.

    Attributes:
        before, after: the network at W₀ and at W₁ = W₀ + η √N G.
        step_size: η.
        gradient: √N G, G = −∂L/∂W, [N, d].
        beta: β = Cov(x, y), [d].
        rank_one: c₁ a βᵀ, [N, d].
    """

    before: TwoLayer
    after: TwoLayer
    step_size: float
    gradient: Float[Tensor, "N d"]
    beta: Float[Tensor, " d"]
    rank_one: Float[Tensor, "N d"]

    @property
    def rest(self) -> Float[Tensor, "N d"]:
        """What the gradient has outside its rank-one part: its operator norm vanishes, its Frobenius share does not."""
        return self.gradient - self.rank_one

    @property
    def norms(self) -> dict[str, Norms]:
        """Operator and Frobenius norm of the gradient, the rank-one part and the rest."""
        parts = {"gradient": self.gradient, "rank_one": self.rank_one, "rest": self.rest}
        return {name: Norms.of(matrix) for name, matrix in parts.items()}


def one_step(
    network: TwoLayer, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], step_size: float | None = None
) -> Step:
    """One full-batch step on L = 1/(2n) Σ (y − f(x))², in W alone.

    W₁ = W₀ + η √N G, √N G = (1/n) Σ_j (y_j − f(x_j)) (a ⊙ σ′(W₀x_j)) x_jᵀ ≈ c₁ a βᵀ, c₁ = E σ′(z).

    Args:
        network: where the step begins; it is not changed.
        X: training inputs, [n, d]; d > n is fine.
        y: labels, [n], real, with mean 0: ±1 for two classes of the same size. For classes of different sizes pass
            y − y.mean(); labels that are all alike are an error, since nothing varies with them.
        step_size: η > 0; √n by default (`usual_step_size`).

    >>> network = TwoLayer.random(inputs=64, width=128)
    >>> X = torch.randn(128, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    >>> y = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(64)
    >>> X[:, 0] += 2 * y
    >>> step = one_step(network, X, y)
    >>> step.norms["rest"].operator < step.norms["rank_one"].operator
    True
    """
    X, y = _checked(network, X, y)
    n = len(X)
    step_size = usual_step_size(n) if step_size is None else step_size
    check_positive("step_size", step_size)
    pre = X @ network.W.T
    outputs = network.activation.function(pre) @ network.a / math.sqrt(network.width)
    slopes = network.activation.derivative(pre) * (y - outputs)[:, None]
    gradient = network.a[:, None] * (slopes.T @ X) / n
    beta = train_covariance(X, y)
    rank_one = network.activation.moments().c1 * torch.outer(network.a, beta)
    return Step(network, network.moved(step_size * gradient), float(step_size), gradient, beta, rank_one)


def usual_step_size(n: int, *, kappa: float = 1.0, alpha: float = 0.5) -> float:
    """η = κ n^α.

    >>> usual_step_size(256)
    16.0
    """
    check_positive("kappa", kappa)
    return float(kappa * n**alpha)


def train_covariance(X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> Float[Tensor, " d"]:
    """β = Cov(x, y), data and labels centred, [d].

    >>> train_covariance(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([1.0, -1.0])).tolist()
    [1.0, 0.0]
    """
    return (X - X.mean(0)).T @ (y - y.mean()) / len(X)


def _checked(network: TwoLayer, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if X.ndim != 2 or X.shape[1] != network.inputs:
        raise ValueError(f"X: expected shape [n, {network.inputs}], got {tuple(X.shape)}")
    if y.shape != X.shape[:1]:
        raise ValueError(f"y: expected one label for each of the {len(X)} rows of X, got shape {tuple(y.shape)}")
    X, y = X.to(network.W.dtype), y.to(network.W.dtype)
    check_finite("X", X)
    check_finite("y", y)
    if bool((y == y[:1]).all()):
        raise ValueError("y: expected two classes, ±1, got one")
    if abs(float(y.mean())) > BALANCE * float(y.abs().max()):
        raise ValueError(f"y: the labels' mean is {float(y.mean()):.3g}, not 0; pass y - y.mean()")
    return X, y
