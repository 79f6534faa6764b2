"""What the experiments of this paper share when they conclude: values over seeds, and bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import local_elasticity.emergence as em
from local_elasticity.papers.experiment import Curve, Measured

Runs = list[Measured]


def over_seeds(runs: Runs, name: str) -> np.ndarray:
    """[seeds, values]."""
    return np.array([run[name] for run in runs], dtype=float)


def mean_of(runs: Runs, name: str) -> np.ndarray:
    return np.asarray(over_seeds(runs, name).mean(0))


def rise_gap(alignment: Sequence[float], elasticity: Sequence[float]) -> float:
    """max over s of |u_A − u_LE|. NaN where either ends nearer to its start than half of its range: it does not rise
    with s, and u is divided by something near 0.

    >>> rise_gap([1.0, 2.0, 3.0], [0.0, 2.0, 4.0]), rise_gap([1.0, 2.0, 3.0], [0.0, 2.0, 0.01])
    (0.0, nan)
    """
    if any(abs(Y[-1] - Y[0]) < np.ptp(Y) / 2 for Y in (alignment, elasticity)):
        return float("nan")
    return float(np.abs(em.rise_curve(alignment) - em.rise_curve(elasticity)).max())


def band(name: str, x: np.ndarray, values: np.ndarray) -> Curve:
    """The mean over seeds with its range."""
    rows = [[round(float(v), 6) for v in row] for row in (x, values.mean(0), values.min(0), values.max(0))]
    return Curve(name, *rows)


def draw_band(axes: Any, x: np.ndarray, values: np.ndarray, **options: Any) -> None:
    """A line for the mean over seeds, a shade for their range."""
    (line,) = axes.plot(x, values.mean(0), **options)
    axes.fill_between(x, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
