"""Landmarks: a kernel known at a few points is nearly known everywhere (Nyström), at a cost that grows with n alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from local_elasticity.checks import check_count
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import count, read_inputs, take
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.measures.kernel import ntk
from local_elasticity.shapes import Float

LANDMARKS = 256
SMALLEST = 1e-6
"""Eigenvalues below this share of the largest are rounding, and are left out."""


@untouched
def landmark_features(
    problem: Problem | nn.Module, x: Any, *, landmarks: int = LANDMARKS, seed: int = 0, memory: int | None = None
) -> Float[Tensor, "n r"]:
    """Features φ(x) with ⟨φ(x), φ(x′)⟩ ≈ Θ(x, x′), the trace of the neural tangent kernel, exact at the landmarks:

        φ(x) = W^{−1/2} k(x),   k(x) = Θ(x, landmarks),   W = Θ among the landmarks.

    Args:
        problem, x: as for `ntk`; a bare model needs no loss.
        landmarks: how many of the points, drawn at random; the features are at most as many.
        seed: of the draw.
        memory: bytes to work in; by default half of what is free.

    Returns:
        Features, [n, r] with r at most `landmarks`, whose inner products approximate the kernel.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> problem, x = le.Problem.of(torch.nn.Linear(3, 1).double(), "mse"), torch.randn(50, 3).double()
    >>> phi = le.landmark_features(problem, x, landmarks=8)  # this kernel has rank 4
    >>> torch.allclose(phi @ phi.T, le.ntk(problem, x)), phi.shape
    (True, torch.Size([50, 4]))
    """
    check_count("landmarks", landmarks)
    problem = problem if isinstance(problem, Problem) else as_problem(problem, "mse")
    with problem.bound() as bound:
        inputs = read_inputs(x, bound.device, bound.dtype, "x")
    few = take(inputs, drawn(count(inputs), landmarks, seed))
    return ntk(problem, inputs, few, memory=memory) @ inverse_root(ntk(problem, few, memory=memory))


def drawn(n: int, few: int, seed: int) -> Tensor:
    """`few` of n places, at random and in order.

    >>> drawn(3, 5, seed=0)
    tensor([0, 1, 2])
    """
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:few].sort().values


def inverse_root(W: Float[Tensor, "l l"]) -> Float[Tensor, "l r"]:
    """R with R Rᵀ = W⁺, the pseudo-inverse of a symmetric kernel without its eigenvalues that are rounding or negative.

    >>> import torch
    >>> R = inverse_root(torch.tensor([[4.0, 0.0], [0.0, 0.0]]))
    >>> R.abs()
    tensor([[0.5000],
            [0.0000]])
    """
    values, vectors = torch.linalg.eigh((W + W.T).double() / 2)
    kept = values > SMALLEST * values.max().clamp_min(torch.finfo(torch.float64).tiny)
    return (vectors[:, kept] * values[kept].rsqrt()).to(W.dtype)
