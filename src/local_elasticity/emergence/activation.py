"""Activations of the two-layer model, and their moments under a Gaussian.

| name     | σ(z)                      |                                                     |
|----------|---------------------------|-----------------------------------------------------|
| `relu`   | max(z, 0) − 1/√(2π)       | centred, so that E σ(z) = 0 under z ~ N(0, 1)       |
| `tanh`   | tanh z                    |                                                     |
| `erf`    | erf z                     |                                                     |
| `linear` | z                         | the control: no kink, no curvature, V′ = 0          |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from local_elasticity.checks import check_choice

Function = Callable[[Tensor], Tensor]
RELU_MEAN = 1 / math.sqrt(2 * math.pi)
"""E max(z, 0), which centred ReLU takes off."""


@dataclass(frozen=True)
class Moments:
    """Of σ under z ~ N(0, variance).

    Attributes:
        c1: E σ′(z), the slope of the rank-one part.
        m2: E σ′(z)².
        c2: E[σ(z) He₂(z/√variance)]/2, the curvature.
        mean: E σ(z).
        square: E σ(z)².
    """

    c1: float
    m2: float
    c2: float
    mean: float
    square: float

    @property
    def slope_variance(self) -> float:
        """V′ = m2 − c1², what the gradient has outside its rank-one part."""
        return max(self.m2 - self.c1**2, 0.0)


@dataclass(frozen=True)
class Activation:
    """σ and σ′, and E σ(N(M, V)) where it has a closed form."""

    name: str
    function: Function
    derivative: Function
    closed_form: Callable[[Tensor, Tensor], Tensor] | None = None

    def moments(self, variance: float = 1.0) -> Moments:
        """c1, m2, c2 and the mean under z ~ N(0, variance).

        >>> round(ACTIVATIONS["relu"].moments().c1, 9)
        0.5
        """
        z, weight = gaussian_rule()
        at = math.sqrt(variance) * z
        value, slope = self.function(at), self.derivative(at)
        integrands = (slope, slope**2, value * (z**2 - 1) / 2, value, value**2)
        return Moments(*(float(weight @ integrand) for integrand in integrands))

    def smoothed(self, mean: Tensor, variance: Tensor) -> Tensor:
        """φ(M, V) = E σ(z) under z ~ N(M, V), elementwise.

        >>> m = torch.tensor([0.0, 1.0], dtype=torch.float64)
        >>> ACTIVATIONS["linear"].smoothed(m, torch.ones_like(m)).tolist()
        [0.0, 1.0]
        """
        if self.closed_form is not None:
            return self.closed_form(mean, variance)
        nodes, weights = hermite_rule(48)
        root = variance.sqrt()
        total = torch.zeros_like(mean)
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            total += weight * self.function(mean + node * root)
        return total


def _relu_smoothed(mean: Tensor, variance: Tensor) -> Tensor:
    """M Φ(M/√V) + √V φ(M/√V) − 1/√(2π)."""
    root = variance.sqrt()
    ratio = mean / root
    density = torch.exp(-(ratio**2) / 2) * RELU_MEAN
    return mean * torch.special.ndtr(ratio) + root * density - RELU_MEAN


ACTIVATIONS = {
    "relu": Activation(
        "relu", lambda z: torch.relu(z) - RELU_MEAN, lambda z: (z > 0).to(z.dtype), closed_form=_relu_smoothed
    ),
    "tanh": Activation("tanh", torch.tanh, lambda z: 1 - torch.tanh(z) ** 2),
    "erf": Activation(
        "erf",
        torch.erf,
        lambda z: 2 / math.sqrt(math.pi) * torch.exp(-(z**2)),
        closed_form=lambda mean, variance: torch.erf(mean / (1 + 2 * variance).sqrt()),
    ),
    "linear": Activation("linear", lambda z: z, torch.ones_like, closed_form=lambda mean, variance: mean),
}
"""The activations that the theory knows, by name."""


def activation_named(name: str | Activation) -> Activation:
    """An activation by name; one of your own passes through."""
    if isinstance(name, Activation):
        return name
    check_choice("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


@lru_cache
def gaussian_rule() -> tuple[Tensor, Tensor]:
    """Nodes and weights for E f(z), z ~ N(0, 1): Gauss–Legendre on either side of 0, where f may have a kink."""
    nodes, weights = np.polynomial.legendre.leggauss(120)
    positive = 12 * (nodes + 1) / 2
    density = weights * 12 / 2 * np.exp(-(positive**2) / 2) / math.sqrt(2 * math.pi)
    return _double(np.concatenate([-positive[::-1], positive])), _double(np.concatenate([density[::-1], density]))


@lru_cache
def hermite_rule(count: int) -> tuple[Tensor, Tensor]:
    """Gauss–Hermite nodes and weights for E f(z), z ~ N(0, 1), f smooth."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return _double(nodes), _double(weights / math.sqrt(2 * math.pi))


def _double(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
