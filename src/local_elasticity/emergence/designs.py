"""Training data x = y v + ξ, and classes never trained on, N(μ, τ²I), in three designs.

Two unseen classes lie at μ± as t goes from 0 to 1 (v̂ = v/‖v‖, u a unit vector across v, 2 their distance from 0):

| design | μ±                    | what it is for                                                             |
|--------|-----------------------|----------------------------------------------------------------------------|
| `II`   | ±2(t v̂ + √(1 − t²) u) | their distance is fixed: retrieval before the step is flat                 |
| `I`    | ±2t v̂                 | confounded: their distance grows with the similarity                       |
| `IIIb` | 2t v̂ ± 2u             | both on one side of β: alignment and elasticity rise, retrieval must not   |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from local_elasticity.checks import check_choice, check_not_negative, check_positive
from local_elasticity.shapes import Float, Int

TRUNCATION = 2.0
"""Where the truncated Gaussian ends, before it is scaled to unit variance."""


def _gaussian(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def _rademacher(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (n, d), generator=generator).double() * 2 - 1


def _sphere(n: int, d: int, generator: torch.Generator) -> Tensor:
    return math.sqrt(d) * torch.nn.functional.normalize(_gaussian(n, d, generator), dim=1)


def _ball(n: int, d: int, generator: torch.Generator) -> Tensor:
    radius = torch.rand(n, 1, generator=generator, dtype=torch.float64) ** (1 / d)
    return math.sqrt((d + 2) / d) * radius * _sphere(n, d, generator)


def _truncated(n: int, d: int, generator: torch.Generator) -> Tensor:
    """Φ⁻¹ of a uniform draw between Φ(−2) and Φ(2)."""
    low = float(torch.special.ndtr(torch.tensor(-TRUNCATION, dtype=torch.float64)))
    uniform = low + (1 - 2 * low) * torch.rand(n, d, generator=generator, dtype=torch.float64)
    density = math.exp(-(TRUNCATION**2) / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * TRUNCATION * density / (1 - 2 * low)
    return torch.special.ndtri(uniform) / math.sqrt(variance)


NOISES: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "gaussian": _gaussian,
    "rademacher": _rademacher,
    "sphere": _sphere,
    "ball": _ball,
    "truncated": _truncated,
}
"""What draws each kind of `noise`, by name."""


def noise(kind: str, n: int, d: int, *, seed: int = 0) -> Float[Tensor, "n d"]:
    """n rows of sub-Gaussian noise with mean 0 and covariance I: `gaussian`, `rademacher` (±1), `sphere` (radius √d),
    `ball` (radius √(d + 2)), or `truncated` (a Gaussian cut at ±2 and scaled back).

    >>> noise("rademacher", 2, 3).abs().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    check_choice("kind", kind, NOISES)
    if n < 1 or d < 1:
        raise ValueError(f"n, d: expected both to be at least 1, got {n} and {d}")
    return NOISES[kind](n, d, generator_for("noise", seed))


def generator_for(purpose: str, seed: int) -> torch.Generator:
    """A generator of its own for every purpose, so that one seed never draws the same numbers for two of them."""
    mixed = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed >> np.uint64(1)))


@dataclass(frozen=True)
class TrainingData:
    """x = y v + ξ. X [n, d]; y [n], half of each sign; v [d]."""

    X: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    v: Float[Tensor, " d"]


def training_data(
    n: int, d: int, *, mean_norm: float = 2.0, kind: str = "gaussian", seed: int = 0, shuffled: bool = False
) -> TrainingData:
    """A binary task: balanced labels ±1, v of norm `mean_norm` in a random direction, unit-covariance noise.

    With `shuffled` the labels that are returned have nothing to do with the data: the null.

    >>> task = training_data(100, 20)
    >>> task.X.shape, float(task.y.sum())
    (torch.Size([100, 20]), 0.0)
    """
    check_choice("kind", kind, NOISES)
    if n < 2 or n % 2:
        raise ValueError(f"n: expected an even number (for two classes of the same size), got {n}")
    check_positive("mean_norm", mean_norm)
    generator = generator_for("task", seed)
    v = mean_norm * torch.nn.functional.normalize(torch.randn(d, generator=generator, dtype=torch.float64), dim=0)
    y = torch.ones(n, dtype=torch.float64)
    y[1::2] = -1
    X = y[:, None] * v + NOISES[kind](n, d, generator_for("training noise", seed))
    return TrainingData(X, y[torch.randperm(n, generator=generator)] if shuffled else y, v)


@dataclass(frozen=True)
class UnseenClasses:
    """Two classes that were not trained on: x [2b, d], labels [2b] (0 and 1, in this order), means [2, d]."""

    x: Float[Tensor, "b d"]
    labels: Int[Tensor, " b"]
    means: Float[Tensor, "2 d"]


DESIGNS = ("I", "II", "IIIb")
"""How `unseen_classes` may lie to what was trained on."""


def unseen_classes(
    design: str,
    t: float,
    v: Float[Tensor, " d"],
    *,
    per_class: int = 400,
    distance: float = 2.0,
    deviation: float = 1.0,
    seed: int = 0,
) -> UnseenClasses:
    """Two unseen classes N(μ±, deviation² I) in a design; the same seed draws the same u and noise at every t.

    >>> import torch
    >>> classes = unseen_classes("II", 1.0, torch.tensor([3.0, 0.0], dtype=torch.float64), per_class=5)
    >>> classes.means.abs().tolist()
    [[2.0, 0.0], [2.0, 0.0]]
    """
    check_choice("design", design, DESIGNS)
    if not 0 <= t <= 1:
        raise ValueError(f"t: expected a number from 0 to 1, got {t}")
    if len(v) < 2:
        raise ValueError("v: a direction across it needs at least two dimensions")
    check_positive("v: its norm", float(v.norm()))
    check_not_negative("distance", distance)
    check_positive("deviation", deviation)
    check_positive("per_class", per_class)
    means = _means(design, t, v, distance, generator_for("across", seed))
    labels = torch.arange(2).repeat_interleave(per_class)
    drawn = _gaussian(2 * per_class, len(v), generator_for("unseen noise", seed))
    return UnseenClasses(means[labels] + deviation * drawn, labels, means)


def _means(design: str, t: float, v: Tensor, distance: float, generator: torch.Generator) -> Tensor:
    along = v / v.norm()
    drawn = torch.randn(len(v), generator=generator, dtype=v.dtype)
    across = torch.nn.functional.normalize(drawn - (drawn @ along) * along, dim=0)
    if design == "I":
        return distance * torch.stack([t * along, -t * along])
    if design == "II":
        mean = t * along + math.sqrt(1 - t**2) * across
        return distance * torch.stack([mean, -mean])
    return distance * torch.stack([t * along + across, t * along - across])
