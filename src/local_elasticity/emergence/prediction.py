"""What theory says of alignment, elasticity and inter-class products after one step, at any step size.

All of it is our own inference ([I] in docs/results/emergence2024.md), checked by simulation. The rank-one part of the
step shifts the pre-activation of a unit with outer weight g/√N by γ g b(x), γ = η c₁/√N, b = βᵀx, g ~ N(0, 1); the
rest of the gradient adds variance (η²/N) V′ d/n, V′ = E σ′² − (E σ′)².
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from local_elasticity.checks import check_not_negative, check_positive
from local_elasticity.emergence.activation import Activation, Moments, hermite_rule
from local_elasticity.emergence.one_step import Step

OUTER, INNER = 64, 8
"""Gauss–Hermite nodes for g, and for each of the small projections m₁, m₂, r of a unit's weights."""

GRID, REACH = 801, 8.0
"""Trapezoid in h, which is where ReLU has its kink: this many points over ± this many standard deviations."""

LEAST_VARIANCE = 1e-6
"""V is clipped here: 1 + 2γ g r + … can be negative at far nodes."""


SLACK = 1e-6
"""A product may be larger than the norms allow by this share, from rounding."""


@dataclass(frozen=True)
class Theory:
    """Predictions for one step on n examples of d inputs in a net of N units, given ‖β‖ and ‖a‖ (1 in expectation).

    >>> from local_elasticity.emergence.activation import ACTIVATIONS
    >>> theory = Theory(ACTIVATIONS["linear"], step_size=4.0, n=16, inputs=16, width=16, beta_norm=2.0)
    >>> round(theory.alignment(2.0, 3.0), 6)  # ‖μ‖²/d + γ²s²
    9.25
    >>> round(theory.elasticity(2.0, 3.0), 4)  # γ²(s² + ‖β‖²)
    13.0
    """

    activation: Activation
    step_size: float
    n: int
    inputs: int
    width: int
    beta_norm: float
    outer_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n", "inputs", "width"):
            check_positive(name, getattr(self, name))
        for name in ("step_size", "beta_norm", "outer_norm"):
            check_not_negative(name, getattr(self, name))

    @classmethod
    def of_step(cls, step: Step, n: int) -> Theory:
        """For a step that was taken on n examples, with the β and the a that it had."""
        network = step.before
        norms = float(step.beta.norm()), float(network.a.norm())
        return cls(network.activation, step.step_size, n, network.inputs, network.width, *norms)

    @classmethod
    def expected(
        cls, activation: Activation, *, step_size: float, n: int, inputs: int, width: int, mean_norm: float
    ) -> Theory:
        """Before any data are drawn: E‖β‖² = ‖v‖² + d/n."""
        return cls(activation, step_size, n, inputs, width, math.sqrt(mean_norm**2 + inputs / n))

    @property
    def before(self) -> Theory:
        """The same network without the step."""
        return replace(self, step_size=0.0)

    @property
    def moments(self) -> Moments:
        return self.activation.moments()

    @property
    def gamma(self) -> float:
        """γ = η c₁ ‖a‖/√N."""
        return self.step_size * self.moments.c1 * self.outer_norm / math.sqrt(self.width)

    @property
    def rest_variance(self) -> float:
        """(η²‖a‖²/N) V′ d/n, from the gradient outside its rank-one part."""
        return (self.step_size * self.outer_norm) ** 2 / self.width * self.moments.slope_variance * self.inputs / self.n

    def alignment(self, mean_norm: float, s: float, *, deviation: float = 1.0) -> float:
        """A = E φ(M, V)² for a class N(μ, τ²I) with ‖μ‖ = mean_norm, βᵀμ = s and τ = deviation."""
        return self.product((mean_norm, s), (mean_norm, s), mean_norm**2, deviation=deviation)

    def product(
        self, first: tuple[float, float], second: tuple[float, float], inner: float, *, deviation: float = 1.0
    ) -> float:
        """E φ(M₁, V) φ(M₂, V) between two classes (‖μ‖, s) with μ₁ᵀμ₂ = inner; its negative is the separability.

        (m₁, m₂, r) = (w·μ₁, w·μ₂, w·β) are jointly Gaussian with covariance (…)/d; M = m + γ g s and
        V = τ²[1 + 2γ g r + g²(γ²‖β‖² + (η²/N) V′ d/n)].
        """
        (norm1, s1), (norm2, s2) = first, second
        self._check_class(norm1, s1)
        self._check_class(norm2, s2)
        _check_product("inner", inner, "‖μ₁‖‖μ₂‖", norm1 * norm2)
        covariance = [[norm1**2, inner, s1], [inner, norm2**2, s2], [s1, s2, self.beta_norm**2]]
        m1, m2, r, weights = _projections(torch.tensor(covariance, dtype=torch.float64) / self.inputs)
        g, outer = hermite_rule(OUTER)
        spread = self.gamma**2 * self.beta_norm**2 + self.rest_variance
        V = deviation**2 * (1 + 2 * self.gamma * torch.outer(r, g) + g**2 * spread)
        V = V.clamp_min(LEAST_VARIANCE)
        one = self.activation.smoothed(m1[:, None] + self.gamma * s1 * g, V)
        two = self.activation.smoothed(m2[:, None] + self.gamma * s2 * g, V)
        return float(weights @ (one * two) @ outer)

    def elasticity(self, mean_norm: float, s: float, *, deviation: float = 1.0) -> float:
        """LE = E(σ(h + γ g b′) − σ(h))², h ~ N(0, ‖μ‖²/d + τ²), b′ ~ N(s, τ²(‖β‖² + V′ d/(n c₁²)))."""
        self._check_class(mean_norm, s)
        spread = self.beta_norm**2 + self.moments.slope_variance * self.inputs / (self.n * self.moments.c1**2)
        nodes, inner = hermite_rule(2 * INNER)
        b = s + deviation * math.sqrt(spread) * nodes
        g, outer = hermite_rule(OUTER)
        shift = self.gamma * torch.outer(g, b)
        z = torch.linspace(-REACH, REACH, GRID, dtype=torch.float64)
        h = math.sqrt(mean_norm**2 / self.inputs + deviation**2) * z
        density = torch.exp(-(z**2) / 2)
        moved = (self.activation.function(h + shift[..., None]) - self.activation.function(h)).square()
        return float(outer @ (moved @ (density / density.sum())) @ inner)

    def leading_alignment_rise(self, mean_norm: float, s: float, *, deviation: float = 1.0) -> float:
        """ΔA ≈ (η²/N) c₁² c₁(τ)² s², for small steps; at τ = 1 (η²/N) c₁⁴ s².

        c₁(τ) is taken under z ~ N(0, τ² + ‖μ‖²/d), and E σ = 0 is needed there.
        """
        self._check_class(mean_norm, s)
        outer = self._outer_moments(mean_norm, deviation)
        return self.gamma**2 * outer.c1**2 * s**2

    def leading_elasticity(self, mean_norm: float, s: float, *, deviation: float = 1.0) -> float:
        """LE ≈ (η²/N) m₂ [c₁²(s² + τ²‖β‖²) + τ² V′ d/n], for small steps: it rises as (ηs)², like ΔA, from a floor."""
        self._check_class(mean_norm, s)
        outer = self._outer_moments(mean_norm, deviation)
        floor = deviation**2 * (self.gamma**2 * self.beta_norm**2 + self.rest_variance)
        return outer.m2 * (self.gamma**2 * s**2 + floor)

    def _outer_moments(self, mean_norm: float, deviation: float) -> Moments:
        return self.activation.moments(deviation**2 + mean_norm**2 / self.inputs)

    def _check_class(self, mean_norm: float, s: float) -> None:
        check_not_negative("mean_norm", mean_norm)
        _check_product("s", s, "‖β‖‖μ‖", self.beta_norm * mean_norm)


def _check_product(name: str, value: float, bound: str, largest: float) -> None:
    """The Cauchy–Schwarz inequality, with an allowance for rounding."""
    if not abs(value) <= largest + SLACK * (1 + largest):
        raise ValueError(f"{name}: expected at most {bound} = {largest:.6g}, got {value!r}")


def _projections(covariance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes for three jointly Gaussian numbers, which may depend on one another entirely, and their weights."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt()
    nodes, weights = hermite_rule(INNER)
    z = torch.cartesian_prod(nodes, nodes, nodes) @ root.T
    return z[:, 0], z[:, 1], z[:, 2], torch.cartesian_prod(weights, weights, weights).prod(1)
