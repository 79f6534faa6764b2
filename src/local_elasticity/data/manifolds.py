"""The six pairs of manifolds of He & Su (Figs 1 and 4, A.1), with geodesic distances among the blue points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from local_elasticity.checks import check_choice
from local_elasticity.shapes import Float

Reading = Literal["as_defined", "as_released"]
Pair = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Blue points [b, d], red points [b, d], geodesic distances among the blue [b, b]."""


@dataclass(frozen=True)
class Manifold:
    """Points of two colours on two manifolds.

    Attributes:
        points: [n, d] in float64, blue first.
        labels: [n], 1 for blue and 0 for red.
        geodesic: [n/2, n/2], distances among the blue points along their manifold.
    """

    name: str
    points: Float[Tensor, "n d"]
    labels: Float[Tensor, " n"]
    geodesic: Float[Tensor, "b b"]

    @property
    def blue(self) -> Float[Tensor, "b d"]:
        return self.points[: len(self.geodesic)]


def manifold(name: str, n: int = 100, *, seed: int = 0, reading: Reading = "as_defined") -> Manifold:
    """Draw n points, half of each colour, uniformly in the curve's or surface's parameters.

    `reading` matters for two distances: on the torus the text measures along the curve, the released code the angle;
    on the folded boxes the released code takes 11 for the half-width 13/1.2.

    >>> torus = manifold("torus", n=100, seed=0)
    >>> torus.points.shape, torus.geodesic.shape
    (torch.Size([100, 3]), torch.Size([50, 50]))
    """
    check_choice("name", name, MANIFOLDS)
    if n < 4 or n % 4:
        raise ValueError(f"n: expected a multiple of 4, got {n!r}")
    blue, red, geodesic = MANIFOLDS[name](np.random.default_rng(seed), n // 2, reading)
    labels = torch.cat([torch.ones(n // 2), torch.zeros(n // 2)]).double()
    points = torch.from_numpy(np.concatenate([blue, red]))
    return Manifold(name, points, labels, torch.from_numpy(geodesic))


def _torus(rng: np.random.Generator, size: int, reading: Reading) -> Pair:
    """Eq. A.1 and A.2: two curves that wind four times around a torus."""

    def curve(angle: np.ndarray, side: int) -> np.ndarray:
        radius = 8 + side * np.sin(4 * angle)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle), side * np.cos(4 * angle)], axis=1)

    blue, red = rng.uniform(-np.pi, np.pi, (2, size))
    if reading == "as_released":
        geodesic = _around(blue, 2 * np.pi)
    else:
        geodesic = _around(_torus_arc(blue), _torus_arc(np.array([np.pi]))[0] - _torus_arc(np.array([-np.pi]))[0])
    return curve(blue, 1), curve(red, -1), geodesic


def _torus_arc(angle: np.ndarray) -> np.ndarray:
    """Length along the blue curve from −π; its speed is √(16 + (8 + sin 4θ)²)."""
    grid = np.linspace(-np.pi, np.pi, 20001)
    speed = np.sqrt(16 + (8 + np.sin(4 * grid)) ** 2)
    length = np.concatenate([[0], np.cumsum((speed[1:] + speed[:-1]) / 2 * np.diff(grid))])
    return np.asarray(np.interp(angle, grid, length))


def _folded_boxes(rng: np.random.Generator, size: int, reading: Reading) -> Pair:
    """Eq. A.3 and A.4: |y| + 1.2|x| = 13 and 11, z in [−1, 1]; half of the points above, half below."""
    slope = 1.2
    above = np.repeat([1.0, -1.0], size // 2)

    def box(level: float) -> tuple[np.ndarray, np.ndarray]:
        x, z = rng.uniform(-level / slope, level / slope, size), rng.uniform(-1, 1, size)
        return np.stack([x, above * (level - slope * np.abs(x)), z], axis=1), x

    blue, x = box(13)
    red, _ = box(11)
    half_width = 13 / slope if reading == "as_defined" else 11.0
    stretch = np.sqrt(1 + slope**2)
    along = stretch * np.where(above > 0, x, 2 * half_width - x)
    around = _around(along, 4 * half_width * stretch)
    return blue, red, np.hypot(around, blue[:, None, 2] - blue[None, :, 2])


def _two_cosines(rng: np.random.Generator, size: int, reading: Reading) -> Pair:
    blue, red = rng.uniform(-0.6 * np.pi, 0.6 * np.pi, (2, size))
    points = [np.stack([x, np.cos(x) + shift], axis=1) for x, shift in ((blue, 0.2), (red, -0.2))]
    return points[0], points[1], _apart(blue)


def _double_helix(rng: np.random.Generator, size: int, reading: Reading) -> Pair:
    blue, red = rng.uniform(-np.pi / 2, np.pi / 2, (2, size))
    points = [
        np.stack([side * np.cos(1.5 * angle), side * np.sin(1.5 * angle), angle], axis=1)
        for angle, side in ((blue, 1), (red, -1))
    ]
    return points[0], points[1], _apart(blue)


def _two_cycles(rng: np.random.Generator, size: int, reading: Reading) -> Pair:
    """Blue is the inner circle, radius 10; red the outer, 50."""
    blue, red = rng.uniform(-np.pi, np.pi, (2, size))
    points = [radius * np.stack([np.cos(angle), np.sin(angle)], axis=1) for angle, radius in ((blue, 10), (red, 50))]
    return points[0], points[1], _around(blue, 2 * np.pi)


def _two_spheres(rng: np.random.Generator, size: int, reading: Reading) -> Pair:
    """Blue is the inner sphere, radius 10; red the outer, 20; θ ~ U(0, π), φ ~ U(0, 2π)."""

    def directions() -> np.ndarray:
        polar, azimuth = rng.uniform(0, np.pi, size), rng.uniform(0, 2 * np.pi, size)
        return np.stack([np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar)], axis=1)

    blue, red = directions(), directions()
    geodesic = np.arccos(np.clip(blue @ blue.T, -1, 1))
    np.fill_diagonal(geodesic, 0)
    return 10 * blue, 20 * red, geodesic


def _apart(position: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(position[:, None] - position[None]))


def _around(position: np.ndarray, length: float) -> np.ndarray:
    """Distance on a closed curve of this length, the shorter way round."""
    apart = np.mod(_apart(position), length)
    return np.asarray(np.minimum(apart, length - apart))


MANIFOLDS: dict[str, Callable[[np.random.Generator, int, Reading], Pair]] = {
    "torus": _torus,
    "folded_boxes": _folded_boxes,
    "two_cosines": _two_cosines,
    "double_helix": _double_helix,
    "two_cycles": _two_cycles,
    "two_spheres": _two_spheres,
}
"""What draws each pair of curves or surfaces of He & Su, by name."""
